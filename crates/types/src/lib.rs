//! The vocabulary of every part of Redbud: identifiers, units, attributes, rights,
//! faults and limits.
//!
//! Invariants:
//! - an identifier is never a bare integer across a function boundary;
//! - nothing here does I/O, reads a clock, or allocates without a bound;
//! - limits that depend on each other are tied by const assertions ([`limits`]).

pub mod attr;
pub mod fault;
pub mod fs_name;
pub mod ids;
pub mod json;
pub mod limits;
pub mod map;
pub mod name;
pub mod plant;
pub mod range;
pub mod rights;
pub mod segment;
pub mod time;
pub mod units;

pub use attr::{Attr, FileKind};
pub use fault::Fault;
pub use fs_name::{FS_NAME_MAX, check_fs_name};
pub use ids::*;
pub use map::{HashMap, HashSet};
pub use name::{Name, name_hash};
pub use plant::{Bug, planted};
pub use range::{Ahead, BlockRange, HeldRange};
pub use rights::Rights;
pub use segment::{Segment, SegmentState};
pub use time::{Duration, Instant, Timestamp};

/// CRC32C (Castagnoli) of `bytes`, as every block, slot and frame carries it.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC32C of `bytes` continued from `crc`.
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}
