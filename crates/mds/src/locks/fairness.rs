//! Fairness between lock owners that poll.
//!
//! An owner that takes and frees a lock again and again leaves it free for moments only. Another
//! one that polls hits such a moment only by chance. So the server remembers an owner that was
//! refused, and once that has gone on for [`PATIENCE`], requests of other owners wait a little.

use std::cell::RefCell;
use std::collections::BTreeMap;

use env::sync::{Notified, Notify};
use proto::lock_server::Owner;
use types::{Duration, Ino, Instant};

/// How long an owner is refused before others give way.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long others give way: pollers ask at least every tenth of a second.
const PAUSE: Duration = Duration::from_millis(150);
/// An owner that has not asked for this long does not poll any more.
const POLL_GAP_MAX: Duration = Duration::from_millis(300);
/// Bound of the number of files with an entry; further files get none.
const FILES_MAX: usize = 4096;

struct RefusedOwner {
    /// The owner that was refused.
    owner: Owner,
    /// When it last asked.
    asked: Instant,
    /// From this time on others give way again.
    from: Instant,
    /// Others give way until this time.
    until: Instant,
    /// It has got a lock since it was refused.
    granted: bool,
}

/// See the module.
#[derive(Default)]
pub struct LockFairness {
    files: RefCell<BTreeMap<Ino, RefusedOwner>>,
    changed: Notify,
}

impl LockFairness {
    /// `owner` asked for a lock and was refused.
    pub fn refused(&self, ino: Ino, owner: Owner, now: Instant) {
        let mut files = self.files.borrow_mut();
        if files.len() >= FILES_MAX {
            files.retain(|_, refused| !refused.stopped_polling(now));
        }
        let full = files.len() >= FILES_MAX;
        match files.get_mut(&ino) {
            Some(refused) if refused.owner == owner => {
                (refused.asked, refused.granted) = (now, false)
            }
            Some(refused) if !refused.stopped_polling(now) => {}
            None if full => {}
            _ => {
                let refused = RefusedOwner {
                    owner,
                    asked: now,
                    from: now + PATIENCE,
                    until: now,
                    granted: false,
                };
                files.insert(ino, refused);
            }
        }
    }

    /// `owner` got a lock.
    pub fn granted(&self, ino: Ino, owner: Owner) {
        let mut files = self.files.borrow_mut();
        if let Some(refused) = files.get_mut(&ino).filter(|refused| refused.owner == owner) {
            refused.granted = true;
        }
    }

    /// `owner` holds no lock of the file any more: forget it if it had got one.
    pub fn freed(&self, ino: Ino, owner: Owner) {
        let mut files = self.files.borrow_mut();
        if files.get(&ino).is_some_and(|refused| refused.owner == owner && refused.granted) {
            files.remove(&ino);
            self.changed.notify_all();
        }
    }

    /// Until when `owner`, which holds no lock of the file, gives way.
    pub fn pause(&self, ino: Ino, owner: Owner, now: Instant) -> Option<Instant> {
        let mut files = self.files.borrow_mut();
        let refused = files.get_mut(&ino)?;
        if refused.owner == owner || refused.stopped_polling(now) {
            return None;
        }
        if now >= refused.from {
            refused.until = now + PAUSE;
            refused.from = refused.until + PATIENCE;
        }
        (now < refused.until).then_some(refused.until)
    }

    /// Does `owner` have to let another one go first?
    pub fn favours_another(&self, ino: Ino, owner: Owner) -> bool {
        self.files.borrow().get(&ino).is_some_and(|refused| refused.owner != owner)
    }

    /// Ends when an owner that had to go first is done; it misses nothing after the call.
    pub fn changed(&self) -> Notified {
        self.changed.notified()
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        let files = self.files.borrow();
        assert!(files.len() <= FILES_MAX, "the table of refused owners is too long");
        for refused in files.values() {
            assert!(refused.until <= refused.from, "others give way without a pause");
        }
    }
}

impl RefusedOwner {
    fn stopped_polling(&self, now: Instant) -> bool {
        now.since(self.asked) >= POLL_GAP_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ClientId, LockOwner};

    /// PROTOCOLS 9.1.
    #[test]
    fn other_owners_give_way_to_a_refused_poller_until_it_got_a_lock() {
        let at = |millis: u64| Instant(0) + Duration::from_millis(millis);
        let owner = |client| Owner { client: ClientId(client), owner: LockOwner(1) };
        let (ino, fairness) = (Ino(7), LockFairness::default());
        for time in (0..500).step_by(100) {
            fairness.refused(ino, owner(1), at(time));
            assert_eq!(fairness.pause(ino, owner(2), at(time)), None, "it is patient");
        }
        assert_eq!(fairness.pause(ino, owner(1), at(500)), None);
        assert_eq!(fairness.pause(ino, owner(2), at(500)), Some(at(650)));
        assert_eq!(fairness.pause(ino, owner(2), at(660)), None, "once in a while");
        fairness.freed(ino, owner(1));
        assert!(fairness.favours_another(ino, owner(2)), "it got nothing yet");
        fairness.granted(ino, owner(1));
        fairness.freed(ino, owner(1));
        assert!(!fairness.favours_another(ino, owner(2)));
        fairness.refused(ino, owner(1), at(1000));
        assert_eq!(fairness.pause(ino, owner(2), at(1600)), None, "it polls no more");
    }
}
