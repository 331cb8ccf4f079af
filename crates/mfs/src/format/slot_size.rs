//! The size of the slots of a file system, and which features say it.

use std::str::FromStr;

use engine::format::block::{BlockType, HEADER};
use engine::format::features::{Feature, Features};
use types::limits::BLOCK;
use types::units::parse_size;

use crate::format::segment::SEGMENT;
use crate::format::slot::{FIXED, SLOTS_PER_BLOCK};

/// How large the slots of a file system are, as a share of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum SlotSize {
    /// Eight per block.
    #[default]
    Bytes512,
    /// Four per block.
    Bytes1024,
    /// Two per block.
    Bytes2048,
    /// One per block.
    Bytes4096,
}

impl SlotSize {
    /// Every size.
    pub const ALL: [SlotSize; 4] =
        [SlotSize::Bytes512, SlotSize::Bytes1024, SlotSize::Bytes2048, SlotSize::Bytes4096];

    /// The type of content blocks with slots of this size.
    pub fn kind(self) -> BlockType {
        match self {
            SlotSize::Bytes512 => BlockType::Directory,
            SlotSize::Bytes1024 => BlockType::Directory1024,
            SlotSize::Bytes2048 => BlockType::Directory2048,
            SlotSize::Bytes4096 => BlockType::Directory4096,
        }
    }

    /// Slots per content block.
    pub fn per_block(self) -> u32 {
        SLOTS_PER_BLOCK >> self as u32
    }

    /// Segments that fit into a slot with an empty name.
    pub fn segments_max(self) -> usize {
        ((BLOCK - HEADER) / self.per_block() as usize - FIXED) / SEGMENT
    }

    /// The share of a block in bytes, which names the size.
    pub fn share(self) -> usize {
        BLOCK / self.per_block() as usize
    }

    /// The slot size of a content block; the ordinary one for any other block.
    pub(super) fn of(block: &[u8; BLOCK]) -> SlotSize {
        let is = |size: &SlotSize| block[4] == size.kind() as u8;
        SlotSize::ALL.into_iter().find(is).unwrap_or_default()
    }
}

impl FromStr for SlotSize {
    type Err = String;

    /// A size in bytes as options give it: 512, 1K, 2K or 4K.
    fn from_str(text: &str) -> Result<SlotSize, String> {
        let bytes = parse_size(text)?;
        let found = SlotSize::ALL.into_iter().find(|size| size.share() as u64 == bytes);
        found.ok_or_else(|| "slots have 512, 1K, 2K or 4K bytes".to_owned())
    }
}

/// The slot size that the features of a file system say.
pub trait SlotFeatures: Sized {
    /// The size of the directory slots.
    fn slots(self) -> SlotSize;

    /// These features, with slots of another size.
    fn with_slots(self, size: SlotSize) -> Self;
}

impl SlotFeatures for Features {
    fn slots(self) -> SlotSize {
        let [small, middle, large] = Feature::SLOT_SIZES.map(|size| self.has(size));
        match (small, middle, large) {
            (true, _, _) => SlotSize::Bytes1024,
            (_, true, _) => SlotSize::Bytes2048,
            (_, _, true) => SlotSize::Bytes4096,
            _ => SlotSize::Bytes512,
        }
    }

    fn with_slots(self, size: SlotSize) -> Features {
        let none = Feature::SLOT_SIZES.iter().fold(self, |set, size| set.without(*size));
        match size {
            SlotSize::Bytes512 => none,
            SlotSize::Bytes1024 => none.with(Feature::SLOTS_1024),
            SlotSize::Bytes2048 => none.with(Feature::SLOTS_2048),
            SlotSize::Bytes4096 => none.with(Feature::SLOTS_4096),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_size_is_read_in_bytes_or_kilobytes() {
        for (text, size) in [("512", SlotSize::Bytes512), ("1K", SlotSize::Bytes1024)] {
            assert_eq!(text.parse(), Ok(size));
        }
        assert!("8K".parse::<SlotSize>().is_err_and(|text| text.contains("512, 1K, 2K or 4K")));
        assert!("K".parse::<SlotSize>().is_err_and(|text| text.contains("is no size")));
    }
}
