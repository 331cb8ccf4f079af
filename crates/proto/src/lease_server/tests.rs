use types::{BlockRange, Part};

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
fn a_writer_is_asked_for_everything_that_conflicts() {
    let mut table = table();
    table.grant(A, F, Rights::DATA_X | Rights::ATTR | Rights::OPEN);
    assert_eq!(table.grantable(B, F, Rights::DATA_X | Rights::OPEN), Rights::OPEN);
    let recalls = table.recall(B, F, Rights::DATA_X.conflicts());
    assert_eq!(recalls.len(), 1);
    assert_eq!(recalls[0].take, Rights::DATA_X | Rights::DATA_S | Rights::ATTR);
    assert!(table.recall(B, F, Rights::DATA_X.conflicts()).is_empty(), "asked once");
    assert!(table.give_back(A, F, recalls[0].seq, recalls[0].take, false, None));
    assert_eq!(table.rights(A, F), Rights::OPEN);
    table.grant(B, F, Rights::DATA_X);
    table.validate();
}

#[test]
fn a_writer_may_keep_reading_when_a_reader_comes() {
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
fn a_return_that_does_not_know_the_last_grant_changes_nothing() {
    let mut table = table();
    table.grant(A, F, Rights::ATTR);
    let old = table.held(A, F).seq;
    table.grant(A, F, Rights::DATA_S);
    assert!(!table.give_back(A, F, old, Rights::ATTR, false, None));
    assert_eq!(table.rights(A, F), Rights::ATTR | Rights::DATA_S);
}

#[test]
fn who_finds_a_file_may_open_it_also_while_other_rights_are_asked_back() {
    let (mut table, mut lease) = (table(), Lease::default());
    table.grant(A, F, Rights::ATTR);
    lease.granted(Rights::ATTR, table.held(A, F).seq);
    let first = table.recall(B, F, Rights::ATTR)[0];
    assert_eq!(table.grantable(A, F, Rights::OPEN), Rights::empty());
    let (new, again) = table.grant_found(A, F);
    let again = again.expect("the recall is made anew");
    assert!(new && again.take == Rights::ATTR && again.seq > first.seq);
    let told = table.held(A, F);
    // The answer to the first recall does not know the grant, and ends nothing.
    lease.recalled(first.seq, first.take);
    lease.give(first.take);
    assert!(!table.give_back(A, F, first.seq, first.take, false, None));
    assert_eq!(table.awaited(B, F, Rights::ATTR), [A]);
    lease.granted(told.rights, told.seq);
    lease.recalled(again.seq, again.take);
    lease.give(again.take);
    assert!(table.give_back(A, F, again.seq, again.take, false, None));
    assert!(table.awaited(B, F, Rights::ATTR).is_empty());
    assert_eq!((table.rights(A, F), lease.rights()), (Rights::OPEN, Rights::OPEN));
    assert_eq!(table.grant_found(A, F), (false, None));
    assert_eq!(table.grant_found(B, F), (true, None));
    table.validate();
}

#[test]
fn who_asks_for_what_it_is_counted_to_hold_gets_it() {
    let (mut table, mut lease) = (table(), Lease::default());
    let whole = Rights::DATA_X | Rights::DATA_S;
    table.grant_asked(A, F, whole);
    lease.granted(whole, table.held(A, F).seq);
    let first = table.recall(B, F, whole)[0];
    lease.recalled(first.seq, first.take);
    lease.give(whole);
    table.give_back(A, F, first.seq, whole, false, None);
    // It does not hear of the next grant before that is asked back in part.
    table.grant(A, F, whole);
    let second = table.recall(B, F, Rights::DATA_X)[0];
    lease.recalled(second.seq, second.take);
    lease.give(second.take);
    table.give_back(A, F, second.seq, second.take, false, None);
    let held = table.held(A, F);
    lease.granted(held.rights, held.seq);
    assert!(held.rights.contains(Rights::DATA_S) && !lease.holds(Rights::DATA_S));
    table.grant_asked(A, F, Rights::DATA_S);
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
fn nothing_is_granted_to_a_client_that_is_being_asked() {
    let mut table = table();
    table.grant(A, F, Rights::NAMES | Rights::ATTR);
    let recall = table.recall(B, F, Rights::NAMES)[0];
    assert!(table.grantable(A, F, Rights::OPEN).is_empty());
    assert_eq!(table.held(A, F).seq, recall.seq);
    assert_eq!(table.unanswered(A), vec![recall]);
    table.give_back(A, F, recall.seq, Rights::NAMES, false, None);
    assert!(table.unanswered(A).is_empty());
    assert!(!table.is_asked(&recall));
}

#[test]
fn a_holder_with_open_handles_answers_and_keeps_open() {
    let mut table = table();
    table.grant(A, F, Rights::OPEN | Rights::ATTR);
    let recall = table.recall(B, F, Rights::OPEN | Rights::ATTR)[0];
    table.give_back(A, F, recall.seq, Rights::ATTR | Rights::OPEN, true, None);
    assert_eq!(table.rights(A, F), Rights::OPEN);
    assert!(table.unanswered(A).is_empty());
    table.validate();
}

#[test]
fn sequences_of_a_later_epoch_are_higher() {
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
fn of_two_conflicting_claims_after_a_restart_the_first_wins() {
    let mut table = table();
    assert!(table.reclaim(A, F, Rights::DATA_X | Rights::OPEN).is_empty());
    let refused = table.reclaim(B, F, Rights::DATA_S | Rights::OPEN);
    assert_eq!(refused, Rights::DATA_S);
    table.validate();
}

/// Random grants, recalls, returns and deaths against a plain list of ⟨client, inode, right⟩.
#[test]
fn the_table_agrees_with_a_list_of_rights() {
    let mut state = 0x9876_5432_1234_5678u64;
    let mut next = move |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    let mut table = table();
    let mut model: Vec<(ClientId, Ino, Rights)> = Vec::new();
    let mut asked: Vec<Recall> = Vec::new();
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
            4 => asked.extend(table.recall(client, ino, rights)),
            5 | 6 if !asked.is_empty() => {
                let recall = asked.swap_remove(next(asked.len() as u64) as usize);
                let live = table.is_asked(&recall);
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
fn the_coldest_leases_are_those_granted_longest_ago_and_not_asked_back() {
    let mut table = table();
    for n in 0..10 {
        table.grant(A, Ino(n + 1), Rights::ATTR | Rights::OPEN);
    }
    table.grant(B, F, Rights::ATTR);
    table.grant(A, Ino(1), Rights::DATA_S);
    let recall = table.recall_all(A, Ino(2)).unwrap();
    assert_eq!(recall.take, Rights::ATTR | Rights::OPEN);
    assert_eq!(table.recall_all(A, Ino(2)), None, "asked once");
    assert_eq!(table.largest(), Some((A, 10)));
    assert_eq!(table.coldest(A, 3), [Ino(3), Ino(4), Ino(5)]);
    assert_eq!(table.coldest(A, 99).last(), Some(&Ino(1)));
    // A file that stays open is not asked for again at once.
    table.give_back(A, Ino(2), recall.seq, recall.take, true, None);
    assert_eq!(table.coldest(A, 99).last(), Some(&Ino(2)));
    assert!(table.coldest(ClientId(9), 3).is_empty());
    table.validate();
}

/// A client that closes a file while grants on it are under way: what the server says of a return
/// that crossed them is enough to give `OPEN` up in the end.
#[test]
fn whatever_crosses_a_return_the_right_is_given_up_in_the_end() {
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
        // Replies on their way to the client, whatever order they come in.
        let mut replies: Vec<Held> = Vec::new();
        let mut grant = |table: &mut LeaseTable, replies: &mut Vec<Held>| {
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
            let unknown = table.unknown_to(A, F, seq);
            assert_eq!(table.give_back(A, F, seq, give, false, None), unknown.is_none());
            while let Some(held) = replies.pop() {
                lease.granted(held.rights, held.seq);
                lease.validate();
            }
            let Some(last) = unknown else { break };
            crossings += 1;
            assert_eq!(lease.seq(), last, "the answers told it");
            assert!(lease.holds(Rights::OPEN), "still counted, so still held");
        }
        assert!(!table.rights(A, F).contains(Rights::OPEN) && !lease.holds(Rights::OPEN));
    }
    assert!(crossings > 100);
}

#[test]
fn who_knows_that_open_is_wanted_back_is_not_asked_again_until_it_has_it_anew() {
    let mut table = table();
    table.grant(A, F, Rights::OPEN);
    let asked = table.recall_open(NOBODY, F);
    assert_eq!(asked.len(), 1);
    assert!(table.recall_open(NOBODY, F).is_empty(), "it is asked");
    table.give_back(A, F, asked[0].seq, Rights::empty(), true, None);
    assert!(table.recall_open(NOBODY, F).is_empty(), "it owes it");
    // Who comes later was not asked.
    table.grant(B, F, Rights::OPEN);
    let asked: Vec<ClientId> =
        table.recall_open(NOBODY, F).iter().map(|recall| recall.client).collect();
    assert_eq!(asked, [B]);
    assert!(table.recall_open(B, F).is_empty());
    // What it has given back and got again it does not owe.
    table.grant(A, F, Rights::ATTR);
    let seq = table.held(A, F).seq;
    table.give_back(A, F, seq, Rights::OPEN, false, None);
    assert!(table.recall_open(NOBODY, F).is_empty());
    table.grant(A, F, Rights::OPEN);
    let asked: Vec<ClientId> =
        table.recall_open(NOBODY, F).iter().map(|recall| recall.client).collect();
    assert_eq!(asked, [A]);
    table.validate();
}

const P: Rights = Rights::DATA_P;

fn part(from: u64, to: u64, exclusive: bool) -> Part {
    Part { range: BlockRange::new(from, to), exclusive }
}

#[test]
fn parts_of_two_clients_stand_side_by_side_and_the_whole_takes_all() {
    let mut table = table();
    assert!(table.grant_part(A, F, part(0, 16, true)));
    assert!(table.grant_part(B, F, part(16, 32, true)));
    assert!(!table.is_part_grantable(B, F, part(8, 24, false)));
    assert!(table.grantable(B, F, Rights::DATA_S | Rights::ATTR).is_empty());
    let recalls = table.recall_part(B, F, part(8, 24, true));
    let want = Recall {
        client: A,
        ino: F,
        seq: recalls[0].seq,
        take: P,
        part: Some(BlockRange::new(8, 24)),
    };
    assert_eq!(recalls, [want]);
    assert!(table.recall_part(B, F, part(8, 24, true)).is_empty(), "asked once");
    assert!(
        !table.is_part_grantable(A, F, part(100, 101, true)),
        "nothing is given to who is asked"
    );
    assert_eq!(table.unanswered(A), [want]);
    assert!(table.give_back(A, F, want.seq, P, false, want.part));
    assert_eq!(table.rights(A, F), P);
    assert!(table.keeps_part(A, F, part(0, 8, true)) && !table.holds_part(A, F, part(0, 9, false)));
    table.grant_part(B, F, part(8, 24, true));
    table.validate();
    let recalls = table.recall(A, F, Rights::DATA_X.conflicts());
    assert_eq!((recalls.len(), recalls[0].take, recalls[0].part), (1, P, None));
    assert_eq!(table.awaited(A, F, Rights::DATA_X.conflicts()), [B]);
    table.give_back(B, F, recalls[0].seq, P, false, None);
    table.grant(A, F, Rights::DATA_X);
    assert_eq!(table.rights(A, F), Rights::DATA_X | Rights::DATA_S, "instead of its parts");
    assert_eq!(table.parts_len(), 0);
    table.validate();
}

#[test]
fn a_part_grows_as_far_as_nobody_else_has_anything() {
    let mut table = table();
    let limit = BlockRange::new(0, 256);
    let asked = BlockRange::new(16, 32);
    assert_eq!(table.room_around(A, F, asked, limit), limit);
    table.grant_part(B, F, part(40, 50, false));
    table.grant_part(A, F, part(100, 110, true));
    assert_eq!(table.room_around(A, F, asked, limit), BlockRange::new(0, 40));
    assert_eq!(table.room_around(A, F, BlockRange::new(50, 60), limit), BlockRange::new(50, 256));
    assert_eq!(table.room_around(A, F, BlockRange::new(45, 60), limit), BlockRange::new(45, 60));
}

#[test]
fn a_further_recall_of_a_part_asks_for_both_and_ends_with_the_answer_to_both() {
    let mut table = table();
    table.grant_part(A, F, part(0, 100, true));
    let first = table.recall_part(B, F, part(0, 10, true))[0];
    let second = table.recall_part(B, F, part(20, 30, false))[0];
    assert_eq!(second.part, Some(BlockRange::new(0, 30)));
    assert!(!table.give_back(A, F, first.seq, P, false, first.part), "it did not know the second");
    let all = table.recall(B, F, P)[0];
    assert_eq!(all.part, None);
    assert!(table.recall_part(B, F, part(50, 60, true)).is_empty(), "everything is asked back");
    table.give_back(A, F, all.seq, P, false, None);
    assert!(table.rights(A, F).is_empty() && table.is_empty());
    table.validate();
}

#[test]
fn of_two_conflicting_claims_on_a_part_the_first_wins() {
    let mut table = table();
    assert!(table.reclaim(A, F, Rights::OPEN | P).is_empty());
    assert!(table.reclaim_parts(A, F, &[part(0, 4, true), part(8, 12, true)]).is_empty());
    assert_eq!(
        table.reclaim_parts(B, F, &[part(4, 6, true), part(10, 11, false)]),
        [part(10, 11, false)]
    );
    let first = table.held(A, F).seq;
    assert!(!table.give_back(A, F, first - 1, P, false, None), "of an earlier epoch");
    assert!(table.give_back(A, F, first, P, false, None));
    assert_eq!((table.rights(A, F), table.part_holders(F)), (Rights::OPEN, vec![B]));
    table.validate();
}

/// Clients that grant, use, recall and return parts and whole rights with messages under way: what
/// a client relies on, the server counts as the client's.
#[test]
fn whatever_crosses_no_client_relies_on_a_part_that_another_may_change() {
    use crate::lease_client::Lease;
    use crate::parts::Parts;
    let mut state = 0x0f1e_2d3c_4b5a_6978u64;
    let mut next = move |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    enum Down {
        Told(Held, Option<Part>),
        Recalled(Recall),
    }
    let mut shared = 0;
    for _ in 0..400 {
        let mut table = table();
        let mut clients =
            [(A, Lease::default(), Parts::default()), (B, Lease::default(), Parts::default())];
        let mut down: [Vec<Down>; 2] = Default::default();
        let mut up: [Vec<(u64, Rights, Option<BlockRange>)>; 2] = Default::default();
        for _ in 0..300 {
            let who = next(2) as usize;
            let (client, lease, parts) = &mut clients[who];
            let client = *client;
            let from = next(20);
            let wanted = part(from, from + 1 + next(8), next(2) == 0);
            match next(6) {
                0 if table.is_part_grantable(client, F, wanted) => {
                    table.grant_part(client, F, wanted);
                    down[who].push(Down::Told(table.held(client, F), Some(wanted)));
                }
                0 => {
                    let recalls = table.recall_part(client, F, wanted);
                    recalls
                        .into_iter()
                        .for_each(|recall| down[1 - who].push(Down::Recalled(recall)));
                }
                1 => {
                    let keeps = table.keeps_part(client, F, wanted).then_some(wanted);
                    down[who].push(Down::Told(table.held(client, F), keeps));
                }
                2 if next(4) == 0 => {
                    let recalls = table.recall(client, F, Rights::DATA_X.conflicts());
                    recalls
                        .into_iter()
                        .for_each(|recall| down[1 - who].push(Down::Recalled(recall)));
                }
                // Parts are clean when the whole is asked for, and no answer to another request is
                // under way.
                2 if parts.is_empty()
                    && down[who].is_empty()
                    && table.grantable(client, F, Rights::DATA_X).contains(Rights::DATA_X) =>
                {
                    table.grant(client, F, Rights::DATA_X);
                    down[who].push(Down::Told(table.held(client, F), None));
                }
                3 | 4 if !down[who].is_empty() => match down[who].remove(0) {
                    Down::Told(held, told) => {
                        if lease.granted(held.rights, held.seq)
                            && lease.holds(P)
                            && let Some(told) = told
                        {
                            parts.insert(told);
                        }
                    }
                    Down::Recalled(Recall { seq, take, part, .. }) => {
                        lease.recalled(seq, take);
                        if take.contains(P) {
                            parts.remove(part.unwrap_or(BlockRange::ALL));
                        }
                        // A client may not know of all its parts, so it keeps the right with the
                        // last of them.
                        lease.give(if part.is_some() { take - P } else { take });
                        up[who].push((seq, take, part));
                    }
                },
                5 if !up[who].is_empty() => {
                    let (seq, give, part) = up[who].remove(0);
                    table.give_back(client, F, seq, give, false, part);
                }
                _ => {}
            }
            table.validate();
            for (client, lease, parts) in &clients {
                lease.validate();
                for held in parts.iter() {
                    assert!(table.holds_part(*client, F, held), "{client:?} {held:?} {table:?}");
                }
            }
            let both = clients.iter().all(|(_, _, parts)| !parts.is_empty());
            shared += u32::from(both);
        }
    }
    assert!(shared > 1000, "{shared}");
}
