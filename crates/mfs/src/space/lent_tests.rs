//! Loans between two shards.

use types::{Fault, PagBlock, PagId, ShardId};

use super::{LOAN_RUNS, Loan};
use crate::format::space::{PagFormat, PagUse, ZoneKind};
use crate::handle::Mfs;
use crate::testing::{formatted, now, run};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::Stop;
use types::Uuid;

const BORROWER: ShardId = ShardId(1);
const LENDER: ShardId = ShardId(3);

fn shard() -> Mfs {
    let mfs = formatted();
    now(mfs.add_lent_space()).unwrap();
    mfs
}

fn fault<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> Fault {
    now(mfs.run(Cost::STEP, body)).err().expect("a fault").fault()
}

fn free(mfs: &Mfs) -> Vec<(PagId, u64)> {
    run(mfs, |txn| Ok(txn.space().pags()?.iter().map(|pag| (pag.id, pag.free)).collect()))
}

fn blocks(loan: &Loan) -> u64 {
    loan.runs.iter().map(|(_, len)| len).sum()
}

#[test]
fn loan_that_is_asked_for_again_is_the_same_one() {
    let mfs = shard();
    let first = run(&mfs, |txn| txn.space().lend(BORROWER, 1, 100));
    let left = free(&mfs);
    assert_eq!(run(&mfs, |txn| txn.space().lend(BORROWER, 1, 7000)), first);
    assert_eq!(free(&mfs), left, "it takes nothing");
    assert_eq!(blocks(&first), 9_999 / 4, "there is plenty");
    // Another shard has numbers of its own.
    let other = run(&mfs, |txn| txn.space().lend(ShardId(2), 1, 100));
    let second = run(&mfs, |txn| txn.space().lend(BORROWER, 2, 100));
    assert!(other != first && second != first && second != other);
    for sequence in [0, 1, 4, u32::MAX] {
        assert_eq!(fault(&mfs, |txn| txn.space().lend(BORROWER, sequence, 1)), Fault::Invalid);
    }
    assert_eq!(fault(&mfs, |txn| txn.space().lend(ShardId(0), 1, 1)), Fault::Invalid, "itself");
}

#[test]
fn loan_that_was_not_entered_is_of_another_zone_if_its_own_is_lost() {
    let mfs = shard();
    let first = run(&mfs, |txn| txn.space().lend(BORROWER, 1, 100));
    run(&mfs, |txn| txn.space().set_pag_use(first.zone.id, PagUse::Lost));
    let again = run(&mfs, |txn| txn.space().lend(BORROWER, 1, 100));
    assert_ne!(again.zone.id, first.zone.id);
    let lent = run(&mfs, |txn| txn.space().lent());
    assert!(lent.iter().all(|(pag, ..)| *pag == again.zone.id), "{lent:?}");
    let zones = free(&mfs);
    assert_eq!(zones.iter().find(|(id, _)| *id == first.zone.id).unwrap().1, 9_999);
    // With no zone left the loan stays as it is.
    run(&mfs, |txn| txn.space().set_pag_use(again.zone.id, PagUse::Lost));
    assert_eq!(fault(&mfs, |txn| txn.space().lend(BORROWER, 1, 100)), Fault::NoSpace);
    assert_eq!(run(&mfs, |txn| txn.space().lent()), lent);
}

#[test]
fn lender_keeps_a_part_of_each_zone() {
    let mfs = shard();
    let mut sum = 0;
    for sequence in 1.. {
        match now(mfs.run(Cost::STEP, |txn| txn.space().lend(BORROWER, sequence, 100))) {
            Ok((loan, _)) => sum += blocks(&loan),
            Err(error) => {
                assert_eq!(error.fault(), Fault::NoSpace);
                break;
            }
        }
    }
    assert_eq!(free(&mfs), [(PagId(0), 1250), (PagId(1), 1250)]);
    assert_eq!(sum, 2 * (9_999 - 1250));
    let by_zone = run(&mfs, |txn| txn.space().lent_by_zone());
    assert_eq!(by_zone[&PagId(1)][&BORROWER], 9_999 - 1250);
}

#[test]
fn scattered_space_is_lent_in_few_runs_and_no_zone_out_of_service() {
    let mfs = shard();
    run(&mfs, |txn| txn.space().set_pag_use(PagId(1), PagUse::Draining));
    let client = run(&mfs, |txn| txn.new_client(b"c"));
    let granted = run(&mfs, |txn| txn.space().grant(client, None, 9_999));
    let (pag, start, _) = granted[0];
    for n in 0..700 {
        let at = PagBlock(start.0 + 10 * n);
        run(&mfs, |txn| txn.space().pool_return(client, pag, at, 5));
    }
    let loan = run(&mfs, |txn| txn.space().lend(BORROWER, 1, 1000));
    assert_eq!((loan.zone.id, loan.runs.len()), (PagId(0), LOAN_RUNS));
    assert_eq!(blocks(&loan), 5 * LOAN_RUNS as u64);
    assert_eq!(run(&mfs, |txn| txn.space().lend(BORROWER, 1, 1000)), loan);
    run(&mfs, |txn| txn.space().set_pag_use(PagId(0), PagUse::Lost));
    assert_eq!(fault(&mfs, |txn| txn.space().lend(BORROWER, 2, 1)), Fault::NoSpace);
}

/// A loan of shard 3, of a zone of 1,000 blocks.
fn loan(runs: &[(u64, u64)]) -> Loan {
    let zone = PagFormat::whole(PagId(7), Uuid([77; 16]), 1000);
    Loan { zone, runs: runs.iter().map(|&(start, len)| (PagBlock(start), len)).collect() }
}

#[test]
fn borrowed_space_is_granted_mapped_and_freed_as_own_space_and_not_lent_on() {
    let mfs = shard();
    assert_eq!(run(&mfs, |txn| txn.space().next_loan(LENDER)), 1);
    run(&mfs, |txn| txn.space().borrow(LENDER, 1, &loan(&[(100, 20), (200, 30)])));
    // The answer comes twice.
    run(&mfs, |txn| txn.space().borrow(LENDER, 1, &loan(&[(100, 20), (200, 30)])));
    assert_eq!(run(&mfs, |txn| txn.space().next_loan(LENDER)), 2);
    run(&mfs, |txn| txn.space().borrow(LENDER, 2, &loan(&[(120, 80)])));
    let zone = run(&mfs, |txn| Ok(txn.space().pags()?.into_iter().find(|it| it.id.0 == 7)));
    let zone = zone.unwrap();
    assert_eq!((zone.kind, zone.free, zone.total), (ZoneKind::Borrowed, 130, 999));
    let client = run(&mfs, |txn| txn.new_client(b"c"));
    let hint = Some(PagId(7));
    let own = run(&mfs, |txn| txn.space().grant(client, None, 10));
    assert_ne!(own[0].0, PagId(7), "own space goes first");
    let granted = run(&mfs, |txn| txn.space().grant(client, hint, 130));
    assert_eq!(granted, [(PagId(7), PagBlock(100), 130)], "the runs are joined");
    run(&mfs, |txn| txn.space().pool_return(client, PagId(7), PagBlock(100), 130));
    run(&mfs, |txn| txn.space().set_pag_use(PagId(0), PagUse::Lost));
    run(&mfs, |txn| txn.space().set_pag_use(PagId(1), PagUse::Lost));
    assert_eq!(fault(&mfs, |txn| txn.space().lend(BORROWER, 1, 1)), Fault::NoSpace);
}

#[test]
fn loan_that_cannot_be_is_refused_and_changes_nothing() {
    let mfs = shard();
    run(&mfs, |txn| txn.space().borrow(LENDER, 1, &loan(&[(100, 20)])));
    let before = (free(&mfs), run(&mfs, |txn| txn.space().lent()));
    let elsewhere = |zone: PagFormat| Loan { zone, ..loan(&[(500, 5)]) };
    let good = loan(&[(500, 5)]);
    let many: Vec<(u64, u64)> = (0..=LOAN_RUNS as u64).map(|n| (300 + 2 * n, 1)).collect();
    for (from, sequence, bad) in [
        (LENDER, 0, good.clone()),
        (LENDER, 3, good.clone()),
        (ShardId(0), 1, good.clone()),
        (LENDER, 2, loan(&[])),
        (LENDER, 2, loan(&many)),
        (LENDER, 2, loan(&[(0, 5)])),
        (LENDER, 2, loan(&[(998, 3)])),
        (LENDER, 2, loan(&[(5, 0)])),
        (LENDER, 2, loan(&[(5, u64::MAX)])),
        (LENDER, 2, loan(&[(90, 11)])),
        (LENDER, 2, loan(&[(119, 2)])),
        (LENDER, 2, elsewhere(PagFormat { uuid: Uuid([1; 16]), ..good.zone })),
        (LENDER, 2, elsewhere(PagFormat { id: PagId(1), ..good.zone })),
        (LENDER, 2, elsewhere(PagFormat { id: PagId(8), ..good.zone })),
        (LENDER, 2, elsewhere(PagFormat { blocks: 2000, ..good.zone })),
    ] {
        let refused = fault(&mfs, |txn| txn.space().borrow(from, sequence, &bad));
        assert_eq!(refused, Fault::Invalid, "{from} {sequence} {bad:?}");
    }
    assert_eq!((free(&mfs), run(&mfs, |txn| txn.space().lent())), before);
    let without = formatted();
    assert_eq!(fault(&without, |txn| txn.space().borrow(LENDER, 1, &good)), Fault::Invalid);
    assert_eq!(fault(&without, |txn| txn.space().lend(BORROWER, 1, 1)), Fault::Invalid);
}
