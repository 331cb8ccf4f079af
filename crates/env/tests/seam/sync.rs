//! The single-thread primitives: order, cancellation, and closing.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use redbud_env::Env;
use redbud_env::sim::SimWorld;
use redbud_env::sync::{AsyncMutex, Notify, Semaphore, channel, oneshot};
use types::Duration;

type Log = Rc<RefCell<Vec<u32>>>;

fn world<F: Future<Output = ()>>(main: impl FnOnce(Env) -> F) {
    SimWorld::new(1).run(main);
}

#[test]
fn notification_between_call_and_first_poll_is_not_missed() {
    world(|_| async {
        let notify = Notify::new();
        let wait = notify.notified();
        notify.notify_all();
        wait.await;
        notify.notify_all();
        let late = notify.notified();
        let other = notify.notified();
        notify.notify_one();
        late.await;
        assert_eq!(notify.waiting(), 1);
        drop(other);
        assert_eq!(notify.waiting(), 0);
    });
}

#[test]
fn dropped_waiter_passes_its_notification_on() {
    world(|_| async {
        let notify = Notify::new();
        let (first, second) = (notify.notified(), notify.notified());
        notify.notify_one();
        drop(first);
        second.await;
    });
}

#[test]
fn semaphore_is_fair_to_a_large_request() {
    world(|env| async move {
        let semaphore = Semaphore::new(3);
        let log: Log = Rc::default();
        let held = semaphore.acquire(2).await;
        for (id, n) in [(1, 3), (2, 1), (3, 1)] {
            let (semaphore, log) = (semaphore.clone(), log.clone());
            env.spawn(async move {
                let _permit = semaphore.acquire(n).await;
                log.borrow_mut().push(id);
            });
        }
        env.sleep(Duration::from_secs(1)).await;
        assert!(log.borrow().is_empty());
        assert!(semaphore.try_acquire(1).is_none(), "a permit is free, but others wait");
        drop(held);
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(*log.borrow(), [1, 2, 3]);
        assert_eq!(semaphore.available(), 3);
    });
}

#[test]
fn cancelled_acquire_unblocks_later_ones_and_loses_no_permit() {
    world(|env| async move {
        let semaphore = Semaphore::new(2);
        let held = semaphore.acquire(1).await;
        let large = env.timeout(Duration::from_secs(1), semaphore.acquire(2));
        let small = env.spawn_join({
            let (env, semaphore) = (env.clone(), semaphore.clone());
            async move {
                env.sleep(Duration::from_millis(1)).await;
                let began = env.now();
                semaphore.acquire(1).await;
                env.now() - began
            }
        });
        assert!(large.await.is_none());
        assert!(small.await > Duration::from_millis(900), "it waited behind the large request");
        drop(held);
        assert_eq!(semaphore.available(), 2);
        // Granted, but dropped before it was polled again.
        let permit = semaphore.acquire(2).await;
        let mut waiting = Box::pin(semaphore.acquire(2));
        assert!(env.timeout(Duration::from_millis(1), waiting.as_mut()).await.is_none());
        drop(permit);
        drop(waiting);
        assert_eq!(semaphore.available(), 2);
    });
}

#[test]
fn forgotten_permit_stays_taken_and_added_permits_count() {
    world(|_| async {
        let semaphore = Semaphore::new(2);
        semaphore.acquire(1).await.forget();
        assert_eq!(semaphore.available(), 1);
        semaphore.add_permits(4);
        assert_eq!(semaphore.available(), 5);
    });
}

#[test]
fn mutex_excludes_across_awaits_and_is_fair() {
    world(|env| async move {
        let mutex = AsyncMutex::new();
        let log: Log = Rc::default();
        let tasks: Vec<_> = (0..3)
            .map(|id| {
                let (env, mutex, log) = (env.clone(), mutex.clone(), log.clone());
                env.clone().spawn_join(async move {
                    for _ in 0..2 {
                        let _held = mutex.lock().await;
                        log.borrow_mut().push(id);
                        env.sleep(Duration::from_millis(1)).await;
                        log.borrow_mut().push(id);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        assert_eq!(*log.borrow(), [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]);
        assert!(mutex.try_lock().is_some());
    });
}

#[test]
fn oneshot_yields_its_value_or_reports_a_dropped_sender() {
    world(|env| async move {
        let (sender, receiver) = oneshot();
        env.spawn(async move { sender.send(5) });
        assert_eq!(receiver.await, Some(5));
        let (sender, receiver) = oneshot::<u32>();
        env.spawn(async move { drop(sender) });
        assert_eq!(receiver.await, None);
        let (sender, receiver) = oneshot::<u32>();
        drop(receiver);
        assert!(sender.is_closed());
    });
}

#[test]
fn channel_keeps_order_and_ends_with_its_last_sender() {
    world(|env| async move {
        let (sender, mut receiver) = channel();
        let other = sender.clone();
        env.spawn(async move {
            for n in 0..3 {
                sender.send(n);
            }
        });
        env.spawn({
            let env = env.clone();
            async move {
                env.sleep(Duration::from_secs(1)).await;
                other.send(3);
            }
        });
        let mut got = Vec::new();
        while let Some(n) = receiver.recv().await {
            got.push(n);
        }
        assert_eq!(got, [0, 1, 2, 3]);
        let (sender, receiver) = channel::<u32>();
        drop(receiver);
        sender.send(1);
        assert!(sender.is_closed());
    });
}

#[test]
fn timers_fire_in_order_and_dropped_ones_leave_nothing() {
    world(|env| async move {
        let log: Log = Rc::default();
        for n in (0..1000u32).rev() {
            let (env, log) = (env.clone(), log.clone());
            env.clone().spawn(async move {
                let long = env
                    .timeout(Duration::from_secs(1000), env.sleep(Duration::from_millis(n.into())));
                long.await.unwrap();
                log.borrow_mut().push(n);
            });
        }
        env.sleep(Duration::from_secs(2)).await;
        assert!(log.borrow().is_sorted() && log.borrow().len() == 1000);
        assert_eq!(env.live_tasks(), 0);
    });
}

#[test]
fn stop_signal_ends_one_wait_of_every_executor() {
    redbud_env::run_group(redbud_env::DriverKind::Auto, 2, |env| async move {
        let waiting = Rc::new(Cell::new(0));
        let ended = Rc::new(Cell::new(0));
        for executor in 0..2 {
            let (env, waiting, ended) = (env.clone(), waiting.clone(), ended.clone());
            env.clone().spawn_on(executor, async move {
                let stop = env.spawn_join({
                    let env = env.clone();
                    async move { env.stop_signal().await }
                });
                env.yield_now().await;
                waiting.set(waiting.get() + 1);
                assert_eq!(stop.await, libc::SIGTERM);
                let again = env.timeout(Duration::from_millis(20), env.stop_signal()).await;
                assert_eq!(again, None);
                ended.set(ended.get() + 1);
            });
        }
        // The handler is installed once a first wait has begun.
        while waiting.get() < 2 {
            env.sleep(Duration::from_millis(1)).await;
        }
        // SAFETY: the handler of this process is installed.
        unsafe { libc::raise(libc::SIGTERM) };
        while ended.get() < 2 {
            env.sleep(Duration::from_millis(1)).await;
        }
    })
    .unwrap();
}
