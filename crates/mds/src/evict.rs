//! The end of a session: goodbye, eviction, and the quarantine of blocks and files that an evicted
//! client could still write.
//!
//! Invariants:
//! - an eviction is durable before the server gives anything that the client held to others. So is
//!   what the client had written in place, unless a data device does not answer in time
//!   (`devices`);
//! - until an evicted client's writes have certainly ended, the server freezes the files that it
//!   could write and does not reuse their blocks or its pool. They have ended when its process on
//!   this host has ended, or when lease and grace have passed and no data device is stalled or was
//!   a moment ago. By then what it wrote late is stable, too;
//! - the server keeps a client's number until its quarantine has ended, so a restart goes on with
//!   the quarantine.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use mfs::{ALL_FILES, Cost, StoreError};
use proto::mds::{Message, Push};
use types::{Bug, ClientId, Duration, Ino, Instant, Rights, Transno, planted};

use crate::devices::{flush_for, may_write_late};
use crate::hello::ClientInfo;
use crate::ops::READ;
use crate::server::Server;
use crate::session::{Session, SessionState};

/// Files that one transaction freezes.
const FREEZE: usize = 16;
/// A session younger than this is checked for its local lock in every round.
const YOUNG: Duration = Duration::from_secs(10);

struct QuarantinedClient {
    until: Instant,
    local: bool,
    /// Which files it could write is unknown.
    all_files: bool,
    /// The eviction is durable in the store.
    recorded: bool,
}

/// A client, and the files that it could write.
type WritableFiles = (ClientId, Vec<Ino>);

/// QuarantinedClient clients whose writes may still arrive.
#[derive(Default)]
pub struct Quarantine(RefCell<BTreeMap<ClientId, QuarantinedClient>>);

impl Quarantine {
    /// Do all files count as frozen?
    pub fn is_all_frozen(&self) -> bool {
        self.0.borrow().values().any(|evicted| evicted.all_files)
    }

    /// Clients in quarantine.
    pub fn clients(&self) -> Vec<ClientId> {
        self.0.borrow().keys().copied().collect()
    }

    fn add(&self, server: &Server, client: ClientId, local: bool, all_files: bool) {
        if all_files && !self.is_all_frozen() {
            server.mfs.hold_freed(Ino::NONE);
        }
        let until = server.env.now() + server.config.lease + server.config.lease / 2;
        self.0
            .borrow_mut()
            .insert(client, QuarantinedClient { until, local, all_files, recorded: false });
    }

    fn set_recorded(&self, client: ClientId) {
        if let Some(evicted) = self.0.borrow_mut().get_mut(&client) {
            evicted.recorded = true;
        }
    }

    fn remove(&self, server: &Server, client: ClientId) {
        let gone = self.0.borrow_mut().remove(&client);
        if gone.is_some_and(|evicted| evicted.all_files) && !self.is_all_frozen() {
            server.mfs.unhold_freed(Ino::NONE);
        }
    }
}

/// Resumes the quarantines from before the restart. They last for their whole time again. Flushes
/// the devices, as the server that died may not have flushed what these clients wrote.
///
/// # Errors
/// The store's.
pub async fn reload(
    server: &Rc<Server>,
    known: &BTreeMap<ClientId, ClientInfo>,
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
        server.quarantine.set_recorded(client);
    }
    Ok(())
}

/// Evicts a client, if it has a session.
pub async fn evict(server: &Rc<Server>, client: ClientId, reason: &str) {
    evict_all(server, &[client], reason).await;
}

/// Evicts those of `clients` that have a session, all together.
pub async fn evict_all(server: &Rc<Server>, clients: &[ClientId], reason: &str) {
    let out = clients.iter().filter_map(|&client| end_session(server, client, reason));
    let (sessions, writable): (Vec<_>, Vec<_>) = out.unzip();
    if !quarantine(server, &writable).await {
        return;
    }
    for session in sessions {
        free_holdings(server, &session);
        server.log(&format!(
            "client {} has been evicted: its leases and locks are free",
            session.client
        ));
    }
}

/// Ends the client's session: the server executes nothing more of it. Returns the session, and the
/// files that the client could write.
fn end_session(
    server: &Server,
    client: ClientId,
    reason: &str,
) -> Option<(Rc<Session>, WritableFiles)> {
    let session = server.session(client).filter(|session| !session.is_over())?;
    // What it held before the restart is known only once it has reclaimed everything.
    let unknown = session.state() == SessionState::Recovering;
    session.set_state(SessionState::Over);
    server.log(&format!("client {client} ({}) is being evicted: {reason}", session.description));
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

/// Evicts clients that have not come back after a restart, all together.
pub async fn evict_absent(server: &Rc<Server>, absent: &[(ClientId, ClientInfo)]) {
    for (client, ClientInfo { local, description, .. }) in absent {
        server.log(&format!(
            "client {client} ({description}) has not come back: it is being evicted"
        ));
        server.quarantine.add(server, *client, *local, true);
    }
    let writable: Vec<_> = absent.iter().map(|(client, _)| (*client, vec![ALL_FILES])).collect();
    if quarantine(server, &writable).await {
        for (client, _) in absent {
            server.log(&format!("client {client} has been evicted: its leases and locks are free"));
        }
    }
}

/// Makes durable that the clients are evicted, which files they could write, and what they have
/// written.
async fn quarantine(server: &Rc<Server>, writable: &[WritableFiles]) -> bool {
    let mut last = Transno::ZERO;
    for (client, files) in writable {
        let Some(transno) = record_eviction(server, *client, files).await else { return false };
        last = last.max(transno);
    }
    let durable = server.wait_durable(last).await.is_ok();
    if durable && !writable.is_empty() {
        let clients: Vec<ClientId> = writable.iter().map(|(client, _)| *client).collect();
        flush_for(server, &clients).await;
        clients.iter().for_each(|&client| server.quarantine.set_recorded(client));
    }
    durable
}

/// Records in the store that the client is evicted, and which files it could write.
async fn record_eviction(server: &Server, client: ClientId, files: &[Ino]) -> Option<Transno> {
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

/// Frees everything that the session held.
fn free_holdings(server: &Server, session: &Session) {
    let client = session.client;
    let held = server.leases.borrow_mut().drop_client(client);
    let freed = server.locks.borrow_mut().drop_client(client);
    server.push_lock_free(&freed);
    server.sessions.borrow_mut().remove(&client);
    session.glimpses.borrow_mut().clear();
    for (ino, rights) in held {
        if rights.contains(Rights::OPEN) {
            server.reaper.free_if_closed(server, ino);
        }
    }
    server.lease_events.notify_all();
    server.grace.progress();
}

/// A client leaves: frees all that it held and forgets its number.
///
/// # Errors
/// The store's.
pub async fn goodbye(server: &Rc<Server>, session: &Session) -> Result<Transno, StoreError> {
    session.set_state(SessionState::Over);
    free_holdings(server, session);
    let transno = remove_from_store(server, session.client).await?;
    server.log(&format!("client {} ({}) has left", session.client, session.description));
    Ok(transno)
}

/// Frees a client's pool and removes the client from the store.
async fn remove_from_store(server: &Server, client: ClientId) -> Result<Transno, StoreError> {
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

/// Is it certain that no write of the client's process can be in flight? This is known only of
/// clients on this host, by the lock that they hold on the data devices.
pub async fn is_proven_dead(server: &Server, session: &Session) -> bool {
    session.local.get() && is_lock_free(server, session.client).await
}

/// Is the lock that `client` takes on the data devices free on this host?
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

/// Looks for clients whose lock shows that they run on this host: from then on the server can see
/// when they die. With `all` it also checks sessions that are not young any more. Evicts those that
/// have died.
pub async fn detect_local_clients(server: &Rc<Server>, all: bool) {
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
            let info = ClientInfo { nonce, local: true, description }.encode();
            let client = session.client;
            let noted = server.mfs.run(Cost::DELETE, |txn| txn.set_client(client, &info)).await;
            server.checked(noted, "recording that a client is local");
        }
    }
    for session in sessions {
        if !session.is_connected()
            && session.state() == SessionState::Live
            && is_proven_dead(server, &session).await
        {
            evict(server, session.client, "its process has ended").await;
        }
    }
}

/// Removes clients that enrolled and went away without a request: their handshake broke off.
pub async fn remove_unused(server: &Rc<Server>) {
    let sessions: Vec<Rc<Session>> = server.sessions.borrow().values().cloned().collect();
    for session in sessions {
        let unused = !session.known && session.requests.get() == 0 && !session.is_connected();
        let silent = server.silence(&session);
        if unused && !session.is_over() && silent >= server.config.lease {
            let left = goodbye(server, &session).await;
            server.checked(left, "removing an unused client");
        }
    }
}

/// Space has run out: evicts clients that have been silent for a lease and hold unused blocks, or
/// have an orphan open.
pub async fn evict_hoarders(server: &Rc<Server>) {
    let sessions: Vec<Rc<Session>> = server.sessions.borrow().values().cloned().collect();
    for session in sessions {
        let client = session.client;
        if server.silence(&session) < server.config.lease {
            continue;
        }
        let pool = server.mfs.run(READ, |txn| txn.pool(client)).await;
        let pool = server.checked(pool, "reading a pool").map(|(pool, _)| pool);
        if pool.is_some_and(|pool| !pool.is_empty()) || has_open_orphan(server, client) {
            evict(server, client, "it is silent and keeps space that others need").await;
        }
    }
}

/// Does the client have an orphan open?
fn has_open_orphan(server: &Server, client: ClientId) -> bool {
    let leases = server.leases.borrow();
    server.reaper.any_open_orphan(|ino| leases.rights(client, ino).contains(Rights::OPEN))
}

/// Ends the quarantines whose time has come.
pub async fn end_quarantines(server: &Rc<Server>) {
    let now = server.env.now();
    let all: Vec<(ClientId, bool, bool)> = {
        let quarantine = server.quarantine.0.borrow();
        let noted = quarantine.iter().filter(|(_, evicted)| evicted.recorded);
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
    // Others may have read what a device wrote late: it must be stable.
    flush_for(server, &clients).await;
    if may_write_late(server) && !planted(Bug::QuarantineSkipped) {
        past.clear();
    }
    for client in dead.into_iter().chain(past) {
        if let Err(error) = end_quarantine(server, client).await {
            server.note_failure(&error, "ending a quarantine");
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
            let thaw =
                |txn: &mut mfs::Txn<'_>| part.iter().try_for_each(|&ino| txn.unfreeze(client, ino));
            server.mfs.run(Cost::STEP, thaw).await?;
        }
    }
    remove_from_store(server, client).await?;
    Ok(())
}

/// How long after its eviction a client's blocks are not reused.
pub fn quarantine_time(lease: Duration) -> Duration {
    lease + lease / 2
}
