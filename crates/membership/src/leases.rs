//! What memberships with leases have in common: what a lease proves, and how long its owner relies
//! on it.

use types::{Duration, Instant};

use crate::{Life, Proof, Record};

/// May a claim with this proof replace the owner, whose lease lasts or is over?
///
/// # Errors
/// It may not; the text says why.
pub fn may_claim(proof: &Proof, lease_lasts: bool) -> Result<(), &'static str> {
    match (proof, lease_lasts) {
        (Proof::Lock, _) => Err("a lock proves nothing where servers have leases"),
        (Proof::Free | Proof::Lease, true) => Err("the owner's lease lasts"),
        // The owner is cut off: the claim ends what it held.
        (Proof::Fence(_), _) | (_, false) => Ok(()),
    }
}

/// Whether the owner of a record lives if no lease of its own lasts.
pub fn life_without_lease(record: &Record) -> Life {
    match record.holder() {
        Some(_) => Life::Dead(Proof::Lease),
        None => Life::Free,
    }
}

/// Has an owner not renewed its lease for longer than a living one takes? It renews in the first
/// half.
pub fn is_silent(left: Duration, granted: Duration) -> bool {
    left * 2 <= granted
}

/// When an owner must have stopped whose request for a lease, or for its renewal, was sent at
/// `sent`. An eighth of the lease is left for clocks that run at different rates, and for the end
/// of the process.
pub fn term_end(sent: Instant, lease: Duration) -> Instant {
    sent + (lease - lease / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_that_lasts_is_ended_only_by_a_fence() {
        for lasts in [false, true] {
            assert!(may_claim(&Proof::Lock, lasts).is_err());
            assert!(may_claim(&Proof::Fence("x".into()), lasts).is_ok());
            for proof in [Proof::Free, Proof::Lease] {
                assert_eq!(may_claim(&proof, lasts).is_err(), lasts, "{proof}");
            }
        }
    }

    #[test]
    fn owner_ends_before_its_lease_and_is_silent_in_the_second_half() {
        let (sent, lease) = (Instant(0), Duration::from_secs(8));
        assert_eq!(term_end(sent, lease), sent + Duration::from_secs(7));
        assert!(!is_silent(Duration::from_millis(4_001), lease));
        assert!(is_silent(Duration::from_secs(4), lease));
    }
}
