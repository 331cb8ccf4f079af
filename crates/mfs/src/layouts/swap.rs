//! Exchanges the layouts of two files: the moment at which a file moves between blocks and objects.
//!
//! A client copies the content of a file to a *spare*, an inode without a name, and then has both
//! exchange their layouts. From then on the file has the new place. The old one is the spare's,
//! which is freed as every orphan: its blocks through the tree of freed blocks, its object by being
//! doomed.
//!
//! Invariants:
//! - one transaction exchanges everything that says where content lies: segments, inline data,
//!   object record, allocated blocks. Nothing else of either inode changes;
//! - no block changes its state, and no object is doomed: each only gets another inode. So the
//!   caller makes sure that no evicted client may still write either file, for what is frozen is
//!   kept by inode.

use types::{Fault, Ino, Segment};

use super::layout::OpenLayout;
use super::view::Layouts;
use crate::format::object::ObjectRecord;
use engine::error::Stop;

/// Most segments that one of the two files may have in the tree of segments: the exchange of so
/// many is a step of unbounded work ([`engine::cost::Cost::STEP`]).
pub const SWAP_SEGMENTS_MAX: usize = 1024;

/// Where the content of a file lies.
struct Taken {
    segments: Vec<Segment>,
    content: Vec<u8>,
    object: Option<ObjectRecord>,
}

impl Layouts<'_, '_> {
    /// Exchanges the layouts of two regular files of the same size.
    ///
    /// # Errors
    /// `Invalid` if they are one file, or one of them is not regular, or their sizes differ.
    /// `TooBig`: one has more than [`SWAP_SEGMENTS_MAX`] segments in the tree. `NoSpace`, `Stale`.
    pub fn swap(&mut self, one: Ino, other: Ino) -> Result<(), Stop> {
        let size = self.open_layout(one)?.slot.attr().size;
        if one == other || self.open_layout(other)?.slot.attr().size != size {
            return Err(Stop::Fault(Fault::Invalid));
        }
        let of_one = self.take(one)?;
        let of_other = self.take(other)?;
        self.give(one, of_other)?;
        self.give(other, of_one)
    }

    /// Takes all that a file maps away from it. Its blocks stay as they are, and are nobody's.
    fn take(&mut self, ino: Ino) -> Result<Taken, Stop> {
        let content = self.content(ino)?;
        let OpenLayout { spot, mut slot } = self.open_layout(ino)?;
        let (near, object) = (self.near(spot.block, &slot)?, slot.object());
        let before = slot.own_fragments();
        let mut tree = Vec::new();
        let in_tree = slot.body().checked_sub(near.in_blocks());
        let damaged = Stop::Corrupt(spot.block, "a file has more segments than its slot counts");
        if in_tree.ok_or(damaged)? > 0 {
            tree = self.tree_segments(ino, 0, u64::MAX, SWAP_SEGMENTS_MAX + 1)?;
        }
        if tree.len() > SWAP_SEGMENTS_MAX {
            return Err(Stop::Fault(Fault::TooBig));
        }
        let mut segments = near.all();
        segments.extend_from_slice(&tree);
        self.take_content(&mut slot)?;
        slot.clear_object();
        self.replace_segments(&spot, &mut slot, (&near, &tree), &[])?;
        self.count_fragments(spot.dir, before, slot.own_fragments())?;
        Ok(Taken { segments, content, object })
    }

    /// Gives a file that maps nothing what another one had.
    fn give(&mut self, ino: Ino, taken: Taken) -> Result<(), Stop> {
        if let Some(record) = taken.object {
            return self.set_object(ino, &record);
        }
        let OpenLayout { spot, mut slot } = self.open_layout(ino)?;
        let (near, before) = (self.near(spot.block, &slot)?, slot.own_fragments());
        self.replace_segments(&spot, &mut slot, (&near, &[]), &taken.segments)?;
        if !taken.content.is_empty() {
            self.put_content(&mut slot, &taken.content, spot.block)?;
            self.txn.names().store(&spot, &slot)?;
        }
        self.count_fragments(spot.dir, before, slot.own_fragments())
    }
}
