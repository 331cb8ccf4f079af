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
/// From when they can hear of each other again until everything that was sent has arrived.
const ARRIVAL: Duration = Duration::from_secs(1);

/// The client at `node` drops its connection.
pub(crate) fn dropped(cluster: &Cluster, node: &str) {
    let held_up = |server: &String| cluster.world.were_held_up(node, server, ARRIVAL);
    if !cluster.servers().iter().any(held_up) {
        let text = format!("{node} took a server for dead that was only slow");
        cluster.events.broken(Invariant::Slow, &text);
    }
}
