//! Clients, replies, settings, frozen files, doomed objects, intents, names on other shards.

use types::{ClientId, MetaBlock};

use super::{Change, Done, Fixer};
use crate::format::intent::decode_intent_key;
use crate::format::namespace::{NamespaceEntry, encode_start};
use crate::fsck::lost::Loss;
use crate::fsck::plan::Fix;
use crate::trees::{
    CLIENTS, DOOMED, FROZEN, INTENTS, NAMESPACE, NEXT_CLIENT, OUTSIDE, QUARANTINES,
};
use engine::repair;

/// Clients' numbers from here on are never issued.
const CLIENT_END: u64 = 1 << 48;

impl Fixer {
    pub(super) async fn fix_record(&mut self, fix: &Fix) -> Done {
        match fix {
            Fix::AddClient(client) => self.add_client(*client).await,
            Fix::DropInfo(client) => {
                let done = repair::drop_description(&self.mfs, *client).await?;
                let line = format!("the description of client {client} was removed");
                Ok(done.then(|| Change::with_losses(line, [Loss::Client(*client)])))
            }
            Fix::DropReply(key) => {
                let done = repair::drop_replies(&self.mfs, key).await?;
                Ok(done.then(|| Change::with_losses("kept replies were removed", [Loss::Replies])))
            }
            Fix::EmptyReplies(block) => {
                let done = repair::empty_replies(&self.mfs, *block).await?;
                let line = format!("the replies of block {block} were removed");
                Ok(done.then(|| Change::with_losses(line, [Loss::Replies])))
            }
            Fix::DropSetting(key) => {
                let done = repair::drop_setting(&self.mfs, key).await?;
                let key = u32::from_be_bytes(*key);
                let line = format!("setting {key} was removed");
                Ok(done.then(|| Change::with_losses(line, [Loss::Setting(key)])))
            }
            Fix::DropFrozen(key) => {
                let done = self.change(|txn| FROZEN.remove(txn, key).map(drop)).await?;
                Ok(done.then(|| "an item about a frozen file was removed".into()))
            }
            Fix::DropDoomed(key) => {
                let done = self.change(|txn| DOOMED.remove(txn, key).map(drop)).await?;
                Ok(done.then(|| "an item of the doomed objects was removed".into()))
            }
            Fix::DropIntent(key) => {
                let done = self.change(|txn| INTENTS.remove(txn, key).map(drop)).await?;
                let (id, item) = decode_intent_key(key);
                let line = format!("item {item} of the operation {id} was removed");
                Ok(done.then(|| Change::with_losses(line, [Loss::Operation(id)])))
            }
            Fix::DropOutside(ino) => {
                let done = self.change(|txn| OUTSIDE.remove(txn, &ino.0.to_be_bytes()).map(drop));
                let line = format!("what was kept of names of inode {ino} elsewhere was removed");
                Ok(done.await?.then(|| Change::with_losses(line, [Loss::Outside(*ino)])))
            }
            Fix::DropHome(ino) => {
                let done = self.change(|txn| txn.names().repair_home(*ino)).await?;
                Ok(done.then(|| format!("where inode {ino} is was removed, or set right").into()))
            }
            Fix::Freeze(client, ino) => {
                let done = self.change(|txn| txn.space().freeze(*client, *ino)).await?;
                Ok(done.then(|| format!("inode {ino} is frozen for client {client}").into()))
            }
            Fix::IndexEntry(entry, start) => self.index_entry(*entry, *start).await,
            _ => Ok(None),
        }
    }

    async fn index_entry(
        &mut self,
        entry: NamespaceEntry,
        start: Option<Option<MetaBlock>>,
    ) -> Done {
        let (key, dir) = (entry.key(), entry.dir);
        let done = self.change(|txn| match start {
            Some(start) => NAMESPACE.insert(txn, &key, &encode_start(start)).map(drop),
            None => NAMESPACE.remove(txn, &key).map(drop),
        });
        let line = match start {
            Some(_) => format!("directory {dir} is in the namespace index"),
            None => format!("an entry of directory {dir} in the namespace index was removed"),
        };
        Ok(done.await?.then(|| line.into()))
    }

    /// Adds an unknown client that owns something. It cannot come back, so it counts as evicted,
    /// with everything that it could write.
    async fn add_client(&mut self, client: ClientId) -> Done {
        let key = client.0.to_be_bytes();
        if client.0 == 0 || client.0 >= CLIENT_END {
            let done = self.change(|txn| QUARANTINES.remove(txn, &key).map(drop)).await?;
            return Ok(
                done.then(|| format!("the quarantine of client {client} was removed").into())
            );
        }
        let done = self
            .change(|txn| {
                CLIENTS.insert(txn, &key, &[0; 8])?;
                if txn.root(NEXT_CLIENT)? <= client.0 {
                    txn.set_root(NEXT_CLIENT, client.0 + 1)?;
                }
                txn.space().quarantine_unknown(client)
            })
            .await?;
        Ok(done.then(|| format!("client {client} was entered, and quarantined").into()))
    }
}
