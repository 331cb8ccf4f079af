//! The state of the inline data of one file, and which edits replace inline data.

use std::collections::VecDeque;

use proto::mds::{Edit, LayoutSlice};
use proto::wire::Bytes;

use super::budget::Claim;
use super::file::PendingEdit;
use super::pool::Reservation;
use crate::boundary::Commit;

/// The inline data of one file.
#[derive(Default)]
pub(super) struct Inline {
    /// Block 0 as last launched; zeros follow it.
    pub(super) data: Option<Vec<u8>>,
    /// Inline data that `layout` already maps to a block, while the server does not know that yet.
    pub(super) replaced: Option<Vec<u8>>,
    /// Room in the slot, in bytes; 0: there is none, or block 0 is to be mapped.
    pub(super) max: u64,
    /// Bytes of inline data that the server has acknowledged.
    pub(super) server_len: usize,
    /// The least number of bytes that it may have when the current commit has been answered.
    pub(super) in_flight_len: Option<usize>,
    /// The server has exactly `data`, or `replaced` if that is set.
    pub(super) confirmed: bool,
    /// The file system supports inline data.
    pub(super) capable: bool,
    /// Set for inline data that the server does not have.
    pub(super) backing: Option<Backing>,
}

/// What inline data holds until the server has it.
pub(super) struct Backing {
    /// Its share of the dirty budget.
    pub claim: Claim,
    /// The block that takes the data if the server has no room. None if the server had inline data
    /// of that length before.
    pub block: Reservation,
}

impl Inline {
    /// Takes what came with the layout of block 0.
    pub fn load(&mut self, part: &LayoutSlice) {
        self.set(&part.content);
        self.max = u64::from(part.inline_max);
        self.capable |= self.max > 0;
    }

    /// The server has these bytes; all other state is unknown.
    pub(super) fn set(&mut self, content: &Bytes) {
        self.data = (!content.0.is_empty()).then(|| content.0.clone());
        self.server_len = content.0.len();
        self.confirmed = true;
        self.capable = self.data.is_some();
    }

    /// Forgets all state.
    pub fn clear(&mut self) {
        *self = Inline::default();
    }

    /// The server knows all mappings: what they replaced cannot come back.
    pub fn settle(&mut self) {
        self.replaced = None;
    }

    /// How many bytes of the server's inline data are left after the first `done` edits of a
    /// commit, or after all of it. Returns the final number, and the lowest one in between.
    pub(super) fn left_by(&self, commit: &Commit, done: Option<usize>) -> (usize, usize) {
        let (mut left, mut least) = (self.server_len, self.server_len);
        for edit in &commit.edits[..done.unwrap_or(commit.edits.len())] {
            match edit {
                Edit::Content { bytes } => left = bytes.0.len(),
                edit if drops_inline(edit) => left = 0,
                _ => {}
            }
            least = least.min(left);
        }
        if let Some(size) = commit.size.filter(|_| done.is_none() && !commit.merge) {
            left = left.min(usize::try_from(size).unwrap_or(usize::MAX));
        }
        (left, least.min(left))
    }
}

/// Does this edit, which is not inline data itself, make the server drop inline data?
pub(super) fn drops_inline(edit: &Edit) -> bool {
    match edit {
        Edit::Map { segment } => segment.file.0 == 0,
        Edit::Unmap { from, to } => from.0 == 0 && *to > 0,
        Edit::Written { .. } | Edit::Content { .. } => false,
    }
}

/// Removes inline data that later edits replace, and holes of block 0 before inline data that
/// replaces them. Edits of the current commit stay.
pub(super) fn drop_superseded(edits: &mut VecDeque<PendingEdit>, sealed: u64) {
    drop_superseded_where(edits, sealed, |_| false);
}

/// As [`drop_superseded`], for the edits of one commit: the data of their mappings is stable, so no
/// failure brings inline data back.
pub(super) fn drop_superseded_sealed(edits: &mut VecDeque<PendingEdit>) {
    drop_superseded_where(
        edits,
        0,
        |edit| matches!(edit, Edit::Map { segment } if segment.file.0 == 0),
    );
}

fn drop_superseded_where(
    edits: &mut VecDeque<PendingEdit>,
    sealed: u64,
    covers: impl Fn(&Edit) -> bool,
) {
    let (mut covered, mut replaced) = (false, false);
    let mut at = edits.len();
    while at > 0 {
        at -= 1;
        let open = edits[at].seq >= sealed;
        match &mut edits[at].edit {
            Edit::Content { .. } if covered && open => {
                edits.remove(at);
            }
            Edit::Content { .. } => (covered, replaced) = (true, true),
            Edit::Unmap { from, to } if from.0 == 0 && *to > 0 => {
                covered = true;
                // The server would give the room to others in between.
                if replaced && open && *to == 1 {
                    edits.remove(at);
                } else if replaced && open {
                    from.0 = 1;
                }
            }
            other => covered |= covers(other),
        }
    }
}
