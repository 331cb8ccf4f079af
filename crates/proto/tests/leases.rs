//! Every run of a small world of leases: one server, two clients, one inode, and messages that
//! overtake each other at will, and a server that dies. Small enough to be walked whole.
//!
//! What must hold in every state:
//! - two clients never rely on conflicting rights at the same time;
//! - what a client relies on, the server counts as the client's;
//!
//! and in every state in which nothing is under way: no recall waits for an answer.
//!
//! That the walk can see is shown by bugs that are planted: each must be found.

use std::collections::BTreeSet;

use redbud_proto::lease_client::Lease;
use redbud_proto::lease_server::LeaseTable;
#[cfg(debug_assertions)]
use types::plant::plant;
use types::{Bug, ClientId, Epoch, Ino, Rights, planted};

const INO: Ino = Ino(7);
/// The client at index 0 or 1.
const fn client(at: usize) -> ClientId {
    ClientId(at as u64 + 1)
}

/// What is under way between the server and one client, in no order.
#[derive(Clone, Debug, Default)]
struct Wire {
    /// Replies: rights held, sequence, and whether it was asked for before rights were given up
    /// that the client takes from no answer to an older question.
    replies: Vec<(Rights, u64, bool)>,
    /// Recalls: sequence, what to give up.
    recalls: Vec<(u64, Rights)>,
    /// Recalls that came and are not answered yet: what lies in pages and on disks is being saved.
    saving: Vec<(u64, Rights)>,
    /// Returns: sequence, what is given up.
    returns: Vec<(u64, Rights)>,
}

#[derive(Clone)]
struct World {
    server: LeaseTable,
    clients: [Lease; 2],
    wires: [Wire; 2],
    /// What each client still wants to ask for; of each whether it has asked already, and given up
    /// such rights since.
    wishes: [Vec<(Rights, bool)>; 2],
    /// How often each client may still give everything back of its own accord.
    trims: [u8; 2],
    /// How often each connection may still break, and what was under way be lost or sent anew.
    breaks: u8,
    /// How often the server may still die: the next one knows what the clients reclaim.
    deaths: u8,
    epoch: Epoch,
}

/// What a client believes of the rights that a reply tells, as `client/src/inode.rs` does.
fn told(lease: &Lease, rights: Rights, (seq, old): (u64, bool)) -> Rights {
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

    /// The server dies. Its answers and recalls are lost, and what they answered is asked for
    /// again; returns are resent as they were, when both clients have reclaimed what they hold.
    fn dies(&self) -> World {
        let mut world = self.clone();
        world.deaths -= 1;
        world.epoch.0 += 1;
        world.server = LeaseTable::new(world.epoch);
        for at in 0..2 {
            let wire = &mut world.wires[at];
            wire.recalls.clear();
            let unheard = wire.replies.drain(..).map(|(rights, _, old)| (rights, old));
            let wishes: Vec<(Rights, bool)> = unheard.take(1).collect();
            world.wishes[at].splice(0..0, wishes);
            world.clients[at].reclaim(world.epoch);
            let refused = world.server.reclaim(client(at), INO, world.clients[at].rights());
            assert!(refused.is_empty(), "{world:?}");
        }
        world
    }

    /// All that can happen next.
    fn next(&self) -> Vec<World> {
        let mut out = Vec::new();
        if self.deaths > 0 {
            out.push(self.dies());
        }
        for at in 0..2 {
            self.asks(at, &mut out);
            for n in 0..self.wires[at].replies.len() {
                let mut world = self.clone();
                let (rights, seq, old) = world.wires[at].replies.remove(n);
                world.clients[at].granted(told(&world.clients[at], rights, (seq, old)), seq);
                out.push(world);
            }
            for n in 0..self.wires[at].recalls.len() {
                let mut world = self.clone();
                let (seq, take) = world.wires[at].recalls.remove(n);
                world.clients[at].recalled(seq, take);
                world.clients[at].give(take & SOFT);
                world.wires[at].saving.push((seq, take));
                if take.intersects(SOFT) {
                    world.wires[at].replies.iter_mut().for_each(|(.., old)| *old = true);
                    // What it wants next it has perhaps asked for.
                    let mut asked = world.clone();
                    if let Some((_, old)) = asked.wishes[at].first_mut() {
                        *old = true;
                        out.push(asked);
                    }
                }
                out.push(world);
            }
            for n in 0..self.wires[at].saving.len() {
                out.push(self.answers(at, n));
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
                // Replies are asked for again and recalls pushed again, as they are by then;
                // returns are resent as they were.
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

    /// A recall is answered, as `client/src/recall.rs` does: but for what a server that was started
    /// since has given anew, and what the answer names is given up under the sequence that it
    /// names.
    fn answers(&self, at: usize, nth: usize) -> World {
        let mut world = self.clone();
        let (seq, take) = world.wires[at].saving.remove(nth);
        let lease = &mut world.clients[at];
        lease.give(take & Rights::WHOLE);
        let last = lease.seq();
        let anew = if last > seq { lease.rights() & SOFT } else { Rights::empty() };
        let give = take - anew;
        if !planted(Bug::ReturnKept) {
            lease.give(give & SOFT);
        }
        world.wires[at].returns.push((last.max(seq), give));
        world
    }

    /// The server looks at what the client wants first: grants it, or recalls what stands in its
    /// way.
    fn asks(&self, at: usize, out: &mut Vec<World>) {
        let Some(&(want, old)) = self.wishes[at].first() else { return };
        let mut world = self.clone();
        if self.server.grantable(client(at), INO, want).contains(want) {
            world.wishes[at].remove(0);
            // What a reply tells in passing is granted, not asked for.
            match want.intersects(Rights::WHOLE) {
                true => world.server.grant_asked(client(at), INO, want),
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
            let counted = self.server.rights(client(at), INO).closed();
            assert!(counted.contains(relied), "relied on, not counted: {self:?}");
            let other = self.clients[1 - at].rights().closed();
            assert!(!relied.conflicts().intersects(other), "both rely: {self:?}");
        }
    }

    fn is_quiet(&self) -> bool {
        self.wires.iter().all(|w| {
            w.replies.is_empty()
                && w.recalls.is_empty()
                && w.saving.is_empty()
                && w.returns.is_empty()
        })
    }

    /// The state with sequences by their rank, so that equal states are found equal.
    fn key(&self) -> String {
        let mut seqs: Vec<u64> = Vec::new();
        for at in 0..2 {
            seqs.push(self.clients[at].seq());
            seqs.push(self.server.held(client(at), INO).seq);
            seqs.extend(self.server.unanswered(client(at)).iter().map(|recall| recall.seq));
            let wire = &self.wires[at];
            seqs.extend(wire.replies.iter().map(|(_, seq, _)| *seq));
            let told = wire.recalls.iter().chain(&wire.saving).chain(&wire.returns);
            seqs.extend(told.map(|(seq, _)| *seq));
        }
        seqs.sort_unstable();
        seqs.dedup();
        let rank = |seq: u64| seqs.binary_search(&seq).expect("collected above");
        let mut key = format!("{:?} {:?} {} {}", self.wishes, self.trims, self.breaks, self.deaths);
        for at in 0..2 {
            let lease = self.clients[at];
            let held = self.server.held(client(at), INO);
            let asked = self.server.unanswered(client(at));
            let wire = &self.wires[at];
            let mut replies: Vec<_> =
                wire.replies.iter().map(|(r, s, old)| (rank(*s), *r, *old)).collect();
            let mut recalls: Vec<_> = wire.recalls.iter().map(|(s, r)| (rank(*s), *r)).collect();
            let mut saving: Vec<_> = wire.saving.iter().map(|(s, r)| (rank(*s), *r)).collect();
            let mut returns: Vec<_> = wire.returns.iter().map(|(s, r)| (rank(*s), *r)).collect();
            replies.sort_unstable();
            recalls.sort_unstable();
            saving.sort_unstable();
            returns.sort_unstable();
            key += &format!(
                "|{} {:?} {:?} {} {asked:?} {replies:?} {recalls:?} {saving:?} {returns:?}",
                rank(lease.seq()),
                lease.rights(),
                lease.given(),
                rank(held.seq),
                asked = asked.iter().map(|r| (rank(r.seq), r.take)).collect::<Vec<_>>(),
            );
            key += &format!("{:?}", held.rights);
        }
        key
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "clients {:?}, server {:?}", self.clients, self.server)?;
        write!(f, "under way {:?}, wishes {:?}", self.wires, self.wishes)
    }
}

/// Walks every state that can be reached; how many there are.
fn walk(first: World) -> usize {
    let mut seen = BTreeSet::from([first.key()]);
    let mut pending = vec![first];
    while let Some(world) = pending.pop() {
        world.check();
        let next = world.next();
        if world.is_quiet() {
            for at in 0..2 {
                assert!(world.server.unanswered(client(at)).is_empty(), "unanswered: {world:?}");
            }
            let done = world.wishes.iter().all(Vec::is_empty);
            assert!(done || !next.is_empty(), "nobody goes on: {world:?}");
        }
        pending.extend(next.into_iter().filter(|world| seen.insert(world.key())));
    }
    seen.len()
}

/// What is given up at once when it is recalled.
const SOFT: Rights = Rights::ATTR.union(Rights::NAMES);
const S: Rights = Rights::DATA_S;
const X: Rights = Rights::DATA_X;
const A: Rights = Rights::ATTR;

#[test]
fn readers_and_writers_in_every_order_of_their_messages() {
    let states = walk(World::new([vec![X, S, X], vec![S, X]], 1, 0));
    assert!(states > 1000, "{states} states");
}

#[test]
fn attributes_and_data_with_connections_that_break() {
    let states = walk(World::new([vec![A, X], vec![S | A, X]], 1, 2));
    assert!(states > 1000, "{states} states");
}

#[test]
fn a_server_that_dies_twice_and_returns_that_outlive_it() {
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

/// The same worlds as above, one after the other, until one shows what is wrong with it.
#[cfg(debug_assertions)]
fn shown_by_a_walk() -> Option<String> {
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
fn every_planted_bug_of_leases_is_seen_by_a_walk() {
    assert_eq!(shown_by_a_walk(), None, "without a bug");
    let table = [
        (Bug::OlderGrantTaken, "relied on, not counted"),
        (Bug::EarlyRecallForgotten, "relied on, not counted"),
        (Bug::UnawareReturnTaken, "relied on, not counted"),
        (Bug::RightsGivenTwice, "Holders"),
        (Bug::ReturnKept, "relied on, not counted"),
    ];
    for (bug, says) in table {
        let guard = plant(bug);
        let shown = shown_by_a_walk();
        drop(guard);
        assert!(shown.as_ref().is_some_and(|text| text.contains(says)), "{bug:?}: {shown:?}");
    }
}
