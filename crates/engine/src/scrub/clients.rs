//! Clients, their kept replies, and settings.

use types::{ClientId, MetaBlock};

use super::{Finding, Progress, Scrub};
use crate::clients::{CLIENTS, REPLIES, SETTINGS};
use crate::error::StoreError;
use crate::format::blob::BlobOwner;
use crate::format::block::BlockType;
use crate::format::reply::{REPLY_KEY, decode_setting, is_sound};
use crate::store::transact::Transact;

impl<L: Transact, P: Progress> Scrub<'_, L, P> {
    /// Checks clients, their kept replies, and settings.
    ///
    /// # Errors
    /// `Poisoned`, `ReadOnly`.
    pub async fn clients(&self) -> Result<(), StoreError> {
        let mut blobs = Vec::new();
        self.tree(CLIENTS, |key, value| {
            let blob = u64::from_le_bytes(*value);
            blobs.extend((blob != 0).then_some((*key, MetaBlock(blob))));
        })
        .await?;
        for (key, first) in blobs {
            let named = |txn: &mut L::Txn<'_>| {
                let value = CLIENTS.get(txn.as_mut(), &key)?;
                Ok(value.is_some_and(|value| u64::from_le_bytes(value) == first.0))
            };
            let client = ClientId(u64::from_be_bytes(key));
            self.blob((first, BlobOwner::client(client)), &named).await?;
        }
        let mut replies = Vec::new();
        self.tree(REPLIES, |key, value| {
            replies.push((*key, MetaBlock(u64::from_le_bytes(*value))));
        })
        .await?;
        for (key, block) in replies {
            self.reply(&key, block).await?;
        }
        self.tree(SETTINGS, |key, value| {
            if decode_setting(value).is_none() {
                self.progress.found(Finding::BadSetting(u32::from_be_bytes(*key)));
            }
        })
        .await
    }

    async fn reply(&self, key: &[u8; REPLY_KEY], block: MetaBlock) -> Result<(), StoreError> {
        let named = |txn: &mut L::Txn<'_>, block: MetaBlock| {
            let value = REPLIES.get(txn.as_mut(), key)?;
            Ok(value.is_some_and(|value| u64::from_le_bytes(value) == block.0))
        };
        self.read(block, 1, BlockType::Reply, &named).await?;
        let sound = self
            .query(|txn| {
                if !named(txn, block)? {
                    return Ok(true);
                }
                Ok(is_sound(key, txn.as_mut().read_as(block, BlockType::Reply)?))
            })
            .await?;
        if sound == Some(false) {
            self.progress.found(Finding::BadReplies(block));
        }
        Ok(())
    }
}
