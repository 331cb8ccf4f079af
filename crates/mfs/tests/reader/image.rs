//! An open metadata device, and the walk through its namespace: FORMAT.md 3.4, 6 and 7.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::path::Path;

use crate::device::{Block, Device, Error, ROOTS, big, damaged, u32_at, u64_at};
use crate::inode::{Inode, Kind, LINK};
use crate::log::{Redone, check_journal, redo};
use crate::superblock::{SHARDS, Superblock};
use crate::tree::{Entry, HOMES, NAMESPACE, ORPHANS, OUTSIDE};

pub struct Image {
    pub superblock: Superblock,
    pub device: Device,
    pub roots: [u64; 64],
}

/// A name, its directory, and its inode. The root has no name.
#[derive(PartialEq, Eq, Debug)]
pub struct NamedInode {
    pub path: Vec<u8>,
    pub parent: u64,
    pub inode: Inode,
}

/// A name of an inode of another shard (7.5).
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ForeignName {
    pub dir: u64,
    pub name: Vec<u8>,
    pub ino: u64,
    pub kind: Kind,
}

/// An inode with names on other shards (7.5).
pub struct Outside {
    pub ino: u64,
    /// Of a directory its parent, else 0.
    pub parent: u64,
    /// Of another inode how many names it has there, else 0.
    pub names: u32,
}

/// A directory, all names below it, and those below it that lead to other shards.
pub struct Subtree {
    pub found: Vec<NamedInode>,
    pub foreign: Vec<ForeignName>,
}

impl Image {
    /// Opens the metadata device in a file, and redoes its internal log in memory.
    pub fn open(path: &Path) -> Result<Image, Error> {
        Image::open_with(path, None)
    }

    /// The same with the file of its journal, if the log is external.
    #[expect(clippy::disallowed_methods, reason = "a reader of plain files")]
    pub fn open_with(path: &Path, journal: Option<&Path>) -> Result<Image, Error> {
        let file = File::open(path)?;
        let superblock = Superblock::find(&file)?;
        let redone = match journal {
            Some(journal) if superblock.is_external() => {
                let journal = File::open(journal)?;
                let durable = check_journal(&journal, &superblock)?;
                let redone = redo(&journal, &superblock)?;
                if redone.end < durable {
                    return Err(Error::Refused("the log ends too early".into()));
                }
                redone
            }
            None if !superblock.is_external() => redo(&file, &superblock)?,
            _ => return Err(Error::Refused("the log is elsewhere".to_owned())),
        };
        let (blocks, tag) = (superblock.blocks, crc32c::crc32c(&superblock.uuid));
        let device = Device { file, blocks, tag, redone, visited: RefCell::new(BTreeMap::new()) };
        let roots = roots_of(&superblock, &device)?;
        Ok(Image { superblock, device, roots })
    }

    /// All names below the root that lead to inodes of this shard.
    pub fn walk(&self) -> Result<Vec<NamedInode>, Error> {
        Ok(self.subtree(self.superblock.root())?.found)
    }

    /// All names below a directory: a directory before its entries, and entries in the order of
    /// their slots.
    pub fn subtree(&self, parent: u64) -> Result<Subtree, Error> {
        let root = self.locate(parent)?;
        let mut found = vec![NamedInode { path: Vec::new(), parent, inode: self.inode(&root)? }];
        let mut foreign = Vec::new();
        let (mut queue, mut visited) =
            (VecDeque::from([(Vec::new(), root)]), BTreeSet::from([parent]));
        let homes = self.homes()?;
        let is_here = |ino: u64| {
            let home = homes.get(&ino).copied().unwrap_or((ino >> 56) as u8);
            home == self.superblock.shard
        };
        while let Some((above, dir)) = queue.pop_front() {
            self.list(&dir, &mut |slot| {
                if slot.state == LINK && !is_here(slot.ino) {
                    if !self.superblock.has(SHARDS) {
                        return damaged(self.roots[1], "a name of another shard's inode");
                    }
                    let kind = slot.kind();
                    foreign.push(ForeignName {
                        dir: dir.ino,
                        name: slot.name,
                        ino: slot.ino,
                        kind,
                    });
                    return Ok(());
                }
                let path = [&above[..], b"/", &slot.name].concat();
                let holder = if slot.state == LINK { self.locate(slot.ino)? } else { slot };
                let inode = self.inode(&holder)?;
                if inode.kind == Kind::Directory {
                    if !visited.insert(inode.ino) {
                        return damaged(self.roots[1], "a directory with two names");
                    }
                    queue.push_back((path.clone(), holder));
                }
                found.push(NamedInode { path, parent: dir.ino, inode });
                Ok(())
            })?;
        }
        Ok(Subtree { found, foreign })
    }

    /// The inodes with names on other shards.
    pub fn outside(&self) -> Result<Vec<Outside>, Error> {
        let outside = |(key, value): &Entry| Outside {
            ino: big(key),
            parent: u64_at(value, 0),
            names: u32_at(value, 8),
        };
        Ok(self.entries(&OUTSIDE)?.iter().map(outside).collect())
    }

    /// The shards of directories that are not on that of their number (7.6).
    pub fn homes(&self) -> Result<BTreeMap<u64, u8>, Error> {
        Ok(self.entries(&HOMES)?.iter().map(|(key, value)| (big(key), value[0])).collect())
    }

    /// The root with all below it, then each directory whose name is on another shard.
    pub fn subtrees(&self) -> Result<Vec<Subtree>, Error> {
        let guests = self.outside()?.into_iter().filter(|it| it.parent != 0).map(|it| it.ino);
        [self.superblock.root()].into_iter().chain(guests).map(|top| self.subtree(top)).collect()
    }

    /// The orphans: a client may have them open.
    pub fn orphans(&self) -> Result<Vec<u64>, Error> {
        Ok(self.entries(&ORPHANS)?.iter().map(|(key, _)| big(key)).collect())
    }

    /// The namespace index (7.4): first chunk of the parent, creator of the directory, directory.
    pub fn namespace_index(&self) -> Result<Vec<(u64, u64, u64)>, Error> {
        let entry = |(key, _): &Entry| (big(&key[..5]), big(&key[5..8]), big(&key[8..]));
        Ok(self.entries(&NAMESPACE)?.iter().map(entry).collect())
    }
}

/// The roots, or the superblock's copy if the last write of their block was lost (3.2).
fn roots_of(superblock: &Superblock, device: &Device) -> Result<[u64; 64], Error> {
    let copy = Some(superblock.roots_copy).filter(|words| *words != [0; 64]);
    let Redone { images, at_home, .. } = &device.redone;
    let block = superblock.roots;
    match (device.read(block, ROOTS), copy) {
        (Ok(data), Some(copy)) => {
            let in_log = images.contains_key(&block) || at_home.contains_key(&block);
            let is_newer = u64_at(&data[..], 16) > superblock.tail;
            Ok(if in_log || is_newer { words_of(&data) } else { copy })
        }
        (Ok(data), None) => Ok(words_of(&data)),
        (Err(Error::Damaged { .. }), Some(copy)) => Ok(copy),
        (Err(error), _) => Err(error),
    }
}

fn words_of(roots: &Block) -> [u64; 64] {
    std::array::from_fn(|n| u64_at(roots, 32 + 8 * n))
}
