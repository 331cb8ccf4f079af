//! The table of clients, their kept replies, and settings.

use std::collections::BTreeSet;

use types::{ClientId, MetaBlock};

use super::{Blob, Checker, Finding, blob, claim, read, walk};
use crate::clients::{CLIENT_INFO_MAX, CLIENTS, NEXT_CLIENT, REPLIES, SETTINGS};
use crate::error::StoreError;
use crate::format::blob::BlobOwner;
use crate::format::block::BlockType;
use crate::format::reply::{decode_setting, is_sound, reply_owner};

/// Checks clients with their descriptions, which are blobs of at most `blob_max` bytes, kept
/// replies, and settings. Returns the clients.
///
/// # Errors
/// `Io`, `Poisoned`; damage is a finding.
pub async fn clients<C: Checker>(
    check: &mut C,
    blob_max: usize,
) -> Result<BTreeSet<ClientId>, StoreError> {
    let shard = check.store().superblock().shard;
    let next = read(check, |txn| txn.root(NEXT_CLIENT)).await?.unwrap_or(u64::MAX);
    let mut all = Vec::new();
    walk(check, CLIENTS, "clients", |_, key, value| {
        all.push((ClientId(u64::from_be_bytes(*key)), u64::from_le_bytes(*value)));
    })
    .await?;
    let known = all.iter().map(|&(client, _)| client).collect();
    for (client, first) in all {
        if client.shard() != shard {
            check.note(Finding::ForeignClient(client, shard));
        } else if client.count() == 0 || client.count() >= next {
            check.note(Finding::UnissuedClient(client));
        }
        if first != 0 {
            description(check, client, MetaBlock(first), blob_max).await?;
        }
    }
    replies(check, &known).await?;
    walk(check, SETTINGS, "settings", |check, key, value| {
        if decode_setting(value).is_none() {
            check.note(Finding::BadSetting(u32::from_be_bytes(*key)));
        }
    })
    .await?;
    Ok(known)
}

async fn description(
    check: &mut impl Checker,
    client: ClientId,
    first: MetaBlock,
    blob_max: usize,
) -> Result<(), StoreError> {
    match blob(check, first, BlobOwner::client(client), blob_max).await? {
        Blob::Whole(bytes) if bytes.len() <= CLIENT_INFO_MAX => return Ok(()),
        Blob::Foreign => {}
        _ => check.note(Finding::BadDescription(client)),
    }
    check.note(Finding::LostDescription(client));
    Ok(())
}

async fn replies<C: Checker>(check: &mut C, known: &BTreeSet<ClientId>) -> Result<(), StoreError> {
    let mut all = Vec::new();
    walk(check, REPLIES, "replies", |_, key, value| {
        all.push((*key, MetaBlock(u64::from_le_bytes(*value))));
    })
    .await?;
    for (key, block) in all {
        if !known.contains(&reply_owner(&key)) {
            check.note(Finding::StrayReply(key));
        }
        if !claim(check, block, 1, "kept replies") {
            check.note(Finding::LostReply(key));
            continue;
        }
        let sound =
            read(check, |txn| Ok(is_sound(&key, txn.read_as(block, BlockType::Reply)?))).await?;
        if sound == Some(false) {
            check.note(Finding::BadReplies(block));
        }
        if sound != Some(true) {
            check.note(Finding::LostReplies(block));
        }
    }
    Ok(())
}
