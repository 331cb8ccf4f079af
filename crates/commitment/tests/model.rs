//! All orders of records, messages, crashes, restarts, timers and fences, over the shipped machine.
//! Each guard is taken away once: then some order breaks a promise.
#![allow(missing_docs, reason = "a test program has no users")]

mod world;

use commitment::{Guards, Protocol};
use stateright::{Checker, HasDiscoveries, Model, Property};
use world::{Act, World};

const AGREE: &str = "all shards and the client are of one mind";

#[derive(Clone)]
struct Search {
    protocol: Protocol,
    hosts: usize,
    transactions: usize,
    troubles: u8,
    guards: Guards,
    fences: bool,
}

impl Model for Search {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        let mut world = World::new(self.hosts, self.protocol, self.guards);
        world.fences = self.fences;
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Act>) {
        let all = world.possible(self.transactions).into_iter();
        actions.extend(all.filter(|act| !act.is_trouble() || world.troubles < self.troubles));
    }

    fn next_state(&self, world: &World, act: Act) -> Option<World> {
        let mut next = world.clone();
        next.act(&act);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Search>> {
        vec![Property::always(AGREE, |_: &Search, world: &World| world.calms_down().is_ok())]
    }
}

fn search(protocol: Protocol) -> Search {
    Search { protocol, hosts: 2, transactions: 1, troubles: 2, guards: Guards::ALL, fences: true }
}

/// Visits every state; yields how many.
fn visit(search: Search) -> usize {
    let checker = search.checker().threads(2).spawn_bfs().join();
    if let Some(path) = checker.discovery(AGREE) {
        let last = path.last_state().calms_down();
        panic!("{:?}\n{}", path.into_actions(), last.unwrap_err());
    }
    checker.unique_state_count()
}

fn breaks(search: Search) -> bool {
    let checker = search.checker().threads(2).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    !checker.discoveries().is_empty()
}

/// The states of a search with these bounds, all of them without a fault.
fn explored(protocol: Protocol, hosts: usize, transactions: usize, troubles: u8) -> usize {
    let states = visit(Search { hosts, transactions, troubles, ..search(protocol) });
    println!("{protocol:?}, {hosts} shards, {transactions} transactions, {troubles}: {states}");
    states
}

#[test]
fn two_shards_agree_in_every_order() {
    for (protocol, troubles) in Protocol::ALL.into_iter().zip([2, 2, 2, 3]) {
        assert!(explored(protocol, 2, 1, troubles) > 10_000, "{protocol:?}");
    }
}

#[test]
fn two_transactions_keep_one_order_on_both_shards() {
    for protocol in Protocol::ALL {
        assert!(explored(protocol, 2, 2, 1) > 10_000, "{protocol:?}");
    }
}

#[test]
fn three_shards_agree_in_every_order() {
    for protocol in [Protocol::PresumeNothing, Protocol::PresumeCommit, Protocol::EarlyPrepare] {
        assert!(explored(protocol, 3, 1, 1) > 10_000, "{protocol:?}");
    }
}

/// Minutes: `cargo test -p redbud-commitment --test model -- --ignored`.
#[test]
#[ignore = "takes minutes; the bounds of the gate are above"]
fn more_trouble_changes_nothing() {
    for protocol in Protocol::ALL {
        explored(protocol, 2, 1, 3);
        explored(protocol, 2, 2, 2);
    }
}

#[test]
fn every_guard_is_needed() {
    type Without = fn(&mut Search);
    let guards: [(&str, Protocol, Without); 10] = [
        ("own epoch", Protocol::OnePhase, |search| search.guards.own_epoch = false),
        ("peer's epoch", Protocol::OnePhase, |search| search.guards.peer_epoch = false),
        ("finished, 1PC", Protocol::OnePhase, |search| search.guards.finished = false),
        ("finished, EP", Protocol::EarlyPrepare, |search| search.guards.finished = false),
        ("STARTED", Protocol::PresumeCommit, |search| search.guards.started = false),
        ("STARTED, 1PC", Protocol::OnePhase, |search| search.guards.started = false),
        ("PREPARED", Protocol::PresumeNothing, |search| search.guards.prepared = false),
        ("COMMITTED", Protocol::OnePhase, |search| search.guards.committed = false),
        ("ABORTED", Protocol::OnePhase, |search| search.guards.aborted = false),
        ("fence", Protocol::OnePhase, |search| search.fences = false),
    ];
    for (name, protocol, without) in guards {
        let mut search = Search { troubles: 3, ..search(protocol) };
        without(&mut search);
        assert!(breaks(search), "{name} protects {protocol:?} from nothing");
    }
}
