//! Directories with an index, as ext3's `dir_index` makes them.
//!
//! Invariants:
//! - a directory of one block has no index; its first split makes block 0 the root of the index,
//!   behind "." and "..", in space that counts as ".."'s: to a linear reader the block has two
//!   entries;
//! - entries of the index are sorted; a leaf has the names from its own hash on, up to the next
//!   one's;
//! - names of equal hash are never parted;
//! - the index has one level of nodes below its root at most.
//!
//! | block | offset behind the header | size | what |
//! |---|---|---|---|
//! | root | 24 | 1 | 1: there are nodes below |
//! | root | 26 | 2 | number of entries |
//! | root | 32 | 8 each | hash u32, block of the directory u32 |
//! | node | 8 | 2 | number of entries |
//! | node | 16 | 8 each | the same |

use mfs::block::{HEADER, get_u16, get_u32, put_u16, put_u32};
use mfs::{Block, BlockType, DirEntry, Stop, Txn};
use types::limits::BLOCK;
use types::{Fault, Ino, MetaBlock};

use super::Traditional;
use super::dirent::{self, Entries};
use super::inode::Record;
use super::linear::{Found, hash_name, is_dots, listed};
use crate::layout::Listing;

/// Where "." and ".." end.
const DOTS: usize = HEADER + 24;

/// Where the entries of a root or a node are.
#[derive(Clone, Copy, Debug)]
struct Table {
    block: MetaBlock,
    /// Offset of the number of entries.
    count: usize,
    /// Offset of the first entry.
    first: usize,
}

impl Table {
    fn root(block: MetaBlock) -> Table {
        Table { block, count: HEADER + 26, first: HEADER + 32 }
    }

    fn node(block: MetaBlock) -> Table {
        Table { block, count: HEADER + 8, first: HEADER + 16 }
    }

    fn most(self) -> usize {
        (BLOCK - self.first) / 8
    }

    fn read(self, txn: &Txn<'_>) -> Result<Vec<(u32, u64)>, Stop> {
        let data = txn.read_as(self.block, BlockType::Table)?;
        let count = usize::from(get_u16(data, self.count));
        if count == 0 || count > self.most() {
            return Err(Stop::Corrupt(self.block, "an index has a wrong number of entries"));
        }
        let at = |n: usize| self.first + 8 * n;
        Ok((0..count)
            .map(|n| (get_u32(data, at(n)), u64::from(get_u32(data, at(n) + 4))))
            .collect())
    }

    fn write(self, txn: &mut Txn<'_>, entries: &[(u32, u64)]) -> Result<(), Stop> {
        let data = txn.write_as(self.block, BlockType::Table)?;
        put_u16(data, self.count, entries.len() as u16);
        data[self.first..].fill(0);
        for (n, &(hash, block)) in entries.iter().enumerate() {
            put_u32(data, self.first + 8 * n, hash);
            put_u32(data, self.first + 8 * n + 4, block as u32);
        }
        Ok(())
    }

    /// The entry for `hash`, its place, and the hash of the next one.
    fn seek(self, txn: &Txn<'_>, hash: u32) -> Result<(u64, usize, Option<u32>), Stop> {
        let data = txn.read_as(self.block, BlockType::Table)?;
        let count = usize::from(get_u16(data, self.count));
        if count == 0 || count > self.most() {
            return Err(Stop::Corrupt(self.block, "an index has a wrong number of entries"));
        }
        let hash_at = |n: usize| get_u32(data, self.first + 8 * n);
        let (mut low, mut high) = (0, count);
        while high - low > 1 {
            let middle = usize::midpoint(low, high);
            if hash_at(middle) <= hash { low = middle } else { high = middle }
        }
        let block = u64::from(get_u32(data, self.first + 8 * low + 4));
        Ok((block, low, (low + 1 < count).then(|| hash_at(low + 1))))
    }
}

/// The way to a leaf.
#[derive(Clone, Copy, Debug)]
struct Way {
    root: Table,
    /// Place of the entry in the root.
    root_at: usize,
    node: Option<Table>,
    /// Block of the directory.
    leaf: u64,
    /// Hash at which the next leaf begins.
    next: Option<u32>,
}

impl Way {
    /// The table that names the leaf.
    fn parent(&self) -> Table {
        self.node.unwrap_or(self.root)
    }
}

fn has_nodes(root: &Block) -> bool {
    root[HEADER + 24] != 0
}

impl Traditional {
    fn way(&self, txn: &Txn<'_>, record: &Record, hash: u32) -> Result<Way, Stop> {
        let block = self.block_at(txn, record, 0)?;
        let root = Table::root(block);
        let nodes = has_nodes(txn.read_as(block, BlockType::Table)?);
        let (child, root_at, next) = root.seek(txn, hash)?;
        if !nodes {
            return Ok(Way { root, root_at, node: None, leaf: child, next });
        }
        let node = Table::node(self.block_at(txn, record, child)?);
        let (leaf, _, after) = node.seek(txn, hash)?;
        Ok(Way { root, root_at, node: Some(node), leaf, next: after.or(next) })
    }

    /// The block in which a name of this hash is, and the hash at which the next one begins.
    fn leaf(&self, txn: &Txn<'_>, record: &Record, hash: u32) -> Result<(u64, Option<u32>), Stop> {
        if record.count() == 1 {
            return Ok((0, None));
        }
        let way = self.way(txn, record, hash)?;
        Ok((way.leaf, way.next))
    }

    pub(super) fn find_hashed(
        &self,
        txn: &mut Txn<'_>,
        record: &Record,
        name: &[u8],
    ) -> Result<Option<Found>, Stop> {
        let (index, _) = self.leaf(txn, record, hash_name(name).0)?;
        let block = self.block_at(txn, record, index)?;
        let data = txn.read_as(block, BlockType::Table)?;
        let found = dirent::find(data, name).map_err(|what| Stop::Corrupt(block, what))?;
        Ok(found.map(|entry| Found { index, block, ino: entry.ino }))
    }

    pub(super) fn insert_hashed(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        record: &mut Record,
        name: &[u8],
        (ino, kind): (Ino, u8),
    ) -> Result<(), Stop> {
        let hash = hash_name(name).0;
        // A root that is pushed down, a node that is split, a leaf that is split, perhaps twice.
        for _ in 0..8 {
            let (index, _) = self.leaf(txn, record, hash)?;
            let block = self.block_at(txn, record, index)?;
            let data = txn.write_as(block, BlockType::Table)?;
            let done = dirent::insert(data, name, ino, kind);
            if done.map_err(|what| Stop::Corrupt(block, what))? {
                return Ok(());
            }
            match record.count() {
                1 => self.make_root(txn, dir, record)?,
                _ => self.split(txn, dir, record, hash)?,
            }
        }
        Err(Fault::NoSpace.into())
    }

    pub(super) fn remove_hashed(txn: &mut Txn<'_>, found: &Found, name: &[u8]) -> Result<(), Stop> {
        let data = txn.write_as(found.block, BlockType::Table)?;
        match dirent::remove(data, name) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Stop::Corrupt(found.block, "an entry is missing")),
            Err(what) => Err(Stop::Corrupt(found.block, what)),
        }
    }

    /// Moves the names of block 0 to a first leaf, and makes it the root.
    fn make_root(&self, txn: &mut Txn<'_>, dir: Ino, record: &mut Record) -> Result<(), Stop> {
        let block = self.block_at(txn, record, 0)?;
        let (dots, names): (Vec<Owned>, Vec<Owned>) =
            owned(txn, block)?.into_iter().partition(|entry| is_dots(&entry.name));
        let (leaf, leaf_block) = self.append_block(txn, dir, record)?;
        fill(txn, leaf_block, &names)?;
        fill(txn, block, &dots)?;
        txn.write(block)?[DOTS..].fill(0);
        Table::root(block).write(txn, &[(0, leaf)])
    }

    /// Makes room in the leaf of `hash`: splits it, or first what is above it.
    fn split(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        record: &mut Record,
        hash: u32,
    ) -> Result<(), Stop> {
        let way = self.way(txn, record, hash)?;
        let mut above = way.parent().read(txn)?;
        if above.len() == way.parent().most() {
            return self.split_above(txn, dir, record, &way, above);
        }
        let old = self.block_at(txn, record, way.leaf)?;
        let mut entries = owned(txn, old)?;
        entries.sort_by_key(|entry| (entry.hash, entry.minor));
        let Some(middle) = middle(&entries) else { return Err(Fault::NoSpace.into()) };
        let (leaf, block) = self.append_block(txn, dir, record)?;
        let upper = entries.split_off(middle);
        let at = above.partition_point(|&(begin, _)| begin <= hash);
        above.insert(at, (upper[0].hash, leaf));
        fill(txn, old, &entries)?;
        fill(txn, block, &upper)?;
        way.parent().write(txn, &above)
    }

    fn split_above(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        record: &mut Record,
        way: &Way,
        mut above: Vec<(u32, u64)>,
    ) -> Result<(), Stop> {
        let mut roots = way.root.read(txn)?;
        if way.node.is_some() && roots.len() == way.root.most() {
            return Err(Fault::NoSpace.into());
        }
        let (index, block) = self.append_block(txn, dir, record)?;
        dirent::clear(txn.write(block)?, HEADER);
        let new = Table::node(block);
        match way.node {
            None => {
                new.write(txn, &above)?;
                txn.write(way.root.block)?[HEADER + 24] = 1;
                way.root.write(txn, &[(0, index)])
            }
            Some(node) => {
                let upper = above.split_off(above.len() / 2);
                roots.insert(way.root_at + 1, (upper[0].0, index));
                node.write(txn, &above)?;
                new.write(txn, &upper)?;
                way.root.write(txn, &roots)
            }
        }
    }

    /// Entries in the order of their hashes; a cookie is the hash, plus one. Leaves are read one by
    /// one, as ext3 does.
    pub(super) fn list_hashed(
        &self,
        txn: &mut Txn<'_>,
        record: &Record,
        listing: Listing,
    ) -> Result<Vec<DirEntry>, Stop> {
        let mut out: Vec<DirEntry> = Vec::new();
        let mut hash = Some((listing.after >> 16) as u32);
        while let Some(from) = hash.filter(|_| out.len() < listing.max) {
            let (index, next) = self.leaf(txn, record, from)?;
            let block = self.block_at(txn, record, index)?;
            let mut entries = owned(txn, block)?;
            entries.sort_by_key(|entry| (entry.hash, entry.minor));
            for entry in entries.iter().filter(|entry| !is_dots(&entry.name)) {
                let cookie = (u64::from(entry.hash) << 16 | u64::from(entry.minor)) + 1;
                let full = out.len() >= listing.max;
                // Names with equal cookies are returned together.
                if cookie <= listing.after || full && out.last().is_some_and(|l| l.cookie < cookie)
                {
                    continue;
                }
                out.push(listed(&entry.dirent(), cookie, block)?);
            }
            hash = next;
        }
        Ok(out)
    }

    /// The leaves in order, with the hashes at which they begin and end.
    pub(super) fn leaves(
        &self,
        txn: &Txn<'_>,
        record: &Record,
    ) -> Result<Vec<(u64, u32, Option<u32>)>, Stop> {
        let mut out = Vec::new();
        let mut hash = Some(0);
        while let Some(from) = hash {
            let (leaf, next) = self.leaf(txn, record, from)?;
            out.push((leaf, from, next));
            hash = next;
        }
        Ok(out)
    }

    /// Blocks of the index, but for the root.
    pub(super) fn nodes(&self, txn: &Txn<'_>, record: &Record) -> Result<Vec<u64>, Stop> {
        if record.count() == 1 {
            return Ok(Vec::new());
        }
        let block = self.block_at(txn, record, 0)?;
        if !has_nodes(txn.read_as(block, BlockType::Table)?) {
            return Ok(Vec::new());
        }
        Ok(Table::root(block).read(txn)?.into_iter().map(|(_, node)| node).collect())
    }
}

/// An entry out of its block.
struct Owned {
    hash: u32,
    minor: u16,
    ino: Ino,
    kind: u8,
    name: Vec<u8>,
}

impl Owned {
    fn dirent(&self) -> dirent::Dirent<'_> {
        dirent::Dirent { at: 0, len: 0, ino: self.ino, kind: self.kind, name: &self.name }
    }
}

fn owned(txn: &Txn<'_>, block: MetaBlock) -> Result<Vec<Owned>, Stop> {
    let mut out = Vec::new();
    for entry in Entries::of(txn.read_as(block, BlockType::Table)?) {
        let entry = entry.map_err(|what| Stop::Corrupt(block, what))?;
        if entry.ino != Ino::NONE {
            let (hash, minor) = hash_name(entry.name);
            let (ino, kind, name) = (entry.ino, entry.kind, entry.name.to_vec());
            out.push(Owned { hash, minor, ino, kind, name });
        }
    }
    Ok(out)
}

/// Writes a block with these entries and nothing else.
fn fill(txn: &mut Txn<'_>, block: MetaBlock, entries: &[Owned]) -> Result<(), Stop> {
    let data = txn.write_as(block, BlockType::Table)?;
    dirent::clear(data, HEADER);
    for entry in entries {
        let fits = dirent::insert(data, &entry.name, entry.ino, entry.kind);
        if fits != Ok(true) {
            return Err(Stop::Corrupt(block, "entries of one block do not fit into one"));
        }
    }
    Ok(())
}

/// Where sorted entries part into halves of about as many bytes, not between equal hashes.
fn middle(entries: &[Owned]) -> Option<usize> {
    let bytes = |entry: &Owned| dirent::needed(entry.name.len());
    let total: usize = entries.iter().map(bytes).sum();
    let mut before = 0;
    let parts = (1..entries.len()).filter_map(|at| {
        before += bytes(&entries[at - 1]);
        (entries[at - 1].hash < entries[at].hash).then_some((at, before.abs_diff(total / 2)))
    });
    parts.min_by_key(|&(_, off)| off).map(|(at, _)| at)
}
