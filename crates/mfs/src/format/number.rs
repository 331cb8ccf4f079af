//! How an inode number is composed, and which slots it leads to. Nothing outside `mfs` looks
//! inside an [`Ino`].
//!
//! Invariants:
//! - `Ino` = chunk (`DirNo`, 40 bits) · reuse 8 bits · slot 16 bits; a number is issued once and
//!   never again;
//! - chunk 0 is the system's: slot 1 is the root directory (inode 1), slot 2 the orphan directory
//!   (inode 2);
//! - a slot's place (chunk, slot) is 56 bits: chunk in the high 40, slot in the low 16;
//! - an inode lies in its home slot, where its number was issued, if that slot has state 1 and this
//!   number. Else it lies at the place that the tree of moved inodes has for it. There the key is
//!   its number, the value the place, 8 bytes each;
//! - the orphan directory is hidden. It holds inodes that have no name of their own: orphans, and
//!   inodes whose first name was removed while further names (slots of state 2) are left.

use types::{DirNo, Ino};

/// Most slots of one chunk.
pub const CHUNK_SLOTS: u32 = 65_536;
/// Most content blocks of one chunk.
pub const CHUNK_BLOCKS: u32 = CHUNK_SLOTS / super::slot::SLOTS_PER_BLOCK;
/// The highest chunk number.
pub const DIRNO_MAX: u64 = (1 << 40) - 1;
/// The hidden directory of inodes without a name.
pub const ORPHAN_DIR: Ino = Ino(2);
/// The system's chunk.
pub const SYSTEM_CHUNK: DirNo = DirNo(0);

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
        assert_eq!(home_of(Ino::ROOT), SlotPlace { chunk: SYSTEM_CHUNK, slot: 1 });
        assert_eq!(home_of(ORPHAN_DIR), SlotPlace { chunk: SYSTEM_CHUNK, slot: 2 });
    }
}
