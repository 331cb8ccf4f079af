//! SLOW: nobody that is only slow is reconnected.
//!
//! A client drops a connection for want of answers to its probes only if it and the server could
//! not hear of each other then, or a moment before: one of them was stopped, or the path between
//! them blocked. A device that stalls, another client that is waited for, drifting clocks and slow
//! connections are no reason.

use types::Duration;

use crate::cluster::Cluster;
use crate::invariant::Invariant;

/// Words of the line that a client logs.
pub(crate) const DROPPED: &str = "it answered no probe";
/// What it says there if it was a target.
const TARGET: &str = "the object storage target";
/// From when they can hear of each other again until everything that was sent has arrived.
const ARRIVAL: Duration = Duration::from_secs(1);

/// The client at `node` drops its connection, with this line.
pub(crate) fn dropped(cluster: &Cluster, node: &str, line: &str) {
    let held_up = |server: &String| cluster.world.were_held_up(node, server, ARRIVAL);
    let peers = match line.contains(TARGET) {
        true => cluster.targets.nodes().collect(),
        false => cluster.servers(),
    };
    if !peers.iter().any(held_up) {
        let text = format!("{node} took a server for dead that was only slow");
        cluster.events.broken(Invariant::Slow, &text);
    }
}
