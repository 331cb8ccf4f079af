//! The sessions of a client, as the content half tells them apart.
//!
//! Invariants:
//! - each session has a number of its own, over all servers: a session that was lost keeps its
//!   number, and the one that follows has another;
//! - each server has one current session.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use types::ServerId;

/// See the module.
pub(super) struct SessionNumbers {
    current: RefCell<BTreeMap<ServerId, u64>>,
    next: Cell<u64>,
}

impl SessionNumbers {
    /// The first sessions, with these servers.
    pub fn new(servers: impl Iterator<Item = ServerId>) -> SessionNumbers {
        let current: BTreeMap<ServerId, u64> = servers.zip(0..).collect();
        let next = Cell::new(current.len() as u64);
        SessionNumbers { current: RefCell::new(current), next }
    }

    /// The current session with the server.
    pub fn of(&self, server: ServerId) -> u64 {
        *self.current.borrow().get(&server).expect("every server is known from the beginning")
    }

    /// Is this session not lost?
    pub fn is_current(&self, session: u64) -> bool {
        self.server(session).is_some()
    }

    /// The server that this session is with; `None`: it is lost.
    pub fn server(&self, session: u64) -> Option<ServerId> {
        let current = self.current.borrow();
        current.iter().find(|(_, number)| **number == session).map(|(server, _)| *server)
    }

    /// All servers.
    pub fn servers(&self) -> Vec<ServerId> {
        self.current.borrow().keys().copied().collect()
    }

    /// The session with the server is lost, and there is a new one.
    pub fn lost(&self, server: ServerId) {
        let next = self.next.replace(self.next.get() + 1);
        self.current.borrow_mut().insert(server, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_session_of_one_server_leaves_those_of_others_current() {
        let (a, b) = (ServerId(0), ServerId(7));
        let numbers = SessionNumbers::new([a, b].into_iter());
        let (with_a, with_b) = (numbers.of(a), numbers.of(b));
        assert_ne!(with_a, with_b);
        numbers.lost(a);
        assert!(!numbers.is_current(with_a) && numbers.is_current(with_b));
        assert_eq!((numbers.server(with_a), numbers.server(with_b)), (None, Some(b)));
        numbers.lost(b);
        assert!(!numbers.is_current(with_b));
        assert_ne!(numbers.of(a), numbers.of(b));
        assert_eq!(numbers.servers(), [a, b]);
    }
}
