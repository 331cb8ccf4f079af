//! State that the executors of several threads share.
//!
//! Invariant: it is reached only inside a closure, so no await is ever under
//! the lock, and two shards are only taken together by [`Shard::with2`], in
//! address order, so no two threads wait for each other.

use crate::threads::{Mutex, MutexGuard};

/// State that executors of several threads share: reached only inside `with`, so no await is ever under it.
#[derive(Default)]
pub struct Shard<T>(Mutex<T>);

#[cfg(all(debug_assertions, not(loom)))]
thread_local! {
    static HELD: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Notes in debug builds that this thread is inside a shard. (Loom's threads share one.)
struct Inside {
    #[cfg(all(debug_assertions, not(loom)))]
    address: usize,
}

impl Inside {
    fn enter(address: usize, nested: bool) -> Inside {
        #[cfg(all(debug_assertions, not(loom)))]
        {
            HELD.with(|held| {
                let mut held = held.borrow_mut();
                assert!(!held.contains(&address), "a shard was entered twice by one thread");
                assert!(nested || held.is_empty(), "a shard was entered inside another: use with2");
                held.push(address);
            });
            Inside { address }
        }
        #[cfg(not(all(debug_assertions, not(loom))))]
        {
            let _ = (address, nested);
            Inside {}
        }
    }
}

#[cfg(all(debug_assertions, not(loom)))]
impl Drop for Inside {
    fn drop(&mut self) {
        HELD.with(|held| held.borrow_mut().retain(|&address| address != self.address));
    }
}

impl<T> Shard<T> {
    /// A shard that holds `value`.
    pub fn new(value: T) -> Shard<T> {
        Shard(Mutex::new(value))
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no thread panicked inside this shard")
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Runs `f` on the value; `f` must enter no shard.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let _inside = Inside::enter(self.address(), false);
        f(&mut self.lock())
    }

    /// Runs `f` on the values of two different shards.
    pub fn with2<U, R>(&self, other: &Shard<U>, f: impl FnOnce(&mut T, &mut U) -> R) -> R {
        let _first = Inside::enter(self.address(), false);
        let _second = Inside::enter(other.address(), true);
        if self.address() < other.address() {
            let mut mine = self.lock();
            let mut theirs = other.lock();
            f(&mut mine, &mut theirs)
        } else {
            let mut theirs = other.lock();
            let mut mine = self.lock();
            f(&mut mine, &mut theirs)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn two_shards_are_taken_in_either_order_without_deadlock() {
        let shards = std::sync::Arc::new((Shard::new(0u64), Shard::new(0u64)));
        std::thread::scope(|scope| {
            for turn in 0..4 {
                let shards = shards.clone();
                scope.spawn(move || {
                    for _ in 0..1000 {
                        let (a, b) = if turn % 2 == 0 {
                            (&shards.0, &shards.1)
                        } else {
                            (&shards.1, &shards.0)
                        };
                        a.with2(b, |a, b| {
                            *a += 1;
                            *b += 1;
                        });
                    }
                });
            }
        });
        assert_eq!(shards.0.with(|n| *n) + shards.1.with(|n| *n), 8000);
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "entered twice")]
    fn entering_a_shard_inside_itself_is_refused() {
        let shard = Shard::new(0);
        shard.with(|_| shard.with(|_| ()));
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "use with2")]
    fn entering_a_shard_inside_another_is_refused() {
        let (a, b) = (Shard::new(0), Shard::new(0));
        a.with(|_| b.with(|_| ()));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use loom::thread;

    use super::*;

    #[test]
    fn loom_two_shards_are_taken_in_either_order_without_deadlock_or_lost_change() {
        loom::model(|| {
            let shards = Arc::new((Shard::new(0), Shard::new(0)));
            let other = {
                let shards = shards.clone();
                thread::spawn(move || {
                    shards.1.with2(&shards.0, |b, a| (*a, *b) = (*a + 1, *b + 1));
                })
            };
            shards.0.with2(&shards.1, |a, b| (*a, *b) = (*a + 1, *b + 1));
            shards.0.with(|a| *a += 1);
            other.join().unwrap();
            assert_eq!(shards.0.with(|a| *a) + shards.1.with(|b| *b), 5);
        });
    }
}
