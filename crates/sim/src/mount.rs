//! A mount: what applications call, passed to the client and written into the history.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use client::{
    Caller, Client, Entry, Handle, LockRequest, NodeSpec, OpenFlags, Place, SetAttrRequest,
    WriteFlags,
};
use env::Env;
use env::sync::{AsyncMutex, Permit};
use types::limits::BLOCK_U64;
use types::{Attr, Duration, Fault, FileKind, Ino, LockOwner, Name};

use crate::call::{At, FileNo, NameNo, Op, Outcome, Seen, name_text, pattern};
use crate::history::History;
use crate::model::OWNERS;

const XATTR: &[u8] = b"user.sim";
const SYMLINK: &[u8] = b"target";

/// A mount of one client. Clones are the same mount.
#[derive(Clone)]
pub struct Mount {
    /// Number of the client in the history.
    pub index: usize,
    /// Number of the client in the script; those that come after it on its host have the same.
    pub slot: usize,
    /// The client.
    pub client: Client,
    /// The node that it runs on.
    pub env: Env,
    history: History,
    lookups: Rc<RefCell<BTreeMap<Ino, u64>>>,
    tags: Rc<Cell<u32>>,
    locks: Rc<RefCell<BTreeMap<Ino, Rc<AsyncMutex>>>>,
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
    /// As opened.
    pub flags: OpenFlags,
}

/// What a lookup found.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
}

fn name(name: NameNo) -> Name {
    Name::new(name_text(name).as_bytes()).expect("the names of the workload are legal")
}

/// Who asks.
pub const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };

fn done(result: Result<(), Fault>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(fault) => Outcome::Failed(fault),
    }
}

/// Content is consistent per block: what was read of each is a step of its own. The last one says
/// where the file ends, if that was seen.
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

impl Mount {
    /// The mount of a connected client.
    pub fn new(
        (index, slot): (usize, usize),
        client: Client,
        env: Env,
        history: History,
        tags: Rc<Cell<u32>>,
    ) -> Mount {
        Mount {
            index,
            slot,
            client,
            env,
            history,
            lookups: Rc::default(),
            tags,
            locks: Rc::default(),
        }
    }

    /// Takes the kernel's locks of these inodes: it lets only one operation at a time
    /// change an inode or the names of a directory. Looking up and reading take none.
    async fn lock(&self, mut inos: Vec<Ino>) -> Vec<Permit> {
        inos.sort_unstable();
        inos.dedup();
        let mut held = Vec::new();
        for ino in inos {
            let lock = self.locks.borrow_mut().entry(ino).or_default().clone();
            held.push(lock.lock().await);
        }
        held
    }

    fn begin(&self, op: &Op) -> u64 {
        self.history.begin(self.index, op.clone())
    }

    fn end(&self, begun: u64, op: Op, outcome: Outcome) {
        // The session was lost under way: nobody knows whether it was done.
        if outcome == Outcome::Failed(Fault::Evicted) && self.client.status().evictions > 0 {
            self.history.end_unknown(begun);
            return;
        }
        self.history.end(begun, vec![(op, outcome)]);
    }

    /// A number that was not used before.
    fn number(&self) -> u32 {
        self.tags.set(self.tags.get() + 1);
        self.tags.get()
    }

    /// Ends with the step and what its answer says of attributes, if the kernel may believe
    /// that; else it asks again before an application sees them.
    fn end_with_attr(&self, begun: u64, op: Op, outcome: Outcome, attr: &Attr, ttl: Duration) {
        let mut steps = vec![(op, outcome)];
        if !ttl.is_zero() {
            steps.push((Op::GetAttr(attr.ino), Outcome::Attr(Seen::of(attr))));
        }
        self.history.end(begun, steps);
    }

    fn entered(&self, entry: &Entry) -> Target {
        *self.lookups.borrow_mut().entry(entry.attr.ino).or_insert(0) += 1;
        Target { ino: entry.attr.ino, kind: entry.attr.kind }
    }

    /// Finds a name.
    pub async fn lookup(&self, at: At) -> Result<Option<Target>, Fault> {
        let op = Op::Lookup(at);
        let begun = self.begin(&op);
        match self.client.lookup(&CALLER, at.dir, &name(at.name)).await {
            Ok(Ok(entry)) => {
                let outcome = Outcome::Found(Some(entry.attr.ino));
                self.end_with_attr(begun, op, outcome, &entry.attr, entry.attr_ttl);
                Ok(Some(self.entered(&entry)))
            }
            Ok(Err(_)) => {
                self.end(begun, op, Outcome::Found(None));
                Ok(None)
            }
            Err(fault) => {
                self.end(begun, op, Outcome::Failed(fault));
                Err(fault)
            }
        }
    }

    /// Attributes.
    pub async fn getattr(&self, ino: Ino) -> Result<Attr, Fault> {
        let op = Op::GetAttr(ino);
        let begun = self.begin(&op);
        let result = self.client.getattr(ino).await.map(|(attr, _)| attr);
        let outcome = match &result {
            Ok(attr) => Outcome::Attr(Seen::of(attr)),
            Err(fault) => Outcome::Failed(*fault),
        };
        self.end(begun, op, outcome);
        result
    }

    fn made(&self, begun: u64, op: Op, result: Result<Entry, Fault>) -> Result<Target, Fault> {
        match result {
            Ok(entry) => {
                self.end_with_attr(
                    begun,
                    op,
                    Outcome::Found(Some(entry.attr.ino)),
                    &entry.attr,
                    entry.attr_ttl,
                );
                Ok(self.entered(&entry))
            }
            Err(fault) => {
                self.end(begun, op, Outcome::Failed(fault));
                Err(fault)
            }
        }
    }

    /// mknod, mkdir, symlink.
    pub async fn make(&self, at: At, kind: FileKind) -> Result<Target, Fault> {
        let _locked = self.lock(vec![at.dir]).await;
        let op = Op::Make(at, kind);
        let begun = self.begin(&op);
        let name = name(at.name);
        let place = Place { dir: at.dir, name: &name };
        let result = if kind == FileKind::Symlink {
            self.client.symlink(&CALLER, place, SYMLINK).await
        } else {
            let node = NodeSpec { kind, mode: 0o755, umask: 0o22, rdev: 0 };
            self.client.mknod(&CALLER, place, node).await
        };
        self.made(begun, op, result)
    }

    /// open(2) with O_CREAT.
    pub async fn create(&self, at: At, exclusive: bool, flags: u32) -> Result<OpenFile, Fault> {
        let _locked = self.lock(vec![at.dir]).await;
        let number = self.number();
        let op = Op::Create { at, exclusive, file: number };
        let begun = self.begin(&op);
        let flags = OpenFlags(flags | if exclusive { OpenFlags::EXCLUSIVE } else { 0 });
        let name = name(at.name);
        let place = Place { dir: at.dir, name: &name };
        let result = self.client.create(&CALLER, place, 0o644, 0o22, flags).await;
        self.opened(
            begun,
            op,
            (number, flags),
            result.map(|(entry, opened)| (entry, opened.handle)),
        )
    }

    /// open(2) with O_TMPFILE.
    pub async fn tmpfile(&self, dir: Ino, flags: u32) -> Result<OpenFile, Fault> {
        let number = self.number();
        let op = Op::TmpFile(dir, number);
        let begun = self.begin(&op);
        let flags = OpenFlags(flags);
        let result = self.client.tmpfile(&CALLER, dir, 0o644, 0o22, flags).await;
        self.opened(
            begun,
            op,
            (number, flags),
            result.map(|(entry, opened)| (entry, opened.handle)),
        )
    }

    fn opened(
        &self,
        begun: u64,
        op: Op,
        (number, flags): (FileNo, OpenFlags),
        result: Result<(Entry, Handle), Fault>,
    ) -> Result<OpenFile, Fault> {
        let handle =
            result.map(|(entry, handle)| (self.made(begun, op.clone(), Ok(entry)), handle));
        match handle {
            Ok((target, handle)) => Ok(OpenFile { ino: target?.ino, handle, number, flags }),
            Err(fault) => {
                self.end(begun, op, Outcome::Failed(fault));
                Err(fault)
            }
        }
    }

    /// open(2) of a file that was looked up.
    pub async fn open(&self, ino: Ino, flags: u32) -> Result<OpenFile, Fault> {
        let number = self.number();
        let op = Op::Open(ino, number);
        let begun = self.begin(&op);
        let flags = OpenFlags(flags);
        let result = self.client.open(&CALLER, ino, flags).await;
        let outcome = match &result {
            Ok(_) => Outcome::Found(Some(ino)),
            Err(fault) => Outcome::Failed(*fault),
        };
        self.end(begun, op, outcome);
        result.map(|opened| OpenFile { ino, handle: opened.handle, number, flags })
    }

    /// close(2): errors of write-behind are told, then the handle goes.
    pub async fn close(&self, file: OpenFile, owner: u64) {
        // The file may be gone from here on.
        let op = Op::Close(file.ino, file.number);
        let begun = self.begin(&op);
        let flushed = self.client.flush(file.handle, LockOwner(owner)).await;
        self.client.release(file.handle, None).await;
        self.end(begun, op, done(flushed));
    }

    async fn finish(
        &self,
        op: Op,
        work: impl Future<Output = Result<(), Fault>>,
    ) -> Result<(), Fault> {
        let begun = self.begin(&op);
        let result = work.await;
        self.end(begun, op, done(result));
        result
    }

    /// link(2).
    pub async fn link(&self, ino: Ino, at: At) -> Result<(), Fault> {
        let _locked = self.lock(vec![ino, at.dir]).await;
        let op = Op::Link(ino, at);
        let begun = self.begin(&op);
        let name = name(at.name);
        match self.client.link(&CALLER, ino, Place { dir: at.dir, name: &name }).await {
            Ok(entry) => {
                self.end_with_attr(begun, op, Outcome::Done, &entry.attr, entry.attr_ttl);
                self.entered(&entry);
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
        let name = name(at.name);
        let place = Place { dir: at.dir, name: &name };
        let _locked = self.lock(vec![at.dir]).await;
        self.finish(Op::Unlink(at), self.client.unlink(&CALLER, place)).await
    }

    /// rmdir(2).
    pub async fn rmdir(&self, at: At) -> Result<(), Fault> {
        let name = name(at.name);
        let place = Place { dir: at.dir, name: &name };
        let _locked = self.lock(vec![at.dir]).await;
        self.finish(Op::Rmdir(at), self.client.rmdir(&CALLER, place)).await
    }

    /// renameat2(2).
    pub async fn rename(&self, from: At, to: At, flags: u32) -> Result<(), Fault> {
        let (old, new) = (name(from.name), name(to.name));
        let source = Place { dir: from.dir, name: &old };
        let target = Place { dir: to.dir, name: &new };
        let _locked = self.lock(vec![from.dir, to.dir]).await;
        let op = Op::Rename { from, to, flags };
        self.finish(op, self.client.rename(&CALLER, source, target, flags)).await
    }

    /// The names of a directory; each name is a step of its own.
    pub async fn list(&self, dir: Ino, plus: bool, bytes: usize) -> Result<(), Fault> {
        let begun = self.begin(&Op::Lookup(At { dir, name: NameNo::MAX }));
        let result = self.names_of(dir, plus, bytes).await;
        let steps = match &result {
            Ok(names) => crate::workload::NAMES
                .map(|name| {
                    let ino = names.get(&name).copied();
                    (Op::Lookup(At { dir, name }), Outcome::Found(ino))
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
    ) -> Result<BTreeMap<NameNo, Ino>, Fault> {
        let handle = self.client.opendir(dir).await?;
        let mut names = BTreeMap::new();
        let mut cookie = 0;
        let result = loop {
            match self.client.readdir(handle, cookie, bytes, plus).await {
                Ok(part) => {
                    let Some(last) = part.last() else { break Ok(()) };
                    cookie = last.cookie;
                    for entry in part {
                        if let Some(entry) = &entry.entry {
                            self.entered(entry);
                        }
                        let text = String::from_utf8_lossy(&entry.name).into_owned();
                        if let Some(name) = text.strip_prefix('n').and_then(|n| n.parse().ok())
                            && names.insert(name, entry.ino).is_some()
                        {
                            self.client_told(format!("directory {dir} lists {text} twice"));
                        }
                    }
                }
                Err(fault) => break Err(fault),
            }
        };
        self.client.releasedir(handle);
        result.map(|()| names)
    }

    /// Something that no order of steps explains.
    fn client_told(&self, text: String) {
        crate::log::violation(&format!("c{}: {text}", self.index));
    }

    /// pread(2).
    pub async fn read(&self, file: OpenFile, offset: u64, len: u32) -> Result<(), Fault> {
        let op = Op::Read { ino: file.ino, offset, len };
        let begun = self.begin(&op);
        match self.client.read(file.handle, offset, len, false).await {
            Ok(read) => {
                self.history.end(begun, blocks_read(file.ino, offset, len, &read.to_vec()));
                Ok(())
            }
            Err(fault) => {
                self.end(begun, op, Outcome::Failed(fault));
                Err(fault)
            }
        }
    }

    /// pwrite(2), or write(2) at the end.
    pub async fn write(&self, file: OpenFile, offset: Option<u64>, len: u32) -> Result<(), Fault> {
        let _locked = self.lock(vec![file.ino]).await;
        let append = file.flags.has(OpenFlags::APPEND);
        let offset = offset.filter(|_| !append).or((!append).then_some(0));
        let tag = self.number();
        let sync = file.flags.has(OpenFlags::DSYNC);
        let op = Op::Write { ino: file.ino, offset, len, tag, file: file.number, sync };
        let mut data = self.env.buffer(len as usize);
        // A pattern that does not depend on the offset, which appending learns too late.
        data.copy_from_slice(&pattern(tag, 0, len as usize));
        let flags = WriteFlags { append, ..WriteFlags::default() };
        let write =
            self.client.write(&CALLER, file.handle, offset.unwrap_or(0), data, len as usize, flags);
        self.finish(op, async {
            match write.await {
                Ok(written) if written == len => Ok(()),
                Ok(_) => Err(Fault::Range),
                Err(fault) => Err(fault),
            }
        })
        .await
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

    async fn setattr(&self, op: Op, ino: Ino, set: SetAttrRequest) -> Result<(), Fault> {
        let _locked = self.lock(vec![ino]).await;
        let begun = self.begin(&op);
        match self.client.setattr(&CALLER, ino, set).await {
            Ok((attr, ttl)) => {
                self.end_with_attr(begun, op, Outcome::Done, &attr, ttl);
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
        let _locked = self.lock(vec![file.ino]).await;
        let op = Op::Allocate { ino: file.ino, mode, offset, len, file: file.number };
        self.finish(op, self.client.fallocate(&CALLER, file.handle, mode, offset, len)).await
    }

    /// Sets or removes the extended attribute of the workload.
    pub async fn set_xattr(&self, ino: Ino, value: Option<u32>) -> Result<(), Fault> {
        let _locked = self.lock(vec![ino]).await;
        let op = Op::SetXattr(ino, value);
        match value {
            Some(value) => {
                let bytes = value.to_le_bytes();
                let set = self.client.setxattr(&CALLER, ino, XATTR, &bytes, 0, false);
                self.finish(op, set).await
            }
            None => self.finish(op, self.client.removexattr(&CALLER, ino, XATTR)).await,
        }
    }

    /// Reads the extended attribute of the workload.
    pub async fn get_xattr(&self, ino: Ino) -> Result<(), Fault> {
        let op = Op::GetXattr(ino);
        let begun = self.begin(&op);
        let outcome = match self.client.getxattr(ino, XATTR).await {
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

    /// flock(2) with LOCK_NB, or LOCK_UN.
    pub async fn flock(
        &self,
        file: OpenFile,
        owner: u64,
        exclusive: Option<bool>,
    ) -> Result<(), Fault> {
        let lock = LockRequest {
            flock: true,
            owner: LockOwner(owner),
            pid: owner as u32,
            exclusive,
            start: 0,
            end: u64::MAX,
        };
        // Owners of different clients are different.
        let op = Op::Flock { ino: file.ino, owner: owner + OWNERS * self.index as u64, exclusive };
        self.finish(op, self.client.setlk(file.handle, lock, false)).await
    }

    /// fsync(2) or fdatasync(2).
    pub async fn fsync(&self, file: OpenFile, datasync: bool) -> Result<(), Fault> {
        let op = Op::Fsync(file.ino, file.number);
        self.finish(op, self.client.fsync(file.handle, datasync)).await
    }

    /// fsync(2) of a directory.
    pub async fn fsync_dir(&self, dir: Ino) -> Result<(), Fault> {
        let handle = match self.client.opendir(dir).await {
            Ok(handle) => handle,
            Err(fault) => return Err(fault),
        };
        let result = self.finish(Op::SyncNames, self.client.fsyncdir(handle)).await;
        self.client.releasedir(handle);
        result
    }

    /// syncfs(2).
    pub async fn sync_all(&self) -> Result<(), Fault> {
        self.finish(Op::SyncAll, self.client.syncfs()).await
    }

    /// The kernel forgets everything that is not in use.
    pub fn forget(&self, used: &[Ino]) {
        let mut lookups = self.lookups.borrow_mut();
        lookups.retain(|ino, count| {
            if used.contains(ino) {
                return true;
            }
            self.client.forget(*ino, *count);
            false
        });
    }
}
