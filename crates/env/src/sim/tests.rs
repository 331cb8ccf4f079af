use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use types::Duration;

use super::*;
use crate::{DiskOptions, Env, IoBuf, Stream};

const WRITE: DiskOptions = DiskOptions { write: true, exclusive: false };

fn block(env: &Env, fill: u8) -> IoBuf {
    let mut buf = env.buffer(4096);
    buf.fill(fill);
    buf
}

async fn read_all(stream: &Stream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let (result, back) = stream.read(bytes, 1000).await;
        bytes = back;
        if result? == 0 {
            return Ok(bytes);
        }
    }
}

#[test]
fn virtual_hour_takes_no_real_time() {
    SimWorld::new(1).run(|env| async move {
        let began = env.now();
        env.sleep(Duration::from_secs(3600)).await;
        assert_eq!(env.now() - began, Duration::from_secs(3600));
    });
}

#[test]
fn stale_wake_up_does_not_move_a_task_to_another_executor() {
    let world = SimWorld::new(1);
    world.set_executors("a", 3);
    world.run(async |env| {
        let node = world.node("a");
        let kept: Rc<RefCell<Option<std::task::Waker>>> = Rc::default();
        node.spawn_on(2, {
            let (node, kept) = (node.clone(), kept.clone());
            async move {
                assert_eq!((node.executor(), node.executors()), (2, 3));
                let keep = |cx: &mut std::task::Context<'_>| {
                    *kept.borrow_mut() = Some(cx.waker().clone());
                    std::task::Poll::Ready(())
                };
                std::future::poll_fn(keep).await;
            }
        });
        env.sleep(Duration::from_millis(1)).await;
        kept.take().unwrap().wake();
        env.sleep(Duration::from_millis(1)).await;
        assert_eq!((env.executor(), env.executors()), (0, 1));
    });
}

#[test]
fn timeout_ends_what_takes_longer() {
    SimWorld::new(1).run(|env| async move {
        let slow = env.sleep(Duration::from_secs(2));
        assert!(env.timeout(Duration::from_secs(1), slow).await.is_none());
        let quick = env.sleep(Duration::from_secs(1));
        assert!(env.timeout(Duration::from_secs(2), quick).await.is_some());
    });
}

/// A program with tasks, disk I/O and a connection; returns what it saw and the trace.
fn busy_program(seed: u64, shuffle_tasks: bool) -> (Vec<u64>, u64) {
    busy_program_with(seed, SimOptions { shuffle_tasks, ..SimOptions::default() })
}

fn busy_program_with(seed: u64, options: SimOptions) -> (Vec<u64>, u64) {
    let world = SimWorld::with_options(seed, options);
    world.disk("disk", 1 << 20);
    let seen = world.run(|env| async move {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let disk = env.open_disk("disk", WRITE).await.unwrap();
        let listener = env.listen("server:0").await.unwrap();
        let address = listener.local_address();
        let server = env
            .spawn_join(async move { read_all(&listener.accept().await.unwrap()).await.unwrap() });
        let workers: Vec<_> = (0..8u64)
            .map(|n| {
                let (env, seen, disk) = (env.clone(), seen.clone(), disk.clone());
                env.clone().spawn_join(async move {
                    for round in 0..5 {
                        disk.write(n * 4096, block(&env, round)).await.0.unwrap();
                        seen.borrow_mut().push(n);
                        env.sleep(Duration::from_micros(env.random_u64() % 100)).await;
                    }
                })
            })
            .collect();
        let stream = env.connect(&address).await.unwrap();
        stream.write_all(vec![7; 10_000]).await.0.unwrap();
        stream.shutdown();
        for worker in workers {
            worker.await;
        }
        assert_eq!(server.await, vec![7; 10_000]);
        seen.take()
    });
    (seen, world.trace())
}

#[test]
fn runs_are_equal_for_equal_seeds_only() {
    for shuffle in [false, true] {
        assert_eq!(busy_program(5, shuffle), busy_program(5, shuffle));
        assert_ne!(busy_program(5, shuffle), busy_program(6, shuffle));
    }
}

#[test]
#[should_panic(expected = "stands still")]
fn world_in_which_every_task_waits_for_nothing_panics() {
    SimWorld::new(1).run(|_| std::future::pending::<()>());
}

#[test]
fn transfer_larger_than_the_window_arrives_complete() {
    SimWorld::new(3).run(|env| async move {
        let listener = env.listen("server:1").await.unwrap();
        let sender = env.connect("server:1").await.unwrap();
        let receiver = listener.accept().await.unwrap();
        let sent: Vec<u8> = (0..1_000_000u32).map(|n| n as u8).collect();
        let expected = sent.clone();
        env.spawn(async move {
            sender.write_all(sent).await.0.unwrap();
        });
        assert_eq!(read_all(&receiver).await.unwrap(), expected);
    });
}

#[test]
fn connect_without_listener_and_listen_on_a_used_address_fail() {
    SimWorld::new(3).run(|env| async move {
        let error = env.connect("nobody:1").await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let _first = env.listen("server:1").await.unwrap();
        assert_eq!(env.listen("server:1").await.err().unwrap().kind(), io::ErrorKind::AddrInUse);
    });
}

const FREE: Duration = Duration::from_micros(100);

/// When each of three messages of 2 KiB, sent at once by three clients, can be read; and the
/// trace.
fn three_messages(price: Option<Price>, processors: usize) -> (Vec<u64>, SimWorld) {
    let options = SimOptions { net_latency: FREE..=FREE, price, ..SimOptions::default() };
    let world = SimWorld::with_options(1, options);
    for name in ["a", "b", "c", "server"] {
        world.set_host(name, name);
    }
    if processors != 1 {
        world.set_processors("server", processors);
    }
    let handle = world.clone();
    let seen = world.run(|env| async move {
        let server = handle.node("server");
        let listener = server.listen("server:1").await.unwrap();
        let mut pairs = Vec::new();
        for name in ["a", "b", "c"] {
            let near = handle.node(name).connect("server:1").await.unwrap();
            pairs.push((near, listener.accept().await.unwrap()));
        }
        let begin = env.now();
        for (near, _) in &pairs {
            near.write_all(vec![7; 2048]).await.0.unwrap();
        }
        let mut seen = Vec::new();
        for (_, far) in &pairs {
            far.read(Vec::new(), 1).await.0.unwrap();
            seen.push(env.now().since(begin).as_micros() as u64);
        }
        seen
    });
    (seen, world)
}

#[test]
fn message_price_delays_both_ends_and_keeps_processors_busy() {
    let micros = Duration::from_micros;
    let price = Price { message: micros(10), kib: micros(5), change: micros(1000) };
    assert_eq!(three_messages(None, 1).0, [100, 100, 100]);
    // Each sender takes 20 µs, the network 100, and the server 20 for each.
    let (seen, world) = three_messages(Some(price), 1);
    assert_eq!(seen, [140, 160, 180]);
    assert_eq!(["a", "server", "nobody"].map(|host| world.busy(host)), [20, 60, 0].map(micros));
    assert_eq!(three_messages(Some(price), 2).0, [140, 140, 160]);
    assert_eq!(world.trace(), three_messages(Some(price), 1).1.trace());
    assert_ne!(world.trace(), three_messages(None, 1).1.trace());
}

#[test]
fn message_price_keeps_byte_order_and_no_price_changes_nothing() {
    let price = Price { message: Duration::ZERO, kib: Duration::from_micros(50), ..PRICELESS };
    let world =
        SimWorld::with_options(3, SimOptions { price: Some(price), ..SimOptions::default() });
    world.set_processors("", 8);
    world.run(|env| async move {
        let listener = env.listen("server:1").await.unwrap();
        let near = env.connect("server:1").await.unwrap();
        let far = listener.accept().await.unwrap();
        let reader = env.spawn_join(async move { read_all(&far).await.unwrap() });
        let mut sent = Vec::new();
        for n in 0..100u8 {
            // A large piece takes longer than the small ones behind it.
            let piece = vec![n; if n % 10 == 0 { 20_000 } else { 3 }];
            sent.extend(&piece);
            near.write_all(piece).await.0.unwrap();
        }
        near.shutdown();
        assert!(reader.await == sent);
    });
    let (seen, trace) = busy_program(5, false);
    let free = SimOptions { price: None, ..SimOptions::default() };
    assert_eq!(busy_program_with(5, free.clone()), (seen.clone(), trace));
    let priced = SimOptions { price: Some(price), ..free };
    assert_ne!(busy_program_with(5, priced.clone()).1, trace);
    assert_eq!(busy_program_with(5, priced.clone()), busy_program_with(5, priced));
}

const PRICELESS: Price =
    Price { message: Duration::ZERO, kib: Duration::ZERO, change: Duration::ZERO };

#[test]
fn partition_delays_and_cut_resets() {
    let world = SimWorld::new(4);
    let handle = world.clone();
    world.run(|_| async move {
        let (client, server) = (handle.node("client"), handle.node("server"));
        let listener = server.listen("server:1").await.unwrap();
        let near = client.connect("server:1").await.unwrap();
        let far = listener.accept().await.unwrap();
        handle.partition("client", "server");
        near.write_all(b"late".to_vec()).await.0.unwrap();
        let waited = server.timeout(Duration::from_secs(100), far.read(Vec::new(), 10)).await;
        assert!(waited.is_none());
        let error = client.connect("server:1").await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        handle.heal();
        let mut heard = Vec::new();
        while heard.len() < 4 {
            let (result, back) = far.read(heard, 10).await;
            result.unwrap();
            heard = back;
        }
        assert_eq!(heard, b"late");
        handle.cut("client", "server");
        let (result, _) = far.read(Vec::new(), 10).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert!(near.write_all(b"x".to_vec()).await.0.is_err());
    });
}

#[test]
fn one_way_partition_lets_the_other_direction_pass() {
    let world = SimWorld::new(4);
    let handle = world.clone();
    world.run(|_| async move {
        let (client, server) = (handle.node("client"), handle.node("server"));
        let listener = server.listen("server:1").await.unwrap();
        let near = client.connect("server:1").await.unwrap();
        let far = listener.accept().await.unwrap();
        handle.block("client", "server");
        near.write_all(b"late".to_vec()).await.0.unwrap();
        far.write_all(b"now".to_vec()).await.0.unwrap();
        let (result, _) = near.read(Vec::new(), 1).await;
        assert_eq!(result.unwrap(), 1);
        let waited = server.timeout(Duration::from_secs(100), far.read(Vec::new(), 10)).await;
        assert!(waited.is_none());
        handle.heal_between("client", "server");
        assert!(far.read(Vec::new(), 10).await.0.unwrap() > 0);
    });
}

#[test]
fn delayed_bytes_arrive_before_later_ones_after_healing() {
    for seed in 0..40 {
        let world = SimWorld::new(seed);
        let handle = world.clone();
        world.run(|_| async move {
            let (client, server) = (handle.node("client"), handle.node("server"));
            let listener = server.listen("server:1").await.unwrap();
            let near = client.connect("server:1").await.unwrap();
            let far = listener.accept().await.unwrap();
            handle.block("client", "server");
            near.write_all(b"first".to_vec()).await.0.unwrap();
            client.sleep(Duration::from_secs(1)).await;
            near.write_all(b"second".to_vec()).await.0.unwrap();
            handle.heal_between("client", "server");
            let mut heard = Vec::new();
            while heard.len() < 11 {
                let (result, back) = far.read(heard, 11).await;
                assert!(result.unwrap() > 0);
                heard = back;
            }
            assert_eq!(heard, b"firstsecond", "{seed}");
        });
    }
}

#[test]
fn mute_node_accepts_connections_and_never_answers() {
    let world = SimWorld::new(4);
    let handle = world.clone();
    world.run(|_| async move {
        let (client, server) = (handle.node("client"), handle.node("server"));
        let listener = server.listen("server:1").await.unwrap();
        handle.mute("server", true);
        let near = client.connect("server:1").await.unwrap();
        near.write_all(b"hello".to_vec()).await.0.unwrap();
        let second = Duration::from_secs(1);
        assert!(client.timeout(second, near.read(Vec::new(), 1)).await.is_none());
        assert!(server.timeout(second, listener.accept()).await.is_none());
        handle.mute("server", false);
        let _again = client.connect("server:1").await.unwrap();
        assert!(server.timeout(second, listener.accept()).await.is_some());
    });
}

#[test]
fn shared_simulated_disk_excludes_only_those_who_want_it_alone() {
    let world = SimWorld::new(6);
    world.disk("disk", 1 << 20);
    world.run(|env| async move {
        let alone = DiskOptions { write: true, exclusive: true };
        let mine = env.open_disk("disk", WRITE).await.unwrap();
        let theirs = env.open_disk("disk", WRITE).await.unwrap();
        mine.share().await.unwrap();
        theirs.share().await.unwrap();
        mine.lock_byte(3).await.unwrap();
        assert!(theirs.lock_byte(3).await.is_err());
        mine.unlock_byte(3).await.unwrap();
        theirs.lock_byte(3).await.unwrap();
        drop(theirs);
        assert!(env.open_disk("disk", alone).await.is_err());
        drop(mine);
        let owner = env.open_disk("disk", alone).await.unwrap();
        let late = env.open_disk("disk", WRITE).await.unwrap();
        assert!(late.share().await.is_err());
        drop(owner);
        late.share().await.unwrap();
    });
}

#[test]
fn killed_node_loses_its_tasks_and_locks_and_peers_see_the_end() {
    let world = SimWorld::new(5);
    world.disk("disk", 1 << 20);
    let handle = world.clone();
    world.run(|env| async move {
        let server = handle.node("server");
        let ticks = Rc::new(Cell::new(0));
        let exclusive = DiskOptions { write: true, exclusive: true };
        server.spawn({
            let (server, ticks) = (server.clone(), ticks.clone());
            async move {
                let disk = server.open_disk("disk", exclusive).await.unwrap();
                disk.lock_byte(3).await.unwrap();
                let listener = server.listen("server:1").await.unwrap();
                let stream = listener.accept().await.unwrap();
                loop {
                    server.sleep(Duration::from_millis(1)).await;
                    ticks.set(ticks.get() + 1);
                    let _ = (&stream, &disk);
                }
            }
        });
        env.sleep(Duration::from_millis(1)).await;
        let stream = env.connect("server:1").await.unwrap();
        env.sleep(Duration::from_millis(20)).await;
        assert!(ticks.get() > 0);
        let watcher = env.open_disk("disk", WRITE).await.unwrap();
        assert!(!watcher.byte_is_free(3).await.unwrap());
        assert_eq!(
            env.open_disk("disk", exclusive).await.err().unwrap().kind(),
            io::ErrorKind::ResourceBusy
        );
        handle.kill("server");
        let stopped_at = ticks.get();
        assert_eq!(stream.read(Vec::new(), 10).await.0.unwrap(), 0);
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(ticks.get(), stopped_at);
        assert!(watcher.byte_is_free(3).await.unwrap());
        env.open_disk("disk", exclusive).await.unwrap();
        assert!(env.connect("server:1").await.is_err());
        handle.node("server").listen("server:1").await.unwrap();
    });
}

#[test]
fn signal_reaches_its_node() {
    let world = SimWorld::new(6);
    let handle = world.clone();
    world.run(|env| async move {
        let node = handle.node("node");
        let stopped = node.spawn_join({
            let node = node.clone();
            async move { node.stop_signal().await }
        });
        env.sleep(Duration::from_secs(1)).await;
        handle.signal("node", 2);
        assert_eq!(stopped.await, 2);
    });
}

#[test]
fn planned_fault_hits_exactly_the_planned_operation() {
    let world = SimWorld::new(7);
    let disk = world.disk("disk", 1 << 20);
    world.run(|env| async move {
        let open = env.open_disk("disk", WRITE).await.unwrap();
        disk.fail(DiskAction::Write, 2, DiskFault::NoSpace);
        open.write(0, block(&env, 1)).await.0.unwrap();
        let error = open.write(4096, block(&env, 2)).await.0.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        open.write(4096, block(&env, 3)).await.0.unwrap();
        disk.fail_from(DiskAction::Flush, 1, DiskFault::Io);
        assert!(open.flush().await.is_err());
        assert!(open.flush().await.is_err());
        disk.heal();
        open.flush().await.unwrap();
        assert_eq!(disk.stable_only().peek(0, 1), [0], "what a failed flush covered is not stable");
        disk.make_unreadable(4096..8192);
        assert!(open.read(4096, env.buffer(4096)).await.0.is_err());
        open.write(4096, block(&env, 4)).await.0.unwrap();
        let (result, buf) = open.read(4096, env.buffer(4096)).await;
        result.unwrap();
        assert_eq!(buf[0], 4);
        disk.flip_bit(4096, 0);
        assert_eq!(open.read(4096, buf).await.1[0], 5);
        let counts = disk.counts();
        assert_eq!((counts.writes, counts.flushes), (4, 3));
        assert!(open.read(1 << 20, env.buffer(4096)).await.0.is_err());
    });
}

#[test]
fn stalled_disk_answers_only_after_the_stall() {
    let world = SimWorld::new(8);
    let disk = world.disk("disk", 1 << 20);
    world.run(|env| async move {
        let open = env.open_disk("disk", WRITE).await.unwrap();
        disk.stall(true);
        let mut write = Box::pin(open.write(0, block(&env, 1)));
        assert!(env.timeout(Duration::from_secs(5), write.as_mut()).await.is_none());
        disk.stall(false);
        write.await.0.unwrap();
    });
}

#[test]
fn disk_stalls_or_is_dead_for_one_node_alone() {
    let world = SimWorld::new(8);
    let disk = world.disk("disk", 1 << 20);
    let handle = world.clone();
    world.run(|env| async move {
        let (one, other) = (handle.node("one"), handle.node("other"));
        let open = one.open_disk("disk", WRITE).await.unwrap();
        let beside = other.open_disk("disk", WRITE).await.unwrap();
        disk.set_dead_for(Some("one"), true);
        let failed = open.write(0, block(&env, 1)).await.0.unwrap_err();
        assert!(failed.to_string().contains("error 5"), "{failed}");
        assert!(open.flush().await.is_err() && open.read(0, block(&env, 0)).await.0.is_err());
        beside.write(0, block(&env, 2)).await.0.unwrap();
        disk.set_dead_for(Some("one"), false);
        assert_eq!(open.read(0, env.buffer(4096)).await.1[0], 2);
        disk.set_model(DiskModel::Flash(Flash::nvme()));
        disk.stall_for(Some("other"), true);
        let mut write = Box::pin(beside.write(0, block(&env, 3)));
        assert!(env.timeout(Duration::from_secs(5), write.as_mut()).await.is_none());
        open.write(4096, block(&env, 4)).await.0.unwrap();
        disk.stall_for(Some("other"), false);
        write.await.0.unwrap();
    });
}

/// Writes block 0, flushes, writes blocks 1 and 2 at once, and returns the recording.
fn recorded() -> Recording {
    let world = SimWorld::new(9);
    let disk = world.disk("disk", 1 << 20);
    disk.record();
    world.run(|env| async move {
        let open = env.open_disk("disk", WRITE).await.unwrap();
        open.write(0, block(&env, 1)).await.0.unwrap();
        open.flush().await.unwrap();
        let other = env.spawn_join({
            let (env, open) = (env.clone(), open.clone());
            async move { open.write(4096, block(&env, 2)).await.0.unwrap() }
        });
        open.write(8192, block(&env, 3)).await.0.unwrap();
        other.await;
    });
    disk.recording().unwrap()
}

#[test]
fn crash_images_keep_flushed_writes_and_any_subset_of_others() {
    let mut kinds = std::collections::BTreeSet::new();
    let mut flushed = false;
    for crash in recorded().crash_images(CrashOptions { seed: 1, subsets: 40 }) {
        let bytes = crash.disk().peek(0, 3 * 4096);
        let full = |n: usize| {
            bytes[n * 4096..][..4096].iter().filter(|&&byte| byte == n as u8 + 1).count()
        };
        assert!(full(0).is_multiple_of(512) && full(1).is_multiple_of(512));
        if full(1) > 0 || full(2) > 0 {
            flushed = true;
            assert_eq!(full(0), 4096, "{}", crash.description);
        }
        kinds.insert((full(0) > 0, full(1) > 0, full(2) > 0));
        kinds.insert((full(0) == 4096, full(1) == 4096, full(2) == 4096));
    }
    assert!(flushed);
    let expected = [
        (false, false, false),
        (true, false, false),
        (true, true, false),
        (true, false, true),
        (true, true, true),
    ];
    assert_eq!(kinds, expected.into());
}

#[test]
fn crash_images_are_the_same_each_time() {
    let hashes = || -> Vec<(String, u32)> {
        let images = recorded().crash_images(CrashOptions::default());
        images
            .map(|crash| (crash.description.clone(), types::crc32c(&crash.disk().peek(0, 16384))))
            .collect()
    };
    assert_eq!(hashes(), hashes());
    assert!(hashes().len() >= 10);
}

#[test]
fn crash_images_of_two_disks_show_one_moment() {
    let world = SimWorld::new(10);
    let (data, log) = (world.disk("data", 1 << 16), world.disk("log", 1 << 16));
    data.record();
    log.record();
    world.run(|env| async move {
        let data = env.open_disk("data", WRITE).await.unwrap();
        let log = env.open_disk("log", WRITE).await.unwrap();
        for round in 1..=5 {
            data.write(0, block(&env, round)).await.0.unwrap();
            data.flush().await.unwrap();
            log.write(0, block(&env, round)).await.0.unwrap();
            log.flush().await.unwrap();
        }
    });
    let recordings = vec![data.recording().unwrap(), log.recording().unwrap()];
    let mut last = 0;
    for crash in crash_images(recordings, CrashOptions::default()) {
        let data = crash.disks[0].peek(0, 4096);
        let log = crash.disks[1].peek(0, 4096);
        let logged = *log.iter().max().unwrap();
        assert!(data.iter().all(|&byte| byte >= logged), "{}", crash.description);
        last = last.max(logged);
    }
    assert_eq!(last, 5);
}

#[test]
fn power_cut_keeps_stable_writes_and_all_of_a_write_through_disk() {
    for write_through in [false, true] {
        let world = SimWorld::new(11);
        let disk = world.disk("disk", 1 << 16);
        disk.set_write_through(write_through);
        world.run(|env| async move {
            let open = env.open_disk("disk", WRITE).await.unwrap();
            open.write(0, block(&env, 1)).await.0.unwrap();
            open.flush().await.unwrap();
            open.write(4096, block(&env, 2)).await.0.unwrap();
        });
        assert_eq!(disk.counts().flushes, u64::from(!write_through));
        let worst = disk.stable_only();
        assert_eq!(worst.peek(0, 1), [1]);
        assert_eq!(worst.peek(4096, 1), [if write_through { 2 } else { 0 }]);
        let mut rng = SimRng::new(1);
        for _ in 0..20 {
            assert_eq!(disk.after_power_cut(&mut rng).peek(0, 4096), vec![1; 4096]);
        }
    }
}

#[test]
fn disk_outlives_its_world() {
    let disk = SimDisk::from_image(vec![9; 5000]);
    assert_eq!(disk.size(), 8192);
    for seed in 0..3 {
        let world = SimWorld::new(seed);
        world.attach("disk", &disk);
        world.run(|env| async move {
            let open = env.open_disk("disk", WRITE).await.unwrap();
            let (result, mut buf) = open.read(0, env.buffer(4096)).await;
            result.unwrap();
            assert_eq!(buf[0], 9 + seed as u8);
            buf.fill(10 + seed as u8);
            open.write(0, buf).await.0.unwrap();
        });
    }
}

#[test]
fn paused_node_does_nothing_until_resumed_and_then_what_was_due() {
    let world = SimWorld::new(11);
    let handle = world.clone();
    world.run(|env| async move {
        let node = handle.node("node");
        let ticks = Rc::new(Cell::new(0));
        for _ in 0..2 {
            let (clock, ticks) = (node.clone(), ticks.clone());
            node.spawn(async move {
                loop {
                    clock.sleep(Duration::from_millis(1)).await;
                    ticks.set(ticks.get() + 1);
                }
            });
        }
        env.sleep(Duration::from_millis(10)).await;
        handle.pause("node");
        let stopped_at = ticks.get();
        assert!(stopped_at > 10);
        env.sleep(Duration::from_secs(10)).await;
        assert_eq!(ticks.get(), stopped_at);
        handle.resume("node");
        env.sleep(Duration::from_micros(100)).await;
        assert_eq!(ticks.get(), stopped_at + 2);
        handle.pause("node");
        handle.kill("node");
        let node = handle.node("node");
        let again = node.spawn_join(async { 7 });
        assert_eq!(again.await, 7);
    });
}

#[test]
fn byte_locks_are_visible_on_their_own_host_only() {
    let world = SimWorld::new(12);
    world.disk("disk", 1 << 20);
    world.set_host("far", "other");
    let handle = world.clone();
    world.run(|env| async move {
        let far = handle.node("far").open_disk("disk", WRITE).await.unwrap();
        let near = handle.node("near").open_disk("disk", WRITE).await.unwrap();
        let watcher = env.open_disk("disk", WRITE).await.unwrap();
        far.lock_byte(1).await.unwrap();
        near.lock_byte(2).await.unwrap();
        assert!(watcher.byte_is_free(1).await.unwrap());
        assert!(!watcher.byte_is_free(2).await.unwrap());
    });
}

#[test]
fn drifting_clock_shows_and_awaits_its_own_time() {
    let world = SimWorld::new(13);
    world.set_drift("fast", 100_000);
    let handle = world.clone();
    world.run(|env| async move {
        let fast = handle.node("fast");
        let (begun, shown) = (env.now(), fast.now());
        fast.sleep(Duration::from_secs(11)).await;
        assert!(fast.now() >= shown + Duration::from_secs(11));
        let passed = env.now().since(begun);
        let off = passed.as_nanos().abs_diff(Duration::from_secs(10).as_nanos());
        assert!(off < 1000, "{passed:?}");
        assert!(fast.timeout(Duration::from_secs(1), std::future::pending::<()>()).await.is_none());
        let wall = fast.wall();
        handle.jump_wall("fast", -100);
        assert_eq!(fast.wall().seconds, wall.seconds - 100);
    });
}

#[test]
fn disk_with_a_model_queues_merges_and_takes_time() {
    let world = SimWorld::new(5);
    let disk = world.disk("disk", 1 << 30);
    disk.set_model(DiskModel::Hard(HardDisk::fibre_channel()));
    let taken = world.run(|env| async move {
        let open = env.open_disk("disk", WRITE).await.unwrap();
        let begun = env.now();
        let writes: Vec<_> = (0..64)
            .map(|n| {
                let (open, buf) = (open.clone(), block(&env, n as u8));
                env.spawn_join(async move { open.write(n * 4096, buf).await.0.unwrap() })
            })
            .collect();
        for write in writes {
            write.await;
        }
        open.flush().await.unwrap();
        env.now() - begun
    });
    let report = disk.report().unwrap();
    assert_eq!((report.requests, report.written), (65, 64 * 4096));
    assert_eq!(report.dispatched() + report.merged, 64);
    assert!(report.merged >= 60, "{report:?}");
    // Two dispatches, each up to a revolution late, and a quarter of a megabyte at 178 MB/s.
    assert!(taken > Duration::from_micros(1400) && taken < Duration::from_millis(12), "{taken:?}");
    let after = disk.after_power_cut(&mut SimRng::new(1));
    assert_eq!(after.peek(63 * 4096, 4096), vec![63; 4096]);
    assert_eq!(after.report().unwrap().requests, 0);
}

/// How long two disks, parts of one device or each with its own, take for 32
/// pairs of writes; and the seeks and writes that the first one reports.
fn pairs_of_writes(share: bool) -> (Duration, u64, u64) {
    const SIZE: u64 = 1 << 30;
    let world = SimWorld::new(5);
    let (one, other) = (world.disk("one", SIZE), world.disk("other", SIZE));
    one.set_model(DiskModel::Hard(HardDisk::fibre_channel()));
    match share {
        true => other.share_model(&one, 100 * SIZE),
        false => other.set_model(DiskModel::Hard(HardDisk::fibre_channel())),
    }
    assert!(other.is_rotational());
    let taken = world.run(|env| async move {
        let begun = env.now();
        let work = ["one", "other"].map(|name| {
            let env = env.clone();
            env.clone().spawn_join(async move {
                let open = env.open_disk(name, WRITE).await.unwrap();
                for n in 0..32 {
                    open.write(n * 4096, block(&env, n as u8 + 1)).await.0.unwrap();
                    open.flush().await.unwrap();
                }
            })
        });
        for part in work {
            part.await;
        }
        env.now() - begun
    });
    // Each part has its own content, at its own addresses.
    assert_eq!((one.peek(4096, 1), other.peek(31 * 4096, 1)), (vec![2], vec![32]));
    assert_eq!(other.fork().report().unwrap().requests, 0);
    let report = one.report().unwrap();
    (taken, report.seeks, report.writes)
}

#[test]
fn parts_of_a_device_share_its_heads_and_its_queue() {
    let (apart, own_seeks, own) = pairs_of_writes(false);
    let (together, seeks, both) = pairs_of_writes(true);
    assert_eq!((own, both), (32, 64));
    assert!(own_seeks == 0 && seeks >= 60, "{own_seeks} {seeks}");
    assert!(together > apart + Duration::from_millis(60), "{together:?}, not {apart:?}");
}

#[test]
fn disk_observer_sees_writes_submitted_completed_and_stable() {
    let seen: Rc<RefCell<Vec<String>>> = Rc::default();
    let world = SimWorld::new(1);
    let disk = world.disk("disk", 1 << 20);
    let watching = {
        let (seen, disk) = (seen.clone(), disk.clone());
        watch_disks(move |of, event| {
            assert!(of.is(&disk) && !of.is(&disk.fork()));
            seen.borrow_mut().push(match event {
                DiskEvent::Submitted { id, node, offset, bytes } => {
                    format!("{id} by {} at {offset}: {} of {}", node.0, bytes.len(), bytes[0])
                }
                DiskEvent::Completed { id } => format!("{id} is there"),
                DiskEvent::Stable { ids } => format!("{ids:?} are stable"),
                DiskEvent::Failed { node, action, .. } => {
                    format!("{action:?} by {} failed", node.0)
                }
            });
        })
    };
    world.run(|_| {
        let env = world.node("a");
        let (seen, disk) = (seen.clone(), disk.clone());
        async move {
            let done = env.clone().spawn_join(async move {
                let file = env.open_disk("disk", WRITE).await.unwrap();
                file.write(8192, block(&env, 5)).await.0.unwrap();
                file.flush().await.unwrap();
                disk.fail(DiskAction::Flush, 1, DiskFault::Io);
                file.flush().await.unwrap_err();
                drop(watching);
                file.write(0, block(&env, 6)).await.0.unwrap();
            });
            done.await;
            let want =
                ["1 by a at 8192: 4096 of 5", "1 is there", "[1] are stable", "Flush by a failed"];
            assert_eq!(*seen.borrow(), want);
        }
    });
}
