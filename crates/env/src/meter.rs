//! The real time that tasks of each simulated node take, for those who want to know it.
//!
//! Invariant: without a clock nothing is measured, and what is measured changes nothing.

use std::cell::{Cell, RefCell};

use crate::driver::NodeId;

/// See the module.
#[derive(Default)]
pub(crate) struct Meter {
    /// Nanoseconds of a clock that only goes forward.
    clock: Cell<Option<fn() -> u64>>,
    /// Nanoseconds, by node.
    spent: RefCell<Vec<u64>>,
}

impl Meter {
    /// Measures by this clock from now on.
    pub(crate) fn start(&self, clock: fn() -> u64) {
        self.clock.set(Some(clock));
    }

    /// Polls a task of `node`.
    pub(crate) fn measure<T>(&self, node: NodeId, poll: impl FnOnce() -> T) -> T {
        let Some(clock) = self.clock.get() else { return poll() };
        let begun = clock();
        let polled = poll();
        let took = clock().saturating_sub(begun);
        let mut spent = self.spent.borrow_mut();
        let at = node as usize;
        if spent.len() <= at {
            spent.resize(at + 1, 0);
        }
        spent[at] += took;
        polled
    }

    /// Nanoseconds that tasks of `node` have taken.
    pub(crate) fn spent(&self, node: NodeId) -> u64 {
        self.spent.borrow().get(node as usize).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use types::Duration;

    use crate::sim::SimWorld;

    #[test]
    fn world_measures_the_tasks_of_each_node() {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        /// Five nanoseconds later each time.
        fn clock() -> u64 {
            5 * CALLS.fetch_add(1, Ordering::Relaxed)
        }
        let world = SimWorld::new(1);
        let inner = world.clone();
        world.run(|_| async move {
            let (a, b) = (inner.node("a"), inner.node("b"));
            b.spawn_join(async {}).await;
            assert_eq!(inner.metered("b"), Duration::ZERO);
            inner.meter(clock);
            let its = a.clone();
            // Polled at its beginning, and after its sleep.
            a.spawn_join(async move { its.sleep(Duration::from_micros(1)).await }).await;
            assert_eq!(inner.metered("a"), Duration::from_nanos(10));
            assert_eq!(inner.metered("b"), Duration::ZERO);
        });
    }
}
