//! The queue of a device: joined writes, their errors, and who may still write when a turn comes.

use env::sim::{DiskAction, DiskFault, DiskModel, Flash};

use super::*;
use crate::api::DeviceLoad;
use crate::data::device_queue::REQUESTS_MAX;

const FILES: u64 = 100;

fn setup() -> Setup {
    Setup { disks: 1, ..Setup::default() }
}

fn load(rig: &Rig) -> DeviceLoad {
    rig.ctx.devices()[0].load.clone()
}

/// Launches a write of one block to each of `FILES` files; the device answers none of them.
async fn fill_queue(rig: &Rig) -> Vec<Rc<File>> {
    rig.server.disks[0].stall(true);
    let mut files = Vec::new();
    for ino in 1..=FILES {
        let file = rig.file(ino);
        rig.write(&file, 0, &[ino as u8; BLOCK]).await.expect("is accepted");
        file.launch_all();
        files.push(file);
        // The tasks of two launches run in any order.
        rig.env.sleep(Duration::from_micros(1)).await;
    }
    let waiting = FILES - REQUESTS_MAX as u64;
    assert_eq!((load(rig).in_flight, load(rig).waiting), (REQUESTS_MAX as u64, waiting));
    assert_eq!(rig.server.disks[0].counts().writes, REQUESTS_MAX as u64);
    files
}

#[test]
fn writes_that_wait_for_a_busy_device_go_as_one_request() {
    run(900, setup(), |rig| async move {
        fill_queue(&rig).await;
        rig.server.disks[0].stall(false);
        rig.finish(2048).await;
        let load = load(&rig);
        assert_eq!((load.writes, load.bytes), (FILES, FILES * BLOCK_U64));
        assert_eq!(load.requests, REQUESTS_MAX as u64 + 1, "{load:?}");
        assert_eq!(rig.server.disks[0].counts().writes, load.requests);
        assert_eq!((load.in_flight, load.waiting), (0, 0));
        assert_eq!(load.waiting_max, FILES - REQUESTS_MAX as u64);
        let now = rig.server.now.borrow();
        for ino in 1..=FILES {
            let content = Server::content(&now, &rig.server.disks, Ino(ino));
            assert!(content == [ino as u8; BLOCK], "file {ino}");
        }
    });
}

#[test]
fn error_of_a_request_goes_to_all_whose_writes_it_joins_and_to_nobody_else() {
    run(901, setup(), |rig| async move {
        let files = fill_queue(&rig).await;
        rig.server.disks[0].fail(DiskAction::Write, 1, DiskFault::Io);
        rig.server.disks[0].stall(false);
        rig.env.sleep(Duration::from_millis(100)).await;
        let load = load(&rig);
        assert_eq!(load.requests, REQUESTS_MAX as u64 + 1, "{load:?}");
        for (nth, file) in files.iter().enumerate() {
            assert_eq!(file.error_seq(), u64::from(nth >= REQUESTS_MAX), "file {}", nth + 1);
        }
        // The next writes of the same files succeed.
        for file in &files {
            rig.write(file, 0, &[200; BLOCK]).await.unwrap();
            assert_eq!(file.fsync(false).await, Ok(true));
        }
        rig.finish(2048).await;
    });
}

#[test]
fn write_that_waits_does_not_go_to_the_device_after_the_lease() {
    run(902, setup(), |rig| async move {
        let files = fill_queue(&rig).await;
        rig.server.lease.set(rig.env.now());
        rig.server.disks[0].stall(false);
        rig.env.sleep(Duration::from_secs(1)).await;
        let sent = REQUESTS_MAX as u64;
        assert_eq!(rig.server.disks[0].counts().writes, sent, "only what it had before");
        rig.server.lease.set(Instant::FAR);
        for file in files {
            assert_eq!(file.fsync(false).await, Ok(true));
        }
        assert!(rig.server.disks[0].counts().writes > sent);
        rig.finish(2048).await;
    });
}

#[test]
fn write_that_waits_does_not_go_to_the_device_after_an_eviction() {
    run(903, setup(), |rig| async move {
        let _files = fill_queue(&rig).await;
        rig.ctx.evicted(HOME, ClientId(6));
        rig.server.disks[0].stall(false);
        rig.env.sleep(Duration::from_secs(1)).await;
        assert_eq!(rig.server.disks[0].counts().writes, REQUESTS_MAX as u64);
        assert_eq!((load(&rig).in_flight, load(&rig).waiting), (0, 0));
        assert_eq!(rig.ctx.dirty_bytes(), 0);
    });
}

#[test]
fn writes_that_wait_fail_at_once_when_their_device_dies() {
    run(904, setup(), |rig| async move {
        let files = fill_queue(&rig).await;
        for action in [DiskAction::Read, DiskAction::Write, DiskAction::Flush] {
            rig.server.disks[0].fail_from(action, 1, DiskFault::Io);
        }
        // Somebody notices; the requests in flight are not answered yet.
        rig.ctx.disks.devices().for_each(|device| device.give_up_unflushed());
        rig.env.sleep(Duration::from_micros(1)).await;
        assert_eq!((load(&rig).in_flight, load(&rig).waiting), (REQUESTS_MAX as u64, 0));
        assert!(files[REQUESTS_MAX..].iter().all(|file| file.error_seq() > 0));
        assert!(files[..REQUESTS_MAX].iter().all(|file| file.error_seq() == 0));
        rig.server.disks[0].heal();
    });
}

#[test]
fn idle_device_gets_what_does_not_grow_any_more() {
    run(910, setup(), |rig| async move {
        let (growing, still, closed) = (rig.file(1), rig.file(2), rig.file(3));
        let writes = || rig.server.disks[0].counts().writes;
        let before = writes();
        rig.write(&still, 0, &[2; 3 * BLOCK]).await.unwrap();
        rig.env.sleep(Duration::from_millis(9)).await;
        assert_eq!(writes(), before, "it may grow still");
        // A file that grows all the time is not launched in small pieces.
        for piece in 0..20u64 {
            rig.write(&growing, piece * 8192, &[1; 8192]).await.unwrap();
            rig.env.sleep(Duration::from_millis(3)).await;
        }
        assert_eq!(writes() - before, 1, "the file that is still");
        assert!(still.is_launched() && !growing.is_launched());
        rig.env.sleep(Duration::from_millis(25)).await;
        assert_eq!(writes() - before, 2);
        // One that was closed goes at the next look, whenever it was written.
        rig.write(&closed, 0, &[3; 3 * BLOCK]).await.unwrap();
        closed.last_handle_closed();
        rig.env.sleep(Duration::from_micros(10_500)).await;
        assert_eq!(writes() - before, 3);
        rig.finish(2048).await;
    });
}

#[test]
fn busy_device_gets_what_is_still_only_when_it_has_answered() {
    run(911, setup(), |rig| async move {
        let (first, second) = (rig.file(1), rig.file(2));
        rig.server.disks[0].stall(true);
        rig.write(&first, 0, &[1; 2 * BLOCK]).await.unwrap();
        first.launch_all();
        rig.write(&second, 0, &[2; 2 * BLOCK]).await.unwrap();
        rig.env.sleep(Duration::from_millis(100)).await;
        assert!(!second.is_launched(), "the device has not answered");
        rig.server.disks[0].stall(false);
        rig.env.sleep(Duration::from_millis(25)).await;
        assert!(second.is_launched());
        rig.finish(2048).await;
    });
}

#[test]
fn file_that_its_inode_may_hold_waits_for_its_commit() {
    run(912, Setup { inline_max: 2000, ..setup() }, |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[1; 900]).await.unwrap();
        file.last_handle_closed();
        rig.env.sleep(Duration::from_millis(100)).await;
        rig.finish(2048).await;
        assert_eq!(rig.server.disks[0].counts().writes, 0);
    });
}

/// Reads all of a file of `parts` parts of 1 MiB in turns over `disks` slow disks; how long that
/// takes.
fn read_time(disks: u16, parts: u64) -> Duration {
    let world = SimWorld::new(920);
    let inner = world.clone();
    world.run(|env| async move {
        let setup = Setup { disks, ..Setup::default() };
        let rig = Rig::new(&inner, env, 920, setup).await;
        let slow = Flash { channels: 1, rate: (100_000_000, 100_000_000), ..Flash::nvme() };
        rig.server.disks.iter().for_each(|disk| disk.set_model(DiskModel::Flash(slow.clone())));
        *rig.server.placement.borrow_mut() = "policy=striping part=1M".into();
        let file = rig.file(1);
        let bytes = vec![7; (parts << 20) as usize];
        rig.write(&file, 0, &bytes).await.unwrap();
        file.fsync(false).await.unwrap();
        let placed = rig.server.now.borrow().files[&Ino(1)].layout.to_segments();
        let zones: BTreeSet<PagId> = placed.iter().map(|segment| segment.pag).collect();
        assert_eq!(zones.len(), usize::from(disks), "{placed:?}");
        let begun = rig.env.now();
        assert!(file.read(0, bytes.len()).await.unwrap().to_vec() == bytes);
        rig.env.now().since(begun)
    })
}

#[test]
fn striped_file_is_read_from_all_its_devices_at_once() {
    let (one, two, four) = (read_time(1, 4), read_time(2, 4), read_time(4, 4));
    assert!(one >= Duration::from_millis(40), "4 MiB at 100 MB/s: {one:?}");
    assert!(two <= one.mul_f64(0.55), "{one:?} from one, {two:?} from two");
    assert!(four <= one.mul_f64(0.3), "{one:?} from one, {four:?} from four");
}

/// A stream to a disk of 80 MiB/s, which has more than half a second's work by now.
async fn begin_stream(rig: &Rig) {
    const RATE: u64 = 80 << 20;
    // It works on what it gets in order, like a virtual disk whose speed is bounded.
    let slow = Flash { link: RATE, ..Flash::nvme() };
    rig.server.disks[0].set_model(DiskModel::Flash(slow));
    let (stream, context) = (rig.file(1), rig.ctx.clone());
    rig.env.spawn(async move {
        // It goes round in a file, so all its blocks have their place after a while.
        for nth in 0.. {
            let piece = IoBuf::copy_of(&[7; 1 << 20]);
            let from = (nth % 64) << 20;
            if stream.write(Some(from), piece, 1 << 20, process_at(from)).await.is_err() {
                break;
            }
        }
        drop(context);
    });
    rig.env.sleep(Duration::from_secs(3)).await;
    let waiting = rig.ctx.devices()[0].load.waiting;
    assert!(waiting >= 40, "the stream keeps it busy for half a second: {waiting}");
}

/// How long small files' writes take beside that, the shortest first.
async fn small_writes_beside_a_stream(rig: &Rig) -> Vec<Duration> {
    begin_stream(rig).await;
    let mut times = Vec::new();
    for ino in 2..60 {
        let file = rig.file(ino);
        rig.write(&file, 0, &[2; BLOCK]).await.unwrap();
        let begun = rig.env.now();
        file.launch_all();
        while !file.state.borrow().flights.is_empty() {
            rig.env.sleep(Duration::from_micros(100)).await;
        }
        times.push(rig.env.now().since(begun));
        rig.env.sleep(Duration::from_millis(37)).await;
    }
    times.sort();
    times
}

#[test]
fn write_of_a_small_file_waits_for_no_more_of_a_stream_than_is_in_flight() {
    let setup = Setup { disks: 1, blocks: 40_000, dirty_max: 96 << 20, ..Setup::default() };
    run(930, setup, |rig| async move {
        let times = small_writes_beside_a_stream(&rig).await;
        // 4 MiB are in flight; with all 32 requests it is 400 ms.
        let longest = *times.last().unwrap();
        assert!(longest < Duration::from_millis(100), "{times:?}");
    });
}

#[test]
fn small_file_that_ages_does_not_wait_for_the_writes_of_a_large_one() {
    let setup = Setup { disks: 1, blocks: 20_000, dirty_max: 96 << 20, ..Setup::default() };
    run(932, setup, |rig| async move {
        let slow = Flash { link: 8 << 20, ..Flash::nvme() };
        rig.server.disks[0].set_model(DiskModel::Flash(slow));
        let (large, small) = (rig.file(1), rig.file(2));
        // Four seconds' work.
        for nth in 0..32 {
            rig.write(&large, nth << 20, &[1; 1 << 20]).await.unwrap();
        }
        rig.write(&small, 0, &[2; BLOCK]).await.unwrap();
        rig.env.sleep(Duration::from_millis(1500)).await;
        assert!(small.is_clean() && !large.is_clean());
        rig.env.sleep(Duration::from_secs(5)).await;
        assert!(large.is_clean());
        rig.finish(20_000).await;
    });
}
