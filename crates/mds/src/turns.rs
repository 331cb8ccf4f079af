//! Turns at locks that owners poll for.
//!
//! Who takes and frees a lock again and again leaves it free for moments only, which one who polls
//! for it hardly meets: each moment must be hit by chance. So it is remembered who was refused, and
//! others come a little later once that has gone on for [`PATIENCE`].
//!
//! Invariants:
//! - nobody is refused what is free, and who holds a lock of the file does not wait here;
//! - nobody waits for longer than [`PAUSE`] at a time, and of one file not again within
//!   [`PATIENCE`];
//! - of a file one owner is remembered, as long as it asks again within [`GONE`].

use std::cell::RefCell;
use std::collections::BTreeMap;

use env::sync::Notify;
use proto::lock_server::Owner;
use types::{Duration, Ino, Instant};

use crate::server::Server;

/// For how long an owner is refused before others give way.
const PATIENCE: Duration = Duration::from_millis(500);
/// For how long they do: pollers ask at least every tenth of a second.
const PAUSE: Duration = Duration::from_millis(150);
/// Who has not asked for so long does not poll any more.
const GONE: Duration = Duration::from_millis(300);
/// Files that are remembered; of further ones nothing is.
const FILES_MAX: usize = 4096;

struct Turn {
    /// Who was refused.
    owner: Owner,
    /// When it asked last.
    asked: Instant,
    /// From when on others give way again.
    from: Instant,
    /// Until when others give way.
    until: Instant,
    /// It has got a lock since.
    granted: bool,
}

/// See the module.
#[derive(Default)]
pub struct Turns {
    files: RefCell<BTreeMap<Ino, Turn>>,
    changed: Notify,
}

impl Turns {
    /// `owner` asked for a lock and did not get it.
    pub fn refused(&self, ino: Ino, owner: Owner, now: Instant) {
        let mut files = self.files.borrow_mut();
        if files.len() >= FILES_MAX {
            files.retain(|_, turn| !turn.is_gone(now));
        }
        let full = files.len() >= FILES_MAX;
        match files.get_mut(&ino) {
            Some(turn) if turn.owner == owner => (turn.asked, turn.granted) = (now, false),
            Some(turn) if !turn.is_gone(now) => {}
            None if full => {}
            _ => {
                let turn =
                    Turn { owner, asked: now, from: now + PATIENCE, until: now, granted: false };
                files.insert(ino, turn);
            }
        }
    }

    /// `owner` got a lock.
    pub fn granted(&self, ino: Ino, owner: Owner) {
        let mut files = self.files.borrow_mut();
        if let Some(turn) = files.get_mut(&ino).filter(|turn| turn.owner == owner) {
            turn.granted = true;
        }
    }

    /// `owner` holds no lock of the file any more: it has had its turn if it got one.
    pub fn freed(&self, ino: Ino, owner: Owner) {
        let mut files = self.files.borrow_mut();
        if files.get(&ino).is_some_and(|turn| turn.owner == owner && turn.granted) {
            files.remove(&ino);
            self.changed.notify_all();
        }
    }

    /// Until when `owner`, who holds no lock of the file, gives way.
    fn pause(&self, ino: Ino, owner: Owner, now: Instant) -> Option<Instant> {
        let mut files = self.files.borrow_mut();
        let turn = files.get_mut(&ino)?;
        if turn.owner == owner || turn.is_gone(now) {
            return None;
        }
        if now >= turn.from {
            turn.until = now + PAUSE;
            turn.from = turn.until + PATIENCE;
        }
        (now < turn.until).then_some(turn.until)
    }

    /// Does another owner have its turn before `owner`?
    fn is_others(&self, ino: Ino, owner: Owner) -> bool {
        self.files.borrow().get(&ino).is_some_and(|turn| turn.owner != owner)
    }
}

impl Turn {
    fn is_gone(&self, now: Instant) -> bool {
        now.since(self.asked) >= GONE
    }
}

/// Lets who was refused for long come first, for a moment.
pub async fn give_way(server: &Server, ino: Ino, owner: Owner) {
    if server.locks.borrow().holds(ino, owner) {
        return;
    }
    let Some(until) = server.turns.pause(ino, owner, server.env.now()) else { return };
    loop {
        let changed = server.turns.changed.notified();
        let left = until.since(server.env.now());
        if left == Duration::ZERO || !server.turns.is_others(ino, owner) {
            return;
        }
        server.env.timeout(left, changed).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ClientId, LockOwner};

    #[test]
    fn others_give_way_to_who_polls_on_until_it_had_its_turn() {
        let at = |millis: u64| Instant(0) + Duration::from_millis(millis);
        let owner = |client| Owner { client: ClientId(client), owner: LockOwner(1) };
        let (ino, turns) = (Ino(7), Turns::default());
        for time in (0..500).step_by(100) {
            turns.refused(ino, owner(1), at(time));
            assert_eq!(turns.pause(ino, owner(2), at(time)), None, "it is patient");
        }
        assert_eq!(turns.pause(ino, owner(1), at(500)), None);
        assert_eq!(turns.pause(ino, owner(2), at(500)), Some(at(650)));
        assert_eq!(turns.pause(ino, owner(2), at(660)), None, "once in a while");
        turns.freed(ino, owner(1));
        assert!(turns.is_others(ino, owner(2)), "it got nothing yet");
        turns.granted(ino, owner(1));
        turns.freed(ino, owner(1));
        assert!(!turns.is_others(ino, owner(2)));
        turns.refused(ino, owner(1), at(1000));
        assert_eq!(turns.pause(ino, owner(2), at(1600)), None, "it polls no more");
    }
}
