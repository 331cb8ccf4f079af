//! Table I of the paper (003 §IV, F16): what a transaction without trouble costs.
#![allow(missing_docs, reason = "a test program has no users")]

mod world;

use commitment::{Guards, Protocol};
use world::World;

/// Forced and lazy records, in all and on the critical path; extra messages, likewise.
const TABLE: [(Protocol, [u64; 6]); 4] = [
    (Protocol::PresumeNothing, [5, 1, 4, 1, 4, 4]),
    (Protocol::PresumeCommit, [4, 1, 3, 0, 3, 2]),
    (Protocol::EarlyPrepare, [4, 1, 3, 0, 1, 0]),
    (Protocol::OnePhase, [3, 1, 2, 0, 1, 0]),
];

#[test]
fn every_cell_of_table_i_holds_over_10_000_transactions() {
    const TRANSACTIONS: u64 = 10_000;
    for (protocol, cells) in TABLE {
        let mut world = World::new(2, protocol, Guards::ALL);
        for _ in 0..TRANSACTIONS / 100 {
            world.run(100);
            for host in &mut world.hosts {
                host.log.clear();
            }
            world.begun.clear();
        }
        let counts = world.counts();
        let measured = [
            counts.forced,
            counts.lazy,
            counts.critical_forced,
            counts.critical_lazy,
            counts.messages,
            counts.critical_messages,
        ];
        assert_eq!(counts.committed, TRANSACTIONS);
        assert_eq!(measured, cells.map(|cell| cell * TRANSACTIONS), "{protocol:?}");
    }
}
