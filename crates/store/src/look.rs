//! Looking at an open store from outside, for checkers of tests.
//!
//! Invariant: a look changes nothing, waits for nothing and reads nothing through the device: what
//! is not cached is taken from a copy of what lies at home, and stays out of the cache.

use types::limits::BLOCK;
use types::{ClientId, Ino, MetaBlock, PagBlock, PagId};

use crate::block::{self, Block};
use crate::error::Stop;
use crate::format::space::{FreedRun, decode_run_key, run_key};
use crate::mfs::{Cost, Mfs};
use crate::trees::{CLIENTS, FREED};
use crate::txn::Txn;

/// Whose a block of a data zone is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// Nobody's.
    Free,
    /// Of this client's pool.
    Pool(ClientId),
    /// It left the layout of this file, and is not free yet.
    Freed(Ino),
    /// None of these: a file's, as long as every block is somebody's.
    Mapped,
}

impl Mfs {
    /// What `body` reads now, of what is committed; what is not cached `home` gives as it lies on
    /// the device. `None`: the store is busy or has failed, or the body does.
    pub fn look<T>(
        &self,
        home: impl Fn(MetaBlock) -> Vec<u8>,
        mut body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Option<T> {
        let mut state = self.inner.state.try_borrow_mut().ok()?;
        state.usable().ok()?;
        let tag = state.tag;
        let mut txn = Txn::new(&mut state, Cost::READ);
        let seen = loop {
            let (first, count) = match body(&mut txn) {
                Ok(seen) => break Some(seen),
                Err(
                    Stop::Miss(first, count)
                    | Stop::Scan(first, count)
                    | Stop::Along(first, count, _),
                ) => (first, u64::from(count.max(1))),
                Err(Stop::Resting(_) | Stop::Fault(_) | Stop::Corrupt(..) | Stop::Foreign(..)) => {
                    break None;
                }
            };
            let missing = (first.0..first.0 + count).map(MetaBlock);
            let missing = missing.filter(|&block| txn.read(block).is_err()).collect::<Vec<_>>();
            let laid = missing.iter().all(|&block| {
                let bytes: Option<Box<Block>> = home(block).into_boxed_slice().try_into().ok();
                let sound = bytes.filter(|bytes| block::verify(bytes, block, tag).is_ok());
                sound.map(|bytes| txn.lay_aside(block, bytes)).is_some()
            });
            if !laid || missing.is_empty() {
                break None;
            }
        };
        txn.abort();
        seen
    }
}

impl Txn<'_> {
    /// Whose a block above the label of a data zone is.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn owner(&mut self, pag: PagId, at: PagBlock) -> Result<Owner, Stop> {
        let holds = |(start, len): (u64, u64)| start + len > at.0;
        if self.free_run_to(pag, at.0)?.is_some_and(holds) {
            return Ok(Owner::Free);
        }
        if let Some((key, value)) = FREED.prev(self, &run_key(pag, at.0))? {
            let ((of, start), freed) = (decode_run_key(&key), FreedRun::decode(&value));
            if of == pag && holds((start.0, freed.len)) {
                return Ok(Owner::Freed(freed.ino));
            }
        }
        for (key, _) in CLIENTS.range(self, &[0; 8], usize::MAX)? {
            let client = ClientId(u64::from_be_bytes(key));
            if self.pool_run_to(client, pag, at.0)?.is_some_and(holds) {
                return Ok(Owner::Pool(client));
            }
        }
        Ok(Owner::Mapped)
    }
}

const _: () = assert!(BLOCK == size_of::<Block>());

#[cfg(test)]
mod tests {
    use env::DiskOptions;
    use env::sim::SimWorld;
    use types::limits::BLOCK_U64;
    use types::{Extent, ExtentState, FileBlock, FileKind, Name};

    use super::*;
    use crate::features::Features;
    use crate::open::OpenOptions;
    use crate::testing::{formatted_for_images, image_of, new_inode, run};

    #[test]
    fn a_look_tells_whose_a_block_is_and_neither_reads_the_device_nor_fills_the_cache() {
        let mfs = formatted_for_images(4000, Features::USUAL);
        let client = run(&mfs, |txn| txn.new_client(b"c"));
        let (pag, addr, len) = run(&mfs, |txn| txn.grant(client, None, 4))[0];
        assert_eq!(len, 4);
        let name = Name::new(b"file").expect("a name");
        let ino =
            run(&mfs, |txn| txn.create(Ino::ROOT, &name, &new_inode(FileKind::Regular), None));
        let extent = |nth: u64| Extent {
            file: FileBlock(nth),
            len: 1,
            pag,
            addr: PagBlock(addr.0 + nth),
            state: ExtentState::Written,
        };
        run(&mfs, |txn| txn.map(ino, client, extent(0)));
        run(&mfs, |txn| txn.map(ino, client, extent(1)));
        run(&mfs, |txn| txn.unmap(ino, FileBlock(1), FileBlock(2)));
        let disk = image_of(&mfs);
        let world = SimWorld::new(1);
        world.attach("meta", &disk);
        world.run(|env| async move {
            let options = DiskOptions { write: true, exclusive: true };
            let opened = env.open_disk("meta", options).await.expect("it is attached");
            let mfs = Mfs::open(&env, &opened, OpenOptions::default()).await.expect("whole");
            let before = (disk.counts(), mfs.usage().cached);
            let home = |block: MetaBlock| disk.peek(block.0 * BLOCK_U64, BLOCK);
            let owner = |nth: u64| mfs.look(home, |txn| txn.owner(pag, PagBlock(addr.0 + nth)));
            assert_eq!(owner(0), Some(Owner::Mapped));
            assert_eq!(owner(1), Some(Owner::Freed(ino)));
            assert_eq!(owner(2), Some(Owner::Pool(client)));
            assert_eq!(owner(4), Some(Owner::Free));
            assert_eq!((disk.counts(), mfs.usage().cached), before);
            let nowhere = mfs.look(|_| vec![0; BLOCK], |txn| txn.owner(pag, addr));
            assert_eq!(nowhere, None, "what lies there is no block of a tree");
        });
    }
}
