//! Answered requests that a restart of the server may undo; they are replayed then.
//!
//! Invariants:
//! - they are in the order of their transactions; an entry leaves when the server says that it is
//!   durable, or with its session;
//! - from half of [`REPLAY_MAX`] or [`REPLAY_BYTES_MAX`] on the list is *long*, and the client asks
//!   the server to flush its log. The other half is for requests in flight meanwhile. Nothing
//!   waits: if the server's device is slower, the list grows by what is answered until then.

use std::collections::BTreeMap;
use std::mem::size_of;
use std::ops::Bound;
use std::rc::Rc;

use proto::mds::{Op, Reply, Request};
use types::limits::{REPLAY_BYTES_MAX, REPLAY_MAX};
use types::{Epoch, Transno};

/// An answered request.
pub(super) struct ReplayEntry {
    pub request: Rc<Request>,
    pub reply: Rc<Reply>,
    /// Its transno in the epoch of the recovery in progress.
    pub replayed: Option<Transno>,
}

/// See the module.
#[derive(Default)]
pub(super) struct ReplayList {
    list: BTreeMap<Transno, ReplayEntry>,
    /// Bytes of all requests.
    bytes: usize,
}

impl ReplayList {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Their bytes in memory, estimated.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Is the list so long that the server must make its entries durable?
    pub fn is_long(&self) -> bool {
        self.list.len() > REPLAY_MAX / 2 || self.bytes > REPLAY_BYTES_MAX / 2
    }

    /// Adds a request that was answered by `reply`.
    pub fn keep(&mut self, request: Rc<Request>, reply: Rc<Reply>) {
        let transno = reply.transno;
        self.insert(transno, ReplayEntry { request, reply, replayed: None });
    }

    fn insert(&mut self, transno: Transno, entry: ReplayEntry) {
        self.bytes += weight(&entry.request);
        if let Some(before) = self.list.insert(transno, entry) {
            self.bytes -= weight(&before.request);
        }
    }

    /// Drops the entries up to `upto`: they are durable.
    pub fn forget(&mut self, upto: Transno) {
        while let Some(entry) = self.list.first_entry().filter(|entry| *entry.key() <= upto) {
            self.bytes -= weight(&entry.remove().request);
        }
    }

    /// Drops all entries.
    pub fn clear(&mut self) {
        *self = ReplayList::default();
    }

    /// The entries after `after`, and before `before`.
    pub fn between(
        &self,
        after: Transno,
        before: Bound<Transno>,
    ) -> impl DoubleEndedIterator<Item = (Transno, &ReplayEntry)> {
        let range = self.list.range((Bound::Excluded(after), before));
        range.map(|(transno, entry)| (*transno, entry))
    }

    /// The entries after `survived` that a server of another epoch than `epoch` answered: that
    /// server had them only in memory.
    pub fn lost(&self, survived: Transno, epoch: Epoch) -> impl Iterator<Item = &ReplayEntry> {
        self.between(survived, Bound::Unbounded)
            .filter(move |(transno, entry)| entry.replayed.unwrap_or(*transno).epoch != epoch)
            .map(|(_, entry)| entry)
    }

    /// The request was replayed, as `now`.
    pub fn replayed(&mut self, transno: Transno, now: Transno) {
        if let Some(entry) = self.list.get_mut(&transno) {
            entry.replayed = Some(now);
        }
    }

    /// The recovery is done: the replayed requests get their new numbers. Not before: if the server
    /// restarts during the recovery, the next one starts over, in the old order, from what survived
    /// of the old epoch. Returns the highest number.
    pub fn renumber(&mut self) -> Transno {
        let before = std::mem::take(self);
        for (transno, mut entry) in before.list {
            let transno = entry.replayed.take().unwrap_or(transno);
            self.insert(transno, entry);
        }
        self.list.last_key_value().map_or(Transno::ZERO, |(last, _)| *last)
    }
}

/// Bytes that a request takes in memory, estimated: parts whose size callers decide count in full.
fn weight(request: &Request) -> usize {
    let of_op = |op: &Op| size_of::<Op>() + op.carried_bytes();
    size_of::<Request>() + request.ops.iter().map(of_op).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use proto::mds::{Edit, Principal};
    use proto::wire::Bytes;
    use types::Ino;

    use super::*;

    fn request(len: usize) -> Rc<Request> {
        let edits = vec![Edit::Content { bytes: Bytes(vec![1; len]) }];
        let (size, mtime, ctime, merge, tail_zero) = (None, None, None, false, false);
        let op = Op::Commit { ino: Ino(1), edits, size, mtime, ctime, merge, tail_zero };
        let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
        let ops = vec![op];
        Rc::new(Request { slot: 0, seq: 0, principal, sync: false, replay: None, ops })
    }

    fn reply(lsn: u64) -> Rc<Reply> {
        let transno = Transno { epoch: Epoch(1), lsn: types::Lsn(lsn) };
        let last_committed = Transno::ZERO;
        Rc::new(Reply { slot: 0, seq: 0, transno, last_committed, results: Vec::new() })
    }

    #[test]
    fn list_of_large_requests_is_long_before_their_number_is() {
        let mut list = ReplayList::default();
        let mut at = 0;
        while !list.is_long() {
            at += 1;
            list.keep(request(3900), reply(at));
            assert!(list.bytes() >= 3900 * list.len());
        }
        assert!(list.len() < REPLAY_MAX / 2 && list.bytes() < REPLAY_BYTES_MAX / 2 + 8000);
        let half = reply(at / 2).transno;
        list.forget(half);
        assert!(!list.is_long() && list.bytes() < REPLAY_BYTES_MAX / 3);
        // Requests without content count by their number.
        let mut list = ReplayList::default();
        (1..=REPLAY_MAX as u64 / 2).for_each(|at| list.keep(request(1), reply(at)));
        assert!(!list.is_long());
        list.keep(request(1), reply(1 << 40));
        assert!(list.is_long());
    }

    #[test]
    fn byte_count_is_exact_after_replacing_renumbering_and_forgetting() {
        let mut list = ReplayList::default();
        list.keep(request(100), reply(1));
        let one = list.bytes();
        list.keep(request(100), reply(1));
        assert_eq!((list.len(), list.bytes()), (1, one));
        list.keep(request(100), reply(2));
        let first = reply(1).transno;
        list.replayed(first, reply(9).transno);
        assert_eq!(list.renumber(), reply(9).transno);
        assert_eq!(list.bytes(), 2 * one);
        list.forget(reply(2).transno);
        assert_eq!((list.len(), list.bytes()), (1, one));
        list.forget(reply(9).transno);
        assert_eq!(list.bytes(), 0);
    }
}
