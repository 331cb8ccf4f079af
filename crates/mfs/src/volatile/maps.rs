//! When directories have name maps.

use crate::format::lmap::BUCKET_ENTRIES;

/// From which size on directories have maps, and how full these are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapLimits {
    /// A directory gets its map with this number of content blocks.
    pub blocks: u64,
    /// Names for each bucket.
    pub load: u32,
    /// Most entries of one block; more are chained.
    pub entries: usize,
}

impl Default for MapLimits {
    fn default() -> MapLimits {
        MapLimits::USUAL
    }
}

impl MapLimits {
    /// The limits of servers: a map from 65,536 names on (32 MiB of content). Below that, reading
    /// the content once in requests of a mebibyte costs a hard disk as much as sixteen lookups in a
    /// map. Then the directory's index is in memory.
    ///
    /// Hashes scatter, so creating or removing many names changes all buckets of a map again and
    /// again. With maps from 16,384 names on, directories of 50,000 took 1.9 times the accesses of
    /// the traditional layout for creates, 3.6 times for deletes. A bucket has 128 names, as in the
    /// paper.
    pub const USUAL: MapLimits = MapLimits { blocks: 8192, load: 128, entries: BUCKET_ENTRIES };
    /// For tests: every directory has a map from its first block on.
    pub const ALWAYS: MapLimits = MapLimits { blocks: 1, load: 2, entries: 3 };
    /// For tests: small directories have maps, whose buckets are often split, joined and chained.
    pub const TINY: MapLimits = MapLimits { blocks: 2, load: 4, entries: 6 };
}
