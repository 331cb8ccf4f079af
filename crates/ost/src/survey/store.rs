//! An object store in this process: what a target costs without sessions and messages.

use env::IoBuf;
use proto::ost::Statement;
use types::limits::BLOCK;
use types::{ClientId, Fault, ObjectId, crc32c};

use super::{Record, object_of};
use crate::store::{Asked, ObjectStore, Room};

/// Nothing is kept for anybody.
const FREELY: Room = Room::Of(Statement { number: 0, blocks: 0, asked: 0 });
/// Nobody asks: no answer is kept.
const NOBODY: Asked = Asked { client: ClientId::NONE, slot: 0, seq: 0 };

/// Writes a record, and waits until it is durable if `sync` says so.
pub(super) async fn write(
    store: &ObjectStore,
    record: Record,
    data: &[u8],
    sync: bool,
) -> Result<(), Fault> {
    let sums: Vec<u32> = data.chunks_exact(BLOCK).map(crc32c).collect();
    let (object, data) = (object_of(record.object), IoBuf::copy_of(data));
    let number = store.write(NOBODY, (object, record.block), data, &sums, FREELY).await?;
    match sync {
        true => store.engine().wait_durable(number).await.map_err(|error| error.fault()),
        false => Ok(()),
    }
}

/// Reads a record; holes are left out.
pub(super) async fn read(store: &ObjectStore, record: Record) -> Result<IoBuf, Fault> {
    Ok(store.read(object_of(record.object), record.block, record.len).await?.data)
}

/// Makes durable what was written.
pub(super) async fn flush(store: &ObjectStore) -> Result<(), Fault> {
    store.engine().sync().await.map_err(|error| error.fault())
}

/// Destroys objects, durably.
pub(super) async fn destroy(store: &ObjectStore, objects: &[ObjectId]) -> Result<(), Fault> {
    store.destroy(NOBODY, objects).await?;
    flush(store).await
}
