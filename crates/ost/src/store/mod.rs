//! The objects of a target: sparse sequences of blocks, on the engine (paper 001, sections 3.2 and
//! 5).
//!
//! Invariants:
//! - after a crash every object is as after a prefix of the transactions, and the prefix has all
//!   that the store acknowledged as durable. Nothing that is durable points at bytes that are not;
//! - a failed write or flush stops the store (`Poisoned`): it never says that
//!   something is durable after that;
//! - everything runs on one thread; the layer above decides who may do what, and in which order
//!   requests for one object are made. The store needs no order.
//!
//! | module | what |
//! |---|---|
//! | `format` | the trees, as bytes |
//! | `open` | makes, opens and closes a target |
//! | `journal` | where a target has its journal |
//! | `change` | writes, punches, destructions, fences |
//! | `look` | reads |
//! | `map` | blocks of objects to content blocks, in a transaction |
//! | `check` | do all trees agree? |
//! | `scrub` | does the content match its checksums? |
//! | `space` | free and held content blocks |
//! | `promises` | free blocks that are kept for clients |
//! | `flight` | writes of content in flight, and the barrier before the log |

mod adopt;
mod change;
pub mod check;
mod flight;
pub mod format;
mod journal;
mod look;
mod map;
mod open;
mod promises;
pub mod scrub;
mod space;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::rc::Rc;

use engine::store::Store;
use engine::store::barrier::{CommitStats, Waits};
use env::IoBuf;
use proto::ost::{IO_BLOCKS_MAX, ObjectRun, Statement, TargetInfo};
use types::limits::BLOCK_U64;
use types::{ClientId, Epoch, Fault, Uuid};

#[cfg(test)]
mod tests;

pub use engine::device::shared;
use flight::Flight;
pub use journal::{JournalPlace, NewJournal, refuses_whole, release_journal, target_on};
use promises::{Promises, Supply};
use space::Space;

/// How to make a target.
#[derive(Clone, Debug)]
pub struct FormatOptions<'a> {
    /// Name of the file system that it belongs to.
    pub fs_name: &'a str,
    /// UUID of that file system.
    pub fs: Uuid,
    /// UUID of the target.
    pub target: Uuid,
    /// Bytes of the internal journal; ignored with an external one.
    pub log_bytes: u64,
    /// Keep and check checksums of content.
    pub checksums: bool,
    /// Overwrite a device that carries a Redbud label.
    pub force: bool,
}

/// How to open a target.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Size of the cache of metadata blocks.
    pub cache_bytes: usize,
    /// Age at which a group of transactions is committed that nobody waits for.
    pub commit_interval: types::Duration,
}

/// The request whose answer a transaction keeps: its client, slot and sequence. The kept answer has
/// no bytes: it is `Done`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The client, by the target's own number; [`ClientId::NONE`]: nobody, and no answer is kept.
    pub client: ClientId,
    /// Its slot.
    pub slot: u16,
    /// Its sequence there.
    pub seq: u32,
}

/// The room that a write takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// It was accepted before a restart: it takes what is free, also what is kept for others.
    Repeated,
    /// What is kept for its client, and what is kept for nobody. Its client counts so much behind
    /// it.
    Of(Statement),
}

/// What a read has found.
pub struct Found {
    /// The blocks that hold something, counted from the first one asked for.
    pub runs: Vec<ObjectRun>,
    /// Their bytes.
    pub data: IoBuf,
    /// The CRC32C of each.
    pub sums: Vec<u32>,
}

/// The objects of a target.
pub struct ObjectStore {
    target: Uuid,
    checksums: bool,
    engine: Store,
    space: Rc<Space>,
    promises: Rc<Promises>,
    flight: Rc<Flight>,
    fenced: RefCell<BTreeSet<ClientId>>,
    /// The file system that has adopted it.
    adopted: RefCell<Option<(Uuid, String)>>,
    counters: RefCell<Counters>,
}

/// What the store did since it was opened, as numbers that a status can print.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// How groups of the log were committed.
    pub commit: CommitStats,
    /// Writes.
    pub writes: u64,
    /// Their blocks.
    pub written_blocks: u64,
    /// The time that the device took for the content of each.
    pub data: Waits,
    /// Those that are in flight.
    pub in_flight: u64,
    /// Reads.
    pub reads: u64,
    /// Their blocks.
    pub read_blocks: u64,
    /// Blocks that did not match their checksum.
    pub corrupt: u64,
    /// Writes that waited for freed blocks to be let go.
    pub held: Waits,
    /// Blocks that are held now.
    pub held_blocks: u64,
    /// Runs of them.
    pub held_runs: u64,
    /// Free blocks that are kept for clients.
    pub promised_blocks: u64,
}

impl ObjectStore {
    /// The engine's store: clients, settings, durability, epochs.
    pub fn engine(&self) -> &Store {
        &self.engine
    }

    /// File system, target, space. Of the free blocks those are left out that only writes over
    /// others may take.
    pub fn info(&self) -> TargetInfo {
        TargetInfo {
            uuid: self.target,
            blocks: self.flight.content.blocks - 1,
            free: self.space.free().saturating_sub(self.space.reserve()),
            checksums: self.checksums,
        }
    }

    /// Keeps `wanted` more free blocks for a client, and `needed` at least. Returns how many.
    ///
    /// # Errors
    /// `NoSpace` if there are not so many as are needed.
    pub fn promise(
        &self,
        client: ClientId,
        said: Statement,
        needed: u64,
        wanted: u64,
    ) -> Result<u64, Fault> {
        let given = self.promises.give(client, said, (needed, wanted), self.supply());
        given.ok_or(Fault::NoSpace)
    }

    /// A client says what is kept for it. Only one that states it again after a restart (`anew`)
    /// may say more than the store knows.
    pub fn state_promise(&self, client: ClientId, said: Statement, anew: bool) {
        let all = self.flight.content.blocks - 1;
        match anew {
            true => self.promises.state_anew(client, said, all),
            false => self.promises.hold(client, said),
        }
    }

    /// Ends when a client has made a statement, or is forgotten.
    pub fn promise_changed(&self) -> impl Future<Output = ()> {
        self.promises.changed.notified()
    }

    /// The clients for which something is kept, and how often each has given something back.
    pub fn promised(&self) -> BTreeMap<ClientId, u64> {
        self.promises.all()
    }

    fn supply(&self) -> Supply {
        let usage = self.engine.usage();
        let kept = usage.blocks_set_aside + self.metadata_for_overwrites();
        Supply {
            blocks: self.space.free().saturating_sub(self.space.reserve()),
            nodes: usage.blocks_free.saturating_sub(kept),
        }
    }

    /// Free metadata blocks that are left for writes over blocks that are there.
    pub fn metadata_for_overwrites(&self) -> u64 {
        let (usage, free) = (self.engine.usage(), self.space.free());
        let mapped = (self.flight.content.blocks - 1).saturating_sub(free);
        let log = match self.engine.superblock().journal {
            None => usage.log_bytes / BLOCK_U64,
            Some(_) => 0,
        };
        let nodes = usage.blocks.saturating_sub(usage.blocks_set_aside + log);
        promises::overwrites(mapped, free, nodes)
    }

    /// Are metadata blocks the reason why it has no room for a large write?
    pub fn is_short_of_metadata(&self) -> bool {
        let (supply, large) = (self.supply(), u64::from(IO_BLOCKS_MAX));
        let left = |blocks: u64| blocks.saturating_sub(self.promises.total());
        left(supply.mappable()) < large && left(supply.blocks) >= large
    }

    /// The client is gone: nothing is kept for it any more.
    pub fn forget_promise(&self, client: ClientId) {
        self.promises.forget(client);
    }

    /// Checks the invariants of what is kept in memory; `is_here`: has this client a session?
    pub fn validate(&self, is_here: impl Fn(ClientId) -> bool) {
        self.promises.validate(is_here);
    }

    /// UUID and name of the file system, and the epoch of this opening.
    pub fn identity(&self) -> (Uuid, String, Epoch) {
        let identity = self.engine.identity();
        let formatted = (identity.uuid, identity.name);
        let (fs, name) = self.adopted.borrow().clone().unwrap_or(formatted);
        (fs, name, identity.epoch)
    }

    /// What it did so far.
    pub fn counters(&self) -> Counters {
        let (held_blocks, held_runs) = self.space.held();
        Counters {
            commit: self.engine.commit_stats(),
            in_flight: self.flight.in_flight(),
            held_blocks,
            held_runs,
            promised_blocks: self.promises.total(),
            ..*self.counters.borrow()
        }
    }
}
