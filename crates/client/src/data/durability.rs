//! What of a file is not yet durable, for people who ask.

use types::limits::BLOCK_U64;
use types::{Ino, Instant};

use super::context::DataContext;
use super::file::{File, FileState};
use crate::boundary::Unsaved;

impl FileState {
    /// A commit ended. If it succeeded, everything from before `begun` is saved.
    pub(super) fn note_saved(&mut self, begun: Option<Instant>) {
        if !self.has_changes() {
            self.unsaved_since = None;
        } else if let (Some(begun), Some(since)) = (begun, &mut self.unsaved_since) {
            *since = begun.max(*since);
        }
    }

    fn unsaved(&self) -> Unsaved {
        let unflushed = (!self.stamps.is_empty()).then_some(self.stamped_since);
        let in_flight: u64 = self.writing.iter().map(|(from, to)| to - from).sum();
        let size = self.launched_size() != self.server_size;
        let since = self.unsaved_since.filter(|_| self.committing || self.has_changes());
        Unsaved {
            dirty_bytes: self.dirty_blocks() * BLOCK_U64,
            in_flight_bytes: in_flight * BLOCK_U64,
            edits: self.edits.len(),
            committing: self.committing,
            attributes: size || self.mtime.is_some() || self.ctime.is_some(),
            unflushed: unflushed.is_some(),
            lost: false,
            since: since.into_iter().chain(unflushed).min(),
        }
    }
}

impl File {
    /// See [`crate::boundary::FileContent::unsaved`].
    pub(super) fn unsaved(&self) -> Unsaved {
        Unsaved { lost: self.has_unreported_loss(), ..self.state.borrow().unsaved() }
    }
}

impl DataContext {
    /// See [`crate::boundary::DataHalf::dirty_bytes`].
    pub(super) fn dirty_bytes(&self) -> u64 {
        self.budget.used()
    }

    /// See [`crate::boundary::DataHalf::is_settled`].
    pub(super) fn is_settled(&self) -> bool {
        self.active.borrow().values().all(|file| file.is_settled())
    }

    /// See [`crate::boundary::DataHalf::has_unreported_loss`].
    pub(super) fn has_unreported_loss(&self) -> bool {
        self.unreported_losses.get() > 0
    }

    /// See [`crate::boundary::DataHalf::unsaved`].
    pub(super) fn unsaved(&self) -> Vec<Ino> {
        let active = self.active.borrow();
        active.values().filter(|file| !file.is_clean()).map(|file| file.ino).collect()
    }

    /// See [`crate::boundary::DataHalf::unsaved_since`].
    pub(super) fn unsaved_since(&self) -> Option<Instant> {
        let active = self.active.borrow();
        active.values().filter_map(|file| file.unsaved().since).min()
    }
}
