//! Object storage targets: zones of that kind, numbers of objects, and what targets have still to
//! do: destroy the objects of files that are gone, and refuse evicted clients.
//!
//! Invariants:
//! - a number of an object is issued once. Each start of a server takes a range of them, and uses
//!   it when that is durable: so a file that a crash lost, and that its client makes again, keeps
//!   its number, and nobody else has it;
//! - an object is doomed by the transaction that frees its file, and forgotten after its target has
//!   destroyed it;
//! - a fence is owed from the transaction on that evicts a client, until its target has answered
//!   it.

use std::ops::Range;

use types::limits::PAGS_MAX;
use types::{ClientId, Fault, ObjectId, PagId, Uuid};

use super::view::Space;
use crate::format::object::ObjectRecord;
use crate::format::space::{
    DOOMED_VALUE, FENCE_VALUE, PagRecord, TARGET_KEY, decode_fence_key, decode_object_key,
    fence_key, object_key, pag_key,
};
use crate::trees::{DOOMED, NEXT_OBJECT, OWED_FENCES, PAGS};
use engine::error::Stop;
use engine::format::features::Feature;

/// Numbers that one start of a server takes: more than it can use.
pub const OBJECTS_TAKEN: u64 = 1 << 32;
/// Bytes of a target's address at most.
pub const TARGET_ADDRESS_MAX: usize = 62;
/// The address of a target is the setting of this number and the target's.
const ADDRESSES: u32 = 1 << 31;
/// Largest number of blocks of a target.
const BLOCKS_END: u64 = 1 << 46;

impl Space<'_, '_> {
    /// Adds an object storage target to the table of data zones.
    ///
    /// # Errors
    /// `Exists`: the table has a zone of that number or with that UUID, or there is space of such a
    /// zone, which only damage leaves. `TooBig`: the table is full. `Invalid`: no target can have
    /// that size, or the file system does not have the feature `object-files`.
    pub fn add_target(&mut self, id: PagId, uuid: Uuid, blocks: u64) -> Result<(), Stop> {
        if !self.txn.has_feature(Feature::OBJECT_FILES) || !(1..BLOCKS_END - 1).contains(&blocks) {
            return Err(Fault::Invalid.into());
        }
        let known = self.pags()?;
        if known.len() >= PAGS_MAX {
            return Err(Fault::TooBig.into());
        }
        if known.iter().any(|pag| pag.id == id || pag.uuid == uuid) || self.has_space(id)? {
            return Err(Fault::Exists.into());
        }
        PAGS.insert(self.txn, &pag_key(id), &PagRecord::target(uuid, blocks).encode())?;
        // Without them the trees would allocate and free their last node again and again.
        DOOMED.insert(self.txn, &[0; TARGET_KEY], &[0; DOOMED_VALUE])?;
        OWED_FENCES.insert(self.txn, &[0; TARGET_KEY], &[0; FENCE_VALUE])?;
        Ok(())
    }

    /// Takes numbers for objects that nobody else gets. They may be used when this is durable.
    ///
    /// # Errors
    /// `NoNumbers`: all are taken.
    pub fn take_objects(&mut self) -> Result<Range<u64>, Stop> {
        // Number 0 is none.
        let from = self.txn.root(NEXT_OBJECT)?.max(1);
        let to = from + OBJECTS_TAKEN;
        if to >> ObjectId::BITS != 0 {
            return Err(Fault::NoNumbers.into());
        }
        self.txn.set_root(NEXT_OBJECT, to)?;
        let shard = self.txn.shard();
        Ok(ObjectId::of(shard, from).0..ObjectId::of(shard, to).0)
    }

    /// Raises the counter of objects above this number, which a dump or a replay brings.
    pub(crate) fn object_is_known(&mut self, object: ObjectId) -> Result<(), Stop> {
        if self.txn.root(NEXT_OBJECT)? <= object.number() {
            self.txn.set_root(NEXT_OBJECT, object.number() + 1)?;
        }
        Ok(())
    }

    /// The file of this record is gone: its targets have to destroy its object.
    pub(crate) fn doom(&mut self, record: &ObjectRecord) -> Result<(), Stop> {
        for &target in &record.targets {
            DOOMED.insert(self.txn, &object_key(target, record.object), &[0; DOOMED_VALUE])?;
        }
        Ok(())
    }

    /// At most `max` objects that the target has to destroy.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn doomed(&mut self, target: PagId, max: usize) -> Result<Vec<ObjectId>, Stop> {
        let mut found = Vec::new();
        DOOMED.for_each(self.txn, &object_key(target, ObjectId(1)), |key, _| {
            let (of, object) = decode_object_key(key);
            if of == target && found.len() < max {
                found.push(object);
            }
            of == target && found.len() < max
        })?;
        Ok(found)
    }

    /// How many objects the targets have to destroy, at most `max`.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn doomed_count(&mut self, max: usize) -> Result<usize, Stop> {
        let mut count = 0;
        DOOMED.for_each(self.txn, &[0; TARGET_KEY], |key, _| {
            count += usize::from(decode_object_key(key).1.0 != 0);
            count < max
        })?;
        Ok(count)
    }

    /// The target has destroyed these objects for good.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn destroyed(&mut self, target: PagId, objects: &[ObjectId]) -> Result<(), Stop> {
        for &object in objects {
            DOOMED.remove(self.txn, &object_key(target, object))?;
        }
        Ok(())
    }

    /// The client is evicted: each of these targets has to refuse it.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn owe_fences(&mut self, client: ClientId, targets: &[PagId]) -> Result<(), Stop> {
        for &target in targets {
            OWED_FENCES.insert(self.txn, &fence_key(target, client), &[0; FENCE_VALUE])?;
        }
        Ok(())
    }

    /// At most `max` clients that the target has still to refuse.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn owed_fences(&mut self, target: PagId, max: usize) -> Result<Vec<ClientId>, Stop> {
        let mut found = Vec::new();
        OWED_FENCES.for_each(self.txn, &fence_key(target, ClientId(1)), |key, _| {
            let (of, client) = decode_fence_key(key);
            if of == target && found.len() < max {
                found.push(client);
            }
            of == target && found.len() < max
        })?;
        Ok(found)
    }

    /// The target refuses these clients for good.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn fenced(&mut self, target: PagId, clients: &[ClientId]) -> Result<(), Stop> {
        for &client in clients {
            OWED_FENCES.remove(self.txn, &fence_key(target, client))?;
        }
        Ok(())
    }

    /// The address at which a target was last found; empty: none is known.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn target_address(&mut self, target: PagId) -> Result<String, Stop> {
        let bytes = self.txn.setting(ADDRESSES + u32::from(target.0))?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Sets it.
    ///
    /// # Errors
    /// `TooBig` beyond [`TARGET_ADDRESS_MAX`] bytes.
    pub fn set_target_address(&mut self, target: PagId, address: &str) -> Result<(), Stop> {
        self.txn.set_setting(ADDRESSES + u32::from(target.0), address.as_bytes())
    }
}
