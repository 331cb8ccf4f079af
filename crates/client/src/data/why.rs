//! Why blocks of a file lie where they lie, as far as this client has chosen it: what
//! `redbud layout FILE` shows.
//!
//! Invariant: a reason is remembered with the place that it is for, and shown only while the blocks
//! have just this place.

use std::collections::BTreeMap;
use std::fmt;

use proto::prealloc::{Allocation, Policy};
use types::PagId;

use super::pool::PoolRun;

/// Reasons that are kept for a file; later ones are not kept.
const REASONS_MAX: usize = 4096;

/// Why the zone of the blocks was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ZoneReason {
    /// There is only one.
    Only,
    /// It was its turn when the file got its first blocks.
    Turn,
    /// The blocks in front of them lie there.
    SameFile,
    /// It is the turn of this part of a striped file.
    Part(u64),
    /// The zone that it should have been had no room, or is not to be used.
    Other,
}

/// Why the run in the zone was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RunReason {
    /// It goes on where the blocks in front end.
    Behind,
    /// It was kept for this part of the file.
    Window,
    /// It was free.
    Free,
}

/// Why a run was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Why {
    pub zone: ZoneReason,
    pub run: RunReason,
    pub allocation: Allocation,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.zone {
            ZoneReason::Only => f.write_str("the only zone")?,
            ZoneReason::Turn => f.write_str("fileround: the zone's turn")?,
            ZoneReason::SameFile => f.write_str("fileround: the file's zone")?,
            ZoneReason::Part(number) => write!(f, "striping: part {number}")?,
            ZoneReason::Other => f.write_str("another zone had no room or is not used")?,
        }
        let how = match self.allocation.how {
            Policy::OnDemand(_) => "od",
            Policy::Reservation => "reservation",
            Policy::Vanilla => "vanilla",
            Policy::Static => "static",
        };
        let when = if self.allocation.is_at_write() { "write" } else { "launch" };
        let by = if self.allocation.delegated { "" } else { " by the server" };
        let run = match self.run {
            RunReason::Behind => "behind the blocks in front",
            RunReason::Window => "out of a window",
            RunReason::Free => "free blocks",
        };
        write!(f, "; {how} at {when}{by}: {run}")
    }
}

/// The reasons for the places of one file, by their first blocks.
#[derive(Clone, Default, Debug)]
pub(super) struct Reasons(BTreeMap<u64, (PagId, u64, Why)>);

impl Reasons {
    /// File block `at` got the first block of `run`.
    pub fn note(&mut self, at: u64, run: &PoolRun, why: Why) {
        if self.0.len() < REASONS_MAX || self.0.contains_key(&at) {
            self.0.insert(at, (run.pag, run.addr, why));
        }
    }

    /// Why file block `at` has its place at `addr` of this zone, if that is known.
    pub fn at(&self, at: u64, pag: PagId, addr: u64) -> Option<Why> {
        let (zone, block, why) = self.0.get(&at)?;
        (*zone == pag && *block == addr).then_some(*why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_shown_only_for_the_place_that_it_is_for() {
        let mut reasons = Reasons::default();
        let run = PoolRun { pag: PagId(3), addr: 70, len: 8 };
        let why = Why {
            zone: ZoneReason::Part(2),
            run: RunReason::Window,
            allocation: Allocation::default(),
        };
        reasons.note(5, &run, why);
        assert_eq!(reasons.at(5, PagId(3), 70), Some(why));
        assert_eq!(reasons.at(5, PagId(3), 71), None);
        assert_eq!(reasons.at(6, PagId(3), 71), None);
        assert_eq!(why.to_string(), "striping: part 2; od at launch: out of a window");
        let off = Allocation { how: Policy::Vanilla, delegated: false, ..Allocation::default() };
        let why = Why { zone: ZoneReason::Turn, run: RunReason::Free, allocation: off };
        let text = "fileround: the zone's turn; vanilla at write by the server: free blocks";
        assert_eq!(why.to_string(), text);
    }
}
