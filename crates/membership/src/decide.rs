//! The table of a server that stands by: what it sees → what it does.
//!
//! | life | goes first | step | why |
//! |---|---|---|---|
//! | free | itself | claim | nobody owns |
//! | free | another | wait | it has just given the metadata up, or serves others already |
//! | alive | any | wait | a slow owner is not dead |
//! | dead | itself, or another as it has given up | claim | the proof is there |
//! | dead | another, as it serves others | wait | a process that serves nothing has more room |
//! | unproved | the same | fence, if one covers the owner | without a proof there is no takeover |
//! | unproved | any | else wait | the same |
//! | damaged record | any | wait | an epoch could fall: somebody has to look |
//! | membership away | any | wait | nobody knows the owner |

use crate::{Life, Member, Owner, Proof, Seen, Trouble};

/// What a server that stands by knows beside the membership.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ready {
    /// It has just given the metadata up, and lets another one go first.
    pub holds_back: bool,
    /// It serves other metadata, and leaves these to standbys or their own server for now: why.
    pub defers: Option<&'static str>,
    /// A fence covers the owner's host, and has not failed for this owner.
    pub fence: bool,
}

/// Why a server that stands by does nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// The owner lives; the note says what is odd about it.
    Alive(Option<String>),
    /// The owner shows no life: what is missing for a takeover.
    Unproved(String),
    /// It lets another one go first.
    HoldingBack,
    /// It serves other metadata, and others may take these: why it does not yet.
    Deferring(&'static str),
    /// The membership cannot be used.
    Trouble(Trouble),
}

/// What a server that stands by does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing; it looks again soon.
    Wait(Waiting),
    /// It has the owner's host fenced, and asks the fence whether it did. A proof leads to a claim
    /// that has it.
    Fence(Member),
    /// It claims, with this proof.
    Claim(Proof),
}

/// See the module.
pub fn decide(seen: &Result<Seen, Trouble>, ready: Ready) -> Step {
    let seen = match seen {
        Ok(seen) => seen,
        Err(trouble) => return Step::Wait(Waiting::Trouble(trouble.clone())),
    };
    match (&seen.life, seen.record.holder(), ready.defers) {
        (Life::Alive { note }, ..) => Step::Wait(Waiting::Alive(note.clone())),
        (Life::Free, ..) if ready.holds_back => Step::Wait(Waiting::HoldingBack),
        (Life::Free | Life::Dead(_), _, Some(why)) => Step::Wait(Waiting::Deferring(why)),
        (Life::Free, ..) => Step::Claim(Proof::Free),
        (Life::Dead(proof), ..) => Step::Claim(proof.clone()),
        (Life::Unproved { .. }, Some(Owner { member, .. }), None) if ready.fence => {
            Step::Fence(member.clone())
        }
        (Life::Unproved { missing }, ..) => Step::Wait(Waiting::Unproved(missing.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Record;

    fn owned() -> Record {
        let member = Member { host: "a".into(), pid: 1, nonce: 1, address: "a:1".into() };
        let owner = Owner { epoch: 4, member, since_ms: 0, released: None };
        Record { owner: Some(owner), history: Vec::new() }
    }

    #[test]
    fn owner_is_replaced_only_by_a_proof() {
        let all = [false, true].map(|one| [(one, false), (one, true)]).concat();
        for (holds_back, fence) in all {
            let ready = Ready { holds_back, fence, defers: None };
            let step = |life: Life| decide(&Ok(Seen { record: owned(), life }), ready);
            let alive = step(Life::Alive { note: None });
            assert_eq!(alive, Step::Wait(Waiting::Alive(None)), "{ready:?}");
            let dead = step(Life::Dead(Proof::Lock));
            assert_eq!(dead, Step::Claim(Proof::Lock), "{ready:?}");
            let unproved = step(Life::Unproved { missing: "x".into() });
            assert_eq!(matches!(unproved, Step::Fence(_)), fence, "{ready:?}");
            assert!(!matches!(unproved, Step::Claim(_)), "{ready:?}");
            let free = decide(&Ok(Seen { record: Record::default(), life: Life::Free }), ready);
            assert_eq!(free == Step::Claim(Proof::Free), !holds_back, "{ready:?}");
            // A server that serves others does nothing yet, whatever it could.
            let later = Ready { defers: Some("x"), ..ready };
            let step = |life: Life| decide(&Ok(Seen { record: owned(), life }), later);
            let waits = Step::Wait(Waiting::Deferring("x"));
            assert_eq!(step(Life::Dead(Proof::Lock)), waits, "{later:?}");
            assert_eq!(step(Life::Free) == waits, !holds_back, "{later:?}");
            let unproved = step(Life::Unproved { missing: "x".into() });
            assert_eq!(unproved, Step::Wait(Waiting::Unproved("x".into())), "{later:?}");
            for trouble in [Trouble::Away("x".into()), Trouble::Damaged("x".into())] {
                let step = decide(&Err(trouble.clone()), ready);
                assert_eq!(step, Step::Wait(Waiting::Trouble(trouble)), "{ready:?}");
            }
        }
    }
}
