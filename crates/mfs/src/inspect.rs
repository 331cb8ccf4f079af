//! Inspects an open store from outside, for the checkers of tests.
//!
//! Invariant: an inspection changes nothing, waits for nothing and reads nothing through the
//! device. It takes blocks that are not cached from a copy of the home blocks, and does not cache
//! them.

use types::MetaBlock;
use types::limits::BLOCK;

use crate::handle::Mfs;
use crate::txn::Txn;
use engine::error::Stop;
use engine::format::block::{self, Block};

impl Mfs {
    /// Runs `body` on the committed state; `home` returns the bytes at home of a block that is not
    /// cached. `None` if the store is busy or has failed, or if the body fails.
    pub fn inspect<T>(
        &self,
        home: impl Fn(MetaBlock) -> Vec<u8>,
        mut body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Option<T> {
        let mut txn = self.try_look()?;
        let tag = txn.tag();
        let result = loop {
            let (first, count) = match body(&mut txn) {
                Ok(result) => break Some(result),
                Err(
                    Stop::Miss(first, count)
                    | Stop::Scan(first, count)
                    | Stop::MissWithReadahead(first, count, _),
                ) => (first, u64::from(count.max(1))),
                Err(
                    Stop::WaitDurable(_)
                    | Stop::Fault(_)
                    | Stop::Corrupt(..)
                    | Stop::OwnerMismatch(..),
                ) => {
                    break None;
                }
            };
            let missing = (first.0..first.0 + count).map(MetaBlock);
            let missing = missing.filter(|&block| txn.read(block).is_err()).collect::<Vec<_>>();
            let added = missing.iter().all(|&block| {
                let bytes: Option<Box<Block>> = home(block).into_boxed_slice().try_into().ok();
                let sound = bytes.filter(|bytes| block::verify(bytes, block, tag).is_ok());
                sound.map(|bytes| txn.overlay_from_home(block, bytes)).is_some()
            });
            if !added || missing.is_empty() {
                break None;
            }
        };
        txn.abort();
        result
    }
}

const _: () = assert!(BLOCK == size_of::<Block>());

#[cfg(test)]
mod tests {
    use env::DiskOptions;
    use env::sim::SimWorld;
    use types::limits::BLOCK_U64;
    use types::{FileBlock, FileKind, Ino, Name, PagBlock, Segment, SegmentState};

    use super::*;
    use crate::open::OpenOptions;
    use crate::space::BlockOwner;
    use crate::testing::{formatted_for_images, image_of, new_inode, run};
    use engine::format::features::Features;

    #[test]
    fn inspection_finds_block_owners_without_device_reads_or_caching() {
        let mfs = formatted_for_images(4000, Features::NONE);
        let client = run(&mfs, |txn| txn.new_client(b"c"));
        let (pag, addr, len) = run(&mfs, |txn| txn.space().grant(client, None, 4))[0];
        assert_eq!(len, 4);
        let name = Name::new(b"file").expect("a name");
        let ino = run(&mfs, |txn| {
            txn.names().create(Ino::ROOT, &name, &new_inode(FileKind::Regular), None)
        });
        let segment = |nth: u64| Segment {
            file: FileBlock(nth),
            len: 1,
            pag,
            addr: PagBlock(addr.0 + nth),
            state: SegmentState::Written,
        };
        run(&mfs, |txn| txn.layouts().map(ino, client, segment(0)));
        run(&mfs, |txn| txn.layouts().map(ino, client, segment(1)));
        run(&mfs, |txn| txn.layouts().unmap(ino, FileBlock(1), FileBlock(2)));
        let disk = image_of(&mfs);
        let world = SimWorld::new(1);
        world.attach("meta", &disk);
        world.run(|env| async move {
            let options = DiskOptions { write: true, exclusive: true };
            let opened = env.open_disk("meta", options).await.expect("it is attached");
            let mfs = Mfs::open(&env, &opened, OpenOptions::default()).await.expect("whole");
            let before = (disk.counts(), mfs.usage().cached);
            let home = |block: MetaBlock| disk.peek(block.0 * BLOCK_U64, BLOCK);
            let owner =
                |nth: u64| mfs.inspect(home, |txn| txn.space().owner(pag, PagBlock(addr.0 + nth)));
            assert_eq!(owner(0), Some(BlockOwner::Mapped));
            assert_eq!(owner(1), Some(BlockOwner::Freed(ino)));
            assert_eq!(owner(2), Some(BlockOwner::Pool(client)));
            assert_eq!(owner(4), Some(BlockOwner::Free));
            assert_eq!((disk.counts(), mfs.usage().cached), before);
            let nowhere = mfs.inspect(|_| vec![0; BLOCK], |txn| txn.space().owner(pag, addr));
            assert_eq!(nowhere, None, "a block of zeros is no tree node");
        });
    }
}
