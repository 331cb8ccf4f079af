//! ONCE: an operation that was acknowledged once and replayed happens once.
//!
//! Every operation is identified by slot and sequence of its request and its index there.
//! Retransmission and replay keep these. Checked when a transaction of the store executes an
//! operation:
//! - each is executed once, unless its transaction was lost with the server;
//! - of a commit in parts, each part follows those before it, and nothing follows the last.
//!
//! The model checks that acknowledged operations lost with their server are executed again in their
//! order, by what applications see.

use std::collections::BTreeMap;

use mds::Executed;
use types::{ClientId, Transno};

use crate::events::Events;
use crate::invariant::Invariant;

/// Remembered requests of one slot.
const REQUESTS: usize = 256;

/// The last edit that each transaction of an operation executed; `None`: all of it.
type Done = Vec<(Option<u32>, Transno)>;

/// The state of the checker: the newest requests of each slot.
pub(crate) struct Once {
    events: Events,
    slots: BTreeMap<(ClientId, u16), BTreeMap<(u32, u8), Done>>,
}

impl Once {
    pub(crate) fn new(events: &Events) -> Once {
        Once { events: events.clone(), slots: BTreeMap::new() }
    }

    /// A server has opened the metadata; its log continues at `end`, and later transactions were
    /// lost.
    pub(crate) fn opened(&mut self, end: u64) {
        for done in self.slots.values_mut().flat_map(BTreeMap::values_mut) {
            done.retain(|(_, transno)| transno.lsn.0 <= end);
        }
    }

    /// A transaction executed an operation, or a part of it.
    pub(crate) fn executed(&mut self, executed: Executed) {
        let Executed { client, request: (slot, seq), index, edits, transno } = executed;
        let operations = self.slots.entry((client, slot)).or_default();
        let done = operations.entry((seq, index)).or_default();
        if let Some((before, first)) = done.last()
            && before.is_none_or(|before| edits.is_some_and(|edits| edits <= before))
        {
            let far =
                |edits: Option<u32>| edits.map_or("whole".into(), |n| format!("up to edit {n}"));
            self.events.broken(
                Invariant::Once,
                &format!(
                    "operation {index} of request {slot}/{seq} of client {client} is done {} by {transno}; it was done {} by {first}",
                    far(edits),
                    far(*before)
                ),
            );
        }
        done.push((edits, transno));
        while operations.len() > REQUESTS {
            operations.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use types::{Epoch, Lsn};

    use super::*;

    fn at(seq: u32, edits: Option<u32>, lsn: u64) -> Executed {
        let transno = Transno { epoch: Epoch(1), lsn: Lsn(lsn) };
        Executed { client: ClientId(3), request: (2, seq), index: 0, edits, transno }
    }

    fn found(work: impl FnOnce(&mut Once)) -> bool {
        let events = Events::default();
        work(&mut Once::new(&events));
        events.first_violation().is_some_and(|(invariant, text)| {
            assert_eq!(invariant, Invariant::Once);
            text.contains("request 2/7 of client 3")
        })
    }

    #[test]
    fn second_execution_is_a_violation_unless_the_first_was_lost() {
        let twice = |end: Option<u64>| {
            found(|once| {
                once.executed(at(6, None, 90));
                once.executed(at(7, None, 100));
                end.into_iter().for_each(|end| once.opened(end));
                once.executed(at(7, None, 110));
            })
        };
        assert!(twice(None));
        assert!(twice(Some(100)));
        assert!(!twice(Some(99)));
    }

    #[test]
    fn parts_of_a_commit_are_executed_in_order() {
        let parts = |parts: &[Option<u32>]| {
            found(|once| {
                for (nth, part) in parts.iter().enumerate() {
                    once.executed(at(7, *part, nth as u64));
                }
            })
        };
        assert!(!parts(&[Some(4), Some(9), None]));
        assert!(parts(&[Some(4), Some(4)]));
        assert!(parts(&[Some(9), Some(4)]));
        assert!(parts(&[None, Some(4)]));
    }
}
