//! What transactions cost: counted where it happens, for Table I of the paper (003 §IV, F16).

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use crate::{Outcome, Protocol};

/// What is carried along without being part of a machine's state: machines that differ only in it
/// do the same, so they are equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aside<T>(pub T);

impl<T> PartialEq for Aside<T> {
    fn eq(&self, _: &Aside<T>) -> bool {
        true
    }
}

impl<T> Eq for Aside<T> {}

impl<T> PartialOrd for Aside<T> {
    fn partial_cmp(&self, other: &Aside<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Aside<T> {
    fn cmp(&self, _: &Aside<T>) -> Ordering {
        Ordering::Equal
    }
}

impl<T> Hash for Aside<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// What had to happen one after the other until something happened: the *critical path*.
///
/// It travels with each message. Two paths that meet become the longer of each count, so records
/// that two shards force at the same time count once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Path {
    /// Records that were waited for.
    pub forced: u8,
    /// Records that were written and not waited for.
    pub lazy: u8,
    /// Extra messages.
    pub messages: u8,
}

impl Path {
    /// Both had to happen.
    pub fn join(self, other: Path) -> Path {
        Path {
            forced: self.forced.max(other.forced),
            lazy: self.lazy.max(other.lazy),
            messages: self.messages.max(other.messages),
        }
    }

    pub(crate) fn and_forced(self) -> Path {
        Path { forced: self.forced.saturating_add(1), ..self }
    }

    pub(crate) fn and_lazy(self) -> Path {
        Path { lazy: self.lazy.saturating_add(1), ..self }
    }

    pub(crate) fn and_message(self) -> Path {
        Path { messages: self.messages.saturating_add(1), ..self }
    }
}

/// What one shard did for the transactions of one protocol, since it started.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Counts {
    /// Transactions that it coordinated to a commit.
    pub committed: u64,
    /// Transactions that it coordinated to an abort.
    pub aborted: u64,
    /// Records that were waited for.
    pub forced: u64,
    /// Records that were not.
    pub lazy: u64,
    /// Extra messages that it sent: all but UPDATE REQ and its answers.
    pub messages: u64,
    /// Forced records on the critical paths of the transactions that it coordinated.
    pub critical_forced: u64,
    /// Lazy records there.
    pub critical_lazy: u64,
    /// Extra messages there.
    pub critical_messages: u64,
}

impl Counts {
    /// Adds what another shard counted.
    pub fn add(&mut self, other: &Counts) {
        self.committed += other.committed;
        self.aborted += other.aborted;
        self.forced += other.forced;
        self.lazy += other.lazy;
        self.messages += other.messages;
        self.critical_forced += other.critical_forced;
        self.critical_lazy += other.critical_lazy;
        self.critical_messages += other.critical_messages;
    }

    pub(crate) fn ended(&mut self, outcome: Outcome, path: Path) {
        match outcome {
            Outcome::Committed => self.committed += 1,
            Outcome::Aborted => self.aborted += 1,
        }
        self.critical_forced += u64::from(path.forced);
        self.critical_lazy += u64::from(path.lazy);
        self.critical_messages += u64::from(path.messages);
    }
}

/// Counts of each protocol.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger([Counts; Protocol::ALL.len()]);

impl Ledger {
    pub(crate) fn of(&mut self, protocol: Protocol) -> &mut Counts {
        &mut self.0[protocol as usize]
    }

    pub(crate) fn get(&self, protocol: Protocol) -> Counts {
        self.0[protocol as usize]
    }
}
