//! Which nodes cannot hear of each other, and until when they could not: nodes that are stopped,
//! dead or mute, and blocked paths. Checkers ask; nothing else depends on it.

use std::collections::{BTreeMap, BTreeSet};

use types::{Duration, Instant};

/// See the module.
#[derive(Default)]
pub(crate) struct HeldUp {
    stopped: BTreeSet<String>,
    /// When something last began or ended to hold up the node.
    changed: BTreeMap<String, Instant>,
}

impl HeldUp {
    /// Something that holds up the node begins or ends.
    pub(crate) fn changes(&mut self, node: &str, now: Instant) {
        self.changed.insert(node.to_owned(), now);
    }

    /// The node is stopped, or goes on.
    pub(crate) fn stop(&mut self, node: &str, stopped: bool, now: Instant) {
        self.changes(node, now);
        match stopped {
            true => self.stopped.insert(node.to_owned()),
            false => self.stopped.remove(node),
        };
    }

    /// Is the node stopped, or did something that held it up change within `recent`?
    pub(crate) fn is_held_up(&self, node: &str, now: Instant, recent: Duration) -> bool {
        let changed = self.changed.get(node);
        self.stopped.contains(node) || changed.is_some_and(|at| now.since(*at) <= recent)
    }
}
