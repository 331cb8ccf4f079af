//! The membership of servers on one host: a lock and a file in a directory.
//!
//! | file | what |
//! |---|---|
//! | `owner.lock` | the owner holds its lock as long as it lives; the text names its process |
//! | `owner` | the record, replaced as a whole and durably |
//! | `standby-PID-NONCE` | a server that stands by holds its lock; the text is the member as JSON |
//!
//! Invariants:
//! - only who holds the lock of `owner.lock` changes `owner`;
//! - the kernel frees the lock when its last holder has ended, and not while that one is stopped.
//!   So a free lock proves the owner's death, and a slow owner is never taken for dead;
//! - a damaged record is an error, and never counts as none.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use membership::{
    Claim, Later, Life, Member, Membership, Proof, Record, Refusal, Renewal, Seen, Term, Trouble,
};
use types::Epoch;

use crate::keys;
use crate::lockfile::{self, LockError, LockFile};

/// Begins the names of the files of servers that stand by.
const STANDBY: &str = "standby-";

/// See the module.
pub struct FileMembership {
    directory: PathBuf,
    /// While this process owns.
    owner: RefCell<Option<LockFile>>,
    /// While it stands by.
    standing: RefCell<Option<LockFile>>,
}

impl FileMembership {
    /// The membership in `directory`, which is made if it is missing.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(directory: &Path) -> Result<FileMembership, String> {
        std::fs::create_dir_all(directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
        let directory = directory.to_owned();
        Ok(FileMembership { directory, owner: RefCell::default(), standing: RefCell::default() })
    }

    fn lock_path(&self) -> PathBuf {
        self.directory.join("owner.lock")
    }

    fn read(&self) -> Result<Record, Trouble> {
        let path = self.directory.join("owner");
        let text = match std::fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Record::default()),
            Err(error) => return Err(away(&path, &error)),
        };
        Record::decode(&text).map_err(|damage| {
            Trouble::Damaged(format!(
                "{}: {damage}: no server takes over. When no server runs, remove the file: epochs \
                 go on above those of the metadata, only the history is lost",
                path.display()
            ))
        })
    }

    fn write(&self, record: &Record) -> Result<(), Trouble> {
        let path = self.directory.join("owner");
        keys::replace(&path, &record.encode(), 0o644).map_err(Trouble::Away)
    }

    fn seen(&self) -> Result<Seen, Trouble> {
        let lock = self.lock_path();
        let own = self.owner.borrow().is_some();
        let holder = match own {
            true => Some(String::new()),
            false => lockfile::holder(&lock).map_err(|error| away(&lock, &error))?,
        };
        let record = self.read()?;
        let life = match (holder, record.holder()) {
            (Some(_), owner) => {
                let pid = owner.filter(|_| !own).map(|owner| owner.member.pid);
                Life::Alive { note: pid.and_then(oddity) }
            }
            (None, Some(_)) => Life::Dead(Proof::Lock),
            (None, None) => Life::Free,
        };
        Ok(Seen { record, life })
    }

    fn try_claim(&self, claim: &Claim) -> Result<Term, Refusal> {
        let path = self.lock_path();
        let text = format!("pid {}", claim.member.pid);
        let lock = LockFile::take(&path, &text).map_err(|error| match error {
            LockError::Held(holder) => {
                Refusal::Changed(format!("{} is held ({holder})", path.display()))
            }
            LockError::Io(error) => Refusal::Trouble(away(&path, &error)),
        })?;
        let record = self.read().map_err(Refusal::Trouble)?;
        let Some(next) = record.after(claim) else {
            return Err(Refusal::Changed(format!(
                "epoch {} has been claimed, and not {}",
                record.epoch(),
                claim.seen
            )));
        };
        self.write(&next).map_err(Refusal::Trouble)?;
        *self.owner.borrow_mut() = Some(lock);
        if let Some(standing) = self.standing.borrow_mut().take() {
            // Readers ignore a file without a lock.
            let _ = standing.remove();
        }
        Ok(Term { epoch: next.epoch(), ends: None })
    }

    fn try_stand_by(&self, member: &Member) -> Result<(), Trouble> {
        let path = self.directory.join(format!("{STANDBY}{}-{:x}", member.pid, member.nonce));
        let text = serde_json::to_string(member).unwrap_or_default();
        match LockFile::take(&path, &text) {
            Ok(lock) => *self.standing.borrow_mut() = Some(lock),
            Err(LockError::Held(holder)) => {
                return Err(Trouble::Away(format!("{} is held: {holder}", path.display())));
            }
            Err(LockError::Io(error)) => return Err(away(&path, &error)),
        }
        Ok(())
    }

    fn list_standbys(&self) -> Result<Vec<Member>, Trouble> {
        let entries = std::fs::read_dir(&self.directory);
        let entries = entries.map_err(|error| away(&self.directory, &error))?;
        let mut found = Vec::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !name.starts_with(STANDBY) {
                continue;
            }
            match lockfile::holder(&path) {
                Ok(Some(text)) => found.extend(serde_json::from_str::<Member>(&text)),
                Ok(None) => drop(lockfile::remove_stale(&path, || ())),
                Err(_) => {}
            }
        }
        found.sort_by(|one, another| one.address.cmp(&another.address));
        Ok(found)
    }
}

fn away(path: &Path, error: &std::io::Error) -> Trouble {
    Trouble::Away(format!("{}: {error}", path.display()))
}

/// Says what is odd about a process that lives.
fn oddity(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    matches!(state, 'T' | 't').then(|| format!("its process {pid} is stopped"))
}

impl Membership for FileMembership {
    fn name(&self) -> String {
        format!("the lock {}", self.lock_path().display())
    }

    fn look(&self) -> Later<'_, Result<Seen, Trouble>> {
        Box::pin(async { self.seen() })
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Later<'a, Result<Term, Refusal>> {
        Box::pin(async { self.try_claim(claim) })
    }

    fn renew(&self, term: Term) -> Later<'_, Renewal> {
        Box::pin(async move { Renewal::Until(term.ends) })
    }

    fn serving(&self, term: Term, opened: Epoch, took: types::Duration) -> Later<'_, ()> {
        Box::pin(async move {
            let took_ms = took.as_millis() as u64;
            let record = self.read().ok();
            if let Some(next) = record.and_then(|one| one.serving(term.epoch, opened, took_ms)) {
                // Only the history would lack a number.
                let _ = self.write(&next);
            }
        })
    }

    fn release<'a>(&'a self, term: Term, why: &'a str) -> Later<'a, Result<(), Trouble>> {
        Box::pin(async move {
            let released = match self.read()?.released(term.epoch, why) {
                Some(record) => self.write(&record),
                None => Ok(()),
            };
            self.owner.borrow_mut().take();
            released
        })
    }

    fn stand_by<'a>(&'a self, member: &'a Member) -> Later<'a, Result<(), Trouble>> {
        Box::pin(async { self.try_stand_by(member) })
    }

    fn standbys(&self) -> Later<'_, Result<Vec<Member>, Trouble>> {
        Box::pin(async { self.list_standbys() })
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use types::Timestamp;

    use super::*;

    /// The file's calls wait for nothing.
    fn now<T>(later: Later<'_, T>) -> T {
        match pin!(later).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("nothing to wait for"),
        }
    }

    fn member(address: &str) -> Member {
        let pid = std::process::id();
        Member { host: "h".into(), pid, nonce: 1, address: address.into() }
    }

    fn claim(seen: Epoch, proof: Proof, address: &str) -> Claim {
        let at = Timestamp::default();
        Claim { seen, above: Epoch(2), member: member(address), proof, at }
    }

    #[test]
    fn only_one_of_two_claims_and_a_free_lock_proves_death() {
        let dir = std::env::temp_dir().join(format!("redbud-member-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&dir));
        let one = FileMembership::new(&dir).unwrap();
        let two = FileMembership::new(&dir).unwrap();
        assert_eq!(now(one.look()).unwrap().life, Life::Free);
        let term = now(one.claim(&claim(Epoch(0), Proof::Free, "a:1"))).unwrap();
        assert_eq!(term, Term { epoch: Epoch(3), ends: None });
        let second = now(two.claim(&claim(Epoch(0), Proof::Free, "b:1")));
        assert!(matches!(second, Err(Refusal::Changed(_))), "{second:?}");
        assert_eq!(now(two.look()).unwrap().life, Life::Alive { note: None });
        now(two.stand_by(&member("b:1"))).unwrap();
        assert_eq!(now(one.standbys()).unwrap(), [member("b:1")]);
        // It dies.
        one.owner.borrow_mut().take();
        let lock = dir.join("owner.lock");
        // A child that another test is starting has the descriptor until it runs its program.
        assert!(lockfile::wait_released(&lock, types::Duration::from_secs(10)).unwrap());
        let seen = now(two.look()).unwrap();
        assert_eq!((seen.record.epoch(), seen.life), (Epoch(3), Life::Dead(Proof::Lock)));
        let term = now(two.claim(&claim(Epoch(3), Proof::Lock, "b:1"))).unwrap();
        assert_eq!(now(two.standbys()).unwrap(), []);
        now(two.serving(term, Epoch(4), types::Duration::from_millis(7)));
        now(two.release(term, "planned")).unwrap();
        assert!(lockfile::wait_released(&lock, types::Duration::from_secs(10)).unwrap());
        let seen = now(one.look()).unwrap();
        assert_eq!((seen.record.history[1].took_ms, seen.life), (7, Life::Free));
        // A torn record is no lower epoch.
        let text = std::fs::read_to_string(dir.join("owner")).unwrap();
        std::fs::write(dir.join("owner"), &text[..text.len() / 2]).unwrap();
        let damaged = now(one.look());
        assert!(matches!(damaged, Err(Trouble::Damaged(_))), "{damaged:?}");
        let refused = now(one.claim(&claim(Epoch(4), Proof::Free, "a:1")));
        assert!(matches!(refused, Err(Refusal::Trouble(Trouble::Damaged(_)))), "{refused:?}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
