//! Changes that are not durable, and their clients. From these follows what a reply to another
//! client must wait for.
//!
//! Invariants:
//! - every change since [`Uncommitted::forget`] last ran is here, including removed names;
//! - a client's own changes make it wait only if their answers wait themselves: the client does not
//!   replay a change that it has no answer to;
//! - each item is queued once, at the oldest of its changes that the queue has not yet seen
//!   durable.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use types::{ClientId, HashMap, Ino, Name, Transno};

/// A data item: changes write it, and replies depend on it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MetaItem {
    /// A name of a directory, existing or not.
    Name(Ino, Name),
    /// All names of a directory.
    Names(Ino),
    /// Attributes, extended attributes and existence of an inode.
    Attr(Ino),
    /// Content and layout of an inode.
    Data(Ino),
}

#[derive(Clone, Copy)]
struct Change {
    client: ClientId,
    at: Transno,
    /// Newest change by another client than `client`, perhaps in the same transaction.
    others: Transno,
    /// Newest change by `client` whose answer did not leave at once.
    unanswered: Transno,
}

/// See the module.
#[derive(Default)]
pub struct Uncommitted(RefCell<Changes>);

impl Uncommitted {
    /// `client` changed `items` in transaction `at`; everything at or below `durable` is durable.
    /// `answered`: the answer leaves at once.
    pub fn note(
        &self,
        items: Vec<MetaItem>,
        client: ClientId,
        (at, durable): (Transno, Transno),
        answered: bool,
    ) {
        let mut changes = self.0.borrow_mut();
        changes.forget(durable);
        for item in items {
            changes.note(item, client, at, answered);
        }
    }

    /// The transaction that must be durable before a reply to `client` may contain `items`.
    pub fn awaited<'a>(
        &self,
        items: impl IntoIterator<Item = &'a MetaItem>,
        client: ClientId,
    ) -> Transno {
        let changes = self.0.borrow();
        if changes.is_empty() {
            return Transno::ZERO;
        }
        let awaited = items.into_iter().map(|item| changes.awaited(item, client));
        awaited.max().unwrap_or(Transno::ZERO)
    }

    /// Forgets changes at or below `durable`.
    pub fn forget(&self, durable: Transno) {
        self.0.borrow_mut().forget(durable);
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        self.0.borrow().validate();
    }
}

#[derive(Default)]
struct Changes {
    items: HashMap<MetaItem, Change>,
    order: VecDeque<(Transno, MetaItem)>,
}

impl Changes {
    /// `client` changed `item` in transaction `at`. `answered`: its answer leaves at once.
    fn note(&mut self, item: MetaItem, client: ClientId, at: Transno, answered: bool) {
        let unanswered = if answered { Transno::ZERO } else { at };
        match self.items.entry(item) {
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

    /// The transaction that must be durable before a reply to `client` may contain `item`.
    fn awaited(&self, item: &MetaItem, client: ClientId) -> Transno {
        match self.items.get(item) {
            None => Transno::ZERO,
            Some(change) if change.client == client => change.others.max(change.unanswered),
            Some(change) => change.at,
        }
    }

    /// Forgets changes at or below `durable`.
    fn forget(&mut self, durable: Transno) {
        while self.order.front().is_some_and(|(at, _)| *at <= durable) {
            let Some((_, item)) = self.order.pop_front() else { return };
            let Some(change) = self.items.get(&item) else { continue };
            if change.at <= durable {
                self.items.remove(&item);
            } else {
                // It may stand behind younger changes now. Then it is kept for longer, which makes
                // nobody wait.
                self.order.push_back((change.at, item));
            }
        }
    }

    /// Is there nothing to wait for, whatever the request?
    fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn validate(&self) {
        assert_eq!(self.order.len(), self.items.len(), "an item is queued twice, or not at all");
        for (at, item) in &self.order {
            let change = self.items.get(item);
            assert!(change.is_some_and(|change| *at <= change.at), "{item:?} is queued too late");
        }
        for (item, change) in &self.items {
            // Operations of several clients may be one transaction.
            assert!(change.others <= change.at, "{item:?} depends on a later change");
            assert!(change.unanswered <= change.at, "{item:?} depends on a later answer");
        }
    }
}

#[cfg(test)]
mod tests {
    use types::{Epoch, Lsn};

    use super::*;

    fn at(lsn: u64) -> Transno {
        Transno { epoch: Epoch(1), lsn: Lsn(lsn) }
    }

    /// PROTOCOLS 5.3.
    #[test]
    fn reply_depends_only_on_changes_of_others() {
        let (a, b, item) = (ClientId(1), ClientId(2), MetaItem::Attr(Ino(9)));
        let mut uncommitted = Changes::default();
        uncommitted.note(item.clone(), a, at(5), true);
        assert_eq!(uncommitted.awaited(&item, a), Transno::ZERO);
        assert_eq!(uncommitted.awaited(&item, b), at(5));
        uncommitted.note(item.clone(), b, at(8), true);
        assert_eq!(uncommitted.awaited(&item, a), at(8));
        assert_eq!(uncommitted.awaited(&item, b), at(5));
        uncommitted.forget(at(7));
        assert_eq!(uncommitted.awaited(&item, a), at(8));
        uncommitted.forget(at(8));
        assert!(uncommitted.is_empty());
    }

    /// PROTOCOLS 5.3.
    #[test]
    fn reply_depends_on_an_own_change_whose_answer_waits() {
        let (a, b, item) = (ClientId(1), ClientId(2), MetaItem::Attr(Ino(9)));
        let mut uncommitted = Changes::default();
        uncommitted.note(item.clone(), a, at(5), false);
        uncommitted.note(item.clone(), a, at(6), true);
        assert_eq!(uncommitted.awaited(&item, a), at(5));
        assert_eq!(uncommitted.awaited(&item, b), at(6));
        uncommitted.note(item.clone(), b, at(7), true);
        assert_eq!(uncommitted.awaited(&item, b), at(6));
        assert_eq!(uncommitted.awaited(&item, a), at(7));
    }

    #[test]
    fn item_that_changes_often_is_queued_once_until_its_last_change() {
        let (a, b, hot, cold) =
            (ClientId(1), ClientId(2), MetaItem::Attr(Ino(1)), MetaItem::Attr(Ino(2)));
        let mut uncommitted = Changes::default();
        uncommitted.note(cold.clone(), a, at(1), true);
        for lsn in 2..100 {
            uncommitted.note(hot.clone(), a, at(lsn), true);
            uncommitted.forget(at(lsn / 2));
            assert!(uncommitted.order.len() <= 2);
            uncommitted.validate();
            assert_eq!(uncommitted.awaited(&hot, b), at(lsn));
        }
        assert_eq!(uncommitted.awaited(&cold, b), Transno::ZERO);
        uncommitted.forget(at(98));
        assert_eq!(uncommitted.awaited(&hot, b), at(99));
        uncommitted.forget(at(99));
        assert!(uncommitted.is_empty() && uncommitted.order.is_empty());
    }
}
