//! The record of a membership: the owner, and the history of takeovers.
//!
//! Its text has three lines: the word `redbud-membership` with the version, the record as JSON, and
//! the CRC-32C of the two lines before. So a torn or changed record is damage, and never an older
//! record.

use std::fmt;

use serde::{Deserialize, Serialize};
use types::{Epoch, Timestamp};

use crate::{Claim, Proof};

/// Takeovers that a record keeps; the oldest are dropped.
pub const HISTORY_MAX: usize = 64;
/// The first line.
const HEAD: &str = "redbud-membership 1";

/// A server process.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its host, as fences know it.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// A random number, so that a later process with the same pid is another member.
    pub nonce: u64,
    /// The address that it listens on.
    pub address: String,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (host {}, process {})", self.address, self.host, self.pid)
    }
}

/// The server that owns the metadata, or that did last.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// The epoch that it claimed.
    pub epoch: u32,
    /// Which one.
    pub member: Member,
    /// When it claimed, in milliseconds since 1970.
    pub since_ms: i64,
    /// Why it has released; `None`: it has not.
    pub released: Option<String>,
}

/// A claim that succeeded.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Takeover {
    /// The epoch that was claimed.
    pub epoch: u32,
    /// The server that claimed.
    pub member: Member,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// Why: what was proved of the last owner, or why that one had released.
    pub reason: String,
    /// The epoch with which the store was opened; 0: it was not, so far.
    pub opened: u32,
    /// Milliseconds from the proof to the first operation; 0: not yet.
    pub took_ms: u64,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Record {
    /// The owner; `None`: nobody has claimed yet.
    pub owner: Option<Owner>,
    /// The newest takeovers, oldest first.
    pub history: Vec<Takeover>,
}

/// Why a record cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage(pub &'static str);

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Record {
    /// The epoch of the owner, also of one that has released; 0: there was none.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.owner.as_ref().map_or(0, |owner| owner.epoch))
    }

    /// The owner, unless it has released.
    pub fn holder(&self) -> Option<&Owner> {
        self.owner.as_ref().filter(|owner| owner.released.is_none())
    }

    /// The record after `claim`, which the caller has found to be allowed; `None`: the owner is
    /// another than the claim saw, or no epoch is left.
    pub fn after(&self, claim: &Claim) -> Option<Record> {
        if self.epoch() != claim.seen {
            return None;
        }
        let epoch = claim.seen.0.max(claim.above.0).checked_add(1)?;
        let at_ms = millis(claim.at);
        let reason = match (&claim.proof, &self.owner) {
            (Proof::Free, None) => "the first server".to_owned(),
            (Proof::Free, Some(owner)) => match &owner.released {
                Some(why) => format!("{}: {why}", owner.member.address),
                None => return None,
            },
            (proof, Some(owner)) => format!("{} has ended: {proof}", owner.member.address),
            (proof, None) => proof.to_string(),
        };
        let (member, since_ms) = (claim.member.clone(), at_ms);
        let mut history = self.history.clone();
        let from = (history.len() + 1).saturating_sub(HISTORY_MAX);
        history.drain(..from);
        history.push(Takeover {
            epoch,
            member: member.clone(),
            at_ms,
            reason,
            opened: 0,
            took_ms: 0,
        });
        Some(Record { owner: Some(Owner { epoch, member, since_ms, released: None }), history })
    }

    /// The record after the owner of `epoch` has released; `None`: that is not the owner.
    pub fn released(&self, epoch: Epoch, why: &str) -> Option<Record> {
        let mut record = self.clone();
        let owner = record.owner.as_mut().filter(|owner| owner.epoch == epoch.0)?;
        owner.released = Some(why.to_owned());
        Some(record)
    }

    /// The record with what is known of a takeover once it serves; `None`: it has no such one.
    pub fn serving(&self, epoch: Epoch, opened: Epoch, took_ms: u64) -> Option<Record> {
        let mut record = self.clone();
        let entry = record.history.iter_mut().rfind(|one| one.epoch == epoch.0)?;
        (entry.opened, entry.took_ms) = (opened.0, took_ms.max(1));
        Some(record)
    }

    /// Its text.
    pub fn encode(&self) -> String {
        // Plain fields without maps: this cannot fail.
        let json = serde_json::to_string(self).unwrap_or_default();
        let body = format!("{HEAD}\n{json}\n");
        let sum = crc32c::crc32c(body.as_bytes());
        format!("{body}{sum:08x}\n")
    }

    /// Reads a text.
    ///
    /// # Errors
    /// It is torn, changed, or of another release.
    pub fn decode(text: &str) -> Result<Record, Damage> {
        let whole = text.strip_suffix('\n').ok_or(Damage("its end is missing"))?;
        let (body, sum) = whole.rsplit_once('\n').ok_or(Damage("its end is missing"))?;
        let body = format!("{body}\n");
        if format!("{:08x}", crc32c::crc32c(body.as_bytes())) != sum {
            return Err(Damage("its checksum is wrong"));
        }
        let json = body.strip_prefix(HEAD).ok_or(Damage("it is of another release"))?;
        let record: Record =
            serde_json::from_str(json).map_err(|_| Damage("it is of another release"))?;
        let rises = record.history.windows(2).all(|pair| pair[0].epoch < pair[1].epoch);
        let last = record.history.last().map_or(0, |last| last.epoch);
        match rises && last <= record.epoch().0 {
            true => Ok(record),
            false => Err(Damage("its epochs do not rise")),
        }
    }
}

/// Milliseconds since 1970.
fn millis(at: Timestamp) -> i64 {
    at.seconds.saturating_mul(1000).saturating_add(i64::from(at.nanos / 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(pid: u32) -> Member {
        Member { host: "a".into(), pid, nonce: 7, address: format!("10.0.0.{pid}:10821") }
    }

    fn claim(seen: u32, above: u32, proof: Proof) -> Claim {
        let at = Timestamp { seconds: 10, nanos: 5_000_000 };
        Claim { seen: Epoch(seen), above: Epoch(above), member: member(1), proof, at }
    }

    #[test]
    fn claim_replaces_only_the_owner_that_it_saw_with_a_higher_epoch() {
        let first = Record::default().after(&claim(0, 3, Proof::Free)).unwrap();
        assert_eq!(first.epoch(), Epoch(4), "above the devices'");
        assert_eq!(first.after(&claim(3, 3, Proof::Lock)), None, "another owner");
        assert_eq!(first.after(&claim(4, 0, Proof::Free)), None, "it has not released");
        let second = first.after(&claim(4, 2, Proof::Lock)).unwrap();
        assert_eq!(second.epoch(), Epoch(5), "above the last owner's");
        assert_eq!(second.history[1].reason, "10.0.0.1:10821 has ended: its lock is free");
        assert_eq!(second.released(Epoch(4), "planned"), None, "it is another's");
        let third = second.released(Epoch(5), "planned").unwrap();
        assert_eq!((third.holder(), third.epoch()), (None, Epoch(5)));
        let third = third.after(&claim(5, 0, Proof::Free)).unwrap();
        assert_eq!(third.history[2].reason, "10.0.0.1:10821: planned");
        let served = third.serving(Epoch(6), Epoch(6), 0).unwrap();
        assert_eq!((served.history[2].opened, served.history[2].took_ms), (6, 1));
        let most = Record { owner: None, ..third }.after(&claim(0, u32::MAX, Proof::Free));
        assert_eq!(most, None, "no epoch is left");
    }

    #[test]
    fn history_is_bounded() {
        let mut record = Record::default();
        for epoch in 0..200 {
            record = record.after(&claim(epoch, 0, Proof::Lock)).unwrap();
        }
        assert_eq!(record.history.len(), HISTORY_MAX);
        assert_eq!(record.history.last().unwrap().epoch, 200);
    }

    #[test]
    fn torn_or_changed_text_is_damage_at_every_byte() {
        let record = Record::default().after(&claim(0, 3, Proof::Free)).unwrap();
        let text = record.encode();
        assert_eq!(Record::decode(&text), Ok(record));
        for end in 0..text.len() {
            assert!(Record::decode(&text[..end]).is_err(), "cut at {end}");
        }
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let Ok(changed) = String::from_utf8(bytes) else { continue };
            assert!(Record::decode(&changed).is_err(), "changed at {at}");
        }
    }
}
