//! A barrier of a layer above: the log waits for it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use env::sim::{CrashOptions, SimDisk, SimWorld};
use env::sync::Notify;
use types::{Duration, Lsn};

use super::{Work, check, formatted, open, recover};
use crate::error::StoreError;
use crate::store::barrier::{Awaited, Barrier};

/// A barrier that a test opens.
#[derive(Default)]
struct Gate {
    open: Cell<bool>,
    fails: Cell<bool>,
    asked: RefCell<Vec<Lsn>>,
    flushes: Cell<u32>,
    changed: Notify,
}

impl Gate {
    fn set_open(&self, open: bool) {
        self.open.set(open);
        self.changed.notify_all();
    }

    fn answer(&self) -> Result<(), StoreError> {
        let error = std::io::Error::other("planted");
        if self.fails.get() { Err(StoreError::io("writing", "content", &error)) } else { Ok(()) }
    }
}

impl Barrier for Gate {
    fn ended(&self, end: Lsn) -> Awaited<'_> {
        self.asked.borrow_mut().push(end);
        Box::pin(async {
            while !self.open.get() {
                self.changed.notified().await;
            }
            self.answer()
        })
    }

    fn flush(&self) -> Awaited<'_> {
        self.flushes.set(self.flushes.get() + 1);
        Box::pin(async { Ok(()) })
    }
}

#[test]
fn group_is_written_when_the_barrier_lets_it_and_the_next_one_collects_meanwhile() {
    let disk = formatted(64 << 10);
    let world = SimWorld::new(1);
    world.attach("meta", &disk);
    world.run(|env| async move {
        let store = open(&env).await.unwrap();
        let gate = Rc::new(Gate::default());
        store.set_barrier(gate.clone());
        let mut work = Work::new(1);
        let first = work.step(&store).await.unwrap();
        let waiting = store.clone();
        let sync = env.spawn_join(async move { waiting.wait_durable(first).await });
        env.sleep(Duration::from_millis(20)).await;
        let writes = disk.counts().writes;
        let second = work.step(&store).await.unwrap();
        let waiting = store.clone();
        let later = env.spawn_join(async move { waiting.wait_durable(second).await });
        env.sleep(Duration::from_millis(20)).await;
        assert!(!sync.is_ready() && !later.is_ready());
        assert_eq!((disk.counts().writes, gate.flushes.get()), (writes, 0));
        {
            let asked = gate.asked.borrow();
            let [end] = asked[..] else { panic!("{asked:?}") };
            assert!(first.lsn <= end && end < second.lsn, "{end:?}");
        }
        gate.set_open(true);
        sync.await.unwrap();
        later.await.unwrap();
        assert_eq!((gate.asked.borrow().len(), gate.flushes.get()), (2, 2));
        let stats = store.commit_stats();
        assert_eq!((stats.groups, stats.data.count, stats.log.count), (2, 2, 2));
        assert!(stats.data.longest_nanos >= 20_000_000, "{stats:?}");
        // The second caller waited for the closed group.
        assert!(stats.closed.count == 1 && stats.closed.nanos >= 20_000_000, "{stats:?}");
        assert_eq!(check(&store, &work.models).await, 2);
    });
}

#[test]
fn failed_barrier_poisons_the_store_and_its_group_is_never_there() {
    let disk = formatted(64 << 10);
    let world = SimWorld::new(1);
    world.attach("meta", &disk);
    let recorded = disk.clone();
    let models = world.run(|env| async move {
        let store = open(&env).await.unwrap();
        let gate = Rc::new(Gate::default());
        store.set_barrier(gate.clone());
        gate.set_open(true);
        let mut work = Work::new(1);
        let number = work.step(&store).await.unwrap();
        store.wait_durable(number).await.unwrap();
        recorded.record();
        gate.fails.set(true);
        let number = work.step(&store).await.unwrap();
        let failed = store.wait_durable(number).await;
        assert!(matches!(failed, Err(StoreError::Poisoned(_))), "{failed:?}");
        assert!(matches!(store.sync().await, Err(StoreError::Poisoned(_))));
        assert!(work.step(&store).await.is_err());
        work.models
    });
    for point in disk.recording().unwrap().crash_images(CrashOptions { seed: 1, subsets: 2 }) {
        assert_eq!(recover(1, point.disk(), &models, 1, &point.description), 1);
    }
    assert_eq!(recover(1, &SimDisk::fork(&disk), &models, 1, "without a cut"), 1);
}
