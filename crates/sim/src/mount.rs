//! A mount: passes the calls of applications to the client, and records them in the history.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use client::{Client, Handle, LockRequest, OpenFlags, Opened, SetAttrRequest, WriteFlags};
use env::Env;
use env::sync::Permit;
use types::limits::BLOCK_U64;
use types::{Attr, Duration, Fault, FileKind, Ino, LockOwner};

use crate::across::Evictions;
use crate::call::{
    At, FileNo, LOCK_UNITS, MAPPED, NameNo, Op, Outcome, Seen, Until, pattern, target_of,
};
use crate::history::History;
use crate::invariant::Invariant;
use crate::kernel::Caches;
use crate::kernel::content::Bytes;
use crate::kernel::pages::Pages;
use crate::kernel::vfs::{FoundInode, Lookup, Vfs};
use crate::model::OWNERS;

pub(crate) const XATTR: &[u8] = b"user.sim";

/// Bytes of one unit of fcntl locks.
const LOCK_UNIT: u64 = 1024;
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;
const NO_REPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

/// A mount of one client. Clones are the same mount.
#[derive(Clone)]
pub struct Mount {
    /// Number of the client in the history.
    pub index: usize,
    /// Number of the client in the script; its successors on the host have the same.
    pub slot: usize,
    /// The client.
    pub client: Client,
    /// Its node.
    pub env: Env,
    pub(crate) history: History,
    pub(crate) vfs: Vfs,
    tags: Rc<Cell<u32>>,
    /// The sessions that the client had lost at the last call.
    evicted: Rc<Evictions>,
}

/// An open file of a process.
#[derive(Clone, Copy, Debug)]
pub struct OpenFile {
    /// The file.
    pub ino: Ino,
    /// The client's handle.
    pub handle: Handle,
    /// Its number in the history.
    pub number: FileNo,
    /// Its open flags.
    pub flags: OpenFlags,
    /// It bypasses the kernel's page cache.
    pub direct: bool,
    /// The generation of its inode.
    generation: u64,
}

impl OpenFile {
    /// Does it allow writable shared mappings?
    pub fn maps_writable(&self) -> bool {
        !self.direct && self.flags.read_write()
    }
}

/// What a lookup found.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
}

fn done(result: Result<(), Fault>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(fault) => Outcome::Failed(fault),
    }
}

/// The kernel closes a file of an ended process, and frees its locks.
fn closed_by_kernel(file: &OpenFile, owner: u64) -> Vec<(Op, Outcome)> {
    let free = |range| Op::Lock { ino: file.ino, owner, exclusive: None, range };
    let all = [free(Some((0, LOCK_UNITS))), free(None), Op::Left(file.ino, file.number)];
    all.map(|op| (op, Outcome::Done)).into()
}

/// A read is consistent per block: each block is a step of its own. The last step shows the end of
/// the file, if it was seen.
fn blocks_read(ino: Ino, offset: u64, len: u32, bytes: &[u8]) -> Vec<(Op, Outcome)> {
    let (end, mut at) = (offset + u64::from(len), offset);
    let mut steps = Vec::new();
    while at < end {
        let to = (at / BLOCK_U64 * BLOCK_U64 + BLOCK_U64).min(end);
        let range = |at: u64| ((at - offset) as usize).min(bytes.len());
        let read = &bytes[range(at)..range(to)];
        let op = Op::Read { ino, offset: at, len: (to - at) as u32 };
        steps.push((op, Outcome::Bytes(Rc::new(read.to_vec()))));
        if (read.len() as u64) < to - at {
            break;
        }
        at = to;
    }
    steps
}

/// The end that a read saw, apart from the bytes before it. Those bytes may already show a
/// concurrent write of the same host that moves the end later (as on ext4, with pages and with
/// O_DIRECT). A read that saw only the end saw it alone.
fn end_seen(ino: Ino, offset: u64, len: u32, seen: u32) -> Option<(Op, Outcome)> {
    let end = Op::End(ino, offset + u64::from(seen));
    (seen > 0 && seen < len).then_some((end, Outcome::Done))
}

impl Mount {
    /// The mount of a connected client, which passes its recalls to `caches`.
    pub fn new(
        (index, slot): (usize, usize),
        (client, caches): (Client, Caches),
        env: Env,
        history: History,
        tags: Rc<Cell<u32>>,
    ) -> Mount {
        let unwritten = history.clone();
        caches.on_unwritten(Box::new(move |ino| unwritten.happened(index, Op::Unwritten(ino))));
        let vfs = Vfs::new(client.clone(), caches);
        Mount { index, slot, client, env, history, vfs, tags, evicted: Rc::default() }
    }

    /// The mount as another process sees it.
    pub fn of_process(&self, number: u64) -> Mount {
        let vfs = self.vfs.of_process(number as u32 + 1);
        Mount { vfs, ..self.clone() }
    }

    /// The process begins a new operation: it drops its references to inodes found before.
    pub fn next_operation(&self) {
        self.vfs.next_operation();
    }

    /// Kills one of the waiting processes, selected by `chance`. `false`: none waits.
    pub fn kill_one(&self, chance: u64) -> bool {
        self.vfs.kill_one(chance)
    }

    /// From here on processes may be killed.
    pub fn may_kill(&self) {
        self.vfs.may_kill();
    }

    /// A process gets a signal once its next wait for a lock has lasted this long.
    pub fn signal_next_lock_wait(&self, after: Duration) {
        self.vfs.signal_next_lock_wait(after);
    }

    /// The client reports that a device lost written data of a file.
    pub fn on_device_loss(&self, ino: Ino) {
        self.vfs.on_device_loss(ino);
    }

    /// Was the process killed? Only its open files remain to be closed.
    pub fn is_dead(&self) -> bool {
        self.vfs.is_dead()
    }

    /// Describes what its kernel holds.
    pub fn held(&self) -> String {
        self.vfs.held()
    }

    /// Ends when no request of a killed process is running.
    pub async fn abandoned_requests_ended(&self) {
        self.vfs.abandoned_requests_ended().await;
    }

    pub(crate) async fn lock(&self, inos: &[Ino]) -> Vec<Permit> {
        self.vfs.lock(inos).await
    }

    pub(crate) fn begin(&self, op: &Op) -> u64 {
        let begun = self.history.begin(self.index, op.clone());
        let begins = |shard| self.history.renewed((self.index, shard), begun);
        self.evicted.note(&self.client, begun, begins);
        begun
    }

    /// Has the client lost a session since then?
    fn was_evicted_since(&self, begun: u64) -> bool {
        self.evicted.any_since(&self.client, begun)
    }

    fn end(&self, begun: u64, op: Op, outcome: Outcome) {
        if outcome == Outcome::Failed(Fault::Interrupted) && self.vfs.is_dead() {
            return self.end_abandoned(begun, History::end_killed);
        }
        // The session was lost during the call: the effect is unknown.
        if outcome == Outcome::Failed(Fault::Evicted) && self.was_evicted_since(begun) {
            self.history.end_unknown(begun);
            return;
        }
        let gone = outcome == Outcome::Failed(Fault::Stale);
        let outcome = match op.of_what_was_found() {
            Some(ino) if gone && self.vfs.has_just_found(ino) => Outcome::GoneThoughFound,
            _ => outcome,
        };
        self.history.end(begun, vec![(op, outcome)]);
    }

    /// An abandoned call may still execute; `ends` records with which outcomes.
    fn end_abandoned(&self, begun: u64, ends: impl FnOnce(&History, u64) + 'static) {
        let history = self.history.clone();
        let Some(asked) = self.vfs.take_abandoned() else { return history.end(begun, Vec::new()) };
        history.killed(begun);
        self.env.spawn(async move {
            match asked.ended().await {
                true => ends(&history, begun),
                false => history.end(begun, Vec::new()),
            }
        });
    }

    /// A new number.
    fn number(&self) -> u32 {
        self.tags.set(self.tags.get() + 1);
        self.tags.get()
    }

    /// Ends with the step, and with the attributes of its answer.
    fn end_with_attr(&self, begun: u64, op: Op, outcome: Outcome, shown: Option<Attr>) {
        let mut steps = vec![(op, outcome)];
        if let Some(attr) = shown {
            steps.push((Op::GetAttr(attr.ino), Outcome::Attr(Seen::of(&attr))));
        }
        self.history.end(begun, steps);
    }

    /// Looks a name up.
    pub async fn lookup(&self, at: At) -> Result<Option<Target>, Fault> {
        self.finding(at, self.vfs.lookup(at)).await
    }

    async fn finding(
        &self,
        at: At,
        looked: impl Future<Output = Result<Lookup, Fault>>,
    ) -> Result<Option<Target>, Fault> {
        let op = Op::Lookup(at);
        let begun = self.begin(&op);
        match looked.await {
            Ok(Lookup { found, racy: true }) => {
                self.history.end_racy(begun);
                Ok(found.as_ref().map(target))
            }
            Ok(Lookup { found, .. }) => {
                let shown = found.and_then(|found| found.shown);
                let leads = Outcome::Found(found.map(|found| found.ino));
                self.end_with_attr(begun, op, leads, shown);
                Ok(found.as_ref().map(target))
            }
            Err(fault) => {
                self.end(begun, op, Outcome::Failed(fault));
                Err(fault)
            }
        }
    }

    /// The kernel's lookup under the directory's lock before a change; with `fresh` it ignores its
    /// cache. `None` without a kernel: the change is requested directly.
    async fn look_before(&self, at: At, fresh: bool) -> Result<Option<Option<Target>>, Fault> {
        if !self.vfs.caches() {
            return Ok(None);
        }
        self.finding(at, self.vfs.look(at, fresh)).await.map(Some)
    }

    /// Attributes.
    pub async fn getattr(&self, ino: Ino) -> Result<Attr, Fault> {
        let op = Op::GetAttr(ino);
        let begun = self.begin(&op);
        let result = self.vfs.getattr(ino).await;
        match &result {
            Ok(answer) if answer.racy => self.history.end_racy(begun),
            Ok(answer) => self.end(begun, op, Outcome::Attr(Seen::of(&answer.attr))),
            Err(fault) => self.end(begun, op, Outcome::Failed(*fault)),
        }
        result.map(|answer| answer.attr)
    }

    fn made(&self, begun: u64, op: Op, result: Result<FoundInode, Fault>) -> Result<Target, Fault> {
        match result {
            Ok(found) => {
                self.end_with_attr(begun, op, Outcome::Found(Some(found.ino)), found.shown);
                Ok(target(&found))
            }
            Err(fault) => {
                self.end(begun, op, Outcome::Failed(fault));
                Err(fault)
            }
        }
    }

    /// mknod, mkdir.
    pub async fn make(&self, at: At, kind: FileKind) -> Result<Target, Fault> {
        self.make_by(at, Op::Make(at, kind), self.vfs.make(at, kind)).await
    }

    /// symlink(2) to a new target, or (`usual`) to the common one.
    pub async fn symlink(&self, at: At, usual: bool) -> Result<Target, Fault> {
        let target = if usual { 0 } else { self.number() };
        self.make_by(at, Op::Symlink(at, target), self.vfs.symlink(at, target)).await
    }

    async fn make_by(
        &self,
        at: At,
        op: Op,
        work: impl Future<Output = Result<FoundInode, Fault>>,
    ) -> Result<Target, Fault> {
        let _locked = self.lock(&[at.dir]).await;
        if let Some(Some(_)) = self.look_before(at, true).await? {
            return Err(Fault::Exists);
        }
        let begun = self.begin(&op);
        self.made(begun, op, work.await)
    }

    /// readlink(2).
    pub async fn readlink(&self, ino: Ino) -> Result<(), Fault> {
        let op = Op::ReadLink(ino);
        let begun = self.begin(&op);
        let read = self.vfs.readlink(ino).await;
        let outcome = match &read {
            Ok(text) => target_of(text).map_or(Outcome::Failed(Fault::Range), Outcome::Target),
            Err(fault) => Outcome::Failed(*fault),
        };
        self.end(begun, op, outcome);
        read.map(|_| ())
    }

    /// open(2) with O_CREAT.
    pub async fn create(&self, at: At, exclusive: bool, flags: u32) -> Result<OpenFile, Fault> {
        let locked = self.lock(&[at.dir]).await;
        if let Some(Some(there)) = self.look_before(at, exclusive).await? {
            drop(locked);
            return match there.kind {
                _ if exclusive => Err(Fault::Exists),
                FileKind::Regular => self.open(there.ino, flags).await,
                _ => Err(Fault::IsDirectory),
            };
        }
        let number = self.number();
        let op = Op::Create { at, exclusive, file: number };
        let begun = self.begin(&op);
        let flags = OpenFlags(flags | if exclusive { OpenFlags::EXCLUSIVE } else { 0 });
        let result = self.vfs.create(at, flags).await;
        self.opened(begun, op, (number, flags), result)
    }

    /// open(2) with O_TMPFILE.
    pub async fn tmpfile(&self, dir: Ino, flags: u32) -> Result<OpenFile, Fault> {
        let number = self.number();
        let op = Op::TmpFile(dir, number);
        let begun = self.begin(&op);
        let flags = OpenFlags(flags);
        let result = self.vfs.tmpfile(dir, flags).await;
        self.opened(begun, op, (number, flags), result)
    }

    fn opened(
        &self,
        begun: u64,
        op: Op,
        (number, flags): (FileNo, OpenFlags),
        result: Result<(FoundInode, Opened), Fault>,
    ) -> Result<OpenFile, Fault> {
        let opened = result.as_ref().ok().map(|(_, opened)| *opened);
        let target = self.made(begun, op, result.map(|(found, _)| found))?;
        let opened = opened.ok_or(Fault::Invalid)?;
        Ok(self.file(target.ino, opened, (number, flags)))
    }

    fn file(&self, ino: Ino, opened: Opened, (number, flags): (FileNo, OpenFlags)) -> OpenFile {
        let direct = opened.direct_io || !self.vfs.caches();
        let generation = self.vfs.generation(ino);
        OpenFile { ino, handle: opened.handle, number, flags, direct, generation }
    }

    /// Does another inode have its number now? The kernel refuses to use it then.
    fn is_bad(&self, file: &OpenFile) -> bool {
        self.vfs.caches() && self.vfs.generation(file.ino) != file.generation
    }

    /// open(2) of a file that was looked up.
    pub async fn open(&self, ino: Ino, flags: u32) -> Result<OpenFile, Fault> {
        let number = self.number();
        let op = Op::Open(ino, number);
        let begun = self.begin(&op);
        let flags = OpenFlags(flags);
        let result = self.vfs.open(ino, flags).await;
        let outcome = match &result {
            Ok(_) => Outcome::Found(Some(ino)),
            Err(fault) => Outcome::Failed(*fault),
        };
        self.end(begun, op, outcome);
        result.map(|opened| self.file(ino, opened, (number, flags)))
    }

    /// close(2): reports errors of write-back, then releases the handle.
    pub async fn close(&self, file: OpenFile, owner: u64) {
        // From here on the file may be gone.
        let op = Op::Close(file.ino, file.number);
        let begun = self.begin(&op);
        let mut flushed = self.vfs.sync_pages(file.ino, file.handle).await;
        // A dead process gets no report.
        if flushed.is_ok() || self.is_dead() {
            self.vfs.ask();
            flushed = self.vfs.flush(file.handle, LockOwner(owner)).await;
        }
        let dead = self.is_dead();
        self.vfs.release(file.ino, file.handle, dead.then_some(LockOwner(owner))).await;
        if !dead {
            return self.end(begun, op, done(flushed));
        }
        let owner = self.owner(owner);
        if self.vfs.has_abandoned() {
            return self.end_abandoned(begun, move |history, begun| {
                history.end(begun, closed_by_kernel(&file, owner));
            });
        }
        self.history.end(begun, closed_by_kernel(&file, owner));
    }

    /// A lock owner number that no other client has.
    fn owner(&self, owner: u64) -> u64 {
        owner + OWNERS * self.index as u64
    }

    async fn finish(
        &self,
        op: Op,
        work: impl Future<Output = Result<(), Fault>>,
    ) -> Result<(), Fault> {
        let begun = self.begin(&op);
        self.vfs.ask();
        let result = work.await;
        self.end(begun, op, done(result));
        result
    }

    /// link(2).
    pub async fn link(&self, ino: Ino, at: At) -> Result<(), Fault> {
        let _dir = self.lock(&[at.dir]).await;
        if let Some(Some(_)) = self.look_before(at, true).await? {
            return Err(Fault::Exists);
        }
        let _file = self.lock(&[ino]).await;
        let op = Op::Link(ino, at);
        let begun = self.begin(&op);
        match self.vfs.link(ino, at).await {
            Ok(found) => {
                self.end_with_attr(begun, op, Outcome::Done, found.shown);
                Ok(())
            }
            Err(fault) => {
                self.end(begun, op, Outcome::Failed(fault));
                Err(fault)
            }
        }
    }

    /// unlink(2).
    pub async fn unlink(&self, at: At) -> Result<(), Fault> {
        let _dir = self.lock(&[at.dir]).await;
        let mut file = Vec::new();
        match self.look_before(at, false).await? {
            Some(None) => return Err(Fault::NotFound),
            Some(Some(there)) if there.kind == FileKind::Directory => {
                return Err(Fault::IsDirectory);
            }
            Some(Some(there)) => file = self.lock(&[there.ino]).await,
            None => {}
        }
        let removed = self.finish(Op::Unlink(at), self.vfs.remove(at, false)).await;
        drop(file);
        removed
    }

    /// rmdir(2).
    pub async fn rmdir(&self, at: At) -> Result<(), Fault> {
        let _dir = self.lock(&[at.dir]).await;
        match self.look_before(at, false).await? {
            Some(None) => return Err(Fault::NotFound),
            Some(Some(there)) if there.kind != FileKind::Directory => {
                return Err(Fault::NotDirectory);
            }
            _ => {}
        }
        self.finish(Op::Rmdir(at), self.vfs.remove(at, true)).await
    }

    /// renameat2(2).
    pub async fn rename(&self, from: At, to: At, flags: u32) -> Result<(), Fault> {
        let _dirs = self.lock(&[from.dir, to.dir]).await;
        let mut files = Vec::new();
        if let Some(moved) = self.look_before(from, false).await? {
            let over = self.look_before(to, true).await?.flatten();
            let Some(moved) = moved else { return Err(Fault::NotFound) };
            may_rename(&moved, over.as_ref(), flags)?;
            if over.is_some_and(|over| over.ino == moved.ino) {
                return Ok(());
            }
            let both = [Some(moved), over].into_iter().flatten();
            let locked = both.filter(|target| target.kind != FileKind::Directory);
            let locked: Vec<Ino> = locked.map(|target| target.ino).collect();
            files = self.lock(&locked).await;
        }
        let op = Op::Rename { from, to, flags };
        let renamed = self.finish(op, self.vfs.rename(from, to, flags)).await;
        drop(files);
        renamed
    }

    /// Lists a directory; each name is a step of its own.
    pub async fn list(&self, dir: Ino, plus: bool, bytes: usize) -> Result<(), Fault> {
        let begun = self.begin(&Op::Lookup(At { dir, name: NameNo::MAX }));
        let result = self.names_of(dir, plus, bytes).await;
        if result == Err(Fault::Interrupted) {
            self.end_abandoned(begun, History::end_killed);
            return Err(Fault::Interrupted);
        }
        let steps = match &result {
            Ok(names) => crate::call::NAMES
                .map(|name| {
                    let listed = names.get(&name).map(|&(ino, kind)| Outcome::Listed(ino, kind));
                    (Op::Lookup(At { dir, name }), listed.unwrap_or(Outcome::Found(None)))
                })
                .collect(),
            Err(fault) => {
                let name = 0;
                vec![(Op::Lookup(At { dir, name }), Outcome::Failed(*fault))]
            }
        };
        self.history.end(begun, steps);
        result.map(|_| ())
    }

    async fn names_of(
        &self,
        dir: Ino,
        plus: bool,
        bytes: usize,
    ) -> Result<BTreeMap<NameNo, (Ino, FileKind)>, Fault> {
        let mut names = BTreeMap::new();
        let listed = self.vfs.list(dir, plus, bytes).await?;
        for unexpected in listed.unexpected {
            self.bad_listing(format!("directory {dir} lists {unexpected:?}, which nobody created"));
        }
        for (name, ino, kind) in listed.known {
            if !crate::call::NAMES.contains(&name) {
                self.bad_listing(format!("directory {dir} lists n{name}, which nobody created"));
            }
            if names.insert(name, (ino, kind)).is_some() {
                self.bad_listing(format!("directory {dir} lists n{name} twice"));
            }
        }
        Ok(names)
    }

    /// Reports a listing that no order of steps explains.
    fn bad_listing(&self, text: String) {
        let text = format!("c{}: {text}", self.index);
        self.history.stream().broken(Invariant::OneName, &text);
    }

    /// pread(2).
    pub async fn read(&self, file: OpenFile, offset: u64, len: u32) -> Result<(), Fault> {
        let op = Op::Read { ino: file.ino, offset, len };
        let begun = self.begin(&op);
        if self.is_bad(&file) {
            self.end(begun, op, Outcome::Failed(Fault::Io));
            return Err(Fault::Io);
        }
        if !file.direct {
            let read = self.vfs.read_pages((file.ino, file.handle), offset, u64::from(len)).await;
            return self.read_ended((begun, op), file.ino, (offset, len), read);
        }
        let end = offset + u64::from(len);
        self.vfs.write_back(file.ino, offset, end).await;
        let stores = self.vfs.stores(file.ino);
        self.vfs.ask();
        match self.vfs.read(file.handle, offset, len).await {
            // The read may show concurrent stores of mappings on this host, or not.
            Ok(_) if self.vfs.stores(file.ino) != stores => {
                self.history.end(begun, Vec::new());
                Ok(())
            }
            Ok(read) => {
                let seen = read.len() as u32;
                let asked = if seen == 0 { len } else { seen };
                let mut steps = blocks_read(file.ino, offset, asked, &read);
                steps.extend(end_seen(file.ino, offset, len, seen));
                self.history.end(begun, steps);
                Ok(())
            }
            Err(fault) => {
                self.end(begun, op, Outcome::Failed(fault));
                Err(fault)
            }
        }
    }

    fn read_ended(
        &self,
        (begun, op): (u64, Op),
        ino: Ino,
        (offset, len): (u64, u32),
        read: Result<Bytes, Fault>,
    ) -> Result<(), Fault> {
        match read {
            Ok(read) if read.racy => self.history.end_racy(begun),
            Ok(read) => {
                // Seeing only the end is like `stat`, not like a read.
                let seen = read.bytes.len() as u32;
                let mut steps = blocks_read(ino, offset, seen, &read.bytes);
                match seen {
                    0 => steps.push((Op::End(ino, offset), Outcome::Done)),
                    _ => steps.extend(end_seen(ino, offset, len, seen)),
                }
                self.history.end(begun, steps);
            }
            Err(fault) => {
                self.end(begun, op, Outcome::Failed(fault));
                return Err(fault);
            }
        }
        Ok(())
    }

    /// pwrite(2), or an append.
    pub async fn write(&self, file: OpenFile, offset: Option<u64>, len: u32) -> Result<(), Fault> {
        if self.is_bad(&file) {
            let (tag, at) = (self.number(), offset.or(Some(0)));
            // It does not reach a device.
            let (ino, until) = (file.ino, Until::Accepted);
            let op = Op::write((ino, file.number), at, (len, tag), until);
            let begun = self.begin(&op);
            self.end(begun, op, Outcome::Failed(Fault::Io));
            return Err(Fault::Io);
        }
        let _locked = self.lock(&[file.ino]).await;
        let append = file.flags.has(OpenFlags::APPEND);
        let offset = offset.filter(|_| !append).or((!append).then_some(0));
        if !file.direct {
            return self.write_through(file, offset.unwrap_or(0), len).await;
        }
        let pages = self.vfs.known_pages(file.ino);
        let changing = Rc::new((self.vfs.changes(file.ino), pages.as_ref().map(Pages::change)));
        // For Linux an append begins at the size that it knows.
        let start = offset.unwrap_or_else(|| self.vfs.size(file.ino));
        self.vfs.invalidate(file.ino, start, start + u64::from(len)).await;
        let tag = self.number();
        let until = Until::of(file.flags, &self.client);
        let op = Op::write((file.ino, file.number), offset, (len, tag), until);
        let mut data = self.env.buffer(len as usize);
        // The pattern ignores the offset, which an append learns too late.
        data.copy_from_slice(&pattern(tag, 0, len as usize));
        let flags = WriteFlags { append, ..WriteFlags::default() };
        let at = offset.unwrap_or(0);
        let (begun, evictions) = (self.begin(&op), self.client.status().evictions);
        self.vfs.ask();
        let data = (at, data, len as usize);
        let written = self.vfs.send_write(file.handle, data, flags, &changing).await;
        self.write_ended((begun, evictions), op, false, written);
        let end = offset.filter(|_| written.is_ok()).map(|offset| offset + u64::from(len));
        self.vfs.wrote(file.ino, end);
        written
    }

    /// Stores into a shared mapping of this open file. Each page is a step of its own, which others
    /// see whether it is written back or not.
    pub async fn store(&self, file: OpenFile, offset: u64, len: u32) {
        let (mut at, end) = (offset, offset + u64::from(len));
        while at < end {
            let to = end.min(at / BLOCK_U64 * BLOCK_U64 + BLOCK_U64);
            let (tag, len) = (self.number(), (to - at) as u32);
            let number = MAPPED;
            let op = Op::write((file.ino, number), Some(at), (len, tag), Until::Accepted);
            let begun = self.begin(&op);
            let bytes = pattern(tag, 0, len as usize);
            let stored = self.vfs.store((file.ino, file.handle), at, &bytes).await;
            let steps = if stored { vec![(op, Outcome::Done)] } else { Vec::new() };
            self.history.end(begun, steps);
            if !stored {
                // The killed process had requested only the page.
                drop(self.vfs.take_abandoned());
                return;
            }
            at = to;
        }
    }

    /// The kernel writes stores of the file back later.
    pub fn write_back_later(&self, file: OpenFile) {
        self.vfs.write_back_later(file.ino);
    }

    /// A write has ended; `evictions` counts its client's lost sessions at its beginning, and
    /// write-back may have `carried` its bytes.
    fn write_ended(&self, of: (u64, u64), op: Op, carried: bool, written: Result<(), Fault>) {
        let (begun, evictions) = of;
        let is_later = matches!(op, Op::Write { until, .. } if until.is_later());
        let lost = is_later && self.client.status().evictions > evictions;
        match written {
            Err(Fault::Io) if carried || lost => self.history.end_failed_write(begun, op),
            _ => self.end(begun, op, done(written)),
        }
    }

    /// write(2) through the page cache: for other clients each request is a write of its own.
    async fn write_through(&self, file: OpenFile, offset: u64, len: u32) -> Result<(), Fault> {
        let (mut at, end) = (offset, offset + u64::from(len));
        let until = Until::of(file.flags, &self.client);
        while at < end {
            at = self.write_request(file, (at, end), until, self.number()).await?;
        }
        Ok(())
    }

    /// One request of a write through the page cache, from `at` on; returns how far it went.
    async fn write_request(
        &self,
        file: OpenFile,
        (at, end): (u64, u64),
        until: Until,
        tag: u32,
    ) -> Result<u64, Fault> {
        let op =
            |to: u64| Op::write((file.ino, file.number), Some(at), ((to - at) as u32, tag), until);
        let (begun, evictions) = (self.begin(&op(end)), self.client.status().evictions);
        let data = pattern(tag, 0, (end - at) as usize);
        let (to, carried, written) = self.vfs.write_pages((file.ino, file.handle), at, &data).await;
        self.write_ended((begun, evictions), op(to), carried, written);
        written.map(|()| to)
    }

    /// pwrite(2) within one page; returns the bytes. Like [`Mount::write`] if the file bypasses
    /// pages.
    ///
    /// # Errors
    /// As [`Mount::write`].
    pub async fn write_known(
        &self,
        file: OpenFile,
        offset: u64,
        len: u32,
    ) -> Result<Option<Vec<u8>>, Fault> {
        if file.direct || self.is_bad(&file) {
            self.write(file, Some(offset), len).await?;
            return Ok(None);
        }
        let _locked = self.lock(&[file.ino]).await;
        let tag = self.number();
        let until = Until::of(file.flags, &self.client);
        self.write_request(file, (offset, offset + u64::from(len)), until, tag).await?;
        Ok(Some(pattern(tag, 0, len as usize)))
    }

    /// What pread(2) shows, concurrent changes by this kernel included; not a step of the history.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn peek(&self, file: OpenFile, offset: u64, len: u32) -> Result<Vec<u8>, Fault> {
        let read = self.vfs.read_pages((file.ino, file.handle), offset, u64::from(len)).await?;
        Ok(read.bytes)
    }

    /// truncate(2).
    pub async fn truncate(&self, ino: Ino, size: u64, handle: Option<Handle>) -> Result<(), Fault> {
        let set = SetAttrRequest { size: Some(size), handle, ..SetAttrRequest::default() };
        self.setattr(Op::Truncate(ino, size), ino, set).await
    }

    /// chmod(2).
    pub async fn chmod(&self, ino: Ino, mode: u16) -> Result<(), Fault> {
        let set = SetAttrRequest { mode: Some(mode), ..SetAttrRequest::default() };
        self.setattr(Op::SetMode(ino, mode), ino, set).await
    }

    /// chown(2).
    pub async fn chown(&self, ino: Ino, owner: (Option<u32>, Option<u32>)) -> Result<(), Fault> {
        let (uid, gid) = owner;
        let set = SetAttrRequest { uid, gid, ..SetAttrRequest::default() };
        self.setattr(Op::SetOwner { ino, uid, gid }, ino, set).await
    }

    async fn setattr(&self, op: Op, ino: Ino, set: SetAttrRequest) -> Result<(), Fault> {
        let _locked = self.lock(&[ino]).await;
        let begun = self.begin(&op);
        match self.vfs.setattr(ino, set).await {
            Ok(shown) => {
                self.end_with_attr(begun, op, Outcome::Done, shown);
                Ok(())
            }
            Err(fault) => {
                self.end(begun, op, Outcome::Failed(fault));
                Err(fault)
            }
        }
    }

    /// fallocate(2).
    pub async fn fallocate(
        &self,
        file: OpenFile,
        mode: u32,
        offset: u64,
        len: u64,
    ) -> Result<(), Fault> {
        let _locked = self.lock(&[file.ino]).await;
        let op = Op::Allocate { ino: file.ino, mode, offset, len, file: file.number };
        let pages = self.vfs.known_pages(file.ino);
        let changing = Rc::new((self.vfs.changes(file.ino), pages.as_ref().map(Pages::change)));
        let allocate = self.vfs.fallocate(file.handle, mode, (offset, len), &changing);
        if mode & (PUNCH_HOLE | ZERO_RANGE) != 0 {
            self.vfs.write_back(file.ino, offset, offset + len).await;
        }
        let allocated = self.finish(op, allocate).await;
        let grown = allocated.is_ok() && mode & KEEP_SIZE == 0;
        self.vfs.wrote(file.ino, grown.then_some(offset + len));
        let zeroed = allocated.is_ok() && mode & (PUNCH_HOLE | ZERO_RANGE) != 0;
        if let Some(pages) = pages.filter(|_| zeroed) {
            pages.truncate(offset, offset + len).await;
        }
        allocated
    }

    /// Sets or removes the extended attribute of the workload.
    pub async fn set_xattr(&self, ino: Ino, value: Option<u32>) -> Result<(), Fault> {
        let _locked = self.lock(&[ino]).await;
        let op = Op::SetXattr(ino, value);
        let set = self.finish(op, self.vfs.set_xattr(ino, XATTR, value)).await;
        self.vfs.changed(ino);
        set
    }

    /// Reads the extended attribute of the workload.
    pub async fn get_xattr(&self, ino: Ino) -> Result<(), Fault> {
        let op = Op::GetXattr(ino);
        let begun = self.begin(&op);
        self.vfs.ask();
        let outcome = match self.vfs.get_xattr(ino, XATTR).await {
            Ok(value) => match value.try_into() {
                Ok(bytes) => Outcome::Xattr(Some(u32::from_le_bytes(bytes))),
                Err(_) => Outcome::Failed(Fault::Range),
            },
            Err(Fault::NoAttribute) => Outcome::Xattr(None),
            Err(fault) => Outcome::Failed(fault),
        };
        self.end(begun, op, outcome);
        Ok(())
    }

    /// flock(2), or with a range of units fcntl(2): takes a lock, waiting if `wait`, or frees one.
    pub async fn lock_file(
        &self,
        file: OpenFile,
        owner: u64,
        (range, exclusive): (Option<(u8, u8)>, Option<bool>),
        wait: bool,
    ) -> Result<(), Fault> {
        let byte = |unit: u8| u64::from(unit) * LOCK_UNIT;
        let (start, end) = range.map_or((0, u64::MAX), |(a, b)| (byte(a), byte(b) - 1));
        let lock = LockRequest {
            flock: range.is_none(),
            owner: LockOwner(owner),
            pid: owner as u32,
            exclusive,
            start,
            end,
        };
        let owner = self.owner(owner);
        let op = Op::Lock { ino: file.ino, owner, exclusive, range };
        if exclusive.is_none() {
            return self.finish(op, self.vfs.free_lock(file.handle, lock)).await;
        }
        let begun = self.begin(&op);
        self.vfs.ask();
        let taken = self.vfs.take_lock((file.ino, file.handle), lock, wait).await;
        match taken {
            Err(Fault::Interrupted) => {
                (!self.is_dead()).then(|| self.history.lock_wait_interrupted());
                self.end_abandoned(begun, History::end_abandoned_lock);
            }
            taken => self.end(begun, op, done(taken)),
        }
        taken
    }

    /// fsync(2) or fdatasync(2).
    pub async fn fsync(&self, file: OpenFile, datasync: bool) -> Result<(), Fault> {
        let sync = async {
            self.vfs.sync_pages(file.ino, file.handle).await?;
            self.vfs.ask();
            self.vfs.fsync(file.handle, datasync).await
        };
        self.finish(Op::Fsync(file.ino, file.number), sync).await
    }

    /// fsync(2) of a directory.
    pub async fn fsync_dir(&self, dir: Ino) -> Result<(), Fault> {
        let looked = Op::Lookup(At { dir, name: 0 });
        let begun = self.begin(&looked);
        let handle = match self.client.opendir(dir).await {
            Ok(handle) => handle,
            Err(fault) => {
                self.end(begun, looked, Outcome::Failed(fault));
                return Err(fault);
            }
        };
        self.history.end(begun, Vec::new());
        let sync = Op::SyncNames(self.client.home(dir));
        let result = self.finish(sync, self.vfs.fsync_dir(handle)).await;
        self.client.releasedir(handle);
        result
    }

    /// syncfs(2).
    pub async fn sync_all(&self) -> Result<(), Fault> {
        let sync = async {
            self.vfs.write_back_all().await;
            self.vfs.sync_all().await
        };
        self.finish(Op::SyncAll, sync).await
    }

    /// The kernel drops everything that is not in use.
    pub fn forget(&self) {
        self.vfs.shrink(1);
    }
}

fn target(found: &FoundInode) -> Target {
    Target { ino: found.ino, kind: found.kind }
}

/// What a kernel itself checks before a rename.
fn may_rename(moved: &Target, over: Option<&Target>, flags: u32) -> Result<(), Fault> {
    let exchange = flags & EXCHANGE != 0;
    let Some(over) = over else {
        return if exchange { Err(Fault::NotFound) } else { Ok(()) };
    };
    if flags & NO_REPLACE != 0 {
        return Err(Fault::Exists);
    }
    match (moved.kind == FileKind::Directory, over.kind == FileKind::Directory) {
        (true, false) if !exchange => Err(Fault::NotDirectory),
        (false, true) if !exchange => Err(Fault::IsDirectory),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "mount_tests.rs"]
mod tests;
