//! Memory for large buffers, in slabs of the size of a huge page.
//!
//! Invariants:
//! - a slab is one mapping of [`SLAB`] bytes at a multiple of [`SLAB`], cut into
//!   pieces of one size; the record of pieces in use is outside of it;
//! - at most [`SPARE_MAX`] slabs without pieces in use are kept, others return to the operating
//!   system at once;
//! - a new piece comes from the lowest slab in use that has room, so that slabs above
//!   become empty.
//!
//! A huge page is contiguous: a device takes a megabyte of it as one segment. Scattered pages
//! would be 256 segments, more than many devices take in one request. The kernel pins a huge
//! page with one reference. Where the kernel has no huge pages, the slab consists of ordinary
//! ones: everything works, only slower.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a slab: a huge page of the supported architectures.
pub(super) const SLAB: usize = 2 << 20;

/// Most pieces of a slab.
const PIECES_MAX: usize = 32;

/// Slabs that are kept without pieces in use: 64 MiB, as much as a client keeps for one target.
const SPARE_MAX: usize = 32;

/// All slabs of the process. They serve only what the threads' pools cannot serve or keep.
static SLABS: Mutex<Slabs> = Mutex::new(Slabs::new());

/// One slab, by its address.
struct Slab {
    /// Bytes of a piece.
    piece: usize,
    /// Pieces in use, a bit each.
    used: u32,
    /// Pieces that were in use at some time: all others are zero.
    touched: u32,
}

struct Slabs {
    by_base: BTreeMap<usize, Slab>,
    /// Size of pieces and address of the slabs that have room.
    roomy: BTreeSet<(usize, usize)>,
    /// The addresses of slabs without pieces in use.
    spare: Vec<usize>,
}

/// A piece of `bytes`, which divide [`SLAB`], and whether it is all zero; `None`: no memory.
pub(super) fn take(bytes: usize) -> Option<(NonNull<u8>, bool)> {
    slabs().take(bytes)
}

/// Takes back a piece of `bytes` that [`take`] returned.
pub(super) fn give(memory: NonNull<u8>, bytes: usize) {
    slabs().give(memory, bytes);
}

fn slabs() -> MutexGuard<'static, Slabs> {
    SLABS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slab {
    fn all(&self) -> u32 {
        u32::MAX >> (u32::BITS as usize - SLAB / self.piece)
    }
}

impl Slabs {
    const fn new() -> Slabs {
        Slabs { by_base: BTreeMap::new(), roomy: BTreeSet::new(), spare: Vec::new() }
    }

    fn take(&mut self, bytes: usize) -> Option<(NonNull<u8>, bool)> {
        assert!(SLAB.is_multiple_of(bytes) && SLAB / bytes <= PIECES_MAX, "pieces of {bytes}");
        let first = self.roomy.range((bytes, 0)..=(bytes, usize::MAX)).next();
        let base = match first {
            Some(&(_, base)) => base,
            None => {
                let spare = self.spare.pop();
                let base = spare.map_or_else(map_slab, Some)?;
                let mut slab = Slab { piece: bytes, used: 0, touched: 0 };
                if spare.is_some() {
                    slab.touched = slab.all();
                }
                self.by_base.insert(base, slab);
                self.roomy.insert((bytes, base));
                base
            }
        };
        let slab = self.by_base.get_mut(&base).expect("roomy slabs exist");
        let index = slab.used.trailing_ones();
        let fresh = slab.touched & (1 << index) == 0;
        slab.used |= 1 << index;
        slab.touched |= 1 << index;
        if slab.used == slab.all() {
            self.roomy.remove(&(bytes, base));
        }
        let address = base + index as usize * bytes;
        Some((NonNull::new(std::ptr::with_exposed_provenance_mut(address))?, fresh))
    }

    fn give(&mut self, memory: NonNull<u8>, bytes: usize) {
        let address = memory.as_ptr().expose_provenance();
        let base = address & !(SLAB - 1);
        let slab = self.by_base.get_mut(&base).expect("the piece belongs to a slab");
        assert_eq!(slab.piece, bytes, "a piece has the size that it was taken with");
        slab.used &= !(1 << ((address - base) / bytes));
        if slab.used == 0 {
            self.by_base.remove(&base);
            self.roomy.remove(&(bytes, base));
            match self.spare.len() < SPARE_MAX {
                true => self.spare.push(base),
                false => unmap_range(base, SLAB),
            }
        } else {
            self.roomy.insert((bytes, base));
        }
    }
}

/// The address of a new slab, all zero.
fn map_slab() -> Option<usize> {
    let start = map(2 * SLAB)?.expose_provenance().get();
    let base = start.next_multiple_of(SLAB);
    unmap_range(start, base - start);
    unmap_range(base + SLAB, start + SLAB - base);
    // SAFETY: advice on a mapping of our own. If refused, the slab has ordinary pages.
    unsafe {
        libc::madvise(std::ptr::with_exposed_provenance_mut(base), SLAB, libc::MADV_HUGEPAGE)
    };
    Some(base)
}

/// A mapping of `len` zero bytes; `None`: no memory.
pub(super) fn map(len: usize) -> Option<NonNull<u8>> {
    // SAFETY: an anonymous private mapping at no fixed address touches no existing memory.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED { None } else { NonNull::new(address.cast()) }
}

/// Unmaps `len` bytes that [`map`] mapped and nobody uses any more.
pub(super) fn unmap(memory: NonNull<u8>, len: usize) {
    // SAFETY: the range is mapped, and its owner gives it up.
    unsafe { libc::munmap(memory.as_ptr().cast(), len) };
}

fn unmap_range(start: usize, len: usize) {
    if let Some(memory) = NonNull::new(std::ptr::with_exposed_provenance_mut(start))
        && len > 0
    {
        unmap(memory, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slab_pieces_do_not_overlap_and_empty_slabs_are_spare() {
        let mut slabs = Slabs::new();
        for bytes in [64 << 10, 256 << 10, 1 << 20, SLAB] {
            let count = SLAB / bytes + 1;
            let pieces: Vec<_> = (0..count).map(|_| slabs.take(bytes).unwrap()).collect();
            assert_eq!(pieces.iter().all(|(_, fresh)| *fresh), bytes == 64 << 10);
            let mut starts: Vec<_> = pieces.iter().map(|(piece, _)| piece.addr().get()).collect();
            starts.sort_unstable();
            assert!(starts.windows(2).all(|pair| pair[0] + bytes <= pair[1]));
            assert!(starts.iter().all(|start| start.is_multiple_of(bytes)));
            assert_eq!(slabs.by_base.len(), 2);
            for (piece, _) in pieces {
                slabs.give(piece, bytes);
            }
            assert!(slabs.by_base.is_empty() && slabs.roomy.is_empty());
            assert_eq!(slabs.spare.len(), 2);
        }
    }

    #[test]
    fn spare_slabs_are_bounded() {
        let mut slabs = Slabs::new();
        let taken: Vec<_> = (0..SPARE_MAX + 3).map(|_| slabs.take(SLAB).unwrap()).collect();
        taken.into_iter().for_each(|(piece, _)| slabs.give(piece, SLAB));
        assert_eq!(slabs.spare.len(), SPARE_MAX);
        assert_eq!(slabs.take(SLAB).map(|(_, fresh)| fresh), Some(false));
    }

    #[test]
    fn reused_slab_piece_is_not_reported_as_zero() {
        let mut slabs = Slabs::new();
        let (kept, _) = slabs.take(1 << 20).unwrap();
        let (other, fresh) = slabs.take(1 << 20).unwrap();
        assert!(fresh);
        slabs.give(other, 1 << 20);
        assert_eq!(slabs.take(1 << 20), Some((other, false)));
        slabs.give(other, 1 << 20);
        slabs.give(kept, 1 << 20);
    }
}
