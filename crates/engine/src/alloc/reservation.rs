//! The reservation of metadata blocks for clients that are yet to come.
//!
//! Invariants:
//! - a free block that is reserved goes to an enrolment, which takes [`BLOCKS_PER_CLIENT`], and to
//!   nothing else. The store can enrol each client that it expects, however full the device is;
//! - the reservation falls by [`BLOCKS_PER_CLIENT`] with each client, and rises by as much when one
//!   is removed;
//! - the number of clients is that of their tree; an opening counts it.
//!
//! A client gets its block of replies when it is enrolled, with room for each of its slots. So no
//! existing client ever lacks a block for a reply, and nothing is reserved for it. A device has
//! room from the beginning for the clients that one of its size may expect ([`expected_clients`]),
//! so they can connect to a full file system and remove files. The store refuses a further client
//! for which there is no room. A repair can leave fewer free blocks than are reserved. Then the
//! reservation leaves the reserve alone until enough blocks are free.

use types::limits::SESSIONS_MAX;

/// Blocks of each client: its short replies, and its description.
pub const BLOCKS_PER_CLIENT: u64 = 2;

/// Device blocks for each expected client,
const DEVICE_BLOCKS_PER_CLIENT: u64 = 512;
/// and for each of the first [`FIRST_CLIENTS`].
const SMALL_DEVICE_BLOCKS_PER_CLIENT: u64 = 256;
const FIRST_CLIENTS: u64 = 4;

/// Counts that give the number of reserved blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientReservation {
    /// Clients for which there is room, whether they exist or not.
    pub expected: u64,
    /// Existing clients.
    pub clients: u64,
    /// Blocks that were missing at the opening, and still are.
    pub shortfall: u64,
}

impl ClientReservation {
    /// The reservation on a device of `blocks` blocks.
    pub fn new(blocks: u64, clients: u64) -> ClientReservation {
        ClientReservation { expected: expected_clients(blocks), clients, shortfall: 0 }
    }

    /// Free blocks that are reserved.
    pub fn blocks(&self) -> u64 {
        self.wanted().saturating_sub(self.shortfall)
    }

    fn wanted(&self) -> u64 {
        self.expected.saturating_sub(self.clients) * BLOCKS_PER_CLIENT
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

    /// The reservation after this change of the number of clients.
    pub fn with(self, clients: i64) -> ClientReservation {
        ClientReservation { clients: self.clients.saturating_add_signed(clients), ..self }
    }
}

/// Clients for which a device of `blocks` blocks has room from the beginning on.
pub fn expected_clients(blocks: u64) -> u64 {
    (blocks / DEVICE_BLOCKS_PER_CLIENT)
        .max(FIRST_CLIENTS.min(blocks / SMALL_DEVICE_BLOCKS_PER_CLIENT))
        .min(SESSIONS_MAX as u64)
}

/// Nodes that the trees of clients and replies have at most with the short replies of this many
/// clients: a split leaves at least an eighth of the entries in either half, so 20 or more.
pub fn nodes(clients: u64) -> u64 {
    2 + clients / 8
}
