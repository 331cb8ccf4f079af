use types::{FileBlock, PagBlock, SegmentState};

use super::*;
use crate::handle::Mfs;
use crate::testing::{formatted_for_images, now, run};
use engine::format::features::{Feature, Features};

const OTHER: ShardId = ShardId(3);
/// The blocks that go and come.
const BLOCKS: u64 = 40;

fn segment(addr: u64, len: u64) -> Segment {
    let (file, addr) = (FileBlock(0), PagBlock(addr));
    Segment { file, len, pag: PagId(0), addr, state: SegmentState::Written }
}

fn world() -> Mfs {
    let mfs = formatted_for_images(20_000, Features::NONE.with(Feature::SHARDS));
    now(mfs.add_lent_space()).unwrap();
    mfs
}

/// The runs that the tree should have: the longest that there are.
fn runs(given: &[bool]) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::new();
    for block in (1..BLOCKS).filter(|&block| given[block as usize]) {
        match out.last_mut() {
            Some((start, len)) if *start + *len == block => *len += 1,
            _ => out.push((block, 1)),
        }
    }
    out
}

#[test]
fn what_went_and_came_in_any_order_is_kept_in_the_longest_runs() {
    let mfs = world();
    let (mut given, mut seed) = (vec![false; BLOCKS as usize], 7u64);
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    for round in 0..400 {
        let start = 1 + random(BLOCKS - 2);
        let is_given = given[start as usize];
        let most = 1 + random(5);
        let same = |block: &u64| *block < BLOCKS && given[*block as usize] == is_given;
        let len = (start..start + most).take_while(same).count() as u64;
        let it = segment(start, len);
        run(&mfs, |txn| match is_given {
            true => txn.space().receive(OTHER, &it),
            false => txn.space().give(OTHER, &it),
        });
        (start..start + len).for_each(|block| given[block as usize] = !is_given);
        let lent = run(&mfs, |txn| txn.space().lent());
        assert!(lent.iter().all(|(_, _, run)| (run.shard, run.sequence) == (OTHER, GIVEN)));
        let found: Vec<_> = lent.iter().map(|(_, start, run)| (start.0, run.len)).collect();
        assert_eq!(found, runs(&given), "round {round}");
    }
}

#[test]
fn blocks_of_others_neither_come_nor_go_twice() {
    let mfs = world();
    run(&mfs, |txn| txn.space().give(OTHER, &segment(10, 5)));
    let refused = |third, start, len| {
        now(mfs
            .run(engine::cost::Cost::STEP, |txn| txn.space().receive(third, &segment(start, len))))
        .is_err()
    };
    assert!(refused(ShardId(4), 10, 5), "another shard has them");
    assert!(refused(OTHER, 9, 2) && refused(OTHER, 14, 2) && refused(OTHER, 30, 1));
    let twice =
        now(mfs.run(engine::cost::Cost::STEP, |txn| txn.space().give(ShardId(4), &segment(14, 1))));
    assert!(twice.is_err());
    let may = |to, start| run(&mfs, |txn| txn.space().may_give(to, &segment(start, 1)));
    assert!(may(OTHER, 30).is_some_and(|zone| zone.id == PagId(0)));
}
