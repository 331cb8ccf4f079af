//! Blocks that move between zones, and zones that drain.

use env::sim::{DiskAction, DiskFault};

use super::devices::setup;
use super::*;
use crate::data::segments::Mapped;
use crate::data::{MoveStep, Room};

const INO: Ino = Ino(3);

/// A file of several pieces on zone 1, one of them without content, one on zone 2, and a hole.
/// Returns its content.
fn place_pieces(rig: &Rig) -> (Rc<File>, Vec<u8>) {
    let pieces: [(u64, u16, u64, u64, bool); 5] = [
        (0, 1, 300, 9, true),
        (9, 1, 350, 4, false),
        (13, 2, 300, 5, true),
        (20, 1, 400, 30, true),
        (50, 1, 320, 1, true),
    ];
    let mut file = ServerFile { size: 51 * BLOCK_U64 - 100, ..ServerFile::default() };
    let mut content = vec![0; 51 * BLOCK];
    let mut now = rig.server.now.borrow_mut();
    for (from, pag, addr, len, written) in pieces {
        (addr..addr + len).for_each(|block| assert!(now.free.remove(&(pag, block))));
        file.layout.insert(from, Mapped { len, pag: PagId(pag), addr, written, frozen: false });
        for block in (0..len).filter(|_| written) {
            let bytes = [(from + block + 1) as u8; BLOCK];
            rig.server.disks[usize::from(pag) - 1].poke((addr + block) * BLOCK_U64, &bytes);
            content[(from + block) as usize * BLOCK..][..BLOCK].copy_from_slice(&bytes);
        }
    }
    content.truncate(file.size as usize);
    now.files.insert(INO, file);
    *rig.server.durable.borrow_mut() = now.clone();
    drop(now);
    (rig.file(INO.0), content)
}

/// The content now, and after a crash of everything.
fn contents(rig: &Rig) -> [Vec<u8>; 2] {
    let stable: Vec<SimDisk> = rig.server.disks.iter().map(SimDisk::stable_only).collect();
    [
        Server::content(&rig.server.now.borrow(), &rig.server.disks, INO),
        Server::content(&rig.server.durable.borrow(), &stable, INO),
    ]
}

fn zones_of_file(rig: &Rig) -> BTreeSet<PagId> {
    let now = rig.server.now.borrow();
    now.files[&INO].layout.to_segments().iter().map(|segment| segment.pag).collect()
}

/// Moves all of the file out of zone 1, in steps of `most` blocks.
async fn move_all(file: &Rc<File>, most: u64) -> Result<u64, Fault> {
    let (zones, mut room) = (BTreeSet::from([PagId(1)]), Room::default());
    let (mut at, mut moved) = (0, 0);
    loop {
        match file.move_blocks(&zones, (at, most), &mut room).await? {
            MoveStep::Done => return Ok(moved),
            MoveStep::NeedsRoom => file.find_room(&mut room).await?,
            MoveStep::Moved { blocks, next } => (at, moved) = (next, moved + blocks),
        }
    }
}

#[test]
fn file_that_moves_has_its_content_at_every_moment_and_after_a_crash_at_any() {
    for seed in 820..826 {
        run(seed, setup(), |rig| async move {
            let (file, content) = place_pieces(&rig);
            rig.ctx.shun_zones(BTreeSet::from([PagId(1)]));
            let before = rig.server.now.borrow().files[&INO].clone();
            let most = 1 + seed % 12;
            let mut moving = {
                let file = file.clone();
                rig.env.spawn_join(async move { move_all(&file, most).await })
            };
            let moved = loop {
                let done = rig.env.timeout(Duration::from_micros(510), &mut moving).await;
                assert!(contents(&rig).iter().all(|now| *now == content), "seed {seed}");
                rig.server.check_ownership(512);
                if let Some(moved) = done {
                    break moved;
                }
            };
            assert_eq!(moved, Ok(44));
            let after = rig.server.now.borrow().files[&INO].clone();
            assert_eq!(zones_of_file(&rig), BTreeSet::from([PagId(2)]));
            assert_eq!((after.size, after.mtime), (before.size, before.mtime));
            let written = |file: &ServerFile| {
                let all = file.layout.to_segments().into_iter();
                let of = all.filter(|segment| segment.state == SegmentState::Written);
                of.map(|segment| segment.len).sum::<u64>()
            };
            assert_eq!(written(&after), written(&before), "what had no content has none");
            // The client goes on with the new places.
            assert!(file.read(0, content.len()).await.unwrap().to_vec() == content);
            rig.write(&file, 5000, &[0xab; 9000]).await.unwrap();
            assert_eq!(file.fsync(false).await, Ok(true));
            let mut wanted = content;
            wanted[5000..14000].fill(0xab);
            assert!(contents(&rig).iter().all(|now| *now == wanted));
            rig.finish(512).await;
        });
    }
}

#[test]
fn step_that_fails_leaves_the_file_as_it_was_and_loses_no_block() {
    for seed in 840..852 {
        run(seed, setup(), |rig| async move {
            let (file, content) = place_pieces(&rig);
            rig.ctx.shun_zones(BTreeSet::from([PagId(1)]));
            let target = &rig.server.disks[1];
            let expected = match seed % 4 {
                0 => {
                    target.fail_from(DiskAction::Write, 1, DiskFault::Io);
                    Err(Fault::Io)
                }
                1 => {
                    target.fail_from(DiskAction::Flush, 1, DiskFault::Io);
                    Err(Fault::Io)
                }
                2 => {
                    rig.server.disks[0].fail_from(DiskAction::Read, 1, DiskFault::Io);
                    Err(Fault::Io)
                }
                _ => {
                    let refusal = Refusal { fault: Fault::Overloaded, done: 1 };
                    rig.server.refusals.borrow_mut().push_back(refusal);
                    Err(Fault::Overloaded)
                }
            };
            assert_eq!(move_all(&file, 64).await, expected, "seed {seed}");
            rig.server.disks.iter().for_each(SimDisk::heal);
            assert!(contents(&rig).iter().all(|now| *now == content), "seed {seed}");
            // The devices are looked at again.
            rig.env.sleep(Duration::from_secs(90)).await;
            let rest = if seed % 4 == 3 { 44 - 9 } else { 44 };
            assert_eq!(move_all(&file, 64).await, Ok(rest), "seed {seed}");
            assert!(contents(&rig).iter().all(|now| *now == content), "seed {seed}");
            rig.finish(512).await;
        });
    }
}

#[test]
fn file_whose_zones_are_full_stays_where_it_is() {
    run(860, setup(), |rig| async move {
        let (file, content) = place_pieces(&rig);
        rig.ctx.shun_zones(BTreeSet::from([PagId(1)]));
        rig.server.now.borrow_mut().free.retain(|(pag, block)| *pag == 1 || *block < 20);
        assert_eq!(move_all(&file, 12).await, Err(Fault::NoSpace));
        assert!(contents(&rig).iter().all(|now| *now == content));
        let layout = rig.server.now.borrow().files[&INO].layout.to_segments();
        assert!(layout.iter().any(|segment| segment.pag == PagId(1)));
    });
}

#[test]
fn pools_leave_a_zone_that_drains_but_for_what_accepted_bytes_need() {
    for seed in 870..878 {
        run(seed, Setup { grant_max: 60, ..setup() }, |rig| async move {
            let stock = |zone: u16| rig.ctx.class(HOME, &[]).pool.stock(PagId(zone));
            let first = rig.file(10);
            rig.write(&first, 0, &[1; 4 * BLOCK]).await.unwrap();
            assert_eq!(first.fsync(false).await, Ok(true));
            let zone = zones_of(&rig, 10).pop_first().expect("it has a place").0;
            let other = 3 - zone;
            assert!(stock(zone) > 0);
            // All of the pool is reserved, and the other zone has no room.
            let kept: BTreeSet<(u16, u64)> = rig
                .server
                .now
                .borrow()
                .free
                .iter()
                .filter(|(pag, _)| *pag == other)
                .copied()
                .collect();
            assert!(kept.len() > 300, "the client asks for less");
            rig.server.now.borrow_mut().free.retain(|(pag, _)| *pag != other);
            let file = rig.file(11);
            let pool = rig.ctx.class(HOME, &[]).pool.clone();
            let reserved = pool.reserve(pool.available()).expect("so many are there");
            *rig.server.zones.borrow_mut() = Some(draining(&[zone]));
            rig.ctx.zones_reported(HOME, &draining(&[zone]));
            rig.env.sleep(Duration::from_secs(1)).await;
            assert!(stock(zone) > 0 && pool.missing_for(0) == 0, "what is accepted has a place");
            rig.server.now.borrow_mut().free.extend(kept);
            rig.env.sleep(Duration::from_secs(11)).await;
            assert_eq!((stock(zone), pool.missing_for(0)), (0, 0), "seed {seed}");
            drop(reserved);
            rig.write(&file, 0, &[2; 40 * BLOCK]).await.unwrap();
            assert_eq!(file.fsync(false).await, Ok(true));
            assert_eq!(zones_of(&rig, 11), BTreeSet::from([PagId(other)]));
            // A file that lies there continues elsewhere.
            rig.write(&first, 4 * BLOCK_U64, &[3; 4 * BLOCK]).await.unwrap();
            assert_eq!(first.fsync(false).await, Ok(true));
            assert!(zones_of(&rig, 10).contains(&PagId(other)));
            rig.finish(512).await;
        });
    }
}

fn zones_of(rig: &Rig, ino: u64) -> BTreeSet<PagId> {
    let now = rig.server.now.borrow();
    now.files[&Ino(ino)].layout.to_segments().iter().map(|segment| segment.pag).collect()
}

fn draining(ids: &[u16]) -> ZoneList {
    let zones = [1, 2].iter().map(|&id| info(id, 512)).collect();
    let leaving = ids.iter().map(|&id| PagId(id)).collect();
    ZoneList { zones, lost: Vec::new(), leaving }
}
