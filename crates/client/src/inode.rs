//! The inode table: what the client knows of each inode, and its lease.
//!
//! Invariants:
//! - attributes of a lower version never replace those of a higher one;
//! - the client answers for the attributes of an inode from memory only while it holds `ATTR`;
//! - a reply to a request that was made before `ATTR` or `NAMES` was last given up grants neither:
//!   it may have been executed before that, and it names the lease as it is now;
//! - an inode whose creation was lost with a session has left the table for good. The server may
//!   have reused its number for another inode, which the kernel gets under another generation.
//!   Until then, requests of the kernel under that number mean the lost inode;
//! - more than a few hundred bytes per inode (names, content) are kept only for directories and
//!   files in use.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use proto::lease_client::Lease;
use proto::mds::Leased;
use types::{Attr, Bug, Duration, Epoch, FileKind, HashMap, Ino, Instant, Name, Rights, planted};

use crate::boundary::FileContent;
use crate::data_lease::DataLease;
use crate::names::{CachedName, Names};

/// Rights that only allow caching what replies bring along.
pub(crate) const SOFT: Rights = Rights::ATTR.union(Rights::NAMES);

/// How long after a lookup the kernel may still open what it looked up.
const OPEN_DELAY_MAX: Duration = Duration::from_secs(1);

/// What the client knows of an inode's extended attributes, under `ATTR` or `DATA_X`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Xattrs {
    /// Nothing.
    Unknown,
    /// There are none, except perhaps ACLs: this client created the inode.
    OnlyAcls,
    /// Exactly these, each terminated by NUL.
    Names(Box<[u8]>),
}

/// The extended attribute that a write removes.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";
/// Prefix of the names of ACLs.
const ACL: &[u8] = b"system.posix_acl_";

impl Xattrs {
    /// Is it certain that there is no attribute of this name?
    pub fn excludes(&self, name: &[u8]) -> bool {
        match self {
            Xattrs::Unknown => false,
            Xattrs::OnlyAcls => !name.starts_with(ACL),
            Xattrs::Names(names) => !has_name(names, name),
        }
    }
}

/// Is `name` one of the NUL-terminated `names`?
pub(crate) fn has_name(names: &[u8], name: &[u8]) -> bool {
    names.split(|byte| *byte == 0).any(|known| known == name)
}

/// What only some kinds of inodes have.
enum Special {
    None,
    Names(Box<Names>),
    Data(Rc<DataLease>),
    Target(Box<[u8]>),
}

struct InodeState {
    attr: Attr,
    lease: Lease,
    /// `attr` may lack size and times of writes by another client.
    size_stale: bool,
    /// Requests made before this number do not reflect the last loss of `ATTR` or `NAMES`.
    given_up_at: u64,
    lookups: u64,
    /// The owner that was last reported to the kernel.
    reported_owner: u32,
    /// When the kernel last found the inode by name, by which thread, and when by any other.
    found: Instant,
    finder: u32,
    found_by_others: Instant,
    /// The kernel has opened it since it knows it.
    opened: bool,
    /// The inode is in the queue of idle inodes.
    in_cold_queue: bool,
    /// It was used since it last came to the front of that queue.
    warm: bool,
    opens: u32,
    /// Open buffered handles through which a process may write, or map the file writable.
    buffered_writers: u32,
    /// The kernel may have pages of it.
    pages: bool,
    /// A DATA right was given up while the kernel had pages, which nothing has invalidated since.
    pages_stale: bool,
    /// A recall of `OPEN` was answered "still open": the client owes `OPEN`, and returns it when
    /// nothing here may open the inode any more.
    owes_open: bool,
    /// This client created it as an orphan (`O_TMPFILE`), and has not linked it yet.
    tmpfile: bool,
    /// Its creation was lost.
    lost: bool,
    /// The kernel got it from a lookup.
    reported: bool,
    /// How many [`InodePin`]s keep it in the table.
    pins: u32,
    xattrs: Xattrs,
    special: Special,
}

/// An inode that the client knows.
pub(crate) struct Inode {
    pub ino: Ino,
    /// Distinguishes it from an earlier inode of the same number.
    pub generation: u64,
    state: RefCell<InodeState>,
}

impl Inode {
    fn new(attr: &Attr, generation: u64) -> Inode {
        let state = InodeState {
            attr: *attr,
            lease: Lease::default(),
            size_stale: false,
            given_up_at: 0,
            lookups: 0,
            reported_owner: attr.uid,
            found: Instant::default(),
            finder: 0,
            found_by_others: Instant::default(),
            opened: false,
            in_cold_queue: false,
            warm: false,
            opens: 0,
            buffered_writers: 0,
            pages: false,
            pages_stale: false,
            owes_open: false,
            tmpfile: false,
            lost: false,
            reported: false,
            pins: 0,
            xattrs: Xattrs::Unknown,
            special: Special::None,
        };
        Inode { ino: attr.ino, generation, state: RefCell::new(state) }
    }

    /// Type.
    pub fn kind(&self) -> FileKind {
        self.state.borrow().attr.kind
    }

    /// Attributes as the server last reported them.
    pub fn server_attr(&self) -> Attr {
        self.state.borrow().attr
    }

    /// Attributes, with size and times from this client where it knows them better.
    pub fn attr(&self) -> Attr {
        let mut attr = self.server_attr();
        let writes = self.is_sole_writer();
        if let Special::Data(data_lease) = &self.state.borrow().special
            && (writes || data_lease.holds_ranges())
        {
            data_lease.file.overlay(&mut attr);
        }
        attr
    }

    /// The attributes to answer with, after a reply that brought `replied`: attributes of one
    /// moment since the request. A newer reply may have overtaken this one, but not every reply has
    /// the size that a writer elsewhere knows.
    pub fn attr_for_reply(&self, replied: &Attr) -> Attr {
        if self.attr_is_valid() || self.is_sole_writer() {
            return self.attr();
        }
        let newest = self.server_attr();
        let size_stale = self.state.borrow().size_stale;
        if replied.version < newest.version && !size_stale { newest } else { *replied }
    }

    /// The size, if only this client knows it.
    pub fn local_size(&self) -> Option<u64> {
        self.is_sole_writer().then(|| self.attr().size)
    }

    /// Does only this client know size and times?
    fn is_sole_writer(&self) -> bool {
        let state = self.state.borrow();
        match &state.special {
            Special::Data(data) => state.lease.holds(Rights::DATA_X) && data.is_loaded(),
            _ => false,
        }
    }

    /// The last attributes lack the size and times that the writers of the file know.
    pub fn mark_size_stale(&self) {
        self.state.borrow_mut().size_stale = true;
    }

    /// Applies attributes from the reply to a removal. Size and times are the server's, although
    /// another client may be writing.
    pub fn apply_removal(&self, attr: &Attr) {
        self.apply_attr(attr);
        let mut state = self.state.borrow_mut();
        state.size_stale = state.attr.version == attr.version;
    }

    /// Are the cached attributes valid?
    pub fn attr_is_valid(&self) -> bool {
        // Under DATA_X alone, another client could change mode and owner.
        self.state.borrow().lease.holds(Rights::ATTR)
    }

    /// A removed directory: some process may still be in it, but the server no longer knows it.
    pub fn is_removed_directory(&self) -> bool {
        let state = self.state.borrow();
        state.attr.kind == FileKind::Directory && state.attr.nlink == 0
    }

    /// The server says that the inode is gone.
    pub fn mark_removed(&self) {
        self.state.borrow_mut().attr.nlink = 0;
    }

    /// May the kernel cache attributes that it gets now?
    pub fn kernel_may_cache_attr(&self) -> bool {
        let state = self.state.borrow();
        let draining = matches!(&state.special, Special::Data(data) if data.is_draining());
        state.lease.holds(Rights::ATTR) && !draining
    }

    /// Are all of `rights` held?
    pub fn holds(&self, rights: Rights) -> bool {
        self.state.borrow().lease.holds(rights)
    }

    /// Can it be opened even if others remove its names? Then `OPEN` is held, or not needed.
    pub fn can_be_opened(&self) -> bool {
        self.kind() == FileKind::Directory || self.holds(Rights::OPEN)
    }

    /// The lease.
    pub fn lease<R>(&self, f: impl FnOnce(&mut Lease) -> R) -> R {
        f(&mut self.state.borrow_mut().lease)
    }

    /// Applies attributes from a reply, without a lease.
    pub fn apply_attr(&self, attr: &Attr) {
        let data_lease = {
            let mut state = self.state.borrow_mut();
            if attr.version < state.attr.version && !planted(Bug::AttrVersionIgnored) {
                return;
            }
            state.attr = *attr;
            state.size_stale = false;
            match &state.special {
                Special::Data(data_lease) => Some(data_lease.clone()),
                _ => None,
            }
        };
        if let Some(data_lease) = data_lease {
            data_lease.file.apply_server_attr(attr);
        }
    }

    /// Applies attributes and lease of the reply to request number `order`. True if the lease is
    /// newer.
    pub fn apply_lease(&self, leased: &Leased, order: u64) -> bool {
        self.apply_attr(&leased.attr);
        let mut state = self.state.borrow_mut();
        let attr_held = state.lease.holds(Rights::ATTR);
        let names_held = state.lease.holds(Rights::NAMES);
        let mut rights = leased.rights;
        if order < state.given_up_at {
            let kept = if leased.seq == state.lease.seq() {
                state.lease.rights()
            } else {
                Rights::empty()
            };
            rights = (rights - SOFT) | (rights & kept & SOFT);
        }
        // A reply without a right takes no right away: it may be older than the right.
        rights |= state.lease.rights() & SOFT;
        let newer = state.lease.granted(rights, leased.seq);
        if attr_held && !state.lease.holds(Rights::ATTR) {
            state.forget_attr();
        }
        if state.lease.holds(Rights::NAMES) {
            if !names_held {
                let version = leased.attr.version;
                state.names().begin(version);
            }
        } else if names_held {
            state.names().clear();
        }
        newer
    }

    /// May names from the reply to request number `order` be cached?
    pub fn may_cache_names(&self, order: u64) -> bool {
        let state = self.state.borrow();
        order >= state.given_up_at && state.lease.holds(Rights::NAMES)
    }

    /// Gives rights up: nothing is answered from them any more. `order`: of the next request.
    pub fn give_up(&self, rights: Rights, order: u64) {
        let mut state = self.state.borrow_mut();
        state.lease.give(rights);
        if rights.intersects(SOFT) {
            state.given_up_at = order;
        }
        if rights.contains(Rights::ATTR) {
            state.forget_attr();
        }
        if rights.contains(Rights::NAMES)
            && let Special::Names(names) = &mut state.special
        {
            names.clear();
        }
        if rights.contains(Rights::DATA_S) {
            state.pages_stale |= state.pages;
        }
    }

    /// The session is lost: nothing is held.
    pub fn forget_lease(&self, order: u64) {
        self.give_up(Rights::all(), order);
        let mut state = self.state.borrow_mut();
        state.lease.forget();
        state.attr.version = 0;
    }

    /// The server restarted with `epoch`: rights stay, versions and sequences start again.
    pub fn reclaim(&self, epoch: Epoch) -> Rights {
        let mut state = self.state.borrow_mut();
        state.lease.reclaim(epoch);
        state.attr.version = 0;
        if let Special::Names(names) = &mut state.special {
            names.restart_versions();
        }
        state.lease.rights()
    }

    /// Runs `f` on the cached names of a directory.
    pub fn names<R>(&self, f: impl FnOnce(&mut Names) -> R) -> R {
        f(self.state.borrow_mut().names())
    }

    /// What the cache knows of a name in this directory.
    pub fn cached_name(&self, name: &Name) -> CachedName {
        if self.holds(Rights::NAMES) {
            self.names(|names| names.find(name))
        } else {
            CachedName::Unknown
        }
    }

    /// The number of cached names; does not create the cache.
    pub fn names_count(&self) -> usize {
        match &self.state.borrow().special {
            Special::Names(names) => names.len(),
            _ => 0,
        }
    }

    /// The DATA rights of a regular file in use.
    pub fn data_lease(&self) -> Option<Rc<DataLease>> {
        match &self.state.borrow().special {
            Special::Data(data_lease) => Some(data_lease.clone()),
            _ => None,
        }
    }

    /// Sets or drops the DATA rights.
    pub fn set_data_lease(&self, data_lease: Option<Rc<DataLease>>) {
        self.state.borrow_mut().special = data_lease.map_or(Special::None, Special::Data);
    }

    /// The cached target of a symbolic link.
    pub fn target(&self) -> Option<Vec<u8>> {
        match &self.state.borrow().special {
            Special::Target(target) => Some(target.to_vec()),
            _ => None,
        }
    }

    /// Did this client create it with `O_TMPFILE`, and has not linked it yet? Only such an orphan
    /// can get a name; an inode that lost its last name stays an orphan.
    pub fn is_tmpfile(&self) -> bool {
        self.state.borrow().tmpfile
    }

    /// See [`Inode::is_tmpfile`].
    pub fn set_tmpfile(&self, tmpfile: bool) {
        self.state.borrow_mut().tmpfile = tmpfile;
    }

    /// Was its creation lost? Requests on it are refused for good.
    pub fn is_lost(&self) -> bool {
        self.state.borrow().lost
    }

    /// Caches the target, which never changes.
    pub fn set_target(&self, target: &[u8]) {
        self.state.borrow_mut().special = Special::Target(target.into());
    }

    /// What the client knows of the extended attributes.
    pub fn xattrs(&self) -> Xattrs {
        self.state.borrow().xattrs.clone()
    }

    /// Caches extended attributes from a reply that brought `attr`, if the right to do so is held,
    /// and if no newer reply has reported a change since.
    pub fn cache_xattrs(&self, attr: &Attr, xattrs: Xattrs) {
        let mut state = self.state.borrow_mut();
        let current = state.lease.holds(Rights::ATTR) && attr.version >= state.attr.version;
        state.xattrs = if current { xattrs } else { Xattrs::Unknown };
    }

    /// An extended attribute was changed.
    pub fn forget_xattrs(&self) {
        self.state.borrow_mut().xattrs = Xattrs::Unknown;
    }

    /// The kernel looked it up.
    pub fn looked_up(&self) {
        let mut state = self.state.borrow_mut();
        state.lookups += 1;
        state.reported = true;
        state.warm = true;
    }

    /// The kernel gets attributes: from now on it checks permissions by this owner.
    pub fn report_owner(&self) {
        let mut state = self.state.borrow_mut();
        state.reported_owner = state.attr.uid;
    }

    /// The kernel gets a size: if it has another one it drops its pages.
    pub fn report_size(&self, size: u64, now: Instant) {
        if let Special::Data(data_lease) = &self.state.borrow().special {
            data_lease.pages.size_reported(size, now);
        }
    }

    /// The owner by which the kernel decides who may change attributes.
    pub fn reported_owner(&self) -> u32 {
        self.state.borrow().reported_owner
    }

    /// Thread `pid` gets the inode from a lookup, and may open it next. Threads outside the mount's
    /// pid namespace all have number 0.
    pub fn note_lookup(&self, now: Instant, pid: u32) {
        let mut state = self.state.borrow_mut();
        if state.finder != pid || pid == 0 {
            state.found_by_others = state.found;
        }
        (state.finder, state.found) = (pid, now);
    }

    /// Until when the kernel may still open what it found by name.
    pub fn may_be_opened_until(&self) -> Instant {
        self.state.borrow().found + OPEN_DELAY_MAX
    }

    /// Until when a thread other than `pid` may still open what it found by name.
    pub fn may_be_opened_by_others_until(&self, pid: u32) -> Instant {
        let state = self.state.borrow();
        let own = pid != 0 && state.finder == pid;
        let found = if own { state.found_by_others } else { state.found };
        found + OPEN_DELAY_MAX
    }

    /// The kernel opens it, by name or through a descriptor.
    pub fn mark_opened(&self) {
        self.state.borrow_mut().opened = true;
    }

    /// Has the kernel opened it since it knows it? It may have used a descriptor.
    pub fn was_opened(&self) -> bool {
        self.state.borrow().opened
    }

    /// The kernel forgot `count` lookups; returns how many are left.
    pub fn forgotten(&self, count: u64) -> u64 {
        let mut state = self.state.borrow_mut();
        state.lookups = state.lookups.saturating_sub(count);
        state.opened &= state.lookups > 0;
        state.lookups
    }

    /// Does the kernel know it?
    pub fn is_known_to_kernel(&self) -> bool {
        self.state.borrow().lookups > 0
    }

    /// Is it neither known to the kernel nor open nor busy?
    pub fn is_idle(&self) -> bool {
        let state = self.state.borrow();
        let busy = matches!(&state.special, Special::Data(data_lease) if !data_lease.is_idle());
        state.lookups == 0 && state.opens == 0 && !busy
    }

    /// Is it an idle orphan that nothing in progress needs?
    fn is_dead(&self) -> bool {
        let removed = {
            let state = self.state.borrow();
            state.attr.nlink == 0 && state.lease.rights().is_empty() && state.pins == 0
        };
        removed && self.is_idle()
    }

    /// Open handles.
    pub fn opens(&self) -> u32 {
        self.state.borrow().opens
    }

    /// A handle was opened (`by` 1) or closed (-1).
    pub fn count_open(&self, by: i32) -> u32 {
        let mut state = self.state.borrow_mut();
        state.opens = state.opens.saturating_add_signed(by);
        state.opens
    }

    /// A handle that may map the file writable was opened (`by` 1) or closed (-1). While there is
    /// one the kernel has pages under `DATA_X` only.
    pub fn count_writer(&self, by: i32) {
        let mut state = self.state.borrow_mut();
        state.buffered_writers = state.buffered_writers.saturating_add_signed(by);
    }

    /// `OPEN` was recalled while handles were open, or about to be: the client owes it.
    pub fn owe_open(&self) {
        self.state.borrow_mut().owes_open = true;
    }

    /// Does the client owe `OPEN` to the server?
    pub fn owes_open(&self) -> bool {
        self.state.borrow().owes_open
    }

    /// Does the client owe `OPEN` to the server? Clears the debt.
    pub fn take_owed_open(&self) -> bool {
        std::mem::take(&mut self.state.borrow_mut().owes_open)
    }

    /// Is it open for buffered writing, so that it may be mapped writable?
    pub fn has_buffered_writer(&self) -> bool {
        self.state.borrow().buffered_writers > 0
    }

    /// May the kernel have pages?
    pub fn has_pages(&self) -> bool {
        self.state.borrow().pages
    }

    /// The kernel gets pages, or all of them are about to be dropped.
    pub fn set_pages(&self, pages: bool) {
        self.state.borrow_mut().pages = pages;
    }

    /// Are the pages valid that the kernel has when it opens the file? If not, it drops all of
    /// them, even those that carry a WRITE in flight. If a READ is served before that WRITE, the
    /// kernel keeps showing what it read. So the answer is yes if the kernel has no pages.
    pub fn keep_pages(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let held = state.lease.rights().closed().contains(Rights::DATA_S);
        !std::mem::take(&mut state.pages_stale) && (held || !state.pages)
    }
}

impl InodeState {
    fn names(&mut self) -> &mut Names {
        if !matches!(self.special, Special::Names(_)) {
            self.special = Special::Names(Box::default());
        }
        match &mut self.special {
            Special::Names(names) => names,
            _ => unreachable!("just created"),
        }
    }

    fn forget_attr(&mut self) {
        self.xattrs = Xattrs::Unknown; // A symlink's target never changes, so it stays cached.
    }
}

/// Keeps an inode in the table. A reply on its way may describe the inode as it was before, and the
/// table says what of that is outdated.
pub(crate) struct InodePin(Rc<Inode>);

impl InodePin {
    /// Pins the inode from now on.
    pub fn new(inode: &Rc<Inode>) -> InodePin {
        inode.state.borrow_mut().pins += 1;
        InodePin(inode.clone())
    }
}

impl Drop for InodePin {
    fn drop(&mut self) {
        self.0.state.borrow_mut().pins -= 1;
    }
}

/// All inodes that the client knows.
#[derive(Default)]
pub(crate) struct Inodes {
    map: RefCell<HashMap<Ino, Rc<Inode>>>,
    /// Inodes that were idle when they were added, the longest idle first; some may be in use
    /// again.
    cold: RefCell<VecDeque<Ino>>,
    /// Numbers of lost inodes that the kernel knows, until the kernel gets another inode of that
    /// number. The value is how many lookups it has not forgotten, unless another inode of that
    /// number counts them.
    lost: RefCell<BTreeMap<Ino, u64>>,
    /// How many inodes of a number were lost; numbers without a loss are absent.
    generations: RefCell<BTreeMap<Ino, u64>>,
}

impl Inodes {
    /// A known inode.
    pub fn get(&self, ino: Ino) -> Option<Rc<Inode>> {
        self.map.borrow().get(&ino).cloned()
    }

    /// The inode, inserted if it is new.
    pub fn get_or_insert(&self, attr: &Attr) -> Rc<Inode> {
        let mut map = self.map.borrow_mut();
        if let Some(inode) = map.get(&attr.ino) {
            return inode.clone();
        }
        let generation = self.generations.borrow().get(&attr.ino).copied().unwrap_or(0);
        let inode = Rc::new(Inode::new(attr, generation));
        if let Some(lookups) = self.lost.borrow_mut().get_mut(&attr.ino) {
            // The kernel forgets both inodes by one number.
            inode.state.borrow_mut().lookups = std::mem::take(lookups);
        }
        map.insert(attr.ino, inode.clone());
        inode.state.borrow_mut().in_cold_queue = true;
        self.cold.borrow_mut().push_back(attr.ino);
        inode
    }

    /// Removes an inode from the table.
    pub fn remove(&self, ino: Ino) {
        self.map.borrow_mut().remove(&ino);
        self.lost.borrow_mut().remove(&ino);
    }

    /// The creation of these inodes was lost.
    pub fn lose(&self, inos: &[Ino]) {
        for ino in inos {
            *self.generations.borrow_mut().entry(*ino).or_default() += 1;
            let Some(inode) = self.map.borrow_mut().remove(ino) else { continue };
            let mut state = inode.state.borrow_mut();
            state.lost = true;
            if state.lookups > 0 {
                self.lost.borrow_mut().insert(*ino, state.lookups);
            }
        }
    }

    /// Does the kernel mean a lost inode by this number?
    pub fn is_lost(&self, ino: Ino) -> bool {
        if self.lost.borrow().is_empty() {
            return false;
        }
        if self.get(ino).is_some_and(|inode| inode.state.borrow().reported) {
            self.lost.borrow_mut().remove(&ino);
        }
        self.lost.borrow().contains_key(&ino)
    }

    /// The kernel forgot `count` lookups of an inode.
    pub fn forgotten(&self, ino: Ino, count: u64) {
        if let Some(inode) = self.get(ino) {
            if inode.forgotten(count) == 0 {
                self.lost.borrow_mut().remove(&ino);
                self.became_idle(&inode);
            }
            return;
        }
        let mut lost = self.lost.borrow_mut();
        if let Some(lookups) = lost.get_mut(&ino) {
            *lookups = lookups.saturating_sub(count);
            if *lookups == 0 {
                lost.remove(&ino);
            }
        }
    }

    /// Removes a pin.
    pub fn unpin(&self, pin: InodePin) {
        let inode = pin.0.clone();
        drop(pin);
        if inode.is_idle() {
            self.became_idle(&inode);
        }
    }

    /// The inode became idle. An orphan is removed from the table at once.
    pub fn became_idle(&self, inode: &Rc<Inode>) {
        if inode.is_dead() {
            self.remove(inode.ino);
            return;
        }
        let mut state = inode.state.borrow_mut();
        if !std::mem::replace(&mut state.in_cold_queue, true) {
            self.cold.borrow_mut().push_back(inode.ino);
        }
    }

    /// Takes up to `max` idle inodes out of the table, the longest idle first.
    pub fn take_cold(&self, max: usize) -> Vec<Rc<Inode>> {
        let mut taken = Vec::new();
        for _ in 0..max * 8 {
            if taken.len() == max {
                break;
            }
            let Some(ino) = self.cold.borrow_mut().pop_front() else { break };
            let Some(inode) = self.get(ino) else { continue };
            let warm = {
                let mut state = inode.state.borrow_mut();
                state.in_cold_queue = false;
                std::mem::take(&mut state.warm)
            };
            if ino == Ino::ROOT || !inode.is_idle() {
                continue;
            }
            if warm || Rc::strong_count(&inode) > 2 {
                self.became_idle(&inode);
            } else {
                self.remove(ino);
                taken.push(inode);
            }
        }
        taken
    }

    /// Drops cached names, largest directories first, until at most `max` are left.
    pub fn trim_names(&self, max: usize) {
        let mut total = self.names();
        if total <= max {
            return;
        }
        let mut dirs: Vec<_> =
            self.map.borrow().values().filter(|dir| dir.names_count() > 0).cloned().collect();
        dirs.sort_by_key(|dir| (std::cmp::Reverse(dir.names_count()), dir.ino));
        for dir in dirs {
            if total <= max {
                return;
            }
            total -= dir.names_count();
            dir.names(Names::clear);
        }
    }

    /// The number of inodes.
    pub fn len(&self) -> usize {
        self.map.borrow().len()
    }

    /// The number of names cached in all directories.
    pub fn names(&self) -> usize {
        self.map.borrow().values().map(|inode| inode.names_count()).sum()
    }

    /// Calls `f` for all inodes, in no particular order.
    pub fn each(&self, f: impl FnMut(&Rc<Inode>)) {
        self.map.borrow().values().for_each(f);
    }

    /// All inodes, by number.
    pub fn all(&self) -> Vec<Rc<Inode>> {
        let mut all: Vec<_> = self.map.borrow().values().cloned().collect();
        all.sort_by_key(|inode| inode.ino);
        all
    }
}

#[cfg(test)]
mod tests;
