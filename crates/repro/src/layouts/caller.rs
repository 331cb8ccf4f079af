//! One process of one client, as the metadata server sees it.
//!
//! Invariants:
//! - an operation that a client would send as one request is one transaction (utime: lookup,
//!   attributes, change); an unlinked inode that is not small is freed by further ones, as the
//!   server does;
//! - between an answer and the next request lies a message, except where the caller says otherwise;
//! - where the processor has a price, a request takes the server's for itself and its answer, and
//!   for the change that it makes; what a listing reads beyond that is not priced.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use env::Env;
use env::sim::{Price, Processors};
use mfs::{Cost, DirEntry, Mfs, NewInode, Stop, StoreError, Txn};
use traditional::{Layout, Listing};
use types::{
    Attr, ClientId, Duration, Fault, FileBlock, FileKind, Ino, Name, PagBlock, PagId, Segment,
    SegmentState, Timestamp, Transno,
};

use super::Settings;

/// Entries of one listing.
const LISTED: usize = 1024;
/// An ordinary change, and one that frees.
const CHANGE: Cost = Cost::SMALL;
const FREE: Cost = Cost::DELETE;
/// Blocks of a piece of data space that a client has at hand: 16 MiB (000 §IV.A).
const CHUNK: u64 = 4096;
/// After so many deletions what was freed is looked through.
const RELEASE_EVERY: u32 = 256;

/// What a client has left of its data space.
#[derive(Clone, Copy, Default, Debug)]
struct Pool {
    pag: PagId,
    addr: u64,
    left: u64,
}

/// See the module.
#[derive(Clone)]
pub struct Caller {
    /// Time and chance.
    pub env: Env,
    /// Which process.
    pub number: u64,
    pub(super) mfs: Mfs,
    pub(super) layout: Rc<dyn Layout>,
    pub(super) settings: Settings,
    /// The server's, which all processes share.
    pub(super) processor: Rc<RefCell<Processors>>,
    pub(super) state: Rc<State>,
}

/// What the process remembers.
#[derive(Default)]
pub(super) struct State {
    pool: Cell<Pool>,
    deleted: Cell<u32>,
}

pub(crate) fn name(text: &str) -> Result<Name, Stop> {
    Name::new(text.as_bytes()).map_err(|_| Stop::Fault(Fault::Invalid))
}

pub(crate) fn new_inode(kind: FileKind, time: Timestamp) -> NewInode<'static> {
    NewInode {
        kind,
        mode: 0o644,
        uid: 1000,
        gid: 1000,
        rdev: 0,
        size: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        client: ClientId::NONE,
        symlink: None,
    }
}

/// The user that process `number` works for.
pub(super) fn user(number: u64) -> u32 {
    1000 + number as u32
}

impl Caller {
    fn new_inode(&self, kind: FileKind) -> NewInode<'static> {
        NewInode {
            uid: user(self.number),
            client: self.client(),
            ..new_inode(kind, self.env.wall())
        }
    }

    /// The way of a request to the server and of its answer; others get their turn meanwhile. It
    /// varies, or the processes would fall into step with each other and with the disk's
    /// revolutions.
    pub async fn message(&self) {
        let nanos = self.settings.message.as_nanos() as u64;
        match nanos {
            0 => self.env.yield_now().await,
            _ => {
                let varied = nanos / 2 + self.env.random_u64() % nanos;
                self.env.sleep(Duration::from_nanos(varied)).await;
            }
        }
        self.computed(|price| price.request(false)).await;
    }

    /// The server's processor has something to do, if it has a price; others wait for it meanwhile.
    async fn computed(&self, cost: impl FnOnce(&Price) -> Duration) {
        let Some(price) = &self.settings.price else { return };
        let done = self.processor.borrow_mut().take(self.env.now(), cost(price));
        self.env.sleep(done.since(self.env.now())).await;
    }

    /// Makes everything so far durable, whatever the settings say.
    ///
    /// # Errors
    /// The store's.
    pub async fn sync(&self) -> Result<(), StoreError> {
        self.mfs.sync().await
    }

    /// The same process in a hurry: it waits neither for messages nor until changes are durable.
    pub fn hurried(&self) -> Caller {
        let settings =
            Settings { durable: false, message: Duration::ZERO, price: None, ..self.settings };
        Caller { settings, ..self.clone() }
    }

    async fn look<T>(
        &self,
        body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<T, StoreError> {
        Ok(self.mfs.run(Cost::READ, body).await?.0)
    }

    /// Pays for a change, and waits until it is durable, if that is asked for.
    async fn settle(&self, number: Transno) -> Result<(), StoreError> {
        self.computed(|price| price.change).await;
        if self.settings.durable {
            self.mfs.wait_durable(number).await?;
        }
        Ok(())
    }

    /// The inode of a name that must be there.
    ///
    /// # Errors
    /// `NotFound`; what the store says, here and below.
    pub async fn lookup(&self, dir: Ino, text: &str) -> Result<Ino, StoreError> {
        self.look(|txn| self.existing(txn, dir, text)).await
    }

    fn existing(&self, txn: &mut Txn<'_>, dir: Ino, text: &str) -> Result<Ino, Stop> {
        let found = self.layout.lookup(txn, dir, &name(text)?)?;
        found.ok_or(Stop::Fault(Fault::NotFound))
    }

    /// Opens a file as a reader does: the name, the attributes and where the data lie.
    ///
    /// # Errors
    /// As [`Caller::lookup`].
    pub async fn read(&self, dir: Ino, text: &str) -> Result<Attr, StoreError> {
        let found = self.look(|txn| {
            let ino = self.existing(txn, dir, text)?;
            self.layout.segments(txn, ino)?;
            self.layout.attr(txn, ino)?.ok_or(Stop::Fault(Fault::Stale))
        });
        found.await
    }

    /// Makes an empty file.
    ///
    /// # Errors
    /// `Exists`.
    pub async fn create(&self, dir: Ino, text: &str) -> Result<(), StoreError> {
        let new = self.new_inode(FileKind::Regular);
        let run = self.mfs.run(CHANGE, |txn| self.layout.create(txn, dir, &name(text)?, &new));
        self.settle(run.await?.1).await
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `Exists`.
    pub async fn mkdir(&self, dir: Ino, text: &str) -> Result<Ino, StoreError> {
        let new = self.new_inode(FileKind::Directory);
        let run = self.mfs.run(CHANGE, |txn| self.layout.mkdir(txn, dir, &name(text)?, &new));
        let (ino, number) = run.await?;
        self.settle(number).await?;
        Ok(ino)
    }

    /// A directory, made if it is not there.
    ///
    /// # Errors
    /// What the store says.
    pub async fn ensure_dir(&self, dir: Ino, text: &str) -> Result<Ino, StoreError> {
        let found = self.look(|txn| self.layout.lookup(txn, dir, &name(text)?)).await?;
        match found {
            Some(ino) => Ok(ino),
            None => self.mkdir(dir, text).await,
        }
    }

    /// What a client commits after it wrote `bytes` behind a file's end.
    ///
    /// # Errors
    /// `NoSpace`.
    pub async fn append(&self, dir: Ino, text: &str, bytes: u64) -> Result<(), StoreError> {
        let attr = self.read(dir, text).await?;
        let (from, to) = (attr.size, attr.size + bytes);
        let block = types::limits::BLOCK_U64;
        let (mut first, end) = (from.div_ceil(block), to.div_ceil(block));
        let now = self.env.wall();
        let mut segments = Vec::new();
        while first < end {
            let (pag, addr, len) = self.take(end - first).await?;
            let (file, addr) = (FileBlock(first), PagBlock(addr));
            segments.push(Segment { file, len, pag, addr, state: SegmentState::Written });
            first += len;
        }
        let client = self.client();
        let run = self.mfs.run(CHANGE, |txn| {
            for &segment in &segments {
                self.layout.map(txn, attr.ino, client, segment)?;
            }
            let attr = self.layout.attr(txn, attr.ino)?.ok_or(Fault::Stale)?;
            let version = attr.version + 1;
            let changed = Attr { size: to, mtime: now, ctime: now, version, ..attr };
            self.layout.set_attr(txn, &changed)
        });
        self.settle(run.await?.1).await
    }

    fn client(&self) -> ClientId {
        ClientId(self.number + 1)
    }

    /// At most `want` blocks of the client's data space.
    async fn take(&self, want: u64) -> Result<(PagId, u64, u64), StoreError> {
        let mut pool = self.state.pool.get();
        if pool.left == 0 {
            let run = self.mfs.run(CHANGE, |txn| txn.space().grant(self.client(), None, CHUNK));
            let pieces = run.await?.0;
            let (pag, PagBlock(addr), left) = pieces[0];
            pool = Pool { pag, addr, left };
            for &(pag, addr, len) in &pieces[1..] {
                let run = self
                    .mfs
                    .run(CHANGE, |txn| txn.space().pool_return(self.client(), pag, addr, len));
                run.await?;
            }
        }
        let len = want.min(pool.left);
        self.state.pool.set(Pool { addr: pool.addr + len, left: pool.left - len, ..pool });
        Ok((pool.pag, pool.addr, len))
    }

    /// Sets the times of a file.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn utime(&self, dir: Ino, text: &str) -> Result<(), StoreError> {
        let now = self.env.wall();
        let run = self.mfs.run(CHANGE, |txn| {
            let ino = self.existing(txn, dir, text)?;
            let attr = self.layout.attr(txn, ino)?.ok_or(Fault::Stale)?;
            let version = attr.version + 1;
            self.layout.set_attr(txn, &Attr { atime: now, mtime: now, ctime: now, version, ..attr })
        });
        self.settle(run.await?.1).await
    }

    /// Deletes a file.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn delete(&self, dir: Ino, text: &str) -> Result<(), StoreError> {
        let now = self.env.wall();
        let run = self.mfs.run(FREE, |txn| self.layout.unlink(txn, dir, &name(text)?, now));
        let (ino, number) = run.await?;
        while !self.mfs.run(FREE, |txn| self.layout.reclaim(txn, ino)).await?.0 {}
        let deleted = self.state.deleted.get() + 1;
        self.state.deleted.set(deleted);
        if deleted.is_multiple_of(RELEASE_EVERY) {
            let most = RELEASE_EVERY as usize;
            self.mfs.run(Cost::STEP, |txn| txn.space().release_freed(most)).await?;
        }
        self.settle(number).await
    }

    /// A part of a listing: what follows the cookie `after`.
    ///
    /// # Errors
    /// What the store says.
    pub async fn list_part(
        &self,
        dir: Ino,
        after: u64,
        attrs: bool,
    ) -> Result<Vec<DirEntry>, StoreError> {
        let listing = Listing { after, max: LISTED, attrs };
        self.look(|txn| self.layout.readdir(txn, dir, listing)).await
    }

    /// Lists a directory; gives the number of its entries.
    ///
    /// # Errors
    /// What the store says.
    pub async fn list(&self, dir: Ino, attrs: bool) -> Result<u64, StoreError> {
        let (mut found, mut after) = (0, 0);
        loop {
            self.message().await;
            let entries = self.list_part(dir, after, attrs).await?;
            let Some(last) = entries.last() else { return Ok(found) };
            after = last.cookie;
            found += entries.len() as u64;
        }
    }
}
