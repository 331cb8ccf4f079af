//! Read-around: a client that works on small directories near each other also gets those between
//! them.
//!
//! Invariant: a directory that is read alone costs only its content. More is read only if another
//! directory of the region was read recently, and at most
//! [`crate::volatile::regions::WINDOW_MAX`] blocks.
//!
//! A directory lies near its siblings and near what was created with it ([`super::placement`]), but
//! programs walk a tree in their own order. The kernel's ext4 always reads 32 inode blocks
//! together; here it begins when it pays.

use crate::volatile::regions::WINDOW_FIRST;
use types::MetaBlock;

use super::view::Names;
use engine::error::{Readahead, Stop};

impl Names<'_, '_> {
    /// Adds to `stop` the blocks around the content that it misses, if that is small and other
    /// content near it was read.
    pub(super) fn read_around(&mut self, stop: Stop) -> Stop {
        let (Stop::Miss(first, count) | Stop::Scan(first, count)) = stop else { return stop };
        let end = first.0 + u64::from(count);
        if u64::from(count) > WINDOW_FIRST {
            return stop;
        }
        let Readahead { before, behind } = self.txn.volatile_mut().nearby.window(first.0, end);
        let allocated =
            |block: &u64| matches!(self.txn.meta_allocated(MetaBlock(*block)), Ok(true));
        let least = first.0 - u64::from(before);
        let before = (least..first.0).rev().take_while(allocated).count() as u32;
        let behind = (end..end + u64::from(behind)).take_while(allocated).count() as u32;
        match (before, behind) {
            (0, 0) => stop,
            _ => Stop::MissWithReadahead(first, count, Readahead { before, behind }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use env::DiskOptions;
    use env::sim::{SimDisk, SimWorld};
    use types::{FileKind, Ino, Name, Uuid};

    use super::*;
    use crate::handle::Mfs;
    use crate::mkfs::FormatOptions;
    use crate::open::OpenOptions;
    use crate::testing::new_inode;
    use engine::cost::Cost;
    use engine::error::StoreError;
    use engine::format::features::Features;

    const DIRS: u32 = 64;

    fn name(n: u32) -> Name {
        Name::new(format!("name{n}").as_bytes()).unwrap()
    }

    /// Creates directories with a file each, opens the store again, and looks the files up in
    /// another order. Returns the number of reads and the result of each lookup. Before the lookups
    /// it calls `damage` with the place of each directory's content.
    fn lookups_after_reopening(
        damage: impl Fn(&SimDisk, u32, MetaBlock) -> ControlFlow<()>,
    ) -> (u64, Vec<Result<Option<Ino>, StoreError>>) {
        let world = SimWorld::new(1);
        let disk = world.disk("meta", 256 << 20);
        let outside = disk.clone();
        world.run(|env| async move {
            let disk = env.open_disk("meta", DiskOptions { write: true, exclusive: false });
            let disk = disk.await.unwrap();
            let format = FormatOptions {
                name: "home".to_owned(),
                uuid: Uuid([9; 16]),
                log_bytes: 16 << 20,
                pags: vec![],
                features: Features::NONE,
                force: false,
            };
            Mfs::format(&env, &disk, &format).await.unwrap();
            let mfs = Mfs::open(&env, &disk, OpenOptions::default()).await.unwrap();
            // Directories of the root begin in regions of their own.
            let top = mfs.run(Cost::SMALL, |txn| {
                txn.names().create(Ino::ROOT, &name(0), &new_inode(FileKind::Directory), None)
            });
            let top = top.await.unwrap().0;
            let mut dirs = Vec::new();
            for n in 0..DIRS {
                let make = mfs.run(Cost::SMALL, |txn| {
                    let dir =
                        txn.names().create(top, &name(n), &new_inode(FileKind::Directory), None)?;
                    txn.names().create(dir, &name(n), &new_inode(FileKind::Regular), None)?;
                    let number = txn.names().read_chunks(dir)?[0];
                    Ok((dir, txn.names().chunk(number)?.runs[0].start))
                });
                dirs.push(make.await.unwrap().0);
            }
            mfs.close().await.unwrap();
            for (n, &(_, start)) in dirs.iter().enumerate() {
                if damage(&outside, n as u32, start).is_break() {
                    break;
                }
            }
            let mfs = Mfs::open(&env, &disk, OpenOptions::default()).await.unwrap();
            for &(dir, _) in &dirs {
                // Do not count reads of the directory's slot and table.
                mfs.run(Cost::READ, |txn| txn.names().read_chunks(dir)).await.unwrap();
            }
            let before = outside.counts().reads;
            let mut found = Vec::new();
            for n in (0..DIRS).map(|n| n * 37 % DIRS) {
                let dir = dirs[n as usize].0;
                found.push(mfs.run(Cost::READ, |txn| txn.names().lookup(dir, &name(n))).await);
            }
            let found = found.into_iter().map(|found| found.map(|(found, _)| found)).collect();
            (outside.counts().reads - before, found)
        })
    }

    #[test]
    fn nearby_directories_cost_few_reads_in_any_order() {
        let (reads, found) = lookups_after_reopening(|_, _, _| ControlFlow::Break(()));
        assert!(found.iter().all(|found| matches!(found, Ok(Some(_)))), "{found:?}");
        assert!(reads <= u64::from(DIRS) / 4, "{reads}");
    }

    #[test]
    fn damaged_directory_fails_only_its_own_lookups() {
        let bad = 5;
        let flip = |disk: &SimDisk, n: u32, start: MetaBlock| {
            if n == bad {
                disk.flip_bit(start.0 * types::limits::BLOCK_U64 + 200, 3);
            }
            ControlFlow::Continue(())
        };
        let unreadable = |disk: &SimDisk, n: u32, start: MetaBlock| {
            if n == bad {
                let block = types::limits::BLOCK_U64;
                disk.make_unreadable(start.0 * block..(start.0 + 1) * block);
            }
            ControlFlow::Continue(())
        };
        for (_, found) in [lookups_after_reopening(flip), lookups_after_reopening(unreadable)] {
            for (n, found) in (0..DIRS).map(|n| n * 37 % DIRS).zip(found) {
                assert_eq!(found.is_err(), n == bad, "{n}: {found:?}");
            }
        }
    }
}
