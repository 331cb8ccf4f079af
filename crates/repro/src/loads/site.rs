//! Where a load runs: the system calls that its processes make, on a client in virtual time.

use std::cell::Cell;
use std::rc::Rc;

use client::{Handle, OpenFlags};
use env::Env;
use types::limits::IO_MAX;
use types::{Duration, Ino, Instant};

use super::Reads;
use crate::cluster::{Mount, refused};
use bench::{Res, failed};

/// Bytes that a process copies in a microsecond: 1 GB/s, as in F7.
const COPIED: u64 = 1000;
/// What a system call takes besides.
const CALL: Duration = Duration::from_micros(5);

/// What a call that copies so many bytes takes of its client's processor.
pub fn call_cost(bytes: u64) -> Duration {
    CALL + Duration::from_micros(bytes / COPIED)
}

/// Something that does one thing after the other, in the order in which it was asked.
#[derive(Default)]
pub struct Station {
    free_at: Cell<Instant>,
    busy: Cell<Duration>,
}

impl Station {
    /// Takes so much of its time; returns when that is over.
    pub async fn take(&self, env: &Env, cost: Duration) {
        let until = self.free_at.get().max(env.now()) + cost;
        self.free_at.set(until);
        self.busy.set(self.busy.get() + cost);
        env.sleep(until - env.now()).await;
    }

    /// How much it has taken so far.
    pub fn busy(&self) -> Duration {
        self.busy.get()
    }
}

/// The calls. A path is a directory and a name; a caller knows the sizes of its files.
pub trait Site: Clone + 'static {
    /// An open file.
    type Open: Copy + 'static;

    /// The node that it is on.
    fn env(&self) -> &Env;
    /// mkdir(2).
    fn mkdir(&self, dir: Ino, name: &str) -> impl Future<Output = Res<Ino>>;
    /// The inode of a name.
    fn lookup(&self, dir: Ino, name: &str) -> impl Future<Output = Res<Ino>>;
    /// Makes a file and opens it.
    fn create(&self, dir: Ino, name: &str) -> impl Future<Output = Res<(Ino, Self::Open)>>;
    /// Opens a file for reading and writing.
    fn open(&self, ino: Ino) -> impl Future<Output = Res<Self::Open>>;
    /// Writes so many bytes there.
    fn write(
        &self,
        ino: Ino,
        open: Self::Open,
        at: u64,
        bytes: u64,
    ) -> impl Future<Output = Res<()>>;
    /// Reads the whole file, of so many bytes.
    fn read(&self, ino: Ino, open: Self::Open, bytes: u64) -> impl Future<Output = Res<()>>;
    /// fsync(2).
    fn fsync(&self, open: Self::Open) -> impl Future<Output = Res<()>>;
    /// close(2).
    fn close(&self, open: Self::Open) -> impl Future<Output = Res<()>>;
    /// stat(2).
    fn stat(&self, ino: Ino) -> impl Future<Output = Res<()>>;
    /// unlink(2) of a file.
    fn unlink(&self, dir: Ino, name: &str, ino: Ino) -> impl Future<Output = Res<()>>;
    /// syncfs(2).
    fn sync(&self) -> impl Future<Output = Res<()>>;
    /// The kernel drops its pages.
    fn drop_pages(&self);
    /// The reads so far.
    fn reads(&self) -> Reads;
    /// What its processes have taken of its processor so far.
    fn busy(&self) -> Duration;
}

/// A mount of Redbud. The kernel's pages are modelled: what was written or read through this mount
/// is read from them, until the client asks for them back.
#[derive(Clone)]
pub struct Redbud {
    mount: Mount,
    processor: Rc<Station>,
    reads: Rc<Cell<Reads>>,
}

impl Redbud {
    /// On this mount.
    pub fn new(mount: Mount) -> Redbud {
        Redbud { mount, processor: Rc::default(), reads: Rc::default() }
    }

    async fn call(&self, bytes: u64) {
        self.processor.take(&self.mount.env, call_cost(bytes)).await;
    }
}

impl Site for Redbud {
    type Open = Handle;

    fn env(&self) -> &Env {
        &self.mount.env
    }

    async fn mkdir(&self, dir: Ino, name: &str) -> Res<Ino> {
        self.call(0).await;
        self.mount.mkdir(dir, name).await
    }

    async fn lookup(&self, dir: Ino, name: &str) -> Res<Ino> {
        self.call(0).await;
        self.mount.lookup(dir, name).await
    }

    async fn create(&self, dir: Ino, name: &str) -> Res<(Ino, Handle)> {
        self.call(0).await;
        let (entry, handle) = self.mount.create_with(dir, name, OpenFlags::READ_WRITE).await?;
        self.mount.pages.keep(entry.attr.ino);
        Ok((entry.attr.ino, handle))
    }

    async fn open(&self, ino: Ino) -> Res<Handle> {
        self.call(0).await;
        let opened = self.mount.open_file(ino, OpenFlags::READ_WRITE).await?;
        if !opened.keep_cache {
            self.mount.pages.drop_of(ino);
        }
        Ok(opened.handle)
    }

    async fn write(&self, _: Ino, open: Handle, at: u64, bytes: u64) -> Res<()> {
        for from in (0..bytes).step_by(IO_MAX) {
            let len = (bytes - from).min(IO_MAX as u64);
            self.call(len).await;
            self.mount.write(open, at + from, self.env().buffer(len as usize)).await?;
        }
        Ok(())
    }

    async fn read(&self, ino: Ino, open: Handle, bytes: u64) -> Res<()> {
        self.call(bytes).await;
        let cached = self.mount.pages.hold(ino);
        self.reads.set(self.reads.get().and(cached));
        if cached {
            return Ok(());
        }
        for at in (0..bytes).step_by(IO_MAX) {
            let len = (bytes - at).min(IO_MAX as u64);
            let read = self.mount.client.read(open, at, len as u32, true).await;
            let read = read.map_err(|fault| refused("reading", fault))?.len() as u64;
            if read != len {
                return failed("reading", format!("{read} of {len} bytes are there"));
            }
        }
        self.mount.pages.keep(ino);
        Ok(())
    }

    async fn fsync(&self, open: Handle) -> Res<()> {
        let done = self.mount.client.fsync(open, false).await;
        done.map_err(|fault| refused("making a file durable", fault))
    }

    async fn close(&self, open: Handle) -> Res<()> {
        self.call(0).await;
        self.mount.close(open).await
    }

    async fn stat(&self, ino: Ino) -> Res<()> {
        self.call(0).await;
        let found = self.mount.client.getattr(ino).await;
        found.map(drop).map_err(|fault| refused("asking for attributes", fault))
    }

    async fn unlink(&self, dir: Ino, name: &str, ino: Ino) -> Res<()> {
        self.call(0).await;
        self.mount.pages.drop_of(ino);
        self.mount.unlink(dir, name, (ino, 1)).await
    }

    async fn sync(&self) -> Res<()> {
        self.mount.sync().await
    }

    fn drop_pages(&self) {
        self.mount.pages.drop_all();
    }

    fn reads(&self) -> Reads {
        self.reads.get()
    }

    fn busy(&self) -> Duration {
        self.processor.busy()
    }
}
