//! The size of the allocation bitmap; [`crate::alloc::metaspace`] says what is in it.

use types::limits::BLOCK;

use crate::format::block::HEADER;

/// Bits of one bitmap block.
pub const BITS: u64 = ((BLOCK - HEADER) * 8) as u64;

/// Bitmap blocks of a device of `blocks` blocks.
pub fn bitmap_blocks(blocks: u64) -> u64 {
    blocks.div_ceil(BITS)
}
