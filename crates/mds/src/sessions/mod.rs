//! The sessions of clients, and what the server tells clients there.
//!
//! Sessions in general are the crate `session`'s; here is what the metadata server keeps and sends
//! in them.

mod client_info;
mod session;

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

use ::session::server::Table;
use proto::lease_server::Recall;
use proto::lock_server::LockFree;
use proto::mds::{Mds, Message, Push};
use types::{Duration, Transno};

pub use self::client_info::ClientInfo;
pub use self::session::Session;
use crate::runtime::Runtime;
pub use ::session::server::{Connection, SessionIdentity, SessionState};

/// Longest pause between two looks at the clock.
const CLOCK_INTERVAL: Duration = Duration::from_millis(250);

/// See the module.
pub struct Sessions {
    runtime: Rc<Runtime>,
    table: Table<Mds, Session>,
    /// The address at which clients find the server.
    address: RefCell<String>,
}

impl Deref for Sessions {
    type Target = Table<Mds, Session>;

    fn deref(&self) -> &Self::Target {
        &self.table
    }
}

impl Sessions {
    /// No sessions.
    pub fn new(runtime: Rc<Runtime>) -> Sessions {
        let table = Table::new(runtime.env.clone(), runtime.config.lease);
        Sessions { runtime, table, address: RefCell::default() }
    }

    /// The address at which clients find the server; empty before it listens.
    pub fn address(&self) -> String {
        self.address.borrow().clone()
    }

    /// The server listens at `address` now.
    pub fn set_address(&self, address: String) {
        *self.address.borrow_mut() = address;
    }

    /// Sends a recall to its client, if that client still has a session.
    pub fn push_recall(&self, recall: Recall) {
        if let Some(session) = self.get(recall.client) {
            session.push_recall(recall);
        }
    }

    /// Notifies waiting clients that their locks may be free.
    pub fn push_lock_free(&self, free: &[LockFree]) {
        for LockFree { to, ino } in free {
            if let Some(session) = self.get(to.client) {
                let push = Push::LockFree { ino: *ino, owner: to.owner };
                session.push(Message::Push { push });
            }
        }
    }

    /// Notifies clients whose changes have become durable since their last answer.
    pub fn push_committed(&self, durable: Transno) {
        self.table.each(|session| session.push_committed(durable));
    }

    /// Watches the clock, to notice when the server's process was stopped.
    pub async fn watch_clock(self: Rc<Sessions>) {
        let runtime = self.runtime.clone();
        while !runtime.is_stopping() {
            self.awake_since();
            runtime.env.sleep(CLOCK_INTERVAL.min(runtime.config.lease / 8)).await;
        }
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        let durable = self.runtime.mfs.last_committed();
        self.table.each(|session| session.validate(durable));
        self.table.validate();
    }
}
