//! The entries of a node, as bytes.

use crate::format::block::{Block, HEADER, get_u16, put_u16};

/// Where the entries begin.
pub(super) const ENTRIES: usize = HEADER + 16;

/// Inserts an entry before the `at`-th one.
pub(super) fn insert_entry(bytes: &mut Block, at: usize, entry: &[u8]) {
    let count = usize::from(get_u16(bytes, 36));
    let (start, end) = (ENTRIES + at * entry.len(), ENTRIES + count * entry.len());
    bytes.copy_within(start..end, start + entry.len());
    bytes[start..start + entry.len()].copy_from_slice(entry);
    put_u16(bytes, 36, (count + 1) as u16);
}

/// Removes the `at`-th entry, of `width` bytes.
pub(super) fn remove_entry(bytes: &mut Block, at: usize, width: usize) {
    let count = usize::from(get_u16(bytes, 36));
    let (start, end) = (ENTRIES + at * width, ENTRIES + count * width);
    bytes.copy_within(start + width..end, start);
    bytes[end - width..end].fill(0);
    put_u16(bytes, 36, (count - 1) as u16);
}
