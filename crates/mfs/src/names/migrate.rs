//! Directories that move to another shard with all their names, and keep their number.
//!
//! What has a name there stays where it is: as in a spread directory the name becomes one of
//! another shard (7.5). If the other shard has it, the name becomes one of its own.
//!
//! Invariants:
//! - a name keeps its position, so listings go on where they were. It does not where slots have
//!   another size, or where a directory that was large has few names left;
//! - what is left of the directory on its former shard is an orphan, without names, of the same
//!   number. Nobody finds it, and it is freed as any other one. As long as it is there, the
//!   directory does not come back;
//! - the name of the directory keeps its slot, too.

use types::limits::LINK_MAX;
use types::{Attr, Fault, FileKind, Ino, Name, ShardId};

use super::find::Spot;
use super::index::Position;
use super::view::Names;
use crate::format::namespace::Stream;
use crate::format::number::{is_annex, is_orphan_dir, is_root_dir};
use crate::format::outside::Outside;
use crate::format::slot::{SLOTS_PER_BLOCK, Slot, SlotState};
use crate::trees::OUTSIDE;
use engine::error::Stop;

/// A directory keeps its positions if there are at most so many for each name, and some.
const SPARSE: usize = 4;
/// Names that are read at once.
const PIECE: usize = 128;

/// A name of a directory that moves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedName {
    /// Its position in the directory.
    pub at: u32,
    /// The name.
    pub name: Name,
    /// What it leads to.
    pub ino: Ino,
    /// The kind of that.
    pub kind: FileKind,
}

/// A directory as it leaves a shard, and arrives at another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Its attributes, with its number.
    pub attr: Attr,
    /// Where its name is.
    pub parent: Ino,
    /// The stream that made it (7.4).
    pub stream: u32,
    /// Names and values of its xattrs.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its chunks in order: is it an annex?
    pub annexes: Vec<bool>,
    /// Its names, by their positions.
    pub names: Vec<PlacedName>,
}

impl Names<'_, '_> {
    /// What a directory has, if it has at most `max` names.
    ///
    /// # Errors
    /// `TooBig`: it has more. `Invalid` for a root directory and an orphan. As
    /// [`Names::lookup`].
    pub fn departure(&mut self, dir: Ino, max: usize) -> Result<Arrival, Stop> {
        let parent = self.parent(dir)?.filter(|_| !is_root_dir(dir));
        let parent = parent.ok_or(Stop::Fault(Fault::Invalid))?;
        let attr = self.attr(dir)?.ok_or(Stop::Fault(Fault::Stale))?;
        let (mut names, mut after) = (Vec::new(), 0);
        loop {
            let piece = self.readdir(dir, after, PIECE)?;
            let Some(last) = piece.last() else { break };
            after = last.cookie;
            // A cookie is the position after which a listing goes on, and one more.
            let placed = piece.into_iter().map(|entry| PlacedName {
                at: (entry.cookie - 1) as u32,
                name: entry.name,
                ino: entry.ino,
                kind: entry.kind,
            });
            names.extend(placed);
            if names.len() > max {
                return Err(Fault::TooBig.into());
            }
        }
        let (_, _, xattrs) = self.load_xattrs(dir)?;
        let used = names.last().map_or(0, |it| Position(it.at).chunk() + 1);
        let chunks = self.read_chunks(dir)?;
        let annexes = chunks.into_iter().take(used).map(is_annex).collect();
        let stream = self.locate_live(dir)?.1.stream().number();
        Ok(Arrival { attr, parent, stream, xattrs, annexes, names })
    }

    /// The directory `dir`, with these names, goes to the shard `to`. What is left is an orphan.
    ///
    /// # Errors
    /// `Invalid` for a root directory, an orphan, and this shard; `NoSpace`; as
    /// [`Names::lookup`].
    pub fn leave(&mut self, dir: Ino, to: ShardId, names: &[PlacedName]) -> Result<(), Stop> {
        let (spot, slot) = self.locate_live(dir)?;
        let is_dir = slot.kind() == FileKind::Directory && slot.nlink() > 0;
        if to == self.txn.shard() || is_root_dir(dir) || !is_dir {
            return Err(Fault::Invalid.into());
        }
        self.set_home(dir, to)?;
        for placed in names {
            self.leave_behind(dir, placed)?;
        }
        if !self.is_empty(dir)? {
            return Err(Fault::NotEmpty.into());
        }
        if !is_orphan_dir(spot.dir) {
            self.hide(&spot)?;
        }
        let attr = self.attr(dir)?.ok_or(Stop::Fault(Fault::Stale))?;
        self.set_attr(&Attr { nlink: 0, ..attr })
    }

    /// A name goes with its directory. What it leads to stays.
    fn leave_behind(&mut self, dir: Ino, placed: &PlacedName) -> Result<(), Stop> {
        if self.remove_name(dir, &placed.name)? != placed.ino {
            return Err(Fault::Busy.into());
        }
        if !self.is_here(placed.ino)? {
            return Ok(());
        }
        let outside = match (placed.kind, self.outside(placed.ino)?) {
            (FileKind::Directory, None) => Outside::Parent(dir),
            (FileKind::Directory, Some(_)) | (_, Some(Outside::Parent(_))) => {
                return Err(Fault::Corrupt.into());
            }
            (_, Some(Outside::Names(count))) if count >= LINK_MAX => {
                return Err(Fault::Corrupt.into());
            }
            (_, Some(Outside::Names(count))) => Outside::Names(count + 1),
            (_, None) => Outside::Names(1),
        };
        self.set_outside(placed.ino, Some(outside))
    }

    /// Moves a directory to the orphan directory. Its slot keeps its name, as that of an inode of
    /// another shard.
    fn hide(&mut self, from: &Spot) -> Result<(), Stop> {
        self.ensure_index(from.dir)?;
        let mut name_slot = self.load(from)?;
        let (name, ino) = (name_slot.name().to_vec(), name_slot.ino());
        let mut body = name_slot.clone();
        body.set_name(b"");
        let to = self.take_slot(self.txn.orphan_dir())?;
        let mut slot = self.load(&to)?;
        slot.adopt(&body);
        self.store(&to, &slot)?;
        self.index_remove(from.dir, &name_slot)?;
        name_slot.set_link(&name, ino, FileKind::Directory);
        self.store(from, &name_slot)?;
        self.update_moved(&to, ino)
    }

    /// A directory comes from another shard, with its number and its names.
    ///
    /// # Errors
    /// `Busy`: what was left here of it is not freed yet. `Invalid`: it cannot be. `NoSpace`.
    pub fn arrive(&mut self, it: &Arrival) -> Result<(), Stop> {
        let ino = it.attr.ino;
        if it.attr.kind != FileKind::Directory || it.attr.nlink < 2 || is_root_dir(ino) {
            return Err(Fault::Invalid.into());
        }
        if self.locate(ino)?.is_some() {
            return Err(Fault::Busy.into());
        }
        self.set_home(ino, self.txn.shard())?;
        let spot = self.take_slot(self.txn.orphan_dir())?;
        let mut slot = self.load(&spot)?;
        slot.set_inode(b"", &Attr { size: 0, blocks: 0, ..it.attr });
        slot.set_stream(Stream::from_number(it.stream));
        self.store(&spot, &slot)?;
        self.txn.pending.names.new_dir(ino);
        self.update_moved(&spot, ino)?;
        self.count_inode(1)?;
        for (name, value) in &it.xattrs {
            self.set_xattr(ino, name, value)?;
        }
        if self.is_here(it.parent)? {
            let name = self.name_of(it.parent, ino)?;
            self.unhide(it.parent, &name, ino)?;
        } else {
            let parent = Outside::Parent(it.parent).encode();
            OUTSIDE.insert(self.txn, &ino.0.to_be_bytes(), &parent)?;
        }
        // Slots of another size have other positions. Then names come in their order only.
        let per_block = self.txn.slots().per_block();
        let fits = |name: &PlacedName| Position(name.at).slot() % SLOTS_PER_BLOCK < per_block;
        // Holes would cost blocks that nobody has counted.
        let last = it.names.last().map_or(0, |name| name.at as usize);
        let keeps = it.names.iter().all(fits) && last <= SPARSE * (it.names.len() + 32);
        for placed in &it.names {
            let to = match keeps {
                true => self.take_position(ino, Position(placed.at), &it.annexes)?,
                false => self.take_slot(ino)?,
            };
            self.come_along(ino, placed, &to)?;
        }
        Ok(())
    }

    /// Moves an inode from the orphan directory to the slot of its name, which was one of another
    /// shard.
    fn unhide(&mut self, parent: Ino, name: &Name, ino: Ino) -> Result<(), Stop> {
        let (to, mut slot) = self.find_live(parent, name)?;
        if slot.state() != SlotState::Link || slot.ino() != ino {
            return Err(Fault::Stale.into());
        }
        let (from, mut body) = self.locate_live(ino)?;
        self.fit_name(&mut body, name.as_bytes().len(), from.block)?;
        body.set_name(name.as_bytes());
        slot.adopt(&body);
        self.store(&to, &slot)?;
        let start = self.content_start(&slot)?;
        self.index_insert(parent, &slot, start)?;
        self.txn.layouts().move_fragments(from.dir, parent, &slot)?;
        self.release_slot(&from)?;
        self.update_moved(&to, ino)
    }

    /// The name under which `dir` has the inode of another shard.
    fn name_of(&mut self, dir: Ino, ino: Ino) -> Result<Name, Stop> {
        let mut after = 0;
        loop {
            let piece = self.readdir(dir, after, PIECE)?;
            if let Some(found) = piece.iter().find(|entry| entry.ino == ino) {
                return Ok(found.name.clone());
            }
            // Only damage takes the name of a directory that is elsewhere.
            let last = piece.last().ok_or(Stop::Fault(Fault::Corrupt))?;
            after = last.cookie;
        }
    }

    /// A name comes with its directory.
    fn come_along(&mut self, dir: Ino, placed: &PlacedName, to: &Spot) -> Result<(), Stop> {
        let PlacedName { name, ino, kind, .. } = placed;
        if !self.is_here(*ino)? {
            return self.put_link_at(dir, to, name, (*ino, *kind));
        }
        let (from, mut body) = self.locate_live(*ino)?;
        match (kind, self.outside(*ino)?) {
            (FileKind::Directory, Some(Outside::Parent(parent))) if parent == dir => {
                self.set_outside(*ino, None)?;
            }
            (FileKind::Directory, _) | (_, Some(Outside::Parent(_)) | None) => {
                return Err(Fault::Corrupt.into());
            }
            (_, Some(Outside::Names(count))) => {
                self.set_outside(*ino, Some(Outside::Names(count - 1)))?;
            }
        }
        if body.state() != SlotState::Inode || !body.name().is_empty() {
            return self.put_link_at(dir, to, name, (*ino, *kind));
        }
        // It has no other name on this shard.
        self.fit_name(&mut body, name.as_bytes().len(), from.block)?;
        body.set_name(name.as_bytes());
        let mut slot = self.load(to)?;
        slot.adopt(&body);
        self.store(to, &slot)?;
        let start = self.content_start(&slot)?;
        self.index_insert(dir, &slot, start)?;
        self.txn.layouts().move_fragments(from.dir, dir, &slot)?;
        self.add_name(dir, name.as_bytes(), to.at)?;
        self.release_slot(&from)?;
        self.update_moved(to, *ino)
    }

    fn put_link_at(
        &mut self,
        dir: Ino,
        to: &Spot,
        name: &Name,
        (ino, kind): (Ino, FileKind),
    ) -> Result<(), Stop> {
        let mut slot: Slot = self.load(to)?;
        slot.set_link(name.as_bytes(), ino, kind);
        self.store(to, &slot)?;
        self.add_name(dir, name.as_bytes(), to.at)
    }
}

mod files;
pub use files::FileArrival;

#[cfg(test)]
mod tests;
