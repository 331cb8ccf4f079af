//! Random orders of everything that can happen, with more transactions and shards than a search of
//! all orders can have. `REDBUD_SCHEDULES` sets how many of each kind; `REDBUD_SEED` the first.
#![allow(missing_docs, reason = "a test program has no users")]

mod world;

use commitment::{Guards, Protocol};
use world::{Act, World};

/// Schedules of each protocol in the gate: 10^5 in all.
const SCHEDULES: u64 = 25_000;
/// Steps before nothing more goes wrong.
const STEPS: usize = 60;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

fn number(variable: &str, or: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
}

fn schedule(protocol: Protocol, seed: u64) -> Result<World, String> {
    let mut random = Random(seed ^ (protocol as u64) << 60);
    let hosts = match protocol {
        Protocol::OnePhase => 2,
        _ => 2 + random.below(3),
    };
    let mut world = World::new(hosts, protocol, Guards::ALL);
    let transactions = 1 + random.below(4);
    let troubled = 1 + random.below(12);
    for _ in 0..STEPS {
        let mut acts = world.possible(transactions);
        let trouble = random.below(troubled) == 0;
        acts.retain(|act| act.is_trouble() == trouble && !matches!(act, Act::Fence(..)) || trouble);
        if acts.is_empty() {
            continue;
        }
        let act = acts.swap_remove(random.below(acts.len()));
        world.act(&act);
        world.troubles = 0;
    }
    world.calms_down()?;
    Ok(world)
}

#[test]
fn random_schedules_end_with_all_shards_of_one_mind() {
    let first = number("REDBUD_SEED", 1);
    let mut heard = 0;
    for protocol in Protocol::ALL {
        for seed in first..first + number("REDBUD_SCHEDULES", SCHEDULES) {
            match schedule(protocol, seed) {
                Ok(world) => heard += world.answers.len(),
                Err(what) => panic!("{}, seed {seed}: {what}", protocol.name()),
            }
        }
    }
    assert!(heard > 10_000, "only {heard} clients heard anything");
}
