//! Data space that a server without any gets from another one.

use std::collections::BTreeSet;

use commitment::Protocol;
use proto::mds::{Op, OpReply, PagInfo, PagRun};
use proto::message::Principal;
use proto::slots::SlotClass;
use session::client::{Call, Session};
use types::*;

use crate::bed::*;

/// Blocks of each zone that can be granted.
const ZONE: u64 = 4095;
/// Blocks that a lender keeps.
const KEPT: u64 = 512;
/// Nobody waits longer for blocks that there are none of.
const PATIENCE: Duration = Duration::from_secs(20);

/// A block of a zone.
type Block = (PagId, u64);

impl Client {
    async fn grant(&self, shard: u8) -> Result<Vec<PagRun>, Fault> {
        let op = Op::Space { hint: None, blocks: 1 << 20, unreachable: Vec::new() };
        match self.call_at(shard, op).await? {
            OpReply::Space { runs, .. } => Ok(runs),
            reply => panic!("{reply:?}"),
        }
    }

    /// Takes all blocks that the server grants, and adds them to `all`, which has none of them.
    async fn fill(&self, bed: &Bed, shard: u8, all: &mut BTreeSet<Block>) -> u64 {
        let before = all.len();
        loop {
            let began = bed.env.now();
            let granted = self.grant(shard).await;
            assert!(bed.env.now().since(began) < PATIENCE, "it took too long");
            match granted {
                Ok(runs) => take(&runs, all),
                Err(fault) => {
                    assert_eq!(fault, Fault::NoSpace);
                    return (all.len() - before) as u64;
                }
            }
        }
    }
}

fn take(runs: &[PagRun], all: &mut BTreeSet<Block>) {
    for run in runs {
        let mut blocks = run.addr.0..run.addr.0 + run.len;
        assert!(blocks.all(|at| at > 0 && all.insert((run.pag, at))), "{run:?} was granted before");
    }
}

/// Asks for a loan as the server of a shard does.
async fn ask(
    session: &Session<proto::mds::Mds>,
    shard: u8,
    sequence: u32,
) -> Result<(PagInfo, Vec<PagRun>), Fault> {
    let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
    let ops = vec![Op::Lend { shard, sequence, blocks: 100 }];
    let call = Call { ops, principal, sync: false, class: SlotClass::Ordinary };
    match session.call(call).await?.results[0].clone()? {
        OpReply::Lent { zone, start: 0, runs } => Ok((zone, runs)),
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn server_without_space_gets_some_until_all_are_full() {
    run(71, 2, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        let mut all = BTreeSet::new();
        assert_eq!(c.fill(&bed, 1, &mut all).await, 2 * ZONE - KEPT);
        assert_eq!(c.fill(&bed, 0, &mut all).await, KEPT, "what the lender has kept");
        for shard in [0, 1] {
            assert_eq!(c.grant(shard).await, Err(Fault::NoSpace));
        }
        assert!(bed.logged("has lent"));
    });
}

#[test]
fn lent_space_stays_lent_when_servers_start_anew() {
    run(72, 3, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        let mut all = BTreeSet::new();
        while all.iter().all(|(pag, _)| *pag == PagId(1)) {
            take(&c.grant(1).await.unwrap(), &mut all);
        }
        for shard in [1, 0, 2] {
            bed.kill(shard);
            bed.start(shard).await;
            bed.env.sleep(Duration::from_secs(8)).await;
        }
        // Sessions begin anew, and pools are kept for those that were there.
        let late = bed.client("late").await;
        for shard in [1, 0, 2] {
            late.fill(&bed, shard, &mut all).await;
        }
        assert!(all.len() as u64 <= 3 * ZONE);
        let borrowed = all.iter().filter(|(pag, _)| *pag != PagId(1)).count() as u64;
        assert!(borrowed > ZONE, "{borrowed}");
    });
}

#[test]
fn loan_that_was_not_heard_of_is_asked_for_again() {
    run(73, 2, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        let other = bed.server_session(0).await;
        let (zone, lost) = ask(&other, 1, 1).await.unwrap();
        assert_eq!(ask(&other, 1, 1).await, Ok((zone.clone(), lost.clone())));
        assert_eq!((zone.id, zone.uuid, zone.path.as_str()), (PagId(0), Uuid([100; 16]), "data0"));
        bed.kill(0);
        bed.start(0).await;
        let other = bed.server_session(0).await;
        assert_eq!(ask(&other, 1, 1).await, Ok((zone, lost.clone())));
        let mut all = BTreeSet::new();
        assert_eq!(c.fill(&bed, 1, &mut all).await, 2 * ZONE - KEPT);
        let mut blocks = lost.iter().flat_map(|run| run.addr.0..run.addr.0 + run.len);
        assert!(blocks.all(|at| all.contains(&(PagId(0), at))), "none of it is lost");
    });
}

#[test]
fn server_that_is_away_lends_nothing_and_nobody_waits_for_it() {
    run(74, 2, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        let mut all = BTreeSet::new();
        bed.kill(0);
        assert_eq!(c.fill(&bed, 1, &mut all).await, ZONE);
        bed.start(0).await;
        bed.env.sleep(Duration::from_secs(8)).await;
        assert_eq!(c.fill(&bed, 1, &mut all).await, ZONE - KEPT);
    });
}

#[test]
fn loan_that_may_not_be_asked_for_is_refused() {
    run(75, 3, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        let lend = |shard, sequence| Op::Lend { shard, sequence, blocks: 100 };
        assert!(c.call_at(0, lend(1, 1)).await.is_err(), "by a client");
        for (shard, sequence, fault) in [
            (0, 1, Fault::Protocol),
            (9, 1, Fault::Protocol),
            (1, 0, Fault::Invalid),
            (1, 2, Fault::Invalid),
        ] {
            let other = bed.server_session(0).await;
            assert_eq!(ask(&other, shard, sequence).await, Err(fault), "{shard} {sequence}");
        }
        let other = bed.server_session(0).await;
        ask(&other, 1, 1).await.unwrap();
        assert_eq!(ask(&other, 2, 1).await, Err(Fault::Protocol), "the session is of shard 1");
    });
}
