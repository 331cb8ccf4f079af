//! On which zones files come to lie.

use std::collections::BTreeSet;
use std::rc::Rc;

use types::limits::BLOCK_U64;
use types::{Fault, PagId};

use super::{File, HOME, Rig, Setup, run};

const MIB: usize = 1 << 20;

fn setup(disks: u16, blocks: u64) -> Setup {
    Setup { disks, blocks, dirty_max: 16 << 20, grant_max: blocks, ..Setup::default() }
}

/// The zones of a file's segments, in the order of the file; neighbours are joined.
async fn zones(file: &Rc<File>) -> Vec<u16> {
    let segments = file.layout().await.unwrap();
    let mut zones: Vec<u16> = segments.iter().map(|segment| segment.pag.0).collect();
    zones.dedup();
    zones
}

async fn written(rig: &Rig, ino: u64, len: usize) -> Rc<File> {
    let file = rig.file(ino);
    for at in (0..len).step_by(MIB) {
        let bytes = vec![(ino % 200) as u8; MIB.min(len - at)];
        rig.write(&file, at as u64, &bytes).await.unwrap();
    }
    file.flush().await.unwrap();
    file
}

#[test]
fn large_files_lie_on_one_zone_each_in_turns() {
    for seed in 0..6 {
        run(seed, setup(4, 8192), |rig| async move {
            let mut first = Vec::new();
            for ino in 1..=8 {
                let file = written(&rig, ino, 3 * MIB).await;
                let on = zones(&file).await;
                assert_eq!(on.len(), 1, "file {ino} lies on {on:?}");
                first.extend(on);
            }
            for zone in 1..=4 {
                let count = first.iter().filter(|&&on| on == zone).count();
                assert_eq!(count, 2, "zone {zone} in {first:?}");
            }
            rig.finish(8192).await;
        });
    }
}

#[test]
fn small_files_share_a_zone_until_a_chunk_is_full() {
    run(2, setup(3, 16384), |rig| async move {
        let mut on = Vec::new();
        for ino in 1..=640 {
            let file = written(&rig, ino, MIB / 16).await;
            on.extend(zones(&file).await);
        }
        assert_eq!(on.len(), 640, "each on one zone");
        on.dedup();
        // 640 files of 16 blocks in chunks of 4096 blocks.
        assert_eq!(on.len(), 3, "{on:?}");
        assert_eq!(on.iter().collect::<BTreeSet<_>>().len(), 3, "{on:?}");
        rig.finish(16384).await;
    });
}

#[test]
fn striped_file_lies_on_all_zones_part_by_part() {
    run(3, setup(4, 8192), |rig| async move {
        *rig.server.placement.borrow_mut() = "policy=striping part=1M width=3".to_owned();
        let file = written(&rig, 5, 7 * MIB).await;
        // Inode 5 begins at the second of four zones.
        assert_eq!(zones(&file).await, [2, 3, 4, 2, 3, 4, 2]);
        let again = rig.file(6);
        again.fallocate(0, 0, 3 << 20).await.unwrap();
        again.flush().await.unwrap();
        assert_eq!(zones(&again).await, [3, 4, 1]);
        rig.finish(8192).await;
    });
}

#[test]
fn preallocated_parts_lie_on_their_zones_also_if_each_zone_has_many() {
    run(3, setup(4, 8192), |rig| async move {
        *rig.server.placement.borrow_mut() = "policy=striping part=1M width=3".to_owned();
        let file = rig.file(5);
        file.fallocate(0, 0, 24 << 20).await.unwrap();
        file.flush().await.unwrap();
        assert_eq!(zones(&file).await, [2, 3, 4].repeat(8));
        rig.finish(8192).await;
    });
}

#[test]
fn directory_with_zones_of_its_own_uses_no_other() {
    run(4, setup(4, 2048), |rig| async move {
        *rig.server.placement.borrow_mut() = "zones=2-3".to_owned();
        let mut used = BTreeSet::new();
        for ino in 1..=4 {
            used.extend(zones(&written(&rig, ino, 2 * MIB).await).await);
        }
        assert_eq!(used, BTreeSet::from([2, 3]));
        // These two are full at last, whatever room the others have.
        let file = rig.file(9);
        let mut at = 0;
        let fault = loop {
            match rig.write(&file, at, &[9; MIB]).await {
                Ok(_) => at += MIB as u64,
                Err(fault) => break fault,
            }
            assert!(at < 4 * 2048 * BLOCK_U64, "more than both zones have");
        };
        assert_eq!(fault, Fault::NoSpace);
        assert!(at >= 6 * MIB as u64, "only {at} bytes had room");
        *rig.server.placement.borrow_mut() = String::new();
        let free = rig.file(10);
        rig.write(&free, 0, &[1; 2 * MIB]).await.unwrap();
        free.flush().await.unwrap();
        let on = zones(&free).await;
        assert!(on.iter().all(|zone| [1, 4].contains(zone)), "{on:?}");
        rig.finish(2048).await;
    });
}

#[test]
fn full_zone_is_left_out() {
    for seed in 0..4 {
        run(seed, setup(3, 8192), |rig| async move {
            // Zone 2 has hardly any room.
            rig.server.now.borrow_mut().free.retain(|&(pag, block)| pag != 2 || block < 100);
            rig.server.durable.borrow_mut().free.retain(|&(pag, block)| pag != 2 || block < 100);
            let mut used = BTreeSet::new();
            for ino in 1..=6 {
                used.extend(zones(&written(&rig, ino, 3 * MIB).await).await);
            }
            assert!(used.contains(&1) && used.contains(&3), "{used:?}");
            rig.ctx.sync_all().await.unwrap();
            rig.ctx.return_pool().await;
        });
    }
}

#[test]
fn unreadable_layout_is_the_default_one() {
    run(0, setup(2, 2048), |rig| async move {
        *rig.server.placement.borrow_mut() = "policy=later".to_owned();
        let file = written(&rig, 1, 2 * MIB).await;
        assert_eq!(zones(&file).await.len(), 1);
        assert!(rig.server.log.borrow().iter().any(|line| line.contains("`later`")));
        assert!(rig.ctx.class(HOME, &[]).allows(PagId(1)));
        rig.finish(2048).await;
    });
}

#[test]
fn zone_whose_grant_others_used_up_is_not_full() {
    for seed in 0..4 {
        let setup = Setup { grant_max: 96, ..setup(3, 16384) };
        run(seed, setup, |rig| async move {
            *rig.server.placement.borrow_mut() = "policy=striping part=512K".to_owned();
            let rig = Rc::new(rig);
            let mut files = Vec::new();
            for ino in 1..=8 {
                let of = rig.clone();
                files.push(rig.env.spawn_join(async move { written(&of, ino, 6 * MIB).await }));
            }
            for file in files {
                let segments = file.await.layout().await.unwrap();
                let first = segments[0].pag.0 - 1;
                for segment in segments {
                    let part = (segment.file.0 / 128) as u16;
                    assert_eq!(segment.pag.0 - 1, (first + part) % 3, "seed {seed}: {segment:?}");
                }
            }
            rig.finish(16384).await;
        });
    }
}
