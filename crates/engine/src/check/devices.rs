//! Label and journal of an open store.

use crate::device::label;
use crate::store::Store;

/// What is wrong with the label of the metadata, if anything.
pub async fn label_damage(store: &Store) -> Option<String> {
    match (store.label_damage(), store.device()) {
        (None, Some(device)) => label::difference(&device, &store.superblock()).await,
        (damage, _) => damage,
    }
}

/// What was wrong with the header of the journal when the store was opened, or is with its label.
pub async fn journal_damage(store: &Store) -> Option<String> {
    let log = store.log_device()?;
    match log.is_header_damaged() {
        true => Some("a copy of its header".into()),
        false => log.label_damage().await,
    }
}
