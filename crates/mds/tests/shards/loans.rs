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

impl Client {
    /// Has the server of shard 0 take back from another one what is free there.
    async fn take_back(&self, shard: u8) -> Result<OpReply, Fault> {
        self.call_at(0, Op::TakeBack { at: ROOT, pag: PagId(0), shard }).await
    }

    /// Gives up blocks of its pool at a server.
    async fn give_up(&self, shard: u8, blocks: &[Block]) {
        let run = |&(pag, at): &Block| PagRun { pag, addr: PagBlock(at), len: 1 };
        for part in blocks.chunks(16) {
            let op = Op::ReturnSpace { runs: part.iter().map(run).collect() };
            assert_eq!(self.call_at(shard, op).await, Ok(OpReply::Done {}));
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

/// A number of zone 0, as the server of a shard says, which may have borrowed it.
async fn number(bed: &Bed, shard: u8, key: &str) -> u64 {
    let said = bed.administer(shard, Op::Status {}).await;
    let Ok(OpReply::Text { text }) = said else { panic!("{said:?}") };
    let (_, zone) = text.split_once("\"pags\":[{\"id\":0,").expect("the first zone");
    let (_, number) = zone.split_once(&format!("{key}:")).unwrap_or(("", "0"));
    let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Free blocks of zone 0 at a shard.
async fn free(bed: &Bed, shard: u8) -> u64 {
    number(bed, shard, "\"free\"").await
}

/// Blocks of zone 0 that shard 1 has.
async fn lent(bed: &Bed) -> u64 {
    number(bed, 0, "\"lent\":[{\"shard\":1,\"blocks\"").await
}

/// Sets the state of zone 0 at the server of a shard.
async fn set_state(bed: &Bed, shard: u8, state: u16) {
    let op = Op::SetZoneState { pag: PagId(0), state, only_from: Vec::new() };
    let set = bed.administer(shard, op).await;
    let Ok(OpReply::Text { text }) = set else { panic!("{set:?}") };
    assert!(text.contains("before"), "{text}");
}

/// Waits until no operation of several servers is open.
async fn until_settled(bed: &Bed) {
    let began = bed.env.now();
    while (0..2).any(|shard| bed.joint(shard).open > 0) {
        assert!(bed.env.now().since(began) < PATIENCE, "it stays open");
        bed.env.sleep(Duration::from_millis(50)).await;
    }
}

/// Borrows blocks of shard 0 for shard 1, of which some become free there. Returns these. The zone
/// drains.
async fn borrow_some(bed: &Bed, c: &Client) -> Vec<Block> {
    let mut all = BTreeSet::new();
    while all.iter().filter(|(pag, _)| *pag == PagId(0)).count() < 200 {
        take(&c.grant(1).await.unwrap(), &mut all);
    }
    let lent: Vec<_> = all.into_iter().filter(|(pag, _)| *pag == PagId(0)).collect();
    let back: Vec<_> = lent.iter().copied().filter(|(_, at)| at % 8 < 5).collect();
    c.give_up(1, &back).await;
    for shard in [0, 1] {
        set_state(bed, shard, 1).await;
    }
    back
}

#[test]
fn lender_takes_back_what_is_free_there_and_lends_it_again() {
    for protocol in Protocol::ALL {
        run(76, 2, protocol, |bed| async move {
            let c = bed.client("c").await;
            let back = borrow_some(&bed, &c).await.len() as u64;
            let (before, there) = (free(&bed, 0).await, free(&bed, 1).await);
            assert!(there >= back, "{there} free, {back} given up");
            while free(&bed, 1).await > 0 {
                assert_eq!(c.take_back(1).await, Ok(OpReply::Done {}), "{protocol:?}");
            }
            assert_eq!(free(&bed, 0).await, before + there);
            // Nothing is free there any more.
            assert_eq!(c.take_back(1).await, Ok(OpReply::Done {}));
            assert_eq!((free(&bed, 0).await, free(&bed, 1).await), (before + there, 0));
            // Another loan, with the next number.
            set_state(&bed, 0, 0).await;
            set_state(&bed, 1, 0).await;
            let mut all = BTreeSet::new();
            take(&c.grant(1).await.unwrap(), &mut all);
            let lent: Vec<_> = all.into_iter().filter(|(pag, _)| *pag == PagId(0)).collect();
            assert!(!lent.is_empty());
            c.give_up(1, &lent).await;
            assert_eq!(c.take_back(1).await, Err(Fault::NotPermitted), "it is in service there");
            assert!(c.take_back(0).await.is_err(), "from itself");
            assert!(c.take_back(9).await.is_err(), "from nobody");
        });
    }
}

#[test]
fn loan_that_was_not_heard_of_goes_back_and_never_comes() {
    run(81, 2, Protocol::OnePhase, |bed| async move {
        let c = bed.client("c").await;
        let other = bed.server_session(0).await;
        let (_, runs) = ask(&other, 1, 1).await.unwrap();
        let blocks: u64 = runs.iter().map(|run| run.len).sum();
        assert_eq!(lent(&bed).await, blocks);
        set_state(&bed, 0, 1).await;
        assert_eq!(c.take_back(1).await, Ok(OpReply::Done {}));
        assert_eq!((lent(&bed).await, free(&bed, 0).await), (0, ZONE));
        set_state(&bed, 0, 0).await;
        bed.kill(1);
        bed.start(1).await;
        // The borrower asks for the loan after that.
        let c = bed.client("late").await;
        bed.env.sleep(Duration::from_secs(8)).await;
        let mut all = BTreeSet::new();
        assert_eq!(c.fill(&bed, 1, &mut all).await, 2 * ZONE - KEPT);
        assert!(bed.logged("(loan 2)"));
    });
}

#[test]
fn loans_have_new_numbers_also_when_all_went_back() {
    for protocol in Protocol::ALL {
        run(82, 2, protocol, |bed| async move {
            let c = bed.client("c").await;
            for round in 1..4 {
                let mut all = BTreeSet::new();
                c.fill(&bed, 1, &mut all).await;
                assert!(lent(&bed).await > 0, "{protocol:?} {round}");
                c.give_up(1, &all.into_iter().collect::<Vec<_>>()).await;
                set_state(&bed, 0, 1).await;
                set_state(&bed, 1, 1).await;
                while lent(&bed).await > 0 {
                    assert_eq!(c.take_back(1).await, Ok(OpReply::Done {}));
                }
                assert_eq!((free(&bed, 0).await, free(&bed, 1).await), (ZONE, 0));
                for shard in [0, 1] {
                    bed.kill(shard);
                    bed.start(shard).await;
                    c.call_at(shard, Op::Statfs {}).await.unwrap();
                }
                until_settled(&bed).await;
                // Only the lender hears that it is in service again.
                set_state(&bed, 0, 0).await;
            }
        });
    }
}

#[test]
fn servers_that_are_killed_while_space_goes_back_lose_none() {
    for (seed, protocol) in (77..).zip(Protocol::ALL) {
        for victims in [&[0][..], &[1], &[0, 1]] {
            for after in [2, 5, 9, 14] {
                run(seed, 2, protocol, |bed| async move {
                    let c = bed.client("c").await;
                    borrow_some(&bed, &c).await;
                    let sum = free(&bed, 0).await + free(&bed, 1).await;
                    assert!(free(&bed, 1).await > 100);
                    let (this, at) = (bed.clone(), Duration::from_millis(after));
                    bed.env.spawn(async move { this.restart_after(at, victims).await });
                    let left = lent(&bed).await - free(&bed, 1).await;
                    let mut tries = 0;
                    while lent(&bed).await > left {
                        tries += 1;
                        assert!(tries < 1000, "it does not end");
                        match c.take_back(1).await {
                            Ok(_) => {}
                            Err(fault) => assert_eq!(fault, Fault::Busy, "{protocol:?}"),
                        }
                    }
                    // Its recovery ends when its client is there.
                    c.call_at(1, Op::Statfs {}).await.unwrap();
                    until_settled(&bed).await;
                    assert_eq!(free(&bed, 0).await, sum, "{protocol:?} {victims:?} {after}");
                    // Loans go on.
                    set_state(&bed, 0, 0).await;
                    set_state(&bed, 1, 0).await;
                    c.fill(&bed, 1, &mut BTreeSet::new()).await;
                });
            }
        }
    }
}
