//! The location of directory content, and the slots in it: FORMAT.md 6, 7.1 and 7.3.

use crate::Image;
use crate::device::{
    BLOCK, Block, CONTENT, Error, HEADER, NAME_MAP, big, damaged, u16_at, u32_at, u64_at,
};
use crate::inode::{LINK, Slot};
use crate::tree::{DIRECTORY_TABLE, MOVED};

/// The number within its shard of the system's chunk.
const SYSTEM_CHUNK: u32 = 0;
/// Most blocks of a chunk, and slot numbers of each block.
const CHUNK_BLOCKS: u64 = 8192;
const BLOCK_SLOTS: u64 = 8;
/// Index of a chunk's descriptor in the directory table.
const DESCRIPTOR: u64 = 0xffff;
/// The first index of a name map's chunks.
const MAP_CHUNKS: u32 = 1 << 31;

/// A chunk: its initialised blocks, `None` where they were freed.
struct Chunk {
    next: u64,
    blocks: Vec<Option<u64>>,
}

impl Image {
    /// A chunk, from the directory table (7.1).
    fn chunk(&self, number: u64, owner: u64, index: u32) -> Result<Chunk, Error> {
        let table = self.roots[1];
        let key = |index: u64| (number << 16 | index).to_be_bytes();
        if number >> 40 != 0 {
            return damaged(table, "an impossible chunk");
        }
        let Some(descriptor) = self.get(&DIRECTORY_TABLE, &key(DESCRIPTOR))? else {
            return damaged(table, "a chunk is not in the directory table");
        };
        if (u64_at(&descriptor, 0), u32_at(&descriptor, 16)) != (owner, index) {
            return damaged(table, "a chunk of another directory");
        }
        let used = u32_at(&descriptor, 20) as usize;
        let mut blocks = Vec::new();
        for (key, run) in self.range(&DIRECTORY_TABLE, &key(0), &key(DESCRIPTOR - 1))? {
            let (start, len) = (u64_at(&run, 0), u64::from(u32_at(&run, 16)));
            let first = big(&key[6..]);
            if first != blocks.len() as u64 || first + len > CHUNK_BLOCKS {
                return damaged(table, "the runs of a chunk have gaps");
            }
            blocks.extend((0..len).map(|n| (start != 0).then_some(start.saturating_add(n))));
        }
        if used > blocks.len() {
            return damaged(table, "a chunk uses blocks that it does not have");
        }
        blocks.truncate(used);
        Ok(Chunk { next: u64_at(&descriptor, 8), blocks })
    }

    /// The chain of chunks that begins with `number` (0: none); `index` is that of the first chunk.
    fn chain(&self, mut number: u64, owner: u64, index: u32) -> Result<Vec<(u64, Chunk)>, Error> {
        let mut chain = Vec::new();
        while number != 0 {
            // A chunk has one index, so this refuses a chain with a cycle.
            let chunk = self.chunk(number, owner, index + chain.len() as u32)?;
            let next = chunk.next;
            chain.push((number, chunk));
            number = next;
        }
        Ok(chain)
    }

    /// Calls `each` with the slots in use of a content block.
    fn slots(
        &self,
        block: u64,
        each: &mut dyn FnMut(Slot) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let data = self.device.read(block, self.superblock.content_type())?;
        (0..BLOCK_SLOTS).try_for_each(|n| match slot_at(&data, n) {
            Some(bytes) if bytes[0] != 0 => each(Slot::decode(bytes, block)?),
            _ => Ok(()),
        })
    }

    /// Calls `each` with the slots in use of a directory, in order.
    pub fn list(
        &self,
        dir: &Slot,
        each: &mut dyn FnMut(Slot) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for (_, chunk) in self.chain(dir.body, dir.ino, 0)? {
            chunk.blocks.iter().flatten().try_for_each(|&block| self.slots(block, each))?;
        }
        Ok(())
    }

    /// The slot at this position, if it is in use.
    fn slot(&self, chunk: u64, slot: u64) -> Result<Option<Slot>, Error> {
        let key = (chunk << 16 | DESCRIPTOR).to_be_bytes();
        if chunk >> 40 != 0 {
            return Ok(None);
        }
        let Some(descriptor) = self.get(&DIRECTORY_TABLE, &key)? else { return Ok(None) };
        let (owner, index) = (u64_at(&descriptor, 0), u32_at(&descriptor, 16));
        let found = self.chunk(chunk, owner, index)?;
        let place = found.blocks.get((slot / BLOCK_SLOTS) as usize);
        let Some(&Some(block)) = place.filter(|_| index < MAP_CHUNKS) else { return Ok(None) };
        let usual = self.superblock.content_type();
        let kind = if chunk as u32 == SYSTEM_CHUNK { CONTENT } else { usual };
        let data = self.device.read(block, kind)?;
        match slot_at(&data, slot % BLOCK_SLOTS) {
            Some(bytes) if bytes[0] != 0 => Slot::decode(bytes, block).map(Some),
            _ => Ok(None),
        }
    }

    /// The slot of an inode: at the position in its number, or in the tree of moved inodes (6).
    pub fn locate(&self, ino: u64) -> Result<Slot, Error> {
        let holds = |slot: &Slot| slot.state != LINK && slot.ino == ino;
        if let Some(slot) = self.slot(ino >> 24, ino & 0xffff)?.filter(holds) {
            return Ok(slot);
        }
        if let Some(place) = self.get(&MOVED, &ino.to_be_bytes())? {
            let place = u64_at(&place, 0);
            if let Some(slot) = self.slot(place >> 16, place & 0xffff)?.filter(holds) {
                return Ok(slot);
            }
        }
        damaged(self.roots[2], "an inode is nowhere")
    }

    /// The slot of a name: found by the directory's name map (7.3), or without one by reading all
    /// slots.
    pub fn lookup(&self, dir: &Slot, name: &[u8]) -> Result<Option<Slot>, Error> {
        let mut found = None;
        if dir.map == 0 {
            self.list(dir, &mut |slot| {
                found = found.take().or(Some(slot).filter(|slot| slot.name == name));
                Ok(())
            })?;
            return Ok(found);
        }
        let content = self.chain(dir.body, dir.ino, 0)?;
        for position in self.mapped(dir, hash_of(name))? {
            let (chunk, slot) = (position >> 16, u64::from(position & 0xffff));
            let Some((chunk, _)) = content.get(chunk as usize) else {
                return damaged(self.roots[1], "a name map leads out of its directory");
            };
            let slot = self.slot(*chunk, slot)?;
            found = found.or(slot.filter(|slot| slot.name == name));
        }
        Ok(found)
    }

    /// The positions of a hash in a directory's name map.
    fn mapped(&self, dir: &Slot, hash: u64) -> Result<Vec<u32>, Error> {
        let chain = self.chain(dir.map, dir.ino, MAP_CHUNKS)?;
        let buckets: Vec<_> = chain.iter().flat_map(|(_, chunk)| &chunk.blocks).collect();
        let (mut positions, mut at) = (Vec::new(), 0);
        if let Some(&&Some(first)) = buckets.get(bucket_of(hash, buckets.len() as u64) as usize) {
            at = first;
        }
        let mut left = self.device.blocks;
        while at != 0 {
            let data = self.device.read(at, NAME_MAP)?;
            let count = usize::from(u16_at(&data[..], 32));
            if count > 337 || left == 0 {
                return damaged(at, "a block of a name map is malformed");
            }
            let entries = data[48..].chunks_exact(12).take(count);
            let fits = entries.filter(|entry| u64_at(entry, 0) == hash);
            positions.extend(fits.map(|entry| u32_at(entry, 8)));
            (at, left) = (u64_at(&data[..], 40), left - 1);
        }
        Ok(positions)
    }
}

/// The bytes of a slot, by its number in the block; `None` if blocks of this type have no such
/// slot.
fn slot_at(block: &Block, number: u64) -> Option<&[u8]> {
    let slots = match block[4] {
        CONTENT => 8,
        kind => 8 >> (kind - crate::device::CONTENT_1024 + 1),
    };
    block[HEADER..].chunks_exact((BLOCK - HEADER) / slots).nth(number as usize)
}

/// FNV-1a, then mixed (7.3).
fn hash_of(name: &[u8]) -> u64 {
    let step = |h: u64, &byte: &u8| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut h = name.iter().fold(0xcbf2_9ce4_8422_2325, step);
    h = (h ^ h >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    h = (h ^ h >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ h >> 33
}

fn bucket_of(hash: u64, buckets: u64) -> u64 {
    let all = buckets.next_power_of_two();
    let low = hash & (all - 1);
    if low < buckets { low } else { hash & (all / 2 - 1) }
}
