//! How an inode number is composed, and which slots it leads to. Nothing outside `mfs` looks
//! inside an [`Ino`], but for its shard.
//!
//! Invariants:
//! - `Ino` = chunk (`DirNo`, 40 bits) · reuse 8 bits · slot 16 bits; a number is issued once and
//!   never again;
//! - `DirNo` = shard 8 bits · number 32 bits. The shard is the superblock's (3.2): with it, no
//!   other server issues the same number. So the top 8 bits of a number name the shard of birth.
//!   An inode may be on another one since (7.6);
//! - chunk 0 of a shard is the system's: slot 1 is the shard's root directory, slot 2 the orphan
//!   directory. The root of shard 0, inode 1, is that of the file system. No name leads to the root
//!   of another shard yet;
//! - chunks from number 0xc0000000 on are *annexes*: no inode has its home there, and no inode
//!   number is issued there. Root 14 has the number of the next other chunk, root 18 how many
//!   annexes were numbered (5);
//! - a slot's place (chunk, slot) is 56 bits: chunk in the high 40, slot in the low 16;
//! - an inode lies in its home slot, where its number was issued, if that slot has state 1 and this
//!   number. Else it lies at the place that the tree of moved inodes has for it. There the key is
//!   its number, the value the place, 8 bytes each;
//! - the orphan directory is hidden. It holds inodes that have no name of their own: orphans, and
//!   inodes whose first name was removed while further names (slots of state 2) are left. Inodes of
//!   which all names are on other shards lie there, too (7.5).

use types::{DirNo, Ino, ShardId};

/// Most slots of one chunk.
pub const CHUNK_SLOTS: u32 = 65_536;
/// Most content blocks of one chunk.
pub const CHUNK_BLOCKS: u32 = CHUNK_SLOTS / super::slot::SLOTS_PER_BLOCK;
/// The highest chunk number.
pub const DIRNO_MAX: u64 = (1 << 40) - 1;
/// The number, within its shard, of the first annex.
pub const ANNEX_FIRST: u32 = 0xc000_0000;
/// The orphan directory of shard 0.
#[cfg(test)]
pub const ORPHAN_DIR: Ino = Ino(2);
/// The system's chunk of shard 0.
#[cfg(test)]
pub const SYSTEM_CHUNK: DirNo = DirNo(0);

/// The system's chunk of `shard`.
pub fn system_chunk(shard: ShardId) -> DirNo {
    DirNo::of(shard, 0)
}

/// Is it a system's chunk?
pub fn is_system(chunk: DirNo) -> bool {
    chunk.number() == 0
}

/// Is the chunk an annex, in which no inode number is issued?
pub fn is_annex(chunk: DirNo) -> bool {
    chunk.number() >= ANNEX_FIRST
}

/// The root directory of `shard`.
pub fn root_dir(shard: ShardId) -> Ino {
    ino_of(SlotPlace { chunk: system_chunk(shard), slot: 1 }, 0)
}

/// Is it the root directory of a shard?
pub fn is_root_dir(ino: Ino) -> bool {
    ino == root_dir(ino.shard())
}

/// The hidden directory of inodes without a name, of `shard`.
pub fn orphan_dir(shard: ShardId) -> Ino {
    ino_of(SlotPlace { chunk: system_chunk(shard), slot: 2 }, 0)
}

/// Is it the orphan directory of a shard?
pub fn is_orphan_dir(ino: Ino) -> bool {
    ino == orphan_dir(ino.shard())
}

/// Where a slot is: its chunk, and its index in that.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SlotPlace {
    /// The chunk.
    pub chunk: DirNo,
    /// The slot, below [`CHUNK_SLOTS`].
    pub slot: u32,
}

impl SlotPlace {
    /// The number that the `moved` tree stores.
    pub fn pack(self) -> u64 {
        self.chunk.0 << 16 | u64::from(self.slot)
    }

    /// The inverse of [`SlotPlace::pack`].
    pub fn unpack(value: u64) -> SlotPlace {
        SlotPlace { chunk: DirNo(value >> 16), slot: (value & 0xffff) as u32 }
    }

    /// Index, within the chunk, of the content block with this slot.
    pub fn block(self) -> u32 {
        self.slot / super::slot::SLOTS_PER_BLOCK
    }

    /// Index of the slot in that block.
    pub fn index(self) -> u32 {
        self.slot % super::slot::SLOTS_PER_BLOCK
    }
}

/// The number of the `reuse`-th inode created in `place`.
pub fn ino_of(place: SlotPlace, reuse: u8) -> Ino {
    Ino(place.chunk.0 << 24 | u64::from(reuse) << 16 | u64::from(place.slot))
}

/// The home slot of `ino`.
pub fn home_of(ino: Ino) -> SlotPlace {
    SlotPlace { chunk: DirNo(ino.0 >> 24), slot: (ino.0 & 0xffff) as u32 }
}

/// Its reuse number.
pub fn reuse_of(ino: Ino) -> u8 {
    (ino.0 >> 16) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_number_leads_to_its_place_and_back() {
        let place = SlotPlace { chunk: DirNo(DIRNO_MAX), slot: CHUNK_SLOTS - 1 };
        assert_eq!(SlotPlace::unpack(place.pack()), place);
        let ino = ino_of(place, 255);
        assert_eq!((home_of(ino), reuse_of(ino), ino), (place, 255, Ino(u64::MAX)));
        assert_eq!((root_dir(ShardId(0)), orphan_dir(ShardId(0))), (Ino::ROOT, ORPHAN_DIR));
        let seven = DirNo(7 << 32);
        assert_eq!(home_of(root_dir(ShardId(7))), SlotPlace { chunk: seven, slot: 1 });
        assert_eq!(home_of(orphan_dir(ShardId(7))), SlotPlace { chunk: seven, slot: 2 });
        assert_eq!(root_dir(ShardId(7)).shard(), ShardId(7));
    }
}
