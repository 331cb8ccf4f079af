//! All orders of looks, fences, claims, openings, writes, kills and stops of several servers, over
//! the shipped table and record. The world (`world.rs`) has the etcd cluster, the devices and the
//! hosts; here are the properties, and the guards without which one of them breaks.
#![allow(missing_docs, reason = "a test program has no users")]

mod world;

use stateright::{Checker, HasDiscoveries, Model, Property};

use world::{Act, Guards, World};

const ONE_OWNER: &str = "no older epoch takes effect";
const KEPT: &str = "nothing acknowledged is lost";
const PROOF: &str = "no owner is replaced without a proof";
const OPENS: &str = "no opening is refused";
const PROGRESS: &str = "somebody serves when calm comes";

/// The bounds of a search, and what protects the metadata in it.
#[derive(Clone)]
struct Search {
    servers: usize,
    /// Most kills, stops, lost answers, lost renewals, failed fences and openings.
    troubles: u8,
    /// Most values that are written.
    values: u8,
    /// Most claims.
    claims: usize,
    guards: Guards,
    /// The properties that it checks.
    checked: &'static [&'static str],
}

impl Model for Search {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.servers)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Act>) {
        actions.extend(world.possible(&self.guards).into_iter().filter(|act| match act {
            Act::Submit(_) => world.written < self.values,
            act => !act.is_trouble() || world.troubles < self.troubles,
        }));
    }

    fn next_state(&self, world: &World, act: Act) -> Option<World> {
        let mut next = world.clone();
        next.act(&act, &self.guards);
        (next.record.history.len() <= self.claims && next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Search>> {
        let mut all: Vec<Property<Search>> = vec![
            Property::always(ONE_OWNER, |search: &Search, world: &World| {
                world.is_in_order(&search.guards)
            }),
            Property::always(KEPT, |search: &Search, world: &World| {
                world.keeps_all(&search.guards)
            }),
            Property::always(PROOF, |_: &Search, world: &World| world.replaced_alive().is_none()),
            Property::always(OPENS, |_: &Search, world: &World| !world.refused),
            Property::always(PROGRESS, |search: &Search, world: &World| {
                world.calms_down(&search.guards)
            }),
        ];
        all.retain(|property| self.checked.contains(&property.name));
        all
    }
}

const SAFETY: &[&str] = &[ONE_OWNER, KEPT, PROOF, OPENS];

fn search(servers: usize, guards: Guards) -> Search {
    Search { servers, troubles: 2, values: 2, claims: 3, guards, checked: SAFETY }
}

/// Visits every state; yields how many.
fn visit(search: Search) -> usize {
    let checker = search.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}

/// Does this property break?
fn breaks(property: &'static [&'static str], guards: Guards) -> bool {
    let search = Search { troubles: 3, checked: property, ..search(2, guards) };
    let checker = search.checker().threads(2).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    !checker.discoveries().is_empty()
}

#[test]
fn two_servers_keep_every_promise_in_every_order() {
    let states = visit(Search { claims: 2, ..search(2, Guards::ALL) });
    assert!(states > 20_000, "{states}");
}

#[test]
fn three_servers_keep_every_promise_in_every_order() {
    let three = Search { troubles: 1, values: 1, claims: 2, ..search(3, Guards::ALL) };
    let states = visit(three);
    assert!(states > 20_000, "{states}");
}

#[test]
fn somebody_serves_soon_after_every_order() {
    let calm = Search { values: 1, claims: 2, checked: &[PROGRESS], ..search(2, Guards::ALL) };
    let states = visit(calm);
    assert!(states > 10_000, "{states}");
}

/// Both sides of each guard are met, so that it protects from something.
#[test]
fn model_reaches_what_it_is_about() {
    let search = search(2, Guards::ALL);
    let mut reached = std::collections::BTreeSet::new();
    let mut seen = types::HashSet::default();
    let mut queue = search.init_states();
    while let Some(world) = queue.pop() {
        for line in &world.record.history {
            let reason = line.reason.split(": ").last().unwrap_or_default();
            reached.insert(reason.to_owned());
        }
        let mut actions = Vec::new();
        search.actions(&world, &mut actions);
        for act in actions {
            if let Act::Kill(index) = act {
                reached.insert(format!("killed: {}", world.servers[index].phase.name()));
            }
            let Some(next) = search.next_state(&world, act) else { continue };
            if next.late_writes > world.late_writes {
                reached.insert("a late write was refused".to_owned());
            }
            if seen.len() < 200_000 && seen.insert(next.clone()) {
                queue.push(next);
            }
        }
    }
    let wanted = [
        "the first server",
        "a planned failover",
        "its lease is over",
        "it is cut off by a fence",
        "a late write was refused",
        "killed: watching",
        "killed: fencing",
        "killed: proved",
        "killed: asking",
        "killed: claimed",
        "killed: redone",
        "killed: serving",
    ];
    for one in wanted {
        assert!(reached.contains(one), "{one} is not in {reached:?}");
    }
}

/// One test for each guard: without it the named property breaks.
macro_rules! needed {
    ($($test:ident: $guard:ident => $property:expr;)*) => { $(
        #[test]
        fn $test() {
            assert!(breaks(&[$property], Guards { $guard: false, ..Guards::ALL }));
        }
    )* };
}

needed! {
    a_claim_needs_a_proof: proof => PROOF;
    a_claim_replaces_only_the_owner_that_was_seen: compare => PROOF;
    a_fence_is_asked_whether_it_has_cut: check => PROOF;
    a_term_ends_before_its_lease: term => PROOF;
    a_claim_of_unknown_outcome_counts_when_the_record_shows_it: reread => PROOF;
    a_store_is_opened_only_behind_a_claim: claim => PROOF;
    metadata_are_given_up_when_the_store_is_closed: closed => PROOF;
    what_was_submitted_has_landed_before_the_proof: settled => KEPT;
    an_owner_whose_term_is_over_submits_nothing: gate => KEPT;
    a_host_that_is_cut_off_cannot_write: cut => KEPT;
    a_server_that_cannot_open_gives_up: gives_up => PROGRESS;
}

/// Where the devices take late writes, redo still gives no older group an effect behind newer ones:
/// it skips what lies behind the log, and refuses what lies over it.
#[test]
fn groups_of_replaced_servers_are_skipped_where_a_late_write_lands() {
    let late = Guards { settled: false, ..Guards::ALL };
    let all = Search { claims: 2, values: 1, checked: &[ONE_OWNER], ..search(2, late) };
    assert!(visit(all) > 10_000);
    assert!(breaks(&[ONE_OWNER], Guards { stale: false, ..late }));
}
