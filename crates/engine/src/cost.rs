//! The worst case of a transaction, for which log, cache and allocator must have room.

/// Which allocations of a transaction may use the reserve of metadata space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserve {
    /// None.
    None,
    /// Those that freeing space may need. Not those for content that outgrew its slot, nor blocks
    /// that are reserved for clients.
    ToFree,
    /// All: the operation is a replay, and had room when it ran first.
    Replay,
}

/// The worst case of a transaction, which waits until log and cache have room for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Bytes of its log record.
    pub log_bytes: u32,
    /// Blocks that it dirties.
    pub dirty: u32,
    /// Its use of the reserve of metadata space (for deletions, and for what they depend on).
    pub reserve: Reserve,
}

impl Cost {
    /// An operation that changes nothing: it never waits for room.
    pub const READ: Cost = Cost { log_bytes: 0, dirty: 0, reserve: Reserve::None };
    /// An ordinary operation.
    pub const SMALL: Cost = Cost { log_bytes: 128 << 10, dirty: 96, reserve: Reserve::None };
    /// A step of unbounded work.
    pub const STEP: Cost = Cost { log_bytes: 1 << 20, dirty: 256, reserve: Reserve::ToFree };
    /// An operation that frees more than it allocates, or allocates nothing permanently.
    pub const DELETE: Cost = Cost { reserve: Reserve::ToFree, ..Cost::SMALL };
}
