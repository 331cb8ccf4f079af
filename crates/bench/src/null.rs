//! The null mount: what a file system costs that does nothing.
//!
//! It keeps names and attributes in memory, discards what is written, and answers
//! reads with the same bytes always. Everything the kernel sees is as on a real
//! mount by one client that holds all rights: the transport, INIT, lifetimes of
//! names and attributes, open flags. So it receives the same requests, and its
//! times are the ceiling of what a mount can reach.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use env::{Disk, DiskOptions, DriverKind, Env, IoBuf};
use fuse::fs::{
    Caller, CopyRange, Entry, Filesystem, Handle, Listed, LockRequest, LookupResult, NodeSpec,
    OpenFlags, Opened, Place, ReadData, ReadPart, SetAttrRequest, SetXattr, Statfs, TimeSpec,
    Whence, WriteData, WriteFlags, bypasses_pages,
};
use fuse::init::InitOptions;
use fuse::{MountError, MountOptions, Mounting, Notifier, mount_and_serve};
use types::limits::{BLOCK, FILE_SIZE_MAX, IO_MAX};
use types::{Attr, Duration, Fault, FileKind, HashMap, Ino, LockOwner, Name};

/// Lifetime of names and attributes in the kernel, as under a lease of the default length.
pub const TTL: Duration = Duration::from_secs(30);

/// First cookie of a name; those before are "." and "..".
const FIRST_COOKIE: u64 = 3;

/// A file system that keeps names and attributes only.
pub struct NullFs {
    env: Env,
    data: Rc<IoBuf>,
    disk: Option<Store>,
    state: RefCell<State>,
}

/// A disk that gets all that is written, one request behind the other.
struct Store {
    disk: Disk,
    next: Cell<u64>,
}

impl Store {
    /// Writes `data`, in whole blocks.
    async fn put(&self, mut data: WriteData) -> Res<()> {
        let len = data.len.next_multiple_of(BLOCK);
        if data.buffer.capacity() < len {
            return Err(Fault::Invalid);
        }
        data.buffer.set_len(len);
        let fits = self.next.get() + len as u64 <= self.disk.size();
        let at = if fits { self.next.get() } else { 0 };
        self.next.set(at + len as u64);
        self.disk.write(at, data.buffer).await.0.map_err(|_| Fault::Io)
    }
}

struct State {
    nodes: HashMap<Ino, Node>,
    handles: HashMap<Handle, Ino>,
    next_ino: u64,
    next_handle: u64,
}

struct Node {
    attr: Attr,
    lookups: u64,
    content: Content,
}

enum Content {
    None,
    Directory(Box<Directory>),
    Symlink(Box<[u8]>),
}

struct Directory {
    parent: Ino,
    by_name: HashMap<Name, (u64, Ino)>,
    by_cookie: BTreeMap<u64, Name>,
    next_cookie: u64,
}

impl Directory {
    fn new(parent: Ino) -> Box<Directory> {
        Box::new(Directory {
            parent,
            by_name: HashMap::default(),
            by_cookie: BTreeMap::new(),
            next_cookie: FIRST_COOKIE,
        })
    }

    fn insert(&mut self, name: &Name, ino: Ino) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.by_name.insert(name.clone(), (cookie, ino));
        self.by_cookie.insert(cookie, name.clone());
    }

    fn remove(&mut self, name: &Name) -> Option<Ino> {
        let (cookie, ino) = self.by_name.remove(name)?;
        self.by_cookie.remove(&cookie);
        Some(ino)
    }
}

type Res<T> = Result<T, Fault>;

impl State {
    fn node(&mut self, ino: Ino) -> Res<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(Fault::Stale)
    }

    fn dir(&mut self, ino: Ino) -> Res<&mut Directory> {
        match &mut self.node(ino)?.content {
            Content::Directory(dir) => Ok(dir),
            Content::None | Content::Symlink(_) => Err(Fault::NotDirectory),
        }
    }

    fn opened(&mut self, handle: Handle) -> Res<&mut Node> {
        let ino = *self.handles.get(&handle).ok_or(Fault::Invalid)?;
        self.node(ino)
    }

    fn find(&mut self, place: Place<'_>) -> Res<Ino> {
        let found = self.dir(place.dir)?.by_name.get(place.name);
        found.map(|&(_, ino)| ino).ok_or(Fault::NotFound)
    }

    fn entry(&mut self, ino: Ino) -> Res<Entry> {
        let node = self.node(ino)?;
        node.lookups += 1;
        Ok(Entry { attr: node.attr, attr_ttl: TTL, entry_ttl: TTL, generation: 0 })
    }

    fn open(&mut self, ino: Ino) -> Handle {
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        self.handles.insert(handle, ino);
        handle
    }

    fn unlinked(&mut self, ino: Ino) {
        if let Ok(node) = self.node(ino) {
            let gone = if node.attr.kind == FileKind::Directory { 2 } else { 1 };
            node.attr.nlink = node.attr.nlink.saturating_sub(gone);
            self.reap(ino);
        }
    }

    fn reap(&mut self, ino: Ino) {
        if self.nodes.get(&ino).is_some_and(|node| node.attr.nlink == 0 && node.lookups == 0) {
            self.nodes.remove(&ino);
        }
    }
}

impl NullFs {
    /// An empty file system, which writes what it is given to `disk`.
    pub fn new(env: &Env, disk: Option<Disk>) -> NullFs {
        let mut data = env.buffer(IO_MAX);
        // The kernel's page of zeros is slow to send from: these are pages of our own.
        data.fill(0x5a);
        let fs = NullFs {
            env: env.clone(),
            data: Rc::new(data),
            disk: disk.map(|disk| Store { disk, next: Cell::new(0) }),
            state: RefCell::new(State {
                nodes: HashMap::default(),
                handles: HashMap::default(),
                next_ino: Ino::ROOT.0,
                next_handle: 1,
            }),
        };
        let spec = NodeSpec { kind: FileKind::Directory, mode: 0o1777, umask: 0, rdev: 0 };
        let content = Content::Directory(Directory::new(Ino::ROOT));
        let root = fs.add(&Caller::default(), spec, content);
        assert_eq!(root, Ino::ROOT);
        fs
    }

    fn add(&self, caller: &Caller, node: NodeSpec, content: Content) -> Ino {
        let mut state = self.state.borrow_mut();
        let ino = Ino(state.next_ino);
        state.next_ino += 1;
        let now = self.env.wall();
        let attr = Attr {
            ino,
            kind: node.kind,
            mode: node.mode & !node.umask,
            nlink: if node.kind == FileKind::Directory { 2 } else { 1 },
            uid: caller.uid,
            gid: caller.gid,
            rdev: node.rdev,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            spread: false,
            version: 0,
        };
        state.nodes.insert(ino, Node { attr, lookups: 0, content });
        ino
    }

    fn make(
        &self,
        caller: &Caller,
        place: Place<'_>,
        node: NodeSpec,
        content: Content,
    ) -> Res<Entry> {
        if self.state.borrow_mut().dir(place.dir)?.by_name.contains_key(place.name) {
            return Err(Fault::Exists);
        }
        let ino = self.add(caller, node, content);
        let mut state = self.state.borrow_mut();
        state.dir(place.dir)?.insert(place.name, ino);
        state.entry(ino)
    }

    fn open_flags(handle: Handle, flags: OpenFlags) -> Opened {
        Opened { handle, keep_cache: true, direct_io: bypasses_pages(flags) }
    }
}

fn resize(attr: &mut Attr, size: u64) {
    attr.size = size;
    attr.blocks = size.div_ceil(4096);
}

impl Filesystem for NullFs {
    async fn lookup(&self, _: &Caller, place: Place<'_>) -> Res<LookupResult> {
        let mut state = self.state.borrow_mut();
        match state.find(place) {
            Ok(ino) => Ok(Ok(state.entry(ino)?)),
            Err(Fault::NotFound) => Ok(Err(TTL)),
            Err(fault) => Err(fault),
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        let mut state = self.state.borrow_mut();
        if let Ok(node) = state.node(ino) {
            node.lookups = node.lookups.saturating_sub(count);
            state.reap(ino);
        }
    }

    async fn getattr(&self, ino: Ino) -> Res<(Attr, Duration)> {
        Ok((self.state.borrow_mut().node(ino)?.attr, TTL))
    }

    async fn setattr(&self, _: &Caller, ino: Ino, set: SetAttrRequest) -> Res<(Attr, Duration)> {
        let now = self.env.wall();
        let time = |time: TimeSpec| match time {
            TimeSpec::Now => now,
            TimeSpec::At(time) => time,
        };
        let mut state = self.state.borrow_mut();
        let attr = &mut state.node(ino)?.attr;
        if let Some(size) = set.size {
            resize(attr, size);
            attr.mtime = now;
        }
        attr.mode = set.mode.unwrap_or(attr.mode);
        if set.kill_suidgid {
            attr.mode &= !0o6000;
        }
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        attr.ctime = now;
        Ok((*attr, TTL))
    }

    async fn readlink(&self, ino: Ino) -> Res<Vec<u8>> {
        match &self.state.borrow_mut().node(ino)?.content {
            Content::Symlink(target) => Ok(target.to_vec()),
            Content::None | Content::Directory(_) => Err(Fault::Invalid),
        }
    }

    async fn mknod(&self, caller: &Caller, place: Place<'_>, node: NodeSpec) -> Res<Entry> {
        let content = if node.kind == FileKind::Directory {
            Content::Directory(Directory::new(place.dir))
        } else {
            Content::None
        };
        let entry = self.make(caller, place, node, content)?;
        if node.kind == FileKind::Directory {
            self.state.borrow_mut().node(place.dir)?.attr.nlink += 1;
        }
        Ok(entry)
    }

    async fn symlink(&self, caller: &Caller, place: Place<'_>, target: &[u8]) -> Res<Entry> {
        let node = NodeSpec { kind: FileKind::Symlink, mode: 0o777, umask: 0, rdev: 0 };
        let mut entry = self.make(caller, place, node, Content::Symlink(target.into()))?;
        entry.attr.size = target.len() as u64;
        self.state.borrow_mut().node(entry.attr.ino)?.attr.size = entry.attr.size;
        Ok(entry)
    }

    async fn link(&self, _: &Caller, ino: Ino, place: Place<'_>) -> Res<Entry> {
        let mut state = self.state.borrow_mut();
        if state.find(place).is_ok() {
            return Err(Fault::Exists);
        }
        state.node(ino)?.attr.nlink += 1;
        state.dir(place.dir)?.insert(place.name, ino);
        state.entry(ino)
    }

    async fn unlink(&self, _: &Caller, place: Place<'_>) -> Res<()> {
        let mut state = self.state.borrow_mut();
        let ino = state.dir(place.dir)?.remove(place.name).ok_or(Fault::NotFound)?;
        state.unlinked(ino);
        Ok(())
    }

    async fn rmdir(&self, _: &Caller, place: Place<'_>) -> Res<()> {
        let mut state = self.state.borrow_mut();
        let ino = state.find(place)?;
        if !state.dir(ino)?.by_name.is_empty() {
            return Err(Fault::NotEmpty);
        }
        state.dir(place.dir)?.remove(place.name);
        state.node(place.dir)?.attr.nlink -= 1;
        state.unlinked(ino);
        Ok(())
    }

    async fn rename(&self, _: &Caller, from: Place<'_>, to: Place<'_>, flags: u32) -> Res<()> {
        let exchange = flags == libc::RENAME_EXCHANGE;
        let mut state = self.state.borrow_mut();
        let moved = state.find(from)?;
        let there = state.find(to).ok();
        if flags == libc::RENAME_NOREPLACE && there.is_some() {
            return Err(Fault::Exists);
        }
        if exchange && there.is_none() {
            return Err(Fault::NotFound);
        }
        if there == Some(moved) {
            return Ok(());
        }
        if let Some(other) = there
            && !exchange
            && state.dir(other).is_ok_and(|dir| !dir.by_name.is_empty())
        {
            return Err(Fault::NotEmpty);
        }
        state.dir(from.dir)?.remove(from.name);
        state.dir(to.dir)?.remove(to.name);
        state.dir(to.dir)?.insert(to.name, moved);
        state.settle(moved, from.dir, to.dir);
        if let Some(other) = there {
            if exchange {
                state.dir(from.dir)?.insert(from.name, other);
                state.settle(other, to.dir, from.dir);
            } else {
                if state.dir(other).is_ok() {
                    state.node(to.dir)?.attr.nlink -= 1;
                }
                state.unlinked(other);
            }
        }
        Ok(())
    }

    async fn open(&self, _: &Caller, ino: Ino, flags: OpenFlags) -> Res<Opened> {
        Ok(NullFs::open_flags(self.state.borrow_mut().open(ino), flags))
    }

    async fn create(
        &self,
        caller: &Caller,
        place: Place<'_>,
        mode: u16,
        umask: u16,
        flags: OpenFlags,
    ) -> Res<(Entry, Opened)> {
        let node = NodeSpec { kind: FileKind::Regular, mode, umask, rdev: 0 };
        let entry = self.make(caller, place, node, Content::None)?;
        let handle = self.state.borrow_mut().open(entry.attr.ino);
        Ok((entry, NullFs::open_flags(handle, flags)))
    }

    async fn tmpfile(
        &self,
        caller: &Caller,
        _: Ino,
        mode: u16,
        umask: u16,
        flags: OpenFlags,
    ) -> Res<(Entry, Opened)> {
        let node = NodeSpec { kind: FileKind::Regular, mode, umask, rdev: 0 };
        let ino = self.add(caller, node, Content::None);
        let mut state = self.state.borrow_mut();
        state.node(ino)?.attr.nlink = 0;
        let entry = state.entry(ino)?;
        Ok((entry, NullFs::open_flags(state.open(ino), flags)))
    }

    async fn read(&self, handle: Handle, offset: u64, len: u32, _: bool) -> Res<ReadData> {
        let size = self.state.borrow_mut().opened(handle)?.attr.size;
        let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let end = left.min(len as usize).min(self.data.len());
        let parts = vec![ReadPart { buffer: Rc::clone(&self.data), start: 0, end }];
        Ok(ReadData { parts, ..ReadData::default() })
    }

    async fn write(
        &self,
        _: &Caller,
        handle: Handle,
        offset: u64,
        data: WriteData,
        flags: WriteFlags,
    ) -> Res<u32> {
        let len = data.len;
        if let Some(store) = &self.disk {
            store.put(data).await?;
        }
        let now = self.env.wall();
        let mut state = self.state.borrow_mut();
        let attr = &mut state.opened(handle)?.attr;
        let start = if flags.append { attr.size } else { offset };
        let end = start + len as u64;
        if end > FILE_SIZE_MAX {
            return Err(Fault::FileTooBig);
        }
        if attr.size < end {
            resize(attr, end);
        }
        if flags.kill_suidgid {
            attr.mode &= !0o6000;
        }
        attr.mtime = now;
        attr.ctime = now;
        Ok(len as u32)
    }

    async fn flush(&self, _: Handle, _: LockOwner) -> Res<()> {
        Ok(())
    }

    async fn release(&self, handle: Handle, _: Option<LockOwner>) {
        self.state.borrow_mut().handles.remove(&handle);
    }

    async fn fsync(&self, _: Handle, _: bool) -> Res<()> {
        Ok(())
    }

    async fn fallocate(
        &self,
        _: &Caller,
        handle: Handle,
        mode: u32,
        offset: u64,
        len: u64,
    ) -> Res<()> {
        let mut state = self.state.borrow_mut();
        let attr = &mut state.opened(handle)?.attr;
        if mode & libc::FALLOC_FL_KEEP_SIZE as u32 == 0 && attr.size < offset + len {
            resize(attr, offset + len);
        }
        Ok(())
    }

    async fn lseek(&self, handle: Handle, offset: u64, whence: Whence) -> Res<u64> {
        let size = self.state.borrow_mut().opened(handle)?.attr.size;
        match whence {
            _ if offset >= size => Err(Fault::NoData),
            Whence::Data => Ok(offset),
            Whence::Hole => Ok(size),
        }
    }

    async fn copy_range(&self, _: &Caller, range: CopyRange) -> Res<u64> {
        let mut state = self.state.borrow_mut();
        let left = state.opened(range.from)?.attr.size.saturating_sub(range.from_offset);
        let len = left.min(range.len);
        let attr = &mut state.opened(range.to)?.attr;
        if attr.size < range.to_offset + len {
            resize(attr, range.to_offset + len);
        }
        Ok(len)
    }

    async fn opendir(&self, ino: Ino) -> Res<Handle> {
        let mut state = self.state.borrow_mut();
        state.dir(ino)?;
        Ok(state.open(ino))
    }

    async fn readdir(
        &self,
        handle: Handle,
        cookie: u64,
        bytes: usize,
        plus: bool,
    ) -> Res<Vec<Listed>> {
        let mut state = self.state.borrow_mut();
        let ino = *state.handles.get(&handle).ok_or(Fault::Invalid)?;
        let dir = state.dir(ino)?;
        let mut found = Vec::new();
        let mut room = bytes;
        for (index, (name, ino)) in [(&b"."[..], ino), (b"..", dir.parent)].into_iter().enumerate()
        {
            let next = index as u64 + 1;
            if next > cookie {
                found.push((name.to_vec(), ino, next));
            }
        }
        for (&cookie, name) in dir.by_cookie.range(cookie.max(FIRST_COOKIE - 1) + 1..) {
            let size = if plus { 152 } else { 24 } + name.as_bytes().len();
            if room < size {
                break;
            }
            room -= size;
            found.push((name.as_bytes().to_vec(), dir.by_name[name].1, cookie));
        }
        let mut out = Vec::with_capacity(found.len());
        for (name, ino, cookie) in found {
            let entry = if plus && cookie >= FIRST_COOKIE { Some(state.entry(ino)?) } else { None };
            let kind = state.node(ino)?.attr.kind;
            out.push(Listed { name, ino, kind, cookie, entry });
        }
        Ok(out)
    }

    fn releasedir(&self, handle: Handle) {
        self.state.borrow_mut().handles.remove(&handle);
    }

    async fn fsyncdir(&self, _: Handle) -> Res<()> {
        Ok(())
    }

    async fn syncfs(&self) -> Res<()> {
        Ok(())
    }

    async fn getxattr(&self, _: Ino, _: &[u8]) -> Res<Vec<u8>> {
        Err(Fault::NoAttribute)
    }

    async fn setxattr(&self, _: &Caller, _: Ino, _: SetXattr<'_>) -> Res<()> {
        Err(Fault::NotSupported)
    }

    async fn listxattr(&self, _: Ino) -> Res<Vec<u8>> {
        Ok(Vec::new())
    }

    async fn removexattr(&self, _: &Caller, _: Ino, _: &[u8]) -> Res<()> {
        Err(Fault::NoAttribute)
    }

    async fn statfs(&self) -> Res<Statfs> {
        let inodes = self.state.borrow().nodes.len() as u64;
        Ok(Statfs {
            blocks: 1 << 30,
            blocks_free: 1 << 30,
            inodes: inodes + (1 << 30),
            inodes_free: 1 << 30,
        })
    }

    async fn getlk(&self, _: Handle, _: LockRequest) -> Res<Option<LockRequest>> {
        Ok(None)
    }

    async fn setlk(&self, _: Handle, _: LockRequest, _: bool) -> Res<()> {
        Ok(())
    }
}

impl State {
    /// A directory that moved has a new parent, and both parents a new count of links.
    fn settle(&mut self, ino: Ino, from: Ino, to: Ino) {
        let Ok(dir) = self.dir(ino) else {
            return;
        };
        dir.parent = to;
        for (parent, more) in [(from, false), (to, true)] {
            if let Ok(node) = self.node(parent) {
                node.attr.nlink = if more { node.attr.nlink + 1 } else { node.attr.nlink - 1 };
            }
        }
    }
}

/// Mounts a null file system on `target` with what `init` asks of the kernel. It writes what it is
/// given to the block device or file `disk`, past the page cache. Calls `ready` when the mount can
/// be used, and serves it until it is unmounted or a signal ends it.
///
/// # Errors
/// Why it could not be mounted or served, for people.
pub fn null_mount(
    driver: DriverKind,
    target: &Path,
    disk: Option<&Path>,
    init: InitOptions,
    ready: impl FnOnce() + 'static,
) -> Result<(), MountError> {
    let target = target.to_owned();
    let disk = disk.map(|disk| disk.display().to_string());
    env::run_group(driver, fuse::executors(&init), |env| async move {
        let what = Mounting {
            target,
            options: MountOptions::new("null"),
            init,
            notifier: Notifier::new(),
            requests: fuse::Requests::default(),
            log: crate::tell,
        };
        let disk = match &disk {
            Some(path) => {
                let options = DiskOptions { write: true, ..DiskOptions::default() };
                Some(env.open_disk(path, options).await.map_err(MountError::Serve)?)
            }
            None => None,
        };
        let fs = NullFs::new(&env, disk);
        mount_and_serve(&env, what, fs, ready).await
    })
    .map_err(MountError::Serve)?
}
