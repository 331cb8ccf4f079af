//! An executor group: threads that share state without locks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use redbud_env::sync::{Notify, oneshot};
use redbud_env::{DiskOptions, DriverKind, Env, run_group};
use types::Duration;

const KINDS: [DriverKind; 2] = [DriverKind::Auto, DriverKind::Fallback];

/// Counts in steps that two concurrent threads would mix up.
async fn count(env: Env, shared: Rc<RefCell<Vec<u64>>>, times: u64, done: Rc<Cell<usize>>) {
    for turn in 0..times {
        {
            let mut numbers = shared.borrow_mut();
            let next = numbers.last().map_or(0, |last| last + 1);
            numbers.push(next);
        }
        match turn % 3 {
            0 => env.yield_now().await,
            1 => env.sleep(Duration::from_micros(10)).await,
            _ => assert_eq!(env.offload(move || turn).await, turn),
        }
    }
    done.set(done.get() + 1);
}

#[test]
fn group_shares_state_that_changes_between_awaits_only() {
    for kind in KINDS {
        let numbers = run_group(kind, 4, |env| async move {
            assert_eq!(env.executors(), 4);
            let (shared, done) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
            for executor in 0..4 {
                env.spawn_on(executor, count(env.clone(), shared.clone(), 300, done.clone()));
            }
            while done.get() < 4 {
                env.sleep(Duration::from_millis(1)).await;
            }
            shared.take()
        });
        assert_eq!(numbers.unwrap(), (0..1200).collect::<Vec<u64>>());
    }
}

#[test]
fn tasks_of_different_executors_wake_each_other_on_their_own_threads() {
    for kind in KINDS {
        run_group(kind, 2, |env| async move {
            let (here, there) = (Notify::new(), Notify::new());
            let home = thread();
            let away = Rc::new(Cell::new(None));
            env.spawn_on(1, {
                let (here, there, away) = (here.clone(), there.clone(), away.clone());
                async move {
                    loop {
                        let next = there.notified();
                        away.set(Some(thread()));
                        here.notify_all();
                        next.await;
                    }
                }
            });
            for _ in 0..500 {
                let next = here.notified();
                there.notify_all();
                let woken = env.timeout(Duration::from_secs(10), next).await;
                assert!(woken.is_some(), "a wake-up of the other executor was lost");
                assert_eq!(thread(), home);
                assert!(away.get().is_some_and(|away| away != home));
            }
        })
        .unwrap();
    }
}

#[test]
fn executor_that_never_sleeps_lets_the_others_run() {
    for kind in KINDS {
        run_group(kind, 2, |env| async move {
            let (asked, answered) = (Notify::new(), Rc::new(Cell::new(0)));
            env.spawn_on(1, {
                let (asked, answered) = (asked.clone(), answered.clone());
                async move {
                    loop {
                        let next = asked.notified();
                        answered.set(answered.get() + 1);
                        next.await;
                    }
                }
            });
            for turn in 1..100 {
                let begun = env.now();
                while answered.get() < turn {
                    // No timer and no system call: only turns of this executor.
                    env.yield_now().await;
                    assert!(env.now().since(begun) < Duration::from_secs(10), "it never ran");
                }
                asked.notify_all();
            }
        })
        .unwrap();
    }
}

fn thread() -> std::thread::ThreadId {
    std::thread::current().id()
}

#[test]
fn operation_ends_where_its_task_runs_and_may_be_dropped_elsewhere() {
    let path = std::env::temp_dir().join(format!("redbud-group-{}", std::process::id()));
    // A test of the seam stands on both of its sides.
    #[allow(clippy::disallowed_methods)]
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    for kind in KINDS {
        let path = path.to_str().unwrap().to_owned();
        run_group(kind, 3, |env| async move {
            let options = DiskOptions { write: true, exclusive: true };
            let disk = Rc::new(env.open_disk(&path, options).await.unwrap());
            let (sender, receiver) = oneshot();
            env.spawn_on(1, {
                let (env, disk) = (env.clone(), disk.clone());
                async move {
                    let at = thread();
                    for block in 0..64 {
                        let (result, buf) = disk.read(block * 4096, env.buffer(4096)).await;
                        result.unwrap();
                        assert!(buf.iter().all(|&byte| byte == 7));
                        assert_eq!(thread(), at);
                    }
                    sender.send(());
                }
            });
            assert_eq!(receiver.await, Some(()));
            for _ in 0..64 {
                // Started here; dropped on the other thread before they are polled again.
                let mut sleep = Box::pin({
                    let env = env.clone();
                    async move { env.sleep(Duration::from_secs(3600)).await }
                });
                let mut read = Box::pin({
                    let (env, disk) = (env.clone(), disk.clone());
                    async move { disk.read(0, env.buffer(4096)).await.0 }
                });
                std::future::poll_fn(|cx| {
                    use std::future::Future;
                    assert!(sleep.as_mut().poll(cx).is_pending());
                    let _ = read.as_mut().poll(cx);
                    std::task::Poll::Ready(())
                })
                .await;
                let (sender, receiver) = oneshot();
                env.spawn_on(2, async move {
                    drop((sleep, read));
                    sender.send(());
                });
                assert_eq!(receiver.await, Some(()));
            }
        })
        .unwrap();
    }
    let _ = std::fs::remove_file(path);
}

#[test]
fn timer_started_on_another_executor_fires_in_time() {
    for kind in KINDS {
        run_group(kind, 2, |env| async move {
            let (sender, receiver) = oneshot();
            env.spawn_on(1, {
                let env = env.clone();
                async move {
                    env.sleep(Duration::from_millis(5)).await;
                    sender.send(thread());
                }
            });
            let ended = env.timeout(Duration::from_secs(10), receiver).await;
            assert!(ended.flatten().is_some_and(|there| there != thread()));
        })
        .unwrap();
    }
}

/// Asserts that it is dropped on the thread that created it.
struct OnItsThread(std::thread::ThreadId, Rc<Cell<u32>>);

impl Drop for OnItsThread {
    fn drop(&mut self) {
        assert_eq!(thread(), self.0);
        self.1.set(self.1.get() + 1);
    }
}

#[test]
fn remaining_tasks_of_a_group_are_dropped_on_their_threads() {
    for kind in KINDS {
        let dropped = Rc::new(Cell::new(0));
        run_group(kind, 3, |env| {
            let dropped = dropped.clone();
            async move {
                let begun = Rc::new(Cell::new(0));
                for executor in 0..3 {
                    let (begun, dropped, env) = (begun.clone(), dropped.clone(), env.clone());
                    env.clone().spawn_on(executor, async move {
                        let _mine = OnItsThread(thread(), dropped);
                        begun.set(begun.get() + 1);
                        env.sleep(Duration::from_secs(3600)).await;
                    });
                }
                while begun.get() < 3 {
                    env.sleep(Duration::from_millis(1)).await;
                }
            }
        })
        .unwrap();
        assert_eq!(dropped.get(), 3);
    }
}
