//! Every run of a small world of leases: one server that may die, two clients, one inode, and
//! messages that overtake each other. It is small enough to explore every state.
//!
//! In every state:
//! - two clients never rely on conflicting rights at the same time;
//! - the server records everything that a client relies on.
//!
//! In every state without messages in flight, no recall waits for an answer.
//!
//! Planted bugs show that the walk detects violations: it must find each.

use redbud_proto::lease_client::Lease;
use redbud_proto::lease_server::LeaseTable;
#[cfg(debug_assertions)]
use types::plant::plant;
use types::{Bug, ClientId, Epoch, HashSet, Ino, Rights, planted};

const INO: Ino = Ino(7);
/// The client at index 0 or 1.
const fn client(at: usize) -> ClientId {
    ClientId(at as u64 + 1)
}

/// The messages in flight between the server and one client, unordered.
#[derive(Clone, Debug, Default)]
struct Wire {
    /// Replies: rights held, sequence, and whether the client asked for it before it gave up
    /// rights that it accepts only from answers to newer requests.
    replies: Vec<(Rights, u64, bool)>,
    /// Recalls: sequence, what to give up.
    recalls: Vec<(u64, Rights)>,
    /// Recalls that came and are not answered yet: the client is writing back pages and data.
    answering: Vec<(u64, Rights)>,
    /// Returns: sequence, what is given up.
    returns: Vec<(u64, Rights)>,
}

#[derive(Clone)]
struct World {
    server: LeaseTable,
    clients: [Lease; 2],
    wires: [Wire; 2],
    /// The rights that each client still wants to ask for. The flag of each: the client has already
    /// asked, and given up such rights since.
    wishes: [Vec<(Rights, bool)>; 2],
    /// The number of times that each client may still return everything on its own.
    trims: [u8; 2],
    /// The number of times that a connection may still break: messages are lost or sent again.
    breaks: u8,
    /// The number of times that the server may still die; the next one knows what clients reclaim.
    deaths: u8,
    epoch: Epoch,
}

/// The rights that a client believes after a reply, as `client/src/inode.rs` does.
fn believed(lease: &Lease, rights: Rights, (seq, old): (u64, bool)) -> Rights {
    let mut rights = rights;
    if old {
        let kept = if seq == lease.seq() { lease.rights() } else { Rights::empty() };
        rights = (rights - SOFT) | (rights & kept & SOFT);
    }
    rights | (lease.rights() & SOFT)
}

impl World {
    fn new(wishes: [Vec<Rights>; 2], trims: u8, breaks: u8) -> World {
        World {
            server: LeaseTable::new(Epoch(1)),
            clients: Default::default(),
            wires: Default::default(),
            wishes: wishes.map(|all| all.into_iter().map(|want| (want, false)).collect()),
            trims: [trims; 2],
            breaks,
            deaths: 0,
            epoch: Epoch(1),
        }
    }

    fn with_deaths(self, deaths: u8) -> World {
        World { deaths, ..self }
    }

    /// The server dies. Its answers and recalls are lost, and the clients repeat their requests.
    /// Both clients reclaim what they hold, and then resend returns as they were.
    fn server_dies(&self) -> World {
        let mut world = self.clone();
        world.deaths -= 1;
        world.epoch.0 += 1;
        world.server = LeaseTable::new(world.epoch);
        for at in 0..2 {
            let wire = &mut world.wires[at];
            wire.recalls.clear();
            let unanswered = wire.replies.drain(..).map(|(rights, _, old)| (rights, old));
            let wishes: Vec<(Rights, bool)> = unanswered.take(1).collect();
            world.wishes[at].splice(0..0, wishes);
            world.clients[at].reclaim(world.epoch);
            let refused = world.server.reclaim(client(at), INO, world.clients[at].rights());
            assert!(refused.is_empty(), "{world:?}");
        }
        world
    }

    /// All possible next states.
    fn next(&self) -> Vec<World> {
        let mut out = Vec::new();
        if self.deaths > 0 {
            out.push(self.server_dies());
        }
        for at in 0..2 {
            self.server_handles_wish(at, &mut out);
            for n in 0..self.wires[at].replies.len() {
                let mut world = self.clone();
                let (rights, seq, old) = world.wires[at].replies.remove(n);
                world.clients[at].granted(believed(&world.clients[at], rights, (seq, old)), seq);
                out.push(world);
            }
            for n in 0..self.wires[at].recalls.len() {
                let mut world = self.clone();
                let (seq, take) = world.wires[at].recalls.remove(n);
                world.clients[at].recalled(seq, take);
                world.clients[at].give(take & SOFT);
                world.wires[at].answering.push((seq, take));
                if take.intersects(SOFT) {
                    world.wires[at].replies.iter_mut().for_each(|(.., old)| *old = true);
                    // It may have asked already for what it wants next.
                    let mut asked = world.clone();
                    if let Some((_, old)) = asked.wishes[at].first_mut() {
                        *old = true;
                        out.push(asked);
                    }
                }
                out.push(world);
            }
            for n in 0..self.wires[at].answering.len() {
                out.push(self.client_answers(at, n));
            }
            for n in 0..self.wires[at].returns.len() {
                let mut world = self.clone();
                let (seq, give) = world.wires[at].returns.remove(n);
                world.server.give_back(client(at), INO, seq, give, false, None);
                out.push(world);
            }
            let held = self.clients[at].rights();
            if self.trims[at] > 0 && !held.is_empty() {
                let mut world = self.clone();
                world.trims[at] -= 1;
                world.clients[at].give(held);
                let seq = world.clients[at].seq();
                world.wires[at].returns.push((seq, held));
                out.push(world);
            }
            if self.breaks > 0 {
                // Replies and recalls are sent again with their current content; returns are resent
                // as they were.
                let mut world = self.clone();
                world.breaks -= 1;
                if !world.wires[at].replies.is_empty() {
                    let held = world.server.held(client(at), INO);
                    let old = world.wires[at].replies.iter().any(|(.., old)| *old);
                    world.wires[at].replies = vec![(held.rights, held.seq, old)];
                }
                let unanswered = world.server.unanswered(client(at));
                world.wires[at].recalls =
                    unanswered.into_iter().map(|recall| (recall.seq, recall.take)).collect();
                out.push(world);
            }
        }
        out
    }

    /// A client answers a recall, as `client/src/recall.rs` does. It keeps what a newly started
    /// server has granted since. It gives up the rights that the answer names, under the sequence
    /// that the answer names.
    fn client_answers(&self, at: usize, nth: usize) -> World {
        let mut world = self.clone();
        let (seq, take) = world.wires[at].answering.remove(nth);
        let lease = &mut world.clients[at];
        lease.give(take & Rights::WHOLE);
        let last = lease.seq();
        let regranted = if last > seq { lease.rights() & SOFT } else { Rights::empty() };
        let give = take - regranted;
        if !planted(Bug::ReturnKept) {
            lease.give(give & SOFT);
        }
        world.wires[at].returns.push((last.max(seq), give));
        world
    }

    /// The server handles the first wish of the client: it grants it, or recalls conflicting
    /// rights.
    fn server_handles_wish(&self, at: usize, out: &mut Vec<World>) {
        let Some(&(want, old)) = self.wishes[at].first() else { return };
        let mut world = self.clone();
        if self.server.grantable(client(at), INO, want).contains(want) {
            world.wishes[at].remove(0);
            // Other rights of a reply are granted in passing, not on request.
            match want.intersects(Rights::WHOLE) {
                true => world.server.grant_requested(client(at), INO, want),
                false => world.server.grant(client(at), INO, want),
            }
            let held = world.server.held(client(at), INO);
            world.wires[at].replies.push((held.rights, held.seq, old));
            out.push(world);
            return;
        }
        let recalls = world.server.recall(client(at), INO, want.conflicts());
        if recalls.is_empty() {
            return;
        }
        for recall in recalls {
            let to = recall.client.0 as usize - 1;
            world.wires[to].recalls.push((recall.seq, recall.take));
        }
        out.push(world);
    }

    fn check(&self) {
        self.server.validate();
        for at in 0..2 {
            let relied = self.clients[at].rights().closed();
            let recorded = self.server.rights(client(at), INO).closed();
            assert!(recorded.contains(relied), "relied on, not recorded: {self:?}");
            let other = self.clients[1 - at].rights().closed();
            assert!(!relied.conflicts().intersects(other), "both rely: {self:?}");
        }
    }

    fn is_quiet(&self) -> bool {
        self.wires.iter().all(|w| {
            w.replies.is_empty()
                && w.recalls.is_empty()
                && w.answering.is_empty()
                && w.returns.is_empty()
        })
    }

    /// The state with sequences replaced by their rank, so that equal states have equal keys, and
    /// with lists behind their lengths, so that different states have different ones.
    fn key(&self) -> Vec<u8> {
        let mut seqs: Vec<u64> = Vec::new();
        for at in 0..2 {
            seqs.push(self.clients[at].seq());
            seqs.push(self.server.held(client(at), INO).seq);
            seqs.extend(self.server.unanswered(client(at)).iter().map(|recall| recall.seq));
            let wire = &self.wires[at];
            seqs.extend(wire.replies.iter().map(|(_, seq, _)| *seq));
            let requests = wire.recalls.iter().chain(&wire.answering).chain(&wire.returns);
            seqs.extend(requests.map(|(seq, _)| *seq));
        }
        seqs.sort_unstable();
        seqs.dedup();
        let rank = |seq: u64| seqs.binary_search(&seq).expect("collected above") as u8;
        let mut key = vec![self.breaks, self.deaths];
        for at in 0..2 {
            let (lease, wire) = (self.clients[at], &self.wires[at]);
            let held = self.server.held(client(at), INO);
            key.extend([self.trims[at], rank(lease.seq()), lease.rights().bits()]);
            key.extend([lease.given_up().bits(), rank(held.seq), held.rights.bits()]);
            let bits = |(seq, rights): &(u64, Rights)| [rank(*seq), rights.bits(), 0];
            let asked = self.server.unanswered(client(at));
            put(&mut key, asked.iter().map(|asked| bits(&(asked.seq, asked.take))).collect());
            let wishes = self.wishes[at].iter().map(|(r, old)| [r.bits(), u8::from(*old), 0]);
            put(&mut key, wishes.collect());
            let replies =
                wire.replies.iter().map(|(r, s, old)| [rank(*s), r.bits(), (*old).into()]);
            put(&mut key, sorted(replies.collect()));
            for unordered in [&wire.recalls, &wire.answering, &wire.returns] {
                put(&mut key, sorted(unordered.iter().map(bits).collect()));
            }
        }
        key
    }
}

fn sorted(mut list: Vec<[u8; 3]>) -> Vec<[u8; 3]> {
    list.sort_unstable();
    list
}

/// Adds a list behind its length.
fn put(key: &mut Vec<u8>, list: Vec<[u8; 3]>) {
    key.push(list.len() as u8);
    key.extend(list.into_iter().flatten());
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "clients {:?}, server {:?}", self.clients, self.server)?;
        write!(f, "in flight {:?}, wishes {:?}", self.wires, self.wishes)
    }
}

/// Walks every reachable state; returns their number.
fn walk(first: World) -> usize {
    let mut seen = HashSet::from_iter([first.key()]);
    let mut pending = vec![first];
    while let Some(world) = pending.pop() {
        world.check();
        let next = world.next();
        if world.is_quiet() {
            for at in 0..2 {
                assert!(world.server.unanswered(client(at)).is_empty(), "unanswered: {world:?}");
            }
            let done = world.wishes.iter().all(Vec::is_empty);
            assert!(done || !next.is_empty(), "no progress possible: {world:?}");
        }
        pending.extend(next.into_iter().filter(|world| seen.insert(world.key())));
    }
    seen.len()
}

/// Rights that a client gives up as soon as they are recalled.
const SOFT: Rights = Rights::ATTR.union(Rights::NAMES);
const S: Rights = Rights::DATA_S;
const X: Rights = Rights::DATA_X;
const A: Rights = Rights::ATTR;

#[test]
fn leases_hold_for_readers_and_writers_in_every_message_order() {
    let states = walk(World::new([vec![X, S, X], vec![S, X]], 1, 0));
    assert!(states > 1000, "{states} states");
}

#[test]
fn leases_hold_for_attributes_and_data_over_broken_connections() {
    let states = walk(World::new([vec![A, X], vec![S | A, X]], 1, 2));
    assert!(states > 1000, "{states} states");
}

#[test]
fn leases_hold_when_the_server_dies_twice_and_returns_outlive_it() {
    let worlds = [
        ([vec![X, A], vec![S]], 1),
        ([vec![A, X], vec![X]], 1),
        ([vec![A | X, A, A], vec![A | X]], 0),
    ];
    for (wishes, trims) in worlds {
        let states = walk(World::new(wishes, trims, 0).with_deaths(2));
        assert!(states > 1000, "{states} states");
    }
}

/// Walks worlds like those above, which hold without a bug, one after the other until one shows a
/// violation.
#[cfg(debug_assertions)]
fn violation_found_by_a_walk() -> Option<String> {
    let worlds = [
        World::new([vec![X, S, X], vec![S, X]], 1, 0),
        World::new([vec![A, X], vec![S | A, X]], 1, 2),
        World::new([vec![X, A], vec![S]], 1, 0).with_deaths(2),
        World::new([vec![A | X, A, A], vec![A | X]], 0, 0).with_deaths(1),
    ];
    worlds.into_iter().find_map(|world| {
        let walked = std::panic::catch_unwind(|| walk(world));
        walked.err().map(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_default()
        })
    })
}

#[test]
#[cfg(debug_assertions)]
fn every_planted_bug_of_leases_is_found_by_a_walk() {
    let table = [
        (Bug::OlderGrantTaken, "relied on, not recorded"),
        (Bug::EarlyRecallForgotten, "relied on, not recorded"),
        (Bug::UnawareReturnTaken, "relied on, not recorded"),
        (Bug::RightsGivenTwice, "Holders"),
        (Bug::ReturnKept, "relied on, not recorded"),
    ];
    for (bug, says) in table {
        let guard = plant(bug);
        let shown = violation_found_by_a_walk();
        drop(guard);
        assert!(shown.as_ref().is_some_and(|text| text.contains(says)), "{bug:?}: {shown:?}");
    }
}
