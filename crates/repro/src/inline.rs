//! Small files in every size of slots, with their content beside their inodes or in data blocks:
//! what making, overwriting, reading and listing them costs.
//!
//! Invariants:
//! - all formats get the same files in the same order; names, sizes and the order of reading come
//!   from one seed;
//! - a file is made as a client makes it that syncs each. One transaction makes it, and its data
//!   are written and flushed if they go to a data block. A second transaction stores its size and
//!   where they are, durable before the next file. What the log takes is counted of files that
//!   become durable together as well: one that is durable alone takes a whole block of it in any
//!   case;
//! - metadata and data have a virtual hard disk each, so that computing costs nothing and the
//!   figures are the same everywhere. Only processor time differs: it is this process's and
//!   includes what the virtual disks take;
//! - overwriting, reading and listing begin with nothing cached.

use env::sim::{DiskModel, DiskReport, HardDisk, SimDisk, SimRng, SimWorld};
use env::{Disk, DiskOptions, Env};
use mfs::SlotFeatures;
use mfs::{
    Cost, Feature, Features, FormatOptions, Mfs, OpenOptions, PagFormat, SlotSize, Stop, StoreError,
};
use serde::Serialize;
use types::limits::{BLOCK, BLOCK_U64};
use types::{
    Attr, ClientId, Fault, FileBlock, FileKind, Ino, PagBlock, PagId, Segment, SegmentState,
    Transno, Uuid,
};

use crate::layouts::bed::broken;
use crate::layouts::caller::{name, new_inode};
use bench::observe::Usage;
use bench::report::Columns;
use bench::{BenchError, Res};

const META: &str = "metadata";
const DATA: &str = "data";
const META_BYTES: u64 = 4 << 30;
const DATA_BLOCKS: u64 = 1 << 20;
const LOG_BYTES: u64 = 128 << 20;
const CLIENT: ClientId = ClientId(1);
/// Entries of one listing.
const LISTED: usize = 1024;

/// Numbers and sizes of the files.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Shape {
    /// Directories.
    pub dirs: u64,
    /// Files of each.
    pub files: u64,
    /// Smallest and largest file, in bytes; as many have between 1 and 2 KiB as between 2 and 4.
    pub sizes: (u64, u64),
}

/// Accesses of one device.
#[derive(Clone, Copy, Default, Serialize, Debug)]
pub struct Accesses {
    /// Reads that it was given, after merging.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Their bytes.
    pub write_bytes: u64,
    /// Flushes.
    pub flushes: u64,
}

/// One stage in one format.
#[derive(Clone, Copy, Default, Serialize, Debug)]
pub struct Stage {
    /// Virtual nanoseconds.
    pub nanos: u64,
    /// Processor time of this process, in nanoseconds.
    pub cpu: u64,
    /// Of the metadata device.
    pub meta: Accesses,
    /// Of the data device.
    pub data: Accesses,
}

/// The result of one format.
#[derive(Clone, Serialize, Debug)]
pub struct Row {
    /// Bytes of a slot.
    pub slot: u64,
    /// Content of small files lies beside their inodes.
    pub inline: bool,
    /// Files whose content does.
    pub inlined: u64,
    /// Bytes of the log for each file made empty.
    pub log_bytes_create: f64,
    /// Bytes of the log for each file made and written, many at a time.
    pub log_bytes_file: f64,
    /// Bytes of the log for each file overwritten, many at a time.
    pub log_bytes_rewrite: f64,
    /// Metadata blocks that the files took.
    pub meta_blocks: u64,
    /// Making, writing and syncing each.
    pub make: Stage,
    /// Overwriting all with as many bytes, in another order, and syncing each.
    pub rewrite: Stage,
    /// Reading all in that order.
    pub read: Stage,
    /// Listing all directories with attributes.
    pub list: Stage,
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct Found {
    /// Numbers and sizes of the files.
    pub shape: Shape,
    /// A row for each format.
    pub rows: Vec<Row>,
}

/// Measures all formats.
///
/// # Errors
/// The store.
pub fn measure(shape: Shape, progress: &mut dyn FnMut(&str)) -> Res<Found> {
    let mut rows = Vec::new();
    for slots in SlotSize::ALL {
        for inline in [false, true] {
            let row = Bench::new(shape, slots, inline)?.row()?;
            let how = if inline { "on" } else { "off" };
            progress(&format!("slots of {} bytes, inline data {how}", row.slot));
            rows.push(row);
        }
    }
    Ok(Found { shape, rows })
}

/// Bytes of each file, in the order of their making.
fn sizes(shape: Shape) -> Vec<u64> {
    let mut rng = SimRng::new(7);
    let (low, high) = shape.sizes;
    (0..shape.dirs * shape.files)
        .map(|_| {
            // Each doubling is as likely as the next.
            let span =
                (high as f64 / low as f64).ln() * rng.below(1 << 20) as f64 / f64::from(1 << 20);
            (low as f64 * span.exp()) as u64
        })
        .collect()
}

struct Bench {
    shape: Shape,
    slots: SlotSize,
    inline: bool,
    world: SimWorld,
    meta: SimDisk,
    data: SimDisk,
}

impl Bench {
    fn new(shape: Shape, slots: SlotSize, inline: bool) -> Res<Bench> {
        let world = SimWorld::new(1);
        let (meta, data) =
            (world.disk(META, META_BYTES), world.disk(DATA, DATA_BLOCKS * BLOCK_U64));
        for disk in [&meta, &data] {
            disk.set_model(DiskModel::Hard(HardDisk::fibre_channel()));
        }
        let bench = Bench { shape, slots, inline, world, meta, data };
        let usual = Features::NONE.with_slots(slots);
        let features = if inline { usual.with(Feature::INLINE_DATA) } else { usual };
        bench.world.run(|env| async move {
            let disk = device(&env, META).await?;
            let pag = PagFormat::whole(PagId(0), Uuid([0x50; 16]), DATA_BLOCKS);
            let format = FormatOptions {
                name: "bench".to_owned(),
                uuid: Uuid([0x4d; 16]),
                log_bytes: LOG_BYTES,
                pags: vec![pag],
                features,
                force: true,
            };
            let made = Mfs::format(&env, &disk, &format).await;
            made.map_err(|error| broken("formatting", &error))
        })?;
        Ok(bench)
    }

    /// Runs a stage on a store just opened, until everything is at home.
    fn stage<T: 'static, F: Future<Output = Result<T, StoreError>>>(
        &self,
        body: impl FnOnce(Files) -> F,
    ) -> Res<(T, Stage)> {
        let (meta, data, shape) = (self.meta.clone(), self.data.clone(), self.shape);
        self.world.run(|env| async move {
            let wrong = |error: StoreError| broken("a stage", &error);
            let disk = device(&env, META).await?;
            let mfs = Mfs::open(&env, &disk, OpenOptions::default()).await.map_err(wrong)?;
            let files = Files {
                env: env.clone(),
                mfs: mfs.clone(),
                data: device(&env, DATA).await?,
                shape,
            };
            let before = (accesses(&meta), accesses(&data), env.now());
            let idle = Usage::of(std::process::id());
            let done = body(files).await.map_err(wrong)?;
            let nanos = env.now().since(before.2).as_nanos() as u64;
            mfs.close().await.map_err(wrong)?;
            let stage = Stage {
                nanos,
                cpu: Usage::of(std::process::id()).since(idle).cpu,
                meta: accesses(&meta).since(before.0),
                data: accesses(&data).since(before.1),
            };
            Ok((done, stage))
        })
    }

    fn row(&self) -> Res<Row> {
        let files = self.shape.dirs * self.shape.files;
        let each = |bytes: u64| bytes as f64 / files as f64;
        let (empty, _) = self.stage(|files| async move { files.make_empty().await })?;
        let (parallel, alone) =
            (Pace { of: "crowd", synced: false }, Pace { of: "", synced: true });
        let ((_, log, _), _) = self.stage(|files| async move { files.make(parallel).await })?;
        let (rewritten, _) = self.stage(|files| async move { files.rewrite(parallel).await })?;
        let ((inlined, _, blocks), make) =
            self.stage(|files| async move { files.make(alone).await })?;
        let (_, rewrite) = self.stage(|files| async move { files.rewrite(alone).await })?;
        let ((), read) = self.stage(|files| async move { files.read().await })?;
        let ((), list) = self.stage(|files| async move { files.list().await })?;
        Ok(Row {
            slot: self.slots.share() as u64,
            inline: self.inline,
            inlined,
            log_bytes_create: each(empty),
            log_bytes_file: each(log),
            log_bytes_rewrite: each(rewritten),
            meta_blocks: blocks,
            make,
            rewrite,
            read,
            list,
        })
    }
}

async fn device(env: &Env, path: &str) -> Res<Disk> {
    let disk = env.open_disk(path, DiskOptions { write: true, exclusive: false }).await;
    disk.map_err(|error| BenchError(format!("{path}: {error}")))
}

fn accesses(disk: &SimDisk) -> Accesses {
    let DiskReport { reads, read, writes, written, flushes, .. } =
        disk.report().unwrap_or_default();
    Accesses { reads, read_bytes: read, writes, write_bytes: written, flushes }
}

impl Accesses {
    fn since(self, before: Accesses) -> Accesses {
        Accesses {
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
            writes: self.writes - before.writes,
            write_bytes: self.write_bytes - before.write_bytes,
            flushes: self.flushes - before.flushes,
        }
    }
}

/// How files are made and overwritten.
#[derive(Clone, Copy)]
struct Pace {
    /// How the names of their directories begin.
    of: &'static str,
    /// Is each durable before the next?
    synced: bool,
}

/// An open store and the data device.
struct Files {
    env: Env,
    mfs: Mfs,
    data: Disk,
    shape: Shape,
}

type Done<T> = Result<T, StoreError>;

impl Files {
    async fn dir(&self, text: &str) -> Done<Ino> {
        let new = new_inode(FileKind::Directory, self.env.wall());
        let made = self.mfs.run(Cost::SMALL, |txn| {
            let root = txn.names().attr(Ino::ROOT)?.ok_or(Stop::Fault(Fault::Stale))?;
            txn.names().set_attr(&Attr { nlink: root.nlink + 1, ..root })?;
            txn.names().create(Ino::ROOT, &name(text)?, &new, None)
        });
        Ok(made.await?.0)
    }

    async fn file(&self, dir: Ino, number: u64) -> Done<Ino> {
        let new = new_inode(FileKind::Regular, self.env.wall());
        let text = file_name(number);
        Ok(self
            .mfs
            .run(Cost::SMALL, |txn| txn.names().create(dir, &name(&text)?, &new, None))
            .await?
            .0)
    }

    /// Empty files, in directories of their own; bytes of the log.
    async fn make_empty(&self) -> Done<u64> {
        let before = self.mfs.last_committed().lsn.0;
        for dir in 0..self.shape.dirs {
            let dir = self.dir(&format!("empty{dir:04}")).await?;
            for number in 0..self.shape.files {
                self.file(dir, number).await?;
            }
        }
        self.mfs.sync().await?;
        Ok(self.mfs.last_committed().lsn.0 - before)
    }

    /// The files; how many have their content inline, bytes of the log, metadata blocks that they
    /// took.
    async fn make(&self, pace: Pace) -> Done<(u64, u64, u64)> {
        let before = self.mfs.last_committed().lsn.0;
        let in_use = || {
            let usage = self.mfs.usage();
            usage.blocks - usage.blocks_free
        };
        let blocks = in_use();
        let sizes = sizes(self.shape);
        let pool = self
            .mfs
            .run(Cost::SMALL, |txn| txn.space().grant(CLIENT, None, sizes.len() as u64 + 1));
        let mut places = Vec::new();
        for (pag, first, len) in pool.await?.0 {
            places.extend((0..len).map(|at| (pag, PagBlock(first.0 + at))));
        }
        let mut places = places.into_iter();
        let (mut inlined, mut sizes) = (0, sizes.into_iter());
        for dir in 0..self.shape.dirs {
            let dir = self.dir(&pace.dir(dir)).await?;
            for number in 0..self.shape.files {
                let size = sizes.next().unwrap_or(1);
                let ino = self.file(dir, number).await?;
                let bytes = vec![number as u8; size as usize];
                let room = self.mfs.run(Cost::READ, |txn| txn.layouts().content_room(ino)).await?.0;
                let fits = bytes.len() <= room;
                inlined += u64::from(fits);
                let place = if fits { None } else { places.next() };
                if let Some((_, addr)) = place {
                    self.put(addr, pace).await?;
                }
                let made = self.mfs.run(Cost::SMALL, |txn| {
                    match place {
                        Some((pag, addr)) => {
                            let (file, state) = (FileBlock(0), SegmentState::Written);
                            txn.layouts().map(
                                ino,
                                CLIENT,
                                Segment { file, len: 1, pag, addr, state },
                            )?;
                        }
                        None => txn.layouts().set_content(ino, &bytes)?,
                    }
                    let attr = txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
                    txn.names().set_attr(&Attr { size, version: attr.version + 1, ..attr })
                });
                self.pace(made.await?.1, pace).await?;
            }
        }
        self.mfs.sync().await?;
        let log = self.mfs.last_committed().lsn.0 - before;
        Ok((inlined, log, in_use() - blocks))
    }

    /// Numbers of all files in an order that has nothing to do with that of making.
    fn shuffled(&self) -> Vec<u64> {
        let count = self.shape.dirs * self.shape.files;
        let mut order: Vec<u64> = (0..count).collect();
        let mut rng = SimRng::new(8);
        for at in (1..order.len()).rev() {
            order.swap(at, rng.below(at as u64 + 1) as usize);
        }
        order
    }

    /// Other bytes for every file, where it has them; bytes of the log.
    async fn rewrite(&self, pace: Pace) -> Done<u64> {
        let before = self.mfs.last_committed().lsn.0;
        for at in self.shuffled() {
            let (dir, file) = (pace.dir(at / self.shape.files), file_name(at % self.shape.files));
            let found = self.mfs.run(Cost::READ, |txn| {
                let gone = Stop::Fault(Fault::NotFound);
                let dir = txn.names().lookup(Ino::ROOT, &name(&dir)?)?.ok_or(gone)?;
                let ino = txn.names().lookup(dir, &name(&file)?)?.ok_or(gone)?;
                Ok((ino, txn.layouts().content(ino)?, txn.layouts().layout(ino, FileBlock(0), 1)?))
            });
            let (ino, mut bytes, layout) = found.await?.0;
            bytes.iter_mut().for_each(|byte| *byte = !*byte);
            if let Some(segment) = layout.first() {
                self.put(segment.addr, pace).await?;
            }
            let now = self.env.wall();
            let made = self.mfs.run(Cost::SMALL, |txn| {
                if !bytes.is_empty() {
                    txn.layouts().set_content(ino, &bytes)?;
                }
                let attr = txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
                txn.names().set_attr(&Attr {
                    mtime: now,
                    ctime: now,
                    version: attr.version + 1,
                    ..attr
                })
            });
            self.pace(made.await?.1, pace).await?;
        }
        self.mfs.sync().await?;
        Ok(self.mfs.last_committed().lsn.0 - before)
    }

    /// A file is done with transaction `last`.
    async fn pace(&self, last: Transno, pace: Pace) -> Done<()> {
        if pace.synced { self.mfs.wait_durable(last).await } else { Ok(()) }
    }

    /// Writes a data block, and flushes its device.
    async fn put(&self, addr: PagBlock, pace: Pace) -> Done<()> {
        let (wrote, _) = self.data.write(addr.0 * BLOCK_U64, self.env.buffer(BLOCK)).await;
        let stable = match wrote {
            Ok(()) if pace.synced => self.data.flush().await,
            done => done,
        };
        stable.map_err(|_| StoreError::Fault(Fault::Io))
    }

    /// Every file by name.
    async fn read(&self) -> Done<()> {
        for at in self.shuffled() {
            let (dir, file) = (dir_name(at / self.shape.files), file_name(at % self.shape.files));
            let found = self.mfs.run(Cost::READ, |txn| {
                let gone = Stop::Fault(Fault::NotFound);
                let dir = txn.names().lookup(Ino::ROOT, &name(&dir)?)?.ok_or(gone)?;
                let ino = txn.names().lookup(dir, &name(&file)?)?.ok_or(gone)?;
                txn.layouts().content(ino)?;
                txn.layouts().layout(ino, FileBlock(0), 1)
            });
            if let Some(segment) = found.await?.0.first() {
                let (read, _) =
                    self.data.read(segment.addr.0 * BLOCK_U64, self.env.buffer(BLOCK)).await;
                read.map_err(|_| StoreError::Fault(Fault::Io))?;
            }
        }
        Ok(())
    }

    async fn list(&self) -> Done<()> {
        for dir in 0..self.shape.dirs {
            let text = dir_name(dir);
            let dir = self.mfs.run(Cost::READ, |txn| {
                txn.names().lookup(Ino::ROOT, &name(&text)?)?.ok_or(Stop::Fault(Fault::NotFound))
            });
            let (dir, mut after) = (dir.await?.0, 0);
            while let Some(last) = self
                .mfs
                .run(Cost::READ, |txn| txn.names().readdir(dir, after, LISTED))
                .await?
                .0
                .last()
            {
                after = last.cookie;
            }
        }
        Ok(())
    }
}

impl Pace {
    fn dir(self, number: u64) -> String {
        format!("{}{}", self.of, dir_name(number))
    }
}

fn dir_name(number: u64) -> String {
    format!("directory{number:04}")
}

fn file_name(number: u64) -> String {
    format!("file.{number:05}")
}

impl Found {
    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// For people: everything is for one file.
    pub fn text(&self) -> String {
        let files = (self.shape.dirs * self.shape.files) as f64;
        let mut table = Columns::new(&[
            "slot",
            "inline",
            "in slots",
            "log/create",
            "log/file",
            "metadata",
            "make",
            "data writes",
            "meta written",
            "cpu",
            "log/rewrite",
            "rewrite",
            "meta rewritten",
            "read",
            "meta reads",
            "meta read",
            "data reads",
            "list",
            "listed",
        ]);
        let millis = |nanos: u64| format!("{:.2} ms", nanos as f64 / 1e6 / files);
        let each = |count: u64| format!("{:.2}", count as f64 / files);
        let bytes = |count: u64| format!("{:.0} B", count as f64 / files);
        for row in &self.rows {
            table.row(vec![
                row.slot.to_string(),
                if row.inline { "on" } else { "off" }.to_owned(),
                format!("{:.0} %", row.inlined as f64 * 100.0 / files),
                format!("{:.0} B", row.log_bytes_create),
                format!("{:.0} B", row.log_bytes_file),
                bytes(row.meta_blocks * BLOCK_U64),
                millis(row.make.nanos),
                each(row.make.data.writes),
                bytes(row.make.meta.write_bytes),
                format!("{:.1} µs", row.make.cpu as f64 / 1e3 / files),
                format!("{:.0} B", row.log_bytes_rewrite),
                millis(row.rewrite.nanos),
                bytes(row.rewrite.meta.write_bytes),
                millis(row.read.nanos),
                each(row.read.meta.reads),
                bytes(row.read.meta.read_bytes),
                each(row.read.data.reads),
                format!("{:.3} ms", row.list.nanos as f64 / 1e6 / files),
                bytes(row.list.meta.read_bytes),
            ]);
        }
        let (low, high) = self.shape.sizes;
        format!(
            "{files} files of {low} to {high} bytes; all figures are for one of them\n\n{}",
            table.text()
        )
    }
}
