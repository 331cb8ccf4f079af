//! Renaming. The caller has removed the inode of the new name, and checked that no directory
//! becomes its own ancestor.

use types::{Fault, Ino, Name};

use super::view::Names;
use crate::format::slot::SlotState;
use engine::error::Stop;

impl Names<'_, '_> {
    /// Renames the entry `name` of `from` to `target` in `to`, which must not exist. Within one
    /// directory the slot stays; else the inode moves with it.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `NoSpace`; as [`Names::lookup`].
    pub fn rename(&mut self, from: Ino, name: &Name, to: Ino, target: &Name) -> Result<(), Stop> {
        let (spot, mut slot) = self.find_live(from, name)?;
        self.name_is_free(to, target)?;
        if from != to {
            if slot.state() == SlotState::Inode {
                return self.move_inode(&spot, to, target.as_bytes());
            }
            self.put_link(to, target.as_bytes(), slot.ino(), slot.kind())?;
            self.remove_name_at(from, name.as_bytes(), spot.at)?;
            return self.release_slot(&spot);
        }
        self.fit_name(&mut slot, target.as_bytes().len(), spot.block)?;
        slot.set_name(target.as_bytes());
        self.store(&spot, &slot)?;
        self.remove_name_at(from, name.as_bytes(), spot.at)?;
        self.add_name(from, target.as_bytes(), spot.at)?;
        Ok(())
    }

    /// Exchanges the inodes of two names.
    ///
    /// # Errors
    /// `NotFound`, `NoSpace`; as [`Names::lookup`].
    pub fn exchange(&mut self, a: (Ino, &Name), b: (Ino, &Name)) -> Result<(), Stop> {
        let (spot_a, mut slot_a) = self.find_live(a.0, a.1)?;
        let (spot_b, mut slot_b) = self.find_live(b.0, b.1)?;
        if spot_a.place == spot_b.place {
            return Ok(());
        }
        let (name_a, name_b) = (a.1.as_bytes(), b.1.as_bytes());
        self.fit_name(&mut slot_a, name_b.len(), spot_a.block)?;
        self.fit_name(&mut slot_b, name_a.len(), spot_b.block)?;
        slot_a.set_name(name_b);
        slot_b.set_name(name_a);
        if a.0 == b.0 {
            self.store(&spot_a, &slot_a)?;
            self.store(&spot_b, &slot_b)?;
            self.remove_name_at(a.0, name_a, spot_a.at)?;
            self.remove_name_at(b.0, name_b, spot_b.at)?;
            self.add_name(a.0, name_b, spot_a.at)?;
            return self.add_name(b.0, name_a, spot_b.at);
        }
        let (mut new_a, mut new_b) = (slot_a.clone(), slot_b.clone());
        new_a.adopt(&slot_b);
        new_b.adopt(&slot_a);
        let starts = (self.index_remove(a.0, &new_b)?, self.index_remove(b.0, &new_a)?);
        self.index_insert(a.0, &new_a, starts.1)?;
        self.index_insert(b.0, &new_b, starts.0)?;
        self.txn.layouts().move_fragments(a.0, b.0, &new_b)?;
        self.txn.layouts().move_fragments(b.0, a.0, &new_a)?;
        self.store(&spot_a, &new_a)?;
        self.store(&spot_b, &new_b)?;
        for (spot, slot) in [(spot_a, new_a), (spot_b, new_b)] {
            if slot.state() == SlotState::Inode {
                self.update_moved(&spot, slot.ino())?;
            }
        }
        Ok(())
    }

    /// Is `ancestor` the directory `dir` or above it? An orphan is above nothing. The way up ends
    /// where it leaves this shard.
    ///
    /// # Errors
    /// `Corrupt` if the tree has a cycle.
    pub fn is_within(&mut self, dir: Ino, ancestor: Ino) -> Result<Within, Stop> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == ancestor {
                return Ok(Within::Yes);
            }
            if !self.is_here(at)? {
                return Ok(Within::Leaves(at));
            }
            match self.parent(at)? {
                Some(parent) => at = parent,
                None => return Ok(Within::No),
            }
        }
        Err(Stop::Fault(Fault::Corrupt))
    }
}

/// Is a directory another one or below it?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Within {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// The way up leads to this directory of another shard, and has not met the other one.
    Leaves(Ino),
}

/// Greatest depth of a path; a longer one is a cycle.
const DEPTH_MAX: u32 = 1 << 24;
