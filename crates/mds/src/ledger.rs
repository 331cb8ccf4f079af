//! What the server counts, for who looks on: checkers of tests.
//!
//! Invariant: looking changes nothing, and does not keep the server alive.

use std::rc::{Rc, Weak};

use types::{BlockRange, ClientId, FileBlock, HeldRange, Ino, Rights};

use crate::server::Server;
use crate::session::State;

/// How a client stands with the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It has a session.
    Live,
    /// The server restarted, and has not heard all of it yet.
    Recovering,
    /// It is being evicted: its session is over, what it held is not yet free.
    Leaving,
    /// It has no session.
    Gone,
}

/// A lease as the server counts it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Lease {
    /// On what.
    pub ino: Ino,
    /// Whose.
    pub client: ClientId,
    /// Rights, those that are asked back among them.
    pub rights: Rights,
}

/// See the module.
#[derive(Clone)]
pub struct Ledger(Weak<Server>);

impl Ledger {
    pub(crate) fn of(server: &Rc<Server>) -> Ledger {
        Ledger(Rc::downgrade(server))
    }

    fn ask<T: Default>(&self, ask: impl FnOnce(&Server) -> T) -> T {
        self.0.upgrade().map(|server| ask(&server)).unwrap_or_default()
    }

    /// Does it serve, having heard all clients of before?
    pub fn serves(&self) -> bool {
        self.ask(|server| server.grace.is_over() && !server.is_stopping())
    }

    /// Every lease, in order.
    pub fn leases(&self) -> Vec<Lease> {
        let mut all: Vec<Lease> = self.ask(|server| {
            let leases = server.leases.borrow();
            leases.all().map(|(ino, client, rights)| Lease { ino, client, rights }).collect()
        });
        all.sort_unstable();
        all
    }

    /// Does it count `client` as holding this part of a file, asked back or not?
    pub fn holds_range(&self, client: ClientId, ino: Ino, part: HeldRange) -> bool {
        self.ask(|server| server.leases.borrow().holds_range(client, ino, part))
    }

    /// May `client` write this block of a file, as the server counts?
    pub fn may_write(&self, client: ClientId, ino: Ino, block: FileBlock) -> bool {
        self.ask(|server| {
            let leases = server.leases.borrow();
            let range = BlockRange::new(block.0, block.0 + 1);
            leases.rights(client, ino).contains(Rights::DATA_X)
                || leases.holds_range(client, ino, HeldRange { range, exclusive: true })
        })
    }

    /// Is the inode on its way out? Nobody has it any more, though it is still there.
    pub fn is_freeing(&self, ino: Ino) -> bool {
        self.ask(|server| server.freer.is_freeing(ino))
    }

    /// How `client` stands with it.
    pub fn standing(&self, client: ClientId) -> Standing {
        let session = self.0.upgrade().and_then(|server| server.session(client));
        session.map_or(Standing::Gone, |session| match session.state() {
            State::Live => Standing::Live,
            State::Recovering => Standing::Recovering,
            State::Over => Standing::Leaving,
        })
    }

    /// Clients that have a session, and what they say they are.
    pub fn sessions(&self) -> Vec<(ClientId, String)> {
        self.ask(|server| {
            let sessions = server.sessions.borrow();
            sessions.iter().map(|(&client, of)| (client, of.description.clone())).collect()
        })
    }

    /// Evicted clients whose writes may still arrive.
    pub fn quarantined(&self) -> Vec<ClientId> {
        self.ask(|server| server.quarantine.clients())
    }
}
