//! Page-aligned buffers for direct I/O, and the pool they return to.
//!
//! Invariants:
//! - the memory of an [`IoBuf`] starts at a 4096-byte boundary, its capacity is
//!   a multiple of 4096, and every byte of it is initialised;
//! - a thread keeps at most [`POOL_BYTES_MAX`] of unused memory. The excess returns to the
//!   operating system; large pieces return to their slabs, some of which stay without use;
//! - an `IoBuf` may be dropped on any thread and joins that thread's pool.

mod slab;

use std::alloc::Layout;
use std::cell::RefCell;
use std::num::NonZero;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// What direct I/O is aligned to.
pub const ALIGNMENT: usize = 4096;

/// Unused bytes that the pool of a thread keeps; the threads of an executor group share this bound.
pub const POOL_BYTES_MAX: usize = 64 << 20;

/// Capacities from here up to [`slab::SLAB`] are pieces of slabs.
const SLABS_FROM: usize = 256 << 10;

/// The capacities that are pooled.
const CLASSES: [usize; 11] = [
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
];

/// A byte buffer whose memory starts at a 4096-byte boundary. Dropping it returns the memory to
/// the thread's pool; the driver owns the buffer while an operation is in flight.
/// Derefs to `[u8]` of its length.
pub struct IoBuf {
    memory: NonNull<u8>,
    capacity: usize,
    len: usize,
}

// SAFETY: an `IoBuf` is the only owner of its memory.
unsafe impl Send for IoBuf {}
// SAFETY: a shared reference only reads the memory.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// A buffer of `len` zero bytes; of length 0 it has no memory at all.
    pub fn zeroed(len: usize) -> IoBuf {
        let (mut buf, fresh) = IoBuf::take(len);
        if !fresh {
            buf.fill(0);
        }
        buf
    }

    /// A buffer of `len` bytes of unspecified (old) content, for callers that overwrite all of it.
    pub fn unspecified(len: usize) -> IoBuf {
        IoBuf::take(len).0
    }

    /// A buffer that holds `bytes`.
    pub fn copy_of(bytes: &[u8]) -> IoBuf {
        let mut buf = IoBuf::unspecified(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// A buffer that holds the bytes of all `parts`, one behind the other.
    pub(crate) fn joined(parts: &[IoBuf]) -> IoBuf {
        let mut buf = IoBuf::unspecified(parts.iter().map(IoBuf::len).sum());
        let mut at = 0;
        for part in parts {
            buf[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        buf
    }

    /// A buffer of `len` zero bytes, 256 KiB or more, in a mapping of its own, for buffers that
    /// wait long: only the pages that are touched take memory. It is not pooled.
    pub(crate) fn sparse(len: usize) -> IoBuf {
        let rounded = round_up(len);
        // One more page if the size is that of a slab piece.
        let pooled = CLASSES.contains(&rounded);
        let capacity = if pooled { rounded + ALIGNMENT } else { rounded };
        assert!(matches!(Origin::of(capacity), Origin::Map), "{len} bytes are too few");
        let (memory, _) = allocate(capacity);
        IoBuf { memory, capacity, len }
    }

    /// The buffer, and whether its memory is still all zero.
    fn take(len: usize) -> (IoBuf, bool) {
        if len == 0 {
            let memory = NonNull::without_provenance(const { NonZero::new(ALIGNMENT).unwrap() });
            return (IoBuf { memory, capacity: 0, len }, true);
        }
        let capacity = class_of(len).map_or_else(|| round_up(len), |class| CLASSES[class]);
        let pooled = POOL.try_with(|pool| pool.borrow_mut().take(len)).ok().flatten();
        match pooled {
            Some(memory) => (IoBuf { memory, capacity, len }, false),
            None => {
                let (memory, fresh) = allocate(capacity);
                (IoBuf { memory, capacity, len }, fresh)
            }
        }
    }

    /// Bytes in use.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is no byte in use?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Shortens or lengthens within the capacity. Lengthening exposes whatever the memory held.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "length {len} exceeds the capacity {}", self.capacity);
        self.len = len;
    }

    /// Bytes that fit without reallocation.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

impl AsRef<[u8]> for IoBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= capacity` bytes at `memory` are initialised and owned by `self`.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        let (memory, capacity) = (self.memory, self.capacity);
        if capacity == 0 {
            return;
        }
        let kept = POOL.try_with(|pool| pool.borrow_mut().give(memory, capacity)).unwrap_or(false);
        if !kept {
            release(memory, capacity);
        }
    }
}

impl std::fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoBuf").field("len", &self.len).field("capacity", &self.capacity).finish()
    }
}

/// Unused memory of one thread, by class.
struct Pool {
    free: [Vec<NonNull<u8>>; CLASSES.len()],
    bytes: usize,
    /// The upper bound of `bytes`.
    limit: usize,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool { free: Default::default(), bytes: 0, limit: POOL_BYTES_MAX }
    }
}

/// Limits the pool of this thread to the share of one among `threads`.
pub(crate) fn share_pool(threads: usize) {
    POOL.with_borrow_mut(|pool| pool.limit = POOL_BYTES_MAX / threads.max(1));
}

impl Pool {
    fn take(&mut self, len: usize) -> Option<NonNull<u8>> {
        let class = class_of(len)?;
        let memory = self.free[class].pop()?;
        self.bytes -= CLASSES[class];
        Some(memory)
    }

    /// Takes the memory over, or leaves it to the caller (`false`).
    fn give(&mut self, memory: NonNull<u8>, capacity: usize) -> bool {
        let Some(class) = class_of(capacity).filter(|&class| CLASSES[class] == capacity) else {
            return false;
        };
        if self.bytes + capacity > self.limit {
            return false;
        }
        self.bytes += capacity;
        self.free[class].push(memory);
        true
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for (class, list) in self.free.iter_mut().enumerate() {
            for memory in list.drain(..) {
                release(memory, CLASSES[class]);
            }
        }
    }
}

thread_local! {
    static POOL: RefCell<Pool> = RefCell::default();
}

fn class_of(len: usize) -> Option<usize> {
    CLASSES.iter().position(|&capacity| len <= capacity)
}

fn round_up(len: usize) -> usize {
    len.div_ceil(ALIGNMENT) * ALIGNMENT
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, ALIGNMENT).expect("a buffer's capacity fits in isize")
}

/// The allocator that memory of some capacity comes from.
enum Origin {
    /// The allocator of the program.
    Heap,
    /// A slab.
    Slab,
    /// A mapping of its own.
    Map,
}

impl Origin {
    fn of(capacity: usize) -> Origin {
        if capacity < SLABS_FROM {
            Origin::Heap
        } else if capacity <= slab::SLAB && capacity.is_power_of_two() {
            Origin::Slab
        } else {
            Origin::Map
        }
    }
}

/// `capacity` bytes at a page boundary, and whether they are all zero.
fn allocate(capacity: usize) -> (NonNull<u8>, bool) {
    let taken = match Origin::of(capacity) {
        Origin::Slab => slab::take(capacity),
        // SAFETY: the layout has a size above zero.
        Origin::Heap => unsafe {
            NonNull::new(std::alloc::alloc_zeroed(layout(capacity))).map(|memory| (memory, true))
        },
        Origin::Map => slab::map(capacity).map(|memory| (memory, true)),
    };
    taken.unwrap_or_else(|| std::alloc::handle_alloc_error(layout(capacity)))
}

/// Frees what `allocate` returned for `capacity`.
fn release(memory: NonNull<u8>, capacity: usize) {
    match Origin::of(capacity) {
        Origin::Slab => slab::give(memory, capacity),
        // SAFETY: `allocate` made it with this layout, and its owner gives it up.
        Origin::Heap => unsafe { std::alloc::dealloc(memory.as_ptr(), layout(capacity)) },
        Origin::Map => slab::unmap(memory, capacity),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_aligned_and_zeroed_even_when_reused() {
        for len in [1, 4096, 4097, 70_000, 1 << 20, (1 << 20) + 1, 5 << 20] {
            for _ in 0..2 {
                let mut buf = IoBuf::zeroed(len);
                assert_eq!(buf.as_ptr() as usize % ALIGNMENT, 0);
                assert_eq!((buf.len(), buf.capacity() % ALIGNMENT), (len, 0));
                assert!(buf.iter().all(|&byte| byte == 0));
                buf.fill(0xff);
            }
        }
    }

    #[test]
    fn dropped_buffer_serves_the_next_request_of_its_size() {
        let first = IoBuf::zeroed(8192);
        let address = first.as_ptr();
        drop(first);
        assert_eq!(IoBuf::unspecified(5000).as_ptr(), address);
    }

    #[test]
    fn buffer_pool_stays_below_its_limit() {
        let many: Vec<IoBuf> = (0..80).map(|_| IoBuf::unspecified(1 << 20)).collect();
        drop(many);
        POOL.with(|pool| assert!(pool.borrow().bytes <= POOL_BYTES_MAX));
    }

    #[test]
    fn sparse_buffer_is_zero_and_never_pooled() {
        for len in [256 << 10, 1 << 20, (1 << 20) + 4096] {
            let mut buf = IoBuf::sparse(len);
            assert_eq!((buf.len(), buf.as_ptr() as usize % ALIGNMENT), (len, 0));
            assert!(buf.iter().all(|&byte| byte == 0));
            buf.fill(0xff);
            let before = POOL.with(|pool| pool.borrow().bytes);
            drop(buf);
            assert_eq!(POOL.with(|pool| pool.borrow().bytes), before);
        }
    }

    #[test]
    fn buffer_length_changes_within_the_capacity() {
        let mut buf = IoBuf::zeroed(100);
        buf.set_len(4096);
        assert_eq!(buf.len(), 4096);
        buf.set_len(0);
        assert!(buf.is_empty());
    }
}
