//! The trees of data space.
//!
//! Invariants:
//! - a data block above block 0 of its PAG is in exactly one of: the free tree, one client's pool,
//!   a file's layout, the freed tree, the tree `lent`. In a PAG of another shard only the blocks
//!   that `lent` names are here, each in exactly one of the first four;
//! - a quarantined client's pool *is* its quarantine: the state is one item, so that quarantining
//!   costs the same for any pool;
//! - adjacent runs of the free tree, and of one client's pool, are joined.
//!
//! | tree | key (big-endian) | value (little-endian) |
//! |---|---|---|
//! | pags | pag 2 | uuid of the slice 16 · uuid of the device 16 · start on the device 8 · blocks 6, block 0 included · state 1 · kind 1 · free 8 · freed 8 |
//! | free | pag 2 · start 8 | length 8 |
//! | pools | client 8 · pag 2 · start 8 | length 8 |
//! | freed | pag 2 · start 8 | length 8 · ino 8 · stamp 8 (log position before the freeing record) |
//! | quarantines | client 8 | reserved 8 |
//! | doomed | target 2 · object 8 | reserved 2; an entry of zeros means nothing |
//! | owed fences | target 2 · client 8 | reserved 4; an entry of zeros means nothing |
//! | lent | pag 2 · start 8 | length 8 · shard 1 · sequence 4; an entry of zeros means nothing |
//! | frozen | order 1 · first 8 · second 8 | reserved 8; order 0: ⟨ino, client⟩, 1: ⟨client, ino⟩; ino 2^64 − 1: all files |
//!
//! The state of a PAG says what may be done with its blocks; the counts and the other trees hold in
//! each state:
//!
//! | state | name | meaning |
//! |---|---|---|
//! | 0 | in service | blocks are granted from it |
//! | 1 | draining | no blocks are granted; clients move files elsewhere, which keep what they have until then |
//! | 2 | lost | its device is gone, as the administrator says: no blocks are granted, and clients fail what lies there |
//! | 3 | drain paused | no blocks are granted; files keep those that they have |
//!
//! The kind of a PAG is one of these; with another kind the state is none of the table, too.
//!
//! | kind | meaning |
//! |---|---|
//! | 0 | a slice of a shared device |
//! | 1 | an object storage target, with the feature `object-files`. Its UUID is that of its device, too, and start, free and freed are 0: the other trees have no blocks of it. The setting (11) 2^31 + its number has its address |
//! | 2 | a slice of a shared device that is another shard's, with the feature `lent-space`. Once blocks of a loan have gone back, the setting (11) 3 · 2^29 + a shard has the number of the last loan to it, 4 bytes, and the setting 256 later that of the last one from it |
//!
//! A shard lends free blocks of its PAGs to others, until their zone drains. What it has lent is
//! in its tree `lent`, each run with the shard that has it. That shard has the PAG as one of kind
//! 2, and in its own tree `lent` the same runs, each with the shard that has lent it. The runs that
//! one shard gets from another at once have one sequence number: 1, 2 and so on between these two.
//! A shard may have lent runs that the other one has not entered yet: those of the last sequence.
//! Blocks that have gone to another shard with their file have the sequence 0. Of these no two runs
//! with one shard adjoin, and both shards have the same ones.
//!
//! Doomed objects are those of files that are gone: the server has each of them destroyed by its
//! target, and removes the entry when that is durable there. A fence is owed to each target for
//! each client that was evicted, until the target has answered that it refuses that client for
//! good.

use types::{ClientId, Ino, Lsn, ObjectId, PagBlock, PagId, ShardId, Uuid};

use engine::format::block::{get_u64, put_u64};
use label::{Slice, SliceKind};

/// Bytes of a key ⟨pag, start⟩.
pub const RUN_KEY: usize = 10;
/// Bytes of a key of the pools.
pub const POOL_KEY: usize = 18;
/// Bytes of a key ⟨target, object⟩ or ⟨target, client⟩.
pub const TARGET_KEY: usize = 10;
/// Bytes of a value of the doomed objects. The width says which tree a lost leaf is of.
pub const DOOMED_VALUE: usize = 2;
/// Bytes of a value of the owed fences.
pub const FENCE_VALUE: usize = 4;
/// Bytes of a key of the frozen tree.
pub const FROZEN_KEY: usize = 17;
/// Bytes of a value of the PAG table.
pub const PAG_VALUE: usize = 64;
/// The bits of the blocks in their word; the state of the PAG is above them.
const BLOCKS_MASK: u64 = (1 << 48) - 1;
/// The bits of the kind in the word of state and kind, and those of a target.
const KIND_MASK: u16 = 0xff00;
const KIND_TARGET: u16 = 0x0100;
const KIND_BORROWED: u16 = 0x0200;
/// Bytes of a value of the tree `lent`. The width says which tree a lost leaf is of.
pub const LENT_VALUE: usize = 13;
/// Bytes of a value of the freed tree.
pub const FREED_VALUE: usize = 24;

/// One data zone: a slice of a device, as in the device's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagFormat {
    /// Its number.
    pub id: PagId,
    /// The UUID of the slice.
    pub uuid: Uuid,
    /// The UUID of the device.
    pub device: Uuid,
    /// First block of the slice on the device.
    pub start: u64,
    /// Its blocks; block 0 is not used.
    pub blocks: u64,
}

impl PagFormat {
    /// The zone that takes a device of `blocks` + 1 blocks; both have this UUID.
    pub fn whole(id: PagId, uuid: Uuid, blocks: u64) -> PagFormat {
        PagFormat { id, uuid, device: uuid, start: 0, blocks }
    }

    /// Does the zone have a block besides block 0, and can a segment address all its blocks?
    pub(crate) fn is_possible(&self) -> bool {
        self.blocks >= 2 && self.blocks >> 46 == 0 && self.start.checked_add(self.blocks).is_some()
    }

    /// The zone as a slice in the label of its device.
    pub(crate) fn slice(&self) -> Slice {
        let PagFormat { id, uuid, start, blocks, .. } = *self;
        Slice { kind: SliceKind::Data { pag: id }, start, blocks, uuid }
    }
}

/// What a data zone is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ZoneKind {
    /// A slice of a device that all clients share.
    #[default]
    Blocks,
    /// An object storage target, which alone opens its device.
    Target,
    /// A slice of a shared device that is another shard's, which has lent blocks of it.
    Borrowed,
}

/// What may be done with the blocks of a PAG.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PagUse {
    /// Blocks are granted.
    #[default]
    InService,
    /// None are granted; files keep what they have.
    Draining,
    /// The administrator says that its device is gone.
    Lost,
    /// As draining, and what is moving its blocks is to stop.
    Paused,
    /// Damage, or a later release: nothing is granted.
    Unknown(u16),
}

impl PagUse {
    /// Its number on the device.
    pub fn number(self) -> u16 {
        match self {
            PagUse::InService => 0,
            PagUse::Draining => 1,
            PagUse::Lost => 2,
            PagUse::Paused => 3,
            PagUse::Unknown(number) => number,
        }
    }

    /// The inverse of [`PagUse::number`].
    pub fn of(number: u16) -> PagUse {
        match number {
            0 => PagUse::InService,
            1 => PagUse::Draining,
            2 => PagUse::Lost,
            3 => PagUse::Paused,
            number => PagUse::Unknown(number),
        }
    }

    /// Its name, for administrators.
    pub fn name(self) -> &'static str {
        match self {
            PagUse::InService => "in service",
            PagUse::Draining => "draining",
            PagUse::Lost => "lost",
            PagUse::Paused => "drain paused",
            PagUse::Unknown(_) => "unknown",
        }
    }

    /// The state of this name, if it is a known one.
    pub fn named(name: &str) -> Option<PagUse> {
        let known = [PagUse::InService, PagUse::Draining, PagUse::Lost, PagUse::Paused];
        known.into_iter().find(|state| state.name() == name)
    }

    /// Are its blocks to leave it?
    pub fn is_leaving(self) -> bool {
        matches!(self, PagUse::Draining | PagUse::Paused)
    }

    /// May blocks be granted?
    pub fn grants(self) -> bool {
        self == PagUse::InService
    }
}

/// A PAG's record in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagRecord {
    /// UUID of its slice.
    pub uuid: Uuid,
    /// UUID of the device.
    pub device: Uuid,
    /// First block of the slice on the device.
    pub start: u64,
    /// Blocks, block 0 included; below 2^48.
    pub blocks: u64,
    /// What may be done with them.
    pub state: PagUse,
    /// What the zone is.
    pub kind: ZoneKind,
    /// Blocks in the free tree.
    pub free: u64,
    /// Blocks in the freed tree.
    pub freed: u64,
}

impl PagRecord {
    /// Its encoded value.
    pub fn encode(&self) -> [u8; PAG_VALUE] {
        let mut out = [0; PAG_VALUE];
        out[..16].copy_from_slice(&self.uuid.0);
        out[16..32].copy_from_slice(&self.device.0);
        put_u64(&mut out, 32, self.start);
        let kind = match self.kind {
            ZoneKind::Blocks => 0,
            ZoneKind::Target => KIND_TARGET,
            ZoneKind::Borrowed => KIND_BORROWED,
        };
        let state = self.state.number() | kind;
        put_u64(&mut out, 40, self.blocks & BLOCKS_MASK | u64::from(state) << 48);
        put_u64(&mut out, 48, self.free);
        put_u64(&mut out, 56, self.freed);
        out
    }

    /// Decodes a value.
    pub fn decode(value: &[u8; PAG_VALUE]) -> PagRecord {
        let uuid = |at: usize| {
            let mut uuid = [0; 16];
            uuid.copy_from_slice(&value[at..at + 16]);
            Uuid(uuid)
        };
        let word = (get_u64(value, 40) >> 48) as u16;
        let (kind, state) = match word & KIND_MASK {
            KIND_TARGET => (ZoneKind::Target, word & !KIND_MASK),
            KIND_BORROWED => (ZoneKind::Borrowed, word & !KIND_MASK),
            _ => (ZoneKind::Blocks, word),
        };
        PagRecord {
            uuid: uuid(0),
            device: uuid(16),
            start: get_u64(value, 32),
            blocks: get_u64(value, 40) & BLOCKS_MASK,
            state: PagUse::of(state),
            kind,
            free: get_u64(value, 48),
            freed: get_u64(value, 56),
        }
    }

    /// The record of a zone in service, with these counts.
    pub fn new(zone: &PagFormat, free: u64, freed: u64) -> PagRecord {
        let PagFormat { uuid, device, start, blocks, .. } = *zone;
        let (state, kind) = (PagUse::InService, ZoneKind::Blocks);
        PagRecord { uuid, device, start, blocks, state, kind, free, freed }
    }

    /// The record of an object storage target in service with so many blocks for content.
    pub fn target(uuid: Uuid, blocks: u64) -> PagRecord {
        let zone = PagFormat { id: PagId(0), uuid, device: uuid, start: 0, blocks: blocks + 1 };
        PagRecord { kind: ZoneKind::Target, ..PagRecord::new(&zone, 0, 0) }
    }

    /// The zone with this number and record.
    pub fn zone(&self, id: PagId) -> PagFormat {
        let PagRecord { uuid, device, start, blocks, .. } = *self;
        PagFormat { id, uuid, device, start, blocks }
    }
}

/// A run in the tree `lent`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LentRun {
    /// Length in blocks.
    pub len: u64,
    /// In a zone of this shard the one that has the run; else the one that has lent it.
    pub shard: ShardId,
    /// Which loan between the two it is of, from 1 on.
    pub sequence: u32,
}

impl LentRun {
    /// Its encoded value.
    pub fn encode(&self) -> [u8; LENT_VALUE] {
        let mut out = [0; LENT_VALUE];
        put_u64(&mut out, 0, self.len);
        out[8] = self.shard.0;
        out[9..].copy_from_slice(&self.sequence.to_le_bytes());
        out
    }

    /// Decodes a value.
    pub fn decode(value: &[u8; LENT_VALUE]) -> LentRun {
        LentRun {
            len: get_u64(value, 0),
            shard: ShardId(value[8]),
            sequence: u32::from_le_bytes([value[9], value[10], value[11], value[12]]),
        }
    }
}

/// A run in the freed tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreedRun {
    /// Length in blocks.
    pub len: u64,
    /// The file that mapped it.
    pub ino: Ino,
    /// End of the log before the record that freed it: if the log is durable beyond this, so is
    /// that record.
    pub stamp: Lsn,
}

impl FreedRun {
    /// Its encoded value.
    pub fn encode(&self) -> [u8; FREED_VALUE] {
        let mut out = [0; FREED_VALUE];
        put_u64(&mut out, 0, self.len);
        put_u64(&mut out, 8, self.ino.0);
        put_u64(&mut out, 16, self.stamp.0);
        out
    }

    /// Decodes a value.
    pub fn decode(value: &[u8; FREED_VALUE]) -> FreedRun {
        FreedRun {
            len: get_u64(value, 0),
            ino: Ino(get_u64(value, 8)),
            stamp: Lsn(get_u64(value, 16)),
        }
    }
}

/// Key of a PAG.
pub fn pag_key(pag: PagId) -> [u8; 2] {
    pag.0.to_be_bytes()
}

/// Key ⟨pag, start⟩.
pub fn run_key(pag: PagId, start: u64) -> [u8; RUN_KEY] {
    let mut out = [0; RUN_KEY];
    out[..2].copy_from_slice(&pag.0.to_be_bytes());
    out[2..].copy_from_slice(&start.to_be_bytes());
    out
}

/// The inverse of [`run_key`].
pub fn decode_run_key(key: &[u8; RUN_KEY]) -> (PagId, PagBlock) {
    (PagId(u16::from_be_bytes([key[0], key[1]])), PagBlock(big(&key[2..])))
}

/// Key ⟨client, pag, start⟩.
pub fn pool_key(client: ClientId, pag: PagId, start: u64) -> [u8; POOL_KEY] {
    let mut out = [0; POOL_KEY];
    out[..8].copy_from_slice(&client.0.to_be_bytes());
    out[8..].copy_from_slice(&run_key(pag, start));
    out
}

/// The inverse of [`pool_key`].
pub fn decode_pool_key(key: &[u8; POOL_KEY]) -> (ClientId, PagId, PagBlock) {
    let pag = PagId(u16::from_be_bytes([key[8], key[9]]));
    (ClientId(big(&key[..8])), pag, PagBlock(big(&key[10..])))
}

/// Key ⟨target, object⟩.
pub fn object_key(target: PagId, object: ObjectId) -> [u8; TARGET_KEY] {
    run_key(target, object.0)
}

/// The inverse of [`object_key`].
pub fn decode_object_key(key: &[u8; TARGET_KEY]) -> (PagId, ObjectId) {
    (PagId(u16::from_be_bytes([key[0], key[1]])), ObjectId(big(&key[2..])))
}

/// Key ⟨target, client⟩.
pub fn fence_key(target: PagId, client: ClientId) -> [u8; TARGET_KEY] {
    run_key(target, client.0)
}

/// The inverse of [`fence_key`].
pub fn decode_fence_key(key: &[u8; TARGET_KEY]) -> (PagId, ClientId) {
    (PagId(u16::from_be_bytes([key[0], key[1]])), ClientId(big(&key[2..])))
}

/// The two keys under which ⟨client, ino⟩ is frozen: by inode, by client.
pub fn frozen_keys(client: ClientId, ino: Ino) -> [[u8; FROZEN_KEY]; 2] {
    [frozen_key(0, ino.0, client.0), frozen_key(1, client.0, ino.0)]
}

/// A key of the frozen tree.
pub fn frozen_key(order: u8, first: u64, second: u64) -> [u8; FROZEN_KEY] {
    let mut out = [order; FROZEN_KEY];
    out[1..9].copy_from_slice(&first.to_be_bytes());
    out[9..].copy_from_slice(&second.to_be_bytes());
    out
}

/// The inverse of [`frozen_key`].
pub fn decode_frozen_key(key: &[u8; FROZEN_KEY]) -> (u8, u64, u64) {
    (key[0], big(&key[1..9]), big(&key[9..]))
}

fn big(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_keys_round_trip_and_sort_by_address() {
        let key = run_key(PagId(0x1234), 0x0102_0304_0506_0708);
        assert_eq!(decode_run_key(&key), (PagId(0x1234), PagBlock(0x0102_0304_0506_0708)));
        assert!(run_key(PagId(1), u64::MAX) < run_key(PagId(2), 0));
        assert!(run_key(PagId(1), 255) < run_key(PagId(1), 256));
        let key = pool_key(ClientId(u64::MAX), PagId(7), 9);
        assert_eq!(decode_pool_key(&key), (ClientId(u64::MAX), PagId(7), PagBlock(9)));
        let [by_ino, by_client] = frozen_keys(ClientId(3), Ino(4));
        assert_eq!(decode_frozen_key(&by_ino), (0, 4, 3));
        assert_eq!(decode_frozen_key(&by_client), (1, 3, 4));
    }

    #[test]
    fn space_records_round_trip() {
        let zone = PagFormat {
            id: PagId(3),
            uuid: Uuid([7; 16]),
            device: Uuid([8; 16]),
            start: 1 << 41,
            blocks: 1 << 40,
        };
        let pag = PagRecord::new(&zone, 5, 6);
        assert_eq!(pag.zone(PagId(3)), zone);
        assert_eq!(PagRecord::decode(&pag.encode()), pag);
        for state in [PagUse::Draining, PagUse::Lost, PagUse::Paused, PagUse::Unknown(u16::MAX)] {
            let pag = PagRecord { state, ..pag };
            assert_eq!(PagRecord::decode(&pag.encode()), pag);
            assert_eq!(pag.zone(PagId(3)), zone, "the state is no part of the size");
        }
        let target = PagRecord::target(Uuid([9; 16]), 77);
        for state in [PagUse::InService, PagUse::Draining, PagUse::Lost, PagUse::Paused] {
            let target = PagRecord { state, ..target };
            assert_eq!(PagRecord::decode(&target.encode()), target);
        }
        assert_eq!((target.zone(PagId(3)).blocks, target.kind), (78, ZoneKind::Target));
        let borrowed = PagRecord { kind: ZoneKind::Borrowed, state: PagUse::Lost, ..pag };
        assert_eq!(PagRecord::decode(&borrowed.encode()), borrowed);
        let lent = LentRun { len: 1 << 40, shard: ShardId(7), sequence: u32::MAX };
        assert_eq!(LentRun::decode(&lent.encode()), lent);
        let freed = FreedRun { len: 4, ino: Ino(5), stamp: Lsn(u64::MAX) };
        assert_eq!(FreedRun::decode(&freed.encode()), freed);
    }
}
