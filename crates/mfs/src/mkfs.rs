//! Makes a new metadata file system on a device.
//!
//! Invariants:
//! - mkfs changes a device that carries a Redbud label or superblock only with `force`;
//! - mkfs erases label and superblocks first and writes the label last: a
//!   device has no label, or carries a whole file system;
//! - mkfs fills the log with zeros, so that later log writes allocate nothing in the layer below.

use env::{Env, LocalFuture};
use types::{Attr, DirNo, FileKind, Ino, ShardId, Timestamp, Uuid};

use crate::format::chunk::{ContentRun, DESCRIPTOR, Descriptor, chunk_key};
use crate::format::number::{home_of, is_root_dir, system_chunk};
use crate::format::slot::Slot;
pub use crate::format::space::PagFormat;
use crate::handle::Mfs;
use crate::trees::{CHUNKS, INODES, NEXT_CHUNK, NEXT_CLIENT, insert_zero_entries};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::device::log::Disks;
use engine::error::{Stop, StoreError};
use engine::format::block::BlockType;
use engine::format::features::Features;
use engine::store::Store;

/// Properties of a new file system.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Its name, which must satisfy [`types::check_fs_name`].
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// Capacity of the log in bytes, rounded down to blocks.
    pub log_bytes: u64,
    /// Its data zones.
    pub pags: Vec<PagFormat>,
    /// Options of its format; [`Features::NONE`]: slots of 512 bytes and no option.
    pub features: Features,
    /// Overwrite a device that carries a Redbud label.
    pub force: bool,
}

impl Mfs {
    /// Makes a new, empty file system on `disks`, and leaves it closed. It has shard 0. The device
    /// of the log, if there is one, becomes its journal.
    ///
    /// # Errors
    /// `Refused` if the device carries a Redbud label (without force) or is too small, or if an
    /// option is invalid; `Io`.
    pub async fn format(
        env: &Env,
        disks: impl Into<Disks>,
        options: &FormatOptions,
    ) -> Result<(), StoreError> {
        Mfs::format_shard(env, disks, ShardId(0), options).await
    }

    /// As [`Mfs::format`], of the metadata that is `shard` of its file system.
    ///
    /// # Errors
    /// As [`Mfs::format`].
    pub async fn format_shard(
        env: &Env,
        disks: impl Into<Disks>,
        shard: ShardId,
        options: &FormatOptions,
    ) -> Result<(), StoreError> {
        Mfs::format_disks(env, disks.into(), shard, options).await
    }

    fn format_disks<'a>(
        env: &'a Env,
        disks: Disks,
        shard: ShardId,
        options: &'a FormatOptions,
    ) -> LocalFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let FormatOptions { name, uuid, log_bytes, features, force, .. } = options;
            let empty = engine::store::mkfs::FormatOptions {
                name,
                uuid: *uuid,
                shard,
                log_bytes: *log_bytes,
                features: *features,
                force: *force,
            };
            let mfs = Mfs::over(Store::begin_format(env, disks, &empty).await?);
            mfs.run(Cost::STEP, |txn| write_initial_content(txn, options)).await?;
            mfs.end_format().await
        })
    }
}

/// Writes the initial content of a new file system, in one transaction.
///
/// # Errors
/// `Stop` as any body of a transaction; `Invalid` for impossible PAGs.
pub fn write_initial_content(txn: &mut Txn<'_>, options: &FormatOptions) -> Result<(), Stop> {
    let start = txn.alloc_meta(1, None)?;
    let system = [txn.root_dir(), txn.orphan_dir()];
    let block = txn.init(start, BlockType::Directory)?;
    for ino in system {
        let place = home_of(ino);
        let mut slot = Slot::default();
        slot.set_next_reuse(1);
        slot.set_inode(b"", &first_attr(ino));
        slot.store(block, place.index());
    }
    let descriptor = Descriptor { owner: Ino::NONE, next: DirNo(0), index: 0, used: 1 };
    let run = ContentRun::present(0, start, 1);
    let chunk = system_chunk(txn.shard());
    CHUNKS.insert(txn, &chunk_key(chunk, 0), &run.encode())?;
    CHUNKS.insert(txn, &chunk_key(chunk, DESCRIPTOR), &descriptor.encode())?;
    insert_zero_entries(txn)?;
    txn.set_root(NEXT_CHUNK, 1)?;
    txn.set_root(NEXT_CLIENT, 1)?;
    txn.set_root(INODES, 2)?;
    txn.space().format_pags(&options.pags)
}

pub(crate) fn first_attr(ino: Ino) -> Attr {
    let time = Timestamp::default();
    Attr {
        ino,
        kind: FileKind::Directory,
        mode: if is_root_dir(ino) { 0o755 } else { 0 },
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        spread: false,
        version: 1,
    }
}
