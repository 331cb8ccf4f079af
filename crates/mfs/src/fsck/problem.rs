//! The catalogue of findings. docs/FSCK.md has its table.

use std::fmt;

use types::{ClientId, DirNo, Ino, Lsn, MetaBlock, PagBlock, PagId};

/// What a finding puts at risk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Space or a number is lost; no file is.
    Warning,
    /// A file, a name or a guarantee is damaged.
    Error,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $severity:ident, $text:literal, $repair:literal;)*) => {
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

            /// What repair does about it.
            pub fn repair(self) -> &'static str {
                match self { $(ProblemKind::$name => $repair,)* }
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
    DamagedBlock = Error, "a metadata block is damaged",
        "the log's newest version of it is put back; else a tree is built from what is left of it, and what only this block held is lost, which is said; of the list of quarantines: every client counts as evicted; of that of frozen files: all files count as frozen for evicted clients; the table of data zones is built from the labels of their devices";
    /// The label is damaged; the superblock is not.
    DamagedLabel = Warning, "a copy of the label is damaged, or both; the other copy or the superblock says what it said",
        "it is written anew, from its other copy or the superblock";
    /// The log ends in something that is no log.
    DamagedLog = Error, "the log is damaged",
        "nothing: what was acknowledged is lost, and only a backup has it";
    /// A copy of the header of the journal is damaged, or its label; the rest is not.
    DamagedJournal = Warning, "a copy of the journal's header is damaged, or its label; the rest says what it said",
        "both are written anew";
    /// A data device has no whole label, neither in its first block nor in its last.
    DamagedDataLabel = Error, "a data device has no label that could be read; nobody can mount",
        "if the device's UUID is still in a copy, or --relabel names the zone, it is written anew from the table of data zones; else nothing, as it may be the device of something else";
    /// One of the two copies of a data device's label is damaged, or older than the other.
    DamagedDataLabelCopy = Warning, "one copy of a data device's label is damaged or older; the other one is used",
        "it is written anew from the whole copy";
    /// The UUID, place or size in the table of data zones differs from the label of the zone's
    /// device.
    WrongZone = Error, "the table of data zones does not say what the label of a zone says",
        "it says so, before anything in the zone is cut or becomes free; where what lies in the zone ends as the table says, and not as the label does, both are left, and all data with them";
    /// The state in a record of the table of data zones is none.
    BadZoneState = Error, "the state of a data zone makes no sense",
        "it becomes `draining`: files keep what they have there, and no blocks are granted until `redbud pag drain --undo`";
    /// Two owners of one metadata block.
    SharedMetaBlock = Error, "a metadata block is used twice",
        "its content says whose it is; the others get a copy, or lose it";
    /// An address outside the device.
    OutsideMetaBlock = Error, "a metadata block lies outside the device",
        "what names it is removed";
    /// In use, but free in the bitmap.
    FreeMetaBlock = Error, "a metadata block in use is marked free",
        "it is marked as allocated, before anything else is done";
    /// Allocated in the bitmap, without an owner.
    LostMetaBlock = Warning, "a metadata block is allocated and nobody's",
        "it becomes free, when nothing else is wrong any more; directory content with inodes that are missing stays";
    /// A descriptor or run that makes no sense, or a directory that does not fit its chunks.
    BadChunk = Error, "the content of a directory does not fit together",
        "runs are put in order and gaps closed with retired slots; a chunk that is missing is found by the inodes in its blocks; else the directory ends before it";
    /// A chunk that no directory has.
    LostChunk = Error, "a chunk of directory content belongs to no directory that is reached",
        "it goes back to its directory; if that is not there, a directory of the same number is made in lost+found, if the number is not known, a new one";
    /// The name map of a large directory and its names disagree.
    BadNameMap = Error, "the name map of a directory is wrong",
        "the map is removed, and made anew from the names when nothing else is wrong";
    /// A directory without an entry in the namespace index.
    UnindexedDirectory = Warning, "a directory is missing in the namespace index",
        "it is entered, with where its content begins";
    /// An entry of the namespace index of no directory, or of one that lies elsewhere.
    StaleIndexEntry = Warning, "the namespace index has a directory where there is none",
        "the entry is removed";
    /// An entry whose place is outside the device.
    BadIndexEntry = Warning, "the namespace index says that a directory begins outside the device",
        "it says where the content begins";
    /// The superblock lacks a feature that is in use.
    MissingFeature = Warning, "the superblock does not name a feature that is in use",
        "it is entered there, so that releases that do not know it leave the device alone";
    /// Content blocks with slots of another size than the features say.
    OtherSlots = Error, "directory slots are not of the size that the superblock says",
        "nothing: every slot is read as it is, and nothing is lost; `redbud dump`, `redbud mkfs --slot` and `redbud load` give all slots one size";
    /// A counter of numbers is below a number that was issued.
    BadCounter = Error, "a counter lags behind the numbers issued",
        "it is raised";
    /// A number that another shard issued, where only this shard's may be.
    ForeignNumber = Error, "a number is of another shard",
        "nothing: what has the number stays, but a list loses what is not there; a backup, or the metadata of the right shard, has what should be here";
    /// A slot that makes no sense.
    BadSlot = Error, "a directory slot makes no sense",
        "flags that mean nothing are cleared; else the slot is emptied and never used again; which inode it held is lost, and said";
    /// An illegal name, or a name where none may be.
    BadName = Error, "a name is not legal",
        "the name becomes #NUMBER; an inode of the orphan directory loses it";
    /// The same name twice in one directory.
    DuplicateName = Error, "a directory has a name twice",
        "the second is renamed: ~NUMBER is put behind it";
    /// A further link to an inode that is not there.
    DanglingName = Error, "a name leads to no inode",
        "the name is removed";
    /// A further link of another type than its inode.
    WrongKind = Error, "a name says another type than its inode",
        "the name takes the type of its inode; a second name of a directory is removed";
    /// One inode number in two slots.
    DuplicateInode = Error, "an inode is in two places",
        "the one that its number leads to stays; the name of the other becomes a link to it";
    /// An inode where neither its number nor the `moved` tree leads.
    MisplacedInode = Error, "an inode is where nothing leads to it",
        "the moved tree is told where it is";
    /// An entry of the `moved` tree that leads nowhere.
    StaleMove = Warning, "a moved inode is not where it should be",
        "the entry is removed";
    /// The number of links is not the number of names.
    WrongLinkCount = Error, "the link count is not the number of names",
        "it is set to the number of names";
    /// An inode that counts links, and no name leads to it.
    UnreachableInode = Error, "no name leads to an inode",
        "it gets the name #NUMBER in lost+found";
    /// The root directory or the orphan directory has no inode.
    MissingSystem = Error, "the root directory or the orphan directory is missing",
        "it is made anew, with the content that names it as its owner";
    /// The list of orphans and the inodes disagree.
    WrongOrphan = Error, "the list of orphans is wrong",
        "the list is set right";
    /// The size of a directory is not that of its content.
    WrongSize = Warning, "the size of a directory is not that of its content",
        "it is set to that of the content";
    /// Extended attributes that make no sense.
    BadXattrs = Error, "extended attributes make no sense",
        "those that lie whole before the damage stay, the others are removed, which is said";
    /// A symlink target that makes no sense.
    BadTarget = Error, "the target of a symlink makes no sense",
        "the size is set to that of the target; a symlink without a target is removed";
    /// Content beside the inode that cannot be read, is too long, of a block that is mapped, or of
    /// a file system without it.
    BadContent = Error, "the content that lies with a file's inode makes no sense",
        "it is cut to the size of the file, and to 3,928 bytes; where it can be read, a segment of its block is removed, else the content; where the superblock lacks the feature, flags of content are cleared, segments stay, and content is removed";
    /// A blob whose recorded owner or kind is not that of the record that leads to it.
    WrongBlob = Error, "a blob is not what something that leads to it says",
        "the log's newest version of the block is put back; else what is missing is taken from the blob that says it is that and that nothing leads to; else it is lost, which is said; whose the blob is keeps it";
    /// A layout block that is not the file's, cannot be one, or does not fit what is before it.
    BadLayoutBlock = Error, "a layout block of a file makes no sense",
        "the file loses it: it has holes where the segments of the block were, which is said, and their data blocks become free; one that is another owner's, too, is copied, if its content is the file's";
    /// The fragments that a directory counts are not those of its files.
    WrongFragmentation = Warning, "a directory counts the segments of its files wrongly",
        "they are counted anew";
    /// An object record that is none, or not alone.
    BadObject = Error, "the object record of a file makes no sense",
        "flags that cannot be are cleared, and what is beside a valid record is removed; a file without a valid record loses it and reads as zeros, which is said";
    /// An object record with a zone that is no object target.
    MissingTarget = Error, "a file lies in an object of a target that is not in the table of data zones",
        "nothing: the file keeps its record, and cannot be read; a backup has the table";
    /// An object of a file in the list of objects to be destroyed.
    DoomedObject = Error, "an object is to be destroyed that is a file's, another shard's or of no target",
        "it leaves the list: nothing is destroyed";
    /// Items of an operation of several shards without a head, or with too few bytes or too many.
    BadIntent = Error, "what is kept of an operation of several shards makes no sense",
        "its items are removed, which is said: whether the operation happens is for the other shards to say";
    /// An entry of names on other shards of no inode, or that cannot be that inode's.
    WrongOutside = Error, "what is kept of an inode's names on other shards makes no sense",
        "it is removed, which is said; a directory that has no other name gets one in lost+found";
    /// An entry of the tree of homes that cannot be.
    BadHome = Error, "what is kept of where a moved directory is makes no sense",
        "it is removed, or says that the directory is here if it is";
    /// Segments out of order, of no file, or not as many as counted.
    BadLayout = Error, "a layout makes no sense",
        "segments that make no sense, overlap or belong to no file are removed, and the others counted";
    /// `blocks` is not the sum of the segments.
    WrongBlockCount = Warning, "the block count of a file is not the sum of its segments",
        "it is set to the sum";
    /// One data block in two layouts.
    SharedDataBlock = Error, "a data block belongs to two files",
        "a segment by which its file maps more than it counts is cut to that; then the file that was changed last keeps the block, at the same time that of the lower number; the other has a hole there";
    /// One data block with two owners, not both files.
    DoubleDataBlock = Error, "a data block has two owners",
        "a file keeps it before space that was given up, that before a pool, that before free space; all but a file lose it to another server, and of that and a file both stay";
    /// A data block outside its zone, or on the label.
    OutsideDataBlock = Error, "a data block lies outside its data zone",
        "what lies outside is taken out: a file has a hole there; a zone that is not in the table is entered, as the label of its device says, and if that is not to be had nothing is done about data; what lies in a zone that never was is removed";
    /// A data block that nobody owns.
    LostDataBlock = Warning, "a data block belongs to nobody",
        "it becomes free; where servers may have lent each other space it stays, as another one may have it";
    /// An entry of the tree of lent space that cannot be.
    BadLoan = Error, "what is kept of data space that servers have lent to each other makes no sense",
        "nothing: no block becomes free of which another server may have files; backups of both servers, of one moment, have what should be here";
    /// The counts of a data zone or of the inodes are wrong.
    WrongCount = Warning, "a count is wrong",
        "it is counted anew";
    /// Neighbouring runs that should be one.
    UnjoinedRuns = Warning, "neighbouring runs of free space are not joined",
        "they are joined";
    /// A pool, a kept reply or a frozen file of an unknown client.
    UnknownClient = Error, "something belongs to a client that does not exist",
        "the client is entered anew and counts as evicted, with all files frozen for it; replies kept for it are dropped";
    /// Only one of the two entries of a frozen file.
    HalfFrozen = Error, "a frozen file is recorded in one order only",
        "the other entry is added";
    /// A client's description, a kept reply or a setting that makes no sense.
    BadRecord = Error, "a record makes no sense",
        "it is removed";
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
