//! Metarates on the store as a library: every process is a task, every operation a transaction.
//!
//! Invariants:
//! - a phase begins with a store that was just opened and ends when everything is at home and the store
//!   closed, so no access of a phase falls into another's count and none begins with a warm cache;
//! - all layouts get the same calls in the same order; an operation that a client would send as one
//!   request is one transaction (utime: lookup, attributes, change), but an unlinked inode is freed by a
//!   second one, as the server does.

use std::rc::Rc;

use env::{DiskOptions, Env};
use store::{Cost, FormatOptions, Mfs, NewInode, OpenOptions, Stop, StoreError, Txn};
use traditional::{Embedded, Geometry, Layout, Listing, Traditional};
use types::{Attr, Duration, Fault, FileKind, Ino, Name, Timestamp, Transno, Uuid};

use super::{Contender, Shape, Work};
use crate::{BenchError, Res};

/// Entries of one listing.
const LISTED: usize = 1024;
/// Files that are made at most to fill a log.
const FILES_MAX: u64 = 9_999_999;
/// How full it is then: the checkpoint begins at 40.
const LOG_PERCENT: u64 = 38;
/// An ordinary change, and one that frees.
const CHANGE: Cost = Cost::SMALL;
const FREE: Cost = Cost::DELETE;

/// What a phase did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Operations.
    pub ops: u64,
    /// Until the last was answered.
    pub answered: Duration,
    /// Until everything was at home.
    pub settled: Duration,
    /// Bytes of the log that it took.
    pub log_bytes: u64,
}

/// The store of one contender.
#[derive(Clone)]
pub struct Library {
    /// Path of its device.
    pub path: String,
    /// Its layout.
    pub contender: Contender,
    /// What is done to it.
    pub shape: Shape,
}

fn broken(step: &str, error: &StoreError) -> BenchError {
    BenchError(format!("{step}: {error}"))
}

/// The directory of process `number`.
pub fn dir_name(number: u64) -> String {
    format!("process{number:03}")
}

/// File `number` of a process.
pub fn file_name(number: u64) -> String {
    format!("file.{number:07}")
}

fn name(text: &str) -> Result<Name, Stop> {
    Name::new(text.as_bytes()).map_err(|_| Stop::Fault(Fault::Invalid))
}

fn new_inode(kind: FileKind, time: Timestamp) -> NewInode<'static> {
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
        symlink: None,
    }
}

impl Library {
    /// Formats the device and makes the processes' directories.
    pub async fn prepare(&self, env: &Env) -> Res<()> {
        let at = |error: std::io::Error| BenchError(format!("{}: {error}", self.path));
        let options = DiskOptions { write: true, exclusive: false };
        let disk = env.open_disk(&self.path, options).await.map_err(at)?;
        let format = FormatOptions {
            name: "bench".to_owned(),
            uuid: Uuid([0x4d; 16]),
            log_bytes: self.shape.log_bytes,
            pags: Vec::new(),
            force: true,
        };
        let wrong = |error: StoreError| broken("formatting", &error);
        Mfs::format(env, &disk, &format).await.map_err(wrong)?;
        let mfs = self.open(env).await?;
        if self.contender != Contender::Embedded {
            let geometry = Geometry::usual(&mfs.superblock());
            let hashed = self.contender == Contender::Hashed;
            let all = Cost { journal: 8 << 20, dirty: 2048, reserve: true };
            mfs.run(all, |txn| Traditional::format(txn, geometry, hashed)).await.map_err(wrong)?;
        }
        let layout = self.layout(&mfs).await?;
        for number in 0..self.shape.tasks() {
            let new = new_inode(FileKind::Directory, env.wall());
            mfs.run(CHANGE, |txn| layout.mkdir(txn, Ino::ROOT, &name(&dir_name(number))?, &new))
                .await
                .map_err(wrong)?;
        }
        mfs.close().await.map_err(wrong)
    }

    async fn open(&self, env: &Env) -> Res<Mfs> {
        let options = DiskOptions { write: true, exclusive: false };
        let disk = env.open_disk(&self.path, options).await;
        let disk = disk.map_err(|error| BenchError(format!("{}: {error}", self.path)))?;
        let options = OpenOptions {
            cache_bytes: self.shape.cache_bytes,
            commit_interval: self.shape.commit,
            home_batch: self.shape.home_batch,
            ..OpenOptions::default()
        };
        Mfs::open(env, &disk, options).await.map_err(|error| broken("opening", &error))
    }

    async fn layout(&self, mfs: &Mfs) -> Res<Rc<dyn Layout>> {
        if self.contender == Contender::Embedded {
            return Ok(Rc::new(Embedded));
        }
        let opened = mfs.run(Cost::READ, Traditional::open).await;
        let (layout, _) = opened.map_err(|error| broken("opening the layout", &error))?;
        Ok(Rc::new(layout))
    }

    /// Bytes of the device that are its log.
    pub async fn log_range(&self, env: &Env) -> Res<std::ops::Range<u64>> {
        let mfs = self.open(env).await?;
        let superblock = mfs.superblock();
        let block = types::limits::BLOCK_U64;
        let range = superblock.log_first.0 * block..superblock.bitmap_first.0 * block;
        mfs.close().await.map_err(|error| broken("closing", &error))?;
        Ok(range)
    }

    /// Creates files until the log is as full as it gets before the checkpoint begins, and leaves the store
    /// as a crash would; gives the bytes of the log that recovery has to read.
    pub async fn fill_log(&self, env: &Env) -> Res<u64> {
        let wrong = |error: StoreError| broken("filling the log", &error);
        let mfs = self.open(env).await?;
        let layout = self.layout(&mfs).await?;
        let (shape, number) = (Shape { files: 0, ..self.shape }, 0);
        let process = Process { env: env.clone(), mfs: mfs.clone(), layout, shape, number };
        let dir = process.directory().await.map_err(wrong)?;
        for file in 0..FILES_MAX {
            let usage = mfs.usage();
            if usage.log_used * 100 >= usage.log_bytes * LOG_PERCENT {
                break;
            }
            process.create(dir, &format!("redo.{file:07}")).await.map_err(wrong)?;
        }
        mfs.sync().await.map_err(wrong)?;
        Ok(mfs.usage().log_used)
    }

    /// Opens the store and closes it again; how long the opening took.
    pub async fn reopen(&self, env: &Env) -> Res<Duration> {
        let begin = env.now();
        let mfs = self.open(env).await?;
        let took = env.now().since(begin);
        mfs.close().await.map_err(|error| broken("closing", &error))?;
        Ok(took)
    }

    /// Does `work` with all processes; `opened` is called when counting shall begin.
    pub async fn phase(&self, env: &Env, work: Work, opened: impl FnOnce()) -> Res<Done> {
        let mfs = self.open(env).await?;
        let layout = self.layout(&mfs).await?;
        opened();
        let before = mfs.last_committed();
        let begin = env.now();
        let mut tasks = Vec::new();
        for number in 0..self.shape.tasks() {
            let process = Process {
                env: env.clone(),
                mfs: mfs.clone(),
                layout: layout.clone(),
                shape: self.shape,
                number,
            };
            tasks.push(env.spawn_join(async move { process.work(work).await }));
        }
        let mut ops = 0;
        for task in tasks {
            ops += task.await.map_err(|error| broken(work.text(), &error))?;
        }
        let answered = env.now().since(begin);
        let wrong = |error: StoreError| broken(work.text(), &error);
        mfs.sync().await.map_err(wrong)?;
        let log_bytes = mfs.last_committed().lsn.0.saturating_sub(before.lsn.0);
        mfs.close().await.map_err(wrong)?;
        Ok(Done { ops, answered, settled: env.now().since(begin), log_bytes })
    }
}

/// One process of one client.
struct Process {
    env: Env,
    mfs: Mfs,
    layout: Rc<dyn Layout>,
    shape: Shape,
    number: u64,
}

impl Process {
    async fn directory(&self) -> Result<Ino, StoreError> {
        let found = self.look(|txn| {
            let found = self.layout.lookup(txn, Ino::ROOT, &name(&dir_name(self.number))?)?;
            found.ok_or(Stop::Fault(Fault::NotFound))
        });
        found.await
    }

    async fn work(&self, work: Work) -> Result<u64, StoreError> {
        let dir = self.directory().await?;
        match work {
            Work::Create | Work::Utime | Work::Delete => {
                for file in 0..self.shape.files {
                    self.message().await;
                    let text = file_name(file);
                    let number = match work {
                        Work::Create => self.create(dir, &text).await?,
                        Work::Utime => self.utime(dir, &text).await?,
                        _ => self.delete(dir, &text).await?,
                    };
                    if self.shape.durable {
                        self.mfs.wait_durable(number).await?;
                    }
                }
                Ok(self.shape.files)
            }
            Work::Readdir => self.list(dir, false).await,
            Work::ReaddirStat => self.list(dir, true).await,
        }
    }

    /// The way of a request to the server and of its answer; others get their turn meanwhile. It varies,
    /// or the processes would fall into step with each other and with the disk's revolutions.
    async fn message(&self) {
        let nanos = self.shape.message.as_nanos() as u64;
        match nanos {
            0 => self.env.yield_now().await,
            _ => {
                let varied = nanos / 2 + self.env.random_u64() % nanos;
                self.env.sleep(Duration::from_nanos(varied)).await;
            }
        }
    }

    async fn look<T>(
        &self,
        body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<T, StoreError> {
        Ok(self.mfs.run(Cost::READ, body).await?.0)
    }

    async fn create(&self, dir: Ino, text: &str) -> Result<Transno, StoreError> {
        let new = new_inode(FileKind::Regular, self.env.wall());
        let run = self.mfs.run(CHANGE, |txn| self.layout.create(txn, dir, &name(text)?, &new));
        Ok(run.await?.1)
    }

    async fn utime(&self, dir: Ino, text: &str) -> Result<Transno, StoreError> {
        let now = self.env.wall();
        let run = self.mfs.run(CHANGE, |txn| {
            let ino = self.layout.lookup(txn, dir, &name(text)?)?.ok_or(Fault::NotFound)?;
            let attr = self.layout.attr(txn, ino)?.ok_or(Fault::Stale)?;
            let version = attr.version + 1;
            self.layout.set_attr(txn, &Attr { atime: now, mtime: now, ctime: now, version, ..attr })
        });
        Ok(run.await?.1)
    }

    async fn delete(&self, dir: Ino, text: &str) -> Result<Transno, StoreError> {
        let now = self.env.wall();
        let run = self.mfs.run(FREE, |txn| self.layout.unlink(txn, dir, &name(text)?, now));
        let (ino, number) = run.await?;
        while !self.mfs.run(FREE, |txn| self.layout.reclaim(txn, ino)).await?.0 {}
        Ok(number)
    }

    async fn list(&self, dir: Ino, attrs: bool) -> Result<u64, StoreError> {
        let mut found = 0;
        let mut listing = Listing { after: 0, max: LISTED, attrs };
        loop {
            self.message().await;
            let entries = self.look(|txn| self.layout.readdir(txn, dir, listing)).await?;
            let Some(last) = entries.last() else { return Ok(found) };
            listing.after = last.cookie;
            found += entries.len() as u64;
        }
    }
}
