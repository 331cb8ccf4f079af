//! Rebuilding the trees of the file system, and which entries replace what is lost of them.
//!
//! Invariant: evictions, and what evicted clients could write, are never forgotten. Where the list
//! of quarantines is lost, the new one has every client. Where that of frozen files is lost, all
//! files are frozen for every client in quarantine. Both happen before the old tree is replaced.

use types::{ClientId, MetaBlock};

use super::{Change, Done, Fixer};
use crate::format::space::frozen_keys;
use crate::fsck::lost::{Loss, table};
use crate::fsck::plan::TreeName;
use crate::space::ALL_FILES;
use crate::trees::{
    CHUNKS, CLIENTS, DOOMED, FREE, FREED, FROZEN, HOMES, INTENTS, LENT, MOVED, NAMESPACE, ORPHANS,
    OUTSIDE, OWED_FENCES, POOLS, QUARANTINES, REPLIES, SEGMENTS, SETTINGS,
};
use engine::btree::{Entry, Tree};
use engine::cost::Cost;
use engine::error::StoreError;
use engine::repair::{Rebuild, unowned_blocks};

/// Clients whose files one transaction freezes.
const BATCH: usize = 32;

impl Fixer {
    pub(super) async fn rebuild(&mut self, name: TreeName) -> Done {
        // Lost segments, inodes and blocks are reported by the fixes that count them.
        let lost = table(name).map(|_| Loss::Table(name));
        Ok(self.rebuild_tree(name).await?.map(|change| Change::with_losses(change, lost)))
    }

    async fn rebuild_tree(&mut self, name: TreeName) -> Done {
        match name {
            TreeName::Chunks => self.build(CHUNKS, true, "directory table").await,
            TreeName::Moved => self.build(MOVED, false, "tree of moved inodes").await,
            TreeName::Orphans => self.build(ORPHANS, false, "list of orphans").await,
            TreeName::Segments => self.build(SEGMENTS, true, "tree of segments").await,
            TreeName::Pags => self.rebuild_zones().await,
            TreeName::Free => self.build(FREE, true, "tree of free space").await,
            TreeName::Pools => self.build(POOLS, true, "tree of pools").await,
            TreeName::Freed => self.build(FREED, true, "tree of freed space").await,
            TreeName::Quarantines => {
                let all = self.all_clients().await?;
                self.freeze_all(&all).await?;
                let entries: Vec<_> =
                    all.iter().map(|client| (client.0.to_be_bytes(), [0; 8])).collect();
                self.build_with(QUARANTINES, false, "list of quarantines", &entries).await
            }
            TreeName::Frozen => {
                let evicted = self.evicted().await?;
                let keys = evicted.iter().flat_map(|&client| frozen_keys(client, ALL_FILES));
                let entries: Vec<_> = keys.map(|key| (key, [0; 8])).collect();
                self.build_with(FROZEN, true, "list of frozen files", &entries).await
            }
            TreeName::Clients => self.build(CLIENTS, false, "table of clients").await,
            TreeName::Replies => self.build(REPLIES, true, "table of replies").await,
            TreeName::Namespace => self.build(NAMESPACE, true, "namespace index").await,
            TreeName::Doomed => self.build(DOOMED, true, "list of doomed objects").await,
            TreeName::OwedFences => self.build(OWED_FENCES, true, "list of owed fences").await,
            TreeName::Outside => self.build(OUTSIDE, true, "list of names on other shards").await,
            TreeName::Intents => self.build(INTENTS, true, "tree of intents").await,
            TreeName::Lent => self.build(LENT, true, "tree of lent space").await,
            TreeName::Homes => self.build(HOMES, true, "tree of homes").await,
            TreeName::Settings => self.build(SETTINGS, true, "table of settings").await,
        }
    }

    /// Every client that is known.
    async fn all_clients(&mut self) -> Result<Vec<ClientId>, StoreError> {
        let all = self.mfs.run(Cost::READ, |txn| CLIENTS.range(txn, &[0; 8], usize::MAX)).await?.0;
        Ok(all.into_iter().map(|(key, _)| ClientId(u64::from_be_bytes(key))).collect())
    }

    /// Every client in quarantine; where the list of them is damaged, every one that is known.
    async fn evicted(&mut self) -> Result<Vec<ClientId>, StoreError> {
        match self.mfs.run(Cost::READ, |txn| txn.space().quarantines()).await {
            Ok((clients, _)) => Ok(clients),
            Err(StoreError::Corrupt { .. } | StoreError::Fault(_)) => self.all_clients().await,
            Err(error) => Err(error),
        }
    }

    /// For each of these clients all files count as frozen.
    async fn freeze_all(&self, clients: &[ClientId]) -> Result<(), StoreError> {
        for batch in clients.chunks(BATCH) {
            self.change(|txn| {
                batch.iter().try_for_each(|&client| txn.space().freeze(client, ALL_FILES))
            })
            .await?;
        }
        Ok(())
    }

    async fn build<const K: usize, const V: usize>(
        &mut self,
        tree: Tree<K, V>,
        unique: bool,
        what: &str,
    ) -> Done {
        self.build_with(tree, unique, what, &[]).await
    }

    /// As [`Rebuild::build`].
    pub(super) async fn build_with<const K: usize, const V: usize>(
        &mut self,
        tree: Tree<K, V>,
        unique: bool,
        what: &str,
        also: &[Entry<K, V>],
    ) -> Done {
        let (check, layer, state) = (&mut self.check, &self.mfs, &self.state.engine);
        let line = Rebuild { check, layer, state }.build(tree, unique, what, also).await?;
        Ok(Some(line.into()))
    }

    /// Blocks that are allocated and that the check found no owner of.
    pub(super) async fn unowned_blocks(&mut self) -> Result<Vec<MetaBlock>, StoreError> {
        unowned_blocks(&mut self.check).await
    }
}
