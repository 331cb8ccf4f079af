//! A store of one layout on a device.
//!
//! Invariant: each function that opens it closes it again before it returns, except [`Bed::open`].

use std::cell::RefCell;
use std::rc::Rc;

use env::sim::Processors;
use env::{DiskOptions, Env};
use mfs::SlotFeatures;
use mfs::{Cost, FormatOptions, Mfs, NewInode, OpenOptions, PagFormat, Reserve, StoreError};
use traditional::{Embedded, Geometry, Layout, Traditional};
use types::{Duration, FileKind, Ino, PagId, Uuid};

use super::caller::{Caller, State, name, new_inode, user};
use super::{Contender, Settings, Workload};
use bench::{BenchError, Res};

/// Bytes of the device for each inode in [`Geometry::usual`].
const USUAL_RATIO: u64 = 16 << 10;
/// Inodes of a block of their table.
const INODES_OF_BLOCK: u64 = 16;

/// What a stage did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Operations.
    pub ops: u64,
    /// Until the last was answered.
    pub answered: Duration,
    /// Until everything was at home.
    pub settled: Duration,
    /// Time of the server's processor, where it has a price.
    pub processor: Option<Duration>,
    /// Bytes of the log that it took.
    pub log_bytes: u64,
}

/// The store of one contender.
#[derive(Clone)]
pub struct Bed {
    /// Path of its device.
    pub path: String,
    /// Its layout.
    pub contender: Contender,
    /// Its sizes, and how it is called.
    pub settings: Settings,
}

pub fn broken(step: &str, error: &StoreError) -> BenchError {
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

impl Bed {
    /// Formats the device and makes `dirs` directories, one for each process.
    pub async fn prepare(&self, env: &Env, dirs: u64) -> Res<()> {
        let at = |error: std::io::Error| BenchError(format!("{}: {error}", self.path));
        let options = DiskOptions { write: true, exclusive: false };
        let disk = env.open_disk(&self.path, options).await.map_err(at)?;
        let pag = PagFormat::whole(PagId(0), Uuid([0x50; 16]), self.settings.data_blocks);
        let format = FormatOptions {
            name: "bench".to_owned(),
            uuid: Uuid([0x4d; 16]),
            log_bytes: self.settings.log_bytes,
            pags: if pag.blocks > 0 { vec![pag] } else { Vec::new() },
            features: mfs::Features::NONE.with_slots(self.settings.slots),
            force: true,
        };
        let wrong = |error: StoreError| broken("formatting", &error);
        Mfs::format(env, &disk, &format).await.map_err(wrong)?;
        let mfs = self.open(env).await?;
        if self.contender != Contender::Embedded {
            let geometry = self.geometry(&mfs);
            let hashed = self.contender == Contender::Hashed;
            let all = Cost { log_bytes: 8 << 20, dirty: 2048, reserve: Reserve::ToFree };
            mfs.run(all, |txn| Traditional::format(txn, geometry, hashed)).await.map_err(wrong)?;
        }
        let layout = self.layout(&mfs).await?;
        for number in 0..dirs {
            let new = new_inode(FileKind::Directory, env.wall());
            let new = NewInode { uid: user(number), ..new };
            let make = |txn: &mut mfs::Txn<'_>| {
                layout.mkdir(txn, Ino::ROOT, &name(&dir_name(number))?, &new)
            };
            mfs.run(Cost::SMALL, make).await.map_err(wrong)?;
        }
        mfs.close().await.map_err(wrong)
    }

    /// As mke2fs divides a device, with the wanted ratio of inodes. A group's bitmap is one block:
    /// where that is too small for the group's inodes the groups are smaller.
    fn geometry(&self, mfs: &Mfs) -> Geometry {
        let superblock = mfs.superblock();
        let usual = Geometry::usual(&superblock);
        let wanted = usual.group_inodes * USUAL_RATIO / self.settings.inode_ratio.max(1);
        let inodes = wanted.min(engine::format::bitmap::BITS) / INODES_OF_BLOCK * INODES_OF_BLOCK;
        let group_blocks = usual.group_blocks * inodes / wanted.max(inodes);
        let groups = ((superblock.blocks - usual.first.0) / group_blocks).max(1);
        Geometry { groups, group_blocks, group_inodes: inodes.max(INODES_OF_BLOCK), ..usual }
    }

    pub async fn open(&self, env: &Env) -> Res<Mfs> {
        let options = DiskOptions { write: true, exclusive: false };
        let disk = env.open_disk(&self.path, options).await;
        let disk = disk.map_err(|error| BenchError(format!("{}: {error}", self.path)))?;
        let options = OpenOptions {
            cache_bytes: self.settings.cache_bytes,
            commit_interval: self.settings.commit,
            home_batch: self.settings.home_batch,
            placement: self.settings.placement,
            // The traditional layout stands for file systems that write no clean blocks.
            bridge: self.contender == Contender::Embedded,
            ..OpenOptions::default()
        };
        Mfs::open(env, &disk, options).await.map_err(|error| broken("opening", &error))
    }

    pub async fn layout(&self, mfs: &Mfs) -> Res<Rc<dyn Layout>> {
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

    /// Opens the store and closes it again; how long the opening took.
    pub async fn reopen(&self, env: &Env) -> Res<Duration> {
        let begin = env.now();
        let mfs = self.open(env).await?;
        let took = env.now().since(begin);
        mfs.close().await.map_err(|error| broken("closing", &error))?;
        Ok(took)
    }

    /// Process `number` of an open store.
    pub fn caller(&self, env: &Env, mfs: &Mfs, layout: &Rc<dyn Layout>, number: u64) -> Caller {
        Caller {
            env: env.clone(),
            number,
            mfs: mfs.clone(),
            layout: layout.clone(),
            settings: self.settings,
            processor: Rc::default(),
            state: Rc::new(State::default()),
        }
    }

    /// Does a stage with all processes; `opened` is called when counting shall begin.
    pub async fn stage<W: Workload>(
        &self,
        env: &Env,
        workload: &W,
        stage: W::Stage,
        opened: impl FnOnce(),
    ) -> Res<Done> {
        let mfs = self.open(env).await?;
        let layout = self.layout(&mfs).await?;
        opened();
        let before = mfs.last_committed();
        let begin = env.now();
        let processor: Rc<RefCell<Processors>> = Rc::default();
        let tasks: Vec<_> = (0..workload.processes())
            .map(|number| {
                let caller = self.caller(env, &mfs, &layout, number);
                let caller = Caller { processor: processor.clone(), ..caller };
                env.spawn_join(workload.work(stage, caller))
            })
            .collect();
        let wrong = |error: StoreError| broken("a process", &error);
        let mut ops = 0;
        for task in tasks {
            ops += task.await.map_err(wrong)?;
        }
        let answered = env.now().since(begin);
        mfs.sync().await.map_err(wrong)?;
        let log_bytes = mfs.last_committed().lsn.0.saturating_sub(before.lsn.0);
        mfs.close().await.map_err(wrong)?;
        let settled = env.now().since(begin);
        let busy = self.settings.price.map(|_| processor.borrow().busy());
        Ok(Done { ops, answered, settled, processor: busy, log_bytes })
    }
}
