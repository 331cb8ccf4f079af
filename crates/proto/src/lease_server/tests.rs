use types::{BlockRange, HeldRange};

use super::*;
use crate::lease_client::Lease;

const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);
const NOBODY: ClientId = ClientId(0);
const F: Ino = Ino(77);

fn table() -> LeaseTable {
    LeaseTable::new(Epoch(3))
}

#[test]
fn writer_must_return_all_conflicting_rights() {
    let mut table = table();
    table.grant(A, F, Rights::DATA_X | Rights::ATTR | Rights::OPEN);
    assert_eq!(table.grantable(B, F, Rights::DATA_X | Rights::OPEN), Rights::OPEN);
    let recalls = table.recall(B, F, Rights::DATA_X.conflicts());
    assert_eq!(recalls.len(), 1);
    assert_eq!(recalls[0].take, Rights::DATA_X | Rights::DATA_S | Rights::ATTR);
    assert!(table.recall(B, F, Rights::DATA_X.conflicts()).is_empty(), "recalled once");
    assert!(table.give_back(A, F, recalls[0].seq, recalls[0].take, false, None));
    assert_eq!(table.rights(A, F), Rights::OPEN);
    table.grant(B, F, Rights::DATA_X);
    table.validate();
}

#[test]
fn writer_may_keep_reading_when_a_reader_comes() {
    let mut table = table();
    table.grant(A, F, Rights::DATA_X | Rights::ATTR);
    let recalls = table.recall(B, F, Rights::DATA_S.conflicts());
    assert_eq!(recalls[0].take, Rights::DATA_X);
    table.give_back(A, F, recalls[0].seq, Rights::DATA_X, false, None);
    assert_eq!(table.rights(A, F), Rights::DATA_S | Rights::ATTR);
    assert_eq!(table.grantable(B, F, Rights::DATA_S | Rights::ATTR), Rights::DATA_S | Rights::ATTR);
    table.validate();
}

#[test]
fn return_older_than_the_last_grant_changes_nothing() {
    let mut table = table();
    table.grant(A, F, Rights::ATTR);
    let old = table.held(A, F).seq;
    table.grant(A, F, Rights::DATA_S);
    assert!(!table.give_back(A, F, old, Rights::ATTR, false, None));
    assert_eq!(table.rights(A, F), Rights::ATTR | Rights::DATA_S);
}

#[test]
fn client_that_looks_up_a_file_gets_open_during_a_recall() {
    let (mut table, mut lease) = (table(), Lease::default());
    table.grant(A, F, Rights::ATTR);
    lease.granted(Rights::ATTR, table.held(A, F).seq);
    let first = table.recall(B, F, Rights::ATTR)[0];
    assert_eq!(table.grantable(A, F, Rights::OPEN), Rights::empty());
    let (new, repeated) = table.grant_open_on_lookup(A, F);
    let repeated = repeated.expect("the recall is repeated");
    assert!(new && repeated.take == Rights::ATTR && repeated.seq > first.seq);
    let reported = table.held(A, F);
    // The answer to the first recall is older than the grant, and ends nothing.
    lease.recalled(first.seq, first.take);
    lease.give(first.take);
    assert!(!table.give_back(A, F, first.seq, first.take, false, None));
    assert_eq!(table.awaited(B, F, Rights::ATTR), [A]);
    lease.granted(reported.rights, reported.seq);
    lease.recalled(repeated.seq, repeated.take);
    lease.give(repeated.take);
    assert!(table.give_back(A, F, repeated.seq, repeated.take, false, None));
    assert!(table.awaited(B, F, Rights::ATTR).is_empty());
    assert_eq!((table.rights(A, F), lease.rights()), (Rights::OPEN, Rights::OPEN));
    assert_eq!(table.grant_open_on_lookup(A, F), (false, None));
    assert_eq!(table.grant_open_on_lookup(B, F), (true, None));
    table.validate();
}

#[test]
fn client_gets_rights_that_the_server_already_records_as_held() {
    let (mut table, mut lease) = (table(), Lease::default());
    let whole = Rights::DATA_X | Rights::DATA_S;
    table.grant_requested(A, F, whole);
    lease.granted(whole, table.held(A, F).seq);
    let first = table.recall(B, F, whole)[0];
    lease.recalled(first.seq, first.take);
    lease.give(whole);
    table.give_back(A, F, first.seq, whole, false, None);
    // A part of the next grant is recalled before the client knows of the grant.
    table.grant(A, F, whole);
    let second = table.recall(B, F, Rights::DATA_X)[0];
    lease.recalled(second.seq, second.take);
    lease.give(second.take);
    table.give_back(A, F, second.seq, second.take, false, None);
    let held = table.held(A, F);
    lease.granted(held.rights, held.seq);
    assert!(held.rights.contains(Rights::DATA_S) && !lease.holds(Rights::DATA_S));
    table.grant_requested(A, F, Rights::DATA_S);
    let held = table.held(A, F);
    lease.granted(held.rights, held.seq);
    assert!(lease.holds(Rights::DATA_S));
    assert!(
        !table.give_back(A, F, second.seq, Rights::DATA_S, false, None),
        "a return from before"
    );
    table.validate();
}

#[test]
fn client_with_a_pending_recall_is_granted_nothing() {
    let mut table = table();
    table.grant(A, F, Rights::NAMES | Rights::ATTR);
    let recall = table.recall(B, F, Rights::NAMES)[0];
    assert!(table.grantable(A, F, Rights::OPEN).is_empty());
    assert_eq!(table.held(A, F).seq, recall.seq);
    assert_eq!(table.unanswered(A), vec![recall]);
    table.give_back(A, F, recall.seq, Rights::NAMES, false, None);
    assert!(table.unanswered(A).is_empty());
    assert!(!table.is_pending(&recall));
}

#[test]
fn holder_with_open_handles_answers_a_recall_and_keeps_open() {
    let mut table = table();
    table.grant(A, F, Rights::OPEN | Rights::ATTR);
    let recall = table.recall(B, F, Rights::OPEN | Rights::ATTR)[0];
    table.give_back(A, F, recall.seq, Rights::ATTR | Rights::OPEN, true, None);
    assert_eq!(table.rights(A, F), Rights::OPEN);
    assert!(table.unanswered(A).is_empty());
    table.validate();
}

#[test]
fn lease_sequences_of_a_later_epoch_are_higher() {
    let mut old = LeaseTable::new(Epoch(1));
    let mut new = LeaseTable::new(Epoch(2));
    for _ in 0..10 {
        old.grant(A, F, Rights::ATTR);
        old.drop_lease(A, F);
    }
    old.grant(A, F, Rights::ATTR);
    new.grant(A, F, Rights::ATTR);
    assert!(new.held(A, F).seq > old.held(A, F).seq);
}

#[test]
fn first_of_two_conflicting_reclaims_wins() {
    let mut table = table();
    assert!(table.reclaim(A, F, Rights::DATA_X | Rights::OPEN).is_empty());
    let refused = table.reclaim(B, F, Rights::DATA_S | Rights::OPEN);
    assert_eq!(refused, Rights::DATA_S);
    table.validate();
}

/// Random grants, recalls, returns and evictions against a plain list of ⟨client, inode, right⟩.
#[test]
fn lease_table_agrees_with_a_list_of_rights() {
    let mut state = 0x9876_5432_1234_5678u64;
    let mut next = move |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    let mut table = table();
    let mut model: Vec<(ClientId, Ino, Rights)> = Vec::new();
    let mut recalled: Vec<Recall> = Vec::new();
    let held = |model: &Vec<(ClientId, Ino, Rights)>, client, ino| {
        let mine = model.iter().filter(|(c, i, _)| (*c, *i) == (client, ino));
        mine.fold(Rights::empty(), |all, (_, _, r)| all | *r)
    };
    for _ in 0..30_000 {
        let client = ClientId(1 + next(4));
        let ino = Ino(10 + next(5));
        let rights = Rights::from_bits_truncate(next(32) as u8);
        match next(8) {
            0..=3 => {
                let granted = table.grantable(client, ino, rights);
                for (c, i, r) in &model {
                    assert!(*c == client || *i != ino || !r.conflicts().intersects(granted));
                }
                table.grant(client, ino, granted);
                model.push((client, ino, granted));
            }
            4 => recalled.extend(table.recall(client, ino, rights)),
            5 | 6 if !recalled.is_empty() => {
                let recall = recalled.swap_remove(next(recalled.len() as u64) as usize);
                let live = table.is_pending(&recall);
                let give = recall.take;
                let changed =
                    table.give_back(recall.client, recall.ino, recall.seq, give, false, None);
                assert!(!live || changed);
                if changed {
                    let give =
                        if give.contains(Rights::DATA_S) { give | Rights::DATA_X } else { give };
                    let mine =
                        model.iter_mut().filter(|m| (m.0, m.1) == (recall.client, recall.ino));
                    mine.for_each(|m| m.2 = m.2.difference(give));
                }
            }
            7 if next(20) == 0 => {
                table.drop_client(client);
                model.retain(|m| m.0 != client);
            }
            _ => {}
        }
        model.retain(|m| !m.2.is_empty());
        table.validate();
        assert_eq!(table.rights(client, ino), held(&model, client, ino));
    }
}

#[test]
fn coldest_leases_are_the_oldest_without_a_pending_recall() {
    let mut table = table();
    for n in 0..10 {
        table.grant(A, Ino(n + 1), Rights::ATTR | Rights::OPEN);
    }
    table.grant(B, F, Rights::ATTR);
    table.grant(A, Ino(1), Rights::DATA_S);
    let recall = table.recall_all(A, Ino(2)).unwrap();
    assert_eq!(recall.take, Rights::ATTR | Rights::OPEN);
    assert_eq!(table.recall_all(A, Ino(2)), None, "recalled once");
    assert_eq!(table.largest(), Some((A, 10)));
    assert_eq!(table.coldest(A, 3), [Ino(3), Ino(4), Ino(5)]);
    assert_eq!(table.coldest(A, 99).last(), Some(&Ino(1)));
    // The lease of a file that stays open becomes the newest, so it is not recalled at once.
    table.give_back(A, Ino(2), recall.seq, recall.take, true, None);
    assert_eq!(table.coldest(A, 99).last(), Some(&Ino(2)));
    assert!(table.coldest(ClientId(9), 3).is_empty());
    table.validate();
}

/// A client closes a file while grants on it are in flight. The reply to a return that crossed
/// them tells the client enough to give up `OPEN` in the end.
#[test]
fn return_that_crosses_grants_gives_up_open_in_the_end() {
    use crate::lease_client::Lease;
    let mut state = 0x1357_9bdf_0246_8aceu64;
    let mut next = move |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    let mut crossings = 0;
    for _ in 0..500 {
        let (mut table, mut lease) = (table(), Lease::default());
        table.grant(A, F, Rights::OPEN);
        let held = table.held(A, F);
        lease.granted(held.rights, held.seq);
        // Replies on their way to the client, in any order.
        let mut replies: Vec<LeaseState> = Vec::new();
        let mut grant = |table: &mut LeaseTable, replies: &mut Vec<LeaseState>| {
            let rights = [Rights::ATTR, Rights::DATA_S, Rights::empty()][next(3) as usize];
            let rights = table.grantable(A, F, rights);
            table.grant(A, F, rights);
            replies.push(table.held(A, F));
            next(3) == 0
        };
        loop {
            let (seq, give) = (lease.seq(), Rights::OPEN);
            lease.give(give);
            while !grant(&mut table, &mut replies) {}
            let unknown = table.newer_seq(A, F, seq);
            assert_eq!(table.give_back(A, F, seq, give, false, None), unknown.is_none());
            while let Some(held) = replies.pop() {
                lease.granted(held.rights, held.seq);
                lease.validate();
            }
            let Some(last) = unknown else { break };
            crossings += 1;
            assert_eq!(lease.seq(), last, "the replies carried it");
            assert!(lease.holds(Rights::OPEN), "still recorded, so still held");
        }
        assert!(!table.rights(A, F).contains(Rights::OPEN) && !lease.holds(Rights::OPEN));
    }
    assert!(crossings > 100);
}

#[test]
fn open_is_recalled_once_until_the_client_gets_it_again() {
    let mut table = table();
    table.grant(A, F, Rights::OPEN);
    let recalled = table.recall_open(NOBODY, F);
    assert_eq!(recalled.len(), 1);
    assert!(table.recall_open(NOBODY, F).is_empty(), "its recall is pending");
    table.give_back(A, F, recalled[0].seq, Rights::empty(), true, None);
    assert!(table.recall_open(NOBODY, F).is_empty(), "it returns it after the last close");
    // A client that gets OPEN later has not been asked.
    table.grant(B, F, Rights::OPEN);
    let recalled: Vec<ClientId> =
        table.recall_open(NOBODY, F).iter().map(|recall| recall.client).collect();
    assert_eq!(recalled, [B]);
    assert!(table.recall_open(B, F).is_empty());
    // A client that returned OPEN and got it again has not been asked either.
    table.grant(A, F, Rights::ATTR);
    let seq = table.held(A, F).seq;
    table.give_back(A, F, seq, Rights::OPEN, false, None);
    assert!(table.recall_open(NOBODY, F).is_empty());
    table.grant(A, F, Rights::OPEN);
    let recalled: Vec<ClientId> =
        table.recall_open(NOBODY, F).iter().map(|recall| recall.client).collect();
    assert_eq!(recalled, [A]);
    table.validate();
}

const P: Rights = Rights::DATA_P;

fn range(from: u64, to: u64, exclusive: bool) -> HeldRange {
    HeldRange { range: BlockRange::new(from, to), exclusive }
}

#[test]
fn ranges_of_two_clients_coexist_and_the_whole_replaces_them() {
    let mut table = table();
    assert!(table.grant_range(A, F, range(0, 16, true)));
    assert!(table.grant_range(B, F, range(16, 32, true)));
    assert!(!table.is_range_grantable(B, F, range(8, 24, false)));
    assert!(table.grantable(B, F, Rights::DATA_S | Rights::ATTR).is_empty());
    let recalls = table.recall_range(B, F, range(8, 24, true));
    let want = Recall {
        client: A,
        ino: F,
        seq: recalls[0].seq,
        take: P,
        range: Some(BlockRange::new(8, 24)),
    };
    assert_eq!(recalls, [want]);
    assert!(table.recall_range(B, F, range(8, 24, true)).is_empty(), "recalled once");
    assert!(
        !table.is_range_grantable(A, F, range(100, 101, true)),
        "a client with a pending recall gets nothing"
    );
    assert_eq!(table.unanswered(A), [want]);
    assert!(table.give_back(A, F, want.seq, P, false, want.range));
    assert_eq!(table.rights(A, F), P);
    assert!(
        table.keeps_range(A, F, range(0, 8, true)) && !table.holds_range(A, F, range(0, 9, false))
    );
    table.grant_range(B, F, range(8, 24, true));
    table.validate();
    let recalls = table.recall(A, F, Rights::DATA_X.conflicts());
    assert_eq!((recalls.len(), recalls[0].take, recalls[0].range), (1, P, None));
    assert_eq!(table.awaited(A, F, Rights::DATA_X.conflicts()), [B]);
    table.give_back(B, F, recalls[0].seq, P, false, None);
    table.grant(A, F, Rights::DATA_X);
    assert_eq!(table.rights(A, F), Rights::DATA_X | Rights::DATA_S, "instead of its ranges");
    assert_eq!(table.ranges_len(), 0);
    table.validate();
}

#[test]
fn granted_range_grows_up_to_other_holders() {
    let mut table = table();
    let limit = BlockRange::new(0, 256);
    let recalled = BlockRange::new(16, 32);
    assert_eq!(table.room_around(A, F, recalled, limit), limit);
    table.grant_range(B, F, range(40, 50, false));
    table.grant_range(A, F, range(100, 110, true));
    assert_eq!(table.room_around(A, F, recalled, limit), BlockRange::new(0, 40));
    assert_eq!(table.room_around(A, F, BlockRange::new(50, 60), limit), BlockRange::new(50, 256));
    assert_eq!(table.room_around(A, F, BlockRange::new(45, 60), limit), BlockRange::new(45, 60));
}

#[test]
fn further_recall_of_a_range_covers_both_and_needs_one_answer() {
    let mut table = table();
    table.grant_range(A, F, range(0, 100, true));
    let first = table.recall_range(B, F, range(0, 10, true))[0];
    let second = table.recall_range(B, F, range(20, 30, false))[0];
    assert_eq!(second.range, Some(BlockRange::new(0, 30)));
    assert!(!table.give_back(A, F, first.seq, P, false, first.range), "older than the second");
    let all = table.recall(B, F, P)[0];
    assert_eq!(all.range, None);
    assert!(table.recall_range(B, F, range(50, 60, true)).is_empty(), "all is being recalled");
    table.give_back(A, F, all.seq, P, false, None);
    assert!(table.rights(A, F).is_empty() && table.is_empty());
    table.validate();
}

#[test]
fn first_of_two_conflicting_range_reclaims_wins() {
    let mut table = table();
    assert!(table.reclaim(A, F, Rights::OPEN | P).is_empty());
    assert!(table.reclaim_ranges(A, F, &[range(0, 4, true), range(8, 12, true)]).is_empty());
    assert_eq!(
        table.reclaim_ranges(B, F, &[range(4, 6, true), range(10, 11, false)]),
        [range(10, 11, false)]
    );
    let first = table.held(A, F).seq;
    assert!(!table.give_back(A, F, first - 1, P, false, None), "of an earlier epoch");
    assert!(table.give_back(A, F, first, P, false, None));
    assert_eq!((table.rights(A, F), table.range_holders(F)), (Rights::OPEN, vec![B]));
    table.validate();
}

/// Clients acquire, use and return ranges and whole rights, and the server recalls them, with
/// messages in flight: the server records everything that a client relies on.
#[test]
fn no_client_relies_on_a_range_that_another_may_write() {
    use crate::lease_client::Lease;
    use crate::ranges::HeldRanges;
    let mut state = 0x0f1e_2d3c_4b5a_6978u64;
    let mut next = move |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    enum ToClient {
        Reply(LeaseState, Option<HeldRange>),
        Recall(Recall),
    }
    let mut shared = 0;
    for _ in 0..400 {
        let mut table = table();
        let mut clients = [
            (A, Lease::default(), HeldRanges::default()),
            (B, Lease::default(), HeldRanges::default()),
        ];
        let mut to_client: [Vec<ToClient>; 2] = Default::default();
        let mut to_server: [Vec<(u64, Rights, Option<BlockRange>)>; 2] = Default::default();
        for _ in 0..300 {
            let who = next(2) as usize;
            let (client, lease, ranges) = &mut clients[who];
            let client = *client;
            let from = next(20);
            let wanted = range(from, from + 1 + next(8), next(2) == 0);
            match next(6) {
                0 if table.is_range_grantable(client, F, wanted) => {
                    table.grant_range(client, F, wanted);
                    to_client[who].push(ToClient::Reply(table.held(client, F), Some(wanted)));
                }
                0 => {
                    let recalls = table.recall_range(client, F, wanted);
                    recalls
                        .into_iter()
                        .for_each(|recall| to_client[1 - who].push(ToClient::Recall(recall)));
                }
                1 => {
                    let keeps = table.keeps_range(client, F, wanted).then_some(wanted);
                    to_client[who].push(ToClient::Reply(table.held(client, F), keeps));
                }
                2 if next(4) == 0 => {
                    let recalls = table.recall(client, F, Rights::DATA_X.conflicts());
                    recalls
                        .into_iter()
                        .for_each(|recall| to_client[1 - who].push(ToClient::Recall(recall)));
                }
                // The ranges are clean when the client asks for the whole, and no answer to another
                // request is in flight.
                2 if ranges.is_empty()
                    && to_client[who].is_empty()
                    && table.grantable(client, F, Rights::DATA_X).contains(Rights::DATA_X) =>
                {
                    table.grant(client, F, Rights::DATA_X);
                    to_client[who].push(ToClient::Reply(table.held(client, F), None));
                }
                3 | 4 if !to_client[who].is_empty() => match to_client[who].remove(0) {
                    ToClient::Reply(held, range) => {
                        if lease.granted(held.rights, held.seq)
                            && lease.holds(P)
                            && let Some(range) = range
                        {
                            ranges.insert(range);
                        }
                    }
                    ToClient::Recall(Recall { seq, take, range, .. }) => {
                        lease.recalled(seq, take);
                        if take.contains(P) {
                            ranges.remove(range.unwrap_or(BlockRange::ALL));
                        }
                        // A client may not know all of its ranges, so it keeps the right after it
                        // returns one.
                        lease.give(if range.is_some() { take - P } else { take });
                        to_server[who].push((seq, take, range));
                    }
                },
                5 if !to_server[who].is_empty() => {
                    let (seq, give, range) = to_server[who].remove(0);
                    table.give_back(client, F, seq, give, false, range);
                }
                _ => {}
            }
            table.validate();
            for (client, lease, ranges) in &clients {
                lease.validate();
                for held in ranges.iter() {
                    assert!(table.holds_range(*client, F, held), "{client:?} {held:?} {table:?}");
                }
            }
            let both = clients.iter().all(|(_, _, ranges)| !ranges.is_empty());
            shared += u32::from(both);
        }
    }
    assert!(shared > 1000, "{shared}");
}
