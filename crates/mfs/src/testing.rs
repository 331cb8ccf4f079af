//! Helpers for unit tests.

use crate::format::slot_size::SlotFeatures;
pub use engine::testing::{now, random};

/// An empty file system in memory, with two data zones of 10,000 blocks.
pub fn formatted() -> crate::handle::Mfs {
    formatted_in(200_000)
}

/// An empty file system in memory with slots of this size.
pub fn formatted_with(size: crate::format::slot::SlotSize) -> crate::handle::Mfs {
    new_store(200_000, engine::format::features::Features::NONE.with_slots(size))
}

/// An empty file system in memory with inline data, in slots of this size.
pub fn formatted_inline(size: crate::format::slot::SlotSize) -> crate::handle::Mfs {
    new_store(
        200_000,
        engine::format::features::Features::NONE
            .with(engine::format::features::Feature::INLINE_DATA)
            .with_slots(size),
    )
}

/// As [`formatted_inline`], with layout blocks.
pub fn formatted_inline_near(size: crate::format::slot::SlotSize) -> crate::handle::Mfs {
    formatted_inline_near_in(200_000, size)
}

/// As [`formatted_inline_near`], on `blocks` metadata blocks.
pub fn formatted_inline_near_in(
    blocks: u64,
    size: crate::format::slot::SlotSize,
) -> crate::handle::Mfs {
    use engine::format::features::{Feature, Features};
    let both = Features::NONE.with(Feature::INLINE_DATA).with(Feature::LAYOUT_BLOCKS);
    new_store(blocks, both.with_slots(size))
}

/// An empty file system in memory with layout blocks, in slots of this size.
pub fn formatted_near(size: crate::format::slot::SlotSize) -> crate::handle::Mfs {
    formatted_near_in(200_000, size)
}

/// As [`formatted_near`], on `blocks` metadata blocks.
pub fn formatted_near_in(blocks: u64, size: crate::format::slot::SlotSize) -> crate::handle::Mfs {
    new_store(
        blocks,
        engine::format::features::Features::NONE
            .with(engine::format::features::Feature::LAYOUT_BLOCKS)
            .with_slots(size),
    )
}

/// As [`formatted`], on `blocks` metadata blocks.
pub fn formatted_in(blocks: u64) -> crate::handle::Mfs {
    new_store(blocks, engine::format::features::Features::NONE)
}

fn new_store(blocks: u64, features: engine::format::features::Features) -> crate::handle::Mfs {
    new_store_with_log(blocks, 0, features)
}

/// An empty file system in memory, on `blocks` metadata blocks, which [`image_of`] can copy to a
/// device.
pub fn formatted_for_images(
    blocks: u64,
    features: engine::format::features::Features,
) -> crate::handle::Mfs {
    new_store_with_log(blocks, 16, features)
}

/// A closed device with the content of a store of [`formatted_for_images`].
pub fn image_of(mfs: &crate::handle::Mfs) -> env::sim::SimDisk {
    use types::limits::{BLOCK, BLOCK_U64};
    let mut superblock = mfs.superblock();
    let blocks = superblock.blocks;
    let disk = env::sim::SimDisk::new((blocks + 1) * BLOCK_U64);
    let cached = |at| {
        let copy = mfs.with_cached(types::MetaBlock(at), |data| data.copied());
        copy.map(|data| (at, data))
    };
    for (at, mut data) in (0..blocks).filter_map(cached) {
        superblock.tail = superblock.tail.max(engine::format::block::lsn_of(&data));
        engine::format::block::seal(&mut data);
        disk.poke(at * BLOCK_U64, &data);
    }
    superblock.tail.0 = superblock.tail.0.next_multiple_of(BLOCK_U64);
    for index in 0..2 {
        let mut data = [0; BLOCK];
        superblock.encode(index, &mut data);
        let place = engine::format::superblock::Superblock::place(index, blocks);
        disk.poke(place.0 * BLOCK_U64, &data);
    }
    label::put(&disk, &engine::store::mkfs::label_of(&superblock));
    disk
}

fn new_store_with_log(
    blocks: u64,
    log_blocks: u64,
    features: engine::format::features::Features,
) -> crate::handle::Mfs {
    use crate::mkfs::{FormatOptions, PagFormat};
    let pag = |id: u16| PagFormat::whole(types::PagId(id), types::Uuid([id as u8; 16]), 10_000);
    let options = FormatOptions {
        name: "test".into(),
        uuid: types::Uuid([7; 16]),
        log_bytes: 0,
        pags: vec![pag(0), pag(1)],
        features,
        force: false,
    };
    let mfs = crate::handle::Mfs::over(engine::store::Store::in_memory(blocks, log_blocks));
    mfs.set_features(features);
    now(mfs.run(engine::cost::Cost::STEP, |txn| crate::mkfs::write_initial_content(txn, &options)))
        .unwrap();
    mfs
}

/// A new inode of this kind with arbitrary attributes; it has no target, which a symlink needs.
pub fn new_inode(kind: types::FileKind) -> crate::names::NewInode<'static> {
    let time = types::Timestamp { seconds: 1, nanos: 2 };
    crate::names::NewInode {
        kind,
        mode: 0o600,
        uid: 1,
        gid: 1,
        rdev: 0,
        size: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        client: types::ClientId::NONE,
        symlink: None,
    }
}

/// Clients begin to replay.
pub fn begin_replays(mfs: &crate::handle::Mfs) {
    run(mfs, |txn| {
        txn.names().begin_replays();
        Ok(())
    });
}

/// Runs a transaction, which must succeed, on a volatile store.
pub fn run<T>(
    mfs: &crate::handle::Mfs,
    body: impl FnMut(&mut crate::txn::Txn<'_>) -> Result<T, engine::error::Stop>,
) -> T {
    now(mfs.run(engine::cost::Cost::STEP, body)).unwrap().0
}

/// Changes the link count of an inode.
pub fn links(
    txn: &mut crate::txn::Txn<'_>,
    ino: types::Ino,
    change: i32,
) -> Result<(), engine::error::Stop> {
    let attr = txn.names().attr(ino)?.unwrap();
    let nlink = attr.nlink.saturating_add_signed(change);
    txn.names().set_attr(&types::Attr { nlink, ..attr })
}

/// Creates a directory.
pub fn new_dir(
    txn: &mut crate::txn::Txn<'_>,
    parent: types::Ino,
    text: &str,
) -> Result<types::Ino, engine::error::Stop> {
    let name = types::Name::new(text.as_bytes()).unwrap();
    txn.names().create(parent, &name, &new_inode(types::FileKind::Directory), None)
}
