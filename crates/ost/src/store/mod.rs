//! Objects on the engine. See the design in ARCHITECTURE.md, "Object targets".

use std::rc::Rc;

use engine::error::StoreError;
use env::{Disk, Env, IoBuf};
use proto::ost::{ObjectRun, TargetInfo};
use types::{ClientId, Epoch, Fault, ObjectId, Transno, Uuid};

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

/// The request whose answer a transaction keeps: its client, slot and sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The client, by the target's own number.
    pub client: ClientId,
    /// Its slot.
    pub slot: u16,
    /// Its sequence there.
    pub seq: u32,
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
pub struct ObjectStore {}

impl ObjectStore {
    /// Makes a target on `disk`, with its journal on `journal` if that is given.
    ///
    /// # Errors
    /// `Refused` if a device carries a Redbud label (without force) or is too small; `Io`.
    pub async fn format(
        _env: &Env,
        _disk: &Disk,
        _journal: Option<&Disk>,
        _options: &FormatOptions<'_>,
    ) -> Result<(), StoreError> {
        unimplemented!()
    }

    /// Opens a target; recovers it if it was not closed.
    ///
    /// # Errors
    /// `Refused`, `Io`, `Corrupt`, `DamagedLog`.
    pub async fn open(
        _env: &Env,
        _disk: &Disk,
        _journal: Option<&Disk>,
        _options: Options,
    ) -> Result<Rc<ObjectStore>, StoreError> {
        unimplemented!()
    }

    /// The engine's store: clients, settings, durability, epochs.
    pub fn engine(&self) -> &engine::store::Store {
        unimplemented!()
    }

    /// File system, target, space.
    pub fn info(&self) -> TargetInfo {
        unimplemented!()
    }

    /// UUID and name of the file system, and the epoch of this opening.
    pub fn identity(&self) -> (Uuid, String, Epoch) {
        unimplemented!()
    }

    /// Writes whole blocks (001, section 5, steps 3 to 6): when it returns, the device has the
    /// data, and the transaction commits behind it. `sums`: the CRC32C of each block, checked by
    /// the caller.
    ///
    /// # Errors
    /// `NoSpace`; `Io` if the device fails, which stops the store.
    pub async fn write(
        &self,
        _asked: Asked,
        _object: ObjectId,
        _block: u64,
        _data: IoBuf,
        _sums: &[u32],
    ) -> Result<Transno, Fault> {
        unimplemented!()
    }

    /// Reads blocks, and checks them.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if a block does not match its checksum.
    pub async fn read(&self, _object: ObjectId, _block: u64, _len: u32) -> Result<Found, Fault> {
        unimplemented!()
    }

    /// Makes holes of the blocks `from..to`.
    ///
    /// # Errors
    /// `Io`.
    pub async fn punch(
        &self,
        _asked: Asked,
        _object: ObjectId,
        _from: u64,
        _to: u64,
    ) -> Result<Transno, Fault> {
        unimplemented!()
    }

    /// The runs of blocks from `from` on that hold something, at most `max`, and whether these are
    /// all.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub async fn runs(
        &self,
        _object: ObjectId,
        _from: u64,
        _max: u32,
    ) -> Result<(Vec<ObjectRun>, bool), Fault> {
        unimplemented!()
    }

    /// Destroys objects; unknown ones are no failure.
    ///
    /// # Errors
    /// `Io`.
    pub async fn destroy(&self, _asked: Asked, _objects: &[ObjectId]) -> Result<Transno, Fault> {
        unimplemented!()
    }

    /// Remembers that `client`, by the metadata server's number, may use no object any more.
    ///
    /// # Errors
    /// `Io`.
    pub async fn fence(&self, _asked: Asked, _client: ClientId) -> Result<Transno, Fault> {
        unimplemented!()
    }

    /// May the client use no object any more?
    pub fn is_fenced(&self, _client: ClientId) -> bool {
        unimplemented!()
    }

    /// Makes everything durable, and closes the store.
    ///
    /// # Errors
    /// `Io`, `Poisoned`.
    pub async fn close(&self) -> Result<(), StoreError> {
        unimplemented!()
    }
}
