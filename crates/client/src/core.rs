//! The state that all operations share. `absorb.rs`: how the answers change it.
//!
//! Invariants:
//! - every reply passes [`Core::absorb`] in the order of arrival, before the operation that waits
//!   for it continues: caches and leases change only there and by recalls;
//! - an operation trusts what it read before an await only after it has checked again.

mod absorb;
mod across;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::{Rc, Weak};

use env::Env;
use env::sync::{AsyncMutex, Notify};
use proto::mds::{
    DataAttr, HeldLease, LayoutSlice, Leased, Lock, Mds, NAMED_CALLERS, Op, OpReply, Principal,
    Push, PushReply, Reply, Request, ZoneList,
};
use session::client::{ReplayEntry, Session};
use types::limits::RECLAIM_RANGES_MAX;
use types::{
    Ahead, Attr, Bug, ClientId, Duration, Epoch, Fault, FileBlock, FileKind, HashMap, HeldRange,
    Ino, Instant, Name, Rights, ServerId, planted,
};

use crate::api::{Caller, ClientConfig, Entry, Kernel, Statfs};
use crate::boundary::{DataHalf, FileContent};
use crate::data::DataContext;
use crate::data_lease::DataLease;
use crate::early_recalls::EarlyRecalls;
use crate::handles::Handles;
use crate::inode::{Inode, Inodes, SOFT};
use crate::linger::{Lingering, Lookups};
use crate::locks::Locks;
use crate::names::CachedName;
use crate::path_hints::PathHints;
use crate::rpc::{Call, Events, LostChanges, Refusals, Rpc, result};
use crate::waits::{Wait, Waits};

/// Longest TTL that the kernel gets for anything.
const TTL_MAX: Duration = Duration::from_secs(3600);
/// How often attributes are fetched again if the local size changed during the request.
const ATTR_RETRIES: u32 = 3;
/// Leases in one reclaim.
const RECLAIM_MAX: usize = 4096;
/// How many closed files keep content and rights for their next opening.
const CLOSED_MAX: usize = 65_536;

/// TTLs of what is reported to the kernel in one moment.
#[derive(Clone, Copy)]
pub(crate) struct Lifetimes {
    /// TTL of what the lease covers.
    covered: Duration,
    /// TTL of names in the directory in question.
    name: Duration,
    /// When they were computed.
    now: Instant,
}

impl Lifetimes {
    /// The answer to a lookup of the inode; counts one lookup.
    pub fn entry(self, inode: &Inode) -> Entry {
        inode.looked_up();
        inode.report_owner();
        let attr = inode.attr();
        inode.report_size(attr.size, self.now);
        let attr_ttl = if inode.kernel_may_cache_attr() { self.covered } else { Duration::ZERO };
        let generation = inode.generation;
        Entry { attr, attr_ttl, entry_ttl: self.name, generation }
    }
}

/// A removal in progress of an inode's last name.
pub(crate) struct Removing {
    pub dir: Ino,
    pub name: Name,
    pub ended: Notify,
}

/// A client's state.
pub(crate) struct Core {
    pub env: Env,
    pub config: ClientConfig,
    pub kernel: Rc<dyn Kernel>,
    /// The directory that is mounted.
    pub root: Cell<Ino>,
    pub rpc: Rc<Rpc>,
    /// For what operations wait inside this client.
    pub waits: Rc<Waits>,
    data: OnceCell<Rc<DataContext>>,
    /// The servers' lists of data zones that came before `data` was there.
    early_zones: RefCell<BTreeMap<ServerId, ZoneList>>,
    pub inodes: Inodes,
    pub handles: Handles,
    pub locks: Locks,
    pub path_hints: PathHints,
    /// Recalls of inodes that the client does not know yet.
    pub early_recalls: EarlyRecalls,
    pub recalls: Cell<u64>,
    /// Number of the request whose reply is being applied.
    absorbing: Cell<u64>,
    /// The server that made this reply.
    answering: Cell<ServerId>,
    /// Held while the kernel drops pages that lack a WRITE.
    pub dropping: Rc<AsyncMutex>,
    /// Space as the server last reported it.
    pub statfs: Cell<Option<Statfs>>,
    /// Names of the extended attributes of the mounted directory, as the server last reported them.
    pub root_xattrs: RefCell<Option<Vec<u8>>>,
    closed_leases: RefCell<VecDeque<Rc<Inode>>>,
    /// Inodes whose rights are being returned, with the lease sequence: earlier replies grant
    /// nothing.
    returning: RefCell<HashMap<Ino, u64>>,
    /// Inodes given up with their last name, whose removal is in progress: lookups and opens wait.
    pub removing: RefCell<BTreeMap<Ino, Removing>>,
    /// Lookups in progress.
    pub lookups: Rc<Lookups>,
    /// Orphans that stay open because the kernel may still open them.
    pub lingering: Lingering,
    pub me: Weak<Core>,
}

impl Core {
    /// A client with its sessions; its data devices follow by `set_data`.
    pub fn new(env: Env, config: ClientConfig, kernel: Rc<dyn Kernel>, rpc: Rc<Rpc>) -> Rc<Core> {
        Rc::new_cyclic(|me| Core {
            env,
            config,
            kernel,
            root: Cell::new(Ino::ROOT),
            waits: Rc::new(Waits::new(rpc.shared().clone())),
            rpc,
            data: OnceCell::new(),
            early_zones: RefCell::default(),
            inodes: Inodes::default(),
            handles: Handles::default(),
            locks: Locks::default(),
            path_hints: PathHints::default(),
            early_recalls: EarlyRecalls::default(),
            recalls: Cell::new(0),
            absorbing: Cell::new(0),
            answering: Cell::new(ServerId::ANY),
            statfs: Cell::new(None),
            dropping: Rc::default(),
            root_xattrs: RefCell::default(),
            closed_leases: RefCell::default(),
            returning: RefCell::default(),
            removing: RefCell::default(),
            lookups: Rc::default(),
            lingering: Lingering::default(),
            me: me.clone(),
        })
    }

    /// Sets the data devices after they were opened.
    pub fn set_data(&self, data: Rc<DataContext>) {
        for (server, list) in self.early_zones.take() {
            data.zones_reported(server, &list);
        }
        let first = self.data.set(data).is_ok();
        assert!(first, "data devices are opened once");
    }

    /// A server has sent its list of data zones.
    pub fn zones_reported(&self, server: ServerId, list: ZoneList) {
        match self.data.get() {
            Some(data) => data.zones_reported(server, &list),
            None => drop(self.early_zones.borrow_mut().insert(server, list)),
        }
    }

    /// Closes the data devices: the client has ended.
    pub fn close_data(&self) {
        if let Some(data) = self.data.get() {
            data.release_files();
        }
    }

    /// The data half of the client.
    pub fn data(&self) -> &Rc<DataContext> {
        self.data.get().expect("data devices are opened before the client is handed out")
    }

    /// Returns unused space, which `server` wants back; always answers the server.
    pub async fn return_unused_space(&self, server: ServerId) {
        self.reclaim_lingering().await;
        match self.data.get() {
            Some(data) => data.return_unused(server).await,
            None => {
                let nothing = Op::ReturnSpace { runs: Vec::new() };
                let _ = self.rpc.call_at(server, Call::reserved(vec![nothing])).await;
            }
        }
    }

    /// Waits until the lease of the inode's server is good, so that what is cached of the inode may
    /// be used.
    pub async fn wait_for_lease(&self, ino: Ino) -> Result<(), Fault> {
        let session = self.rpc.of(ino);
        if session.lease_ends() > self.env.now() {
            return Ok(());
        }
        self.waits.named(&self.env, Wait::Lease, session.wait_for_lease()).await
    }

    /// The TTL, from now on, of what the leases cover: of what the first covers that ends. So one
    /// server that is away makes the kernel ask for what others have, too.
    fn ttl(&self) -> Duration {
        self.rpc.lease_left().min(TTL_MAX)
    }

    /// Notes that `attr` of the inode is reported to the kernel; returns its TTL.
    pub fn report_attr(&self, inode: &Inode, attr: &Attr) -> Duration {
        inode.report_owner();
        inode.report_size(attr.size, self.env.now());
        if inode.kernel_may_cache_attr() { self.ttl() } else { Duration::ZERO }
    }

    /// The TTL of names in the directory.
    pub fn name_ttl(&self, dir: Ino) -> Duration {
        match self.inodes.get(dir) {
            Some(dir) if dir.holds(Rights::NAMES) => self.ttl(),
            _ => Duration::ZERO,
        }
    }

    /// The answer to a lookup of the inode under `dir`; counts one lookup.
    pub fn entry(&self, inode: &Inode, dir: Ino) -> Entry {
        let now = self.env.now();
        let times = Lifetimes { covered: self.ttl(), name: self.name_ttl(dir), now };
        times.entry(inode)
    }

    /// The TTL of a name that a reply brought. The reply may be older than the right that is held,
    /// so the TTL is zero unless the cache says the same.
    pub fn name_ttl_from_reply(&self, dir: Ino, name: &Name, found: CachedName) -> Duration {
        match self.inodes.get(dir) {
            Some(dir) if dir.cached_name(name) == found => self.ttl(),
            _ => Duration::ZERO,
        }
    }

    /// As [`Core::entry`], for an inode that a reply found or created under `name`.
    pub fn entry_from_reply(&self, inode: &Inode, dir: Ino, name: &Name) -> Entry {
        let name = self.name_ttl_from_reply(dir, name, CachedName::Present(inode.ino));
        Lifetimes { covered: self.ttl(), name, now: self.env.now() }.entry(inode)
    }

    /// The TTLs of what is reported under `dir` now.
    pub fn lifetimes(&self, dir: &Inode) -> Lifetimes {
        let covered = self.ttl();
        let name = if dir.holds(Rights::NAMES) { covered } else { Duration::ZERO };
        Lifetimes { covered, name, now: self.env.now() }
    }

    /// As [`Core::entry_from_reply`], with the attributes of this reply.
    pub fn entry_with_attr(&self, inode: &Inode, dir: Ino, name: &Name, attr: &Attr) -> Entry {
        let attr = inode.attr_for_reply(attr);
        inode.report_size(attr.size, self.env.now());
        Entry { attr, ..self.entry_from_reply(inode, dir, name) }
    }

    /// Fails if the kernel means by this number an inode whose creation was lost.
    pub fn check_not_lost(&self, ino: Ino) -> Result<(), Fault> {
        if self.inodes.is_lost(ino) { Err(Fault::Stale) } else { Ok(()) }
    }

    /// Translates a fault of an operation on names of `dir` for the kernel. `Stale`: it was
    /// removed, so it has no names, if the kernel knows it and its creation was not lost.
    pub fn dir_fault(&self, dir: Ino, fault: Fault) -> Fault {
        if self.note_if_removed(dir, fault) { Fault::NotFound } else { fault }
    }

    /// Does `fault` of a request on this directory say that it was removed? If so, notes it.
    pub fn note_if_removed(&self, dir: Ino, fault: Fault) -> bool {
        if fault != Fault::Stale || self.inodes.is_lost(dir) {
            return false;
        }
        let dir = self.inodes.get(dir).filter(|dir| dir.kind() == FileKind::Directory);
        dir.inspect(|dir| dir.mark_removed()).is_some()
    }

    /// The inode, fetched from the server if the client does not know it.
    pub async fn inode(&self, ino: Ino) -> Result<Rc<Inode>, Fault> {
        self.check_not_lost(ino)?;
        if let Some(inode) = self.inodes.get(ino) {
            return Ok(inode);
        }
        self.fetch_attr(ino).await
    }

    /// Fetches the attributes from the server.
    pub async fn fetch_attr(&self, ino: Ino) -> Result<Rc<Inode>, Fault> {
        Ok(self.fetch_attr_reply(ino, Rights::ATTR).await?.0)
    }

    /// Fetches the attributes from the server, and acquires `want` if that is free; returns them as
    /// this reply brought them. A file that this client writes is asked for again, up to
    /// [`ATTR_RETRIES`] times, if its local size changes meanwhile: size and other attributes would
    /// be of different moments.
    pub async fn fetch_attr_reply(
        &self,
        ino: Ino,
        want: Rights,
    ) -> Result<(Rc<Inode>, Attr), Fault> {
        let local_size = || self.inodes.get(ino).and_then(|inode| inode.local_size());
        let mut retries = ATTR_RETRIES;
        loop {
            let size = local_size();
            let op = Op::GetAttr { ino, want };
            let reply = self.rpc.call(Call::one(&Caller::default(), op)).await?;
            let OpReply::Attr { leased } = result(&reply, 0)? else { return Err(Fault::Protocol) };
            let inode = self.inodes.get_or_insert(&leased.attr);
            if retries == 0 || inode.attr_is_valid() || local_size() == size {
                let attr = inode.attr_for_reply(&leased.attr);
                return Ok((inode, attr));
            }
            retries -= 1;
        }
    }

    /// Asks the server for a change of names or attributes. After applying the reply, the caller
    /// must call [`Core::invalidate_for_abandoned_caller`] last.
    pub async fn send_change(&self, caller: &Caller, op: Op) -> Result<Rc<Reply>, Fault> {
        if self.rpc.is_single() {
            let session = self.rpc.home();
            return session.call(self.change_in(session, caller, op)).await;
        }
        let mut refusals = Refusals::default();
        loop {
            let session = self.rpc.executing(&op);
            let call = self.change_in(&session, caller, op.clone());
            let reply = session.call(call.clone()).await?;
            if !self.rpc.goes_on(&session, &call, &reply, &mut refusals).await? {
                return Ok(reply);
            }
        }
    }

    /// The request for a change in this session. It names the caller as its server wants that.
    fn change_in(&self, session: &Session<Mds>, caller: &Caller, op: Op) -> Call {
        let mut call = Call::one(caller, op);
        if session.agreed().1 & NAMED_CALLERS != 0
            && let Some((uid, gid, groups)) = self.kernel.credentials(caller)
        {
            call.principal = Principal { uid, gid, groups };
        }
        call
    }

    /// If the caller was killed, the kernel already saw EINTR and may cache the old state: drops
    /// it.
    pub async fn invalidate_for_abandoned_caller(&self, reply: &Reply) {
        if !self.rpc.caller_is_gone() {
            return;
        }
        if let Ok(done) = result(reply, 0) {
            self.kernel.inc_epoch().await;
            for ino in done.changed().inodes.into_iter().flatten() {
                self.kernel.inval_attr(ino).await;
            }
        }
    }

    /// If the caller of a change of content was killed, the kernel may have the old bytes: drops
    /// them.
    pub async fn inval_content_for_abandoned_caller(&self, inode: &Inode) {
        if self.rpc.caller_is_gone() {
            self.kernel.inval_attr(inode.ino).await;
            self.inval_unlocked_pages(inode, (0, u64::MAX)).await;
        }
    }

    /// The kernel drops its pages of bytes `range`, except those that blocked requests have locked.
    pub async fn inval_unlocked_pages(&self, inode: &Inode, range: (u64, u64)) {
        let data_lease = inode.data_lease().filter(|_| inode.has_pages());
        let ranges = data_lease.map_or_else(Vec::new, |data| data.unlocked(&[range]));
        for range in ranges {
            self.inval_pages(inode, range).await;
        }
    }

    /// Fails if the mount is read-only.
    pub fn check_writable(&self) -> Result<(), Fault> {
        if self.config.read_only { Err(Fault::ReadOnly) } else { Ok(()) }
    }

    /// The last handle of a file was closed: its content stays cached for a while.
    pub fn data_lease_closed(&self, inode: &Rc<Inode>) {
        let Some(data_lease) = inode.data_lease() else { return };
        data_lease.file.last_handle_closed();
        let mut closed = self.closed_leases.borrow_mut();
        if !data_lease.set_queued(true) {
            closed.push_back(inode.clone());
        }
        for _ in 0..4 {
            if closed.len() <= CLOSED_MAX {
                break;
            }
            let Some(oldest) = closed.pop_front() else { break };
            let Some(data_lease) = oldest.data_lease() else { continue };
            if oldest.opens() > 0 {
                data_lease.set_queued(false);
            } else if data_lease.is_idle() {
                oldest.set_data_lease(None);
            } else {
                closed.push_back(oldest);
            }
        }
    }

    /// Applies attributes and rights of an inode from a reply of its own server. Returns whether
    /// the lease is newer; `None`: another server replied, which knows nothing of that.
    fn apply_attr_and_lease(&self, leased: &Leased) -> Option<(Rc<Inode>, bool)> {
        if self.is_elsewhere(&leased.attr) {
            return None;
        }
        let inode = self.upsert_inode(&leased.attr);
        let returning = self.returning.borrow();
        if returning.get(&leased.attr.ino).is_some_and(|seq| leased.seq <= *seq) {
            inode.apply_attr(&leased.attr);
            return Some((inode, false));
        }
        let newer = inode.apply_lease(leased, self.absorbing.get());
        if newer && leased.rights.contains(Rights::OPEN) && is_unused(&inode) {
            self.late_open_grant(&inode);
        }
        Some((inode, newer))
    }

    /// `OPEN` was granted for an orphan that is no longer open: nothing else would return it.
    fn late_open_grant(&self, inode: &Rc<Inode>) {
        let Some(me) = self.me.upgrade() else { return };
        let inode = inode.clone();
        self.env.spawn(async move {
            // A file that was created as an orphan (`O_TMPFILE`) is open by now.
            if is_unused(&inode) && inode.holds(Rights::OPEN) {
                inode.owe_open();
                me.schedule_open_return(&inode);
            }
        });
    }

    /// Applies what a reply says of a directory. True if names in the same reply may be cached: not
    /// if the directory lives elsewhere since.
    fn apply_dir(&self, dir: &Leased) -> (Rc<Inode>, bool) {
        let inode = self.upsert_inode(&dir.attr);
        if self.is_elsewhere(&dir.attr) {
            return (inode, false);
        }
        let current = dir.attr.version >= inode.server_attr().version;
        let order = self.absorbing.get();
        let newer = inode.apply_lease(dir, order);
        let held = dir.rights.contains(Rights::NAMES);
        let keep = held && newer && current && inode.may_cache_names(order);
        (inode, keep)
    }

    /// Applies this client's own change of a directory: a name, and where it leads since. The name
    /// is cached only if `NAMES` was held before the change.
    fn apply_dir_change(&self, dir: &Leased, change: Option<(&Name, Option<Ino>)>) {
        if self.is_elsewhere(&dir.attr) {
            return self.void(dir.attr.ino, SOFT);
        }
        let inode = self.upsert_inode(&dir.attr);
        let newest = dir.attr.version >= inode.server_attr().version;
        inode.apply_lease(dir, self.absorbing.get());
        let Some((name, ino)) = change.filter(|_| inode.holds(Rights::NAMES)) else { return };
        inode.names(|names| match ino {
            _ if !names.covers(dir.attr.version) => {}
            // A later change, whose reply came before this one, may concern the same name.
            _ if !newest => names.forget(name),
            Some(ino) => names.add(name, ino),
            None => names.remove(name),
        });
    }

    fn apply_whole_grant(&self, inode: &Rc<Inode>, newer: bool, layout: LayoutSlice) {
        let rights = inode.lease(|lease| lease.rights().closed());
        let data = rights & Rights::WHOLE;
        if !newer || data.is_empty() || inode.kind() != FileKind::Regular {
            return;
        }
        let (brought, order) = ((&inode.server_attr(), layout), self.rpc.order());
        self.data_lease(inode).whole_granted(data, brought, order, self.env.now());
    }

    /// Applies a grant of ranges of the content; `attr`: the attributes at the time of the grant.
    fn apply_range_grant(
        &self,
        inode: &Rc<Inode>,
        attr: &Attr,
        parts: &[HeldRange],
        layout: Option<&LayoutSlice>,
    ) {
        inode.mark_size_stale();
        self.data_lease(inode).ranges_granted(parts, (attr, layout), self.rpc.order());
    }

    /// An inode lost a name. `given_up`: this client's rights go with it, if it was the last.
    fn apply_name_removed(&self, attr: &Attr, given_up: bool) {
        let known = self.inodes.get(attr.ino);
        if known.is_none() && self.rpc.of(attr.ino).is_idle() {
            return;
        }
        // A lookup from before the removal may be answered after this.
        let inode = known.clone().unwrap_or_else(|| self.upsert_inode_until_barrier(attr));
        inode.apply_removal(attr);
        // Another client may have linked it again in between: then the server keeps the rights.
        if given_up && attr.nlink == 0 {
            inode.give_up(Rights::all(), self.rpc.order());
        }
    }

    /// Returns the rights of the inodes that have been idle longest, while too many are cached.
    pub async fn trim(&self) {
        const BATCH: usize = 64;
        if self.inodes.len() > self.config.inodes_max {
            self.inodes.trim_names(self.config.inodes_max);
        }
        while self.inodes.len() > self.config.inodes_max {
            let cold = self.inodes.take_cold(BATCH);
            let mut ops = Vec::new();
            for inode in &cold {
                let ino = inode.ino;
                let (give, seq) = inode.lease(|lease| (lease.rights().closed(), lease.seq()));
                inode.give_up(give, self.rpc.order());
                if !give.is_empty() {
                    ops.push(Op::Return { ino, seq, give, still_open: false, range: None });
                    self.returning.borrow_mut().insert(ino, seq);
                }
            }
            if cold.is_empty() {
                return;
            }
            if ops.is_empty() {
                continue;
            }
            let returned = self.rpc.give_back(ops).await;
            self.rpc.barrier().await;
            self.returning.borrow_mut().clear();
            if returned.is_err() {
                return;
            }
        }
    }
}

/// Is it an orphan that is not open here?
fn is_unused(inode: &Inode) -> bool {
    inode.opens() == 0 && inode.server_attr().nlink == 0 && inode.kind() != FileKind::Directory
}

impl Events<Mds> for Core {
    fn absorb(&self, server: ServerId, request: &Request, reply: &Reply, order: u64) {
        self.absorbing.set(order);
        self.answering.set(server);
        for (op, result) in request.ops.iter().zip(&reply.results) {
            if let Ok(result) = result {
                self.absorb_op(op, result);
            }
        }
        self.absorb_capability(request, reply, order);
    }

    fn push(&self, server: ServerId, push: Push) -> Option<PushReply> {
        if let Push::Glimpse { id, ino } = push {
            return Some(PushReply { id, data: self.glimpse(ino) });
        }
        if let Some(me) = self.me.upgrade() {
            me.push_received(server, push);
        }
        None
    }

    fn connected(&self, server: ServerId) {
        let (Some(data), Some(session)) = (self.data.get(), self.rpc.get(server)) else { return };
        data.zones_offered(server, &session.offer().1.unwrap_or_default());
        // The greeting does not say what is lost or drains; the server sends that only if something
        // is or does.
        if let Some(me) = self.me.upgrade().filter(|_| data.any_out_of_service()) {
            self.env.spawn(async move {
                let call = Call::reserved(vec![Op::Zones {}]);
                if let Ok(reply) = me.rpc.call_at(server, call).await
                    && let Ok(OpReply::Zones { list }) = result(&reply, 0)
                {
                    me.zones_reported(server, list.clone());
                }
            });
        }
    }

    fn reclaim(&self, server: ServerId, epoch: Epoch) -> Vec<Op> {
        let (mut leases, mut locks) = self.held_of(server, epoch);
        let mut reclaims = Vec::new();
        while !leases.is_empty() || !locks.is_empty() {
            let mut parts = 0;
            let fits = |held: &&HeldLease| {
                parts += held.ranges.len();
                parts <= RECLAIM_RANGES_MAX
            };
            let count = leases.iter().rev().take(RECLAIM_MAX).take_while(fits).count();
            let leases = leases.split_off(leases.len() - count);
            let locks = locks.split_off(locks.len().saturating_sub(RECLAIM_MAX));
            reclaims.push(Op::Reclaim { leases, locks });
        }
        reclaims
    }

    fn names_lost(&self, op: &Op) -> bool {
        op.spec().inodes.iter().flatten().any(|ino| self.inodes.is_lost(*ino))
    }

    fn evicted(&self, server: ServerId, client: ClientId, lost: &[ReplayEntry<Mds>]) {
        let mut lost = LostChanges::of(lost);
        // What another server has created for an operation of both is not lost with this one.
        lost.created.retain(|ino| self.rpc.server_of(*ino) == server);
        self.lose_locks(server);
        self.early_recalls.forget(|ino| self.rpc.server_of(ino) == server);
        let of_session = |inode: &Rc<Inode>| self.rpc.server_of(inode.ino) == server;
        let inodes: Vec<_> = self.inodes.all().into_iter().filter(of_session).collect();
        let mut outdated = Vec::new();
        for inode in &inodes {
            inode.forget_lease(self.rpc.order());
            if let Some(data_lease) = inode.data_lease() {
                if inode.has_pages() {
                    data_lease.pages_are_stale();
                    outdated.push((inode.ino, data_lease.clone()));
                }
                data_lease.forget(true);
                data_lease.share();
                if lost.committed.contains(&inode.ino) {
                    data_lease.file.report_lost_commit();
                }
                data_lease.changed.notify_all();
            }
        }
        if let Some(data) = self.data.get() {
            data.evicted(server, client);
        }
        self.inodes.lose(&lost.created);
        self.locks.forget(&lost.created);
        for inode in inodes.iter().filter(|inode| inode.is_lost()) {
            if let Some(data_lease) = inode.data_lease() {
                data_lease.file.detach();
            }
        }
        let Some(me) = self.me.upgrade() else { return };
        self.env.spawn(async move { me.invalidate_kernel(inodes, outdated).await });
    }
}

impl Core {
    /// Size and times, if the client may know them better than the server.
    fn glimpse(&self, ino: Ino) -> Option<DataAttr> {
        let inode = self.inodes.get(ino)?;
        let data_lease = inode.data_lease()?;
        data_lease.share();
        let exclusive = inode.holds(Rights::DATA_X) && data_lease.file.holds(Rights::DATA_X);
        (exclusive || data_lease.holds_ranges()).then(|| data_lease.file.data_attr())
    }

    /// What is held at `server`, which restarted with `epoch`.
    fn held_of(&self, server: ServerId, epoch: Epoch) -> (Vec<HeldLease>, Vec<(Ino, Lock)>) {
        let of_server = |ino: Ino| self.rpc.server_of(ino) == server;
        self.early_recalls.forget(of_server);
        let inodes = self.inodes.all().into_iter().filter(|inode| of_server(inode.ino));
        let leases = inodes
            .filter_map(|inode| {
                let mut rights = inode.reclaim(epoch);
                if planted(Bug::LeasesNotReclaimed) {
                    rights = Rights::empty();
                }
                let open = inode.opens() > 0;
                let parts = inode.data_lease().map_or_else(Vec::new, |data| data.ranges());
                let held = HeldLease { ino: inode.ino, rights, open, ranges: parts };
                (open || !rights.is_empty()).then_some(held)
            })
            .collect();
        let mut locks =
            if planted(Bug::LocksNotReclaimed) { Vec::new() } else { self.locks.held() };
        locks.retain(|(ino, _)| of_server(*ino));
        (leases, locks)
    }

    /// Marks the locks of the ended session as lost; logs the files and the processes.
    fn lose_locks(&self, server: ServerId) {
        for (ino, locks) in self.locks.lose(|ino| self.rpc.server_of(ino) == server) {
            let pids: BTreeSet<u32> = locks.iter().map(|lock| lock.pid).collect();
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            self.rpc.log(&format!(
                "{}: the session was lost; locks of processes are lost: {}",
                self.path_hints.describe(ino),
                pids.join(", ")
            ));
        }
    }

    /// Invalidates what the kernel caches, which no lease covers any more, and acquires `OPEN`
    /// again for open files. Drops pages first: requests may wait for that.
    async fn invalidate_kernel(
        self: Rc<Self>,
        inodes: Vec<Rc<Inode>>,
        outdated: Vec<(Ino, Rc<DataLease>)>,
    ) {
        self.kernel.inc_epoch().await;
        for (ino, data_lease) in outdated {
            let dropping = data_lease.pages.dropping(vec![(0, u64::MAX)]);
            self.kernel.inval_pages_outside_recall(ino, 0, 0).await;
            drop(dropping);
            data_lease.pages_dropped();
        }
        for inode in inodes {
            self.kernel.inval_attr(inode.ino).await;
            if inode.opens() > 0 && !inode.is_lost() {
                let rights = Rights::OPEN | Rights::ATTR;
                let op = Op::Acquire {
                    ino: inode.ino,
                    rights,
                    from: FileBlock(0),
                    range: None,
                    ahead: Ahead::default(),
                };
                // An orphan is gone: its handles get `Stale`.
                let _ = self.rpc.call(Call::one(&Caller::default(), op)).await;
            }
        }
    }
}
