//! How an inode number is made, and the places it leads to. Nothing outside
//! `store` looks inside an [`Ino`].
//!
//! Invariants:
//! - `Ino` = chunk (`DirNo`, 40 bits) · reuse 8 bits · slot 16 bits; a number is
//!   issued once and never again;
//! - chunk 0 is the system's: slot 1 is the root directory (inode 1), slot 2 the attic (inode 2);
//! - a place (chunk, slot) is 56 bits: chunk in the high 40, slot in the low 16;
//! - an inode lies in the slot in which its number was born, if that has state 1 and this number;
//!   else in the place that the tree of moved inodes has for it: key its number, value the place, 8
//!   bytes each;
//! - the attic is a hidden directory of inodes without a name: orphans, and those whose first name
//!   was removed while further names (slots of state 2) are left.

use types::{DirNo, Ino};

/// Slots of one chunk at most.
pub const CHUNK_SLOTS: u32 = 65_536;
/// Content blocks of one chunk at most.
pub const CHUNK_BLOCKS: u32 = CHUNK_SLOTS / super::slot::SLOTS_PER_BLOCK;
/// Number of chunks at most.
pub const DIRNO_MAX: u64 = (1 << 40) - 1;
/// The hidden directory of inodes without a home slot.
pub const ATTIC: Ino = Ino(2);
/// The system's chunk.
pub const SYSTEM_CHUNK: DirNo = DirNo(0);

/// A slot of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The chunk.
    pub chunk: DirNo,
    /// The slot, below [`CHUNK_SLOTS`].
    pub slot: u32,
}

impl Place {
    /// As the `moved` tree stores it.
    pub fn pack(self) -> u64 {
        self.chunk.0 << 16 | u64::from(self.slot)
    }

    /// What [`Place::pack`] made.
    pub fn unpack(value: u64) -> Place {
        Place { chunk: DirNo(value >> 16), slot: (value & 0xffff) as u32 }
    }

    /// Index in its chunk of the content block that holds it.
    pub fn block(self) -> u32 {
        self.slot / super::slot::SLOTS_PER_BLOCK
    }

    /// Index of the slot in that block.
    pub fn index(self) -> u32 {
        self.slot % super::slot::SLOTS_PER_BLOCK
    }
}

/// The number of the `reuse`-th inode born in `place`.
pub fn ino_of(place: Place, reuse: u8) -> Ino {
    Ino(place.chunk.0 << 24 | u64::from(reuse) << 16 | u64::from(place.slot))
}

/// Where `ino` was born.
pub fn home_of(ino: Ino) -> Place {
    Place { chunk: DirNo(ino.0 >> 24), slot: (ino.0 & 0xffff) as u32 }
}

/// Its reuse number.
pub fn reuse_of(ino: Ino) -> u8 {
    (ino.0 >> 16) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_leads_to_its_place_and_back() {
        let place = Place { chunk: DirNo(DIRNO_MAX), slot: CHUNK_SLOTS - 1 };
        assert_eq!(Place::unpack(place.pack()), place);
        let ino = ino_of(place, 255);
        assert_eq!((home_of(ino), reuse_of(ino), ino), (place, 255, Ino(u64::MAX)));
        assert_eq!(home_of(Ino::ROOT), Place { chunk: SYSTEM_CHUNK, slot: 1 });
        assert_eq!(home_of(ATTIC), Place { chunk: SYSTEM_CHUNK, slot: 2 });
    }
}
