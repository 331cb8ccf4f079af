//! The blocks with fixed addresses, and the journal.

use types::MetaBlock;

use super::{Finding, Progress, Scrub, TRIES};
use crate::alloc::metaspace::bitmap_blocks;
use crate::device::label;
use crate::error::StoreError;
use crate::format::block::BlockType;
use crate::format::roots::ROOTS_BLOCK;
use crate::format::superblock::{SuperError, Superblock};
use crate::store::transact::Transact;

/// Bitmap blocks read together.
const BATCH: u32 = 64;

impl<L: Transact, P: Progress> Scrub<'_, L, P> {
    /// Checks label, superblocks, journal, roots and bitmap.
    ///
    /// # Errors
    /// `Poisoned`, `ReadOnly`.
    pub async fn fixed_blocks(&self) -> Result<(), StoreError> {
        let checked = label::check(&self.device.env, &self.device.disk).await;
        if let Some(what) = checked.ok().and_then(|(_, label)| label.damage()) {
            self.progress.found(Finding::DamagedLabel(what));
        }
        let superblock = self.store().superblock();
        for copy in 0..2 {
            self.copy_of(&superblock, copy).await?;
        }
        self.journal().await;
        let always = |_: &mut L::Txn<'_>, _| Ok(true);
        self.read(ROOTS_BLOCK, 1, BlockType::Roots, &always).await?;
        let (first, count) = (superblock.bitmap_first.0, bitmap_blocks(superblock.blocks));
        for at in (0..count).step_by(BATCH as usize) {
            let len = (count - at).min(BATCH.into()) as usize;
            self.read(MetaBlock(first + at), len, BlockType::Bitmap, &always).await?;
        }
        Ok(())
    }

    /// Checks header and label of a journal; the header may be written at any time.
    async fn journal(&self) {
        let Some(log) = self.store().log_device() else { return };
        let mut header = None;
        for _ in 0..TRIES {
            self.throttle(1).await;
            header = log.header_damage().await;
            if header.is_none() {
                break;
            }
        }
        let header = header.map(|what| format!("a copy of its header: {what}"));
        let label = log.label_damage().await;
        if let Some(what) = header.or(label) {
            self.progress.found(Finding::DamagedJournal(what));
        }
    }

    /// Checks a copy of the superblock; it may be rewritten at any time, even during the read.
    async fn copy_of(&self, superblock: &Superblock, copy: usize) -> Result<(), StoreError> {
        let place = Superblock::place(copy, superblock.blocks);
        let mut last = String::new();
        for _ in 0..TRIES {
            self.throttle(1).await;
            match self.device.read(place, 1).await {
                Ok(bytes) => match Superblock::decode(&bytes, copy, superblock.blocks) {
                    Ok(_) => {
                        self.progress.sound();
                        return Ok(());
                    }
                    Err(SuperError::Damaged(what)) => last = what.to_owned(),
                    Err(_) => last = "not the superblock of this release".to_owned(),
                },
                Err(error) => last = error.to_string(),
            }
        }
        self.progress.found(Finding::Damaged(place, last.into()));
        Ok(())
    }
}
