//! What applications do to the file system, and what they were told.

use std::rc::Rc;

use types::{Attr, Fault, FileKind, Ino};

/// A name of the small set that the workload uses.
pub type NameNo = u8;

/// The text of a name.
pub fn name_text(name: NameNo) -> String {
    format!("n{name}")
}

/// A name in a directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct At {
    /// Directory.
    pub dir: Ino,
    /// Name.
    pub name: NameNo,
}

/// One atomic step of an application.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Where does the name lead?
    Lookup(At),
    /// Attributes.
    GetAttr(Ino),
    /// Makes a node without opening it; symbolic links lead to their target.
    Make(At, FileKind),
    /// Makes a file or, unless `exclusive`, takes the one that is there; opens it.
    Create {
        /// The name.
        at: At,
        /// O_EXCL.
        exclusive: bool,
    },
    /// Makes an open file without a name.
    TmpFile(Ino),
    /// A further name.
    Link(Ino, At),
    /// Takes a name away that is no directory's.
    Unlink(At),
    /// Removes an empty directory.
    Rmdir(At),
    /// Renames.
    Rename {
        /// Old name.
        from: At,
        /// New name.
        to: At,
        /// As renameat2(2).
        flags: u32,
    },
    /// Opens a file.
    Open(Ino),
    /// Closes it.
    Close(Ino),
    /// Reads.
    Read {
        /// File.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Bytes asked for.
        len: u32,
    },
    /// Writes `len` bytes of pattern `tag`; at the end of the file without `offset`.
    Write {
        /// File.
        ino: Ino,
        /// First byte.
        offset: Option<u64>,
        /// Bytes.
        len: u32,
        /// Pattern.
        tag: u32,
    },
    /// Sets the size.
    Truncate(Ino, u64),
    /// fallocate(2).
    Allocate {
        /// File.
        ino: Ino,
        /// As fallocate(2).
        mode: u32,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Sets the permission bits.
    SetMode(Ino, u16),
    /// Sets or (`None`) removes an extended attribute.
    SetXattr(Ino, Option<u32>),
    /// Reads it.
    GetXattr(Ino),
    /// Takes an flock without waiting (`Some(exclusive)`), or frees it.
    Flock {
        /// File.
        ino: Ino,
        /// Open file that takes it.
        owner: u64,
        /// `None` frees it.
        exclusive: Option<bool>,
    },
    /// Everything of the file that this client wrote is durable.
    Fsync(Ino),
    /// Everything that this client did is durable.
    SyncAll,
}

/// What an application saw of attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Type.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u16,
    /// Links.
    pub nlink: u32,
    /// Size; of files.
    pub size: u64,
}

impl Seen {
    /// The part of the attributes that is judged.
    pub fn of(attr: &Attr) -> Seen {
        let size = if attr.kind == FileKind::Regular { attr.size } else { 0 };
        Seen { kind: attr.kind, mode: attr.mode, nlink: attr.nlink, size }
    }
}

/// What it was told.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// The name leads there, or is missing; the made or opened inode.
    Found(Option<Ino>),
    /// Attributes.
    Attr(Seen),
    /// Bytes.
    Bytes(Rc<Vec<u8>>),
    /// An extended attribute, if it is there.
    Xattr(Option<u32>),
    /// It failed.
    Failed(Fault),
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Done => f.write_str("done"),
            Outcome::Found(Some(ino)) => write!(f, "inode {ino}"),
            Outcome::Found(None) => f.write_str("no such name"),
            Outcome::Attr(seen) => write!(
                f,
                "{:?} mode {:o} nlink {} size {}",
                seen.kind, seen.mode, seen.nlink, seen.size
            ),
            Outcome::Bytes(bytes) => f.write_str(&describe(bytes)),
            Outcome::Xattr(value) => write!(f, "attribute {value:?}"),
            Outcome::Failed(fault) => write!(f, "{fault:?}"),
        }
    }
}

/// Bytes of the pattern `tag`: each tells by whom it was written, never zero.
pub fn pattern(tag: u32, offset: u64, len: usize) -> Vec<u8> {
    let byte = (tag % 255) as u8 + 1;
    let other = (tag / 255 % 255) as u8 + 1;
    (offset..offset + len as u64).map(|at| if at % 2 == 0 { byte } else { other }).collect()
}

/// Runs of equal pairs of bytes, for people.
pub fn describe(bytes: &[u8]) -> String {
    let mut text = format!("{} bytes:", bytes.len());
    let mut start = 0;
    let mut runs = 0;
    while start < bytes.len() {
        let same = |at: usize| at < start + 2 || bytes[at] == bytes[at - 2];
        let end = (start..bytes.len()).find(|&at| !same(at)).unwrap_or(bytes.len());
        runs += 1;
        if runs > 12 {
            return text + " …";
        }
        let pair: Vec<u8> = bytes[start..end.min(start + 2)].to_vec();
        text += &format!(" {start}..{end}={pair:?}");
        start = end;
    }
    text
}

/// One step of the history: who did what, between which moments, with which result.
#[derive(Clone, Debug)]
pub struct Call {
    /// Client.
    pub client: usize,
    /// What.
    pub op: Op,
    /// The answer; `None`: there was none.
    pub outcome: Option<Outcome>,
    /// Position of the beginning among all events.
    pub begun: u64,
    /// Position of the end; `u64::MAX` without an answer.
    pub ended: u64,
}

impl Call {
    /// For people.
    pub fn line(&self) -> String {
        let outcome = self.outcome.as_ref().map(|outcome| format!("{outcome:?}"));
        let outcome = outcome.unwrap_or_else(|| "no answer".to_owned());
        format!("c{} {:?} -> {outcome} [{}, {}]", self.client, self.op, self.begun, self.ended)
    }
}
