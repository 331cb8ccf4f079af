//! Samples of a run in virtual time, taken at fixed intervals beside it.
//!
//! Invariant: taking a sample takes no time, and changes nothing that is measured.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use env::{Env, Join};
use types::Duration;

/// From one sample to the next, in figures over time.
pub const SAMPLE: Duration = Duration::from_millis(100);

/// Takes samples until its end.
pub struct Watch<T> {
    ended: Rc<Cell<bool>>,
    samples: Rc<RefCell<Vec<T>>>,
    task: Join<()>,
}

impl<T: 'static> Watch<T> {
    /// Takes a sample by `look` after each `interval` from now on.
    pub fn start(env: &Env, interval: Duration, mut look: impl FnMut() -> T + 'static) -> Watch<T> {
        let (ended, samples) = (Rc::new(Cell::new(false)), Rc::new(RefCell::new(Vec::new())));
        let (clock, stop, taken) = (env.clone(), ended.clone(), samples.clone());
        let task = env.spawn_join(async move {
            while !stop.get() {
                clock.sleep(interval).await;
                taken.borrow_mut().push(look());
            }
        });
        Watch { ended, samples, task }
    }

    /// Waits for the sample that is due next, which is the last one.
    pub async fn end(self) -> Vec<T> {
        self.ended.set(true);
        self.task.await;
        self.samples.take()
    }
}

#[cfg(test)]
mod tests {
    use env::sim::SimWorld;

    use super::*;

    #[test]
    fn samples_are_taken_at_their_interval_and_end_with_the_watch() {
        let ms = Duration::from_millis;
        let samples = SimWorld::new(1).run(|env| async move {
            let (clock, begin) = (env.clone(), env.now());
            let look = move || (clock.now() - begin).as_millis() as u64;
            let watch = Watch::start(&env, ms(100), look);
            env.sleep(ms(250)).await;
            watch.end().await
        });
        assert_eq!(samples, [100, 200, 300]);
    }
}
