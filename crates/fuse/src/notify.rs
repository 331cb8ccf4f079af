//! What the kernel is told unasked when rights are recalled.
//!
//! Invariants:
//! - names and attributes travel on lanes whose notifications take no lock of the
//!   kernel, so they never wait for a request; those for pages have their own, and what no recall
//!   waits for has another: it may wait for requests that wait for recalls;
//! - before the mount stands there is nothing to void;
//! - an answer that tells of an inode may still be on its way inside the kernel when the inode's
//!   attributes are recalled: the kernel then does not know the inode yet. So all names are voided
//!   too (a name counts from when its request was made), and its attributes again until the kernel
//!   knows it, or the thread that was answered asks for something else; also should the inode be
//!   opened: by then they have arrived;
//! - the names of a READDIRPLUS count from when the kernel takes them in, which nothing
//!   tells. Until the thread that asked for them asks for something else, voiding is
//!   repeated: after [`SETTLE`], before the right is returned, and at [`LATER`].

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use client::{Kernel, api::LocalFuture};
use env::{Env, FuseChannel, NotifyLane};
use types::{Bug, Duration, HashMap, HashSet, Ino, Instant, Name, planted};

use crate::abi::{
    Abi, NOTIFY_INC_EPOCH, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, NOTIFY_PRUNE, NOTIFY_STORE,
    NotifyInvalEntryOut, NotifyInvalInodeOut, NotifyPruneOut, NotifyStoreOut, OutHeader, Sink,
};

/// Inodes kept that the kernel did not know when their attributes were voided.
const MISSED_MAX: usize = 65_536;

/// How long a recall gives the kernel to take in a listing that was just answered.
pub const SETTLE: Duration = Duration::from_millis(3);
/// When names are voided again for a listing that may still not have been taken in.
pub const LATER: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];
/// After so long an answer has been taken in.
const TAKEN_IN: Duration = Duration::from_secs(2);
/// Inodes kept that the kernel was just told of.
const TOLD_MAX: usize = 4096;

/// A kernel that takes notifications: that of a mount, by its channel, or a simulated one.
pub trait Notified {
    /// Takes one notification, in its whole form with the header; ends when it is carried out.
    /// `false`: the kernel knows nothing of what it names.
    ///
    /// # Errors
    /// The kernel does not know the notification, or finds it malformed.
    fn notify(&self, lane: NotifyLane, message: Vec<u8>) -> LocalFuture<'_, io::Result<bool>>;
}

impl Notified for FuseChannel {
    fn notify(&self, lane: NotifyLane, message: Vec<u8>) -> LocalFuture<'_, io::Result<bool>> {
        Box::pin(FuseChannel::notify(self, lane, message))
    }
}

/// Tells the kernel what it must no longer believe. Clones are the same.
#[derive(Clone, Default)]
pub struct Notifier {
    inner: Rc<Inner>,
}

#[derive(Default)]
struct Inner {
    attached: RefCell<Option<(Env, Rc<dyn Notified>)>>,
    knows: Cell<Knows>,
    root: Cell<Option<Ino>>,
    missed: RefCell<HashSet<Ino>>,
    /// Threads that were answered a listing and have not been heard of since.
    listings: RefCell<Vec<(u32, Instant)>>,
    /// The inodes that the last answers told of, by the threads that were answered and have not
    /// been heard of since; and by the inodes themselves where threads have no number.
    told: RefCell<HashMap<(u32, Ino), (Ino, Instant)>>,
    /// Which of [`LATER`] comes next, while a task sees to it.
    later: Cell<Option<usize>>,
}

/// Which notifications a kernel carries out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Knows {
    /// All cached names are void: [`NOTIFY_INC_EPOCH`].
    pub inc_epoch: bool,
    /// Names of an inode that nothing uses are to be dropped: [`NOTIFY_PRUNE`].
    pub prune: bool,
}

/// Who was answered. A thread waits for one answer at a time; those outside the mount's pid
/// namespace all have number 0, and are told apart by what they were told.
fn asker(pid: u32, ino: Ino) -> (u32, Ino) {
    (pid, if pid == 0 { ino } else { Ino::NONE })
}

impl Notifier {
    /// One that is not attached yet: nothing is told.
    pub fn new() -> Notifier {
        Notifier::default()
    }

    /// From now on notifications go to `kernel`, which carries out those that it `knows`;
    /// `root`: what it calls the root.
    pub fn attach(&self, env: &Env, kernel: Rc<dyn Notified>, knows: Knows, root: Ino) {
        self.inner.root.set(Some(root));
        *self.inner.attached.borrow_mut() = Some((env.clone(), kernel));
        self.inner.knows.set(knows);
    }

    /// A cached name is void. Waits for the directory's lock in the kernel.
    pub fn inval_entry(&self, dir: Ino, name: &Name) -> LocalFuture<'static, ()> {
        Box::pin(self.clone().void(NotifyLane::Voids, inval_entry_message(self.node(dir), name)))
    }

    /// An inode is being opened: attributes that arrived after they were voided go now.
    pub async fn opening(&self, ino: Ino) {
        let missed = self.inner.missed.borrow_mut().remove(&ino);
        if missed {
            self.clone().void_attr(ino).await;
        }
    }

    /// The kernel forgot an inode.
    pub fn forgotten(&self, ino: Ino) {
        let mut missed = self.inner.missed.borrow_mut();
        if !missed.is_empty() {
            missed.remove(&ino);
        }
    }

    /// What the kernel calls an inode.
    fn node(&self, ino: Ino) -> Ino {
        if self.inner.root.get() == Some(ino) { Ino::ROOT } else { ino }
    }

    /// Does the kernel know what the message names?
    async fn send(&self, lane: NotifyLane, message: Vec<u8>) -> bool {
        let attached = self.inner.attached.borrow().clone();
        match attached {
            // An error means that the mount is gone, and its caches with it.
            Some((_, kernel)) => kernel.notify(lane, message).await.unwrap_or(true),
            None => true,
        }
    }

    /// A listing with attributes is answered to thread `pid` now.
    pub fn listed(&self, pid: u32) {
        if let Some((env, _)) = &*self.inner.attached.borrow() {
            self.inner.listings.borrow_mut().push((pid, env.now()));
        }
    }

    /// An answer to thread `pid` tells now of an inode, by a name or made without one.
    pub fn told(&self, pid: u32, ino: Ino) {
        if let Some((env, _)) = &*self.inner.attached.borrow() {
            let (mut told, now) = (self.inner.told.borrow_mut(), env.now());
            if told.len() >= TOLD_MAX {
                // Who has ended is heard of no more.
                told.retain(|_, (_, at)| now.since(*at) < TAKEN_IN);
                if told.len() >= TOLD_MAX / 2 {
                    told.clear();
                }
            }
            told.insert(asker(pid, ino), (ino, now));
        }
    }

    /// Thread `pid` asks for something: it has taken in what it was answered before.
    pub fn heard(&self, pid: u32) {
        if pid != 0 {
            self.inner.told.borrow_mut().remove(&asker(pid, Ino::NONE));
        }
        let mut listings = self.inner.listings.borrow_mut();
        // Threads outside the mount's pid namespace all have number 0.
        if !listings.is_empty() && pid != 0 {
            listings.retain(|&(asker, _)| asker != pid);
        }
    }

    /// May a listing still be on its way into the kernel?
    fn is_listing(&self, now: Instant) -> bool {
        let mut listings = self.inner.listings.borrow_mut();
        listings.retain(|&(_, at)| now.since(at) < TAKEN_IN);
        !listings.is_empty()
    }

    /// May an answer that tells of an inode still be on its way into the kernel?
    fn is_coming(&self, ino: Ino) -> bool {
        let Some((env, _)) = &*self.inner.attached.borrow() else { return false };
        let (told, now) = (self.inner.told.borrow(), env.now());
        told.values().any(|&(of, at)| of == ino && now.since(at) < TAKEN_IN)
    }

    async fn inc_epoch_now(&self) {
        // A kernel without this was told names without a lifetime.
        if self.inner.knows.get().inc_epoch && !planted(Bug::KernelNamesKept) {
            self.send(NotifyLane::Names, message(NOTIFY_INC_EPOCH, &[])).await;
        }
    }

    async fn inval_attr_now(&self, ino: Ino) -> bool {
        if planted(Bug::KernelAttrKept) {
            return true;
        }
        let known = self.send(NotifyLane::Attrs, inval_inode_message(self.node(ino), -1, 0)).await;
        if !known {
            let mut missed = self.inner.missed.borrow_mut();
            if missed.len() >= MISSED_MAX {
                missed.clear();
            }
            missed.insert(ino);
        }
        known
    }

    async fn void_names(self) {
        self.inc_epoch_now().await;
        let attached = self.inner.attached.borrow().clone();
        let Some((env, _)) = attached.filter(|(env, _)| self.is_listing(env.now())) else {
            return;
        };
        let settled = env.now() + SETTLE;
        while self.is_listing(env.now()) && env.now() < settled {
            env.sleep(SETTLE / 3).await;
        }
        self.again().await;
        if self.is_listing(env.now()) && self.inner.later.replace(Some(0)).is_none() {
            env.spawn(self.clone().see_to_it(env.clone()));
        }
    }

    /// Voids names once more, and attributes that the kernel did not know before.
    async fn again(&self) {
        let missed: Vec<Ino> = self.inner.missed.borrow_mut().drain().collect();
        for ino in missed {
            self.inval_attr_now(ino).await;
        }
        self.inc_epoch_now().await;
    }

    async fn see_to_it(self, env: Env) {
        while let Some(next) = self.inner.later.get() {
            let Some(&delay) = LATER.get(next) else { break };
            // Names that are voided meanwhile begin the series anew.
            self.inner.later.set(Some(next + 1));
            let open = self.is_listing(env.now());
            if open {
                env.sleep(delay).await;
            }
            self.again().await;
            if !open {
                break;
            }
        }
        self.inner.later.set(None);
    }

    async fn void_attr(self, ino: Ino) {
        let coming = self.is_coming(ino);
        if !self.inval_attr_now(ino).await {
            self.clone().void_names().await;
            if coming {
                self.void_coming(ino).await;
            }
        }
    }

    /// Voids the attributes of an inode that the kernel was just told of as soon as it knows it.
    /// What is still not known after [`SETTLE`] is seen to without holding up the recall.
    async fn void_coming(self, ino: Ino) {
        let attached = self.inner.attached.borrow().clone();
        let Some((env, _)) = attached else { return };
        let settled = env.now() + SETTLE;
        let mut coming = true;
        while coming && env.now() < settled {
            env.sleep(SETTLE / 3).await;
            coming = self.is_coming(ino);
            if self.inval_attr_now(ino).await {
                return;
            }
        }
        if coming {
            env.clone().spawn(async move {
                for delay in LATER {
                    env.sleep(delay).await;
                    if self.inval_attr_now(ino).await {
                        return;
                    }
                }
            });
        }
    }

    async fn prune_now(self, ino: Ino) {
        let attached = self.inner.attached.borrow().clone();
        let Some((_, kernel)) = attached else { return };
        let sent = kernel.notify(NotifyLane::Voids, prune_message(self.node(ino))).await;
        if sent.is_err() {
            // It says that it knows this and does not, or the mount is gone.
            self.inner.knows.set(Knows { prune: false, ..self.inner.knows.get() });
        }
    }

    async fn void(self, lane: NotifyLane, message: Vec<u8>) {
        self.send(lane, message).await;
    }
}

impl Kernel for Notifier {
    fn inc_epoch(&self) -> LocalFuture<'static, ()> {
        Box::pin(self.clone().void_names())
    }

    fn inval_attr(&self, ino: Ino) -> LocalFuture<'static, ()> {
        Box::pin(self.clone().void_attr(ino))
    }

    fn inval_pages(&self, ino: Ino, offset: u64, len: u64) -> LocalFuture<'static, ()> {
        self.drop_pages(NotifyLane::Pages, ino, (offset, len))
    }

    fn inval_pages_outside_recall(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
    ) -> LocalFuture<'static, ()> {
        self.drop_pages(NotifyLane::Voids, ino, (offset, len))
    }

    fn drop_stale_pages(&self, ino: Ino, offset: u64, len: u64) -> LocalFuture<'static, ()> {
        self.drop_pages(NotifyLane::Lacking, ino, (offset, len))
    }

    fn store(&self, ino: Ino, offset: u64, bytes: &[u8]) -> LocalFuture<'static, ()> {
        let message = store_message(self.node(ino), offset, bytes);
        Box::pin(self.clone().void(NotifyLane::Lacking, message))
    }

    fn prunes(&self) -> bool {
        self.inner.knows.get().prune
    }

    fn prune(&self, ino: Ino) -> LocalFuture<'static, ()> {
        if !self.prunes() {
            return Box::pin(std::future::ready(()));
        }
        Box::pin(self.clone().prune_now(ino))
    }
}

impl Notifier {
    fn drop_pages(
        &self,
        lane: NotifyLane,
        ino: Ino,
        (offset, len): (u64, u64),
    ) -> LocalFuture<'static, ()> {
        if planted(Bug::KernelPagesKept) {
            return Box::pin(std::future::ready(()));
        }
        let clip = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        // A range that reaches the largest offset is one to the end.
        let len = if offset.saturating_add(len) >= i64::MAX as u64 { 0 } else { len };
        let message = inval_inode_message(self.node(ino), clip(offset), clip(len));
        Box::pin(self.clone().void(lane, message))
    }
}

fn message(code: i32, body: &[u8]) -> Vec<u8> {
    let len = OutHeader::SIZE + body.len();
    let mut out = Vec::with_capacity(len);
    OutHeader { len: len as u32, error: code, unique: 0 }.write(&mut out);
    out.put(body);
    out
}

fn inval_inode_message(ino: Ino, off: i64, len: i64) -> Vec<u8> {
    let mut body = Vec::new();
    NotifyInvalInodeOut { ino: ino.0, off, len }.write(&mut body);
    message(NOTIFY_INVAL_INODE, &body)
}

fn store_message(ino: Ino, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    let size = bytes.len() as u32;
    NotifyStoreOut { nodeid: ino.0, offset, size, padding: 0 }.write(&mut body);
    body.put(bytes);
    message(NOTIFY_STORE, &body)
}

fn prune_message(ino: Ino) -> Vec<u8> {
    let mut body = Vec::new();
    NotifyPruneOut { count: 1, padding: 0, spare: 0 }.write(&mut body);
    body.put(&ino.0.to_le_bytes());
    message(NOTIFY_PRUNE, &body)
}

fn inval_entry_message(dir: Ino, name: &Name) -> Vec<u8> {
    let mut body = Vec::new();
    let namelen = name.as_bytes().len() as u32;
    NotifyInvalEntryOut { parent: dir.0, namelen, flags: 0 }.write(&mut body);
    body.put(name.as_bytes());
    body.put(&[0]);
    message(NOTIFY_INVAL_ENTRY, &body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Reader;
    use env::sim::SimWorld;

    const NEWEST: Knows = Knows { inc_epoch: true, prune: true };

    /// A kernel that knows an inode some time after it was answered.
    struct Late {
        env: Env,
        knows_from: Instant,
        voided: Cell<u32>,
    }

    impl Notified for Late {
        fn notify(&self, lane: NotifyLane, _: Vec<u8>) -> LocalFuture<'_, io::Result<bool>> {
            let known = self.env.now() >= self.knows_from;
            self.voided.set(self.voided.get() + u32::from(known && lane == NotifyLane::Attrs));
            Box::pin(std::future::ready(Ok(known)))
        }
    }

    /// How often the attributes of an inode are voided after the kernel knows it.
    fn voided_after(delay: Duration, told: bool) -> u32 {
        SimWorld::new(1).run(|env| async move {
            let knows_from = env.now() + delay;
            let kernel = Rc::new(Late { env: env.clone(), knows_from, voided: Cell::new(0) });
            let notifier = Notifier::new();
            notifier.attach(&env, kernel.clone(), NEWEST, Ino::ROOT);
            if told {
                notifier.told(1, Ino(5));
            }
            notifier.inval_attr(Ino(5)).await;
            env.sleep(Duration::from_secs(3)).await;
            kernel.voided.get()
        })
    }

    #[test]
    fn attributes_of_what_the_kernel_was_just_told_of_are_voided_once_it_knows_it() {
        assert_eq!(voided_after(Duration::from_micros(500), true), 1);
        assert_eq!(voided_after(Duration::from_millis(50), true), 1);
        assert_eq!(voided_after(Duration::from_micros(500), false), 0, "an OPEN will come");
    }

    /// A kernel that carries out no invalidation of what no recall waits for.
    struct Blocked;

    impl Notified for Blocked {
        fn notify(&self, lane: NotifyLane, _: Vec<u8>) -> LocalFuture<'_, io::Result<bool>> {
            match lane {
                NotifyLane::Voids => Box::pin(std::future::pending()),
                _ => Box::pin(std::future::ready(Ok(true))),
            }
        }
    }

    #[test]
    fn what_a_recall_needs_passes_an_invalidation_that_waits() {
        SimWorld::new(1).run(|env| async move {
            let notifier = Notifier::new();
            notifier.attach(&env, Rc::new(Blocked), NEWEST, Ino::ROOT);
            let voided = env.spawn_join(notifier.inval_pages_outside_recall(Ino(5), 0, 0));
            notifier.inval_pages(Ino(6), 0, 0).await;
            notifier.inval_attr(Ino(5)).await;
            notifier.inc_epoch().await;
            assert!(env.timeout(Duration::from_secs(1), voided).await.is_none());
        });
    }

    #[test]
    fn notifications_carry_their_length_and_code() {
        let epoch = message(NOTIFY_INC_EPOCH, &[]);
        let head: OutHeader = Reader::new(&epoch).take().unwrap();
        assert_eq!((head.len, head.error, head.unique), (16, 8, 0));
        let inode = inval_inode_message(Ino(5), -1, 0);
        assert_eq!(inode.len(), 40);
        let prune = prune_message(Ino(5));
        let head: OutHeader = Reader::new(&prune).take().unwrap();
        assert_eq!((head.len, head.error, prune.len()), (40, 9, 40));
        let entry = inval_entry_message(Ino(5), &Name::new(b"abc").unwrap());
        assert_eq!(entry.len(), 16 + 16 + 4);
        let head: OutHeader = Reader::new(&entry).take().unwrap();
        assert_eq!(head.len, 36);
    }
}
