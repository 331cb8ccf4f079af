//! The catalogue of findings.

use std::fmt;

use types::{ClientId, DirNo, Ino, Lsn, MetaBlock, PagBlock, PagId};

/// What a finding puts at risk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Space or a number is lost; no file is.
    Warning,
    /// A file, a name or a promise is damaged.
    Error,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $severity:ident, $text:literal;)*) => {
        /// The kind of a finding.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum ProblemKind {
            $($(#[$doc])* $name,)*
        }

        impl ProblemKind {
            /// Every kind.
            pub const ALL: &'static [ProblemKind] = &[$(ProblemKind::$name,)*];

            /// What it puts at risk.
            pub fn severity(self) -> Severity {
                match self { $(ProblemKind::$name => Severity::$severity,)* }
            }

            /// One line for people.
            pub fn text(self) -> &'static str {
                match self { $(ProblemKind::$name => $text,)* }
            }

            /// Its name, for programs.
            pub fn name(self) -> &'static str {
                match self { $(ProblemKind::$name => stringify!($name),)* }
            }
        }
    };
}

kinds! {
    /// A block cannot be what it should: checksum, address, type, or content.
    DamagedBlock = Error, "a metadata block is damaged";
    /// The label is damaged; the superblock is not.
    DamagedLabel = Warning, "the label is damaged; the superblock says what it said";
    /// The log ends in something that is no log.
    DamagedLog = Error, "the log is damaged";
    /// Two owners of one metadata block.
    SharedMetaBlock = Error, "a metadata block is used twice";
    /// An address outside the device.
    OutsideMetaBlock = Error, "a metadata block lies outside the device";
    /// In use, but free in the bitmap.
    FreeMetaBlock = Error, "a metadata block in use is marked free";
    /// Nobody's, but allocated in the bitmap.
    LostMetaBlock = Warning, "a metadata block is allocated and nobody's";
    /// A descriptor or run that makes no sense, or a directory that does not fit its chunks.
    BadChunk = Error, "the content of a directory does not fit together";
    /// A chunk that no directory has.
    LostChunk = Error, "a chunk of directory content belongs to no directory that is reached";
    /// A counter of numbers is below a number that was issued.
    BadCounter = Error, "a counter lags behind the numbers issued";
    /// A slot that makes no sense.
    BadSlot = Error, "a directory slot makes no sense";
    /// No legal name, or a name where none may be.
    BadName = Error, "a name is not legal";
    /// The same name twice in one directory.
    DuplicateName = Error, "a directory has a name twice";
    /// A further link to an inode that is not there.
    DanglingName = Error, "a name leads to no inode";
    /// A further link of another type than its inode.
    WrongKind = Error, "a name says another type than its inode";
    /// One inode number in two slots.
    DuplicateInode = Error, "an inode is in two places";
    /// An inode where neither its number nor the `moved` tree leads.
    MisplacedInode = Error, "an inode is where nothing leads to it";
    /// An entry of the `moved` tree that leads nowhere.
    StaleMove = Warning, "a moved inode is not where it should be";
    /// The number of links is not the number of names.
    WrongLinkCount = Error, "the link count is not the number of names";
    /// The list of orphans and the inodes disagree.
    WrongOrphan = Error, "the list of orphans is wrong";
    /// The size of a directory is not that of its content.
    WrongSize = Warning, "the size of a directory is not that of its content";
    /// Extended attributes that make no sense.
    BadXattrs = Error, "extended attributes make no sense";
    /// A symlink target that makes no sense.
    BadTarget = Error, "the target of a symlink makes no sense";
    /// Segments out of order, of no file, or not as many as counted.
    BadLayout = Error, "a layout makes no sense";
    /// `blocks` is not the sum of the segments.
    WrongBlockCount = Warning, "the block count of a file is not the sum of its segments";
    /// One data block in two layouts.
    SharedDataBlock = Error, "a data block belongs to two files";
    /// One data block with two owners, not both files.
    DoubleDataBlock = Error, "a data block has two owners";
    /// A data block outside its zone, or on the label.
    OutsideDataBlock = Error, "a data block lies outside its data zone";
    /// A data block that nobody owns.
    LostDataBlock = Warning, "a data block belongs to nobody";
    /// The counts of a data zone or of the inodes are wrong.
    WrongCount = Warning, "a count is wrong";
    /// Neighbouring runs that should be one.
    UnjoinedRuns = Warning, "neighbouring runs of free space are not joined";
    /// A pool, a kept reply or a frozen file of a client that is not there.
    UnknownClient = Error, "something belongs to a client that does not exist";
    /// Only one of the two entries of a frozen file.
    HalfFrozen = Error, "a frozen file is recorded in one order only";
    /// A client's description, a kept reply or a setting that makes no sense.
    BadRecord = Error, "a record makes no sense";
}

/// What a finding is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Subject {
    /// A metadata block.
    Block(MetaBlock),
    /// A position in the log.
    Log(Lsn),
    /// An inode.
    Inode(Ino),
    /// A chunk of directory content.
    Chunk(DirNo),
    /// A data block.
    Data(PagId, PagBlock),
    /// A client.
    Client(ClientId),
    /// A setting.
    Setting(u32),
    /// The file system as a whole.
    Whole,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Block(block) => write!(f, "metadata block {block}"),
            Subject::Log(lsn) => write!(f, "log position {lsn}"),
            Subject::Inode(ino) => write!(f, "inode {ino}"),
            Subject::Chunk(chunk) => write!(f, "chunk {chunk}"),
            Subject::Data(pag, block) => write!(f, "data zone {pag}, block {block}"),
            Subject::Client(client) => write!(f, "client {client}"),
            Subject::Setting(key) => write!(f, "setting {key}"),
            Subject::Whole => f.write_str("file system"),
        }
    }
}

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Its kind.
    pub kind: ProblemKind,
    /// What it is about.
    pub subject: Subject,
    /// What exactly is wrong.
    pub detail: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.kind.text())?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}
