//! What applications do to the file system, and what they were told.

use std::rc::Rc;

use types::{Attr, Fault, FileKind, Ino};

/// A name of the small set that the workload uses.
pub type NameNo = u8;

/// Parts of a file that fcntl locks of the workload take, each of a kilobyte.
pub const LOCK_UNITS: u8 = 4;

/// Number of an open file: of all those of a run it is the only one.
pub type FileNo = u32;

/// Stands for the descriptor of a store into a mapping, which tells of nothing.
pub const MAPPED: FileNo = FileNo::MAX;

/// Number of the target of a symbolic link: of all those of a run one has it, but for 0.
pub type TargetNo = u32;

/// The text of a target, which may be long.
pub fn target_text(target: TargetNo) -> String {
    match target {
        0 => "target".to_owned(),
        _ => format!("t{target}/{}", "x".repeat(target as usize % TARGET_MAX)),
    }
}

/// Bytes of the longest target, about.
const TARGET_MAX: usize = 600;

/// The number of the target with this text.
pub fn target_of(text: &[u8]) -> Option<TargetNo> {
    let known = std::str::from_utf8(text).ok()?;
    let number = known.strip_prefix('t').and_then(|rest| rest.split_once('/'));
    let target = number.map_or(Some(0), |(number, _)| number.parse().ok())?;
    (target_text(target) == known).then_some(target)
}

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
    /// Makes a node without opening it, but for symbolic links.
    Make(At, FileKind),
    /// Makes a symbolic link to the target of this number.
    Symlink(At, TargetNo),
    /// Where does a symbolic link lead?
    ReadLink(Ino),
    /// Makes a file or, unless `exclusive`, takes the one that is there; opens it.
    Create {
        /// The name.
        at: At,
        /// O_EXCL.
        exclusive: bool,
        /// The open file.
        file: FileNo,
    },
    /// Makes an open file without a name.
    TmpFile(Ino, FileNo),
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
    Open(Ino, FileNo),
    /// Closes it.
    Close(Ino, FileNo),
    /// Reads.
    Read {
        /// File.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Bytes asked for.
        len: u32,
    },
    /// The file ends here, or before: what a read told that had bytes before the end.
    End(Ino, u64),
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
        /// The open file.
        file: FileNo,
        /// It was opened O_SYNC.
        sync: bool,
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
        /// The open file.
        file: FileNo,
    },
    /// Sets the permission bits.
    SetMode(Ino, u16),
    /// Sets owner and group, or one of them.
    SetOwner {
        /// Inode.
        ino: Ino,
        /// Its owner from then on; `None`: as it was.
        uid: Option<u32>,
        /// Its group.
        gid: Option<u32>,
    },
    /// Sets or (`None`) removes an extended attribute.
    SetXattr(Ino, Option<u32>),
    /// Reads it.
    GetXattr(Ino),
    /// Takes a lock (`Some(exclusive)`), or frees it.
    Lock {
        /// File.
        ino: Ino,
        /// Who takes it.
        owner: u64,
        /// `None` frees it.
        exclusive: Option<bool>,
        /// Which units of the file, of [`LOCK_UNITS`], by fcntl; `None`: all of it, by flock.
        range: Option<(u8, u8)>,
    },
    /// No application's: a wait for a lock was given up. Until that is over it may have been taken,
    /// and is given back.
    Tried {
        /// File.
        ino: Ino,
        /// Who tried.
        owner: u64,
        /// Against all others?
        exclusive: bool,
        /// As [`Op::Lock`].
        range: Option<(u8, u8)>,
        /// Of all those of a run this is the only one.
        number: u64,
    },
    /// No application's: the lock that was tried is given back.
    GivenBack(Ino, u64),
    /// No application's: a file of a process that was killed is closed, and nobody is told
    /// anything.
    Left(Ino, FileNo),
    /// Everything of the file that this client wrote is durable.
    Fsync(Ino, FileNo),
    /// Every change of names and attributes that this client made is durable.
    SyncNames,
    /// Everything that this client did is durable.
    SyncAll,
    /// No application's: the client's session is over. Its locks and opens are gone, and of what
    /// was not synced and nobody else saw a part is lost.
    Lost {
        /// The client itself has ended.
        dead: bool,
        /// So many of its last changes of names and attributes may be lost, too.
        kept: u32,
        /// Position at which the client surely knew of it.
        learned: u64,
        /// What it was doing to files; nobody else can have seen it before.
        edits: Rc<Vec<Op>>,
        /// A data device stood still, and may have writes of it that it carries out later.
        late: bool,
        /// Position at which the client first began something in its next session, if that was
        /// before the loss was noted.
        next: Option<u64>,
    },
    /// No application's: the data devices have carried out what they had when they stood still.
    Settled,
    /// No application's: the client says that a device failed what it had written to a file.
    Damaged {
        /// The file.
        ino: Ino,
        /// It was written, and a flush failed.
        flush: bool,
        /// Open files by which it was told at once: surely, or (`false`) perhaps.
        told: Vec<(FileNo, bool)>,
    },
    /// No application's: a kernel could not write back what mappings had stored into a file.
    Unwritten(Ino),
    /// No application's: all hosts and the data devices lose power. `stuck`: a flush has failed,
    /// and what it should have made stable was not flushed since.
    LostPower {
        /// See above.
        stuck: bool,
    },
}

impl Op {
    /// May it change anything that others can see?
    pub fn changes(&self) -> bool {
        !matches!(
            self,
            Op::Lookup(_)
                | Op::GetAttr(_)
                | Op::TmpFile(..)
                | Op::Open(..)
                | Op::Close(..)
                | Op::Left(..)
                | Op::Read { .. }
                | Op::End(..)
                | Op::GetXattr(_)
                | Op::ReadLink(_)
                | Op::Fsync(..)
                | Op::SyncNames
                | Op::SyncAll
        )
    }

    /// Does it only look?
    pub fn only_looks(&self) -> bool {
        matches!(
            self,
            Op::Lookup(_)
                | Op::GetAttr(_)
                | Op::Read { .. }
                | Op::End(..)
                | Op::GetXattr(_)
                | Op::ReadLink(_)
        )
    }

    /// May it make an inode?
    pub fn makes(&self) -> bool {
        matches!(self, Op::Make(..) | Op::Symlink(..) | Op::Create { .. } | Op::TmpFile(..))
    }

    /// Is it a change of names or attributes, which the server makes at once?
    pub fn changes_names(&self) -> bool {
        matches!(
            self,
            Op::Make(..)
                | Op::Symlink(..)
                | Op::Create { .. }
                | Op::TmpFile(..)
                | Op::Link(..)
                | Op::Unlink(_)
                | Op::Rmdir(_)
                | Op::Rename { .. }
                | Op::SetMode(..)
                | Op::SetOwner { .. }
                | Op::SetXattr(..)
        )
    }

    /// What it asks of by number that its process has found by name, or has open.
    pub fn of_what_was_found(&self) -> Option<Ino> {
        match self {
            Op::Open(ino, _)
            | Op::Truncate(ino, _)
            | Op::SetMode(ino, _)
            | Op::SetOwner { ino, .. }
            | Op::SetXattr(ino, _)
            | Op::GetXattr(ino)
            | Op::ReadLink(ino) => Some(*ino),
            _ => None,
        }
    }

    /// The file whose content it changes.
    pub fn edited(&self) -> Option<Ino> {
        match self {
            Op::Write { ino, .. } | Op::Truncate(ino, _) | Op::Allocate { ino, .. } => Some(*ino),
            _ => None,
        }
    }

    /// Does it change a file's content so that others see nothing of it before its answer, or
    /// before its client's rights are taken? A write that waits to be durable is there before its
    /// answer, and so may a new size be, which processes of the same host are told.
    pub fn edits_unseen(&self) -> bool {
        let seen = matches!(self, Op::Write { sync: true, .. } | Op::Truncate(..));
        self.edited().is_some() && !seen
    }

    /// The file whose losses it tells of at its end, surely or (`false`) unless it fails otherwise.
    pub fn reports(&self) -> Option<(Ino, bool)> {
        match self {
            Op::Fsync(ino, _) | Op::Close(ino, _) => Some((*ino, true)),
            Op::Write { ino, sync: true, .. } => Some((*ino, false)),
            _ => None,
        }
    }

    /// The open file by which it is done.
    pub fn file(&self) -> Option<FileNo> {
        match self {
            Op::Open(_, file)
            | Op::Close(_, file)
            | Op::TmpFile(_, file)
            | Op::Fsync(_, file)
            | Op::Create { file, .. }
            | Op::Write { file, .. }
            | Op::Allocate { file, .. } => Some(*file),
            _ => None,
        }
    }
}

/// What an application saw of attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Type.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links.
    pub nlink: u32,
    /// Size; of files.
    pub size: u64,
}

impl Seen {
    /// The part of the attributes that is judged.
    pub fn of(attr: &Attr) -> Seen {
        let size = if attr.kind == FileKind::Regular { attr.size } else { 0 };
        let Attr { kind, mode, uid, gid, nlink, .. } = *attr;
        Seen { kind, mode, uid, gid, nlink, size }
    }
}

/// What it was told.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// The name leads there, or is missing; the made or opened inode.
    Found(Option<Ino>),
    /// A listing has the name, with this inode and this kind.
    Listed(Ino, FileKind),
    /// Attributes.
    Attr(Seen),
    /// Bytes.
    Bytes(Rc<Vec<u8>>),
    /// An extended attribute, if it is there.
    Xattr(Option<u32>),
    /// The target of a symbolic link.
    Target(TargetNo),
    /// It failed.
    Failed(Fault),
    /// It failed with EIO while a data device did.
    DeviceFailed,
    /// It failed with ENOSPC, and there was little space left.
    NoRoom,
    /// It failed with ESTALE, and what it was asked of had just been found by name. Nothing excuses
    /// that.
    GoneThoughFound,
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Done => f.write_str("done"),
            Outcome::Found(Some(ino)) => write!(f, "inode {ino}"),
            Outcome::Found(None) => f.write_str("no such name"),
            Outcome::Listed(ino, kind) => write!(f, "inode {ino}, {kind:?}"),
            Outcome::Attr(seen) => write!(
                f,
                "{:?} mode {:o} owner {}:{} nlink {} size {}",
                seen.kind, seen.mode, seen.uid, seen.gid, seen.nlink, seen.size
            ),
            Outcome::Bytes(bytes) => f.write_str(&describe(bytes)),
            Outcome::Xattr(value) => write!(f, "attribute {value:?}"),
            Outcome::Target(target) => write!(f, "target {target}"),
            Outcome::Failed(fault) => write!(f, "{fault:?}"),
            Outcome::NoRoom => f.write_str("NoSpace, there was little left"),
            Outcome::GoneThoughFound => f.write_str("Stale, though it had just been found by name"),
            Outcome::DeviceFailed => f.write_str("Io, a device failed"),
        }
    }
}

/// Bytes of the pattern `tag`, never zero: each tells by whom it was written, and every second one,
/// too, which sector of what that wrote it lies in, so that none can stand in for another.
pub fn pattern(tag: u32, offset: u64, len: usize) -> Vec<u8> {
    let other = (tag / 255 % 255) as u8 + 1;
    let byte = |at: u64| ((u64::from(tag) + 101 * (at / 512)) % 255) as u8 + 1;
    (offset..offset + len as u64).map(|at| if at % 2 == 0 { byte(at) } else { other }).collect()
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
    /// The answer; `None`: there was none, and nobody knows whether it took effect by the end.
    pub outcome: Option<Outcome>,
    /// The answer was guessed: there was none.
    pub guessed: bool,
    /// Position at which the server, of content the client, says that it took effect, if either
    /// does.
    pub applied: Option<u64>,
    /// Position of the beginning among all events.
    pub begun: u64,
    /// Position of the end.
    pub ended: u64,
}

impl Call {
    /// Is it the same step of the history?
    pub fn is(&self, other: &Call) -> bool {
        let when = |call: &Call| (call.client, call.begun, call.ended);
        when(self) == when(other) && self.op == other.op
    }

    /// For people.
    pub fn line(&self) -> String {
        let outcome = self.outcome.as_ref().map(|outcome| format!("{outcome:?}"));
        let outcome = outcome.unwrap_or_else(|| "no answer".to_owned());
        format!("c{} {:?} -> {outcome} [{}, {}]", self.client, self.op, self.begun, self.ended)
    }
}
