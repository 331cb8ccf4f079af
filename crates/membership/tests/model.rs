//! All orders of looks, claims, openings, writes, kills and restarts of two servers, over the
//! shipped table and record: nothing acknowledged is lost, and no older epoch takes effect. Each
//! guard that is removed lets a state be reached where that does not hold.
#![allow(missing_docs, reason = "a test program has no users")]

use std::collections::{BTreeSet, VecDeque};

use redbud_membership::{Claim, Life, Member, Proof, Ready, Record, Seen, Step, Waiting, decide};
use types::{Epoch, Timestamp};

const SERVERS: usize = 2;
/// Bounds of the state space.
const CLAIMS_MAX: usize = 3;
const VALUES_MAX: u8 = 3;

/// What protects the metadata; each can be removed.
#[derive(Clone, Copy)]
struct Guards {
    /// A server that stands by waits for a proof of the owner's death.
    proof: bool,
    /// A claim replaces only the owner that was seen.
    compare: bool,
    /// What a dead owner has submitted has landed or failed before its death is proved.
    fence: bool,
    /// Redo skips groups of servers that had been replaced.
    stale: bool,
}

const ALL: Guards = Guards { proof: true, compare: true, fence: true, stale: true };

/// A group of the log: its epoch, and its value.
type Group = (u32, u8);

#[derive(Clone, Debug)]
enum Server {
    Down,
    Watching,
    Looked(Seen),
    Claimed(Epoch),
    /// Its epoch, and where its next group goes.
    Serving(u32, usize),
}

#[derive(Clone, Debug)]
struct World {
    record: Record,
    servers: [Server; SERVERS],
    /// A group that each has submitted, and where.
    flying: [Option<(usize, Group)>; SERVERS],
    log: Vec<Group>,
    /// Where the store's epochs began, oldest first.
    begun: Vec<(u32, usize)>,
    acknowledged: Vec<u8>,
    written: u8,
}

fn member(index: usize) -> Member {
    Member { host: "h".into(), pid: index as u32, nonce: 0, address: index.to_string() }
}

impl World {
    fn new() -> World {
        World {
            record: Record::default(),
            servers: [Server::Down, Server::Down],
            flying: [None; SERVERS],
            log: Vec::new(),
            begun: vec![(0, 0)],
            acknowledged: Vec::new(),
            written: 0,
        }
    }

    fn epoch(&self) -> u32 {
        self.begun.last().map_or(0, |last| last.0)
    }

    fn seen(&self) -> Seen {
        let life = match self.record.holder().map(|owner| owner.member.pid as usize) {
            None => Life::Free,
            Some(owner) if matches!(self.servers[owner], Server::Down) => Life::Dead(Proof::Lease),
            // Its later life stands by: the one that owned has ended.
            Some(owner) if matches!(self.servers[owner], Server::Watching | Server::Looked(_)) => {
                Life::Dead(Proof::Lease)
            }
            Some(_) => Life::Alive { note: None },
        };
        Seen { record: self.record.clone(), life }
    }

    /// The groups that redo applies.
    fn redone(&self, guards: Guards) -> &[Group] {
        let begun_at =
            |at: usize| self.begun.iter().rfind(|one| one.1 <= at).map_or(0, |one| one.0);
        let is_stale = |at: usize, group: &Group| guards.stale && group.0 < begun_at(at);
        let end = (0..self.log.len()).find(|&at| is_stale(at, &self.log[at]));
        &self.log[..end.unwrap_or(self.log.len())]
    }

    /// What each server can do next.
    fn next(&self, guards: Guards) -> Vec<World> {
        (0..SERVERS).flat_map(|index| self.next_of(index, guards)).collect()
    }

    fn next_of(&self, index: usize, guards: Guards) -> Vec<World> {
        let mut worlds = Vec::new();
        let mut reach = |change: &dyn Fn(&mut World)| {
            let mut world = self.clone();
            change(&mut world);
            worlds.push(world);
        };
        if let Some((at, group)) = self.flying[index] {
            reach(&|world| {
                world.flying[index] = None;
                world.log.truncate(world.log.len().max(at));
                match world.log.get_mut(at) {
                    Some(old) => *old = group,
                    None => world.log.push(group),
                }
                if let Server::Serving(_, end) = &mut world.servers[index] {
                    *end = at + 1;
                    world.acknowledged.push(group.1);
                }
            });
        }
        if !matches!(self.servers[index], Server::Down) {
            reach(&|world| {
                world.servers[index] = Server::Down;
                if guards.fence {
                    world.flying[index] = None;
                }
            });
        }
        match &self.servers[index] {
            Server::Down => reach(&|world| world.servers[index] = Server::Watching),
            Server::Watching => {
                reach(&|world| world.servers[index] = Server::Looked(world.seen()));
            }
            Server::Looked(seen) => reach(&|world| world.act(index, seen, guards)),
            Server::Claimed(claimed) => reach(&|world| {
                let redone = world.redone(guards).len();
                world.log.truncate(redone);
                // As the store does with `epoch_above`.
                let epoch = world.epoch().max(claimed.0 - 1) + 1;
                world.begun.push((epoch, redone));
                world.servers[index] = Server::Serving(epoch, redone);
            }),
            Server::Serving(epoch, end) => {
                if self.flying[index].is_none() && self.written < VALUES_MAX {
                    reach(&|world| {
                        world.written += 1;
                        world.flying[index] = Some((*end, (*epoch, world.written)));
                    });
                }
            }
        }
        worlds
    }

    /// What the table says, and the claim.
    fn act(&mut self, index: usize, seen: &Seen, guards: Guards) {
        self.servers[index] = Server::Watching;
        let proof = match decide(&Ok(seen.clone()), Ready::default()) {
            Step::Claim(proof) => proof,
            Step::Wait(Waiting::Alive(_)) if !guards.proof => Proof::Lease,
            _ => return,
        };
        let compared = if guards.compare { seen.record.epoch() } else { self.record.epoch() };
        let above = Epoch(self.epoch());
        let at = Timestamp::default();
        let claim = Claim { seen: compared, above, member: member(index), proof, at };
        if let Some(record) = self.record.after(&claim)
            && record.history.len() <= CLAIMS_MAX
        {
            self.servers[index] = Server::Claimed(record.epoch());
            self.record = record;
        }
    }

    fn check(&self, guards: Guards) -> Result<(), &'static str> {
        let redone = self.redone(guards);
        if redone.windows(2).any(|pair| pair[0].0 > pair[1].0) {
            return Err("an older epoch takes effect behind a newer one");
        }
        let begun = |at: usize| self.begun.iter().rfind(|one| one.1 <= at).map_or(0, |one| one.0);
        if redone.iter().enumerate().any(|(at, group)| group.0 < begun(at)) {
            return Err("an older epoch takes effect");
        }
        let kept = |value: &u8| redone.iter().any(|group| group.1 == *value);
        if !self.acknowledged.iter().all(kept) {
            return Err("what was acknowledged is lost");
        }
        let replaced =
            |server: &Server| matches!(server, Server::Serving(epoch, _) if *epoch < self.epoch());
        if self.servers.iter().any(replaced) {
            return Err("a living server was replaced");
        }
        Ok(())
    }
}

/// Visits every state; yields how many, or what is wrong in the first wrong one.
fn explore(guards: Guards) -> Result<usize, &'static str> {
    let first = World::new();
    let mut seen = BTreeSet::from([format!("{first:?}")]);
    let mut queue = VecDeque::from([first]);
    while let Some(world) = queue.pop_front() {
        world.check(guards)?;
        for next in world.next(guards) {
            if seen.insert(format!("{next:?}")) {
                queue.push_back(next);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn no_order_of_events_loses_what_was_acknowledged() {
    let states = explore(ALL).unwrap();
    assert!(states > 1_000, "{states}");
}

#[test]
fn every_guard_is_needed() {
    let wrong = |guards: Guards| explore(guards).unwrap_err();
    assert_eq!(wrong(Guards { proof: false, ..ALL }), "a living server was replaced");
    assert_eq!(wrong(Guards { compare: false, ..ALL }), "a living server was replaced");
    assert_eq!(wrong(Guards { fence: false, ..ALL }), "what was acknowledged is lost");
    let late = Guards { fence: false, stale: false, ..ALL };
    assert_eq!(wrong(late), "an older epoch takes effect");
}
