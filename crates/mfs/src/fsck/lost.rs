//! Losses: what repair could not keep.
//!
//! Invariants:
//! - a fix that removes something of the users' returns a [`Loss`] with its change; only [`Losses`]
//!   gathers them. What had no owner, or is rebuilt from other blocks, is no loss;
//! - a loss names its subject by number. Repair looks up paths at its end, when everything is in
//!   its place: so users find what is left under a reported path;
//! - a loss is first reported without a path, after its transaction and before that can be durable:
//!   so every loss is known even if the repair is interrupted;
//! - losses are bounded (`LINES_MAX`) and sorted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use commitment::TxnId;
use types::{ClientId, DirNo, Ino, PagId};

use super::plan::TreeName;
use super::repair::LINES_MAX;
use crate::format::number::is_orphan_dir;
use crate::handle::Mfs;
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};

/// One thing that is gone for good. Ends are one past the last.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Loss {
    /// All slots of a content block.
    Slots {
        dir: Ino,
        chunk: DirNo,
        first: u32,
        count: u32,
    },
    /// Content blocks that a directory counts and does not have, and how many names they held at
    /// most.
    Content {
        dir: Ino,
        blocks: u64,
        names: u64,
    },
    /// A slot that made no sense, and what it seemed to hold.
    Slot {
        dir: Ino,
        chunk: DirNo,
        slot: u32,
        ino: Ino,
        name: Vec<u8>,
    },
    /// A name: of an inode that is gone, or a second one that an inode cannot have.
    Name {
        dir: Ino,
        name: Vec<u8>,
        ino: Ino,
        gone: bool,
    },
    /// Some names of an inode.
    Links {
        ino: Ino,
        counted: u32,
        left: u32,
    },
    /// All old names of an inode, which repair gave a new one.
    AllNames {
        ino: Ino,
        counted: u32,
    },
    /// Everything of a directory except its number and its content.
    Directory(Ino),
    /// The identity of the directory whose content this new one holds.
    Unknown(Ino),
    /// The attributes of the root; with `content`, also which content was the root's.
    Root {
        root: Ino,
        content: bool,
    },
    /// A symlink that was removed because its target is lost.
    Target {
        dir: Ino,
        name: Vec<u8>,
        ino: Ino,
        len: u64,
    },
    /// Extended attributes: all, or those from one on in the order of names. [`KnownName`] says
    /// whether the name is that of the first lost one, or of the last that is left.
    Xattrs {
        ino: Ino,
        from: Option<(Vec<u8>, KnownName)>,
    },
    /// Inline data.
    Inline {
        ino: Ino,
        from: u64,
        to: u64,
    },
    /// Bytes that were mapped.
    Bytes {
        ino: Ino,
        from: u64,
        to: u64,
    },
    /// A number of mapped bytes, somewhere in the holes from `from` on, up to `to` if that is
    /// known.
    Holes {
        ino: Ino,
        bytes: u64,
        from: u64,
        to: Option<u64>,
    },
    /// In which object a file lay.
    Object(Ino),
    /// What this shard kept of an operation of several.
    Operation(TxnId),
    /// What was kept of an inode's names on other shards.
    Outside(Ino),
    /// Segments of an inode that is gone.
    Stray(Ino),
    /// Inodes, by their count.
    Inodes {
        counted: u64,
        left: u64,
    },
    /// Kept replies: answers that clients got.
    Replies,
    Client(ClientId),
    Setting(u32),
    /// Entries of a table that cannot be rebuilt from other blocks.
    Table(TreeName),
    /// Removed names may have come back.
    Past,
    /// Data blocks that became free. They may hold something of the users' only if content was
    /// lost, too.
    Data {
        pag: PagId,
        blocks: u64,
    },
}

/// Which name a loss of extended attributes gives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum KnownName {
    /// The name of the first lost attribute.
    First,
    /// The name of the last attribute that is left.
    Before,
}

/// Something that repair could not keep.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost {
    pub(super) loss: Loss,
    path: Option<Vec<u8>>,
}

impl Lost {
    /// The kind of the loss, for programs.
    pub fn kind(&self) -> &'static str {
        match self.loss {
            Loss::Slots { .. } | Loss::Content { .. } | Loss::Slot { .. } => "Slots",
            Loss::Name { .. } | Loss::Links { .. } | Loss::AllNames { .. } | Loss::Outside(_) => {
                "Names"
            }
            Loss::Unknown(_) => "Directory",
            Loss::Directory(_) | Loss::Root { .. } => "Attributes",
            Loss::Target { .. } => "Target",
            Loss::Xattrs { .. } => "Xattrs",
            Loss::Inline { .. }
            | Loss::Bytes { .. }
            | Loss::Holes { .. }
            | Loss::Object(_)
            | Loss::Stray(_) => "Content",
            Loss::Inodes { .. } => "Inodes",
            Loss::Replies
            | Loss::Client(_)
            | Loss::Setting(_)
            | Loss::Operation(_)
            | Loss::Table(_) => "Records",
            Loss::Past => "Past",
            Loss::Data { .. } => "Data",
        }
    }

    /// The inode that lost something, the directory that lost names, or the inode that is lost.
    pub fn inode(&self) -> Option<Ino> {
        let ino = match self.loss {
            Loss::Slots { dir, .. } | Loss::Content { dir, .. } | Loss::Slot { dir, .. } => dir,
            Loss::Name { ino, .. }
            | Loss::Links { ino, .. }
            | Loss::AllNames { ino, .. }
            | Loss::Directory(ino)
            | Loss::Unknown(ino)
            | Loss::Target { ino, .. }
            | Loss::Xattrs { ino, .. }
            | Loss::Inline { ino, .. }
            | Loss::Bytes { ino, .. }
            | Loss::Holes { ino, .. }
            | Loss::Object(ino)
            | Loss::Outside(ino)
            | Loss::Stray(ino) => ino,
            Loss::Root { root, .. } => root,
            _ => return None,
        };
        (ino != Ino::NONE).then_some(ino)
    }

    /// Where that is, or was.
    pub fn path(&self) -> Option<&[u8]> {
        self.path.as_deref()
    }

    /// The inode in words: by its path, if it has one.
    fn subject(&self, ino: Ino) -> String {
        match &self.path {
            Some(path) => format!("{} (inode {ino})", printable(path)),
            None => format!("inode {ino}"),
        }
    }

    /// A name in a directory, in words; the directory may have no path.
    fn named(&self, dir: Ino, name: &[u8]) -> String {
        match &self.path {
            Some(path) => printable(path),
            None => format!("{} in directory {dir}", printable(name)),
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.loss {
            Loss::Slots { dir, chunk, first, count } if is_orphan_dir(*dir) => write!(
                f,
                "up to {} without a name of their own, which were removed and open, or had further names \
                 only: slots {first} to {} of chunk {chunk}",
                some(*count, "inode"),
                first + count - 1
            ),
            Loss::Slots { dir, chunk, first, count } => write!(
                f,
                "up to {} of directory {}, and the inodes that lay with them: slots {first} to {} of chunk {chunk}",
                some(*count, "name"),
                self.subject(*dir),
                first + count - 1
            ),
            Loss::Content { dir, blocks, names } => write!(
                f,
                "{} of the content of directory {}, with up to {}; what was found of that without its place is in \
                 lost+found",
                some(*blocks, "block"),
                self.subject(*dir),
                some(*names, "name")
            ),
            Loss::Slot { dir, chunk, slot, ino, name } => write!(
                f,
                "slot {slot} of chunk {chunk}, of directory {}, which made no sense: it held inode {ino}, named \"{}\", \
                 as far as can be told",
                self.subject(*dir),
                printable(name)
            ),
            Loss::Name { dir, name, ino, gone: true } => {
                write!(f, "the name {} of inode {ino}, which is gone", self.named(*dir, name))
            }
            Loss::Name { dir, name, ino, gone: false } => {
                write!(f, "the second name {} of inode {ino}", self.named(*dir, name))
            }
            Loss::Links { ino, counted, left } => {
                let of = some(*counted, "name");
                write!(f, "{} of the {of} of {}", counted - left, self.subject(*ino))
            }
            Loss::AllNames { ino, counted } => {
                write!(f, "the {} that {} had before", some(*counted, "name"), self.subject(*ino))
            }
            Loss::Directory(ino) => write!(
                f,
                "name, owner, mode, times and attributes of the directory that is {} now",
                self.subject(*ino)
            ),
            Loss::Unknown(ino) => write!(
                f,
                "of which directory the content is that lies in {} now",
                self.subject(*ino)
            ),
            Loss::Root { content, .. } => {
                f.write_str("owner, mode, times and extended attributes of the root directory")?;
                f.write_str(if *content { ROOT_CONTENT } else { "" })
            }
            Loss::Target { dir, name, ino, len } => write!(
                f,
                "the target, {}, of symbolic link {} (inode {ino}), which was removed",
                some(*len, "byte"),
                self.named(*dir, name)
            ),
            Loss::Xattrs { ino, from: None } => {
                write!(f, "the extended attributes of {}", self.subject(*ino))
            }
            Loss::Xattrs { ino, from: Some((name, KnownName::First)) } => write!(
                f,
                "the extended attribute {} of {}, and those whose names come after it",
                printable(name),
                self.subject(*ino)
            ),
            Loss::Xattrs { ino, from: Some((name, KnownName::Before)) } => write!(
                f,
                "the extended attributes of {} whose names come after {}",
                self.subject(*ino),
                printable(name)
            ),
            Loss::Inline { ino, from, to } => {
                let what = self.subject(*ino);
                write!(f, "bytes {from} to {to} of {what}, which lay with its inode")
            }
            Loss::Bytes { ino, from, to } => {
                write!(f, "bytes {from} to {to} of {}: they read as zeros now", self.subject(*ino))
            }
            Loss::Holes { ino, bytes, from, to } => {
                let (what, of) = (some(*bytes, "byte"), self.subject(*ino));
                let place = between(*from, *to);
                write!(f, "{what} of {of}, in holes {place}: they read as zeros now")
            }
            Loss::Object(ino) => write!(f, "in which object {} lay", self.subject(*ino)),
            Loss::Operation(id) => write!(
                f,
                "what was kept of the operation {id} of several shards: it may have happened on some \
                 of them only"
            ),
            Loss::Outside(ino) => write!(f, "which names {} has elsewhere", self.subject(*ino)),
            Loss::Stray(ino) => write!(f, "the content of inode {ino}, which is gone"),
            Loss::Inodes { counted, left } => {
                let gone = some(counted - left, "inode");
                write!(f, "{gone} in all: {counted} were counted, {left} are there")
            }
            Loss::Replies => f.write_str(REPLIES),
            Loss::Client(client) => write!(f, "the description of client {client}"),
            Loss::Setting(key) => write!(f, "setting {key}"),
            Loss::Table(name) => f.write_str(table(*name).unwrap_or_default()),
            Loss::Past => f.write_str(PAST),
            Loss::Data { pag, blocks } => write!(
                f,
                "what is in up to {} of data zone {pag}, where content of the above may be: they became free, and keep it \
                 until a server runs",
                some(*blocks, "data block")
            ),
        }
    }
}

const ROOT_CONTENT: &str = ", and what is in it: as far as that was found it is in lost+found";

/// Where holes are.
fn between(from: u64, to: Option<u64>) -> String {
    match to {
        Some(to) => format!("between bytes {from} and {to}"),
        None => format!("behind byte {from}"),
    }
}

/// So many of them.
fn some(count: impl Into<u64>, what: &str) -> String {
    match count.into() {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

/// A path or name on one line.
fn printable(bytes: &[u8]) -> String {
    let mut out = String::new();
    for c in String::from_utf8_lossy(bytes).chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// The loss when repair searches for content while a part of the bitmap is lost.
const PAST: &str = "which blocks were free, while content of directories was missing: names that were removed may \
                    have come back in directories that lost chunks, and in lost+found";

const REPLIES: &str =
    "replies kept for clients: a request that such a client sends again may be done again";

/// The loss with entries of a tree that other blocks cannot restore; `None` if they restore all.
pub(super) fn table(name: TreeName) -> Option<&'static str> {
    Some(match name {
        TreeName::Quarantines => {
            "which clients were evicted: every client counts as evicted, and all files as frozen until its quarantine ends"
        }
        TreeName::Frozen => {
            "which files evicted clients may still write: all count as frozen for each of them until its quarantine ends"
        }
        TreeName::Clients => {
            "what clients told of themselves, and numbers of clients that have nothing"
        }
        TreeName::Replies => REPLIES,
        TreeName::Settings => "settings",
        TreeName::Pools => {
            "which data blocks clients had for what they write next: they became free"
        }
        TreeName::Freed => {
            "which data blocks waited for others before they became free: they are free now"
        }
        TreeName::Doomed => {
            "which objects of removed files targets had still to destroy: they keep their room there"
        }
        TreeName::OwedFences => {
            "which evicted clients object targets had still to refuse: those that were away then do not"
        }
        TreeName::Outside => {
            "which inodes have names on other shards: those without a name here are in lost+found"
        }
        TreeName::Intents => {
            "what this shard had agreed on with others: an operation may have happened on some of them only"
        }
        TreeName::Lent => {
            "which data blocks this shard has lent to others, or they to it: blocks of nobody stay as they are"
        }
        TreeName::Homes => {
            "where directories went that other shards took over: no program finds them by their numbers"
        }
        TreeName::Chunks
        | TreeName::Moved
        | TreeName::Orphans
        | TreeName::Segments
        | TreeName::Pags
        | TreeName::Free
        | TreeName::Namespace => return None,
    })
}

/// Gathers the losses of a repair.
#[derive(Default)]
pub(super) struct Losses {
    all: BTreeSet<Loss>,
    /// Data blocks that became free.
    freed: BTreeMap<PagId, u64>,
    pub(super) omitted: u64,
}

impl Losses {
    /// Adds a loss; returns it, without a path, if it is new and reported one by one.
    pub(super) fn add(&mut self, loss: Loss) -> Option<Lost> {
        if let Loss::Data { pag, blocks } = loss {
            *self.freed.entry(pag).or_default() += blocks;
            return None;
        }
        if self.all.contains(&loss) {
            return None;
        }
        match self.all.len() < LINES_MAX {
            true => drop(self.all.insert(loss.clone())),
            false => self.omitted += 1,
        }
        Some(Lost { loss, path: None })
    }

    /// All losses, with the current paths.
    ///
    /// # Errors
    /// `Io`, `Poisoned`.
    pub(super) async fn with_paths(self, mfs: &Mfs) -> Result<Vec<Lost>, StoreError> {
        let content = self.all.iter().any(Loss::leaves_data);
        let freed = self.freed.into_iter().filter(|_| content);
        let data = freed.map(|(pag, blocks)| Loss::Data { pag, blocks });
        let mut out = Vec::with_capacity(self.all.len());
        for loss in self.all.into_iter().chain(data) {
            let path = match mfs.run(Cost::READ, |txn| loss.path(txn)).await {
                Ok((path, _)) => path,
                Err(StoreError::Fault(_) | StoreError::Corrupt { .. }) => None,
                Err(error) => return Err(error),
            };
            out.push(Lost { loss, path });
        }
        Ok(out)
    }
}

impl Loss {
    /// May data blocks of the loss have no owner now?
    fn leaves_data(&self) -> bool {
        matches!(
            self,
            Loss::Slots { .. }
                | Loss::Content { .. }
                | Loss::Slot { .. }
                | Loss::Bytes { .. }
                | Loss::Holes { .. }
                | Loss::Stray(_)
        )
    }

    fn path(&self, txn: &mut Txn<'_>) -> Result<Option<Vec<u8>>, Stop> {
        let (ino, name) = match self {
            Loss::Name { dir, name, .. } | Loss::Target { dir, name, .. } => (*dir, Some(name)),
            Loss::Slots { dir, .. } | Loss::Content { dir, .. } | Loss::Slot { dir, .. } => {
                (*dir, None)
            }
            Loss::Links { ino, .. }
            | Loss::AllNames { ino, .. }
            | Loss::Directory(ino)
            | Loss::Unknown(ino)
            | Loss::Xattrs { ino, .. }
            | Loss::Inline { ino, .. }
            | Loss::Bytes { ino, .. }
            | Loss::Holes { ino, .. } => (*ino, None),
            Loss::Root { root, .. } => (*root, None),
            _ => return Ok(None),
        };
        let Some(mut path) = txn.names().path(ino)? else { return Ok(None) };
        if let Some(name) = name {
            if name.is_empty() {
                return Ok(None);
            }
            if path != b"/" {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        Ok(Some(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_a_line_end_stays_on_one_line() {
        let loss = Loss::Links { ino: Ino(7), counted: 3, left: 2 };
        let lost = Lost { loss, path: Some(b"/a\nLOST: b".to_vec()) };
        assert_eq!(lost.to_string(), "1 of the 3 names of /a\\nLOST: b (inode 7)");
    }
}
