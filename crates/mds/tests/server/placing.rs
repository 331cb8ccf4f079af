//! Places that the server chooses for clients that keep no blocks.

use proto::mds::*;
use proto::prealloc::{Behind, OdOptions, Policy};
use types::limits::PLACE_PIECES_MAX;
use types::*;

use crate::bed::*;

const INO: Ino = Ino(77);

fn piece(block: u64, len: u64) -> UnplacedPiece {
    UnplacedPiece { block: FileBlock(block), len, before: None, part: None }
}

fn place(pieces: Vec<UnplacedPiece>, policy: Policy, unreachable: Vec<PagId>) -> Op {
    let writer = Some((1, 1));
    Op::Place { ino: INO, pieces, writer, policy, hint: None, unreachable }
}

async fn places(c: &Client, pieces: Vec<UnplacedPiece>, policy: Policy) -> Vec<PagRun> {
    match c.call(place(pieces, policy, Vec::new())).await {
        Ok(OpReply::Space { runs, .. }) => runs,
        other => panic!("{other:?}"),
    }
}

fn blocks(runs: &[PagRun]) -> u64 {
    runs.iter().map(|run| run.len).sum()
}

async fn admin(bed: &Bed) -> Client {
    let admin = Client::new(bed.world.node("admin"));
    admin.connect_as(ClientId(0), 1, 1).await.unwrap();
    admin
}

/// Numbers of the first zone in the server's status: free blocks, blocks in windows, in pools.
async fn counts(admin: &Client) -> [u64; 3] {
    let Ok(OpReply::Text { text }) = admin.call(Op::Status {}).await else { panic!() };
    let zone = &text[text.find("\"pags\"").unwrap()..];
    ["\"free\":", "\"windows\":", "\"pooled\":"].map(|key| {
        let number = &zone[zone.find(key).unwrap() + key.len()..];
        let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    })
}

/// PROTOCOLS 6.9.
#[test]
fn clients_get_places_in_the_order_of_arrival_and_the_blocks_are_theirs() {
    run(|bed| async move {
        let (a, b) = (bed.client("a").await, bed.client("b").await);
        let mut all = Vec::new();
        for (at, len) in [(9, 3), (0, 2), (50, 4)] {
            for c in [&a, &b] {
                all.extend(
                    places(c, vec![piece(at, len), piece(at + 20, 1)], Policy::Vanilla).await,
                );
            }
        }
        assert_eq!(blocks(&all), 24);
        assert!(all.is_sorted_by(|x, y| x.addr.0 + x.len == y.addr.0), "{all:?}");
        let admin = admin(&bed).await;
        assert_eq!(counts(&admin).await[1..], [0, 24]);
        // The server remembers that they are the client's, not where it was going to place more.
        bed.restart().await;
        for c in [&a, &b] {
            assert_eq!(c.connect(c.id()).await.unwrap().state, RECOVERED);
            c.call(Op::ReclaimDone {}).await.unwrap();
        }
        let of_b = PagRun { len: 3, ..all[2].clone() };
        let back = |run: &PagRun| Op::ReturnSpace { runs: vec![run.clone()] };
        assert_eq!(a.call(back(&of_b)).await, Err(Fault::Invalid), "not its block");
        assert_eq!(b.call(back(&of_b)).await, Ok(OpReply::Done {}));
        let more = places(&a, vec![piece(900, 5)], Policy::Vanilla).await;
        let taken = |run: &PagRun| {
            all.iter().filter(|other| **other != of_b).any(|other| {
                run.addr.0 < other.addr.0 + other.len && other.addr.0 < run.addr.0 + run.len
            })
        };
        assert!(!more.iter().any(taken), "{more:?}");
    });
}

#[test]
fn windows_follow_streams_and_end_with_them() {
    run(|bed| async move {
        let (a, b, admin) = (bed.client("a").await, bed.client("b").await, admin(&bed).await);
        let mut ends: [Option<Behind>; 2] = [None; 2];
        let mut segments = 0;
        for round in 0..32 {
            for (index, c) in [&a, &b].into_iter().enumerate() {
                let at = FileBlock(index as u64 * 100_000 + 1 + round * 8);
                let piece = UnplacedPiece { block: at, len: 8, before: ends[index], part: None };
                let runs = places(c, vec![piece], Policy::default()).await;
                assert_eq!(blocks(&runs), 8);
                let continued = ends[index].is_some_and(|end| end.addr == runs[0].addr);
                segments += runs.len() - usize::from(continued);
                let PagRun { pag, addr, len } = runs.last().unwrap().clone();
                let addr = PagBlock(addr.0 + len);
                ends[index] = Some(Behind { block: FileBlock(at.0 + 8), pag, addr });
            }
        }
        assert!(segments <= 8, "{segments} segments of 64 writes");
        let [free, windows, pooled] = counts(&admin).await;
        assert!(windows > 0 && pooled == 512, "{windows} in windows");
        // Another client gets as much as is free, windows or not.
        a.call(Op::EndPlacing { ino: INO, handle: Some(9) }).await.unwrap();
        assert_eq!(counts(&admin).await, [free, windows, pooled], "another handle");
        a.call(Op::EndPlacing { ino: INO, handle: Some(1) }).await.unwrap();
        let left = counts(&admin).await[1];
        assert!(0 < left && left < windows, "{left} of {windows}");
        b.call(Op::Goodbye {}).await.unwrap();
        assert_eq!(counts(&admin).await[1..], [0, 256]);
    });
}

#[test]
fn windows_keep_no_block_from_anybody() {
    with_blocks(2000, |bed| async move {
        let (a, b, admin) = (bed.client("a").await, bed.client("b").await, admin(&bed).await);
        let mut got = 0;
        for at in [10, 18, 50] {
            got += blocks(&places(&a, vec![piece(at, 8)], Policy::default()).await);
        }
        assert!(counts(&admin).await[1] > 0);
        while counts(&admin).await[0] > 1 {
            got += blocks(&b.space(400).await.unwrap());
        }
        let last = places(&a, vec![piece(900, 1)], Policy::default()).await;
        assert_eq!(blocks(&last) + got, 1999, "block 0 is the label's");
    });
}

#[test]
fn grants_between_places_change_the_places_only() {
    run(|bed| async move {
        let (a, b) = (bed.client("a").await, bed.client("b").await);
        let mut all = Vec::new();
        for round in 0..20 {
            let policy = if round % 2 == 0 { Policy::default() } else { Policy::Reservation };
            all.extend(places(&a, vec![piece(10 + round * 16, 16)], policy).await);
            all.extend(b.space(5000).await.unwrap());
        }
        all.sort_by_key(|run| run.addr);
        assert_eq!(blocks(&all), 20 * 5016);
        assert!(all.is_sorted_by(|x, y| x.addr.0 + x.len <= y.addr.0), "{all:?}");
    });
}

#[test]
fn zone_out_of_service_gets_no_places_though_its_windows_are_known() {
    with_zones(2, |bed| async move {
        let (a, admin) = (bed.client("a").await, admin(&bed).await);
        let next = std::cell::Cell::new(1000);
        let ask = |hint, unreachable| {
            next.set(next.get() + 100);
            let (pieces, writer) = (vec![piece(next.get(), 8)], Some((1, 1)));
            Op::Place { ino: INO, pieces, writer, policy: Policy::default(), hint, unreachable }
        };
        let zone = async |op| match a.call(op).await {
            Ok(OpReply::Space { runs, .. }) => Ok(runs[0].pag.0),
            Ok(other) => panic!("{other:?}"),
            Err(fault) => Err(fault),
        };
        assert_eq!(zone(ask(Some(PagId(1)), Vec::new())).await, Ok(1));
        let set = |state| Op::SetZoneState { pag: PagId(1), state, only_from: Vec::new() };
        assert!(matches!(admin.call(set(1)).await, Ok(OpReply::Text { .. })));
        assert_eq!(zone(ask(Some(PagId(1)), Vec::new())).await, Ok(0));
        assert_eq!(zone(ask(None, vec![PagId(0)])).await, Err(Fault::NoSpace));
        assert!(matches!(admin.call(set(0)).await, Ok(OpReply::Text { .. })));
        assert_eq!(zone(ask(None, vec![PagId(0)])).await, Ok(1));
    });
}

#[test]
fn impossible_pieces_are_refused() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let ask = |pieces| c.call(place(pieces, Policy::Vanilla, Vec::new()));
        assert_eq!(ask(Vec::new()).await, Err(Fault::Invalid));
        assert_eq!(ask(vec![piece(1, 1), piece(9, 0)]).await, Err(Fault::Invalid));
        assert_eq!(ask(vec![piece(u64::MAX, 2)]).await, Err(Fault::Invalid));
        assert_eq!(ask(vec![piece(1 << 51, 1)]).await, Err(Fault::Invalid), "behind any file");
        assert_eq!(ask(vec![piece(0, 4 * limits::GRANT_BLOCKS + 1)]).await, Err(Fault::TooBig));
        let many = (0..=PLACE_PIECES_MAX as u64).map(|at| piece(2 * at, 1)).collect();
        assert_eq!(ask(many).await, Err(Fault::TooBig));
        let zones = vec![PagId(7); limits::PAGS_MAX + 1];
        let far_too_many = c.call(place(vec![piece(0, 1)], Policy::Vanilla, zones)).await;
        assert_eq!(far_too_many, Err(Fault::TooBig));
        let absurd = Policy::OnDemand(OdOptions { window_max: 1, scale: 64, ..Default::default() });
        assert_eq!(blocks(&places(&c, vec![piece(0, 9)], absurd).await), 9);
    });
}

/// PROTOCOLS 6.9.
#[test]
fn request_for_places_that_is_sent_again_gets_the_same_places() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let request = c.request(3, vec![place(vec![piece(4, 6)], Policy::default(), Vec::new())]);
        let reply = c.exchange(request.clone()).await.unwrap();
        let Ok(OpReply::Space { runs, .. }) = &reply.results[0] else { panic!("{reply:?}") };
        bed.restart().await;
        assert_eq!(c.connect(c.id()).await.unwrap().state, RECOVERED);
        let replay = Replay { transno: reply.transno, results: reply.results.clone() };
        let again = c.exchange(Request { replay: Some(replay), ..request }).await.unwrap();
        let Ok(OpReply::Space { runs: same, .. }) = &again.results[0] else { panic!("{again:?}") };
        assert_eq!(same, runs);
        c.call(Op::ReclaimDone {}).await.unwrap();
        assert_eq!(counts(&admin(&bed).await).await[1..], [0, 6]);
    });
}
