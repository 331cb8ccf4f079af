//! Checks the consistency rules of FORMAT.md with the reader: sums, indices and the bitmap.

use std::collections::BTreeMap;

use crate::device::BLOCK;
use crate::image::{Image, NamedInode, Outside, Subtree};
use crate::inode::{INODE, Inode, Kind, Slot};
use crate::superblock::{FOLLOWED_OBJECTS, LAYOUT_BLOCKS, LENT_SPACE, MOVED_DIRECTORIES, SHARDS};

/// Panics where two parts of the file system contradict each other.
pub fn check(image: &Image) {
    let subtrees = image.subtrees().unwrap();
    let outside = image.outside().unwrap();
    let orphans: Vec<Inode> =
        image.orphans().unwrap().iter().map(|&ino| by_number(image, ino)).collect();
    assert!(orphans.iter().all(|inode| inode.nlink == 0));
    // Inodes of which all names are on other shards.
    let away: Vec<Inode> = outside.iter().map(|it| by_number(image, it.ino)).collect();
    let found = subtrees.iter().flat_map(|it| &it.found).map(|found| &found.inode);
    let named: BTreeMap<u64, &Inode> = found.chain(&away).map(|inode| (inode.ino, inode)).collect();
    let inodes: Vec<&Inode> = named.values().copied().chain(&orphans).collect();
    numbers(image, &inodes);
    // Root 16 also counts the orphan directory.
    assert_eq!(image.roots[16], inodes.len() as u64 + 1);
    for inode in &inodes {
        sizes(inode);
        if inode.kind == Kind::Directory {
            counts(image, &image.locate(inode.ino).unwrap());
        }
    }
    orphan_directory(image, &orphans, &named);
    subtrees.iter().for_each(|subtree| names(image, &subtree.found));
    namespace_index(image, &subtrees);
    other_shards(image, &subtrees, &named);
    data_space(image, &inodes);
    objects(image, &inodes);
    let visited: Vec<u64> = image.device.visited.borrow().keys().copied().collect();
    for block in visited {
        assert!(image.is_allocated(block).unwrap(), "block {block} is in use and free");
    }
    assert!((0..image.device.blocks).any(|block| !image.is_allocated(block).unwrap()));
}

fn by_number(image: &Image, ino: u64) -> Inode {
    image.inode(&image.locate(ino).unwrap()).unwrap()
}

/// Checks that the superblock's shard issued every number (6, 11), but for directories that came
/// from others (7.6).
fn numbers(image: &Image, inodes: &[&Inode]) {
    let shard = u64::from(image.superblock.shard);
    let homes = image.homes().unwrap();
    assert!(homes.is_empty() || image.superblock.has(MOVED_DIRECTORIES));
    assert!(homes.iter().all(|(ino, home)| ino >> 56 != u64::from(*home)));
    let may_be_here = |inode: &&Inode| match homes.get(&inode.ino) {
        // What is left of a directory that went is an orphan.
        Some(home) => u64::from(*home) == shard || inode.nlink == 0,
        None => inode.ino >> 56 == shard,
    };
    assert!(inodes.iter().all(may_be_here));
    assert!(image.clients().unwrap().iter().all(|(client, _)| client >> 40 == shard));
}

/// Checks the sums in a slot (7.2).
fn sizes(inode: &Inode) {
    match inode.kind {
        Kind::Directory => assert_eq!(inode.size, inode.blocks * BLOCK as u64),
        Kind::Symlink => assert_eq!(inode.size, inode.target.len() as u64),
        Kind::Regular => {
            assert_eq!(inode.blocks, inode.segments.iter().map(|segment| segment.len).sum::<u64>());
            assert!(inode.content.len() as u64 <= inode.size);
        }
        _ => assert_eq!((inode.blocks, inode.size), (0, 0)),
    }
    assert!(inode.xattrs.is_sorted_by(|a, b| a.0 < b.0), "attributes out of order");
}

/// Checks the counts in a directory's slot: the fragmentation count, and the names if the directory
/// has a name map (7.2).
fn counts(image: &Image, dir: &Slot) {
    let (mut names, mut fragments) = (0, 0);
    let mut count = |slot: Slot| {
        names += 1;
        if slot.state == INODE && slot.kind() == Kind::Regular {
            fragments += image.inode(&slot)?.segments.len() as u32 / 16;
        }
        Ok(())
    };
    image.list(dir, &mut count).unwrap();
    let counted = image.superblock.has(LAYOUT_BLOCKS);
    assert_eq!(dir.fragments, if counted { fragments } else { 0 });
    assert_eq!(dir.words[1], if dir.map != 0 { names } else { 0 });
}

/// The orphan directory has the orphans, and the inodes whose names are all links.
fn orphan_directory(image: &Image, orphans: &[Inode], named: &BTreeMap<u64, &Inode>) {
    let mut found_orphans = 0;
    let mut one = |slot: Slot| {
        assert!(slot.name.is_empty() && slot.state == INODE);
        let is_orphan = orphans.iter().any(|orphan| orphan.ino == slot.ino);
        found_orphans += usize::from(is_orphan);
        assert!(is_orphan != named.contains_key(&slot.ino));
        Ok(())
    };
    image.list(&image.locate(image.superblock.orphan_directory()).unwrap(), &mut one).unwrap();
    assert_eq!(found_orphans, orphans.len());
}

/// A lookup finds every name, and finds no other name.
fn names(image: &Image, found: &[NamedInode]) {
    for NamedInode { path, parent, inode } in &found[1..] {
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap();
        let dir = image.locate(*parent).unwrap();
        let slot = image.lookup(&dir, name).unwrap().expect("a name that is listed");
        assert_eq!(slot.ino, inode.ino);
        assert!(image.lookup(&dir, &[name, b"!"].concat()).unwrap().is_none());
    }
}

/// The index has every directory except the root, orphans and those whose names are on other
/// shards, with its parent's first chunk and its own creator (7.4).
fn namespace_index(image: &Image, subtrees: &[Subtree]) {
    let found = subtrees.iter().flat_map(|subtree| &subtree.found[1..]);
    let dirs = found.filter(|found| found.inode.kind == Kind::Directory);
    let mut expected: Vec<_> = dirs
        .map(|found| {
            let (parent, dir) =
                (image.locate(found.parent).unwrap(), image.locate(found.inode.ino).unwrap());
            (parent.body, u64::from(dir.words[0]), found.inode.ino)
        })
        .collect();
    expected.sort_unstable();
    let index = image.namespace_index().unwrap();
    assert_eq!(index, expected);
}

/// Names that lead to other shards have their numbers. What is kept of an inode's names there fits
/// its type, place and links (7.5).
fn other_shards(image: &Image, subtrees: &[Subtree], named: &BTreeMap<u64, &Inode>) {
    if !image.superblock.has(SHARDS) {
        return;
    }
    let homes = image.homes().unwrap();
    let is_here = |ino: u64| {
        let home = homes.get(&ino).map_or(ino >> 56, |home| u64::from(*home));
        home == u64::from(image.superblock.shard)
    };
    let foreign: Vec<_> = subtrees.iter().flat_map(|subtree| &subtree.foreign).collect();
    assert!(foreign.iter().all(|name| !is_here(name.ino)));
    let below = || subtrees.iter().flat_map(|subtree| &subtree.found[1..]);
    for Outside { ino, parent, names } in image.outside().unwrap() {
        let (inode, slot) = (named[&ino], image.locate(ino).unwrap());
        let here = below().filter(|found| found.inode.ino == ino).count();
        if inode.kind == Kind::Directory {
            assert!(names == 0 && !is_here(parent) && here == 0 && slot.name.is_empty());
            assert!(inode.nlink >= 2);
        } else {
            assert!(names > 0 && parent == 0);
            assert_eq!(inode.nlink as usize, here + names as usize);
        }
    }
    for dir in named.values().filter(|inode| inode.kind == Kind::Directory) {
        let is_in = |found: &&NamedInode| found.parent == dir.ino;
        let here = below().filter(is_in).filter(|it| it.inode.kind == Kind::Directory).count();
        let there = foreign.iter().filter(|it| it.dir == dir.ino && it.kind == Kind::Directory);
        assert_eq!(dir.nlink as usize, 2 + here + there.count(), "links of directory {}", dir.ino);
    }
}

/// A file's targets are targets of the table, its object was issued, perhaps by another shard, and
/// nobody destroys it (10).
fn objects(image: &Image, inodes: &[&Inode]) {
    let pags = image.pags().unwrap();
    let [doomed, _] = image.owed_by_targets().unwrap();
    let is_target = |id: &u16| pags.iter().any(|pag| pag.id == *id && pag.target);
    for object in inodes.iter().filter_map(|inode| inode.object.as_ref()) {
        assert!(object.targets.iter().all(is_target));
        match object.number >> 56 == u64::from(image.superblock.shard) {
            true => assert!(object.number & ((1 << 56) - 1) < image.roots[21]),
            false => assert!(image.superblock.has(FOLLOWED_OBJECTS)),
        }
        assert!(doomed.iter().all(|(_, number)| *number != object.number));
    }
    assert!(doomed.iter().all(|(target, _)| is_target(target)));
}

/// Every data block except the label has exactly one user (10), which may be another shard. In a
/// zone of another shard that holds for the blocks that it has lent.
fn data_space(image: &Image, inodes: &[&Inode]) {
    let (free, freed, pools) =
        (image.free().unwrap(), image.freed().unwrap(), image.pools().unwrap());
    let lent = image.lent().unwrap();
    assert!(lent.is_empty() || image.superblock.has(LENT_SPACE));
    let own = u64::from(image.superblock.shard);
    assert!(lent.iter().all(|(run, sequence)| run.client != own && *sequence > 0));
    for pag in image.pags().unwrap() {
        if pag.target {
            // Nothing of it is in the other trees, and nothing is counted.
            assert_eq!((pag.free, pag.freed, pag.start, pag.uuid), (0, 0, 0, pag.device));
            let mut all = free.iter().chain(&freed).chain(&pools);
            assert!(all.all(|run| run.pag != pag.id));
            continue;
        }
        let runs = [&free, &freed, &pools].map(|runs| runs.iter().filter(|run| run.pag == pag.id));
        let [free, freed, _] = runs.clone().map(|runs| runs.map(|run| run.len).sum::<u64>());
        assert_eq!((pag.free, pag.freed), (free, freed));
        let mut all: Vec<(u64, u64)> =
            runs.into_iter().flatten().map(|run| (run.start, run.len)).collect();
        let segments = inodes.iter().flat_map(|inode| &inode.segments);
        all.extend(segments.filter(|segment| segment.pag == pag.id).map(|s| (s.addr, s.len)));
        let lent = lent.iter().filter(|(run, _)| run.pag == pag.id);
        let mut lent: Vec<(u64, u64)> = lent.map(|(run, _)| (run.start, run.len)).collect();
        if pag.borrowed {
            // What lies between them is the other shard's.
            lent.push((pag.blocks, 0));
            let mut at = 1;
            for (start, len) in lent {
                assert!(start >= at, "zone {}: a block was lent twice", pag.id);
                all.push((at, start - at));
                at = start + len;
            }
            all.retain(|&(_, len)| len > 0);
        } else {
            all.extend(lent);
        }
        all.sort_unstable();
        let end = all.iter().fold(1, |at, &(start, len)| {
            assert_eq!(start, at, "zone {}: a block has two users, or none", pag.id);
            start + len
        });
        assert_eq!(end, pag.blocks);
    }
}
