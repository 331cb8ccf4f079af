//! Everything that must hold between the blocks of the layout, checked by reading all of it.

use std::collections::{BTreeMap, BTreeSet};

use mfs::{BlockType, Stop, Txn};
use types::{FileKind, Ino, MetaBlock};

use super::dirent::Entries;
use super::inode::{EACH, Record};
use super::linear::{hash_name, is_dots};
use super::{Traditional, USED_BEFORE};

/// What the walk has seen.
#[derive(Default)]
struct Seen {
    problems: Vec<String>,
    blocks: BTreeSet<MetaBlock>,
    /// Names of each inode, and subdirectories of each directory.
    names: BTreeMap<Ino, u32>,
    children: BTreeMap<Ino, u32>,
}

impl Seen {
    fn wrong(&mut self, text: String) {
        self.problems.push(text);
    }

    fn block(&mut self, txn: &Txn<'_>, block: MetaBlock) -> Result<(), Stop> {
        if !self.blocks.insert(block) {
            self.wrong(format!("block {block} is used twice"));
        }
        if !txn.meta_allocated(block)? {
            self.wrong(format!("block {block} is used and free"));
        }
        Ok(())
    }
}

impl Traditional {
    /// Reads everything and tells what is wrong. For stores that fit into their caches.
    ///
    /// # Errors
    /// `Corrupt` for what cannot be read as what it should be.
    pub fn check(&self, txn: &mut Txn<'_>) -> Result<Vec<String>, Stop> {
        let mut seen = Seen::default();
        self.walk(txn, &mut seen)?;
        let orphans = self.orphans(txn)?;
        for &ino in &orphans {
            let record = self.live(txn, ino)?;
            if record.nlink != 0 || seen.names.contains_key(&ino) {
                seen.wrong(format!("orphan {ino} has links"));
            }
            self.own_blocks(txn, &record, &mut seen)?;
        }
        self.check_groups(txn, &orphans, &mut seen)?;
        let (blocks, free) = txn.meta_space();
        let used = blocks - free - txn.root(USED_BEFORE)?;
        if used != seen.blocks.len() as u64 {
            seen.wrong(format!("{used} blocks are allocated, {} are used", seen.blocks.len()));
        }
        Ok(seen.problems)
    }

    fn walk(&self, txn: &mut Txn<'_>, seen: &mut Seen) -> Result<(), Stop> {
        let mut left = vec![(Ino::ROOT, Ino::ROOT)];
        seen.names.insert(Ino::ROOT, 1);
        while let Some((dir, parent)) = left.pop() {
            let record = self.live_dir(txn, dir)?;
            self.own_blocks(txn, &record, seen)?;
            if record.is_hashed() {
                self.check_order(txn, dir, &record, seen)?;
            }
            for (name, ino, kind) in self.all_entries(txn, &record)? {
                let wanted = match &name[..] {
                    b"." => dir,
                    b".." => parent,
                    _ => ino,
                };
                if wanted != ino {
                    seen.wrong(format!("directory {dir}: {name:?} leads to {ino}"));
                }
                if is_dots(&name) {
                    continue;
                }
                let names = seen.names.entry(ino).or_default();
                *names += 1;
                let first = *names == 1;
                let target = self.load(txn, ino)?;
                if first && kind != Some(FileKind::Directory) {
                    self.own_blocks(txn, &target, seen)?;
                }
                if target.kind != kind {
                    seen.wrong(format!("inode {ino} is not what its entry says"));
                }
                if kind == Some(FileKind::Directory) {
                    *seen.children.entry(dir).or_default() += 1;
                    left.push((ino, dir));
                }
            }
        }
        Ok(())
    }

    #[expect(clippy::type_complexity, reason = "used once")]
    fn all_entries(
        &self,
        txn: &Txn<'_>,
        record: &Record,
    ) -> Result<Vec<(Vec<u8>, Ino, Option<FileKind>)>, Stop> {
        let mut out = Vec::new();
        for index in 0..record.count() {
            let block = self.block_at(txn, record, index)?;
            for entry in Entries::of(txn.read_as(block, BlockType::Table)?) {
                let entry = entry.map_err(|what| Stop::Corrupt(block, what))?;
                if entry.ino != Ino::NONE {
                    out.push((entry.name.to_vec(), entry.ino, entry.kind()));
                }
            }
        }
        Ok(out)
    }

    fn own_blocks(&self, txn: &Txn<'_>, record: &Record, seen: &mut Seen) -> Result<(), Stop> {
        if record.kind == Some(FileKind::Regular) {
            return self.own_extents(txn, record, seen);
        }
        if record.kind != Some(FileKind::Directory) {
            return Ok(());
        }
        let pointers = self.pointer_blocks(txn, record)?;
        let total = record.count() + pointers.len() as u64;
        if total != record.blocks {
            seen.wrong(format!("a directory counts {} blocks and has {total}", record.blocks));
        }
        for block in pointers {
            seen.block(txn, block)?;
        }
        for index in 0..record.count() {
            seen.block(txn, self.block_at(txn, record, index)?)?;
        }
        Ok(())
    }

    fn own_extents(&self, txn: &Txn<'_>, record: &Record, seen: &mut Seen) -> Result<(), Stop> {
        let extents = self.file_extents(txn, record)?;
        if extents.windows(2).any(|pair| pair[0].end() > pair[1].file.0) {
            seen.wrong("a file's extents are not in order".to_owned());
        }
        if extents.iter().map(|extent| extent.len).sum::<u64>() != record.blocks {
            seen.wrong(format!("a file counts {} blocks and maps others", record.blocks));
        }
        match Traditional::own_extent_block(record) {
            Some(block) => seen.block(txn, block),
            None => Ok(()),
        }
    }

    /// Every leaf of an index has the names of its hashes and no others, and every block is in the
    /// index once.
    fn check_order(
        &self,
        txn: &Txn<'_>,
        dir: Ino,
        record: &Record,
        seen: &mut Seen,
    ) -> Result<(), Stop> {
        if record.count() == 1 {
            return Ok(());
        }
        let mut indexed = self.nodes(txn, record)?;
        indexed.push(0);
        for (leaf, from, to) in self.leaves(txn, record)? {
            indexed.push(leaf);
            let block = self.block_at(txn, record, leaf)?;
            for entry in Entries::of(txn.read_as(block, BlockType::Table)?) {
                let entry = entry.map_err(|what| Stop::Corrupt(block, what))?;
                let hash = hash_name(entry.name).0;
                if entry.ino != Ino::NONE && (hash < from || to.is_some_and(|to| hash >= to)) {
                    seen.wrong(format!("directory {dir}: {:?} is in a wrong leaf", entry.name));
                }
            }
        }
        indexed.sort_unstable();
        if indexed != (0..record.count()).collect::<Vec<_>>() {
            seen.wrong(format!("directory {dir}: its index does not have each block once"));
        }
        Ok(())
    }

    fn check_groups(
        &self,
        txn: &mut Txn<'_>,
        orphans: &[Ino],
        seen: &mut Seen,
    ) -> Result<(), Stop> {
        let (first, count) = self.descriptor_blocks();
        for n in 0..u64::from(count) {
            seen.block(txn, MetaBlock(first.0 + n))?;
        }
        for group in 0..self.geometry.groups {
            let descriptor = self.descriptor(txn, group)?;
            for n in 0..=self.geometry.group_inodes / EACH {
                seen.block(txn, MetaBlock(descriptor.bitmap.0 + n))?;
            }
            let (mut free, mut directories) = (0, 0);
            for index in 0..self.geometry.group_inodes {
                let ino = Ino(group * self.geometry.group_inodes + index + 1);
                let taken = self.is_taken(txn, ino)?;
                free += u32::from(!taken);
                let names = seen.names.get(&ino).copied();
                if taken != (names.is_some() || orphans.contains(&ino)) {
                    seen.wrong(format!("inode {ino}: its bit is {taken}, its names {names:?}"));
                }
                if index / EACH >= u64::from(descriptor.initialised) {
                    continue;
                }
                let record = self.load(txn, ino)?;
                if record.kind.is_some() != taken {
                    seen.wrong(format!("inode {ino}: its bit is {taken}, it is {record:?}"));
                }
                let directory = record.kind == Some(FileKind::Directory);
                directories += u32::from(directory);
                let links = match directory {
                    true => 2 + seen.children.get(&ino).copied().unwrap_or(0),
                    false => 1,
                };
                if names.is_some() && (record.nlink != links || names != Some(1)) {
                    seen.wrong(format!("inode {ino}: {} links, {names:?} names", record.nlink));
                }
            }
            if (free, directories) != (descriptor.free, descriptor.directories) {
                seen.wrong(format!(
                    "group {group}: {free} free, {directories} directories, not {descriptor:?}"
                ));
            }
        }
        Ok(())
    }
}
