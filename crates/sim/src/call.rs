//! The operations of applications on the file system, and their outcomes.

use std::rc::Rc;

use client::{Client, OpenFlags};
use types::{Attr, Fault, FileKind, Ino, ShardId};

/// A name from the small set that the workload uses.
pub type NameNo = u8;
/// The names of every directory.
pub const NAMES: std::ops::RangeInclusive<NameNo> = 0..=5;

/// Units of a file that fcntl locks cover, a kilobyte each.
pub const LOCK_UNITS: u8 = 4;

/// Number of an open file, unique in a run.
pub type FileNo = u32;

/// Stands for the descriptor of a store into a mapping, which reports nothing.
pub const MAPPED: FileNo = FileNo::MAX;

/// Number of the target of a symbolic link; unique in a run, except 0.
pub type TargetNo = u32;

/// The text of a target; it may be long.
pub fn target_text(target: TargetNo) -> String {
    match target {
        0 => "target".to_owned(),
        _ => format!("t{target}/{}", "x".repeat(target as usize % TARGET_MAX)),
    }
}

/// Bytes of the longest target, approximately.
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

/// The shard of numbers that a judge guesses, for inodes that nobody has seen.
const UNSEEN: ShardId = ShardId(u8::MAX);

/// Does a shard have the inode? What nobody has seen may be anywhere.
pub fn is_of(shard: ShardId, ino: Ino) -> bool {
    ino.shard() == shard || ino.shard() == UNSEEN
}

/// Are the inodes certainly on different shards?
pub fn are_apart(one: Ino, other: Ino) -> bool {
    one.shard() != other.shard() && one.shard() != UNSEEN && other.shard() != UNSEEN
}

/// One atomic step of an application.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Looks a name up.
    Lookup(At),
    /// Reads attributes.
    GetAttr(Ino),
    /// Creates an inode without opening it; symbolic links have an operation of their own.
    Make(At, FileKind),
    /// Creates a symbolic link to the target with this number.
    Symlink(At, TargetNo),
    /// Reads the target of a symbolic link.
    ReadLink(Ino),
    /// Creates a file or, unless `exclusive`, takes the existing one; opens it.
    Create {
        /// The name.
        at: At,
        /// O_EXCL.
        exclusive: bool,
        /// The open file.
        file: FileNo,
    },
    /// Creates an open file without a name, by O_TMPFILE.
    TmpFile(Ino, FileNo),
    /// Adds a name.
    Link(Ino, At),
    /// Removes a name that is not a directory.
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
    /// A short read with bytes before the end shows that the file ends here or before.
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
        /// What it waits for.
        until: Until,
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
        /// The new owner; `None`: unchanged.
        uid: Option<u32>,
        /// The new group; `None`: unchanged.
        gid: Option<u32>,
    },
    /// Sets or (`None`) removes an extended attribute.
    SetXattr(Ino, Option<u32>),
    /// Reads the extended attribute.
    GetXattr(Ino),
    /// Takes a lock (`Some(exclusive)`), or frees one.
    Lock {
        /// File.
        ino: Ino,
        /// The lock owner.
        owner: u64,
        /// `None` frees it.
        exclusive: Option<bool>,
        /// The units, of [`LOCK_UNITS`], of an fcntl lock; `None`: a flock lock.
        range: Option<(u8, u8)>,
    },
    /// Not by an application: its process stopped waiting for a lock. Until the request ends, the
    /// lock may be taken and is given back.
    Tried {
        /// File.
        ino: Ino,
        /// The lock owner.
        owner: u64,
        /// Exclusive or shared.
        exclusive: bool,
        /// As [`Op::Lock`].
        range: Option<(u8, u8)>,
        /// Unique in a run.
        number: u64,
    },
    /// Not by an application: the lock of an abandoned request is given back.
    GivenBack(Ino, u64),
    /// Not by an application: the kernel closes a file of a killed process and reports nothing to
    /// anybody.
    Left(Ino, FileNo),
    /// Everything that this client wrote to the file is durable.
    Fsync(Ino, FileNo),
    /// Every change of names and attributes that this client made at the server of a shard is
    /// durable.
    SyncNames(ShardId),
    /// Everything that this client did is durable.
    SyncAll,
    /// Not by an application: the client's session is over. Its locks and opens are gone. A part of
    /// what was not synced and no other client saw is lost.
    Lost {
        /// The client itself has ended.
        dead: bool,
        /// At most this many of its last changes of names and attributes may be lost too.
        kept: u32,
        /// Position at which the client certainly knew of the loss.
        learned: u64,
        /// Its unfinished edits of files; no other client can have seen them before.
        edits: Rc<Vec<Op>>,
        /// A data device stalled, and may carry out the client's writes later.
        late: bool,
        /// Position at which the client first began something in its next session, if that was
        /// before the loss was recorded.
        next: Option<u64>,
        /// The shard with whose server the session was. Only what that has is concerned.
        shard: ShardId,
    },
    /// Not by an application: the data devices have carried out everything that they had when they
    /// stalled.
    Settled,
    /// Not by an application: the client reports that a device failed what it had written to a
    /// file.
    Damaged {
        /// The file.
        ino: Ino,
        /// The write succeeded and a flush failed.
        flush: bool,
        /// Open files that reported it at once: certainly, or (`false`) perhaps.
        told: Vec<(FileNo, bool)>,
    },
    /// Not by an application: a kernel could not write back stores into mappings of a file.
    Unwritten(Ino),
    /// Not by an application: all hosts and the data devices lose power. `stuck`: a flush failed,
    /// and what it should have made stable was not flushed since.
    LostPower {
        /// See above.
        stuck: bool,
    },
}

impl Op {
    /// A write to an open file of an inode: at an offset, or appended; its length and its tag.
    pub fn write(
        (ino, file): (Ino, FileNo),
        offset: Option<u64>,
        (len, tag): (u32, u32),
        until: Until,
    ) -> Op {
        Op::Write { ino, offset, len, tag, file, until }
    }

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
                | Op::SyncNames(_)
                | Op::SyncAll
        )
    }

    /// The shard whose server executes it, or keeps the content that it edits; `None`: it names
    /// nothing.
    pub fn executed_at(&self) -> Option<ShardId> {
        let ino = match self {
            Op::Lookup(at) | Op::Make(at, _) | Op::Symlink(at, _) | Op::Create { at, .. } => at.dir,
            Op::Link(_, at) | Op::Unlink(at) | Op::Rmdir(at) => at.dir,
            Op::Rename { from, .. } => from.dir,
            Op::TmpFile(ino, _) | Op::Open(ino, _) | Op::Close(ino, _) | Op::Left(ino, _) => *ino,
            Op::GetAttr(ino) | Op::ReadLink(ino) | Op::GetXattr(ino) | Op::End(ino, _) => *ino,
            Op::Truncate(ino, _) | Op::SetMode(ino, _) | Op::SetXattr(ino, _) => *ino,
            Op::Read { ino, .. } | Op::Write { ino, .. } | Op::Allocate { ino, .. } => *ino,
            Op::SetOwner { ino, .. } | Op::Lock { ino, .. } | Op::Tried { ino, .. } => *ino,
            Op::GivenBack(ino, _) | Op::Fsync(ino, _) | Op::Unwritten(ino) => *ino,
            Op::Damaged { ino, .. } => *ino,
            Op::SyncNames(shard) | Op::Lost { shard, .. } => return Some(*shard),
            Op::SyncAll | Op::Settled | Op::LostPower { .. } => return None,
        };
        Some(ino.shard())
    }

    /// May it concern two shards, as far as it says itself?
    pub fn may_be_joint(&self) -> bool {
        match self {
            Op::Make(_, kind) => matches!(kind, FileKind::Directory | FileKind::Regular),
            // In a spread directory.
            Op::Create { .. } => true,
            Op::Link(ino, at) => ino.shard() != at.dir.shard(),
            Op::Unlink(_) | Op::Rmdir(_) | Op::Rename { .. } => true,
            _ => false,
        }
    }

    /// Is it read-only?
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

    /// May it create an inode?
    pub fn makes(&self) -> bool {
        matches!(self, Op::Make(..) | Op::Symlink(..) | Op::Create { .. } | Op::TmpFile(..))
    }

    /// Does it change names or attributes, which the server does at once?
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

    /// The inode that it names by number, after its process looked it up or opened it.
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

    /// Does it edit a file so that no other client sees that before its answer, or before its
    /// client's rights are recalled? A synchronous write is visible before its answer. So is a new
    /// size, which other processes of the host see.
    pub fn edits_unseen(&self) -> bool {
        let seen = match self {
            Op::Write { until, .. } => until.is_later(),
            op => matches!(op, Op::Truncate(..)),
        };
        self.edited().is_some() && !seen
    }

    /// The file whose losses it reports at its end: certainly, or (`false`) unless it fails for
    /// another reason.
    pub fn reports(&self) -> Option<(Ino, bool)> {
        match self {
            Op::Fsync(ino, _) | Op::Close(ino, _) => Some((*ino, true)),
            Op::Write { ino, until, .. } if until.is_later() => Some((*ino, false)),
            _ => None,
        }
    }

    /// The open file that it uses.
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

/// What a write waits for before it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// Its bytes are accepted.
    Accepted,
    /// The data is stable, and the server has its commit (`commit=sync`). A crash of the server and
    /// the client may take it again.
    Committed,
    /// It is durable (`O_SYNC`).
    Durable,
}

impl Until {
    /// What a write to a file that was opened with these flags waits for.
    pub fn of(flags: OpenFlags, client: &Client) -> Until {
        match flags.has(OpenFlags::DSYNC) {
            true => Until::Durable,
            false if client.commits_synchronously() => Until::Committed,
            false => Until::Accepted,
        }
    }

    /// May it fail after it took effect, and be seen before its answer?
    pub fn is_later(self) -> bool {
        self != Until::Accepted
    }
}

/// Attributes as an application saw them.
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
    /// Size of a regular file; otherwise 0.
    pub size: u64,
}

impl Seen {
    /// The attributes that the judge checks.
    pub fn of(attr: &Attr) -> Seen {
        let size = if attr.kind == FileKind::Regular { attr.size } else { 0 };
        let Attr { kind, mode, uid, gid, nlink, .. } = *attr;
        Seen { kind, mode, uid, gid, nlink, size }
    }
}

/// The outcome of an operation.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Success without a result.
    Done,
    /// The inode of the name, or `None` if it is missing; the created or opened inode.
    Found(Option<Ino>),
    /// A listing has the name, with this inode and type.
    Listed(Ino, FileKind),
    /// Attributes.
    Attr(Seen),
    /// Bytes that were read.
    Bytes(Rc<Vec<u8>>),
    /// The extended attribute, if it exists.
    Xattr(Option<u32>),
    /// The target of a symbolic link.
    Target(TargetNo),
    /// It failed with this fault.
    Failed(Fault),
    /// It failed with EIO while a data device was failing.
    DeviceFailed,
    /// It failed with ENOSPC, and space was low.
    NoRoom,
    /// It failed with ESTALE just after a lookup of the name. Nothing excuses that.
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

/// Bytes of the pattern `tag`, never zero. Even bytes show the write and the sector in it, odd ones
/// the write, so that no byte can stand in for another.
pub fn pattern(tag: u32, offset: u64, len: usize) -> Vec<u8> {
    let other = (tag / 255 % 255) as u8 + 1;
    let byte = |at: u64| ((u64::from(tag) + 101 * (at / 512)) % 255) as u8 + 1;
    (offset..offset + len as u64).map(|at| if at % 2 == 0 { byte(at) } else { other }).collect()
}

/// Runs of equal pairs of bytes.
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

/// One step of the history: an operation of a client, between two positions, with its outcome.
#[derive(Clone, Debug)]
pub struct Call {
    /// Client.
    pub client: usize,
    /// The operation.
    pub op: Op,
    /// The answer; `None`: there was none, and it is unknown whether the operation took effect by
    /// the end.
    pub outcome: Option<Outcome>,
    /// There was no answer, and the judge guessed one.
    pub guessed: bool,
    /// Position at which the server (for content: the client) reported that it took effect, if
    /// either did.
    pub applied: Option<u64>,
    /// Position of the beginning among all events.
    pub begun: u64,
    /// Position of the end.
    pub ended: u64,
}

impl Call {
    /// Of a lost session: its client, and the shard whose server it was with.
    pub(crate) fn loser(&self) -> (usize, ShardId) {
        (self.client, self.op.executed_at().unwrap_or_default())
    }

    /// The shard whose server executed it. A new file may have been made by another one than that
    /// of its directory.
    pub(crate) fn executed_at(&self) -> Option<ShardId> {
        match (&self.op, &self.outcome) {
            (
                Op::Create { .. } | Op::Make(_, FileKind::Regular),
                Some(Outcome::Found(Some(ino))),
            ) => Some(ino.shard()),
            (op, _) => op.executed_at(),
        }
    }

    /// Is it the same step of the history?
    pub fn is(&self, other: &Call) -> bool {
        let when = |call: &Call| (call.client, call.begun, call.ended);
        when(self) == when(other) && self.op == other.op
    }

    /// One line of the printed history.
    pub fn line(&self) -> String {
        let outcome = self.outcome.as_ref().map(|outcome| format!("{outcome:?}"));
        let outcome = outcome.unwrap_or_else(|| "no answer".to_owned());
        format!("c{} {:?} -> {outcome} [{}, {}]", self.client, self.op, self.begun, self.ended)
    }
}
