//! The kernel's side of a mount: what it caches, locks and forgets, between the applications and
//! the client.
//!
//! Invariants:
//! - a cached object is valid as in Linux, and is invalidated by the notifications that the
//!   product's own notifier writes;
//! - anything may happen between an answer and its application to the cache;
//! - lookups and changes of names lock the directory, changes of a file lock the file; directories
//!   are locked before files;
//! - an inode is forgotten only while no process uses it;
//! - a mapping's store stays in its page until the client has it, or is notified of its loss;
//! - pages show writes that a device lost until they are dropped, which nobody waits for.

pub mod cache;
pub mod calls;
pub(crate) mod content;
mod mapping;
pub mod pages;
pub mod vfs;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::{Rc, Weak};

use client::{Client, LocalFuture};
use env::sync::{AsyncMutex, Permit, Semaphore};
use env::{Env, NotifyLane};
use fuse::abi::{
    NOTIFY_INC_EPOCH, NOTIFY_INVAL_INODE, NOTIFY_PRUNE, NOTIFY_RETRIEVE, NOTIFY_STORE,
    NotifyInvalInodeOut, NotifyPruneOut, NotifyRetrieveOut, NotifyStoreOut, OutHeader, Reader,
};
use fuse::{NotifiableKernel, Notifier, NotifySupport};
use types::limits::BLOCK_U64;
use types::{Duration, Ino, Instant};

use crate::call::At;
use crate::kernel::cache::Cache;
use crate::kernel::calls::PendingRequests;
use crate::kernel::pages::Pages;

/// Most holders of a shared lock.
const SHARED_MAX: usize = 1 << 16;
/// Within this time of reporting a loss the client has asked the kernel to drop the pages.
const ASKED_WITHIN: Duration = Duration::from_micros(100);

/// The kind of kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linux {
    /// No kernel: nothing is cached, and answers are passed on as they come.
    None,
    /// Before 6.16: names are not cached, and the answer to SETATTR is always applied.
    Old,
    /// 6.16 or newer.
    New,
}

/// The caches of one mount's kernel. Clones share them.
#[derive(Clone)]
pub struct Caches(pub(crate) Rc<Inner>);

pub(crate) struct Inner {
    pub env: Env,
    pub linux: Linux,
    pub notifier: Notifier,
    lanes: [AsyncMutex; 5],
    locks: RefCell<BTreeMap<Ino, Semaphore>>,
    pub cache: RefCell<Cache>,
    pub pages: RefCell<BTreeMap<Ino, Rc<Pages>>>,
    /// Targets of symbolic links, which never change (CACHE_SYMLINKS).
    pub targets: RefCell<BTreeMap<Ino, Vec<u8>>>,
    /// Inodes that processes use, with use counts.
    used: RefCell<BTreeMap<Ino, u32>>,
    pub calls: PendingRequests,
    /// Inodes with changes by processes under way.
    changing: Marks,
    /// Inodes whose pages the kernel is dropping without a recall waiting.
    dropping: Marks,
    /// When the client last reported that a device lost written data of a file.
    lost: RefCell<BTreeMap<Ino, Instant>>,
    /// The client, for write-back.
    client: RefCell<Option<Client>>,
    /// NotifiableKernel of failed write-back.
    unwritten: RefCell<Option<Unwritten>>,
}

/// Takes a file of which a page could not be written back.
pub type Unwritten = Box<dyn Fn(Ino)>;

/// An object with something under way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Inode(Ino),
    Name(At),
}

/// Inodes and names with something under way, once for each.
#[derive(Clone, Default)]
struct Marks(Rc<RefCell<Vec<Mark>>>);

impl Marks {
    /// Marks them until the result is dropped.
    fn mark(&self, inos: &[Ino], names: &[At]) -> Marked {
        let inos = inos.iter().copied().map(Mark::Inode);
        let what: Vec<Mark> = inos.chain(names.iter().copied().map(Mark::Name)).collect();
        self.0.borrow_mut().extend(&what);
        Marked { marks: self.clone(), what }
    }

    fn has(&self, what: Mark) -> bool {
        self.0.borrow().contains(&what)
    }
}

/// Inodes and names while something is under way.
pub struct Marked {
    marks: Marks,
    what: Vec<Mark>,
}

impl Drop for Marked {
    fn drop(&mut self) {
        let mut marks = self.marks.0.borrow_mut();
        for mark in &self.what {
            let at = marks.iter().position(|other| other == mark);
            at.map(|at| marks.swap_remove(at));
        }
    }
}

impl Caches {
    /// A kernel without a mount.
    pub fn new(env: &Env, linux: Linux) -> Caches {
        let cache = Cache::new(linux == Linux::New);
        Caches(Rc::new(Inner {
            env: env.clone(),
            linux,
            notifier: Notifier::new(),
            lanes: Default::default(),
            locks: RefCell::default(),
            cache: RefCell::new(cache),
            pages: RefCell::default(),
            targets: RefCell::default(),
            used: RefCell::default(),
            calls: PendingRequests::default(),
            changing: Marks::default(),
            dropping: Marks::default(),
            lost: RefCell::default(),
            client: RefCell::default(),
            unwritten: RefCell::default(),
        }))
    }

    /// The notifier to which the client passes recalls.
    pub fn notifier(&self) -> Rc<Notifier> {
        Rc::new(self.0.notifier.clone())
    }

    /// The client is connected.
    pub(crate) fn mounted(&self, client: &Client) {
        if self.caches() {
            self.0.cache.borrow_mut().mounted(client.root());
            *self.0.client.borrow_mut() = Some(client.clone());
            let new = self.0.linux == Linux::New;
            let knows = NotifySupport { inc_epoch: new, prune: new, retrieve: true };
            let sink = Rc::new(NotificationSink(Rc::downgrade(&self.0)));
            self.0.notifier.attach(&self.0.env, sink, knows, client.root());
        }
    }

    /// From now on `unwritten` is notified of failed write-back.
    pub fn on_unwritten(&self, unwritten: Unwritten) {
        *self.0.unwritten.borrow_mut() = Some(unwritten);
    }

    pub(crate) fn caches(&self) -> bool {
        self.0.linux != Linux::None
    }

    pub(crate) fn chance(&self, n: u64) -> u64 {
        self.0.env.random_u64() % n
    }

    /// A thread is woken, after a random delay.
    pub(crate) async fn wake(&self) {
        if !self.caches() {
            return;
        }
        match self.chance(8) {
            0..4 => {}
            4..6 => self.0.env.yield_now().await,
            6 => self.0.env.sleep(Duration::from_micros(self.chance(20))).await,
            _ => self.0.env.sleep(Duration::from_micros(self.chance(900))).await,
        }
    }

    async fn apply_notification(&self, message: &[u8]) -> Option<bool> {
        if Reader::new(message).take::<OutHeader>()?.error == NOTIFY_INC_EPOCH {
            self.0.cache.borrow_mut().begin_epoch();
            return Some(true);
        }
        if let Some((store, bytes)) = stored(message) {
            return Some(self.apply_store(Ino(store.nodeid), store.offset, bytes).await);
        }
        if let Some(asked) = retrieving(message) {
            return Some(self.tell_pages(&asked));
        }
        if let Some(ino) = pruned(message) {
            self.prune(ino);
            return Some(true);
        }
        let inval = inval_inode(message)?;
        let ino = Ino(inval.ino);
        if !self.0.cache.borrow_mut().invalidate(ino) {
            return Some(false);
        }
        if let Ok(start) = u64::try_from(inval.off) {
            let end = if inval.len <= 0 { u64::MAX } else { start + inval.len as u64 };
            self.invalidate(ino, start, end).await;
        }
        Some(true)
    }

    /// FUSE_NOTIFY_RETRIEVE of bytes within one page, whatever holds its lock and whether it is up
    /// to date. `false`: the kernel does not know the inode.
    fn tell_pages(&self, asked: &NotifyRetrieveOut) -> bool {
        let ino = Ino(asked.nodeid);
        if self.0.cache.borrow().kind(ino).is_none() {
            return false;
        }
        let end = (asked.offset + u64::from(asked.size)).min(self.0.cache.borrow().size(ino));
        let page = self.known_pages(ino).and_then(|pages| pages.get(asked.offset / BLOCK_U64));
        let bytes = page.filter(|_| asked.offset < end).map(|page| {
            page.copy((asked.offset % BLOCK_U64) as usize, (end - asked.offset) as usize)
        });
        self.0.notifier.retrieved(asked.notify_unique, bytes.unwrap_or_default());
        true
    }

    /// Drops the names of an unused inode, and the inode with them.
    fn prune(&self, ino: Ino) {
        if self.is_used(ino) || self.0.cache.borrow().kind(ino).is_none() {
            return;
        }
        self.0.cache.borrow_mut().drop_names_of(ino);
        let leads_in = self.0.cache.borrow().names().iter().any(|(at, _)| at.dir == ino);
        if !leads_in {
            self.forget(ino);
        }
    }

    /// Forgets an unused inode.
    pub(crate) fn forget(&self, ino: Ino) {
        let client = self.0.client.borrow().clone();
        let lookups = self.0.cache.borrow_mut().forget(ino);
        self.0.pages.borrow_mut().remove(&ino);
        self.0.targets.borrow_mut().remove(&ino);
        self.0.notifier.forgotten(ino);
        if let Some(client) = client.filter(|_| lookups > 0) {
            client.forget(ino, lookups);
        }
    }

    async fn lock_with(&self, inos: &[Ino], permits: usize) -> Vec<Permit> {
        let mut inos = inos.to_vec();
        inos.sort_unstable();
        inos.dedup();
        let mut held = Vec::new();
        for ino in inos {
            let lock = {
                let mut locks = self.0.locks.borrow_mut();
                locks.entry(ino).or_insert_with(|| Semaphore::new(SHARED_MAX)).clone()
            };
            held.push(lock.acquire(permits).await);
        }
        held
    }

    /// Exclusive locks.
    pub async fn lock(&self, inos: &[Ino]) -> Vec<Permit> {
        self.lock_with(inos, SHARED_MAX).await
    }

    /// A shared lock, if there is a kernel.
    pub(crate) async fn lock_shared(&self, ino: Ino) -> Vec<Permit> {
        if self.caches() { self.lock_with(&[ino], 1).await } else { Vec::new() }
    }

    pub(crate) fn use_inode(&self, ino: Ino) {
        *self.0.used.borrow_mut().entry(ino).or_default() += 1;
    }

    /// Marks these inodes and names as changing, until the result is dropped.
    pub(crate) fn change(&self, inos: &[Ino], names: &[At]) -> Marked {
        self.0.changing.mark(inos, names)
    }

    pub(crate) fn is_changing(&self, ino: Ino) -> bool {
        self.0.changing.has(Mark::Inode(ino))
    }

    pub(crate) fn is_changing_name(&self, at: At) -> bool {
        self.0.changing.has(Mark::Name(at))
    }

    /// The client reports that a device lost written data of a file. It has the pages dropped,
    /// which nobody waits for: until then they show the lost data.
    pub(crate) fn on_device_loss(&self, ino: Ino) {
        self.0.lost.borrow_mut().insert(ino, self.0.env.now());
    }

    /// May pages still show lost data?
    pub(crate) fn may_show_lost_data(&self, ino: Ino) -> bool {
        let reported_at = self.0.lost.borrow().get(&ino).copied();
        let Some(reported_at) = reported_at else { return false };
        let losing = self.0.dropping.has(Mark::Inode(ino))
            || self.0.env.now().since(reported_at) < ASKED_WITHIN;
        if !losing {
            self.0.lost.borrow_mut().remove(&ino);
        }
        losing
    }

    pub(crate) fn is_used(&self, ino: Ino) -> bool {
        self.0.used.borrow().contains_key(&ino)
    }

    pub(crate) fn release_inode(&self, ino: Ino) {
        let mut used = self.0.used.borrow_mut();
        if let Some(count) = used.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                used.remove(&ino);
                drop(used);
                self.unused(ino);
            }
        }
    }

    /// An inode is no longer used: without a dentry the kernel forgets it.
    fn unused(&self, ino: Ino) {
        if self.caches() && self.0.cache.borrow().has_no_dentry(ino) {
            self.forget(ino);
        }
    }
}

/// The inode of a notification to drop unused names.
fn pruned(message: &[u8]) -> Option<Ino> {
    let mut reader = Reader::new(message);
    let header: OutHeader = reader.take()?;
    if header.error != NOTIFY_PRUNE {
        return None;
    }
    let prune: NotifyPruneOut = reader.take()?;
    assert_eq!(prune.count, 1, "the product prunes one inode at a time");
    message.last_chunk().map(|ino| Ino(u64::from_le_bytes(*ino)))
}

/// The content of a notification to invalidate an inode.
fn inval_inode(message: &[u8]) -> Option<NotifyInvalInodeOut> {
    let mut reader = Reader::new(message);
    let header: OutHeader = reader.take()?;
    (header.error == NOTIFY_INVAL_INODE).then(|| reader.take())?
}

/// Which bytes of its pages the kernel is to tell, if a notification asks for that.
fn retrieving(message: &[u8]) -> Option<NotifyRetrieveOut> {
    let mut reader = Reader::new(message);
    let header: OutHeader = reader.take()?;
    (header.error == NOTIFY_RETRIEVE).then(|| reader.take())?
}

/// The content of a notification to store bytes.
fn stored(message: &[u8]) -> Option<(NotifyStoreOut, &[u8])> {
    let mut reader = Reader::new(message);
    let header: OutHeader = reader.take()?;
    let store: NotifyStoreOut = (header.error == NOTIFY_STORE).then(|| reader.take())??;
    message.len().checked_sub(store.size as usize).map(|from| (store, &message[from..]))
}

/// Receives the notifier's messages, as long as there is a kernel.
struct NotificationSink(Weak<Inner>);

impl NotifiableKernel for NotificationSink {
    fn notify(&self, lane: NotifyLane, message: Vec<u8>) -> LocalFuture<'_, io::Result<bool>> {
        Box::pin(async move {
            let Some(caches) = self.0.upgrade().map(Caches) else { return Ok(false) };
            let inval = inval_inode(&message).filter(|_| lane == NotifyLane::Background);
            let _voiding = inval.map(|inval| caches.0.dropping.mark(&[Ino(inval.ino)], &[]));
            let _turn = caches.0.lanes[lane as usize].lock().await;
            caches.wake().await;
            caches.apply_notification(&message).await.ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "the kernel does not know this notification",
                )
            })
        })
    }
}
