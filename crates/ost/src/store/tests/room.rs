//! Room: full targets, freed blocks, readers beside writers, large objects, damage of the records.

use std::rc::Rc;

use engine::check::Finding as Records;
use engine::cost::Cost;
use engine::error::StoreError;
use engine::store::Store;
use engine::store::open::OpenOptions;
use env::sim::SimRng;
use proto::ost::Statement;
use types::{ClientId, Duration, Fault, ObjectId, PagId, Uuid};

use super::super::check::Finding;
use super::super::format::{
    BLOCKS_MAX, Extent, FREE, OBJECTS, Run, SEGMENTS, SUMS, Segment, place_key,
};
use super::super::{Asked, FormatOptions, ObjectStore, Room};
use super::{Disks, FREELY, NOBODY, OPTIONS, content, look, new_client, open, read_all, write};

#[test]
fn write_without_room_changes_nothing_and_one_over_others_still_finds_some() {
    let disks = Disks::formatted(1000, 1 << 20, false, true);
    disks.world(1).run(|env| async move {
        let store = open(&env).await;
        let client = new_client(&store).await;
        let mut blocks = 0;
        while write(&store, 1, blocks, 20, 1).await.is_ok() {
            blocks += 20;
        }
        let (free, left) = (store.info().free, store.space.free());
        assert!(free < 20 && left >= 62, "{free} of {left}");
        let end = store.engine().log_end();
        let (data, sums) = content(1, blocks, 20, 1);
        let asked = Asked { client, slot: 0, seq: 1 };
        let full = store.write(asked, (ObjectId(1), blocks), data, &sums, FREELY).await;
        assert_eq!((full, store.engine().log_end()), (Err(Fault::NoSpace), end));
        assert_eq!((store.info().free, store.space.free()), (free, left));
        let kept = store.engine().run(Cost::READ, |txn| txn.reply(client, 0)).await.unwrap().0;
        assert_eq!(kept, None);
        // Writes over others, more than there are free blocks.
        for version in 2..12 {
            for block in (0..blocks).step_by(50) {
                write(&store, 1, block, 50.min(blocks - block), version).await.unwrap();
            }
        }
        assert!(store.counters().held.count > 0, "they waited for freed blocks");
        assert_eq!(store.space.free(), left);
        let found = look(&store, 1, blocks, |_| vec![11]).await.unwrap();
        assert_eq!((found.len() as u64, store.check().await.unwrap()), (blocks, vec![]));
        // What is given back can be used at once.
        store.punch(NOBODY, ObjectId(1), 0, 100).await.unwrap();
        write(&store, 2, 0, 100, 1).await.unwrap();
        assert_eq!(store.space.free(), left);
    });
}

/// Takes metadata blocks until `left` are there for writes.
async fn take_metadata(store: &ObjectStore, left: u64) -> Vec<(types::MetaBlock, u32)> {
    let mut taken = Vec::new();
    loop {
        let usage = store.engine().usage();
        let more = (usage.blocks_free - usage.blocks_set_aside).saturating_sub(left).min(100);
        if more == 0 {
            return taken;
        }
        let more = more as u32;
        let made = store.engine().run(Cost::DELETE, |txn| txn.alloc_meta(more, None)).await;
        taken.push((made.unwrap().0, more));
    }
}

/// Fills a target as far as it promises room, then breaks all of it into segments of one block.
#[test]
fn accepted_writes_over_others_find_metadata_however_scattered_they_are() {
    let disks = Disks::formatted(12_000, 1 << 20, false, true);
    disks.world(1).run(|env| async move {
        let store = open(&env).await;
        let client = new_client(&store).await;
        let taken = take_metadata(&store, 64 + 130).await;
        let (mut blocks, mut number) = (0, 0);
        let mut say = || {
            number += 1;
            Statement { number, blocks: 0, asked: 0 }
        };
        while store.promise(client, say(), 50, 50).is_ok() {
            let (data, sums) = content(1, blocks, 50, 1);
            let asked = Asked { client, slot: 0, seq: number_of(blocks) };
            let room = Room::Of(say());
            store.write(asked, (ObjectId(1), blocks), data, &sums, room).await.unwrap();
            blocks += 50;
        }
        assert!(store.is_short_of_metadata() && store.info().free > 2000, "{blocks} blocks");
        assert!(blocks > 3000, "{blocks} blocks");
        let mut version = 1;
        for (from, step) in [(0, 2), (1, 4), (3, 4)] {
            version += 1;
            for block in (from..blocks).step_by(step) {
                let made = write(&store, 1, block, 1, version).await;
                made.unwrap_or_else(|fault| panic!("block {block} of {blocks}: {fault}"));
            }
        }
        let segments = store.engine().count(SEGMENTS).await.unwrap();
        assert!(segments > blocks / 2, "{segments} segments of {blocks} blocks");
        for (block, len) in taken {
            store.engine().run(Cost::DELETE, |txn| txn.free_meta(block, len)).await.unwrap();
        }
        assert_eq!(store.check().await.unwrap(), []);
        let found = look(&store, 1, blocks, |_| vec![2, 3, 4]).await.unwrap();
        assert_eq!(found.len() as u64, blocks);
        // With metadata there is room again.
        assert!(!store.is_short_of_metadata());
        store.promise(client, say(), 50, 50).unwrap();
    });
}

/// The sequence number of the write of these blocks.
fn number_of(blocks: u64) -> u32 {
    (blocks / 50) as u32 + 1
}

#[test]
fn readers_beside_writers_see_bytes_of_their_object_only() {
    for seed in 1..6 {
        let disks = Disks::formatted(400, 256 << 10, seed % 2 == 0, seed % 3 > 0);
        disks.world(seed).run(|env| async move {
            let store = open(&env).await;
            let tasks: Vec<_> = (0..6u64)
                .map(|task| {
                    let (store, env) = (store.clone(), env.clone());
                    let object = task % 3;
                    env.clone().spawn_join(async move {
                        let mut rng = SimRng::new(seed * 10 + task);
                        for version in 1..80 {
                            let (block, len) = (rng.below(40), 1 + rng.below(20));
                            if task < 3 {
                                let made = write(&store, object, block, len, version).await;
                                let number = made.unwrap();
                                if rng.one_in(2) {
                                    store.engine().wait_durable(number).await.unwrap();
                                }
                            } else {
                                read_all(&store, object, 60, |_| (0..80).collect()).await.unwrap();
                                env.sleep(Duration::from_micros(rng.below(300))).await;
                            }
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
            assert_eq!(store.check().await.unwrap(), []);
            store.engine().sync().await.unwrap();
            store.space.release(store.engine().last_committed().lsn);
            assert_eq!(store.counters().held_blocks, 0);
        });
    }
}

#[test]
fn large_and_scattered_objects_are_given_back_in_steps() {
    let disks = Disks::formatted(30_000, 4 << 20, false, true);
    disks.world(1).run(|env| async move {
        let store = open(&env).await;
        let client = new_client(&store).await;
        // Every other block: a segment each.
        for block in (0..800).step_by(2) {
            write(&store, 1, block, 1, 1).await.unwrap();
            write(&store, 2, block, 1, 1).await.unwrap();
        }
        for block in (0..20_000).step_by(256) {
            write(&store, 3, block, 256, 1).await.unwrap();
        }
        write(&store, 4, BLOCKS_MAX - 256, 256, 1).await.unwrap();
        for beyond in [BLOCKS_MAX - 255, BLOCKS_MAX, u64::MAX - 100, u64::MAX] {
            assert_eq!(write(&store, 4, beyond, 256, 1).await, Err(Fault::Invalid));
            let read = store.read(ObjectId(4), beyond, 256).await.err();
            assert_eq!(read, Some(Fault::Invalid));
            store.punch(NOBODY, ObjectId(4), beyond, u64::MAX).await.unwrap();
            assert!(store.runs(ObjectId(4), beyond, 9).await.unwrap().1);
        }
        assert_eq!(store.check().await.unwrap(), []);
        let (runs, all) = store.runs(ObjectId(1), 100, 10).await.unwrap();
        assert!(!all && runs.len() == 10 && runs[0].block == 100 && runs[9].block == 118);
        store.punch(NOBODY, ObjectId(3), 10, u64::MAX).await.unwrap();
        assert_eq!(look(&store, 3, 20_000, |_| vec![1]).await.unwrap().len(), 10);
        let asked = Asked { client, slot: 0, seq: 9 };
        store.punch(asked, ObjectId(1), 1, 799).await.unwrap();
        store.destroy(asked, &[5, 2, 3, 4, 1].map(ObjectId)).await.unwrap();
        assert_eq!(store.space.free(), 29_999);
        assert_eq!(store.check().await.unwrap(), []);
        let objects = store.engine().count(OBJECTS).await.unwrap();
        assert_eq!((objects, store.engine().count(FREE).await.unwrap()), (0, 1));
        assert_eq!(store.engine().count(SUMS).await.unwrap(), 0);
    });
}

#[test]
fn fences_and_kept_replies_survive_a_restart() {
    let disks = Disks::formatted(400, 4 << 20, true, false);
    let client = disks.world(1).run(|env| async move {
        let store = open(&env).await;
        let client = new_client(&store).await;
        let (data, sums) = content(1, 0, 4, 1);
        let asked = Asked { client, slot: 5, seq: 8 };
        store.write(asked, (ObjectId(1), 0), data, &sums, FREELY).await.unwrap();
        assert!(!store.is_fenced(ClientId(9)));
        store.fence(ClientId(9)).await.unwrap();
        store.fence(ClientId(9)).await.unwrap();
        assert!(store.is_fenced(ClientId(9)) && !store.is_fenced(ClientId(8)));
        // A punch that finds nothing stands behind the one that left nothing.
        let first = store.punch(NOBODY, ObjectId(1), 3, 4).await.unwrap();
        let second = store.punch(NOBODY, ObjectId(1), 3, 4).await.unwrap();
        let third = store.destroy(NOBODY, &[ObjectId(7)]).await.unwrap();
        assert!(first <= second && second <= third && store.engine().last_committed() < first);
        store.engine().wait_durable(second).await.unwrap();
        assert!(store.engine().last_committed() >= first);
        // A fence makes what was written before durable.
        assert_eq!(store.counters().in_flight, 0);
        client
    });
    disks.world(2).run(|env| async move {
        let store = open(&env).await;
        assert!(store.is_fenced(ClientId(9)) && !store.is_fenced(ClientId(8)));
        let kept = store.engine().run(Cost::READ, |txn| txn.reply(client, 5)).await.unwrap().0;
        assert_eq!(kept, Some((8, Vec::new())));
        assert_eq!(look(&store, 1, 8, |_| vec![1]).await.unwrap().len(), 3);
        let (fs, name, epoch) = store.identity();
        assert_eq!((fs, name.as_str(), store.info().uuid), (Uuid([1; 16]), "home", Uuid([2; 16])));
        assert!(epoch.0 > 2 && !store.info().checksums && store.info().blocks == 399);
    });
}

#[test]
fn device_of_a_target_is_refused_by_everybody_else_and_theirs_by_it() {
    let disks = Disks::formatted(400, 256 << 10, true, false);
    let world = disks.world(1);
    world.disk("meta", 16 << 20);
    world.disk("empty", 64 << 10);
    world.run(|env| async move {
        let (device, journal) = Disks::open(&env).await;
        let text = |error: Option<StoreError>| match error {
            Some(StoreError::Refused(text)) => text.to_string(),
            other => panic!("{other:?}"),
        };
        let metadata = Store::open(&env, &device, OpenOptions::default()).await.err();
        assert!(text(metadata).contains("that it holds an object target of file system `home`"));
        let found = label::read(&device).await.unwrap().label;
        let data = found.expect_data(Uuid([1; 16]), PagId(0), None).unwrap_err();
        assert!(data.contains("holds an object target, clients open data only"), "{data}");
        let options = FormatOptions {
            fs_name: "other",
            fs: Uuid([3; 16]),
            target: Uuid([4; 16]),
            log_bytes: 64 << 10,
            checksums: true,
            force: false,
        };
        let again = ObjectStore::format(&env, &device, None, &options).await.err();
        let again = text(again);
        assert!(again.contains("`home` with an object target; use --force"), "{again}");
        let plain = engine::store::mkfs::FormatOptions {
            name: "meta",
            uuid: Uuid([5; 16]),
            shard: types::ShardId(0),
            log_bytes: 64 << 10,
            features: engine::format::features::Features::NONE,
            force: false,
        };
        let over = text(Store::begin_format(&env, &device, &plain).await.err());
        assert!(over.contains("an object target; use --force"), "{over}");
        // The journal belongs to this target.
        let without = ObjectStore::open(&env, &device, None, OPTIONS).await.err();
        let without = text(without);
        assert!(without.contains("which was not given") && without.contains("[[ost]]"));
        let meta = env.open_disk("meta", super::OPEN).await.unwrap();
        let store = Store::begin_format(&env, &meta, &plain).await.unwrap();
        store.end_format().await.unwrap();
        let other = text(ObjectStore::open(&env, &meta, journal.as_ref(), OPTIONS).await.err());
        assert!(other.contains("holds metadata of file system `meta`"), "{other}");
        let empty = env.open_disk("empty", super::OPEN).await.unwrap();
        let none = text(ObjectStore::open(&env, &empty, None, OPTIONS).await.err());
        assert!(none.contains("is no object target: it carries no Redbud label"), "{none}");
        let small = text(ObjectStore::format(&env, &empty, None, &options).await.err());
        assert!(small.contains("too few for an object target"), "{small}");
        // With force it becomes another one.
        let forced = FormatOptions { force: true, ..options };
        ObjectStore::format(&env, &device, None, &forced).await.unwrap();
        let store = ObjectStore::open(&env, &device, None, OPTIONS).await.unwrap();
        assert_eq!(store.identity().0, Uuid([3; 16]));
        assert_eq!(store.check().await.unwrap(), []);
    });
}

/// Damages the records of a target in one transaction; returns what a check says.
fn damaged(
    change: impl Fn(&mut engine::txn::Txn<'_>) -> Result<(), engine::error::Stop>,
) -> Vec<Finding> {
    let disks = Disks::formatted(400, 256 << 10, false, true);
    disks.world(1).run(|env| async move {
        let store: Rc<ObjectStore> = open(&env).await;
        write(&store, 1, 0, 8, 1).await.unwrap();
        write(&store, 1, 10, 8, 1).await.unwrap();
        write(&store, 2, 0, 4, 1).await.unwrap();
        assert_eq!(store.check().await.unwrap(), []);
        store.engine().run(Cost::SMALL, |txn| change(txn)).await.unwrap();
        store.check().await.unwrap()
    })
}

#[test]
fn check_finds_each_kind_of_disagreement() {
    let (one, key) = (ObjectId(1), |object: u64, n: u64| place_key(ObjectId(object), n));
    let segment = |block, len, at: u64| Segment { block, len, at };
    let put = |object, it: Segment| {
        damaged(move |txn| SEGMENTS.insert(txn, &key(object, it.block), &it.value()).map(drop))
    };
    // Object 1 has 1..17, object 2 has 17..21, and 21..400 is free.
    let free = |at: u64, len: u64| {
        damaged(move |txn| FREE.insert(txn, &at.to_be_bytes(), &len.to_le_bytes()).map(drop))
    };
    let gone = damaged(|txn| FREE.remove(txn, &21u64.to_be_bytes()).map(drop));
    assert_eq!(gone, [Finding::Lost(Run { at: 21, len: 379 }), Finding::WrongCount(379, 0)]);
    let shared = free(3, 2);
    assert!(shared.contains(&Finding::Shared(Run { at: 3, len: 2 })), "{shared:?}");
    let touching = free(20, 1);
    assert!(touching.contains(&Finding::ImpossibleFree(Run { at: 21, len: 379 })), "{touching:?}");
    let outside = free(21, 380);
    assert!(outside.contains(&Finding::ImpossibleFree(Run { at: 21, len: 380 })), "{outside:?}");
    let twice = put(2, segment(6, 2, 1));
    assert!(twice.contains(&Finding::Shared(Run { at: 1, len: 2 })), "{twice:?}");
    let said = Extent { blocks: 4, end: 4 };
    let wrong = Finding::WrongExtent(ObjectId(2), said, Extent { blocks: 6, end: 8 });
    assert!(twice.contains(&wrong), "{twice:?}");
    let overlap = put(1, segment(7, 1, 30));
    assert!(overlap.contains(&Finding::Overlap(one, segment(7, 1, 30))), "{overlap:?}");
    let impossible = put(2, segment(9, 3, 398));
    let finding = Finding::ImpossibleSegment(ObjectId(2), segment(9, 3, 398));
    assert!(impossible.contains(&finding), "{impossible:?}");
    let stray = damaged(|txn| SUMS.insert(txn, &key(1, 1), &[1; 128]).map(drop));
    assert_eq!(stray.len(), 32);
    assert!(stray.contains(&Finding::StraySum(one, 32)), "{stray:?}");
    let homeless = damaged(|txn| OBJECTS.remove(txn, &1u64.to_be_bytes()).map(drop));
    assert_eq!(homeless, [Finding::NoObject(one)]);
    let lost = damaged(|txn| {
        let block = txn.alloc_meta(1, None)?;
        txn.init(block, engine::format::block::BlockType::Tree).map(drop)
    });
    assert!(matches!(lost[..], [Finding::LostRecords(from, to)] if to == from + 1), "{lost:?}");
    for finding in [gone, shared, touching, twice, overlap, impossible, stray, homeless].concat() {
        assert!(!finding.to_string().is_empty());
    }
}

#[test]
fn any_entries_in_the_trees_give_findings_or_errors() {
    for seed in 1..60 {
        let disks = Disks::formatted(400, 256 << 10, false, seed % 2 == 0);
        disks.world(seed).run(|env| async move {
            let store = open(&env).await;
            let mut rng = SimRng::new(seed);
            for object in 0..3 {
                write(&store, object, 0, 20, 1).await.unwrap();
            }
            for _ in 0..1 + rng.below(4) {
                let words = [0, 1, 2, 3, 20, 40, 399, 400, 1 << 31, 1 << 52, 1 << 63, u64::MAX];
                let mut word = || match rng.one_in(4) {
                    true => rng.next_u64(),
                    false => words[rng.below(12) as usize],
                };
                let (a, b, c, d, tree) = (word() % 4, word(), word(), word(), word() % 4);
                let changed = store.engine().run(Cost::SMALL, |txn| match tree {
                    0 => {
                        let segment = Segment { block: b, len: c, at: d };
                        SEGMENTS.insert(txn, &place_key(ObjectId(a), b), &segment.value()).map(drop)
                    }
                    1 => {
                        let extent = Extent { blocks: c, end: d };
                        OBJECTS.insert(txn, &a.to_be_bytes(), &extent.encode()).map(drop)
                    }
                    2 => FREE.insert(txn, &b.to_be_bytes(), &c.to_le_bytes()).map(drop),
                    _ => SUMS.insert(txn, &place_key(ObjectId(a), b), &[1; 128]).map(drop),
                });
                changed.await.unwrap();
            }
            store.check().await.unwrap();
            for object in [0, 1, 2, 3].map(ObjectId) {
                drop(store.read(object, 0, 256).await);
                drop(store.read(object, BLOCKS_MAX - 9, 9).await);
                drop(store.runs(object, 0, 100).await);
            }
            drop(store.scrub(0).await);
            for object in [0, 1, 2, 3] {
                let _ = write(&store, object, 10, 50, 2).await;
                let _ = store.punch(NOBODY, ObjectId(object), 5, u64::MAX).await;
                let _ = store.destroy(NOBODY, &[ObjectId(object)]).await;
            }
            store.check().await.unwrap();
        });
    }
}

#[test]
fn interrupted_format_leaves_a_device_that_no_opening_accepts() {
    let disks = Disks::formatted(300, 64 << 10, true, true);
    let first = disks.fork();
    first.all().iter().for_each(env::sim::SimDisk::record);
    first.world(2).run(|env| async move {
        let (device, journal) = Disks::open(&env).await;
        let options = FormatOptions {
            fs_name: "new",
            fs: Uuid([7; 16]),
            target: Uuid([8; 16]),
            log_bytes: 64 << 10,
            checksums: true,
            force: true,
        };
        ObjectStore::format(&env, &device, journal.as_ref().map(Into::into), &options)
            .await
            .unwrap();
    });
    let recordings = first.all().iter().map(|disk| disk.recording().unwrap()).collect();
    let options = env::sim::CrashOptions { seed: 1, subsets: 2 };
    let (mut old, mut none, mut new) = (0, 0, 0);
    for point in env::sim::crash_images(recordings, options) {
        let mut all = point.disks.into_iter();
        let disks = Disks { device: all.next().unwrap(), journal: all.next() };
        let name = disks.world(3).run(|env| async move {
            let (device, journal) = Disks::open(&env).await;
            match ObjectStore::open(&env, &device, journal.as_ref(), OPTIONS).await {
                Ok(store) => {
                    let mut found = store.check().await.unwrap();
                    // The label loses one copy first, and gets one last.
                    found.retain(|finding| {
                        !matches!(finding, Finding::Records(Records::DamagedLabel(_)))
                    });
                    assert_eq!(found, [], "{}", point.description);
                    Some(store.identity().1)
                }
                Err(StoreError::Refused(_)) => None,
                Err(error) => panic!("{}: {error}", point.description),
            }
        });
        match name.as_deref() {
            Some("home") => old += 1,
            Some("new") => new += 1,
            _ => none += 1,
        }
    }
    assert!(old > 0 && none > 20 && new > 0, "{old} {none} {new}");
}
