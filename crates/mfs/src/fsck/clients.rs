//! Clients, which the engine's half of the check reads, and their quarantines and frozen files.

use std::collections::BTreeSet;

use types::{ClientId, Ino};

use super::plan::Fix;
use super::{Check, ProblemKind, Subject};
use crate::format::space::decode_frozen_key;
use crate::format::xattr::BLOB_MAX;
use crate::trees::{FROZEN, QUARANTINES};
use engine::check;
use engine::error::StoreError;

impl Check {
    pub(super) async fn clients(&mut self) -> Result<(), StoreError> {
        self.clients = check::clients(self, BLOB_MAX).await?;
        self.report.counts.clients = self.clients.len() as u64;
        self.walk((QUARANTINES, "quarantines"), |check, key, _| {
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

    async fn frozen(&mut self) -> Result<(), StoreError> {
        let mut orders = [BTreeSet::new(), BTreeSet::new()];
        self.walk((FROZEN, "frozen files"), |check, key, _| match decode_frozen_key(key) {
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
