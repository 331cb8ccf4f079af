//! Labels of data devices: found damaged, and written anew.

use env::sim::SimWorld;
use label::Label;
use types::limits::BLOCK;
use types::{PagBlock, PagId};

use super::device_tests::{SMALL, WRITE, ZONE_BLOCKS, ZONES, populated, zone_label};
use super::tests::{Outcome, settled};
use super::{FsckOptions, Problem, ProblemKind, Subject, fsck, repair};

#[test]
pub(crate) fn damaged_labels_of_data_devices_are_written_anew() {
    a_label_of_a_data_device_is_written_anew_where_it_is_known_whose_it_was();
    a_damaged_copy_of_a_data_label_is_written_anew_from_the_other();
}

fn a_label_of_a_data_device_is_written_anew_where_it_is_known_whose_it_was() {
    let disk = populated();
    let whole = zone_label(PagId(4)).encode();
    type Change = fn(&mut [u8; BLOCK]);
    // What is left of the label, whether --relabel names the zone, whether the device is large
    // enough, and what is said of it; nothing is said of what is mended.
    let cases: [(Change, bool, bool, Option<&str>); 8] = [
        (|_| {}, true, true, None),
        (|block| block[100] ^= 1, false, true, None),
        (|block| block[..8].fill(0), false, true, None),
        (|block| block[100] ^= 1, true, false, Some("is smaller than the zone")),
        (|block| block[33] ^= 1, false, true, Some("`--relabel 4` says so")),
        (|block| block.fill(0), false, true, Some("`--relabel 4` says so")),
        (|block| block.fill(0), true, true, None),
        (|block| block.fill(0), true, false, Some("is smaller than the zone")),
    ];
    for (number, (change, relabel, large, left)) in cases.into_iter().enumerate() {
        let (disk, mut block) = (disk.fork(), whole);
        change(&mut block);
        let damaged = block != whole;
        let world = SimWorld::new(1);
        world.attach("meta", &disk);
        let end = if large { ZONE_BLOCKS } else { ZONE_BLOCKS - 1 } * BLOCK as u64;
        let zone = world.disk("zone4", end + BLOCK as u64);
        zone.poke(0, &block);
        zone.poke(end, &block);
        let relabel: &[PagId] = if relabel { &[PagId(4)] } else { &[] };
        let options = FsckOptions { zones: &ZONES[1..], relabel, ..SMALL };
        let (before, repaired, after) = world.run(|env| async move {
            let disk = env.open_disk("meta", WRITE).await.unwrap();
            let before = fsck(&env, &disk, options).await.unwrap().problems;
            let repaired = repair(&env, &disk, options).await.unwrap();
            (before, repaired, fsck(&env, &disk, options).await.unwrap().problems)
        });
        let subjects =
            |all: &[Problem]| -> Vec<_> { all.iter().map(|it| (it.kind, it.subject)).collect() };
        let it = (ProblemKind::DamagedDataLabel, Subject::Data(PagId(4), PagBlock(0)));
        let found = if damaged { vec![it] } else { vec![] };
        assert_eq!(subjects(&before), found, "{number}");
        assert_eq!(subjects(&repaired.found), found, "{number}");
        match left {
            None => {
                assert_eq!((repaired.left.problems, after), (vec![], vec![]), "{number}");
                assert_eq!(zone.peek(0, BLOCK), whole, "{number}");
                assert_eq!(zone.peek(end, BLOCK), whole, "{number}");
            }
            Some(text) => {
                let detail = &repaired.left.problems[0].detail;
                assert!(detail.contains(text), "{number}: {detail}");
                assert_eq!(
                    (subjects(&after), zone.peek(0, BLOCK)),
                    (vec![it], block.to_vec()),
                    "{number}"
                );
            }
        }
        assert_eq!(
            repaired.done.len(),
            usize::from(left.is_none()),
            "{number}: {:?}",
            repaired.done
        );
    }
    settled(ProblemKind::DamagedDataLabel, Outcome::Repaired);
}

fn a_damaged_copy_of_a_data_label_is_written_anew_from_the_other() {
    let disk = populated();
    for at in [0, ZONE_BLOCKS * BLOCK as u64] {
        let world = SimWorld::new(1);
        world.attach("meta", &disk);
        let zone = world.disk("zone4", (ZONE_BLOCKS + 1) * BLOCK as u64);
        label::put(&zone, &zone_label(PagId(4)));
        zone.poke(at, &[0xa5; BLOCK]);
        let options = FsckOptions { zones: &ZONES[1..], ..SMALL };
        let (before, repaired, after) = world.run(|env| async move {
            let disk = env.open_disk("meta", WRITE).await.unwrap();
            let before = fsck(&env, &disk, options).await.unwrap().problems;
            let repaired = repair(&env, &disk, options).await.unwrap();
            (before, repaired, fsck(&env, &disk, options).await.unwrap().problems)
        });
        let found: Vec<_> = before.iter().map(|it| (it.kind, it.subject)).collect();
        let it = (ProblemKind::DamagedDataLabelCopy, Subject::Data(PagId(4), PagBlock(0)));
        assert_eq!((found, after), (vec![it], vec![]), "at {at}");
        assert_eq!((repaired.found, repaired.left.problems), (before, vec![]), "at {at}");
        let now = Label { sequence: 2, ..zone_label(PagId(4)) };
        assert_eq!(Label::decode(&zone.peek(at, BLOCK)), Ok(now), "at {at}");
    }
    settled(ProblemKind::DamagedDataLabelCopy, Outcome::Repaired);
}
