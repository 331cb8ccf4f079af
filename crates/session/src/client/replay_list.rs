//! Answered requests that a restart of the server may undo; they are replayed then.
//!
//! Invariants:
//! - they are in the order of their transactions; an entry leaves when the server says that it is
//!   durable, or with its session;
//! - the list counts what is in flight and may be kept; `room` says who waits for it.

use std::collections::BTreeMap;
use std::mem::size_of;
use std::ops::Bound;
use std::rc::Rc;

use proto::message::{Peer, Reply, Request};
use proto::slots::SlotClass;
use types::limits::{REPLAY_BYTES_MAX, REPLAY_MAX};
use types::{Epoch, Instant, Transno};

/// The limits of the list, those in flight included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptLimits {
    /// Requests.
    pub requests: usize,
    /// Their bytes in memory, estimated.
    pub bytes: usize,
}

impl Default for KeptLimits {
    fn default() -> KeptLimits {
        KeptLimits { requests: REPLAY_MAX, bytes: REPLAY_BYTES_MAX }
    }
}

/// An answered request.
#[derive(Clone)]
pub struct ReplayEntry<P: Peer> {
    /// The request.
    pub request: Rc<Request<P>>,
    /// Its answer.
    pub reply: Rc<Reply<P>>,
    /// When the request was first sent.
    pub sent: Instant,
    /// Its transno in the epoch of the recovery in progress.
    replayed: Option<Transno>,
}

/// See the module.
pub(super) struct ReplayList<P: Peer> {
    list: BTreeMap<Transno, ReplayEntry<P>>,
    /// Bytes of all requests.
    bytes: usize,
    /// Requests in flight that may be kept, and their bytes.
    expected: (usize, usize),
    limits: KeptLimits,
}

impl<P: Peer> ReplayList<P> {
    /// An empty list.
    pub fn new(limits: KeptLimits) -> ReplayList<P> {
        ReplayList { list: BTreeMap::new(), bytes: 0, expected: (0, 0), limits }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Their bytes in memory, estimated.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = &ReplayEntry<P>> {
        self.list.values()
    }

    /// When the oldest request was first sent. Transactions are in another order than requests.
    pub fn oldest(&self) -> Option<Instant> {
        self.entries().map(|entry| entry.sent).min()
    }

    /// Is the list so long that the server must make its entries durable?
    pub fn is_long(&self) -> bool {
        self.list.len() > self.limits.requests / 2 || self.bytes > self.limits.bytes / 2
    }

    /// May a request of this class be sent that takes `weight`? See [`super::room`].
    pub fn has_room(&self, class: SlotClass, weight: usize) -> bool {
        let share = |limit: usize| match class {
            SlotClass::Ordinary => limit - limit / 4,
            SlotClass::Reserved => limit,
        };
        let requests = self.list.len() + self.expected.0;
        let bytes = self.bytes + self.expected.1;
        let fits =
            requests < share(self.limits.requests) && bytes + weight <= share(self.limits.bytes);
        fits || requests == 0
    }

    /// A request is sent that takes `weight` if it is kept.
    pub fn expect(&mut self, weight: Option<usize>) {
        if let Some(weight) = weight {
            self.expected.0 += 1;
            self.expected.1 += weight;
        }
    }

    /// The request with this `weight` is answered, withdrawn or lost.
    pub fn expected_no_longer(&mut self, weight: Option<usize>) {
        if let Some(weight) = weight {
            self.expected.0 -= 1;
            self.expected.1 -= weight;
        }
    }

    /// Adds a request, first sent at `sent`, that was answered by `reply`.
    pub fn keep(&mut self, request: Rc<Request<P>>, reply: Rc<Reply<P>>, sent: Instant) {
        let transno = reply.transno;
        self.insert(transno, ReplayEntry { request, reply, sent, replayed: None });
    }

    fn insert(&mut self, transno: Transno, entry: ReplayEntry<P>) {
        self.bytes += weight_of::<P>(&entry.request.ops);
        if let Some(before) = self.list.insert(transno, entry) {
            self.bytes -= weight_of::<P>(&before.request.ops);
        }
    }

    /// Drops the entries up to `upto`: they are durable.
    pub fn forget(&mut self, upto: Transno) {
        while let Some(entry) = self.list.first_entry().filter(|entry| *entry.key() <= upto) {
            self.bytes -= weight_of::<P>(&entry.remove().request.ops);
        }
    }

    /// Drops all entries; what is in flight may still come.
    pub fn drop_kept(&mut self) {
        (self.list, self.bytes) = (BTreeMap::new(), 0);
    }

    /// Drops all entries; nothing is in flight either.
    pub fn clear(&mut self) {
        *self = ReplayList::new(self.limits);
    }

    /// The entries after `after`, and before `before`.
    pub fn between(
        &self,
        after: Transno,
        before: Bound<Transno>,
    ) -> impl DoubleEndedIterator<Item = (Transno, &ReplayEntry<P>)> {
        let range = self.list.range((Bound::Excluded(after), before));
        range.map(|(transno, entry)| (*transno, entry))
    }

    /// The entries after `survived` that a server of another epoch than `epoch` answered: that
    /// server had them only in memory.
    pub fn lost(&self, survived: Transno, epoch: Epoch) -> impl Iterator<Item = &ReplayEntry<P>> {
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
        let before = std::mem::take(&mut self.list);
        self.bytes = 0;
        for (transno, mut entry) in before {
            let transno = entry.replayed.take().unwrap_or(transno);
            self.insert(transno, entry);
        }
        self.list.last_key_value().map_or(Transno::ZERO, |(last, _)| *last)
    }
}

/// What a request takes in the list; `None` if it changes nothing, so that it is never kept.
pub(super) fn weight<P: Peer>(ops: &[P::Op]) -> Option<usize> {
    ops.iter().any(P::may_change).then(|| weight_of::<P>(ops))
}

/// Bytes that a request takes in memory, estimated: parts whose size callers decide count in full.
fn weight_of<P: Peer>(ops: &[P::Op]) -> usize {
    let of_op = |op: &P::Op| size_of::<P::Op>() + P::carried_bytes(op);
    size_of::<Request<P>>() + ops.iter().map(of_op).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use proto::mds::{Edit, Mds, Op, Principal, Reply, Request};
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
        let (slot, seq, waited, load, results) = (0, 0, 0, 0, Vec::new());
        Rc::new(Reply { slot, seq, transno, last_committed, waited, load, results })
    }

    #[test]
    fn list_of_large_requests_is_long_before_their_number_is() {
        let mut list = ReplayList::<Mds>::new(KeptLimits::default());
        let mut at = 0;
        while !list.is_long() {
            at += 1;
            list.keep(request(3900), reply(at), Instant(0));
            assert!(list.bytes() >= 3900 * list.len());
        }
        assert!(list.len() < REPLAY_MAX / 2 && list.bytes() < REPLAY_BYTES_MAX / 2 + 8000);
        let half = reply(at / 2).transno;
        list.forget(half);
        assert!(!list.is_long() && list.bytes() < REPLAY_BYTES_MAX / 3);
        // Requests without content count by their number.
        let mut list = ReplayList::<Mds>::new(KeptLimits::default());
        (1..=REPLAY_MAX as u64 / 2).for_each(|at| list.keep(request(1), reply(at), Instant(0)));
        assert!(!list.is_long());
        list.keep(request(1), reply(1 << 40), Instant(0));
        assert!(list.is_long());
    }

    #[test]
    fn byte_count_is_exact_after_replacing_renumbering_and_forgetting() {
        let mut list = ReplayList::<Mds>::new(KeptLimits::default());
        list.keep(request(100), reply(1), Instant(0));
        let one = list.bytes();
        list.keep(request(100), reply(1), Instant(0));
        assert_eq!((list.len(), list.bytes()), (1, one));
        list.keep(request(100), reply(2), Instant(0));
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
