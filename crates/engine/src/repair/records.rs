//! Records of clients that make no sense, and what is left of a blob.

use types::{ClientId, MetaBlock};

use super::change;
use crate::clients::{CLIENTS, REPLIES, SETTINGS};
use crate::cost::Cost;
use crate::error::StoreError;
use crate::format::blob::BlobOwner;
use crate::format::block::BlockType;
use crate::format::reply::REPLY_KEY;
use crate::store::Store;
use crate::store::transact::Transact;

/// Removes the description of a client.
///
/// # Errors
/// As [`Store::run`].
pub async fn drop_description(layer: &impl Transact, client: ClientId) -> Result<bool, StoreError> {
    let key = client.0.to_be_bytes();
    change(layer, |txn| CLIENTS.insert(txn.as_mut(), &key, &[0; 8]).map(drop)).await
}

/// Removes kept replies by their key.
///
/// # Errors
/// As [`Store::run`].
pub async fn drop_replies(
    layer: &impl Transact,
    key: &[u8; REPLY_KEY],
) -> Result<bool, StoreError> {
    change(layer, |txn| REPLIES.remove(txn.as_mut(), key).map(drop)).await
}

/// Empties a block of replies.
///
/// # Errors
/// As [`Store::run`].
pub async fn empty_replies(layer: &impl Transact, block: MetaBlock) -> Result<bool, StoreError> {
    change(layer, |txn| txn.as_mut().init(block, BlockType::Reply).map(drop)).await
}

/// Removes a setting.
///
/// # Errors
/// As [`Store::run`].
pub async fn drop_setting(layer: &impl Transact, key: &[u8; 4]) -> Result<bool, StoreError> {
    change(layer, |txn| SETTINGS.remove(txn.as_mut(), key).map(drop)).await
}

/// The bytes of a blob as far as its blocks can be read; those of no block behind the first `max`
/// bytes.
///
/// # Errors
/// `Io`, `Poisoned`.
pub async fn beginning_of_blob(
    store: &Store,
    first: MetaBlock,
    whose: BlobOwner,
    max: usize,
) -> Result<Vec<u8>, StoreError> {
    let blocks = store.superblock().blocks;
    let (mut out, mut at, mut index) = (Vec::new(), first, 0);
    while at.0 != 0 && at.0 < blocks && out.len() < max {
        match store.run(Cost::READ, |txn| txn.blob_piece(at, whose, index)).await {
            Ok((piece, _)) => {
                out.extend_from_slice(&piece.bytes);
                (at, index) = (piece.next, index + 1);
            }
            Err(StoreError::Corrupt { .. } | StoreError::Fault(_)) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(out)
}
