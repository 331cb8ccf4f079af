//! A client's lease on one inode, as replies, recalls and returns pass by.
//!
//! Invariants:
//! - the client holds no right that the server does not count as the client's;
//!   the opposite may be so for a while (a grant under way), and a recall of such a
//!   right is answered like any other;
//! - the sequence only grows within a session; what an older reply says of rights
//!   means nothing;
//! - what was given back does not come back by a reply that the server made before
//!   it knew: only a newer sequence brings it.

use types::{Bug, Epoch, Rights, planted};

use crate::lease_server::first_seq;

/// The lease of one inode. Default: nothing held, nothing known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lease {
    seq: u64,
    rights: Rights,
    given: Rights,
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

    /// Rights given up that a reply as old as [`Lease::seq`] does not bring back.
    pub fn given(&self) -> Rights {
        self.given
    }

    /// Are all of `rights` held? `DATA_X` stands for `DATA_S` too.
    pub fn holds(&self, rights: Rights) -> bool {
        self.rights.closed().contains(rights)
    }

    /// A reply says that the client holds `rights` as of `seq`. True if it is news no older than
    /// what is known.
    pub fn granted(&mut self, rights: Rights, seq: u64) -> bool {
        if seq < self.seq && !planted(Bug::OlderGrantTaken) {
            return false;
        }
        if seq > self.seq {
            self.seq = seq;
            self.given = Rights::empty();
        }
        self.rights = rights - self.given;
        true
    }

    /// A recall of `take` as of `seq` came: what of it is held, and must be given back.
    pub fn recalled(&mut self, seq: u64, take: Rights) -> Rights {
        if !(planted(Bug::EarlyRecallForgotten) && self.rights.is_empty()) {
            self.seq = self.seq.max(seq);
        }
        self.rights.closed() & take
    }

    /// The client gives `rights` back and no longer relies on them. (Giving `DATA_S` gives
    /// `DATA_X` too; giving only `DATA_X` keeps `DATA_S`.)
    pub fn give(&mut self, rights: Rights) {
        let had = self.rights.closed();
        let mut give = rights;
        if give.contains(Rights::DATA_S) {
            give |= Rights::DATA_X;
        }
        self.rights = had - give;
        self.given |= give;
    }

    /// The session is gone: nothing is held and no sequence counts any more.
    pub fn forget(&mut self) {
        *self = Lease::default();
    }

    /// The server restarted, and `epoch` has begun: the rights stay (they are reclaimed), under the
    /// sequence that the server gives them. What was given up before that the server does not
    /// count; what is given up after, it does until it hears so.
    pub fn reclaim(&mut self, epoch: Epoch) {
        let first = first_seq(epoch);
        if self.seq < first {
            self.seq = first;
            self.given = Rights::empty();
        }
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        assert!(!self.rights.intersects(self.given), "{self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: Rights = Rights::DATA_X;
    const S: Rights = Rights::DATA_S;
    const A: Rights = Rights::ATTR;

    #[test]
    fn an_older_reply_says_nothing_about_rights() {
        let mut lease = Lease::default();
        assert!(lease.granted(A | X, 5));
        assert!(!lease.granted(A, 4));
        assert!(lease.holds(S) && lease.holds(X));
        lease.validate();
    }

    #[test]
    fn what_was_given_back_returns_only_with_a_newer_sequence() {
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
    fn a_second_recall_does_not_revive_what_the_first_took() {
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
    fn a_recall_that_overtakes_its_grant_is_not_undone_by_it() {
        let mut lease = Lease::default();
        assert_eq!(lease.recalled(2, X), Rights::empty());
        lease.give(X);
        assert!(!lease.granted(X, 1));
        assert_eq!(lease.rights(), Rights::empty());
    }

    /// A server, a client and the messages under way between them: the client never
    /// relies on what the server gave to another.
    #[test]
    fn at_every_step_of_random_runs_the_server_counts_what_the_client_relies_on() {
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
            // Down: replies may overtake each other (the reply gate), recalls stay in order.
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
                let under_way = returns.iter().fold(Rights::empty(), |all, (_, take)| all | *take);
                assert!(held.closed().contains(client.rights()), "{client:?} {held:?}");
                assert!(!client.rights().intersects(under_way), "{client:?} {under_way:?}");
            }
        }
    }
}
