//! A server that stands by, and the term of one that owns: the steps that do not depend on what its
//! process is. `membership::decide` has the table. The process opens the devices, refuses clients
//! meanwhile, and ends.
//!
//! Invariants:
//! - a claim has the proof of the table, or that of a fence that was asked after it had cut off;
//! - a fence is asked only when the metadata can be read here: else the owner would be gone, and
//!   nobody in its place;
//! - a fence that has failed for an owner is not asked again before that one has shown life;
//! - a term is over by the own clock before the membership lets anybody claim;
//! - a server that serves other metadata claims only what its own server has not claimed again, and
//!   no standby, for a while, and never what was stopped in order ([`Courtesy`]).

use std::cell::Cell;
use std::future::{Future, pending};
use std::rc::Rc;

use env::Env;
use membership::{
    Claim, Later, Life, Member, Membership, PLANNED, Proof, Ready, Refusal, Renewal, STOPPED, Seen,
    Step, Term, Trouble, Waiting, decide,
};
use types::plant::planted;
use types::{Bug, ClientId, Duration, Epoch, Instant};

use crate::config::Log;
use crate::fence::{Answer, Fence, FenceAction, FenceTarget};

/// Pause between two looks at the membership.
pub const LOOK: Duration = Duration::from_millis(50);
/// How long a server that serves other metadata leaves those of a dead owner to that one, which may
/// have been started again at once.
pub const COURTESY: Duration = Duration::from_secs(2);
/// The same while a standby is there. One that can claim does so within a few looks.
pub const COURTESY_TO_STANDBYS: Duration = Duration::from_secs(10);
/// The same behind a planned failover. It is shorter than its last owner holds back.
pub const COURTESY_PLANNED: Duration = Duration::from_secs(1);

/// A server that looks at a membership.
pub struct Watcher {
    /// Where it runs.
    pub env: Env,
    /// Where the servers agree.
    pub membership: Rc<dyn Membership>,
    /// Itself.
    pub member: Member,
    /// What may cut off an owner's host.
    pub fences: Vec<Rc<dyn Fence>>,
    /// Receives the log lines.
    pub log: Log,
    /// It has handed over, and lets others go first until then.
    pub held_until: Instant,
    /// Says whether this server can read the metadata; `None`: it always can.
    pub readable: Option<Readable>,
    /// Set if its process serves other metadata: others go first then.
    pub courtesy: Option<Courtesy>,
    /// The owner for which a fence has failed.
    failed_for: Cell<Option<Epoch>>,
}

/// What makes a server that serves other metadata let others go first.
#[derive(Default)]
pub struct Courtesy {
    /// The addresses of servers that do the same. All others go first.
    pub equals: Vec<String>,
    /// Since when the owner with this epoch has shown no life here.
    since: Cell<Option<(Epoch, Instant)>>,
}

impl Courtesy {
    /// Lets all others go first than the servers at the addresses `equals`.
    pub fn to_all_but(equals: Vec<String>) -> Courtesy {
        Courtesy { equals, since: Cell::default() }
    }

    /// Why this server does not claim yet; `None`: it may.
    async fn defers(
        &self,
        (env, membership): (&Env, &dyn Membership),
        seen: &Seen,
    ) -> Option<&'static str> {
        if matches!(seen.life, Life::Alive { .. }) {
            self.since.set(None);
            return None;
        }
        let (epoch, now) = (seen.record.epoch(), env.now());
        let since = self.since.get().filter(|(of, _)| *of == epoch).map_or(now, |(_, at)| at);
        self.since.set(Some((epoch, since)));
        let waited = now.since(since);
        let released = seen.record.owner.as_ref().map(|owner| owner.released.as_deref());
        match released {
            None => return Some("it was never served: its own server goes first"),
            Some(Some(STOPPED)) => return Some("its server was stopped, and has not died"),
            Some(Some(PLANNED)) => {
                let text = "a server that stands by, and serves nothing, goes first";
                return (waited < COURTESY_PLANNED).then_some(text);
            }
            Some(_) if waited < COURTESY => {
                return Some(
                    "its own server, started again, goes first, and servers that stand by",
                );
            }
            Some(_) if waited >= COURTESY_TO_STANDBYS => return None,
            Some(_) => {}
        }
        // A membership that does not say is no reason to be quick.
        let is_equal = |one: &Member| self.equals.contains(&one.address);
        let others = membership.standbys().await.map(|all| !all.iter().all(is_equal));
        others.unwrap_or(true).then_some("a server that stands by, and serves nothing, goes first")
    }
}

/// Says why a server cannot read the metadata.
pub type Readable = Rc<dyn Fn() -> Later<'static, Result<(), String>>>;

/// Where a look leads.
pub enum Turn {
    /// Nothing is to be done; the next look follows after [`LOOK`].
    Waits(Waiting),
    /// A fence has failed; the next look follows at once.
    Again,
    /// The owner may be replaced.
    Proved(Proven),
}

/// A proof that an owner may be replaced.
pub struct Proven {
    /// The epoch of that owner; 0: there was none.
    pub seen: Epoch,
    /// The proof.
    pub proof: Proof,
    /// Since when it is there.
    pub since: Instant,
}

impl Watcher {
    /// A watcher that has not looked yet.
    pub fn new(
        (env, log): (Env, Log),
        membership: Rc<dyn Membership>,
        member: Member,
        fences: Vec<Rc<dyn Fence>>,
    ) -> Watcher {
        Watcher {
            env,
            membership,
            member,
            fences,
            log,
            held_until: Instant(0),
            readable: None,
            courtesy: None,
            failed_for: Cell::default(),
        }
    }

    /// Looks once, and has the owner fenced if the table says so.
    pub async fn look(&self) -> Turn {
        let seen = self.membership.look().await;
        let epoch = seen.as_ref().map_or(Epoch(0), |seen| seen.record.epoch());
        if seen.as_ref().is_ok_and(|seen| matches!(seen.life, Life::Alive { .. })) {
            self.failed_for.set(None);
        }
        let owner = seen.as_ref().ok().and_then(|seen| seen.record.holder());
        let target = owner.map(|owner| target_of(&owner.member));
        let covering = target.as_ref().and_then(|target| {
            let other = target.host != self.member.host && self.failed_for.get() != Some(epoch);
            self.fences.iter().find(|fence| other && fence.covers(target))
        });
        let gave_up = seen.as_ref().ok().and_then(|seen| seen.record.owner.as_ref());
        let holds_back = self.env.now() < self.held_until
            && gave_up.is_some_and(|owner| owner.member.address == self.member.address);
        let defers = match (&self.courtesy, &seen) {
            (Some(courtesy), Ok(seen)) => {
                courtesy.defers((&self.env, &*self.membership), seen).await
            }
            _ => None,
        };
        let ready = Ready { holds_back, fence: covering.is_some(), defers };
        let proof = match (decide(&seen, ready), covering, target) {
            (Step::Wait(waiting), ..) => return Turn::Waits(waiting),
            (Step::Claim(proof), ..) => proof,
            (Step::Fence(_), Some(fence), Some(target)) => {
                if let Some(readable) = &self.readable
                    && let Err(text) = readable().await
                {
                    return Turn::Waits(Waiting::Trouble(Trouble::Away(text)));
                }
                match self.fence(&**fence, &target).await {
                    Some(proof) => proof,
                    None => {
                        self.failed_for.set(Some(epoch));
                        return Turn::Again;
                    }
                }
            }
            // The table fences only where a fence covers the owner.
            (Step::Fence(_), ..) => return Turn::Again,
        };
        Turn::Proved(Proven { seen: epoch, proof, since: self.env.now() })
    }

    /// Cuts the owner's host off, and asks the fence whether it did.
    async fn fence(&self, fence: &dyn Fence, target: &FenceTarget) -> Option<Proof> {
        for action in [FenceAction::Cut, FenceAction::Check] {
            let acted = self.env.timeout(fence.patience(), fence.act(action, target)).await;
            match acted.unwrap_or(Answer::Late) {
                Answer::Yes => {}
                _ if planted(Bug::FenceBelieved) => {}
                Answer::No(why) => {
                    let host = &target.host;
                    (self.log)(&format!("{} does not cut {host} off: {why}", fence.name()));
                    return None;
                }
                Answer::Late => {
                    (self.log)(&format!("{} has not ended in its time", fence.name()));
                    return None;
                }
            }
        }
        Some(Proof::Fence(fence.name()))
    }

    /// Claims the metadata, whose superblock has the epoch `above`; `None`: not now.
    ///
    /// # Errors
    /// The membership cannot be used.
    pub async fn claim(&self, proven: Proven, above: Epoch) -> Result<Option<Term>, Trouble> {
        let (text, at) = (proven.proof.to_string(), self.env.wall());
        let (seen, proof) = (proven.seen, proven.proof);
        let claim = Claim { seen, above, member: self.member.clone(), proof, at };
        match self.membership.claim(&claim).await {
            Ok(term) => {
                (self.log)(&format!("claimed the metadata with epoch {}: {text}", term.epoch));
                Ok(Some(term))
            }
            Err(Refusal::Changed(_)) => Ok(None),
            Err(refusal @ Refusal::Unknown(_)) => {
                (self.log)(&refusal.to_string());
                Ok(None)
            }
            Err(Refusal::Trouble(trouble)) => Err(trouble),
        }
    }
}

/// What a fence needs to know of a server.
fn target_of(member: &Member) -> FenceTarget {
    FenceTarget { client: ClientId(0), host: member.host.clone() }
}

/// Makes a term longer as long as it lasts, and ends the operations of this node with it
/// (`Env::end_io_at`), from the call on. Yields why it may be over: the process ends then. Does not
/// end for a term without an end, and when the metadata are given up.
pub fn keep(
    env: &Env,
    membership: Rc<dyn Membership>,
    term: Term,
) -> impl Future<Output = String> + use<> {
    env.end_io_at(term.ends);
    let env = env.clone();
    async move {
        let Some(mut ends) = term.ends else { return pending().await };
        loop {
            env.sleep(ends.since(env.now()) / 3).await;
            let left = ends.since(env.now());
            match env.timeout(left, membership.renew(term)).await {
                Some(Renewal::Until(Some(later))) => {
                    ends = later;
                    env.end_io_at(Some(later));
                }
                Some(Renewal::Until(None)) => pending().await,
                Some(Renewal::Late(text)) if env.now() >= ends => return text,
                Some(Renewal::Late(_)) => {}
                Some(Renewal::Lost(text)) => return text,
                None => return "its lease could not be renewed in time".into(),
            }
        }
    }
}
