//! Read access to a running server's state, for checkers of tests.
//!
//! Invariant: reading changes nothing, and does not keep the server alive.

use std::rc::{Rc, Weak};

use types::{BlockRange, ClientId, FileBlock, HeldRange, Ino, Rights};

use crate::joint::JointStatus;
use crate::server::Server;
use crate::sessions::SessionState;

/// How a client's session stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionStanding {
    /// It has a session.
    Live,
    /// The server restarted, and the client has not finished its recovery.
    Recovering,
    /// It is being evicted: its session is over, what it held is not free yet.
    Evicting,
    /// It has no session.
    NoSession,
}

/// A lease in the server's table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Lease {
    /// The inode.
    pub ino: Ino,
    /// The client.
    pub client: ClientId,
    /// Its rights, including those being recalled.
    pub rights: Rights,
}

/// See the module.
#[derive(Clone)]
pub struct Introspection(Weak<Server>);

impl Introspection {
    pub(crate) fn of(server: &Rc<Server>) -> Introspection {
        Introspection(Rc::downgrade(server))
    }

    fn ask<T: Default>(&self, ask: impl FnOnce(&Server) -> T) -> T {
        self.0.upgrade().map(|server| ask(&server)).unwrap_or_default()
    }

    /// Does the server serve, with grace over?
    pub fn serves(&self) -> bool {
        self.ask(|server| server.recovery.is_over() && !server.runtime.is_stopping())
    }

    /// What its status says of joint operations.
    pub fn joint(&self) -> JointStatus {
        self.ask(|server| server.joint.status())
    }

    /// All leases, sorted.
    pub fn leases(&self) -> Vec<Lease> {
        let mut all: Vec<Lease> = self.ask(|server| {
            let leases = server.leases.table();
            leases.all().map(|(ino, client, rights)| Lease { ino, client, rights }).collect()
        });
        all.sort_unstable();
        all
    }

    /// Does `client` hold this range of a file, in the server's table, recalled or not?
    pub fn holds_range(&self, client: ClientId, ino: Ino, part: HeldRange) -> bool {
        self.ask(|server| server.leases.table().holds_range(client, ino, part))
    }

    /// May `client` write this block of a file, by the server's table?
    pub fn may_write(&self, client: ClientId, ino: Ino, block: FileBlock) -> bool {
        self.ask(|server| {
            let leases = server.leases.table();
            let range = BlockRange::new(block.0, block.0 + 1);
            leases.rights(client, ino).contains(Rights::DATA_X)
                || leases.holds_range(client, ino, HeldRange { range, exclusive: true })
        })
    }

    /// Is the inode being freed? Then it is still in the store, but no client holds it.
    pub fn is_freeing(&self, ino: Ino) -> bool {
        self.ask(|server| server.orphans.is_freeing(ino))
    }

    /// How the session of `client` stands.
    pub fn standing(&self, client: ClientId) -> SessionStanding {
        let session = self.0.upgrade().and_then(|server| server.sessions.get(client));
        session.map_or(SessionStanding::NoSession, |session| match session.state() {
            SessionState::Live => SessionStanding::Live,
            SessionState::Recovering => SessionStanding::Recovering,
            SessionState::Over => SessionStanding::Evicting,
        })
    }

    /// Clients that have a session, and their descriptions.
    pub fn sessions(&self) -> Vec<(ClientId, String)> {
        self.ask(|server| {
            let sessions = server.sessions.all();
            sessions.iter().map(|of| (of.client, of.description.clone())).collect()
        })
    }

    /// Evicted clients whose writes may still arrive.
    pub fn quarantined(&self) -> Vec<ClientId> {
        self.ask(|server| server.evictions.quarantined())
    }
}
