//! Membership: which process owns the metadata of a file system, and how another one takes over
//! (003 §III: fencing, and the takeover of the log).
//!
//! A [`Membership`] keeps a [`Record`]: the owner, with its epoch, and the history of takeovers. It
//! also knows whether the owner lives ([`Life`]). [`decide()`] says what a server that stands by
//! does with that. No module here does I/O, reads a clock or starts a thread.
//!
//! Invariants, of every membership:
//! - of two claims one fails: a claim names the epoch of the owner that it saw, and only replaces
//!   that one;
//! - epochs of claims rise, whatever is damaged or torn;
//! - no claim replaces an owner without a [`Proof`] that this owner has ended or cannot write. A
//!   membership checks the kinds of proof that it can check itself;
//! - an owner knows until when it is one ([`Term::ends`]), and stops before that time is over.

mod decide;
mod leases;
mod record;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use types::{Epoch, Instant, Timestamp};

pub use decide::{Ready, Step, Waiting, decide};
pub use leases::{is_silent, life_without_lease, may_claim, term_end};
pub use record::{Damage, HISTORY_MAX, Member, Owner, Record, Takeover};

/// What a call yields, later.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Whether the owner of a record lives.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Life {
    /// Nobody owns: no server has claimed yet, or the last one has released.
    Free,
    /// The owner holds what only a living owner holds. The note says what is odd about it: "its
    /// process is stopped".
    Alive {
        /// For people; `None`: nothing is odd.
        note: Option<String>,
    },
    /// The owner has ended, or can write no more.
    Dead(Proof),
    /// The owner shows no life, and nothing proves its death: the text says what is missing.
    Unproved {
        /// "no answer of its host, and no fence agent covers it".
        missing: String,
    },
}

/// Why an owner has released that was asked to hand over.
pub const PLANNED: &str = "a planned failover";
/// Why an owner has released that was stopped in order.
pub const STOPPED: &str = "it was stopped";
/// Why an owner has released that had taken over beside what it serves, and was stopped in order.
/// That says nothing of the metadata's own server.
pub const RESCUER_STOPPED: &str = "the server that had taken it over was stopped";

/// Why an owner may be replaced.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Proof {
    /// No owner is there to be replaced.
    Free,
    /// The exclusive lock that it held as long as it lived is free. The claim takes that lock.
    Lock,
    /// Its lease is over by the membership's own clock.
    Lease,
    /// A fence has cut it off, and has been asked whether it did. The text names the fence.
    Fence(String),
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Proof::Free => f.write_str("there was no owner"),
            Proof::Lock => f.write_str("its lock is free"),
            Proof::Lease => f.write_str("its lease is over"),
            Proof::Fence(how) => write!(f, "it is cut off by {how}"),
        }
    }
}

/// What a look at a membership shows.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Seen {
    /// The record.
    pub record: Record,
    /// Does its owner live?
    pub life: Life,
}

/// Why a membership cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// It does not answer, or has no quorum: trying again may help.
    Away(String),
    /// Its record is damaged: somebody has to look. The text says where and what to do.
    Damaged(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Away(text) | Trouble::Damaged(text) => f.write_str(text),
        }
    }
}

/// A claim of the metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Epoch of the owner that was seen; 0: none.
    pub seen: Epoch,
    /// The new epoch is above this one, and above `seen`: the highest that is on the devices.
    pub above: Epoch,
    /// Who claims.
    pub member: Member,
    /// Why the owner that was seen may be replaced.
    pub proof: Proof,
    /// The time of the claim, for the history.
    pub at: Timestamp,
}

/// What an owner has got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Term {
    /// Its epoch: the store is opened with this one or a higher one.
    pub epoch: Epoch,
    /// When it must have stopped, by `Env::now`, which counts while the host sleeps; `None`: it
    /// owns as long as its process lives.
    pub ends: Option<Instant>,
}

/// Why a claim did not succeed. It may be made again after another look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Another server has claimed meanwhile, or the owner shows life again.
    Changed(String),
    /// Nobody knows whether it has succeeded. A look shows it: the owner may be this member.
    Unknown(String),
    /// The membership cannot be used.
    Trouble(Trouble),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Changed(text) | Refusal::Unknown(text) => f.write_str(text),
            Refusal::Trouble(trouble) => trouble.fmt(f),
        }
    }
}

/// How a renewal ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Renewal {
    /// The term lasts until then; it counts from the moment at which the request was sent.
    Until(Option<Instant>),
    /// No answer: the term ends when it would have.
    Late(String),
    /// The term is over: another owner is recorded, or the lease is gone. Stop at once.
    Lost(String),
}

/// Where servers agree on who owns the metadata.
///
/// One value belongs to one process. A call that is dropped has an unknown outcome, like one that
/// is not answered.
pub trait Membership {
    /// Its kind and place, for messages: "the lock /run/x/owner.lock".
    fn name(&self) -> String;

    /// Reads the record, and whether its owner lives. Changes nothing.
    fn look(&self) -> Later<'_, Result<Seen, Trouble>>;

    /// Replaces the owner that was seen, in one step with the end of what that one held. The
    /// record is durable when this yields.
    fn claim<'a>(&'a self, claim: &'a Claim) -> Later<'a, Result<Term, Refusal>>;

    /// Makes the own term longer. Called several times in the length of a term; not for terms
    /// without an end.
    fn renew(&self, term: Term) -> Later<'_, Renewal>;

    /// Records how long the takeover took, from the proof to the first served operation, and
    /// with which epoch the store was opened.
    fn serving(&self, term: Term, opened: Epoch, took: types::Duration) -> Later<'_, ()>;

    /// Gives the metadata up: the store is closed, and the next claim needs no proof. The
    /// text says why: "planned", "stopped".
    fn release<'a>(&'a self, term: Term, why: &'a str) -> Later<'a, Result<(), Trouble>>;

    /// Makes this server known as one that stands by, until it claims or its process ends.
    ///
    /// # Errors
    /// Others do not see it; it can claim nevertheless.
    fn stand_by<'a>(&'a self, member: &'a Member) -> Later<'a, Result<(), Trouble>>;

    /// The servers that stand by.
    fn standbys(&self) -> Later<'_, Result<Vec<Member>, Trouble>>;
}
