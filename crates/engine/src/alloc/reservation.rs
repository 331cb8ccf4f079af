//! The reservation of metadata blocks for the replies of clients.
//!
//! Invariants:
//! - only replies and their tree use free blocks that are reserved: the store can keep a reply in
//!   every slot of every client, however full the device is;
//! - the reservation grows by [`BLOCKS_PER_CLIENT`] with each client, and shrinks by one with each
//!   reply block that is allocated;
//! - the counts are those of the trees of clients and replies; an opening counts both trees.
//!
//! The store refuses a new client for which there is no room. It has room from the beginning for
//! the clients that a device of its size may expect ([`expected_clients`]). So a client can connect
//! to a full file system and remove files. Older releases could leave fewer free blocks than are
//! reserved. Then the reservation leaves the reserve alone until enough blocks are free.

use types::limits::{RESERVED_SLOTS, SESSIONS_MAX, SLOTS};

use crate::format::reply::REPLIES_PER_BLOCK;

/// Slots of a client for which the store keeps replies.
pub const REPLY_SLOTS: u32 = SLOTS as u32 + RESERVED_SLOTS as u32;
/// Most reply blocks of a client.
pub const REPLY_BLOCKS: u64 = REPLY_SLOTS.div_ceil(REPLIES_PER_BLOCK) as u64;
/// Most nodes of the tree of replies per client: a split leaves at least an eighth of the entries
/// in either half.
pub const NODES_PER_CLIENT: u64 = 2;
/// Most blocks that the replies of a client take, including their tree.
pub const BLOCKS_PER_CLIENT: u64 = REPLY_BLOCKS + NODES_PER_CLIENT;

/// Device blocks for each expected client,
const DEVICE_BLOCKS_PER_CLIENT: u64 = 4096;
/// and for each of the first [`FIRST_CLIENTS`].
const SMALL_DEVICE_BLOCKS_PER_CLIENT: u64 = 256;
const FIRST_CLIENTS: u64 = 4;
/// Counts that give the number of reserved blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplyReservation {
    /// Clients for which there is room, whether they exist or not.
    pub expected: u64,
    /// Existing clients.
    pub clients: u64,
    /// Allocated reply blocks.
    pub replies: u64,
    /// Blocks that were missing at the opening, and still are.
    pub shortfall: u64,
}

impl ReplyReservation {
    /// The reservation on a device of `blocks` blocks.
    pub fn new(blocks: u64, clients: u64, replies: u64) -> ReplyReservation {
        ReplyReservation { expected: expected_clients(blocks), clients, replies, shortfall: 0 }
    }

    /// Free blocks that are reserved.
    pub fn blocks(&self) -> u64 {
        self.wanted().saturating_sub(self.shortfall)
    }

    fn wanted(&self) -> u64 {
        (self.clients.max(self.expected) * BLOCKS_PER_CLIENT).saturating_sub(self.replies)
    }

    /// Are there more clients than expected?
    pub fn exceeds_expected(&self) -> bool {
        self.clients > self.expected
    }

    /// Sets the shortfall at the opening: `free` blocks are free, and `reserve` of them remain for
    /// other uses.
    pub fn set_shortfall(&mut self, free: u64, reserve: u64) {
        if free < self.wanted() {
            self.shortfall = self.wanted() + reserve - free;
        }
    }

    /// Reduces the shortfall when `free` blocks are free.
    pub fn reduce_shortfall(&mut self, free: u64, reserve: u64) {
        if self.shortfall > 0 {
            self.shortfall = self.shortfall.min((self.wanted() + reserve).saturating_sub(free));
        }
    }

    /// The reservation after these changes of the numbers of clients and reply blocks.
    pub fn with(self, clients: i64, replies: i64) -> ReplyReservation {
        ReplyReservation {
            clients: self.clients.saturating_add_signed(clients),
            replies: self.replies.saturating_add_signed(replies),
            ..self
        }
    }
}

/// Clients for which a device of `blocks` blocks has room from the beginning on.
pub fn expected_clients(blocks: u64) -> u64 {
    (blocks / DEVICE_BLOCKS_PER_CLIENT)
        .max(FIRST_CLIENTS.min(blocks / SMALL_DEVICE_BLOCKS_PER_CLIENT))
        .min(SESSIONS_MAX as u64)
}
