//! Who changed what, as long as the change is not durable: what a reply to another
//! client must wait for (commit on sharing).
//!
//! Invariants:
//! - every change since [`Recent::forget`] last ran is here, removed names too;
//! - a client's own changes make it wait only if their answers wait themselves: what it has no
//!   answer to it does not replay;
//! - each unit is queued once: at its oldest change that the queue still has to see durable.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use types::{ClientId, HashMap, Ino, Name, Transno};

/// What a change changes and a reply rests on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Unit {
    /// A name of a directory, there or not.
    Name(Ino, Name),
    /// All names of a directory.
    Names(Ino),
    /// Attributes, extended attributes, existence of an inode.
    Attr(Ino),
    /// Content and layout of an inode.
    Data(Ino),
}

#[derive(Clone, Copy)]
struct Change {
    client: ClientId,
    at: Transno,
    /// Newest change by anyone but `client`.
    others: Transno,
    /// Newest change by `client` of which the answer did not leave at once.
    unanswered: Transno,
}

/// Changes that are not durable yet.
#[derive(Default)]
pub struct Recent {
    units: HashMap<Unit, Change>,
    order: VecDeque<(Transno, Unit)>,
}

impl Recent {
    /// `client` changed `unit` in transaction `at`. `answered`: it hears of that at once.
    pub fn note(&mut self, unit: Unit, client: ClientId, at: Transno, answered: bool) {
        let unanswered = if answered { Transno::ZERO } else { at };
        match self.units.entry(unit) {
            Entry::Vacant(vacant) => {
                self.order.push_back((at, vacant.key().clone()));
                vacant.insert(Change { client, at, others: Transno::ZERO, unanswered });
            }
            Entry::Occupied(mut occupied) => {
                let change = occupied.get_mut();
                if change.client != client {
                    *change = Change { client, others: change.at, unanswered, ..*change };
                }
                change.unanswered = change.unanswered.max(unanswered);
                change.at = at;
            }
        }
    }

    /// What must be durable before `client` is told of `unit`.
    pub fn rests_on(&self, unit: &Unit, client: ClientId) -> Transno {
        match self.units.get(unit) {
            None => Transno::ZERO,
            Some(change) if change.client == client => change.others.max(change.unanswered),
            Some(change) => change.at,
        }
    }

    /// Everything at or below `durable` is durable.
    pub fn forget(&mut self, durable: Transno) {
        while self.order.front().is_some_and(|(at, _)| *at <= durable) {
            let Some((_, unit)) = self.order.pop_front() else { return };
            let Some(change) = self.units.get(&unit) else { continue };
            if change.at <= durable {
                self.units.remove(&unit);
            } else {
                // Behind younger ones, perhaps: it is then kept for longer, which makes nobody
                // wait.
                self.order.push_back((change.at, unit));
            }
        }
    }

    /// Nothing to wait for, whatever is asked?
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use types::{Epoch, Lsn};

    use super::*;

    fn at(lsn: u64) -> Transno {
        Transno { epoch: Epoch(1), lsn: Lsn(lsn) }
    }

    #[test]
    fn only_the_changes_of_others_are_waited_for() {
        let (a, b, unit) = (ClientId(1), ClientId(2), Unit::Attr(Ino(9)));
        let mut recent = Recent::default();
        recent.note(unit.clone(), a, at(5), true);
        assert_eq!(recent.rests_on(&unit, a), Transno::ZERO);
        assert_eq!(recent.rests_on(&unit, b), at(5));
        recent.note(unit.clone(), b, at(8), true);
        assert_eq!(recent.rests_on(&unit, a), at(8));
        assert_eq!(recent.rests_on(&unit, b), at(5));
        recent.forget(at(7));
        assert_eq!(recent.rests_on(&unit, a), at(8));
        recent.forget(at(8));
        assert!(recent.is_empty());
    }

    #[test]
    fn an_own_change_is_waited_for_if_its_answer_waits() {
        let (a, b, unit) = (ClientId(1), ClientId(2), Unit::Attr(Ino(9)));
        let mut recent = Recent::default();
        recent.note(unit.clone(), a, at(5), false);
        recent.note(unit.clone(), a, at(6), true);
        assert_eq!(recent.rests_on(&unit, a), at(5));
        assert_eq!(recent.rests_on(&unit, b), at(6));
        recent.note(unit.clone(), b, at(7), true);
        assert_eq!(recent.rests_on(&unit, b), at(6));
        assert_eq!(recent.rests_on(&unit, a), at(7));
    }

    #[test]
    fn a_unit_that_changes_again_and_again_is_queued_once_and_forgotten_at_its_last_change() {
        let (a, b, hot, cold) = (ClientId(1), ClientId(2), Unit::Attr(Ino(1)), Unit::Attr(Ino(2)));
        let mut recent = Recent::default();
        recent.note(cold.clone(), a, at(1), true);
        for lsn in 2..100 {
            recent.note(hot.clone(), a, at(lsn), true);
            recent.forget(at(lsn / 2));
            assert!(recent.order.len() <= 2);
            assert_eq!(recent.rests_on(&hot, b), at(lsn));
        }
        assert_eq!(recent.rests_on(&cold, b), Transno::ZERO);
        recent.forget(at(98));
        assert_eq!(recent.rests_on(&hot, b), at(99));
        recent.forget(at(99));
        assert!(recent.is_empty() && recent.order.is_empty());
    }
}
