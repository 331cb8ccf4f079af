//! A file system in memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use env::{Env, IoBuf};
use redbud_fuse::fs::*;
use types::{Attr, Fault, FileKind, Ino, LockOwner, Name, Timestamp};

use super::{Control, park};

pub struct MemoryFs {
    env: Env,
    ttl: Duration,
    control: Arc<Control>,
    state: RefCell<State>,
}

struct State {
    nodes: BTreeMap<u64, Node>,
    handles: BTreeMap<u64, Ino>,
    next: u64,
}

struct Node {
    attr: Attr,
    parent: Ino,
    names: BTreeMap<Name, Ino>,
    data: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    locks: Vec<LockRequest>,
    lookups: u64,
}

type Res<T> = Result<T, Fault>;

impl State {
    fn node(&mut self, ino: Ino) -> Res<&mut Node> {
        self.nodes.get_mut(&ino.0).ok_or(Fault::Stale)
    }

    fn opened(&mut self, handle: Handle) -> Res<&mut Node> {
        let ino = *self.handles.get(&handle.0).ok_or(Fault::Invalid)?;
        self.node(ino)
    }

    fn find(&mut self, place: Place<'_>) -> Res<Ino> {
        self.node(place.dir)?.names.get(place.name).copied().ok_or(Fault::NotFound)
    }

    fn add(&mut self, env: &Env, caller: &Caller, parent: Ino, node: NodeSpec) -> Ino {
        let ino = Ino(self.next);
        self.next += 1;
        let now = env.wall();
        let nlink = if node.kind == FileKind::Directory { 2 } else { 1 };
        let attr = Attr {
            ino,
            kind: node.kind,
            mode: node.mode & !node.umask,
            nlink,
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
        let node = Node {
            attr,
            parent,
            names: BTreeMap::new(),
            data: Vec::new(),
            xattrs: BTreeMap::new(),
            locks: Vec::new(),
            lookups: 0,
        };
        self.nodes.insert(ino.0, node);
        ino
    }

    fn handle(&mut self, ino: Ino) -> Handle {
        let handle = self.next;
        self.next += 1;
        self.handles.insert(handle, ino);
        Handle(handle)
    }

    fn drop_name(&mut self, ino: Ino) {
        if let Ok(node) = self.node(ino) {
            node.attr.nlink = node.attr.nlink.saturating_sub(1);
        }
    }
}

impl Node {
    fn resize(&mut self, size: usize) {
        self.data.resize(size, 0);
        self.attr.size = size as u64;
        self.attr.blocks = size.div_ceil(4096) as u64;
    }
}

impl MemoryFs {
    pub fn new(env: &Env, ttl: Duration, control: Arc<Control>) -> MemoryFs {
        let mut state = State { nodes: BTreeMap::new(), handles: BTreeMap::new(), next: 1 };
        let root = Caller::default();
        let spec = NodeSpec { kind: FileKind::Directory, mode: 0o755, umask: 0, rdev: 0 };
        assert_eq!(state.add(env, &root, Ino::ROOT, spec), Ino::ROOT);
        MemoryFs { env: env.clone(), ttl, control, state: RefCell::new(state) }
    }

    fn entry(&self, ino: Ino) -> Res<Entry> {
        let mut state = self.state.borrow_mut();
        let node = state.node(ino)?;
        if node.lookups == 0 {
            self.control.referenced.fetch_add(1, Ordering::SeqCst);
        }
        node.lookups += 1;
        Ok(Entry { attr: node.attr, attr_ttl: self.ttl, entry_ttl: self.ttl, generation: 0 })
    }

    fn create_inode(&self, caller: &Caller, place: Place<'_>, node: NodeSpec) -> Res<Ino> {
        let mut state = self.state.borrow_mut();
        if state.node(place.dir)?.names.contains_key(place.name) {
            return Err(Fault::Exists);
        }
        let ino = state.add(&self.env, caller, place.dir, node);
        state.node(place.dir)?.names.insert(place.name.clone(), ino);
        Ok(ino)
    }

    fn opened(&self, ino: Ino, flags: OpenFlags) -> Opened {
        self.control.open.fetch_add(1, Ordering::SeqCst);
        let handle = self.state.borrow_mut().handle(ino);
        Opened { handle, keep_cache: true, direct_io: bypasses_pages(flags) }
    }

    fn try_lock(&self, handle: Handle, lock: LockRequest) -> Res<()> {
        let mut state = self.state.borrow_mut();
        let node = state.opened(handle)?;
        if lock.exclusive.is_some() && conflict(node, &lock).is_some() {
            return Err(Fault::WouldBlock);
        }
        let same = |held: &LockRequest| held.flock == lock.flock && held.owner == lock.owner;
        let mut kept = Vec::new();
        for held in node.locks.drain(..) {
            if !same(&held) || held.end < lock.start || lock.end < held.start {
                kept.push(held);
                continue;
            }
            if held.start < lock.start {
                kept.push(LockRequest { end: lock.start - 1, ..held });
            }
            if held.end > lock.end {
                kept.push(LockRequest { start: lock.end + 1, ..held });
            }
        }
        if lock.exclusive.is_some() {
            kept.push(lock);
        }
        node.locks = kept;
        Ok(())
    }

    fn unlock_all(&self, handle: Handle, owner: LockOwner, flock: bool) {
        if let Ok(node) = self.state.borrow_mut().opened(handle) {
            node.locks.retain(|held| held.owner != owner || held.flock != flock);
        }
    }
}

fn conflict(node: &Node, lock: &LockRequest) -> Option<LockRequest> {
    let meets = |held: &&LockRequest| {
        held.flock == lock.flock
            && held.owner != lock.owner
            && held.start <= lock.end
            && lock.start <= held.end
            && (held.exclusive == Some(true) || lock.exclusive == Some(true))
    };
    node.locks.iter().find(meets).copied()
}

fn spec(mode: u16, umask: u16) -> NodeSpec {
    NodeSpec { kind: FileKind::Regular, mode, umask, rdev: 0 }
}

impl Filesystem for MemoryFs {
    async fn lookup(&self, _: &Caller, place: Place<'_>) -> Res<LookupResult> {
        park(&self.env, &self.control, |c| &c.park_lookups).await;
        let found = self.state.borrow_mut().find(place);
        Ok(match found {
            Ok(ino) => Ok(self.entry(ino)?),
            Err(_) => Err(self.ttl),
        })
    }
    fn forget(&self, ino: Ino, count: u64) {
        let mut state = self.state.borrow_mut();
        let Ok(node) = state.node(ino) else { return };
        node.lookups = node.lookups.checked_sub(count).expect("at most the references given");
        if node.lookups == 0 && ino != Ino::ROOT {
            self.control.referenced.fetch_sub(1, Ordering::SeqCst);
            if node.attr.nlink == 0 {
                state.nodes.remove(&ino.0);
            }
        }
    }
    async fn getattr(&self, ino: Ino) -> Res<(Attr, Duration)> {
        Ok((self.state.borrow_mut().node(ino)?.attr, self.ttl))
    }
    async fn setattr(&self, _: &Caller, ino: Ino, set: SetAttrRequest) -> Res<(Attr, Duration)> {
        park(&self.env, &self.control, |c| &c.park_setattrs).await;
        let mut state = self.state.borrow_mut();
        let node = state.node(ino)?;
        if let Some(size) = set.size {
            if size > 1 << 30 {
                return Err(Fault::FileTooBig);
            }
            node.resize(size as usize);
        }
        let time = |time: TimeSpec| match time {
            TimeSpec::Now => self.env.wall(),
            TimeSpec::At(time) => time,
        };
        let attr = &mut node.attr;
        attr.mode = set.mode.unwrap_or(attr.mode);
        if set.kill_suidgid {
            attr.mode &= !0o6000;
        }
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        attr.ctime = self.env.wall();
        Ok((*attr, self.ttl))
    }
    async fn readlink(&self, ino: Ino) -> Res<Vec<u8>> {
        Ok(self.state.borrow_mut().node(ino)?.data.clone())
    }
    async fn mknod(&self, caller: &Caller, place: Place<'_>, node: NodeSpec) -> Res<Entry> {
        self.entry(self.create_inode(caller, place, node)?)
    }
    async fn symlink(&self, caller: &Caller, place: Place<'_>, target: &[u8]) -> Res<Entry> {
        let node = NodeSpec { kind: FileKind::Symlink, ..spec(0o777, 0) };
        let ino = self.create_inode(caller, place, node)?;
        {
            let mut state = self.state.borrow_mut();
            let node = state.node(ino)?;
            node.data = target.to_vec();
            node.attr.size = target.len() as u64;
        }
        self.entry(ino)
    }
    async fn link(&self, _: &Caller, ino: Ino, place: Place<'_>) -> Res<Entry> {
        {
            let mut state = self.state.borrow_mut();
            if state.find(place).is_ok() {
                return Err(Fault::Exists);
            }
            state.node(ino)?.attr.nlink += 1;
            state.node(place.dir)?.names.insert(place.name.clone(), ino);
        }
        self.entry(ino)
    }
    async fn unlink(&self, _: &Caller, place: Place<'_>) -> Res<()> {
        let mut state = self.state.borrow_mut();
        let ino = state.find(place)?;
        state.node(place.dir)?.names.remove(place.name);
        state.drop_name(ino);
        Ok(())
    }
    async fn rmdir(&self, _: &Caller, place: Place<'_>) -> Res<()> {
        let mut state = self.state.borrow_mut();
        let ino = state.find(place)?;
        if !state.node(ino)?.names.is_empty() {
            return Err(Fault::NotEmpty);
        }
        state.node(place.dir)?.names.remove(place.name);
        Ok(())
    }
    async fn rename(&self, _: &Caller, from: Place<'_>, to: Place<'_>, flags: u32) -> Res<()> {
        let mut state = self.state.borrow_mut();
        let moved = state.find(from)?;
        let there = state.find(to).ok();
        match (flags, there) {
            (1, Some(_)) => return Err(Fault::Exists),
            (2, None) => return Err(Fault::NotFound),
            (2, Some(other)) => {
                state.node(from.dir)?.names.insert(from.name.clone(), other);
            }
            (_, replaced) => {
                state.node(from.dir)?.names.remove(from.name);
                if let Some(replaced) = replaced {
                    state.drop_name(replaced);
                }
            }
        }
        state.node(to.dir)?.names.insert(to.name.clone(), moved);
        Ok(())
    }
    async fn open(&self, _: &Caller, ino: Ino, flags: OpenFlags) -> Res<Opened> {
        self.state.borrow_mut().node(ino)?;
        Ok(self.opened(ino, flags))
    }
    async fn create(
        &self,
        caller: &Caller,
        place: Place<'_>,
        mode: u16,
        umask: u16,
        flags: OpenFlags,
    ) -> Res<(Entry, Opened)> {
        park(&self.env, &self.control, |c| &c.park_creates).await;
        let ino = self.create_inode(caller, place, spec(mode, umask)).map_err(|fault| {
            if fault == Fault::Exists && !flags.has(OpenFlags::EXCLUSIVE) {
                Fault::Stale
            } else {
                fault
            }
        })?;
        self.control.created.fetch_add(1, Ordering::SeqCst);
        Ok((self.entry(ino)?, self.opened(ino, flags)))
    }
    async fn tmpfile(
        &self,
        caller: &Caller,
        dir: Ino,
        mode: u16,
        umask: u16,
        flags: OpenFlags,
    ) -> Res<(Entry, Opened)> {
        let ino = {
            let mut state = self.state.borrow_mut();
            let ino = state.add(&self.env, caller, dir, spec(mode, umask));
            state.node(ino)?.attr.nlink = 0;
            ino
        };
        Ok((self.entry(ino)?, self.opened(ino, flags)))
    }
    async fn read(&self, handle: Handle, offset: u64, len: u32, _: bool) -> Res<ReadData> {
        park(&self.env, &self.control, |c| &c.park_reads).await;
        let mut state = self.state.borrow_mut();
        let data = &state.opened(handle)?.data;
        let start = (offset as usize).min(data.len());
        let bytes = &data[start..(start + len as usize).min(data.len())];
        // Two pieces, so that both kinds of answer are exercised.
        let half = bytes.len() / 2;
        let part = |bytes: &[u8]| ReadPart {
            buffer: Rc::new(IoBuf::copy_of(bytes)),
            start: 0,
            end: bytes.len(),
        };
        let parts = if bytes.len() > 10_000 {
            vec![part(&bytes[..half]), part(&bytes[half..])]
        } else {
            vec![part(bytes)]
        };
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
        assert_eq!(data.buffer.as_ptr() as usize % 4096, 0, "data of a write is page-aligned");
        let mut state = self.state.borrow_mut();
        let node = state.opened(handle)?;
        let start = if flags.append { node.data.len() } else { offset as usize };
        let end = start + data.len;
        if node.data.len() < end {
            node.resize(end);
        }
        node.data[start..end].copy_from_slice(&data.buffer[..data.len]);
        if flags.kill_suidgid {
            node.attr.mode &= !0o6000;
        }
        node.attr.mtime = self.env.wall();
        Ok(data.len as u32)
    }
    async fn flush(&self, handle: Handle, owner: LockOwner) -> Res<()> {
        self.unlock_all(handle, owner, false);
        Ok(())
    }
    async fn release(&self, handle: Handle, flock_owner: Option<LockOwner>) {
        if let Some(owner) = flock_owner {
            self.unlock_all(handle, owner, true);
        }
        let open = &self.control.open;
        let _ = open.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |open| open.checked_sub(1));
        self.state.borrow_mut().handles.remove(&handle.0);
    }
    async fn fsync(&self, handle: Handle, _: bool) -> Res<()> {
        self.state.borrow_mut().opened(handle).map(|_| ())
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
        let node = state.opened(handle)?;
        let (start, end) = (offset as usize, (offset + len) as usize);
        if mode & libc::FALLOC_FL_KEEP_SIZE as u32 == 0 && node.data.len() < end {
            node.resize(end);
        }
        if mode & libc::FALLOC_FL_PUNCH_HOLE as u32 != 0 {
            let end = end.min(node.data.len());
            node.data[start.min(end)..end].fill(0);
        }
        Ok(())
    }
    async fn lseek(&self, handle: Handle, offset: u64, whence: Whence) -> Res<u64> {
        let mut state = self.state.borrow_mut();
        let data = &state.opened(handle)?.data;
        let start = offset as usize;
        if start >= data.len() {
            return Err(Fault::NoData);
        }
        let zero = whence == Whence::Hole;
        let found = data[start..].iter().position(|&b| (b == 0) == zero);
        match found {
            Some(at) => Ok(offset + at as u64),
            None if zero => Ok(data.len() as u64),
            None => Err(Fault::NoData),
        }
    }
    async fn copy_range(&self, _: &Caller, range: CopyRange) -> Res<u64> {
        let mut state = self.state.borrow_mut();
        let from = &state.opened(range.from)?.data;
        let start = (range.from_offset as usize).min(from.len());
        let end = (start + range.len as usize).min(from.len());
        let bytes = from[start..end].to_vec();
        let to = state.opened(range.to)?;
        let at = range.to_offset as usize;
        if to.data.len() < at + bytes.len() {
            to.resize(at + bytes.len());
        }
        to.data[at..at + bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len() as u64)
    }
    async fn opendir(&self, ino: Ino) -> Res<Handle> {
        let mut state = self.state.borrow_mut();
        state.node(ino)?;
        Ok(state.handle(ino))
    }
    async fn readdir(
        &self,
        handle: Handle,
        cookie: u64,
        bytes: usize,
        plus: bool,
    ) -> Res<Vec<Listed>> {
        let all = {
            let mut state = self.state.borrow_mut();
            let node = state.opened(handle)?;
            let dots = [(b".".to_vec(), node.attr.ino), (b"..".to_vec(), node.parent)];
            let names = node.names.iter().map(|(name, &ino)| (name.as_bytes().to_vec(), ino));
            dots.into_iter().chain(names).collect::<Vec<_>>()
        };
        let mut out = Vec::new();
        // More than fits, so that the adapter has to return some references.
        for (index, (name, ino)) in
            all.into_iter().enumerate().skip(cookie as usize).take(bytes / 64)
        {
            let entry = if plus && index >= 2 { Some(self.entry(ino)?) } else { None };
            let kind = self.state.borrow_mut().node(ino)?.attr.kind;
            out.push(Listed { name, ino, kind, cookie: index as u64 + 1, entry });
        }
        Ok(out)
    }
    fn releasedir(&self, handle: Handle) {
        self.state.borrow_mut().handles.remove(&handle.0);
    }
    async fn fsyncdir(&self, _: Handle) -> Res<()> {
        Ok(())
    }
    async fn syncfs(&self) -> Res<()> {
        Ok(())
    }
    async fn getxattr(&self, ino: Ino, name: &[u8]) -> Res<Vec<u8>> {
        self.state.borrow_mut().node(ino)?.xattrs.get(name).cloned().ok_or(Fault::NoAttribute)
    }
    async fn setxattr(&self, _: &Caller, ino: Ino, set: SetXattr<'_>) -> Res<()> {
        let mut state = self.state.borrow_mut();
        let xattrs = &mut state.node(ino)?.xattrs;
        match (set.flags, xattrs.contains_key(set.name)) {
            (1, true) => return Err(Fault::Exists),
            (2, false) => return Err(Fault::NoAttribute),
            _ => xattrs.insert(set.name.to_vec(), set.value.to_vec()),
        };
        Ok(())
    }
    async fn listxattr(&self, ino: Ino) -> Res<Vec<u8>> {
        let mut state = self.state.borrow_mut();
        Ok(state
            .node(ino)?
            .xattrs
            .keys()
            .flat_map(|name| [name.as_slice(), b"\0"].concat())
            .collect())
    }
    async fn removexattr(&self, _: &Caller, ino: Ino, name: &[u8]) -> Res<()> {
        let removed = self.state.borrow_mut().node(ino)?.xattrs.remove(name);
        removed.map(|_| ()).ok_or(Fault::NoAttribute)
    }
    async fn statfs(&self) -> Res<Statfs> {
        Ok(Statfs { blocks: 1000, blocks_free: 400, inodes: 77, inodes_free: 33 })
    }
    async fn getlk(&self, handle: Handle, lock: LockRequest) -> Res<Option<LockRequest>> {
        Ok(conflict(self.state.borrow_mut().opened(handle)?, &lock))
    }
    async fn setlk(&self, handle: Handle, lock: LockRequest, wait: bool) -> Res<()> {
        let first = self.try_lock(handle, lock);
        if !wait || first != Err(Fault::WouldBlock) {
            return first;
        }
        let _waiting = Waiting::new(&self.control);
        loop {
            self.env.sleep(Duration::from_millis(1)).await;
            let result = self.try_lock(handle, lock);
            if result != Err(Fault::WouldBlock) {
                return result;
            }
        }
    }
}

/// Counts a wait for a lock, even one that is dropped.
struct Waiting(Arc<Control>);

impl Waiting {
    fn new(control: &Arc<Control>) -> Waiting {
        control.lock_waits.fetch_add(1, Ordering::SeqCst);
        Waiting(Arc::clone(control))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.lock_waits.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A time long ago, for tests of utimens.
pub const LONG_AGO: Timestamp = Timestamp { seconds: -1_000_000, nanos: 123_456_789 };
