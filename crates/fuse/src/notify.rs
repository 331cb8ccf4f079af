//! Notifications to the kernel, mainly when rights are recalled.
//!
//! Invariants:
//! - names and attributes travel on lanes whose notifications take no lock of the
//!   kernel, so they never wait for a request; those for pages have a lane of their own. Those that
//!   no recall waits for have another: they may wait for requests that wait for recalls;
//! - before the mount is established there is nothing to invalidate;
//! - an answer that names an inode may still be on its way inside the kernel when the inode's
//!   attributes are recalled. The kernel does not know the inode yet then. So the notifier also
//!   invalidates all names (a name is valid from when its request was made). It invalidates
//!   the inode's attributes again until the kernel knows it, or the thread that was answered sends
//!   another request. It also does so when the inode is opened: by then they have arrived;
//! - the names of a READDIRPLUS are valid from when the kernel takes them in, which nothing
//!   reports. Until the calling thread sends another request, the notifier repeats the
//!   invalidation: after [`SETTLE`], before the right is returned, and at [`LATER`].

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use client::Kernel;
use client::api::{Caller, LocalFuture};
use env::sync::{OneSender, oneshot};
use env::{Env, FuseChannel, NotifyLane};
use types::{Bug, Duration, HashMap, HashSet, Ino, Instant, Name, planted};

use crate::abi::{
    Abi, NOTIFY_INC_EPOCH, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, NOTIFY_PRUNE, NOTIFY_RETRIEVE,
    NOTIFY_STORE, NotifyInvalEntryOut, NotifyInvalInodeOut, NotifyPruneOut, NotifyRetrieveOut,
    NotifyStoreOut, OutHeader, Sink,
};
use crate::privileges;

/// Upper bound of recorded inodes that the kernel did not know when their attributes were
/// invalidated.
const MISSED_MAX: usize = 65_536;

/// How long a recall gives the kernel to take in a listing that was just answered.
pub const SETTLE: Duration = Duration::from_millis(3);
/// When names are invalidated again for a listing that the kernel may not have taken in yet.
pub const LATER: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];
/// After this time the kernel has taken an answer in.
const TAKEN_IN: Duration = Duration::from_secs(2);
/// A kernel that is asked for pages answers within this time, or not at all.
const RETRIEVE_WITHIN: Duration = Duration::from_secs(1);
/// Upper bound of recorded inodes that were named in recent answers.
const ANSWERED_MAX: usize = 4096;

/// A kernel that takes notifications: that of a mount, by its channel, or a simulated one.
pub trait NotifiableKernel {
    /// Takes one complete notification, including the header; ends when it is processed.
    /// `false`: the kernel does not know the inode or name.
    ///
    /// # Errors
    /// The kernel does not know the notification, or finds it malformed.
    fn notify(&self, lane: NotifyLane, message: Vec<u8>) -> LocalFuture<'_, io::Result<bool>>;
}

impl NotifiableKernel for FuseChannel {
    fn notify(&self, lane: NotifyLane, message: Vec<u8>) -> LocalFuture<'_, io::Result<bool>> {
        Box::pin(FuseChannel::notify(self, lane, message))
    }
}

/// Invalidates the kernel's caches. Clones are the same.
#[derive(Clone, Default)]
pub struct Notifier {
    inner: Rc<Inner>,
}

#[derive(Default)]
struct Inner {
    attached: RefCell<Option<(Env, Rc<dyn NotifiableKernel>)>>,
    knows: Cell<NotifySupport>,
    root: Cell<Option<Ino>>,
    missed: RefCell<HashSet<Ino>>,
    /// Threads that were answered a listing and have sent no request since.
    listings: RefCell<Vec<(u32, Instant)>>,
    /// The inodes named in the last answers, by the threads that were answered and have sent
    /// no request since; by the inodes themselves for threads without a number.
    answered: RefCell<HashMap<(u32, Ino), (Ino, Instant)>>,
    /// Tasks that wait for bytes of the kernel's pages, by the number of the question.
    retrieving: RefCell<HashMap<u64, OneSender<Vec<u8>>>>,
    retrieved: Cell<u64>,
    /// Index of the next delay in [`LATER`], while a task repeats the invalidation.
    later: Cell<Option<usize>>,
}

/// The notifications that a kernel supports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NotifySupport {
    /// All cached names are invalid: [`NOTIFY_INC_EPOCH`].
    pub inc_epoch: bool,
    /// Drop the unused names of an inode: [`NOTIFY_PRUNE`].
    pub prune: bool,
    /// Tell what pages hold: [`NOTIFY_RETRIEVE`]. Not over io_uring: the kernel's answer takes an
    /// entry of the queue, and only an answer to it, which it has none, would free that.
    pub retrieve: bool,
}

/// The key of an answered thread. A thread waits for one answer at a time. Threads outside the
/// mount's pid namespace all have number 0; the inodes in their answers distinguish them.
fn thread_key(pid: u32, ino: Ino) -> (u32, Ino) {
    (pid, if pid == 0 { ino } else { Ino::NONE })
}

impl Notifier {
    /// A notifier that is not attached yet: it notifies nobody.
    pub fn new() -> Notifier {
        Notifier::default()
    }

    /// From now on notifications go to `kernel`, which supports those in `knows`;
    /// `root`: the inode that the kernel calls the root.
    pub fn attach(
        &self,
        env: &Env,
        kernel: Rc<dyn NotifiableKernel>,
        knows: NotifySupport,
        root: Ino,
    ) {
        self.inner.root.set(Some(root));
        *self.inner.attached.borrow_mut() = Some((env.clone(), kernel));
        self.inner.knows.set(knows);
    }

    /// A cached name is invalid. Waits for the directory's lock in the kernel.
    pub fn inval_entry(&self, dir: Ino, name: &Name) -> LocalFuture<'static, ()> {
        Box::pin(
            self.clone().send_on(NotifyLane::Background, inval_entry_message(self.node(dir), name)),
        )
    }

    /// An inode is being opened: invalidates attributes that arrived after their invalidation.
    pub async fn opening(&self, ino: Ino) {
        let missed = self.inner.missed.borrow_mut().remove(&ino);
        if missed {
            self.clone().invalidate_attr(ino).await;
        }
    }

    /// The kernel forgot an inode.
    pub fn forgotten(&self, ino: Ino) {
        let mut missed = self.inner.missed.borrow_mut();
        if !missed.is_empty() {
            missed.remove(&ino);
        }
    }

    /// The kernel's number of an inode.
    fn node(&self, ino: Ino) -> Ino {
        if self.inner.root.get() == Some(ino) { Ino::ROOT } else { ino }
    }

    /// Sends a message. Returns whether the kernel knows the inode or name in it.
    async fn send(&self, lane: NotifyLane, message: Vec<u8>) -> bool {
        let attached = self.inner.attached.borrow().clone();
        match attached {
            // An error means that the mount is gone, and its caches with it.
            Some((_, kernel)) => kernel.notify(lane, message).await.unwrap_or(true),
            None => true,
        }
    }

    /// A listing with attributes is being answered to thread `pid`.
    pub fn listed(&self, pid: u32) {
        if let Some((env, _)) = &*self.inner.attached.borrow() {
            self.inner.listings.borrow_mut().push((pid, env.now()));
        }
    }

    /// An answer to thread `pid` names an inode, by a name or by creating it without one.
    pub fn answered(&self, pid: u32, ino: Ino) {
        if let Some((env, _)) = &*self.inner.attached.borrow() {
            let (mut answered, now) = (self.inner.answered.borrow_mut(), env.now());
            if answered.len() >= ANSWERED_MAX {
                // Threads that have ended send no further request.
                answered.retain(|_, (_, at)| now.since(*at) < TAKEN_IN);
                if answered.len() >= ANSWERED_MAX / 2 {
                    answered.clear();
                }
            }
            answered.insert(thread_key(pid, ino), (ino, now));
        }
    }

    /// Thread `pid` sends a request: it has taken in its previous answer.
    pub fn request_came(&self, pid: u32) {
        if pid != 0 {
            self.inner.answered.borrow_mut().remove(&thread_key(pid, Ino::NONE));
        }
        let mut listings = self.inner.listings.borrow_mut();
        // Threads outside the mount's pid namespace all have number 0.
        if !listings.is_empty() && pid != 0 {
            listings.retain(|&(thread, _)| thread != pid);
        }
    }

    /// May a listing still be on its way into the kernel?
    fn listing_may_be_arriving(&self, now: Instant) -> bool {
        let mut listings = self.inner.listings.borrow_mut();
        listings.retain(|&(_, at)| now.since(at) < TAKEN_IN);
        !listings.is_empty()
    }

    /// May an answer that names an inode still be on its way into the kernel?
    fn may_be_arriving(&self, ino: Ino) -> bool {
        let Some((env, _)) = &*self.inner.attached.borrow() else { return false };
        let (answered, now) = (self.inner.answered.borrow(), env.now());
        answered.values().any(|&(of, at)| of == ino && now.since(at) < TAKEN_IN)
    }

    async fn inc_epoch_now(&self) {
        // A kernel without this got names with a lifetime of zero.
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

    async fn invalidate_names(self) {
        self.inc_epoch_now().await;
        let attached = self.inner.attached.borrow().clone();
        let Some((env, _)) = attached.filter(|(env, _)| self.listing_may_be_arriving(env.now()))
        else {
            return;
        };
        let settled = env.now() + SETTLE;
        while self.listing_may_be_arriving(env.now()) && env.now() < settled {
            env.sleep(SETTLE / 3).await;
        }
        self.invalidate_again().await;
        if self.listing_may_be_arriving(env.now()) && self.inner.later.replace(Some(0)).is_none() {
            env.spawn(self.clone().repeat_later(env.clone()));
        }
    }

    /// Invalidates names once more, and attributes that the kernel did not know before.
    async fn invalidate_again(&self) {
        let missed: Vec<Ino> = self.inner.missed.borrow_mut().drain().collect();
        for ino in missed {
            self.inval_attr_now(ino).await;
        }
        self.inc_epoch_now().await;
    }

    async fn repeat_later(self, env: Env) {
        while let Some(next) = self.inner.later.get() {
            let Some(&delay) = LATER.get(next) else { break };
            // An invalidation of names in the meantime restarts the series.
            self.inner.later.set(Some(next + 1));
            let open = self.listing_may_be_arriving(env.now());
            if open {
                env.sleep(delay).await;
            }
            self.invalidate_again().await;
            if !open {
                break;
            }
        }
        self.inner.later.set(None);
    }

    async fn invalidate_attr(self, ino: Ino) {
        let arriving = self.may_be_arriving(ino);
        if !self.inval_attr_now(ino).await {
            self.clone().invalidate_names().await;
            if arriving {
                self.invalidate_once_known(ino).await;
            }
        }
    }

    /// Invalidates the attributes of an inode that was just named in an answer as soon as the
    /// kernel knows it. After [`SETTLE`] a task continues, so that the recall need not wait.
    async fn invalidate_once_known(self, ino: Ino) {
        let attached = self.inner.attached.borrow().clone();
        let Some((env, _)) = attached else { return };
        let settled = env.now() + SETTLE;
        let mut arriving = true;
        while arriving && env.now() < settled {
            env.sleep(SETTLE / 3).await;
            arriving = self.may_be_arriving(ino);
            if self.inval_attr_now(ino).await {
                return;
            }
        }
        if arriving {
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

    /// The kernel answers question `unique` with these bytes of its pages.
    pub fn retrieved(&self, unique: u64, bytes: Vec<u8>) {
        if let Some(asked) = self.inner.retrieving.borrow_mut().remove(&unique) {
            asked.send(bytes);
        }
    }

    async fn retrieve_now(self, ino: Ino, offset: u64, size: u32) -> Option<Vec<u8>> {
        let (env, kernel) = self.inner.attached.borrow().clone()?;
        if !self.inner.knows.get().retrieve {
            return None;
        }
        let unique = self.inner.retrieved.get() + 1;
        self.inner.retrieved.set(unique);
        let (sender, receiver) = oneshot();
        self.inner.retrieving.borrow_mut().insert(unique, sender);
        let message = retrieve_message(unique, self.node(ino), offset, size);
        let answer = match kernel.notify(NotifyLane::Attrs, message).await {
            Ok(true) => env.timeout(RETRIEVE_WITHIN, receiver).await.flatten(),
            // It has no pages of an inode that it does not know.
            Ok(false) => Some(Vec::new()),
            Err(_) => None,
        };
        self.inner.retrieving.borrow_mut().remove(&unique);
        if answer.is_none() {
            self.inner.knows.set(NotifySupport { retrieve: false, ..self.inner.knows.get() });
        }
        answer
    }

    async fn prune_now(self, ino: Ino) {
        let attached = self.inner.attached.borrow().clone();
        let Some((_, kernel)) = attached else { return };
        let sent = kernel.notify(NotifyLane::Background, prune_message(self.node(ino))).await;
        if sent.is_err() {
            // It claims to support this and does not, or the mount is gone.
            self.inner.knows.set(NotifySupport { prune: false, ..self.inner.knows.get() });
        }
    }

    async fn send_on(self, lane: NotifyLane, message: Vec<u8>) {
        self.send(lane, message).await;
    }
}

impl Kernel for Notifier {
    fn credentials(&self, caller: &Caller) -> Option<(u32, u32, Vec<u32>)> {
        privileges::credentials(caller)
    }

    fn inc_epoch(&self) -> LocalFuture<'static, ()> {
        Box::pin(self.clone().invalidate_names())
    }

    fn inval_attr(&self, ino: Ino) -> LocalFuture<'static, ()> {
        Box::pin(self.clone().invalidate_attr(ino))
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
        self.drop_pages(NotifyLane::Background, ino, (offset, len))
    }

    fn drop_stale_pages(&self, ino: Ino, offset: u64, len: u64) -> LocalFuture<'static, ()> {
        self.drop_pages(NotifyLane::StalePages, ino, (offset, len))
    }

    fn retrieve(&self, ino: Ino, offset: u64, len: u32) -> LocalFuture<'static, Option<Vec<u8>>> {
        Box::pin(self.clone().retrieve_now(ino, offset, len))
    }

    fn store(&self, ino: Ino, offset: u64, bytes: &[u8]) -> LocalFuture<'static, ()> {
        let message = store_message(self.node(ino), offset, bytes);
        Box::pin(self.clone().send_on(NotifyLane::StalePages, message))
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
        // A range that reaches the largest offset extends to the end.
        let len = if offset.saturating_add(len) >= i64::MAX as u64 { 0 } else { len };
        let message = inval_inode_message(self.node(ino), clip(offset), clip(len));
        Box::pin(self.clone().send_on(lane, message))
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

fn retrieve_message(notify_unique: u64, ino: Ino, offset: u64, size: u32) -> Vec<u8> {
    let mut body = Vec::new();
    NotifyRetrieveOut { notify_unique, nodeid: ino.0, offset, size, padding: 0 }.write(&mut body);
    message(NOTIFY_RETRIEVE, &body)
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

    const NEWEST: NotifySupport = NotifySupport { inc_epoch: true, prune: true, retrieve: true };

    /// A kernel that knows an inode some time after the answer.
    struct Late {
        env: Env,
        knows_from: Instant,
        invalidated: Cell<u32>,
    }

    impl NotifiableKernel for Late {
        fn notify(&self, lane: NotifyLane, _: Vec<u8>) -> LocalFuture<'_, io::Result<bool>> {
            let known = self.env.now() >= self.knows_from;
            self.invalidated
                .set(self.invalidated.get() + u32::from(known && lane == NotifyLane::Attrs));
            Box::pin(std::future::ready(Ok(known)))
        }
    }

    /// How often the attributes of an inode are invalidated after the kernel knows it.
    fn invalidations_after(delay: Duration, answered: bool) -> u32 {
        SimWorld::new(1).run(|env| async move {
            let knows_from = env.now() + delay;
            let kernel = Rc::new(Late { env: env.clone(), knows_from, invalidated: Cell::new(0) });
            let notifier = Notifier::new();
            notifier.attach(&env, kernel.clone(), NEWEST, Ino::ROOT);
            if answered {
                notifier.answered(1, Ino(5));
            }
            notifier.inval_attr(Ino(5)).await;
            env.sleep(Duration::from_secs(3)).await;
            kernel.invalidated.get()
        })
    }

    #[test]
    fn attributes_in_a_recent_answer_are_invalidated_once_known() {
        assert_eq!(invalidations_after(Duration::from_micros(500), true), 1);
        assert_eq!(invalidations_after(Duration::from_millis(50), true), 1);
        assert_eq!(invalidations_after(Duration::from_micros(500), false), 0, "an OPEN will come");
    }

    /// A kernel that never finishes an invalidation that no recall waits for.
    struct Blocked;

    impl NotifiableKernel for Blocked {
        fn notify(&self, lane: NotifyLane, _: Vec<u8>) -> LocalFuture<'_, io::Result<bool>> {
            match lane {
                NotifyLane::Background => Box::pin(std::future::pending()),
                _ => Box::pin(std::future::ready(Ok(true))),
            }
        }
    }

    #[test]
    fn recalls_pass_an_invalidation_that_waits() {
        SimWorld::new(1).run(|env| async move {
            let notifier = Notifier::new();
            notifier.attach(&env, Rc::new(Blocked), NEWEST, Ino::ROOT);
            let invalidated = env.spawn_join(notifier.inval_pages_outside_recall(Ino(5), 0, 0));
            notifier.inval_pages(Ino(6), 0, 0).await;
            notifier.inval_attr(Ino(5)).await;
            notifier.inc_epoch().await;
            assert!(env.timeout(Duration::from_secs(1), invalidated).await.is_none());
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
