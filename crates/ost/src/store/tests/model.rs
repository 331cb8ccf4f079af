//! Random work against a model.

use env::sim::SimRng;
use types::limits::BLOCK;
use types::{ClientId, Fault, ObjectId};

use super::super::{Asked, ObjectStore};
use super::{Blocks, Disks, FREELY, content, look, new_client, open};

const OBJECTS: u64 = 6;
const END: u64 = 200;

/// Random requests, and what the objects must have afterwards.
struct Work {
    rng: SimRng,
    objects: Vec<Blocks>,
    version: u64,
    client: ClientId,
    full: u64,
}

impl Work {
    async fn step(&mut self, store: &ObjectStore) {
        self.version += 1;
        let object = self.rng.below(OBJECTS);
        let blocks = &mut self.objects[object as usize];
        let asked = Asked { client: self.client, slot: 3, seq: self.version as u32 };
        match self.rng.below(10) {
            0 => {
                let other = self.rng.below(OBJECTS);
                let all = [object, 77, other].map(ObjectId);
                store.destroy(asked, &all).await.unwrap();
                self.objects[object as usize].clear();
                self.objects[other as usize].clear();
            }
            1 | 2 => {
                let from = self.rng.below(END);
                let to = if self.rng.one_in(3) { u64::MAX } else { from + self.rng.below(60) };
                store.punch(asked, ObjectId(object), from, to).await.unwrap();
                blocks.retain(|block, _| *block < from || *block >= to);
            }
            _ => {
                let (from, len) = (self.rng.below(END - 40), 1 + self.rng.below(40));
                let (data, sums) = content(object, from, len, self.version);
                let free = store.info().free;
                match store.write(asked, (ObjectId(object), from), data, &sums, FREELY).await {
                    Ok(_) => (from..from + len).for_each(|block| {
                        blocks.insert(block, self.version);
                    }),
                    Err(fault) => {
                        let old = blocks.range(from..from + len).count() as u64;
                        assert_eq!(fault, Fault::NoSpace);
                        // A write over others may need more than is left for such.
                        let few = free < len - old || store.space.free() < len;
                        assert!(few, "{free} are free for {}", len - old);
                        assert_eq!(store.info().free, free);
                        self.full += 1;
                        return;
                    }
                }
            }
        }
        let kept = store.engine().run(engine::cost::Cost::READ, |txn| txn.reply(self.client, 3));
        assert_eq!(kept.await.unwrap().0, Some((self.version as u32, Vec::new())));
    }

    async fn check(&self, store: &ObjectStore) {
        for (object, blocks) in (0..).zip(&self.objects) {
            let known = |block: u64| blocks.get(&block).copied().into_iter().collect();
            assert_eq!(look(store, object, END, known).await.unwrap(), *blocks, "object {object}");
        }
    }
}

#[test]
fn objects_are_as_a_model_of_them() {
    for seed in 1..7 {
        let (external, checksums) = (seed % 2 == 0, seed % 3 > 0);
        let disks = Disks::formatted(480, 1 << 20, external, checksums);
        let mut work = Work {
            rng: SimRng::new(seed),
            objects: vec![Blocks::new(); OBJECTS as usize],
            version: 0,
            client: ClientId::NONE,
            full: 0,
        };
        for round in 0..5 {
            let world = disks.world(seed * 10 + round);
            work = world.run(|env| async move {
                let store = open(&env).await;
                work.check(&store).await;
                if round == 0 {
                    work.client = new_client(&store).await;
                }
                for _ in 0..120 {
                    work.step(&store).await;
                    if work.rng.one_in(20) {
                        work.check(&store).await;
                    }
                }
                work.check(&store).await;
                let used: usize = work.objects.iter().map(Blocks::len).sum();
                assert_eq!(store.check().await.unwrap(), []);
                assert_eq!(store.space.free(), 479 - used as u64);
                match round % 2 {
                    0 => store.close().await.unwrap(),
                    // The next opening recovers it.
                    _ => store.engine().sync().await.unwrap(),
                }
                work
            });
        }
        assert!(work.full > 5, "the target is full at times: {}", work.full);
    }
}

#[test]
fn blocks_of_a_write_lie_together_behind_the_last_one() {
    let disks = Disks::formatted(8192, 1 << 20, false, true);
    disks.world(1).run(|env| async move {
        let store = open(&env).await;
        for n in 0..16 {
            super::write(&store, 5, n * 256, 256, n).await.unwrap();
        }
        let segments = store.engine().run(engine::cost::Cost::READ, |txn| {
            super::super::map::overlapping(txn, ObjectId(5), 0, u64::MAX, 100)
        });
        assert_eq!(segments.await.unwrap().0.len(), 1);
    });
    assert!(
        disks.device.counts().writes < 200 + 8192 / 256,
        "{:?} of {BLOCK}",
        disks.device.counts()
    );
}
