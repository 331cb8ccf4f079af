use env::sim::SimRng;
use types::Uuid;

use super::*;
use crate::format::space::PagFormat;
use crate::fsck::check;
use crate::handle::Mfs;
use crate::space::Loan;
use crate::testing::{formatted_for_images, now, run};
use engine::cost::Cost;
use engine::error::StoreError;
use engine::format::features::{Feature, Features};

const OTHER: ShardId = ShardId(3);
const ZONE: PagId = PagId(7);

/// A shard to which two loans of the other one's zone were made, side by side.
fn borrower() -> Mfs {
    let mfs = formatted_for_images(20_000, Features::NONE.with(Feature::SHARDS));
    now(mfs.add_lent_space()).unwrap();
    let zone = PagFormat::whole(ZONE, Uuid([9; 16]), 5000);
    for (sequence, runs) in [(1, vec![(10, 20), (50, 30)]), (2, vec![(30, 15)])] {
        let runs = runs.into_iter().map(|(start, len)| (PagBlock(start), len)).collect();
        let loan = Loan { zone, runs };
        run(&mfs, |txn| txn.space().borrow(OTHER, sequence, &loan));
    }
    mfs
}

fn free(mfs: &Mfs) -> Vec<(u64, u64)> {
    let runs = run(mfs, |txn| txn.space().free_lent(OTHER, ZONE));
    runs.into_iter().map(|(start, len)| (start.0, len)).collect()
}

/// Takes blocks as a grant does.
fn take(mfs: &Mfs, (start, len): (u64, u64)) {
    run(mfs, |txn| txn.space().take_run(ZONE, start, len));
}

#[test]
fn what_is_free_of_all_loans_can_go_back_run_by_run() {
    let mfs = borrower();
    // The first two loans adjoin, and so does what is free of them.
    assert_eq!(free(&mfs), [(10, 20), (30, 15), (50, 30)]);
    take(&mfs, (12, 3));
    take(&mfs, (28, 4));
    assert_eq!(free(&mfs), [(10, 2), (15, 13), (32, 13), (50, 30)]);
    let back = [(PagBlock(15), 13), (PagBlock(50), 9)];
    run(&mfs, |txn| txn.space().give_back(OTHER, (ZONE, &back), (2, 2)));
    assert_eq!(free(&mfs), [(10, 2), (32, 13), (59, 21)]);
    let lent: Vec<_> = run(&mfs, |txn| txn.space().lent());
    let lent: Vec<_> =
        lent.iter().map(|(_, start, run)| (start.0, run.len, run.sequence)).collect();
    assert_eq!(lent, [(10, 5, 1), (28, 2, 1), (30, 15, 2), (59, 21, 1)]);
    assert_eq!(run(&mfs, |txn| txn.space().free_lent(ShardId(4), ZONE)), []);
}

#[test]
fn what_is_in_use_or_of_another_shard_stays() {
    let mfs = borrower();
    take(&mfs, (12, 3));
    let try_back = |to, run: (u64, u64)| {
        let body = |txn: &mut crate::Txn<'_>| {
            let known = txn.space().last_had(to)?;
            txn.space().give_back(to, (ZONE, &[(PagBlock(run.0), run.1)]), (known, known))
        };
        match now(mfs.run(Cost::STEP, body)) {
            Err(StoreError::Fault(fault)) => fault,
            other => panic!("{other:?}"),
        }
    };
    for busy in [(11, 3), (12, 1), (1, 2), (79, 2)] {
        assert_eq!(try_back(OTHER, busy), Fault::Busy, "{busy:?}");
    }
    assert_eq!(try_back(ShardId(4), (50, 3)), Fault::Invalid);
    // Free, but of two loans.
    assert_eq!(try_back(OTHER, (28, 4)), Fault::Invalid);
    assert_eq!(free(&mfs).iter().map(|(_, len)| len).sum::<u64>(), 62);
}

#[test]
fn lender_and_borrower_agree_whatever_comes_back() {
    let lender = formatted_for_images(20_000, Features::NONE.with(Feature::SHARDS));
    now(lender.add_lent_space()).unwrap();
    let all = run(&lender, |txn| txn.space().pags()).iter().map(|pag| pag.free).sum::<u64>();
    let mut rng = SimRng::new(5);
    let mut lent: Vec<(PagId, u64, u64)> = Vec::new();
    for _ in 0..3 {
        let last = run(&lender, |txn| txn.space().lent());
        let last = last.iter().map(|(_, _, run)| run.sequence).max().unwrap_or(0);
        let loan = run(&lender, |txn| txn.space().lend(OTHER, last + 1, 100));
        lent.extend(loan.runs.iter().map(|(start, len)| (loan.zone.id, start.0, *len)));
        for _ in 0..20 {
            let at = rng.below(lent.len() as u64) as usize;
            let (zone, start, len) = lent.swap_remove(at);
            let from = rng.below(len);
            let count = 1 + rng.below(len - from);
            let back = [(PagBlock(start + from), count)];
            run(&lender, |txn| txn.space().take_back(OTHER, zone, &back));
            let rest = [(start, from), (start + from + count, len - from - count)];
            let rest = rest.into_iter().filter(|(_, len)| *len > 0);
            lent.extend(rest.map(|(start, len)| (zone, start, len)));
            if lent.is_empty() {
                break;
            }
        }
    }
    let mut found: Vec<_> = run(&lender, |txn| txn.space().lent())
        .iter()
        .map(|(zone, start, run)| (*zone, start.0, run.len))
        .collect();
    found.sort_unstable();
    lent.sort_unstable();
    assert_eq!(found, lent);
    for &(zone, start, len) in &lent {
        run(&lender, |txn| txn.space().take_back(OTHER, zone, &[(PagBlock(start), len)]));
    }
    let free = run(&lender, |txn| txn.space().pags()).iter().map(|pag| pag.free).sum::<u64>();
    assert_eq!(free, all);
    lender.forget_indexes();
    assert_eq!(now(check(&lender)).unwrap().problems, []);
}
