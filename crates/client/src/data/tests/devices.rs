//! Devices that are missing, die, stand still and come back.

use env::sim::{DiskAction, DiskFault};

use super::*;
use crate::data::segments::Mapped;

/// Every request to the disk fails until it is healed.
fn kill(disk: &SimDisk) {
    for action in [DiskAction::Read, DiskAction::Write, DiskAction::Flush] {
        disk.fail_from(action, 1, DiskFault::Io);
    }
}

/// Gives the server a file of four blocks on zone `pag`.
pub fn place(rig: &Rig, ino: u64, pag: u16) -> Rc<File> {
    {
        let mut now = rig.server.now.borrow_mut();
        let addr = 300 + 4 * ino;
        for block in addr..addr + 4 {
            assert!(now.free.remove(&(pag, block)));
        }
        rig.server.disks[usize::from(pag) - 1].poke(addr * BLOCK_U64, &[1; 4 * BLOCK]);
        let mapped = Mapped { len: 4, pag: PagId(pag), addr, written: true, frozen: false };
        let mut file = ServerFile { size: 4 * BLOCK_U64, ..ServerFile::default() };
        file.layout.insert(0, mapped);
        now.files.insert(Ino(ino), file);
    }
    rig.file(ino)
}

/// Files that lie wholly on the first disk, and as many on the second.
fn files_on_both(rig: &Rig) -> (Vec<Rc<File>>, Vec<Rc<File>>) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for ino in 1..=4 {
        first.push(place(rig, ino, 1));
        second.push(place(rig, ino + 10, 2));
    }
    (first, second)
}

pub fn setup() -> Setup {
    Setup { blocks: 512, dirty_max: 1 << 20, ..Setup::default() }
}

pub fn state(rig: &Rig, zone: u16) -> &'static str {
    let devices = rig.ctx.devices();
    devices.iter().find(|device| device.zone == PagId(zone)).expect("a zone").state
}

pub fn logged(rig: &Rig, word: &str) -> usize {
    rig.server.log.borrow().iter().filter(|line| line.contains(word)).count()
}

/// Overwrites and syncs the file; how long that took.
async fn overwrite(rig: &Rig, file: &Rc<File>, byte: u8) -> (Result<bool, Fault>, Duration) {
    let begun = rig.env.now();
    let written = rig.write(file, 0, &[byte; 4 * BLOCK]).await;
    let synced = match written {
        Ok(_) => file.fsync(false).await,
        Err(fault) => Err(fault),
    };
    (synced, rig.env.now().since(begun))
}

/// SEMANTICS 3.12.
#[test]
fn dead_device_fails_its_files_at_once_and_no_others_until_it_is_back() {
    for seed in 700..708 {
        run(seed, setup(), |rig| async move {
            let (on_dead, others) = files_on_both(&rig);
            kill(&rig.server.disks[0]);
            // Accepted before anybody knows; reported once.
            assert_eq!(overwrite(&rig, &on_dead[0], 2).await.0, Err(Fault::Io), "seed {seed}");
            rig.env.sleep(Duration::from_millis(300)).await;
            assert_eq!((state(&rig, 1), state(&rig, 2)), ("absent", "present"));
            assert_eq!(logged(&rig, "data zone 1 at data1 is absent"), 1);
            for round in 0..10 {
                let (synced, took) = overwrite(&rig, &others[round % 4], 3).await;
                assert_eq!(synced, Ok(true));
                assert!(took < Duration::from_millis(500), "{took:?}");
                let begun = rig.env.now();
                assert_eq!(on_dead[1].read(0, 4096).await.map(|_| ()), Err(Fault::Io));
                assert_eq!(rig.write(&on_dead[1], 0, &[4; 4096]).await, Err(Fault::Io));
                assert_eq!(rig.env.now(), begun, "at once");
            }
            assert_eq!(rig.ctx.dirty_bytes(), 0, "what is lost holds nothing");
            // A new file goes to the other zone.
            let new = rig.file(30);
            assert_eq!(overwrite(&rig, &new, 5).await.0, Ok(true));
            let placed = rig.server.now.borrow().files[&Ino(30)].layout.to_segments();
            assert!(placed.iter().all(|segment| segment.pag == PagId(2)));

            rig.server.disks[0].heal();
            rig.env.sleep(Duration::from_secs(2)).await;
            assert_eq!((state(&rig, 1), logged(&rig, "data1 is back")), ("present", 1));
            let read = on_dead[1].read(0, 4096).await.expect("it is back").to_vec();
            assert_eq!(read, [1; 4096]);
            assert_eq!(overwrite(&rig, &on_dead[1], 6).await.0, Ok(true));
            rig.finish(512).await;
        });
    }
}

#[test]
fn accepted_bytes_of_a_new_file_move_to_a_zone_that_is_there() {
    for seed in 710..714 {
        run(seed, setup(), |rig| async move {
            // The pool's blocks are of the first zone.
            let old = place(&rig, 3, 1);
            let (file, trigger) = (rig.file(1), rig.file(2));
            rig.write(&file, 0, &[1; 8 * BLOCK]).await.unwrap();
            kill(&rig.server.disks[0]);
            assert_eq!(old.read(0, 4096).await.map(|_| ()), Err(Fault::Io));
            rig.env.sleep(Duration::from_millis(300)).await;
            assert_eq!(state(&rig, 1), "absent");
            assert_eq!(file.fsync(false).await, Ok(true), "seed {seed}");
            let placed = rig.server.now.borrow().files[&Ino(1)].layout.to_segments();
            assert!(placed.iter().all(|segment| segment.pag == PagId(2)), "{placed:?}");
            // fallocate, too.
            trigger.fallocate(0, 0, 40 * BLOCK_U64).await.unwrap();
            trigger.fsync(false).await.unwrap();
            rig.server.disks[0].heal();
            rig.finish(512).await;
        });
    }
}

#[test]
fn bytes_that_lost_their_place_are_reported_if_no_other_zone_has_room() {
    run(720, Setup { disks: 1, ..setup() }, |rig| async move {
        let (old, file) = (place(&rig, 3, 1), rig.file(1));
        rig.write(&file, 0, &[1; 8 * BLOCK]).await.unwrap();
        kill(&rig.server.disks[0]);
        assert_eq!(old.read(0, 4096).await.map(|_| ()), Err(Fault::Io));
        rig.env.sleep(Duration::from_millis(300)).await;
        assert_eq!(file.fsync(false).await, Err(Fault::Io));
        assert_eq!(file.error_seq(), 1);
        assert_eq!(rig.write(&file, 0, &[1; 8 * BLOCK]).await, Err(Fault::Io));
        rig.server.disks[0].heal();
        rig.env.sleep(Duration::from_secs(2)).await;
        assert_eq!(overwrite(&rig, &file, 2).await.0, Ok(true));
        rig.finish(512).await;
    });
}

/// The figure: files on other devices pause for 1 s at most.
#[test]
fn stalled_device_does_not_use_up_the_budget_of_others() {
    for seed in 730..736 {
        run(seed, setup(), |rig| async move {
            let (on_stalled, others) = files_on_both(&rig);
            rig.server.disks[0].stall(true);
            let writers: Vec<_> = on_stalled
                .iter()
                .map(|file| {
                    let (rig, file) = (rig.server.env.clone(), file.clone());
                    let env = rig.clone();
                    rig.spawn_join(async move {
                        for round in 0..200u64 {
                            let data = IoBuf::copy_of(&[7; 4 * BLOCK]);
                            let _ = file.write(Some(0), data, 4 * BLOCK, None).await;
                            file.launch_all();
                            if round % 8 == 0 {
                                env.sleep(Duration::from_millis(1)).await;
                            }
                        }
                    })
                })
                .collect();
            // Whole new runs that go to the stalled zone, as far as the budget reaches.
            let flood = rig.file(50);
            let (env, flooded) = (rig.env.clone(), flood.clone());
            let flooding = env.spawn_join(async move {
                for piece in 0..4u64 {
                    let data = IoBuf::copy_of(&vec![8; 256 << 10]);
                    let _ = flooded.write(Some(piece * (256 << 10)), data, 256 << 10, None).await;
                }
            });
            let mut longest = Duration::ZERO;
            for round in 0..40 {
                let (synced, took) = overwrite(&rig, &others[round % 4], round as u8).await;
                assert_eq!(synced, Ok(true));
                longest = longest.max(took);
            }
            assert!(longest <= Duration::from_secs(1), "seed {seed}: {longest:?}");
            rig.server.disks[0].stall(false);
            for writer in writers {
                writer.await;
            }
            flooding.await;
            rig.finish(512).await;
        });
    }
}

/// What an unmount begins with: files on other devices are committed, whatever one device does.
#[test]
fn sync_of_all_files_is_held_up_by_a_silent_device_only_for_files_on_it() {
    for seed in 760..764 {
        run(seed, setup(), |rig| async move {
            let (on_stalled, others) = files_on_both(&rig);
            rig.server.disks[0].stall(true);
            for file in on_stalled.iter().chain(&others) {
                rig.write(file, 0, &[9; BLOCK]).await.unwrap();
            }
            let ctx = rig.ctx.clone();
            let sync = rig.env.spawn_join(async move { ctx.sync_all().await });
            rig.env.sleep(Duration::from_millis(200)).await;
            assert!(others.iter().all(|file| file.is_settled()), "seed {seed}");
            assert!(on_stalled.iter().all(|file| !file.is_settled()));
            rig.server.disks[0].stall(false);
            assert_eq!(sync.await, Ok(()));
            rig.finish(512).await;
        });
    }
}

/// Zones on one device fail together, and come back together.
#[test]
fn zones_of_one_device_share_its_state() {
    let world = SimWorld::new(745);
    let inner = world.clone();
    world.run(|env| async move {
        let rig = Rig::new(&inner, env.clone(), 745, Setup { disks: 1, ..setup() }).await;
        let disk = SimDisk::new(129 * BLOCK_U64);
        let mut both = label(1, 128);
        both.slices[0].blocks = 64;
        let kind = label::SliceKind::Data { pag: PagId(2) };
        both.slices.push(label::Slice { kind, start: 64, blocks: 64, uuid: Uuid([2; 16]) });
        label::put(&disk, &both);
        inner.attach("both", &disk);
        let config = DataConfig {
            devices: vec![(PagId(2), "both".into())],
            dirty_max: 1 << 20,
            read_only: false,
            allocation: Default::default(),
            commit: Default::default(),
            on_edit: None,
            waits: Rc::default(),
            targets: Default::default(),
        };
        let pags = [info(1, 64), PagInfo { device: Uuid([1; 16]), ..info(2, 64) }];
        let ctx = DataContext::open(
            env.clone(),
            config,
            FS,
            offer(ClientId(9), &pags),
            rig.server.clone(),
        )
        .await
        .expect("one path is given for both");
        kill(&disk);
        let zone = ctx.disks.get(HOME, PagId(2)).unwrap().clone();
        assert_eq!(zone.read(3, env.buffer(BLOCK)).await.0, Err(Fault::Io));
        env.sleep(Duration::from_millis(300)).await;
        let states: Vec<_> = ctx.devices().iter().map(|device| device.state).collect();
        assert_eq!(states, ["absent", "absent"]);
        assert_eq!(logged(&rig, "data zones 1, 2 at both is absent"), 1);
        assert_eq!(ctx.class(HOME, &[]).pool.avoided(), [PagId(1), PagId(2)]);
        disk.heal();
        disk.poke(67 * BLOCK_U64, &[9; BLOCK]);
        let other = ctx.disks.get(HOME, PagId(1)).unwrap().clone();
        assert_eq!(other.read(3, env.buffer(BLOCK)).await.0, Err(Fault::Io), "asks for it");
        env.sleep(Duration::from_secs(2)).await;
        let (read, block) = zone.read(3, env.buffer(BLOCK)).await;
        assert!(read.is_ok() && block[..] == [9; BLOCK], "from the start of its slice");
        assert!(ctx.class(HOME, &[]).pool.avoided().is_empty());
    });
}

#[test]
fn missing_device_does_not_fail_the_mount_and_is_locked_when_it_comes() {
    let world = SimWorld::new(740);
    let inner = world.clone();
    world.run(|env| async move {
        let disk = SimDisk::new(65 * BLOCK_U64);
        label::put(&disk, &label(1, 64));
        let rig = Rig::new(&inner, env.clone(), 740, Setup { disks: 1, ..setup() }).await;
        let config = DataConfig {
            devices: vec![(PagId(2), "late".into())],
            dirty_max: 1 << 20,
            read_only: false,
            allocation: Default::default(),
            commit: Default::default(),
            on_edit: None,
            waits: Rc::default(),
            targets: Default::default(),
        };
        let pags = [info(2, 64)];
        let ctx = DataContext::open(
            env.clone(),
            config,
            FS,
            offer(ClientId(9), &pags),
            rig.server.clone(),
        )
        .await
        .expect("a missing device fails no mount");
        assert_eq!(ctx.devices()[0].state, "absent");
        // Another zone comes: refused and named.
        inner.attach("late", &disk);
        env.sleep(Duration::from_secs(11)).await;
        assert_eq!(ctx.devices()[0].state, "absent");
        assert!(ctx.devices()[0].why.contains("it is data zone 1"), "{:?}", ctx.devices());
        assert_eq!(logged(&rig, "it is data zone 1"), 1);
        // The right one.
        label::put(&disk, &label(2, 64));
        env.sleep(Duration::from_secs(11)).await;
        assert_eq!(ctx.devices()[0].state, "present");
        let other = env.open_disk("late", env::DiskOptions::default()).await.unwrap();
        assert!(!other.byte_is_free(9).await.unwrap(), "its byte is locked");
    });
}

/// A client that is stopped while it mounts takes no device for absent that has answered meanwhile.
#[test]
fn client_stopped_during_its_mount_has_the_devices_that_answer() {
    for seed in 760..780 {
        let world = SimWorld::new(seed);
        let inner = world.clone();
        world.run(|env| async move {
            let rig = Rig::new(&inner, env.clone(), seed, setup()).await;
            let (node, server) = (inner.node("late"), rig.server.clone());
            let its = node.clone();
            let mounting = node.spawn_join(async move {
                let config = DataConfig {
                    devices: Vec::new(),
                    dirty_max: 1 << 20,
                    read_only: false,
                    allocation: Default::default(),
                    commit: Default::default(),
                    on_edit: None,
                    waits: Rc::default(),
                    targets: Default::default(),
                };
                let pags = [info(1, 512), info(2, 512)];
                let ctx =
                    DataContext::open(its, config, FS, offer(ClientId(9), &pags), server).await;
                let ctx = ctx.expect("it mounts");
                ctx.devices().iter().map(|device| device.state).collect::<Vec<_>>()
            });
            env.sleep(Duration::from_micros(1)).await;
            inner.pause("late");
            env.sleep(Duration::from_secs(10)).await;
            inner.resume("late");
            assert_eq!(mounting.await, ["present", "present"], "seed {seed}");
        });
    }
}

/// SEMANTICS 3.13. What is read of writes that were reported as lost must not go in a power cut.
#[test]
fn device_that_comes_back_is_flushed_before_it_is_read() {
    for seed in 780..788 {
        run(seed, setup(), |rig| async move {
            let (file, other) = (place(&rig, 1, 1), place(&rig, 2, 1));
            rig.write(&file, 0, &[7; 4 * BLOCK]).await.unwrap();
            file.launch_all();
            let disk = rig.server.disks[0].clone();
            rig.env.sleep(Duration::from_millis(50)).await;
            assert_eq!(disk.peek(304 * BLOCK_U64, BLOCK), [7; BLOCK], "seed {seed}: not written");
            disk.fail_from(DiskAction::Read, 1, DiskFault::Io);
            assert!(other.read(0, 4096).await.is_err());
            rig.env.sleep(Duration::from_millis(200)).await;
            assert_eq!(state(&rig, 1), "absent");
            assert_eq!(disk.stable_only().peek(304 * BLOCK_U64, BLOCK), [1; BLOCK]);
            disk.heal();
            assert!(other.read(0, 4096).await.is_err(), "asks for it");
            rig.env.sleep(Duration::from_secs(2)).await;
            assert_eq!(state(&rig, 1), "present");
            assert_eq!(disk.stable_only().peek(304 * BLOCK_U64, BLOCK), [7; BLOCK]);
        });
    }
}
