//! The end of a session: goodbye, eviction, and the quarantine of what an evicted
//! client could still write.
//!
//! Invariants:
//! - an eviction is durable before anything the client held is given to others, and so is what
//!   it had written in place, unless a data device does not answer in time (`devices`);
//! - blocks that an evicted client could write are not reused, and files it could write are frozen,
//!   until lease and grace have passed and no data device stands still or did a moment ago, or its
//!   process on this host is gone; by then what it wrote late is stable, too;
//! - a client's number stays known until its quarantine has ended, so a restart goes on with it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use proto::mds::{Message, Push};
use store::{ALL_FILES, Cost, StoreError};
use types::{Bug, ClientId, Duration, Ino, Instant, Rights, Transno, planted};

use crate::devices::{flush_for, may_write_late};
use crate::hello::Info;
use crate::ops::READ;
use crate::server::Server;
use crate::session::{Session, State};

/// Files frozen by one transaction.
const FREEZE: usize = 16;
/// How long a client is looked at often.
const YOUNG: Duration = Duration::from_secs(10);

struct Evicted {
    until: Instant,
    local: bool,
    /// Nobody knows which files it could write.
    all: bool,
    /// The store knows of it.
    noted: bool,
}

/// A client, and the files that it could write.
type Held = (ClientId, Vec<Ino>);

/// Evicted clients whose writes may still arrive.
#[derive(Default)]
pub struct Quarantine(RefCell<BTreeMap<ClientId, Evicted>>);

impl Quarantine {
    /// Do all files count as frozen?
    pub fn is_all_frozen(&self) -> bool {
        self.0.borrow().values().any(|evicted| evicted.all)
    }

    /// Clients in quarantine.
    pub fn clients(&self) -> Vec<ClientId> {
        self.0.borrow().keys().copied().collect()
    }

    fn add(&self, server: &Server, client: ClientId, local: bool, all: bool) {
        if all && !self.is_all_frozen() {
            server.mfs.hold_freed(Ino::NONE);
        }
        let until = server.env.now() + server.config.lease + server.config.lease / 2;
        self.0.borrow_mut().insert(client, Evicted { until, local, all, noted: false });
    }

    fn noted(&self, client: ClientId) {
        if let Some(evicted) = self.0.borrow_mut().get_mut(&client) {
            evicted.noted = true;
        }
    }

    fn remove(&self, server: &Server, client: ClientId) {
        let gone = self.0.borrow_mut().remove(&client);
        if gone.is_some_and(|evicted| evicted.all) && !self.is_all_frozen() {
            server.mfs.unhold_freed(Ino::NONE);
        }
    }
}

/// Takes up the quarantines that were there before the restart. They last for their whole time
/// again; the server that died may not have come to flush what these clients had written.
///
/// # Errors
/// The store's.
pub async fn reload(
    server: &Rc<Server>,
    known: &BTreeMap<ClientId, Info>,
) -> Result<(), StoreError> {
    let (clients, _) = server.mfs.run(READ, |txn| txn.quarantines()).await?;
    if !clients.is_empty() && planted(Bug::QuarantineRefused) {
        return Err(StoreError::Refused("a client is in quarantine".into()));
    }
    if !clients.is_empty() {
        flush_for(server, &clients).await;
    }
    for client in clients {
        let (files, _) = server.mfs.run(READ, |txn| txn.frozen(client)).await?;
        let local = known.get(&client).is_some_and(|info| info.local);
        server.quarantine.add(server, client, local, files.contains(&ALL_FILES));
        server.quarantine.noted(client);
    }
    Ok(())
}

/// Evicts a client, if it is there.
pub async fn evict(server: &Rc<Server>, client: ClientId, reason: &str) {
    evict_all(server, &[client], reason).await;
}

/// Evicts those of `clients` that are there, at once.
pub async fn evict_all(server: &Rc<Server>, clients: &[ClientId], reason: &str) {
    let out = clients.iter().filter_map(|&client| put_out(server, client, reason));
    let (sessions, held): (Vec<_>, Vec<_>) = out.unzip();
    if !quarantine(server, &held).await {
        return;
    }
    for session in sessions {
        forget(server, &session);
        server.log(&format!("client {} is out: what it held is free", session.client));
    }
}

/// Nothing of the client's is executed any more; with its session the files that it could write.
fn put_out(server: &Server, client: ClientId, reason: &str) -> Option<(Rc<Session>, Held)> {
    let session = server.session(client).filter(|session| !session.is_over())?;
    // What it held before the restart is known only when it has claimed everything.
    let unknown = session.state() == State::Recovering;
    session.set_state(State::Over);
    server.log(&format!("client {client} ({}) is evicted: {reason}", session.description));
    session.push(Message::Push { push: Push::Evicted { reason: reason.to_owned() } });
    session.unbind();
    let held = server.leases.borrow().of_client(client);
    let writable = held.iter().filter(|(_, rights)| rights.intersects(Rights::WRITES));
    let mut writable: Vec<Ino> = writable.map(|(ino, _)| *ino).collect();
    writable.iter().for_each(|&ino| server.contention.borrow_mut().forget(ino));
    if unknown {
        writable = vec![ALL_FILES];
    }
    server.quarantine.add(server, client, session.local.get(), unknown);
    Some((session, (client, writable)))
}

/// Evicts clients that have not come back after a restart, at once.
pub async fn evict_absent(server: &Rc<Server>, absent: &[(ClientId, Info)]) {
    for (client, Info { local, description, .. }) in absent {
        server.log(&format!("client {client} ({description}) has not come back: it is evicted"));
        server.quarantine.add(server, *client, *local, true);
    }
    let held: Vec<_> = absent.iter().map(|(client, _)| (*client, vec![ALL_FILES])).collect();
    if quarantine(server, &held).await {
        for (client, _) in absent {
            server.log(&format!("client {client} is out: what it held is free"));
        }
    }
}

/// Makes it durable that the clients are out, what they could write, and what they have written.
async fn quarantine(server: &Rc<Server>, held: &[Held]) -> bool {
    let mut last = Transno::ZERO;
    for (client, files) in held {
        let Some(transno) = freeze(server, *client, files).await else { return false };
        last = last.max(transno);
    }
    let durable = server.wait_durable(last).await.is_ok();
    if durable && !held.is_empty() {
        let clients: Vec<ClientId> = held.iter().map(|(client, _)| *client).collect();
        flush_for(server, &clients).await;
        clients.iter().for_each(|&client| server.quarantine.noted(client));
    }
    durable
}

/// Notes in the store that the client is out, and what it could write.
async fn freeze(server: &Server, client: ClientId, files: &[Ino]) -> Option<Transno> {
    let mut parts: Vec<&[Ino]> = files.chunks(FREEZE).collect();
    if parts.is_empty() {
        parts.push(&[]);
    }
    let mut last = Transno::ZERO;
    for part in parts {
        let done = server.mfs.run(Cost::STEP, |txn| {
            for &ino in part.iter().filter(|_| !planted(Bug::FreezeSkipped)) {
                txn.freeze(client, ino)?;
            }
            txn.quarantine(client)
        });
        let ((), transno) = server.checked(done.await, "evicting a client")?;
        last = last.max(transno);
    }
    Some(last)
}

/// Everything the session held is free.
fn forget(server: &Server, session: &Session) {
    let client = session.client;
    let held = server.leases.borrow_mut().drop_client(client);
    let freed = server.locks.borrow_mut().drop_client(client);
    server.tell_lock_free(&freed);
    server.sessions.borrow_mut().remove(&client);
    session.glimpses.borrow_mut().clear();
    for (ino, rights) in held {
        if rights.contains(Rights::OPEN) {
            server.freer.consider(server, ino);
        }
    }
    server.lease_events.notify_all();
    server.grace.progress();
}

/// A client leaves in order: all it held is free, its number is forgotten.
///
/// # Errors
/// The store's.
pub async fn goodbye(server: &Rc<Server>, session: &Session) -> Result<Transno, StoreError> {
    session.set_state(State::Over);
    forget(server, session);
    let transno = forget_client(server, session.client).await?;
    server.log(&format!("client {} ({}) has left", session.client, session.description));
    Ok(transno)
}

/// Gives a client's pool back and removes it.
async fn forget_client(server: &Server, client: ClientId) -> Result<Transno, StoreError> {
    let mut last = Transno::ZERO;
    loop {
        let step = server.mfs.run(Cost::STEP, |txn| txn.release_pool(client)).await?;
        last = last.max(step.1);
        if step.0 {
            break;
        }
    }
    loop {
        let step = server.mfs.run(Cost::STEP, |txn| txn.remove_client(client)).await?;
        last = last.max(step.1);
        if step.0 {
            return Ok(last);
        }
    }
}

/// Is it certain that no write of the client's process can be in flight? Known only
/// of clients on this host, by the lock they hold on the data devices.
pub async fn is_proven_dead(server: &Server, session: &Session) -> bool {
    session.local.get() && is_lock_free(server, session.client).await
}

/// Does nobody on this host hold the lock that `client` takes on the data devices?
pub async fn is_lock_free(server: &Server, client: ClientId) -> bool {
    let devices = server.disks.borrow().clone();
    if devices.is_empty() {
        return false;
    }
    for device in devices {
        if !device.disk.byte_is_free(client.0).await.unwrap_or(false) {
            return false;
        }
    }
    true
}

/// Looks whether clients of this host can be seen to be: from then on their death can be.
/// With `all` also those are looked at again that have long been here.
pub async fn look_for_locals(server: &Rc<Server>, all: bool) {
    let sessions: Vec<Rc<Session>> = server.sessions.borrow().values().cloned().collect();
    let now = server.env.now();
    let young = |session: &Session| now.since(session.begun) < YOUNG;
    for session in sessions.iter().filter(|s| !s.is_over() && !s.local.get()) {
        if !all && !young(session) {
            continue;
        }
        let devices = server.disks.borrow().clone();
        let mut held = false;
        for device in devices {
            held |= !device.disk.byte_is_free(session.client.0).await.unwrap_or(true);
        }
        if held && !session.is_over() {
            session.local.set(true);
            let (nonce, description) = (session.nonce, session.description.clone());
            let info = Info { nonce, local: true, description }.encode();
            let client = session.client;
            let noted = server.mfs.run(Cost::DELETE, |txn| txn.set_client(client, &info)).await;
            server.checked(noted, "noting where a client runs");
        }
    }
    for session in sessions {
        if !session.is_connected()
            && session.state() == State::Live
            && is_proven_dead(server, &session).await
        {
            evict(server, session.client, "its process has ended").await;
        }
    }
}

/// Forgets clients that have enrolled and gone without a request: their calls broke off.
pub async fn forget_unused(server: &Rc<Server>) {
    let sessions: Vec<Rc<Session>> = server.sessions.borrow().values().cloned().collect();
    for session in sessions {
        let unused = !session.known && session.requests.get() == 0 && !session.is_connected();
        let silent = server.silence(&session);
        if unused && !session.is_over() && silent >= server.config.lease {
            let left = goodbye(server, &session).await;
            server.checked(left, "forgetting a client");
        }
    }
}

/// Space has run out: clients that are silent beyond their lease lose what they keep unused, and
/// files without a name that only they have open.
pub async fn evict_hoarders(server: &Rc<Server>) {
    let sessions: Vec<Rc<Session>> = server.sessions.borrow().values().cloned().collect();
    for session in sessions {
        let client = session.client;
        if server.silence(&session) < server.config.lease {
            continue;
        }
        let pool = server.mfs.run(READ, |txn| txn.pool(client)).await;
        let pool = server.checked(pool, "reading a pool").map(|(pool, _)| pool);
        if pool.is_some_and(|pool| !pool.is_empty()) || keeps_removed(server, client) {
            evict(server, client, "it is silent and keeps space that others need").await;
        }
    }
}

/// Has the client a file open that has no name any more?
fn keeps_removed(server: &Server, client: ClientId) -> bool {
    let leases = server.leases.borrow();
    server.freer.is_any_nameless(|ino| leases.rights(client, ino).contains(Rights::OPEN))
}

/// Ends the quarantines whose time has come.
pub async fn end_quarantines(server: &Rc<Server>) {
    let now = server.env.now();
    let all: Vec<(ClientId, bool, bool)> = {
        let quarantine = server.quarantine.0.borrow();
        let noted = quarantine.iter().filter(|(_, evicted)| evicted.noted);
        noted.map(|(&client, evicted)| (client, evicted.until <= now, evicted.local)).collect()
    };
    let (mut dead, mut past) = (Vec::new(), Vec::new());
    for (client, over, local) in all {
        if local && is_lock_free(server, client).await {
            dead.push(client);
        } else if over && !may_write_late(server) || planted(Bug::QuarantineSkipped) {
            past.push(client);
        }
    }
    let clients = [&dead[..], &past[..]].concat();
    if clients.is_empty() {
        return;
    }
    // What a device carried out late was read by others, too.
    flush_for(server, &clients).await;
    if may_write_late(server) && !planted(Bug::QuarantineSkipped) {
        past.clear();
    }
    for client in dead.into_iter().chain(past) {
        if let Err(error) = end_quarantine(server, client).await {
            server.failed(&error, "ending a quarantine");
            continue;
        }
        server.quarantine.remove(server, client);
        server.space_events.notify_all();
    }
}

async fn end_quarantine(server: &Server, client: ClientId) -> Result<(), StoreError> {
    loop {
        let (files, _) = server.mfs.run(READ, |txn| txn.frozen(client)).await?;
        if files.is_empty() {
            break;
        }
        for part in files.chunks(FREEZE) {
            let thaw = |txn: &mut store::Txn<'_>| {
                part.iter().try_for_each(|&ino| txn.unfreeze(client, ino))
            };
            server.mfs.run(Cost::STEP, thaw).await?;
        }
    }
    forget_client(server, client).await?;
    Ok(())
}

/// How long after its eviction a client's blocks are kept apart.
pub fn quarantine_time(lease: Duration) -> Duration {
    lease + lease / 2
}
