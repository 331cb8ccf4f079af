//! System calls on names and attributes, as Linux turns them into requests.
//!
//! Invariants:
//! - the kernel answers from its cache what it knows, and requests the rest from the client. Other
//!   things may happen before it applies the answer;
//! - a process uses the inodes that it found until its next operation, and those of its open files.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use client::{
    Caller, Client, Entry, Handle, NodeSpec, OpenFlags, Opened, Place, SetAttrRequest, WriteFlags,
};
use env::IoBuf;
use env::sync::Permit;
use types::{Attr, Duration, Fault, FileKind, Ino, LockOwner, Name};

use crate::call::{At, NameNo, TargetNo, name_text, target_text};
use crate::kernel::cache::{Cache, Snapshot};
use crate::kernel::calls::{AbandonedRequest, Refs};
use crate::kernel::pages::{Pages, SENDERS_MAX};
use crate::kernel::{Caches, Linux, Marked};
use crate::model::{UMASK, mode_asked};

/// The waiting thread runs this soon after the answer, unless the machine is paused: the validity
/// of the answer begins then.
const WOKEN_WITHIN: Duration = Duration::from_millis(1);

/// The inode of a name.
#[derive(Clone, Copy, Debug)]
pub struct FoundInode {
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
    /// Attributes that the application may see with it.
    pub shown: Option<Attr>,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug)]
pub struct Lookup {
    /// The inode of the name, if it exists.
    pub found: Option<FoundInode>,
    /// Answered from the cache during a change of the directory, which others may have seen
    /// already.
    pub racy: bool,
}

/// The result of a request for attributes.
#[derive(Clone, Copy, Debug)]
pub struct AttrReply {
    /// The attributes.
    pub attr: Attr,
    /// As [`Lookup::racy`].
    pub racy: bool,
    /// The kernel applied them: no invalidation overtook the answer.
    pub kept: bool,
}

/// A listing, without the dots.
#[derive(Default)]
pub struct Names {
    /// Names of the workload, with their inodes and types.
    pub known: Vec<(NameNo, Ino, FileKind)>,
    /// Other names.
    pub unexpected: Vec<String>,
}

/// The system calls of one process. Clones are the same process.
#[derive(Clone)]
pub struct Vfs {
    client: Client,
    pub(super) caches: Caches,
    pid: u32,
    /// Inodes that the process uses in the current operation.
    uses: Rc<Uses>,
    /// Its request, if it was killed or interrupted by a signal.
    abandoned: Rc<RefCell<Option<AbandonedRequest>>>,
    /// It was killed.
    dead: Rc<Cell<bool>>,
}

/// A client keeps the result of a lookup at least this long, whoever removes its names.
const FOUND_FOR: Duration = Duration::from_millis(900);

struct Uses {
    caches: Caches,
    inos: RefCell<Vec<Ino>>,
    /// Those found by name: when the client had answered, and in which of its sessions.
    found: RefCell<Vec<(Ino, types::Instant, u64)>>,
}

impl Uses {
    fn end(&self) {
        self.found.borrow_mut().clear();
        for ino in self.inos.take() {
            self.caches.release_inode(ino);
        }
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) fn name(name: NameNo) -> Name {
    Name::new(name_text(name).as_bytes()).expect("the names of the workload are legal")
}

impl Vfs {
    /// The mount of a client that passes its recalls to `caches`.
    pub fn new(client: Client, caches: Caches) -> Vfs {
        caches.mounted(&client);
        Vfs::process(client, caches, 1)
    }

    fn process(client: Client, caches: Caches, pid: u32) -> Vfs {
        let uses =
            Uses { caches: caches.clone(), inos: RefCell::default(), found: RefCell::default() };
        let (abandoned, dead) = Default::default();
        Vfs { client, caches, pid, uses: Rc::new(uses), abandoned, dead }
    }

    /// The mount as another process sees it.
    pub fn of_process(&self, pid: u32) -> Vfs {
        Vfs::process(self.client.clone(), self.caches.clone(), pid)
    }

    /// The process begins a new operation: it drops its references to inodes found before.
    pub fn next_operation(&self) {
        self.uses.end();
    }

    pub(super) fn set_abandoned(&self, asked: AbandonedRequest) {
        *self.abandoned.borrow_mut() = Some(asked);
    }

    pub(super) fn dies(&self) {
        self.dead.set(true);
    }

    /// The client reports that a device lost written data of a file.
    pub fn on_device_loss(&self, ino: Ino) {
        self.caches.on_device_loss(ino);
    }

    /// Was it killed?
    pub fn is_dead(&self) -> bool {
        self.dead.get()
    }

    /// Has it an abandoned request?
    pub fn has_abandoned(&self) -> bool {
        self.abandoned.borrow().is_some()
    }

    /// Takes the abandoned request of the process.
    pub fn take_abandoned(&self) -> Option<AbandonedRequest> {
        self.abandoned.borrow_mut().take()
    }

    /// Does the kernel cache anything?
    pub fn caches(&self) -> bool {
        self.caches.caches()
    }

    /// Locks inodes for a change.
    pub async fn lock(&self, inos: &[Ino]) -> Vec<Permit> {
        self.caches.lock(inos).await
    }

    /// The caller of requests.
    pub fn caller(&self) -> Caller {
        Caller { uid: 0, gid: 0, pid: self.pid }
    }

    /// A request goes to the client.
    pub fn ask(&self) -> Snapshot {
        self.caches.0.notifier.request_came(self.pid);
        if self.caches() && self.caches.chance(40) == 0 {
            self.shrink(3);
        }
        self.caches.0.cache.borrow().ask()
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A random number below `n`.
    pub fn chance(&self, n: u64) -> u64 {
        self.caches.chance(n)
    }

    /// See [`Caches`]: anything may happen before an answer is applied.
    pub async fn wake(&self) {
        self.caches.wake().await;
    }

    /// A buffer for a request.
    pub fn buffer(&self, len: usize) -> IoBuf {
        self.caches.0.env.buffer(len)
    }

    /// The size of a file as the kernel knows it.
    pub fn size(&self, ino: Ino) -> u64 {
        self.cache(|cache| cache.size(ino))
    }

    /// The pages of a file.
    pub fn pages(&self, ino: Ino) -> Rc<Pages> {
        self.caches.0.pages.borrow_mut().entry(ino).or_default().clone()
    }

    /// The pages of a file, if it has had any.
    pub fn known_pages(&self, ino: Ino) -> Option<Rc<Pages>> {
        self.caches.known_pages(ino)
    }

    /// Describes locked pages, those being written back, and the count of abandoned requests.
    pub fn held(&self) -> String {
        let mut text = String::new();
        for (ino, pages) in &*self.caches.0.pages.borrow() {
            let (locked, written) = pages.held();
            if !locked.is_empty() || !written.is_empty() {
                text += &format!(" inode {ino}: locked {locked:?}, written back {written:?};");
            }
        }
        text + &format!(" {} requests without a process", self.abandoned_requests())
    }

    /// The cache of names and inodes.
    pub fn cache<R>(&self, f: impl FnOnce(&mut Cache) -> R) -> R {
        f(&mut self.caches.0.cache.borrow_mut())
    }

    fn now(&self) -> types::Instant {
        self.caches.0.env.now()
    }

    /// The answer wakes the waiting thread.
    async fn woken(&self, asked: Snapshot) -> Snapshot {
        let answered = self.now();
        self.caches.wake().await;
        asked.applied(self.now().min(answered + WOKEN_WITHIN))
    }

    /// Validity of attributes.
    fn attr_until(&self, asked: Snapshot, time: Duration) -> types::Instant {
        if self.caches() { asked.until(time) } else { types::Instant::default() }
    }

    fn name_until(&self, asked: Snapshot, time: Duration) -> types::Instant {
        let names = self.caches.0.linux == Linux::New;
        if names { asked.until(time) } else { types::Instant::default() }
    }

    /// An inode in an answer to this process.
    fn found(&self, attr: &Attr, ttl: Duration) -> FoundInode {
        self.use_inode(attr.ino);
        let shown = (!self.caches() && !ttl.is_zero()).then_some(*attr);
        FoundInode { ino: attr.ino, kind: attr.kind, shown }
    }

    fn use_inode(&self, ino: Ino) {
        self.caches.use_inode(ino);
        self.uses.inos.borrow_mut().push(ino);
    }

    fn enter(&self, at: At, entry: &Entry, asked: Snapshot) -> FoundInode {
        let until = self.attr_until(asked, entry.attr_ttl);
        self.supersede(entry);
        self.cache(|cache| cache.looked_up(&entry.attr, entry.generation, until, asked));
        if self.caches() {
            let until = self.name_until(asked, entry.entry_ttl);
            self.cache(|cache| cache.enter(at, Some(entry.attr.ino), until, asked));
        }
        self.found(&entry.attr, entry.attr_ttl)
    }

    /// If the number was another inode's, Linux marks that one bad, even while open.
    fn supersede(&self, entry: &Entry) {
        let ino = entry.attr.ino;
        if self.cache(|cache| cache.supersedes(&entry.attr, entry.generation)) {
            self.caches.0.pages.borrow_mut().remove(&ino);
            self.caches.0.targets.borrow_mut().remove(&ino);
        }
    }

    /// The generation of an inode that the kernel knows.
    pub fn generation(&self, ino: Ino) -> u64 {
        self.cache(|cache| cache.generation(ino))
    }

    /// Like [`Vfs::enter`]; a different size truncates pages.
    async fn apply_entry(&self, at: At, entry: &Entry, asked: Snapshot) -> FoundInode {
        let old = self.size(entry.attr.ino);
        let found = self.enter(at, entry, asked);
        self.resized(entry.attr.ino, old).await;
        found
    }

    /// The cached result of a lookup.
    fn known(&self, at: At) -> Option<Lookup> {
        let leads = self.cache(|cache| cache.name(at, self.now()))?;
        let racy = self.caches.is_changing_name(at);
        let Some(ino) = leads else { return Some(Lookup { found: None, racy }) };
        let kind = self.cache(|cache| cache.kind(ino))?;
        self.use_inode(ino);
        let found = Some(FoundInode { ino, kind, shown: None });
        Some(Lookup { found, racy })
    }

    /// Looks a name up.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn lookup(&self, at: At) -> Result<Lookup, Fault> {
        if let Some(known) = self.known(at) {
            return Ok(known);
        }
        let _locked = self.caches.lock_shared(at.dir).await;
        self.look(at, false).await
    }

    /// Has this process just found the inode by name? Then the client still has it, unless its
    /// session was lost. Older kernels cannot be asked what they use, so they do not count.
    pub fn has_just_found(&self, ino: Ino) -> bool {
        let (session, now) = (self.client.status().evictions, self.now());
        let found = self.uses.found.borrow();
        let directory = self.cache(|cache| cache.kind(ino)) == Some(FileKind::Directory);
        self.caches.0.linux == Linux::New
            && !directory
            && found.iter().any(|&(of, at, in_session)| {
                of == ino && in_session == session && now.since(at) < FOUND_FOR
            })
    }

    /// Like [`Vfs::lookup`], under the directory's lock; with `fresh` it ignores the cache.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn look(&self, at: At, fresh: bool) -> Result<Lookup, Fault> {
        if !fresh && let Some(known) = self.known(at) {
            return Ok(known);
        }
        let asked = self.ask();
        let (client, caller) = (self.client.clone(), self.caller());
        let work = async move { client.lookup(&caller, at.dir, &name(at.name)).await };
        let given = |found: &Result<Entry, Duration>| match found {
            Ok(entry) => Refs::entry(entry),
            Err(_) => Refs::Nothing,
        };
        let answer = self.call(work, given, &Rc::new(())).await;
        if let Ok(Ok(entry)) = &answer {
            self.caches.0.notifier.answered(self.pid, entry.attr.ino);
        }
        let asked = self.woken(asked).await;
        match answer? {
            Ok(entry) => {
                let session = self.client.status().evictions;
                self.uses.found.borrow_mut().push((entry.attr.ino, self.now(), session));
                let found = Some(self.apply_entry(at, &entry, asked).await);
                Ok(Lookup { found, racy: false })
            }
            Err(ttl) => {
                if self.caches() {
                    let until = self.name_until(asked, ttl);
                    self.cache(|cache| cache.enter(at, None, until, asked));
                }
                Ok(Lookup { found: None, racy: false })
            }
        }
    }

    /// Attributes.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn getattr(&self, ino: Ino) -> Result<AttrReply, Fault> {
        let client = self.client.clone();
        self.getattr_by(ino, async move { client.getattr(ino).await }).await
    }

    /// Attributes, for a read by an open file beyond the known size.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn getattr_to_read(&self, ino: Ino, handle: Handle) -> Result<AttrReply, Fault> {
        let client = self.client.clone();
        self.getattr_by(ino, async move { client.getattr_to_read(ino, handle).await }).await
    }

    async fn getattr_by(
        &self,
        ino: Ino,
        work: impl Future<Output = Result<(Attr, Duration), Fault>> + 'static,
    ) -> Result<AttrReply, Fault> {
        if let Some(attr) = self.cache(|cache| cache.attr(ino, self.now())) {
            let older = self.cache(|cache| cache.is_older(ino));
            return Ok(AttrReply { attr, racy: older || self.caches.is_changing(ino), kept: true });
        }
        let asked = self.ask();
        let answer = self.call(work, |_| Refs::Nothing, &Rc::new(())).await;
        let asked = self.woken(asked).await;
        let (attr, ttl) = answer?;
        let (until, old) = (self.attr_until(asked, ttl), self.size(ino));
        let kept = self.cache(|cache| cache.apply_attr(&attr, until, asked));
        self.resized(ino, old).await;
        Ok(AttrReply { attr, racy: false, kept })
    }

    /// mknod, mkdir.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn make(&self, at: At, kind: FileKind) -> Result<FoundInode, Fault> {
        let (client, caller, name) = (self.client.clone(), self.caller(), name(at.name));
        let node = NodeSpec { kind, mode: mode_asked(kind), umask: UMASK, rdev: 0 };
        let work = async move {
            let place = Place { dir: at.dir, name: &name };
            client.mknod(&caller, place, node).await
        };
        self.make_by(at, work).await
    }

    /// symlink(2).
    ///
    /// # Errors
    /// Those of the client.
    pub async fn symlink(&self, at: At, target: TargetNo) -> Result<FoundInode, Fault> {
        let (client, caller, name) = (self.client.clone(), self.caller(), name(at.name));
        let work = async move {
            let place = Place { dir: at.dir, name: &name };
            client.symlink(&caller, place, target_text(target).as_bytes()).await
        };
        self.make_by(at, work).await
    }

    /// The target of a symbolic link, which the kernel keeps.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Fault> {
        if let Some(target) = self.caches.0.targets.borrow().get(&ino) {
            return Ok(target.clone());
        }
        self.ask();
        let (client, generation) = (self.client.clone(), self.generation(ino));
        let work = async move { client.readlink(ino).await };
        let target = self.call(work, |_| Refs::Nothing, &Rc::new(())).await?;
        self.caches.wake().await;
        if self.caches() && self.generation(ino) == generation {
            self.caches.0.targets.borrow_mut().insert(ino, target.clone());
        }
        Ok(target)
    }

    async fn make_by(
        &self,
        at: At,
        work: impl Future<Output = Result<Entry, Fault>> + 'static,
    ) -> Result<FoundInode, Fault> {
        let changing = Rc::new(self.caches.change(&[at.dir], &[at]));
        let asked = self.ask().accepted_always();
        let answer = self.call(work, Refs::entry, &changing).await;
        if let Ok(entry) = &answer {
            self.caches.0.notifier.answered(self.pid, entry.attr.ino);
        }
        let asked = self.woken(asked).await;
        let found = self.apply_entry(at, &answer?, asked).await;
        self.cache(|cache| cache.changed(at.dir));
        Ok(found)
    }

    /// open(2) of a missing name with O_CREAT.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn create(&self, at: At, flags: OpenFlags) -> Result<(FoundInode, Opened), Fault> {
        let changing = Rc::new(self.caches.change(&[at.dir], &[at]));
        let asked = self.ask().accepted_always();
        let (client, caller, name) = (self.client.clone(), self.caller(), name(at.name));
        let work = async move {
            let place = Place { dir: at.dir, name: &name };
            client.create(&caller, place, mode_asked(FileKind::Regular), UMASK, flags).await
        };
        let answer = self.call(work, Refs::made, &changing).await;
        if let Ok((entry, _)) = &answer {
            self.caches.0.notifier.answered(self.pid, entry.attr.ino);
        }
        let asked = self.woken(asked).await;
        let (entry, opened) = answer?;
        let found = self.apply_entry(at, &entry, asked).await;
        self.cache(|cache| cache.changed(at.dir));
        self.caches.use_inode(found.ino);
        self.open_pages(found.ino, &opened).await;
        self.opened(found.ino, opened.handle);
        Ok((found, opened))
    }

    /// open(2) with O_TMPFILE.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn tmpfile(&self, dir: Ino, flags: OpenFlags) -> Result<(FoundInode, Opened), Fault> {
        let asked = self.ask().accepted_always();
        let (client, caller) = (self.client.clone(), self.caller());
        let mode = mode_asked(FileKind::Regular);
        let work = async move { client.tmpfile(&caller, dir, mode, UMASK, flags).await };
        let answer = self.call(work, Refs::made, &Rc::new(())).await;
        if let Ok((entry, _)) = &answer {
            self.caches.0.notifier.answered(self.pid, entry.attr.ino);
        }
        let asked = self.woken(asked).await;
        let (entry, opened) = answer?;
        let until = self.attr_until(asked, entry.attr_ttl);
        self.supersede(&entry);
        self.cache(|cache| cache.looked_up(&entry.attr, entry.generation, until, asked));
        self.caches.use_inode(entry.attr.ino);
        self.opened(entry.attr.ino, opened.handle);
        Ok((self.found(&entry.attr, entry.attr_ttl), opened))
    }

    /// open(2) of a file that was found.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn open(&self, ino: Ino, flags: OpenFlags) -> Result<Opened, Fault> {
        self.ask();
        let (client, caller) = (self.client.clone(), self.caller());
        let work = async move { client.open(&caller, ino, flags).await };
        let answer =
            self.call(work, |opened: &Opened| Refs::Open(opened.handle), &Rc::new(())).await;
        if answer.is_ok() {
            self.caches.0.notifier.opening(ino).await;
            self.caches.use_inode(ino);
        }
        self.caches.wake().await;
        if let Ok(opened) = &answer {
            self.open_pages(ino, opened).await;
            self.opened(ino, opened.handle);
        }
        answer
    }

    /// Drops pages from before an open, unless the answer keeps them.
    async fn open_pages(&self, ino: Ino, opened: &Opened) {
        if !opened.keep_cache {
            self.caches.invalidate(ino, 0, u64::MAX).await;
        }
    }

    /// Releases the last descriptor; `owner`: with the flock locks of an ended process.
    pub async fn release(&self, ino: Ino, handle: Handle, owner: Option<LockOwner>) {
        self.unmap(ino, handle).await;
        self.read_ahead_ended(handle).await;
        self.ask();
        self.client.release(handle, owner).await;
        self.caches.release_inode(ino);
    }

    /// link(2).
    ///
    /// # Errors
    /// Those of the client.
    pub async fn link(&self, ino: Ino, at: At) -> Result<FoundInode, Fault> {
        let changing = Rc::new(self.caches.change(&[ino, at.dir], &[at]));
        let asked = self.ask().accepted_always();
        let (client, caller, name) = (self.client.clone(), self.caller(), name(at.name));
        let work = async move {
            let place = Place { dir: at.dir, name: &name };
            client.link(&caller, ino, place).await
        };
        let answer = self.call(work, Refs::entry, &changing).await;
        let asked = self.woken(asked).await;
        if answer == Err(Fault::Interrupted) {
            self.cache(|cache| cache.changed(ino));
        }
        let found = self.apply_entry(at, &answer?, asked).await;
        self.cache(|cache| cache.changed(at.dir));
        Ok(found)
    }

    /// unlink(2), or rmdir(2) of a directory.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn remove(&self, at: At, directory: bool) -> Result<(), Fault> {
        let changing = Rc::new(self.changes_of(&[at]));
        self.ask();
        let (client, caller, name) = (self.client.clone(), self.caller(), name(at.name));
        let work = async move {
            let place = Place { dir: at.dir, name: &name };
            match directory {
                true => client.rmdir(&caller, place).await,
                false => client.unlink(&caller, place).await,
            }
        };
        let answer = self.call(work, |_| Refs::Nothing, &changing).await;
        self.caches.wake().await;
        match answer {
            Ok(()) => self.cache(|cache| cache.unlinked(at)),
            Err(Fault::NotFound | Fault::Interrupted) => self.cache(|cache| cache.drop_name(at)),
            Err(_) => {}
        }
        answer
    }

    /// renameat2(2).
    ///
    /// # Errors
    /// Those of the client.
    pub async fn rename(&self, from: At, to: At, flags: u32) -> Result<(), Fault> {
        const EXCHANGE: u32 = 2;
        let changing = Rc::new(self.changes_of(&[from, to]));
        self.ask();
        let (old, new) = (name(from.name), name(to.name));
        let (client, caller) = (self.client.clone(), self.caller());
        let work = async move {
            let source = Place { dir: from.dir, name: &old };
            let target = Place { dir: to.dir, name: &new };
            client.rename(&caller, source, target, flags).await
        };
        let answer = self.call(work, |_| Refs::Nothing, &changing).await;
        self.caches.wake().await;
        match answer {
            Ok(()) => self.cache(|cache| cache.renamed(from, to, flags & EXCHANGE != 0)),
            Err(Fault::NotFound | Fault::Interrupted) => self.cache(|cache| {
                cache.drop_name(from);
                cache.drop_name(to);
            }),
            Err(_) => {}
        }
        answer
    }

    /// Marks names as changing.
    fn changes_of(&self, names: &[At]) -> Marked {
        let mut inos: Vec<Ino> = names.iter().map(|at| at.dir).collect();
        let leads = |at: &At| self.cache(|cache| cache.name(*at, self.now())).flatten();
        inos.extend(names.iter().filter_map(leads));
        self.caches.change(&inos, names)
    }

    /// Marks an inode as changing.
    pub fn changes(&self, ino: Ino) -> Marked {
        self.caches.change(&[ino], &[])
    }

    /// All names of a directory, in the order of the listing.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn list(&self, dir: Ino, plus: bool, bytes: usize) -> Result<Names, Fault> {
        self.ask();
        let client = self.client.clone();
        let opened = async move { client.opendir(dir).await };
        let handle = self.call(opened, |handle| Refs::Dir(*handle), &Rc::new(())).await?;
        self.caches.0.notifier.opening(dir).await;
        let mut names = Names::default();
        let mut cookie = 0;
        let result = loop {
            match self.list_part(dir, handle, (cookie, bytes), plus, &mut names).await {
                Ok(Some(next)) => cookie = next,
                Ok(None) => break Ok(names),
                Err(fault) => break Err(fault),
            }
        };
        self.ask();
        self.client.releasedir(handle);
        result
    }

    async fn list_part(
        &self,
        dir: Ino,
        handle: Handle,
        (cookie, bytes): (u64, usize),
        plus: bool,
        names: &mut Names,
    ) -> Result<Option<u64>, Fault> {
        let _locked = self.caches.lock_shared(dir).await;
        let asked = self.ask();
        let client = self.client.clone();
        let work = async move { client.readdir(handle, cookie, bytes, plus).await };
        let part = self.call(work, |part| Refs::listed(part), &Rc::new(())).await?;
        let Some(last) = part.last() else { return Ok(None) };
        if plus {
            self.caches.0.notifier.listed(self.pid);
        }
        let next = last.cookie;
        let asked = self.woken(asked).await;
        for listed in part {
            let text = String::from_utf8_lossy(&listed.name).into_owned();
            let number = text.strip_prefix('n').and_then(|number| number.parse().ok());
            match number {
                Some(number) => names.known.push((number, listed.ino, listed.kind)),
                None if text == "." || text == ".." => {}
                None => names.unexpected.push(text),
            }
            let Some(entry) = &listed.entry else { continue };
            let asked = self.cache(|cache| cache.as_of_now(asked));
            match number {
                Some(name) => drop(self.apply_entry(At { dir, name }, entry, asked).await),
                None => self.cache(|cache| {
                    let until = types::Instant::default();
                    cache.looked_up(&entry.attr, entry.generation, until, asked);
                }),
            }
        }
        Ok(Some(next))
    }

    /// Changes attributes under the inode's lock; returns those that the application sees.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn setattr(&self, ino: Ino, set: SetAttrRequest) -> Result<Option<Attr>, Fault> {
        let sized = set.size.is_some();
        let pages = self.known_pages(ino).filter(|_| sized);
        let content = pages.as_ref().map(Pages::change);
        let changing = Rc::new((self.caches.change(&[ino], &[]), content));
        let mut unsent = None;
        if sized {
            if let Some(pages) = &pages {
                unsent = Some(pages.sending.acquire(SENDERS_MAX).await);
            }
            self.cache(|cache| cache.size_changing(ino, 1));
        }
        let mut asked = self.ask();
        if self.caches.0.linux == Linux::Old {
            asked = asked.accepted_always();
        }
        let (client, caller) = (self.client.clone(), self.caller());
        let work = async move { client.setattr(&caller, ino, set).await };
        let answer = self.call(work, |_| Refs::Nothing, &changing).await;
        let asked = self.woken(asked).await;
        if sized {
            self.cache(|cache| cache.size_changing(ino, -1));
        }
        if answer == Err(Fault::Interrupted) {
            self.cache(|cache| cache.changed(ino));
        }
        let (attr, ttl) = answer?;
        let (until, old) = (self.attr_until(asked, ttl), self.size(ino));
        self.cache(|cache| cache.set(&attr, until, asked));
        drop(unsent);
        if let Some(pages) = self.known_pages(ino)
            && old != attr.size
        {
            pages.size_updates.set(pages.size_updates.get() + 1);
            pages.truncate(attr.size, u64::MAX).await;
            self.caches.invalidate(ino, 0, u64::MAX).await;
        }
        Ok((!self.caches() && !ttl.is_zero()).then_some(attr))
    }

    /// Sends a write; `held` is kept until it has ended.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn send_write<H: 'static>(
        &self,
        handle: Handle,
        (offset, data, len): (u64, IoBuf, usize),
        flags: WriteFlags,
        held: &Rc<H>,
    ) -> Result<(), Fault> {
        let (client, caller) = (self.client.clone(), self.caller());
        let work = async move { client.write(&caller, handle, offset, data, len, flags).await };
        match self.call(work, |_| Refs::Nothing, held).await? {
            written if written as usize == len => Ok(()),
            _ => Err(Fault::Range),
        }
    }

    /// read(2) without the page cache.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn read(&self, handle: Handle, offset: u64, len: u32) -> Result<Vec<u8>, Fault> {
        let client = self.client.clone();
        let work = async move {
            let read = client.read(handle, offset, len, false).await?;
            Ok(read.to_vec())
        };
        self.call(work, |_| Refs::Nothing, &Rc::new(())).await
    }

    /// fallocate(2) of `[offset, offset + len)`; `held` is kept until it has ended.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn fallocate<H: 'static>(
        &self,
        handle: Handle,
        mode: u32,
        (offset, len): (u64, u64),
        held: &Rc<H>,
    ) -> Result<(), Fault> {
        let (client, caller) = (self.client.clone(), self.caller());
        let work = async move { client.fallocate(&caller, handle, mode, offset, len).await };
        self.call(work, |()| Refs::Nothing, held).await
    }

    /// fsync(2) or fdatasync(2), without the pages.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn fsync(&self, handle: Handle, datasync: bool) -> Result<(), Fault> {
        let client = self.client.clone();
        let work = async move { client.fsync(handle, datasync).await };
        self.call(work, |()| Refs::Nothing, &Rc::new(())).await
    }

    /// fsync(2) of a directory.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn fsync_dir(&self, handle: Handle) -> Result<(), Fault> {
        let client = self.client.clone();
        let work = async move { client.fsyncdir(handle).await };
        self.call(work, |()| Refs::Nothing, &Rc::new(())).await
    }

    /// syncfs(2), without the pages.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn sync_all(&self) -> Result<(), Fault> {
        let client = self.client.clone();
        let work = async move { client.syncfs().await };
        self.call(work, |()| Refs::Nothing, &Rc::new(())).await
    }

    /// setxattr(2), or without a value removexattr(2).
    ///
    /// # Errors
    /// Those of the client.
    pub async fn set_xattr(
        &self,
        ino: Ino,
        name: &'static [u8],
        value: Option<u32>,
    ) -> Result<(), Fault> {
        let (client, caller) = (self.client.clone(), self.caller());
        let work = async move {
            match value {
                Some(value) => {
                    let value = value.to_le_bytes();
                    client.setxattr(&caller, ino, name, &value, 0, false).await
                }
                None => client.removexattr(&caller, ino, name).await,
            }
        };
        self.call(work, |()| Refs::Nothing, &Rc::new(())).await
    }

    /// getxattr(2).
    ///
    /// # Errors
    /// Those of the client.
    pub async fn get_xattr(&self, ino: Ino, name: &'static [u8]) -> Result<Vec<u8>, Fault> {
        let client = self.client.clone();
        let work = async move { client.getxattr(ino, name).await };
        self.call(work, |_| Refs::Nothing, &Rc::new(())).await
    }

    /// This kernel changed content without its pages; the file now reaches `end`.
    pub fn wrote(&self, ino: Ino, end: Option<u64>) {
        self.cache(|cache| {
            if let Some(end) = end.filter(|end| *end > cache.size(ino)) {
                cache.set_size(ino, end);
            }
            cache.invalidate(ino)
        });
    }

    /// This kernel changed extended attributes.
    pub fn changed(&self, ino: Ino) {
        self.cache(|cache| cache.changed(ino));
    }

    /// The kernel is short of memory: drops one in `part` of its names, and unused inodes.
    pub fn shrink(&self, part: u64) {
        for (at, leads) in self.cache(|cache| cache.names()) {
            let used = leads.is_some_and(|ino| self.caches.is_used(ino));
            if !used && self.caches.chance(part) == 0 {
                self.cache(|cache| cache.drop_name(at));
            }
        }
        let files: Vec<Rc<Pages>> = self.caches.0.pages.borrow().values().cloned().collect();
        files.iter().for_each(|pages| pages.shrink(|| self.caches.chance(part) == 0));
        for ino in self.cache(|cache| cache.without_dentry()) {
            if self.caches.is_used(ino) {
                continue;
            }
            self.caches.forget(ino);
        }
    }
}
