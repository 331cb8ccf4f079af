//! The leases: which client holds which rights, the gates at which operations wait for rights, and
//! how rights change hands.
//!
//! Invariants:
//! - only this module changes the table, and what a change recalls is sent at the same instant;
//! - operations that wait for rights are notified when a client gives up a right, or a session
//!   ends;
//! - it knows sessions only to send to them. It ends none: an [`Evictor`] does.

mod contention;
mod gates;
mod glimpse;
mod hand_overs;
mod pressure;
mod recall;

use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use env::sync::Notify;
use proto::lease_server::{LeaseTable, Recall};
use proto::mds::HeldLease;
use types::{BlockRange, ClientId, Duration, HeldRange, Ino, Instant, Rights};

use self::contention::Contention;
pub use self::contention::{GrantMode, RangeRequest};
use self::gates::Gates;
pub use self::gates::{HeldGates, RENAME_GATE};
pub use self::glimpse::{Glimpsed, glimpse};
use self::hand_overs::HandOvers;
use self::pressure::LeasePressure;
pub use self::recall::{CHECK_INTERVAL, NO_CLIENT, Need, open_recalled, recall, recall_behind};
use crate::runtime::Runtime;
use crate::sessions::{Session, Sessions};

/// Ends the sessions of clients for which others wait in vain.
pub trait Evictor {
    /// Evicts those of `clients` that have been silent for a lease or are known to be dead. Others
    /// wait for all of them. Yields whether there was one.
    fn evict_unresponsive(&self, clients: &[ClientId]) -> impl Future<Output = bool>;
}

/// What a request grants and drops.
#[derive(Default)]
pub struct Grants {
    /// Leases to drop.
    pub drops: Vec<(ClientId, Ino)>,
    /// Rights to grant, free of conflicts by the operation's needs.
    pub grants: Vec<(Ino, Rights)>,
    /// Ranges to grant: the first is free of conflicts by the operation's needs, the others are
    /// granted if they are free.
    pub ranges: Vec<(Ino, HeldRange)>,
    /// Files that the client has found by name and may open next: it gets `OPEN` on them even while
    /// another operation waits at their gate.
    pub found: Vec<Ino>,
    /// Rights that the client would like.
    pub wants: Vec<(Ino, Rights)>,
}

/// What [`Leases::grant`] has granted.
pub struct Granted {
    /// The client holds more than before: recalls must not overtake the answer.
    pub anything: bool,
    /// Inodes on which the client holds `OPEN` and did not before.
    pub opened: Vec<Ino>,
    /// To be sent after the client's session knows that this request grants something.
    pub recalls: Vec<Recall>,
}

/// See the module.
pub struct Leases {
    runtime: Rc<Runtime>,
    sessions: Rc<Sessions>,
    table: RefCell<LeaseTable>,
    /// Files that several clients use at the same time.
    contention: RefCell<Contention>,
    /// Leases to recall because there are too many.
    pressure: LeasePressure,
    gates: Gates,
    /// Counts hand-overs of rights on content.
    hand_overs: HandOvers,
    /// Notified when a client gives up a right, or a session ends.
    given_up: Notify,
    /// Clients that had an inode open when it moved to another server. A client that has not heard
    /// of the move relies on its right when the inode comes back.
    away: RefCell<BTreeMap<Ino, Vec<ClientId>>>,
}

/// Most inodes in [`Leases::away`].
const AWAY_MAX: usize = 4096;

impl Leases {
    /// No leases.
    pub fn new(runtime: Rc<Runtime>, sessions: Rc<Sessions>) -> Leases {
        let epoch = runtime.identity.epoch;
        Leases {
            runtime,
            sessions,
            table: RefCell::new(LeaseTable::new(epoch)),
            contention: RefCell::default(),
            pressure: LeasePressure::default(),
            gates: Gates::default(),
            hand_overs: HandOvers::default(),
            given_up: Notify::new(),
            away: RefCell::default(),
        }
    }

    /// The table, to read.
    pub fn table(&self) -> Ref<'_, LeaseTable> {
        self.table.borrow()
    }

    /// Takes the gates of `inos`, for the server itself, and recalls nothing.
    pub async fn enter(&self, inos: Vec<Ino>) -> HeldGates {
        self.gates.enter(inos, (NO_CLIENT, self.runtime.env.now())).await
    }

    /// Does another operation than the holder of `own` hold the gate of `ino`, or queue at it?
    pub fn is_gate_closed(&self, ino: Ino, own: Option<&HeldGates>) -> bool {
        self.gates.is_closed(ino, own)
    }

    /// Whose operation holds the gate of `ino`, and since when that waits.
    pub fn gate_holder(&self, ino: Ino) -> Option<(ClientId, Instant)> {
        self.gates.holder(ino)
    }

    /// Number of gates in use.
    pub fn gates_in_use(&self) -> usize {
        self.gates.len()
    }

    /// Number of hand-overs of rights on content since the start, how long clients waited for all
    /// of them together, and the longest wait.
    pub fn hand_overs(&self) -> (u64, Duration, Duration) {
        self.hand_overs.counts()
    }

    /// Notes a request for a range, and decides how it is granted.
    pub fn grant_mode(&self, asked: RangeRequest) -> GrantMode {
        self.contention.borrow_mut().decide(asked)
    }

    /// Is the file leased in ranges?
    pub fn is_contended(&self, ino: Ino, now: Instant) -> bool {
        self.contention.borrow().is_contended(ino, now)
    }

    /// Is it known that from `size`, the file's, the device holds zeros to the end of the block?
    pub fn is_tail_zero(&self, ino: Ino, size: u64) -> bool {
        self.contention.borrow().is_tail_zero(ino, size)
    }

    /// The file's size is now `size`; `zero`: the device holds zeros from there to the end of the
    /// last block.
    pub fn note_tail(&self, ino: Ino, size: u64, zero: bool) {
        self.contention.borrow_mut().note_tail(ino, size, zero);
    }

    /// A client that could write the file is gone: nothing is known of its tail.
    pub fn forget_contention(&self, ino: Ino) {
        self.contention.borrow_mut().forget(ino);
    }

    /// Applies what an operation of `client` drops and grants; `own`: the gates that it holds.
    /// `cacheable` narrows a right that the client would like to what it may cache.
    pub fn grant(
        &self,
        client: ClientId,
        asked: Grants,
        own: Option<&HeldGates>,
        cacheable: impl Fn(Ino, Rights) -> Rights,
    ) -> Granted {
        let mut granted = Granted { anything: false, opened: Vec::new(), recalls: Vec::new() };
        let mut leases = self.table.borrow_mut();
        if !asked.drops.is_empty() {
            // Someone may be waiting for these.
            self.given_up.notify_all();
        }
        for (client, ino) in asked.drops {
            leases.drop_lease(client, ino);
        }
        for (ino, rights) in asked.grants {
            let rights = leases.grantable(client, ino, rights);
            if (rights - leases.rights(client, ino)).contains(Rights::OPEN) {
                granted.opened.push(ino);
            }
            if rights.intersects(Rights::WHOLE) {
                granted.anything = true;
                leases.grant_requested(client, ino, rights);
                self.contention.borrow_mut().granted_whole(ino, self.runtime.env.now());
            } else {
                granted.anything |= !leases.rights(client, ino).contains(rights);
                leases.grant(client, ino, rights);
            }
        }
        for (ino, part) in asked.ranges {
            if leases.is_range_grantable(client, ino, part) {
                granted.anything |= leases.grant_range(client, ino, part);
            }
        }
        let leases_max = self.runtime.config.leases_max;
        for ino in asked.found {
            if leases.len() >= leases_max {
                continue;
            }
            let (new, recall) = leases.grant_open_on_lookup(client, ino);
            if new {
                granted.opened.push(ino);
                granted.anything = true;
            }
            granted.recalls.extend(recall);
        }
        for (ino, rights) in asked.wants {
            if leases.len() >= leases_max || self.gates.is_closed(ino, own) {
                continue;
            }
            let rights = cacheable(ino, leases.grantable(client, ino, rights));
            if (rights - leases.rights(client, ino)).contains(Rights::OPEN) {
                granted.opened.push(ino);
            }
            granted.anything |= !leases.rights(client, ino).contains(rights);
            leases.grant(client, ino, rights);
        }
        granted
    }

    /// The client gives rights up, of a lease with sequence number `seq`. Yields whether that
    /// changed anything.
    pub fn give_back(
        &self,
        client: ClientId,
        (ino, seq): (Ino, u64),
        give: Rights,
        still_open: bool,
        part: Option<BlockRange>,
    ) -> bool {
        let mut leases = self.table.borrow_mut();
        let changed = leases.give_back(client, ino, seq, give, still_open, part);
        drop(leases);
        if changed {
            self.given_up.notify_all();
        }
        changed
    }

    /// After a restart the client holds a lease again. Yields the rights and the ranges that it
    /// cannot have, as another client holds them.
    pub fn reclaim(&self, client: ClientId, held: &HeldLease) -> (Rights, Vec<HeldRange>) {
        let open = if held.open { Rights::OPEN } else { Rights::empty() };
        let mut leases = self.table.borrow_mut();
        let refused = leases.reclaim(client, held.ino, held.rights | open);
        let parts = leases.reclaim_ranges(client, held.ino, &held.ranges);
        (refused, parts)
    }

    /// Counts the inode as open by the client, unless it is already, or cannot be. Yields whether
    /// that changed anything.
    pub fn presume_open(&self, client: ClientId, ino: Ino) -> bool {
        let mut leases = self.table.borrow_mut();
        let held = leases.rights(client, ino).contains(Rights::OPEN);
        let grants = !held && leases.grantable(client, ino, Rights::OPEN) == Rights::OPEN;
        if grants {
            leases.grant(client, ino, Rights::OPEN);
        }
        grants
    }

    /// Asks the client whether it has the inode open.
    pub fn recall_open_of(&self, client: ClientId, ino: Ino) {
        let recall = self.table.borrow_mut().recall_of(client, ino, Rights::OPEN);
        self.push(recall);
    }

    /// Asks all clients but `except` whether they have the inode open.
    pub fn recall_open(&self, except: ClientId, ino: Ino) {
        let recalls = self.table.borrow_mut().recall_open(except, ino);
        self.push(recalls);
    }

    /// Sends recalls to their clients.
    pub fn push(&self, recalls: impl IntoIterator<Item = Recall>) {
        recalls.into_iter().for_each(|recall| self.sessions.push_recall(recall));
    }

    /// Sends the client all recalls that it has not answered, on a new connection.
    pub fn push_unanswered(&self, session: &Session) {
        for recall in self.table.borrow().unanswered(session.client) {
            session.push_recall(recall);
        }
    }

    /// Frees all leases of a client, and yields them. [`Leases::announce_end`] follows.
    pub fn drop_client(&self, client: ClientId) -> Vec<(Ino, Rights)> {
        self.away.borrow_mut().retain(|_, open| {
            open.retain(|&one| one != client);
            !open.is_empty()
        });
        self.table.borrow_mut().drop_client(client)
    }

    /// A session has ended, and all its leases are free.
    pub fn announce_end(&self) {
        self.given_up.notify_all();
    }

    /// Frees all leases of an inode that is being freed.
    pub fn drop_inode(&self, ino: Ino) {
        self.table.borrow_mut().drop_inode(ino);
        self.given_up.notify_all();
    }

    /// The inode has moved to another server: nobody holds anything of it here.
    pub fn inode_left(&self, ino: Ino) {
        let open = self.table.borrow().holders_of(ino, Rights::OPEN);
        let mut away = self.away.borrow_mut();
        if !open.is_empty() && away.len() < AWAY_MAX {
            away.insert(ino, open);
        }
        drop(away);
        self.drop_inode(ino);
    }

    /// The inode has come from another server. Who had it open before it left may have it open
    /// still.
    pub fn inode_came(&self, ino: Ino) {
        let open = self.away.borrow_mut().remove(&ino).unwrap_or_default();
        for client in open.into_iter().filter(|&client| self.sessions.get(client).is_some()) {
            self.presume_open(client, ino);
        }
    }

    /// Recalls some leases if their number comes close to the maximum.
    pub fn relieve_pressure(&self) {
        let recalls = self.pressure.relieve(
            &mut self.table.borrow_mut(),
            self.runtime.config.leases_max,
            |client| self.sessions.get(client).is_some(),
        );
        self.push(recalls);
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        let table = self.table.borrow();
        table.validate();
        for (ino, client, _) in table.all() {
            assert!(
                self.sessions.get(client).is_some(),
                "client {client} holds inode {ino} without a session"
            );
        }
        self.contention.borrow().validate();
        self.gates.validate();
    }
}
