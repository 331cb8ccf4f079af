//! A client that moves blocks between data zones for an administrator: it needs no mount.

use std::cell::Cell;
use std::collections::BTreeSet;

use types::{Attr, Duration, Fault, Ino, PagId, Rights};

use crate::api::{Caller, Handle, OpenFlags};
use crate::boundary::{DataHalf, FileContent};
use crate::client::Client;
use crate::data::{MoveStep, Room};
use crate::data_lease::Service;

/// How long one step may keep a file from its writers; the steps become so large that they take
/// about half of that.
const STEP: Duration = Duration::from_millis(100);
/// Blocks of the first step, and of the largest one: 1 MiB and 16 MiB.
const FIRST: u64 = 256;
const LARGEST: u64 = 4096;
/// Blocks of the smallest step.
const SMALLEST: u64 = 16;

/// A move of one file.
pub struct FileMove {
    ino: Ino,
    /// It is open meanwhile, so that a removed file stays until the step is over.
    handle: Option<Handle>,
    /// The zones that its blocks are to leave.
    zones: BTreeSet<PagId>,
    /// Block of the file where the next step begins.
    next: u64,
    room: Room,
    /// Blocks of the next step.
    size: Cell<u64>,
}

/// Why a file, or the rest of it, stays where it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotMoved {
    /// The zones that its layout allows have no room: these, or, if empty, all.
    NoRoom(Vec<PagId>),
    /// What failed. The file is as before.
    Failed(Fault),
}

impl FileMove {
    /// The blocks of `ino` are to leave `zones`.
    pub fn new(ino: Ino, zones: BTreeSet<PagId>) -> FileMove {
        let (handle, room, size) = (None, Room::default(), Cell::new(FIRST));
        FileMove { ino, handle, zones, next: 0, room, size }
    }
}

impl Client {
    /// Places nothing in these zones from now on.
    pub fn shun_zones(&self, zones: BTreeSet<PagId>) {
        self.core.data().shun_zones(zones);
    }

    /// The attributes of a file by its number.
    ///
    /// # Errors
    /// `Stale`: it is gone.
    pub async fn attr_of(&self, ino: Ino) -> Result<Attr, Fault> {
        Ok(self.core.fetch_attr_reply(ino, Rights::ATTR).await?.1)
    }

    /// One step of a move, of at most `most` blocks. Returns the blocks that it has moved; `None`:
    /// none are left to move, or the file is gone. Other clients that want the file get it after
    /// the step, and have it for as long as the step took.
    ///
    /// # Errors
    /// Why the file stays; what was moved before stays moved.
    pub async fn move_step(&self, file: &mut FileMove, most: u64) -> Result<Option<u64>, NotMoved> {
        match self.try_step(file, most).await {
            Ok(moved) => Ok(moved),
            Err(Fault::NoSpace) => {
                let inode = self.core.inodes.get(file.ino);
                let lease = inode.and_then(|inode| inode.data_lease());
                Err(NotMoved::NoRoom(
                    lease.map_or_else(Vec::new, |lease| lease.file.zones_allowed()),
                ))
            }
            Err(Fault::Stale) => Ok(None),
            Err(fault) => Err(NotMoved::Failed(fault)),
        }
    }

    async fn try_step(&self, file: &mut FileMove, most: u64) -> Result<Option<u64>, Fault> {
        let core = &self.core;
        if file.handle.is_none() {
            let flags = OpenFlags(OpenFlags::WRITE_ONLY);
            file.handle = Some(self.open(&Caller::default(), file.ino, flags).await?.handle);
        }
        let inode = core.inode(file.ino).await?;
        let waits = !inode.holds(Rights::DATA_X) && file.next > 0;
        loop {
            let guard = core.acquire_io(&inode, Rights::DATA_X, Service::Plain, (0, 0)).await?;
            let begun = core.env.now();
            let size = file.size.get().min(most.max(1));
            let step =
                guard.file().move_blocks(&file.zones, (file.next, size), &mut file.room).await;
            let content = guard.file().clone();
            drop(guard);
            match step? {
                MoveStep::Done => return Ok(None),
                MoveStep::NeedsRoom => content.find_room(&mut file.room).await?,
                MoveStep::Moved { blocks, next } => {
                    file.next = next;
                    let took = core.env.now().since(begun);
                    file.size.set(next_size(file.size.get(), blocks, took));
                    if waits {
                        // Another client wanted the file since the last step.
                        core.env.sleep(took.min(STEP)).await;
                    }
                    return Ok(Some(blocks));
                }
            }
        }
    }

    /// Ends a move: gives the right on the content back, and closes the file.
    pub async fn let_go(&self, file: FileMove) {
        let FileMove { ino, handle: Some(handle), .. } = file else { return };
        if let Some(inode) = self.core.inodes.get(ino) {
            self.core.give_up_whole(&inode).await;
        }
        self.release(handle, None).await;
    }
}

/// The size of the next step, after one of `blocks` blocks that took so long.
fn next_size(size: u64, blocks: u64, took: Duration) -> u64 {
    match took {
        took if took > STEP / 2 => (blocks / 2).clamp(SMALLEST, LARGEST),
        took if took < STEP / 4 && blocks >= size => (size * 2).min(LARGEST),
        _ => size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_grow_while_they_are_short_and_shrink_when_they_are_long() {
        let (short, long) = (Duration::from_millis(5), Duration::from_millis(80));
        assert_eq!(next_size(FIRST, FIRST, short), 2 * FIRST);
        assert_eq!(next_size(LARGEST, LARGEST, short), LARGEST);
        assert_eq!(next_size(FIRST, 3, short), FIRST, "a small piece says nothing");
        assert_eq!(next_size(FIRST, FIRST, Duration::from_millis(30)), FIRST);
        assert_eq!(next_size(FIRST, FIRST, long), FIRST / 2);
        assert_eq!(next_size(SMALLEST, SMALLEST, long), SMALLEST);
    }
}
