//! The operations of a server at etcd: read the record, claim, renew, release.
//!
//! | key, below `/redbud/NAME/` | what |
//! |---|---|
//! | `record` | the record of the membership, as text |
//! | `owner` | the owner's epoch and process; it goes with the owner's lease |
//! | `standby/NONCE` | a server that stands by; it goes with a lease of its own |
//!
//! Invariants:
//! - `record` and `owner` change together, in a transaction that requires both as they were read;
//! - the revision of `owner` is the token of its owner: every later write requires it;
//! - a lease counts from the sending of the request, and ends earlier here than at etcd;
//! - when a claim's outcome is unknown, the record is read again. Unless it shows the claim, the
//!   lease is revoked, so that the claim cannot succeed later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use membership::{
    Claim, Life, Member, Record, Refusal, Renewal, Seen, Term, Trouble, is_silent,
    life_without_lease, may_claim, term_end,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use types::{Epoch, Instant};

use super::link::{Failed, Post};
use super::wire::{self, Kv, Outcome, Request, Step, Unchanged};

/// Tries to learn how a transaction ended.
const TRIES: usize = 4;

/// The lease and the key of the metadata's owner at etcd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    epoch: Epoch,
    lease: i64,
    /// The revision of the key `owner`.
    revision: i64,
}

/// The [`Held`] of a process, shared by its seats.
#[derive(Clone, Default)]
pub struct Holding(Arc<Mutex<Option<Held>>>);

impl Holding {
    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, term: Term) -> Option<Held> {
        self.lock().filter(|held| held.epoch == term.epoch)
    }
}

/// The text of the key `owner`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct OwnerText {
    epoch: u32,
    member: Member,
}

/// The keys as they were read.
struct State {
    record: Record,
    /// Revision of `record`; 0: it does not exist.
    recorded: i64,
    owner: Option<(OwnerText, Kv)>,
}

impl State {
    fn owned(&self) -> i64 {
        self.owner.as_ref().map_or(0, |(_, kv)| kv.revision)
    }
}

/// A server that stands by.
struct Standing {
    member: Member,
    /// The lease of its key; 0: the key could not be written yet.
    lease: i64,
    /// When it last asked etcd to keep it known.
    asked: Instant,
}

/// See the module. Its calls wait for etcd.
pub struct Seat<P: Post> {
    post: P,
    prefix: String,
    lease: Duration,
    holding: Holding,
    standing: Option<Standing>,
    looked: Option<Instant>,
}

impl<P: Post> Seat<P> {
    /// A seat of the file system `fs_name`.
    pub fn new(post: P, fs_name: &str, lease: Duration, holding: Holding) -> Seat<P> {
        let prefix = format!("/redbud/{fs_name}/");
        Seat { post, prefix, lease, holding, standing: None, looked: None }
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn ask(&mut self, request: &Request) -> Result<Value, Trouble> {
        let sent = self.post.post(request);
        sent.map(|sent| sent.answer).map_err(|failed| Trouble::Away(failed.text()))
    }

    fn transact(
        &mut self,
        required: &[Unchanged<'_>],
        steps: &[Step<'_>],
    ) -> Result<Outcome, Failed> {
        let sent = self.post.post(&wire::transaction(required, steps))?;
        wire::outcome(&sent.answer).map_err(Failed::Unknown)
    }

    fn read(&mut self) -> Result<State, Trouble> {
        let (record, owner) = (self.key("record"), self.key("owner"));
        let read = self.transact(&[], &[Step::Read(&record), Step::Read(&owner)]);
        let read = read.map_err(|failed| Trouble::Away(failed.text()))?.read;
        let [records, owners] = &read[..] else {
            return Err(Trouble::Away("etcd has answered less than it was asked".into()));
        };
        let damaged = |key: &str, what: &str| {
            Trouble::Damaged(format!(
                "the key {key} at etcd: {what}: no server takes over. When no server runs, remove \
                 the keys below {}: epochs go on above those of the metadata, only the history is \
                 lost",
                self.prefix
            ))
        };
        let owner_of = |kv: &Kv| match serde_json::from_str::<OwnerText>(&kv.value) {
            Ok(text) => Ok((text, kv.clone())),
            Err(_) => Err(damaged(&owner, "it is not a server's")),
        };
        let state = State {
            record: match records.first() {
                None => Record::default(),
                Some(kv) => Record::decode(&kv.value)
                    .map_err(|damage| damaged(&record, &damage.to_string()))?,
            },
            recorded: records.first().map_or(0, |kv| kv.revision),
            owner: owners.first().map(owner_of).transpose()?,
        };
        match &state.owner {
            Some((text, _)) if text.epoch != state.record.epoch().0 => {
                Err(damaged(&record, "it has another owner than the key `owner`"))
            }
            _ => Ok(state),
        }
    }

    /// Reads the record, and whether its owner lives.
    pub fn look(&mut self) -> Result<Seen, Trouble> {
        // Servers that stand by look all the time.
        let (now, pause) = (self.post.now(), self.lease / 40);
        let early =
            self.looked.map_or(Duration::ZERO, |last| pause.saturating_sub(now.since(last)));
        if early > Duration::ZERO {
            self.post.pause(early);
        }
        self.looked = Some(self.post.now());
        self.keep_standing();
        let state = self.read()?;
        let life = match &state.owner {
            Some((_, kv)) => self.life(kv),
            None => life_without_lease(&state.record),
        };
        Ok(Seen { record: state.record, life })
    }

    /// An owner renews in the first half of its lease. One that has not shows no life.
    fn life(&mut self, owner: &Kv) -> Life {
        let alive = Life::Alive { note: None };
        let own = self.holding.lock().is_some_and(|held| held.revision == owner.revision);
        if own || owner.lease == 0 {
            return alive;
        }
        let asked = self.ask(&wire::time_to_live(owner.lease));
        let Some(lease) = asked.ok().and_then(|answer| wire::lease(&answer).ok()) else {
            return alive;
        };
        let seconds = |count: i64| Duration::from_secs(count.max(0).unsigned_abs());
        // The rest of a second is cut off.
        if lease.granted == 0 || !is_silent(seconds(lease.left + 1), seconds(lease.granted)) {
            return alive;
        }
        Life::Unproved {
            missing: format!(
                "it has not renewed its lease, which lasts up to {} s more, and no fence has cut \
                 its host off",
                lease.left.max(0) + 1
            ),
        }
    }

    /// A lease of the own length: its number, and when it ends here.
    fn grant(&mut self) -> Result<(i64, Instant), Trouble> {
        let sent = self.post.post(&wire::grant(self.lease.as_secs()));
        let sent = sent.map_err(|failed| Trouble::Away(failed.text()))?;
        let lease = wire::lease(&sent.answer).map_err(Trouble::Away)?;
        Ok((lease.id, self.ends(sent.at, lease.left)))
    }

    /// When the own term ends by a lease that lasts for `seconds` since it was asked for.
    fn ends(&self, sent: Instant, seconds: i64) -> Instant {
        let granted = Duration::from_secs(seconds.max(0).unsigned_abs());
        term_end(sent, granted.min(self.lease))
    }

    fn revoke(&mut self, lease: i64) {
        // Else it ends by itself.
        let _ = self.post.post(&wire::revoke(lease));
    }

    /// Claims; see `Membership::claim`.
    pub fn claim(&mut self, claim: &Claim) -> Result<Term, Refusal> {
        let state = self.read().map_err(Refusal::Trouble)?;
        let changed = |text: &str| Err(Refusal::Changed(text.to_owned()));
        let Some(next) = state.record.after(claim) else {
            return Err(Refusal::Changed(format!(
                "epoch {} has been claimed, and not {}",
                state.record.epoch(),
                claim.seen
            )));
        };
        if let Err(text) = may_claim(&claim.proof, state.owner.is_some()) {
            return changed(text);
        }
        let (lease, ends) = self.grant().map_err(Refusal::Trouble)?;
        let (record, owner) = (self.key("record"), self.key("owner"));
        let standing = self.key(&standing_name(&claim.member));
        let text = OwnerText { epoch: next.epoch().0, member: claim.member.clone() };
        let required = [
            Unchanged { key: &record, revision: state.recorded },
            Unchanged { key: &owner, revision: state.owned() },
        ];
        let steps = [
            Step::Put(&record, next.encode(), 0),
            Step::Put(&owner, serde_json::to_string(&text).unwrap_or_default(), lease),
            Step::Remove(&standing),
        ];
        let revision = match self.transact(&required, &steps) {
            Ok(outcome) if outcome.done => outcome.revision,
            Ok(_) => {
                self.revoke(lease);
                return changed("another server was quicker");
            }
            Err(Failed::Unknown(why)) => self.settle(&text, lease, ends, &why)?,
            Err(failed) => {
                self.revoke(lease);
                return Err(Refusal::Trouble(Trouble::Away(failed.text())));
            }
        };
        if let Some(old) = self.standing.take().filter(|old| old.lease != 0) {
            self.revoke(old.lease);
        }
        *self.holding.lock() = Some(Held { epoch: next.epoch(), lease, revision });
        Ok(Term { epoch: next.epoch(), ends: Some(ends) })
    }

    /// Learns how a claim ended: the revision of its key `owner`.
    fn settle(
        &mut self,
        claimed: &OwnerText,
        lease: i64,
        ends: Instant,
        why: &str,
    ) -> Result<i64, Refusal> {
        for _ in 0..TRIES {
            let state = self.read();
            if self.post.now() >= ends {
                break;
            }
            match state {
                Ok(state) => {
                    if let Some((_, kv)) = state.owner.filter(|(text, _)| text == claimed) {
                        return Ok(kv.revision);
                    }
                    break;
                }
                Err(_) => self.post.pause(self.lease / 40),
            }
        }
        self.revoke(lease);
        // The claim may have removed this key: a later look writes it again.
        if let Some(standing) = &mut self.standing {
            standing.lease = 0;
        }
        let text = format!("nobody knows whether the claim has succeeded: {why}");
        Err(Refusal::Unknown(text))
    }

    /// Makes the own term longer.
    pub fn renew(&mut self, term: Term) -> Renewal {
        let Some(held) = self.holding.of(term) else { return Renewal::Until(None) };
        let sent = match self.post.post(&wire::keep_alive(held.lease)) {
            Ok(sent) => sent,
            Err(failed) => return Renewal::Late(failed.text()),
        };
        let lasts = match wire::lease(&sent.answer) {
            Ok(lease) => lease.left,
            Err(text) => return Renewal::Late(text),
        };
        // A member that has lost its quorum may keep a lease alive; it cannot answer this.
        let owner = self.key("owner");
        let read = match self.transact(&[], &[Step::Read(&owner)]) {
            Ok(outcome) => outcome.read,
            Err(failed) => return Renewal::Late(failed.text()),
        };
        let kv = read.first().and_then(|kvs| kvs.first());
        let holds = kv.is_some_and(|kv| kv.revision == held.revision);
        match holds && lasts > 0 {
            true => Renewal::Until(Some(self.ends(sent.at, lasts))),
            // It was given up meanwhile.
            false if self.holding.of(term).is_none() => Renewal::Until(None),
            false if holds => Renewal::Lost("etcd has ended its lease".into()),
            false => Renewal::Lost("the key `owner` at etcd is not its own any more".into()),
        }
    }

    /// Notes in the history how long the takeover took.
    pub fn serving(&mut self, term: Term, opened: Epoch, took: Duration) {
        let Some(held) = self.holding.of(term) else { return };
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let (record, owner) = (self.key("record"), self.key("owner"));
        // Without it only the history would lack a number.
        for _ in 0..TRIES {
            let Ok(state) = self.read() else { continue };
            let Some(next) = state.record.serving(term.epoch, opened, took_ms) else { return };
            if state.owned() != held.revision || next == state.record {
                return;
            }
            let required = [
                Unchanged { key: &record, revision: state.recorded },
                Unchanged { key: &owner, revision: held.revision },
            ];
            if let Ok(outcome) = self.transact(&required, &[Step::Put(&record, next.encode(), 0)])
                && outcome.done
            {
                return;
            }
        }
    }

    /// Gives the metadata up.
    pub fn release(&mut self, term: Term, why: &str) -> Result<(), Trouble> {
        let Some(held) = self.holding.of(term) else { return Ok(()) };
        // From here on nothing is renewed.
        *self.holding.lock() = None;
        let (record, owner) = (self.key("record"), self.key("owner"));
        let mut last = Trouble::Away("etcd is asked in vain".into());
        for turn in 0..TRIES {
            if turn > 0 {
                self.post.pause(self.lease / 40);
            }
            let state = match self.read() {
                Ok(state) => state,
                Err(trouble) => {
                    last = trouble;
                    continue;
                }
            };
            if state.owned() != held.revision {
                // Done by an earlier turn, or another server has claimed.
                self.revoke(held.lease);
                return Ok(());
            }
            let Some(next) = state.record.released(term.epoch, why) else { return Ok(()) };
            let required = [
                Unchanged { key: &record, revision: state.recorded },
                Unchanged { key: &owner, revision: held.revision },
            ];
            let steps = [Step::Put(&record, next.encode(), 0), Step::Remove(&owner)];
            match self.transact(&required, &steps) {
                Ok(outcome) if outcome.done => {
                    self.revoke(held.lease);
                    return Ok(());
                }
                Ok(_) => {}
                Err(failed) => last = Trouble::Away(failed.text()),
            }
        }
        Err(last)
    }

    /// Makes a server known as one that stands by. Looks keep it known.
    pub fn stand_by(&mut self, member: &Member) -> Result<(), Trouble> {
        let asked = self.post.now();
        self.standing = Some(Standing { member: member.clone(), lease: 0, asked });
        let (lease, _) = self.grant()?;
        let key = self.key(&standing_name(member));
        let text = serde_json::to_string(member).unwrap_or_default();
        let put = self.transact(&[], &[Step::Put(&key, text, lease)]);
        put.map_err(|failed| Trouble::Away(failed.text()))?;
        self.standing = Some(Standing { member: member.clone(), lease, asked });
        Ok(())
    }

    fn keep_standing(&mut self) {
        let now = self.post.now();
        let Some(standing) = &mut self.standing else { return };
        if now.since(standing.asked) < self.lease / 3 {
            return;
        }
        standing.asked = now;
        let (lease, member) = (standing.lease, standing.member.clone());
        let kept = match lease {
            0 => false,
            _ => match self.post.post(&wire::keep_alive(lease)) {
                Ok(sent) => wire::lease(&sent.answer).is_ok_and(|lease| lease.left > 0),
                // Its lease is over.
                Err(Failed::Refused(_)) => false,
                Err(_) => return,
            },
        };
        if !kept {
            // If this fails, a later look does it.
            drop(self.stand_by(&member));
        }
    }

    /// The servers that stand by.
    pub fn standbys(&mut self) -> Result<Vec<Member>, Trouble> {
        let prefix = self.key("standby/");
        let read = self.transact(&[], &[Step::ReadAll(&prefix)]);
        let read = read.map_err(|failed| Trouble::Away(failed.text()))?.read;
        let members = read.iter().flatten().flat_map(|kv| serde_json::from_str(&kv.value));
        let mut found: Vec<Member> = members.collect();
        found.sort_by(|one, another| one.address.cmp(&another.address));
        Ok(found)
    }
}

/// Nobody looks any more: the server stands by no longer, and nobody is to wait for it.
impl<P: Post> Drop for Seat<P> {
    fn drop(&mut self) {
        if let Some(old) = self.standing.take().filter(|old| old.lease != 0) {
            self.revoke(old.lease);
        }
    }
}

fn standing_name(member: &Member) -> String {
    format!("standby/{:016x}", member.nonce)
}

#[cfg(test)]
mod tests;
