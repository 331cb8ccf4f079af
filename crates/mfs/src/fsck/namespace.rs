//! The namespace index, compared with the directories that the check met.
//!
//! Invariant: it is compared only when everything that it follows from is sound: before that each
//! difference would be found twice, and repaired too early.

use std::collections::BTreeMap;

use types::MetaBlock;

use super::plan::{Fix, Stage};
use super::{Check, ProblemKind, Subject};
use crate::format::namespace::{NAMESPACE_KEY, NamespaceEntry, decode_start};
use crate::trees::NAMESPACE;
use engine::error::StoreError;

/// A directory that the check met: its expected entry, and where its content begins.
pub(super) type MetDirectory = (NamespaceEntry, Option<MetaBlock>);

impl Check {
    pub(super) async fn namespace(&mut self) -> Result<(), StoreError> {
        let met = std::mem::take(&mut self.tree.directories);
        let mut entries = BTreeMap::new();
        self.walk((NAMESPACE, "namespace index"), |_, key, value| {
            entries.insert(*key, decode_start(value));
        })
        .await?;
        entries.remove(&[0; NAMESPACE_KEY]);
        if !self.plan.is_sound_before(Stage::Index) {
            return Ok(());
        }
        for (entry, start) in met {
            let subject = Subject::Inode(entry.dir);
            let Some(said) = entries.remove(&entry.key()) else {
                let detail = format!("in chunk {}", entry.parent);
                self.found(ProblemKind::UnindexedDirectory, subject, detail);
                self.plan.add(Fix::IndexEntry(entry, Some(start)));
                continue;
            };
            if said.is_some_and(|block| block.0 >= self.blocks.blocks) {
                let detail = format!("block {}", said.unwrap_or_default());
                self.found(ProblemKind::BadIndexEntry, subject, detail);
                self.plan.add(Fix::IndexEntry(entry, Some(start)));
            }
        }
        for entry in entries.into_keys().map(|key| NamespaceEntry::of(&key)) {
            let detail = format!("in chunk {}", entry.parent);
            self.found(ProblemKind::StaleIndexEntry, Subject::Inode(entry.dir), detail);
            self.plan.add(Fix::IndexEntry(entry, None));
        }
        Ok(())
    }
}
