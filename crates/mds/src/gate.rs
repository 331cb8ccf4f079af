//! Gates: one first-come-first-served lock for each inode that an operation waits at.
//!
//! Invariants:
//! - an operation that waits (for rights, for another operation) holds or queues at
//!   the gates of all inodes it touches, taken in order of their numbers, so two
//!   operations never wait for each other's gate;
//! - an operation that need not wait takes no gate, but passes none that is taken:
//!   its transaction runs at one instant;
//! - a gate exists only while someone holds it or queues at it.

use std::cell::RefCell;
use std::rc::Rc;

use env::sync::{AsyncMutex, Permit};
use types::{HashMap, Ino};

/// The gate of renames of directories between directories. It precedes every inode's.
pub const RENAME_GATE: Ino = Ino::NONE;

#[derive(Default)]
struct Gate {
    lock: AsyncMutex,
    users: usize,
}

/// All gates.
#[derive(Clone, Default)]
pub struct Gates(Rc<RefCell<HashMap<Ino, Gate>>>);

/// Gates held; they open when it is dropped.
pub struct Held {
    gates: Gates,
    inos: Vec<Ino>,
    permits: Vec<Permit>,
}

impl Gates {
    /// Does someone else than the holder of `mine` hold or wait at the gate of `ino`?
    pub fn closed(&self, ino: Ino, mine: Option<&Held>) -> bool {
        let gates = self.0.borrow();
        if gates.is_empty() || mine.is_some_and(|held| held.inos.contains(&ino)) {
            return false;
        }
        gates.contains_key(&ino)
    }

    /// Takes the gates of `inos`, one after the other in order.
    pub async fn enter(&self, mut inos: Vec<Ino>) -> Held {
        inos.sort_unstable();
        inos.dedup();
        let mut held = Held { gates: self.clone(), inos: Vec::new(), permits: Vec::new() };
        for ino in inos {
            let lock = {
                let mut gates = self.0.borrow_mut();
                let gate = gates.entry(ino).or_default();
                gate.users += 1;
                gate.lock.clone()
            };
            // Counted before the wait, so that a dropped future is uncounted too.
            held.inos.push(ino);
            held.permits.push(lock.lock().await);
        }
        held
    }

    /// Gates in use.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.permits.clear();
        let mut gates = self.gates.0.borrow_mut();
        for ino in &self.inos {
            if let Some(gate) = gates.get_mut(ino) {
                gate.users -= 1;
                if gate.users == 0 {
                    gates.remove(ino);
                }
            }
        }
    }
}
