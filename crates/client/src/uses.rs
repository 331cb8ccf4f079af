//! Requests on the content of a file: uses of a DATA right, parking while it drains.
//!
//! Invariants:
//! - a request in service holds a [`Use`]; the right is given back only at zero uses;
//! - a request that changes the size is never parked while `DATA_X` is held, nor is the
//!   kernel's write-back: the kernel may hold locks that an invalidation waits for;
//! - while the right drains, the range of every answered page-filling READ is noted and
//!   invalidated before the right goes; a parked request's range is left out of the
//!   invalidation, because its folios are locked and hold nothing that became stale;
//! - a request never waits for a second right while it holds a use.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use env::sync::{AsyncMutex, Notify};
use proto::mds::{InoRef, Op};
use types::{Duration, Fault, FileBlock, Rights};

use crate::api::Caller;
use crate::core::Core;
use crate::data::File;
use crate::inode::{Inode, Xattrs};
use crate::rpc::{Call, result};

/// Between two requests for a right while the server asks for what it had granted.
const AGAIN: Duration = Duration::from_millis(2);

/// What kind of request wants to be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    /// A read whose answer fills the kernel's pages.
    PageRead,
    /// Any other that may be parked.
    Plain,
    /// Never parked: write-back, change of size.
    Always,
}

#[derive(Default)]
struct Drain {
    parking: bool,
    noted: Vec<(u64, u64)>,
}

/// The content of a file in use.
pub(crate) struct Content {
    pub file: Rc<File>,
    /// The file knows its layout under the right that is held.
    loaded: Cell<bool>,
    /// Another client may know the file. Not so for a file that this client made and has held
    /// `DATA_X` on ever since, without a glimpse: whoever finds it has its size glimpsed.
    pub shared: Cell<bool>,
    uses: Cell<u32>,
    drain: RefCell<Option<Drain>>,
    parked: RefCell<BTreeMap<u64, (u64, u64)>>,
    parked_next: Cell<u64>,
    acquiring: Cell<bool>,
    /// Uses, drain or rights changed.
    pub changed: Notify,
    /// Held by the recall that drains.
    pub draining: AsyncMutex,
    /// Waits in the queue of contents to be dropped.
    pub queued: Cell<bool>,
}

impl Content {
    /// Content that holds nothing yet.
    pub fn new(file: Rc<File>) -> Content {
        Content {
            file,
            loaded: Cell::new(false),
            shared: Cell::new(true),
            uses: Cell::new(0),
            drain: RefCell::new(None),
            parked: RefCell::new(BTreeMap::new()),
            parked_next: Cell::new(0),
            acquiring: Cell::new(false),
            changed: Notify::new(),
            draining: AsyncMutex::new(),
            queued: Cell::new(false),
        }
    }

    /// Does the file know its layout?
    pub fn is_loaded(&self) -> bool {
        self.loaded.get()
    }

    /// A DATA right came or went.
    pub fn set_loaded(&self, loaded: bool) {
        self.loaded.set(loaded);
    }

    /// Is a recall draining it?
    pub fn is_draining(&self) -> bool {
        self.drain.borrow().is_some()
    }

    /// Nothing in service, nothing dirty?
    pub fn is_idle(&self) -> bool {
        self.uses.get() == 0
            && !self.acquiring.get()
            && !self.is_draining()
            && self.parked.borrow().is_empty()
            && self.file.is_settled()
    }

    /// Requests in service.
    pub fn uses(&self) -> u32 {
        self.uses.get()
    }

    /// A recall begins to drain.
    pub fn begin_drain(&self) {
        *self.drain.borrow_mut() = Some(Drain::default());
    }

    /// The recall ended: parked requests ask anew.
    pub fn end_drain(&self) {
        *self.drain.borrow_mut() = None;
        self.changed.notify_all();
    }

    /// From now on new requests are parked, or served again.
    pub fn park(&self, parking: bool) {
        if let Some(drain) = self.drain.borrow_mut().as_mut() {
            drain.parking = parking;
        }
        if !parking {
            self.changed.notify_all();
        }
    }

    /// Takes the noted ranges, without those that parked requests hold locked.
    /// `None`: nothing was noted.
    pub fn take_noted(&self) -> Option<Vec<(u64, u64)>> {
        let mut drain = self.drain.borrow_mut();
        let noted = std::mem::take(&mut drain.as_mut()?.noted);
        if noted.is_empty() {
            return None;
        }
        let parked: Vec<_> = self.parked.borrow().values().copied().collect();
        Some(subtract(&noted, &parked))
    }

    fn note(&self, start: u64, end: u64) {
        if let Some(drain) = self.drain.borrow_mut().as_mut() {
            match drain.noted.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => drain.noted.push((start, end)),
            }
        }
    }
}

/// `ranges` without what `holes` cover; empty ranges are left out.
fn subtract(ranges: &[(u64, u64)], holes: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut rest = ranges.to_vec();
    for &(from, to) in holes {
        rest = rest
            .into_iter()
            .flat_map(|(start, end)| [(start, end.min(from)), (start.max(to), end)])
            .filter(|(start, end)| start < end)
            .collect();
    }
    rest
}

/// A request in service.
pub(crate) struct Use {
    content: Rc<Content>,
}

impl Use {
    /// The file.
    pub fn file(&self) -> &Rc<File> {
        &self.content.file
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let uses = self.content.uses.get() - 1;
        self.content.uses.set(uses);
        if uses == 0 {
            self.content.changed.notify_all();
        }
    }
}

struct Parked<'a> {
    content: &'a Content,
    id: u64,
}

impl<'a> Parked<'a> {
    fn new(content: &'a Content, range: (u64, u64)) -> Parked<'a> {
        let id = content.parked_next.get();
        content.parked_next.set(id + 1);
        content.parked.borrow_mut().insert(id, range);
        Parked { content, id }
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.content.parked.borrow_mut().remove(&self.id);
    }
}

struct Acquiring<'a>(&'a Content);

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        self.0.acquiring.set(false);
        self.0.changed.notify_all();
    }
}

impl Core {
    /// The content of a regular file, made if there is none.
    pub fn content(&self, inode: &Inode) -> Rc<Content> {
        if let Some(content) = inode.content() {
            return content;
        }
        let file = File::new(self.data(), inode.ino, &inode.server_attr());
        let content = Rc::new(Content::new(file));
        inode.set_content(Some(content.clone()));
        content
    }

    /// Waits until a request on `range` may be served under `need` (`DATA_S` or `DATA_X`).
    pub async fn use_data(
        &self,
        inode: &Rc<Inode>,
        need: Rights,
        service: Service,
        range: (u64, u64),
    ) -> Result<Use, Fault> {
        let content = self.content(inode);
        let mut parked = None;
        loop {
            self.live().await?;
            let changed = content.changed.notified();
            if content.loaded.get() && inode.holds(need) {
                let parking = content.drain.borrow().as_ref().is_some_and(|drain| drain.parking);
                if !parking || service == Service::Always {
                    if service == Service::PageRead {
                        content.note(range.0, range.1);
                        inode.set_pages(true);
                    }
                    content.uses.set(content.uses.get() + 1);
                    drop(parked);
                    return Ok(Use { content: content.clone() });
                }
            } else if !content.is_draining() && !content.acquiring.get() {
                drop(changed);
                self.acquire(inode, &content, need).await?;
                continue;
            }
            if parked.is_none() {
                parked = Some(Parked::new(&content, range));
            }
            changed.await;
        }
    }

    /// Gets `OPEN`, and `DATA_S` with it. While the server asks this client for rights it grants it
    /// nothing: then again. What a file that counts as open was granted stays, however often others
    /// ask for it, so this ends.
    pub async fn acquire_open(&self, inode: &Rc<Inode>) -> Result<(), Fault> {
        let content = self.content(inode);
        loop {
            let changed = content.changed.notified();
            if inode.holds(Rights::OPEN) {
                return Ok(());
            }
            if !content.acquiring.get() && !content.is_draining() {
                drop(changed);
                self.acquire(inode, &content, Rights::DATA_S).await?;
                if !inode.holds(Rights::OPEN) {
                    self.env.sleep(AGAIN).await;
                }
                continue;
            }
            changed.await;
        }
    }

    /// At most one at a time for an inode: what a reply says of a DATA right and of the
    /// layout belongs together.
    async fn acquire(
        &self,
        inode: &Rc<Inode>,
        content: &Content,
        need: Rights,
    ) -> Result<(), Fault> {
        content.acquiring.set(true);
        let _acquiring = Acquiring(content);
        let ino = InoRef::Is { ino: inode.ino };
        let rights = need | Rights::ATTR | Rights::OPEN;
        let mut ops = vec![Op::Acquire { ino: ino.clone(), rights, from: FileBlock(0) }];
        // The kernel asks for `security.capability` before the first write.
        if need.contains(Rights::DATA_X) && inode.xattrs() == Xattrs::Unknown {
            ops.push(Op::ListXattr { ino, want: Rights::ATTR });
        }
        let reply = self.session.call(Call::ops(&Caller::default(), ops)).await?;
        result(&reply, 0).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_lose_what_parked_requests_hold() {
        assert_eq!(subtract(&[(0, 100)], &[(20, 30), (90, 200)]), [(0, 20), (30, 90)]);
        assert_eq!(subtract(&[(0, 10), (50, 60)], &[(0, 60)]), []);
        assert_eq!(subtract(&[(5, 10)], &[]), [(5, 10)]);
    }
}
