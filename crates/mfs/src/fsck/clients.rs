//! Clients, kept replies, settings, quarantines, frozen files.

use std::collections::BTreeSet;

use types::{ClientId, Ino, MetaBlock};

use super::blobs::Blob;
use super::plan::{Fix, TreeName};
use super::{Check, ProblemKind, Subject};
use crate::format::space::decode_frozen_key;
use crate::trees::{CLIENTS, FROZEN, NEXT_CLIENT, QUARANTINES, REPLIES, SETTINGS};
use engine::clients::CLIENT_INFO_MAX;
use engine::error::StoreError;
use engine::format::blob::BlobOwner;
use engine::format::block::BlockType;
use engine::format::reply::{decode_setting, is_sound, reply_owner};

impl Check {
    pub(super) async fn clients(&mut self) -> Result<(), StoreError> {
        let next = self.read(|txn| txn.root(NEXT_CLIENT)).await?.unwrap_or(u64::MAX);
        let mut all = Vec::new();
        self.walk((CLIENTS, TreeName::Clients, "clients"), |_, key, value| {
            all.push((ClientId(u64::from_be_bytes(*key)), u64::from_le_bytes(*value)));
        })
        .await?;
        self.report.counts.clients = all.len() as u64;
        for (client, blob) in all {
            self.clients.insert(client);
            let subject = Subject::Client(client);
            if client.shard() != self.shard {
                self.foreign(subject, client.shard(), "in the table of clients");
            } else if client.count() == 0 || client.count() >= next {
                self.found(ProblemKind::BadCounter, subject, "number not issued");
                self.plan.add(Fix::NextClient(client.count() + 1));
            }
            if blob == 0 {
                continue;
            }
            let whose = BlobOwner::client(client);
            match self.blob(blob, whose).await? {
                Blob::Whole(bytes) if bytes.len() <= CLIENT_INFO_MAX => continue,
                Blob::Foreign => {}
                _ => self.found(ProblemKind::BadRecord, Subject::Client(client), "description"),
            }
            self.note_missing_blob(whose, None, Fix::DropInfo(client));
        }
        self.replies().await?;
        self.walk((SETTINGS, TreeName::Settings, "settings"), |check, key, value| {
            if decode_setting(value).is_none() {
                let subject = Subject::Setting(u32::from_be_bytes(*key));
                check.found(ProblemKind::BadRecord, subject, "");
                check.plan.add(Fix::DropSetting(*key));
            }
        })
        .await?;
        self.walk((QUARANTINES, TreeName::Quarantines, "quarantines"), |check, key, _| {
            check.require_client(ClientId(u64::from_be_bytes(*key)), "quarantine");
        })
        .await?;
        self.frozen().await
    }

    /// Requires that the owner of something is a known client.
    pub(super) fn require_client(&mut self, client: ClientId, what: &str) {
        if !self.clients.contains(&client) {
            self.found(ProblemKind::UnknownClient, Subject::Client(client), what);
            if self.entered.insert(client) {
                self.plan.add(Fix::AddClient(client));
            }
        }
    }

    async fn replies(&mut self) -> Result<(), StoreError> {
        let mut all = Vec::new();
        self.walk((REPLIES, TreeName::Replies, "replies"), |_, key, value| {
            all.push((*key, MetaBlock(u64::from_le_bytes(*value))));
        })
        .await?;
        for (key, block) in all {
            let client = reply_owner(&key);
            if !self.clients.contains(&client) {
                self.found(ProblemKind::UnknownClient, Subject::Client(client), "kept reply");
                self.plan.add(Fix::DropReply(key));
            }
            if !self.claim(block, 1, "kept replies") {
                self.plan.add(Fix::DropReply(key));
                continue;
            }
            let sound =
                self.read(|txn| Ok(is_sound(&key, txn.read_as(block, BlockType::Reply)?))).await?;
            if sound == Some(false) {
                self.found(ProblemKind::BadRecord, Subject::Block(block), "kept reply");
            }
            if sound != Some(true) {
                self.plan.add(Fix::EmptyReplies(block));
            }
        }
        Ok(())
    }

    async fn frozen(&mut self) -> Result<(), StoreError> {
        let mut orders = [BTreeSet::new(), BTreeSet::new()];
        self.walk((FROZEN, TreeName::Frozen, "frozen files"), |check, key, _| {
            match decode_frozen_key(key) {
                (0, ino, client) => {
                    orders[0].insert((ClientId(client), Ino(ino)));
                }
                (1, client, ino) => {
                    check.require_client(ClientId(client), "frozen file");
                    orders[1].insert((ClientId(client), Ino(ino)));
                }
                _ => {
                    check.found(ProblemKind::BadRecord, Subject::Whole, "a frozen file's key");
                    check.plan.add(Fix::DropFrozen(*key));
                }
            }
        })
        .await?;
        for &(client, ino) in orders[0].symmetric_difference(&orders[1]) {
            let detail = format!("of client {client}");
            self.found(ProblemKind::HalfFrozen, Subject::Inode(ino), detail);
            self.plan.add(Fix::Freeze(client, ino));
        }
        Ok(())
    }
}
