//! A client's lease on one inode, updated by replies, recalls and returns.
//!
//! Invariants:
//! - the client holds no right that the server does not record as the client's;
//!   the server may record more for a while (a grant in flight), and the client
//!   answers a recall of such a right like any other;
//! - the sequence only grows within a session; the client ignores the rights in a
//!   reply with an older sequence;
//! - a reply that the server made before it saw a return does not restore the
//!   returned rights: only a newer sequence does.

use types::{Bug, Epoch, Rights, planted};

use crate::lease_server::first_seq;

/// The lease of one inode. Default: nothing held, nothing known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lease {
    seq: u64,
    rights: Rights,
    given_up: Rights,
}

impl Lease {
    /// Rights held.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Highest sequence seen.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Rights given up that a reply with the sequence [`Lease::seq`] does not restore.
    pub fn given_up(&self) -> Rights {
        self.given_up
    }

    /// Are all of `rights` held? `DATA_X` implies `DATA_S`.
    pub fn holds(&self, rights: Rights) -> bool {
        self.rights.closed().contains(rights)
    }

    /// A reply reports that the client holds `rights` as of `seq`. False if the reply is older than
    /// the known sequence, and so ignored.
    pub fn granted(&mut self, rights: Rights, seq: u64) -> bool {
        if seq < self.seq && !planted(Bug::OlderGrantTaken) {
            return false;
        }
        if seq > self.seq {
            self.seq = seq;
            self.given_up = Rights::empty();
        }
        self.rights = rights - self.given_up;
        self.validate_in_debug();
        true
    }

    /// A recall of `take` as of `seq` came. Returns the rights of it that the client holds and must
    /// return.
    pub fn recalled(&mut self, seq: u64, take: Rights) -> Rights {
        if !(planted(Bug::EarlyRecallForgotten) && self.rights.is_empty()) {
            self.seq = self.seq.max(seq);
        }
        self.rights.closed() & take
    }

    /// The client gives up `rights` and no longer relies on them. (Giving up `DATA_S` includes
    /// `DATA_X`; giving up only `DATA_X` keeps `DATA_S`.)
    pub fn give(&mut self, rights: Rights) {
        let had = self.rights.closed();
        let mut give = rights;
        if give.contains(Rights::DATA_S) {
            give |= Rights::DATA_X;
        }
        self.rights = had - give;
        self.given_up |= give;
        self.validate_in_debug();
    }

    /// The session is over: the client holds nothing and forgets the sequence.
    pub fn forget(&mut self) {
        *self = Lease::default();
    }

    /// The server restarted, and `epoch` has begun: the client keeps its rights (it reclaims
    /// them), under the sequence that the server gives them. The new server has no record of
    /// rights given up before; rights given up later it records until the return arrives.
    pub fn reclaim(&mut self, epoch: Epoch) {
        let first = first_seq(epoch);
        if self.seq < first {
            self.seq = first;
            self.given_up = Rights::empty();
        }
    }

    fn validate_in_debug(&self) {
        if cfg!(debug_assertions) {
            self.validate();
        }
    }

    /// Panics if an invariant does not hold. A debug build calls it after each event.
    pub fn validate(&self) {
        assert!(!self.rights.intersects(self.given_up), "{self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: Rights = Rights::DATA_X;
    const S: Rights = Rights::DATA_S;
    const A: Rights = Rights::ATTR;

    #[test]
    fn older_reply_does_not_change_rights() {
        let mut lease = Lease::default();
        assert!(lease.granted(A | X, 5));
        assert!(!lease.granted(A, 4));
        assert!(lease.holds(S) && lease.holds(X));
        lease.validate();
    }

    #[test]
    fn returned_rights_come_back_only_with_a_newer_sequence() {
        let mut lease = Lease::default();
        lease.granted(X, 1);
        assert_eq!(lease.recalled(2, X | A), X);
        lease.give(X);
        assert!(lease.holds(S) && !lease.holds(X));
        assert!(lease.granted(X | A, 2), "the server had not seen the return yet");
        assert!(!lease.holds(X) && lease.holds(A));
        lease.granted(X, 3);
        assert!(lease.holds(X));
        lease.validate();
    }

    #[test]
    fn second_recall_does_not_restore_what_the_first_took() {
        let mut lease = Lease::default();
        lease.granted(X | Rights::OPEN, 1);
        lease.recalled(2, X | S);
        lease.give(X | S);
        lease.recalled(3, Rights::OPEN);
        lease.granted(X | Rights::OPEN, 3);
        assert_eq!(lease.rights(), Rights::OPEN);
        lease.validate();
    }

    #[test]
    fn recall_that_overtakes_its_grant_is_not_undone_by_it() {
        let mut lease = Lease::default();
        assert_eq!(lease.recalled(2, X), Rights::empty());
        lease.give(X);
        assert!(!lease.granted(X, 1));
        assert_eq!(lease.rights(), Rights::empty());
    }

    /// A server, a client and the messages in flight between them: the client never
    /// relies on rights that the server may grant to another.
    #[test]
    fn server_records_what_the_client_relies_on_at_every_random_step() {
        let mut state = 0x2545_f491_4f6c_dd1du64;
        let mut random = move |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        for _ in 0..300 {
            let mut client = Lease::default();
            let (mut held, mut seq) = (Rights::empty(), 0u64);
            let mut recall: Option<(u64, Rights)> = None;
            // From the server: replies may overtake each other (the reply gate), recalls keep
            // their order.
            let mut replies: Vec<(Rights, u64)> = Vec::new();
            let mut recalls: Vec<(u64, Rights)> = Vec::new();
            let mut returns: Vec<(u64, Rights)> = Vec::new();
            for _ in 0..200 {
                match random(6) {
                    0 if recall.is_none() => {
                        held |= [X | S, S, A, Rights::NAMES][random(4) as usize];
                        seq += 1;
                        replies.push((held, seq));
                    }
                    1 => replies.push((held, seq)),
                    2 if recall.is_none() && !held.is_empty() => {
                        let take = [X, X | S, A, Rights::NAMES][random(4) as usize] & held;
                        seq += 1;
                        recall = Some((seq, take));
                        recalls.push((seq, take));
                    }
                    3 if !replies.is_empty() => {
                        let (rights, at) = replies.remove(random(replies.len() as u64) as usize);
                        client.granted(rights, at);
                    }
                    4 if !recalls.is_empty() => {
                        let (at, take) = recalls.remove(0);
                        client.recalled(at, take);
                        client.give(take);
                        returns.push((at, take));
                    }
                    5 if !returns.is_empty() => {
                        let (at, take) = returns.remove(0);
                        held -= take;
                        if recall.is_some_and(|(seq, _)| seq == at) {
                            recall = None;
                        }
                    }
                    _ => {}
                }
                client.validate();
                let in_flight = returns.iter().fold(Rights::empty(), |all, (_, take)| all | *take);
                assert!(held.closed().contains(client.rights()), "{client:?} {held:?}");
                assert!(!client.rights().intersects(in_flight), "{client:?} {in_flight:?}");
            }
        }
    }
}
