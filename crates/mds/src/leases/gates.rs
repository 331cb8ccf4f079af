//! Gates: one first-come-first-served lock for each inode that an operation waits at.
//!
//! Invariants:
//! - an operation that waits (for rights, or for another operation) holds or queues at the gates of
//!   all inodes it touches. It takes them in order of their numbers, so two operations never wait
//!   for each other's gates;
//! - an operation that need not wait takes no gate, but does not pass one that is taken: its
//!   transaction runs at one instant;
//! - a gate exists only while someone holds it or queues at it.

use std::cell::RefCell;
use std::rc::Rc;

use env::sync::{AsyncMutex, Permit};
use types::{ClientId, HashMap, Ino, Instant};

/// The gate of renames that move a directory to another directory. It comes before every inode's.
pub const RENAME_GATE: Ino = Ino::NONE;

#[derive(Default)]
struct Gate {
    lock: AsyncMutex,
    users: usize,
    /// Whose operation holds it, and since when that waits.
    holder: Option<(ClientId, Instant)>,
}

/// All gates.
#[derive(Clone, Default)]
pub struct Gates(Rc<RefCell<HashMap<Ino, Gate>>>);

/// Gates that an operation holds; they open when this is dropped.
pub struct HeldGates {
    gates: Gates,
    inos: Vec<Ino>,
    permits: Vec<Permit>,
}

impl Gates {
    /// Does another operation than the holder of `own` hold the gate of `ino`, or queue at it?
    pub fn is_closed(&self, ino: Ino, own: Option<&HeldGates>) -> bool {
        let gates = self.0.borrow();
        if gates.is_empty() || own.is_some_and(|held| held.inos.contains(&ino)) {
            return false;
        }
        gates.contains_key(&ino)
    }

    /// Whose operation holds the gate of `ino`, and since when that waits.
    pub fn holder(&self, ino: Ino) -> Option<(ClientId, Instant)> {
        self.0.borrow().get(&ino)?.holder
    }

    /// Takes the gates of `inos`, one after the other in order, for an operation of `by`: a client,
    /// and the time at which it began to wait.
    pub async fn enter(&self, mut inos: Vec<Ino>, by: (ClientId, Instant)) -> HeldGates {
        inos.sort_unstable();
        inos.dedup();
        let mut held = HeldGates { gates: self.clone(), inos: Vec::new(), permits: Vec::new() };
        for ino in inos {
            let lock = {
                let mut gates = self.0.borrow_mut();
                let gate = gates.entry(ino).or_default();
                gate.users += 1;
                gate.lock.clone()
            };
            // Counted before the wait, so that dropping the future uncounts it too.
            held.inos.push(ino);
            held.permits.push(lock.lock().await);
            if let Some(gate) = self.0.borrow_mut().get_mut(&ino) {
                gate.holder = Some(by);
            }
        }
        held
    }

    /// Number of gates in use.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        for (ino, gate) in &*self.0.borrow() {
            assert!(gate.users > 0, "nobody uses the gate of inode {ino}");
        }
    }
}

impl HeldGates {
    /// Are the gates of all these inodes held?
    pub fn cover(&self, inos: &[Ino]) -> bool {
        inos.iter().all(|ino| self.inos.contains(ino))
    }
}

impl Drop for HeldGates {
    fn drop(&mut self) {
        self.permits.clear();
        let mut gates = self.gates.0.borrow_mut();
        for ino in &self.inos {
            if let Some(gate) = gates.get_mut(ino) {
                gate.users -= 1;
                // The next one enters itself when it has the lock.
                gate.holder = None;
                if gate.users == 0 {
                    gates.remove(ino);
                }
            }
        }
    }
}
