//! Helpers for unit tests.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The value of a future that never waits, such as anything on a volatile store.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the future waits"),
    }
}

/// An empty file system in memory, with two data zones of 10,000 blocks.
pub fn formatted() -> crate::mfs::Mfs {
    formatted_in(200_000)
}

/// An empty file system in memory with slots of this size.
pub fn formatted_with(size: crate::SlotSize) -> crate::mfs::Mfs {
    new_store(200_000, crate::Features::NONE.with_slots(size))
}

/// An empty file system in memory with inline data, in slots of this size.
pub fn formatted_inline(size: crate::SlotSize) -> crate::mfs::Mfs {
    new_store(200_000, crate::Features::NONE.with(crate::Feature::INLINE_DATA).with_slots(size))
}

/// As [`formatted_inline`], with layout blocks.
pub fn formatted_inline_near(size: crate::SlotSize) -> crate::mfs::Mfs {
    formatted_inline_near_in(200_000, size)
}

/// As [`formatted_inline_near`], on `blocks` metadata blocks.
pub fn formatted_inline_near_in(blocks: u64, size: crate::SlotSize) -> crate::mfs::Mfs {
    use crate::{Feature, Features};
    let both = Features::NONE.with(Feature::INLINE_DATA).with(Feature::LAYOUT_BLOCKS);
    new_store(blocks, both.with_slots(size))
}

/// An empty file system in memory with layout blocks, in slots of this size.
pub fn formatted_near(size: crate::SlotSize) -> crate::mfs::Mfs {
    formatted_near_in(200_000, size)
}

/// As [`formatted_near`], on `blocks` metadata blocks.
pub fn formatted_near_in(blocks: u64, size: crate::SlotSize) -> crate::mfs::Mfs {
    new_store(blocks, crate::Features::NONE.with(crate::Feature::LAYOUT_BLOCKS).with_slots(size))
}

/// As [`formatted`], on `blocks` metadata blocks.
pub fn formatted_in(blocks: u64) -> crate::mfs::Mfs {
    new_store(blocks, crate::Features::NONE)
}

fn new_store(blocks: u64, features: crate::Features) -> crate::mfs::Mfs {
    new_store_with_log(blocks, 0, features)
}

/// An empty file system in memory, on `blocks` metadata blocks, which [`image_of`] can copy to a
/// device.
pub fn formatted_for_images(blocks: u64, features: crate::Features) -> crate::mfs::Mfs {
    new_store_with_log(blocks, 16, features)
}

/// A closed device with the content of a store of [`formatted_for_images`].
pub fn image_of(mfs: &crate::mfs::Mfs) -> env::sim::SimDisk {
    use types::limits::{BLOCK, BLOCK_U64};
    let state = mfs.inner.state.borrow();
    let blocks = state.superblock.blocks;
    let disk = env::sim::SimDisk::new(blocks * BLOCK_U64);
    let mut superblock = state.superblock.clone();
    let cached = |at| state.cache.get(types::MetaBlock(at)).map(|data| (at, *data));
    for (at, mut data) in (0..blocks).filter_map(cached) {
        superblock.tail = superblock.tail.max(crate::block::lsn_of(&data));
        crate::block::seal(&mut data);
        disk.poke(at * BLOCK_U64, &data);
    }
    superblock.tail.0 = superblock.tail.0.next_multiple_of(BLOCK_U64);
    for index in 0..2 {
        let mut data = [0; BLOCK];
        superblock.encode(index, &mut data);
        let place = crate::superblock::Superblock::place(index, blocks);
        disk.poke(place.0 * BLOCK_U64, &data);
    }
    disk.poke(0, &crate::mkfs::label_of(&superblock).encode());
    disk
}

fn new_store_with_log(blocks: u64, log_blocks: u64, features: crate::Features) -> crate::mfs::Mfs {
    use crate::mkfs::{FormatOptions, PagFormat};
    let pag = |id: u16| PagFormat {
        id: types::PagId(id),
        uuid: types::Uuid([id as u8; 16]),
        blocks: 10_000,
    };
    let options = FormatOptions {
        name: "test".into(),
        uuid: types::Uuid([7; 16]),
        log_bytes: 0,
        pags: vec![pag(0), pag(1)],
        features,
        force: false,
    };
    let mfs = crate::mfs::Mfs::in_memory(blocks, log_blocks);
    mfs.inner.state.borrow_mut().superblock.features = features;
    now(mfs.run(crate::mfs::Cost::STEP, |txn| {
        crate::volatile_state::write_initial_content(txn, &options)
    }))
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

/// Runs a transaction, which must succeed, on a volatile store.
pub fn run<T>(
    mfs: &crate::mfs::Mfs,
    body: impl FnMut(&mut crate::txn::Txn<'_>) -> Result<T, crate::error::Stop>,
) -> T {
    now(mfs.run(crate::mfs::Cost::STEP, body)).unwrap().0
}

/// The next pseudo-random number below `below`.
pub fn random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}
