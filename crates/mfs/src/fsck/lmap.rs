//! Name maps: every name of a large directory has one entry, in the bucket of its hash, and there
//! is no other entry.

use types::{Ino, MetaBlock};

use super::names::{Directory, Names};
use super::plan::Fix;
use super::{Check, ProblemKind, Subject};
use crate::format::chunk::MAP_CHUNK;
use crate::format::lmap::{self, NameMapEntry, bucket_of};
use crate::format::number::is_orphan_dir;
use crate::names::Chunk;
use engine::check::prefetch;
use engine::error::StoreError;
use engine::format::block::BlockType;

/// Buckets read together.
const BATCH: u32 = 64;
/// Free blocks for each content block that repair wants before it makes a missing map.
const ROOM: u64 = 8;
/// Blocks chained to one bucket at most.
const CHAIN_MAX: usize = 1 << 16;

impl Check {
    /// The chunks of a directory's map, as far as they fit together; marks each as reached.
    pub(super) fn map_chunks(&mut self, of: &Directory) -> Vec<Chunk> {
        let mut out: Vec<Chunk> = Vec::new();
        let mut number = of.map;
        while number.0 != 0 {
            // A map that is being freed has lost its first chunks.
            let index = MAP_CHUNK | out.len() as u32;
            let fits = |chunk: &Chunk| {
                let descriptor = &chunk.descriptor;
                let indexed = descriptor.index == index || of.nlink == 0 && descriptor.is_map();
                descriptor.owner == of.ino && indexed
            };
            match self.tree.chunks.get_mut(&number) {
                Some((chunk, reached)) if fits(chunk) && !*reached => {
                    *reached = true;
                    number = chunk.descriptor.next;
                    out.push(chunk.clone());
                }
                _ => {
                    self.bad_map(of.ino, Subject::Chunk(number), "missing, or another's".into());
                    break;
                }
            }
        }
        out
    }

    fn bad_map(&mut self, dir: Ino, subject: Subject, what: String) {
        let detail = format!("directory {dir}: {what}");
        self.found(ProblemKind::BadNameMap, subject, detail);
        self.plan.add(Fix::DropMap(dir));
    }

    /// A directory without a map: repair makes one if the directory is large and there is room. An
    /// interrupted repair leaves such directories. It is no finding: a directory for whose map
    /// there was no room is sound.
    fn unmapped(&mut self, of: &Directory) {
        let least = self.mfs.volatile_state().limits.blocks;
        let usage = self.mfs.usage();
        // A bucket holds the names of more than one block, so this is enough for any names.
        let room = usage.blocks_free >= usage.blocks_set_aside + ROOM * of.blocks;
        if room && of.blocks >= least && !is_orphan_dir(of.ino) {
            self.without_map.push(of.ino);
        }
    }

    /// Compares the name map of a directory with the names that its content has.
    pub(super) async fn name_map(
        &mut self,
        of: &Directory,
        chunks: &[Chunk],
        names: &mut Names,
    ) -> Result<(), StoreError> {
        if of.nlink == 0 {
            return Ok(());
        }
        if of.map.0 == 0 {
            self.unmapped(of);
            return Ok(());
        }
        let buckets: u32 = chunks.iter().map(|chunk| chunk.descriptor.used).sum();
        let (mut found, mut bucket) = (Vec::new(), 0);
        for chunk in chunks {
            let used = chunk.descriptor.used;
            for run in chunk.runs.iter().filter_map(|run| run.part(0, used)) {
                for block in (run.first..run.end()).filter(|_| run.is_present()) {
                    if (block - run.first).is_multiple_of(BATCH) {
                        let count = BATCH.min(run.end() - block);
                        prefetch(&self.mfs, run.home(block), count).await?;
                    }
                    self.bucket(of.ino, run.home(block), (bucket, buckets), &mut found).await?;
                    bucket += 1;
                }
            }
        }
        if buckets == 0 || bucket != buckets {
            let what = format!("{bucket} of {buckets} buckets are there");
            self.bad_map(of.ino, Subject::Inode(of.ino), what);
            return Ok(());
        }
        self.compare_names(of, &mut names.list, &mut found);
        Ok(())
    }

    /// Reads one bucket, with what is chained to it.
    async fn bucket(
        &mut self,
        dir: Ino,
        head: MetaBlock,
        (bucket, buckets): (u32, u32),
        out: &mut Vec<NameMapEntry>,
    ) -> Result<(), StoreError> {
        let mut next = Some(head);
        for _ in 0..CHAIN_MAX {
            let Some(home) = next else { return Ok(()) };
            if home != head {
                self.claim(home, 1, "name map");
            }
            let read = self.read(|txn| {
                let data = txn.read_as(home, BlockType::NameMap)?;
                let entries = lmap::count(data).map(|_| lmap::entries(data).collect::<Vec<_>>());
                Ok((entries, lmap::next(data)))
            });
            let Some((entries, chained)) = read.await? else {
                self.plan.add(Fix::DropMap(dir));
                return Ok(());
            };
            let Some(entries) = entries else {
                self.bad_map(dir, Subject::Block(home), "more entries than fit".into());
                return Ok(());
            };
            if entries.iter().any(|entry| bucket_of(entry.hash, buckets) != bucket) {
                self.bad_map(dir, Subject::Block(home), "an entry of another bucket".into());
            }
            out.extend(entries);
            next = chained;
        }
        self.bad_map(dir, Subject::Block(head), "the chain of a bucket has no end".into());
        Ok(())
    }

    fn compare_names(
        &mut self,
        of: &Directory,
        names: &mut Vec<NameMapEntry>,
        found: &mut Vec<NameMapEntry>,
    ) {
        // Names come in sorted runs, which makes this sort fast.
        names.sort();
        found.sort_unstable();
        let subject = Subject::Inode(of.ino);
        if names != found {
            let missing = names.iter().filter(|name| found.binary_search(name).is_err()).count();
            let wrong = found.iter().filter(|entry| names.binary_search(entry).is_err()).count();
            let what = format!("{missing} names missing, {wrong} entries lead to no such name");
            self.bad_map(of.ino, subject, what);
        }
        if of.mapped as usize != names.len() {
            self.bad_map(of.ino, subject, format!("{} names, {}", names.len(), of.mapped));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use types::{ClientId, DirNo, FileKind, Name, Timestamp};

    use super::*;
    use crate::format::slot::SlotSize;
    use crate::format::slot_size::SlotFeatures;
    use crate::fsck::jobs_tests::checked;
    use crate::fsck::repair::repair_open;
    use crate::fsck::tests::{Outcome, settled};
    use crate::fsck::{FsckOptions, Problem};
    use crate::handle::Mfs;
    use crate::names::{MapLimits, NewInode};
    use crate::testing::{formatted_for_images, now};
    use crate::txn::Txn;
    use engine::cost::Cost;
    use engine::error::Stop;
    use engine::format::block::put_u64;
    use engine::format::features::Features;

    const NAMES: u32 = 200;

    fn name(n: u32) -> Name {
        Name::new(format!("n{n}").as_bytes()).unwrap()
    }

    /// A file system whose root directory has a name map.
    fn mapped(size: SlotSize) -> Mfs {
        let mfs = formatted_for_images(20_000, Features::NONE.with_slots(size));
        fill(&mfs);
        mfs
    }

    fn fill(mfs: &Mfs) {
        mfs.volatile_state_mut().limits = MapLimits::TINY;
        let time = Timestamp::default();
        let new = NewInode {
            kind: FileKind::Regular,
            mode: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            client: ClientId::NONE,
            symlink: None,
        };
        for n in 0..NAMES {
            now(mfs.run(Cost::SMALL, |txn| txn.names().create(Ino::ROOT, &name(n), &new, None)))
                .unwrap();
        }
    }

    /// Plants something in the map, where the name `n0` has its entry; expects the finding, about
    /// the directory, its map, or the bucket, and that repair fixes it without losing a name.
    fn planted(what: &str, plant: impl Fn(&mut Txn<'_>, MetaBlock) -> Result<(), Stop>) {
        for size in SlotSize::ALL {
            planted_on(&mapped(size), what, &plant);
        }
        settled(ProblemKind::BadNameMap, Outcome::Repaired);
    }

    fn planted_on(
        mfs: &Mfs,
        what: &str,
        plant: &impl Fn(&mut Txn<'_>, MetaBlock) -> Result<(), Stop>,
    ) {
        let plant = |txn: &mut Txn<'_>| {
            let map = txn.names().map_of(Ino::ROOT).expect("200 names have a map");
            let head = txn.names().bucket_of_name(Ino::ROOT, map, name(0).as_bytes())?;
            plant(txn, head)?;
            Ok((head, txn.names().locate_live(Ino::ROOT)?.1.map()))
        };
        let (head, map) = now(mfs.run(Cost::STEP, plant)).unwrap().0;
        mfs.forget_indexes();
        let found = checked(mfs).problems;
        assert!(!found.is_empty(), "{what}: nothing was found");
        use ProblemKind::{BadNameMap, DamagedBlock, LostChunk, LostMetaBlock};
        let follow = [BadNameMap, DamagedBlock, LostChunk, LostMetaBlock];
        for problem in &found {
            assert!(follow.contains(&problem.kind), "{what}: {problem}");
        }
        let of = [Subject::Inode(Ino::ROOT), Subject::Chunk(DirNo(map)), Subject::Block(head)];
        let reported = |it: &Problem| it.kind == BadNameMap && of.contains(&it.subject);
        assert!(found.iter().any(reported), "{what}: {found:?}");
        let repaired = now(repair_open(mfs, FsckOptions::default())).unwrap();
        assert_eq!(repaired.left.problems, [], "{what}: {:#?}", repaired.done);
        mfs.forget_indexes();
        assert_eq!(checked(mfs).problems, [], "{what}");
        assert!(now(mfs.run(Cost::READ, |txn| txn.names().lookup(Ino::ROOT, &name(0)))).is_ok());
        let mapped = now(mfs.run(Cost::READ, |txn| Ok(txn.names().map_of(Ino::ROOT)))).unwrap().0;
        assert!(mapped.is_some(), "{what}: the map was made again");
        for n in 0..NAMES {
            let found = now(mfs.run(Cost::READ, |txn| txn.names().lookup(Ino::ROOT, &name(n))));
            assert!(found.unwrap().0.is_some(), "{what}: n{n} is lost");
        }
    }

    #[test]
    fn a_large_directory_that_a_broken_off_repair_left_without_a_map_gets_one_by_the_next() {
        let mfs = mapped(SlotSize::default());
        let drop_map = |txn: &mut Txn<'_>| {
            let (spot, mut slot) = txn.names().locate_live(Ino::ROOT)?;
            slot.set_map(0);
            slot.set_names(0);
            txn.names().store(&spot, &slot)
        };
        now(mfs.run(Cost::STEP, drop_map)).unwrap();
        mfs.forget_indexes();
        let found = checked(&mfs).problems;
        use ProblemKind::{LostChunk, LostMetaBlock};
        assert!(found.iter().all(|p| matches!(p.kind, LostChunk | LostMetaBlock)), "{found:?}");
        let repaired = now(repair_open(&mfs, FsckOptions::default())).unwrap();
        assert_eq!(repaired.left.problems, [], "{:#?}", repaired.done);
        mfs.forget_indexes();
        now(mfs.run(Cost::READ, |txn| txn.names().lookup(Ino::ROOT, &name(0)))).unwrap();
        let mapped = now(mfs.run(Cost::READ, |txn| Ok(txn.names().map_of(Ino::ROOT)))).unwrap().0;
        assert!(mapped.is_some(), "{:#?}", repaired.done);
    }

    #[test]
    fn a_sound_name_map_is_clean() {
        let mfs = mapped(SlotSize::default());
        assert_eq!(checked(&mfs).problems, []);
    }

    #[test]
    pub(crate) fn what_is_wrong_in_a_name_map_is_found() {
        planted("a name without an entry", |txn, head| {
            lmap::swap_remove(txn.write(head)?, 0);
            Ok(())
        });
        planted("an entry without a name", |txn, head| {
            let hash = lmap::entries(txn.read(head)?).next().unwrap().hash;
            lmap::push(txn.write(head)?, NameMapEntry { hash, at: 7 });
            Ok(())
        });
        planted("an entry in the wrong bucket", |txn, head| {
            let hash = lmap::entries(txn.read(head)?).next().unwrap().hash;
            put_u64(txn.write(head)?, 48, hash ^ 1);
            Ok(())
        });
        planted("more entries than a block holds", |txn, head| {
            txn.write(head)?[32..34].fill(0xff);
            Ok(())
        });
        planted("a bucket that is of another type", |txn, head| {
            txn.init(head, BlockType::Blob).map(drop)
        });
        planted("a map that is missing", |txn, _| {
            let (spot, mut slot) = txn.names().locate_live(Ino::ROOT)?;
            slot.set_map(0xff_ffff);
            txn.names().store(&spot, &slot)
        });
        planted("a wrong count of names", |txn, _| {
            let (spot, mut slot) = txn.names().locate_live(Ino::ROOT)?;
            slot.set_names(NAMES + 1);
            txn.names().store(&spot, &slot)
        });
    }
}
