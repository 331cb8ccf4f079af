//! Messages between a client and a metadata server.
//!
//! One connection carries frames both ways: the client's [`Hello`] and
//! [`Request`]s and [`PushReply`]s, the server's [`Welcome`] or [`Refused`],
//! [`Reply`]s and [`Push`]es. What they have in common with other servers' is in
//! [`crate::message`]. A request is a compound: its operations run in
//! order, and the first failure ends it; what was done before it stays. Each
//! operation is a transaction of its own, or several. What each is, [`crate::operation`]
//! declares.

use types::{
    Ahead, Attr, BlockRange, ClientId, Epoch, Fault, FileBlock, FileKind, HeldRange, Ino,
    LockOwner, Name, ObjectId, PagBlock, PagId, Rights, Segment, ServerId, Timestamp, Transno,
    Uuid,
};

use crate::capability::Capability;
use crate::message;
pub use crate::message::{
    ADMINISTRATOR, CLIENT, Expected, Hello, METADATA_SERVER, NEW, Principal, RECOVERED, RESUMED,
    Refused,
};
use crate::prealloc::{Behind, Part, Policy};
use crate::wire::{Appended, Bytes, Tagged};
use crate::{wire_enum, wire_struct};

/// Highest version of the protocol that this code speaks.
pub const VERSION: u32 = 14;
/// Lowest version of the protocol that this code speaks.
pub const VERSION_MIN: u32 = 10;

/// From this version on a server takes [`Op::SwapLayouts`], and a placement with
/// [`Op::CreateTmpfile`].
pub const LAYOUT_SWAPS: u32 = 11;

/// From this version on a server takes [`Op::Lend`].
pub const LENDING: u32 = 12;

/// From this version on a server takes [`Op::Where`], [`Op::MoveDirectory`], [`Op::MoveFile`] and
/// [`Op::TakeBack`], and may answer [`Fault::Moved`].
pub const MOVING: u32 = 13;

/// From this version on a server takes files from others whose content lies in objects.
pub const MOVING_OBJECTS: u32 = 14;

/// [`Hello::features`]: the server sends [`Push::Committed`] to a quiet client. A client without it
/// learns what is durable from its next answer, that to a renewal at the latest.
pub const COMMITTED_PUSHES: u64 = 1;

/// [`Hello::features`]: the client names the user of each change with its supplementary groups,
/// even if that costs it time. Agreed with nodes whose rights are squashed, for the server checks
/// their callers itself.
pub const NAMED_CALLERS: u64 = 2;

/// [`Hello::features`]: data zones may be added, and be lost, while the client is there: the server
/// sends it [`Push::Zones`], and it may ask for [`Op::Zones`]. A client without it uses the zones
/// that [`Welcome`] named, and is granted no blocks of others; what lies there it cannot read.
pub const ZONE_PUSHES: u64 = 4;

/// [`Hello::features`]: the namespace may have several metadata servers. The client asks for
/// [`Op::Servers`], and goes to an inode's own server when an answer names it without attributes.
/// A server of such a namespace refuses clients without it.
pub const SHARDS: u64 = 8;

/// [`PagInfo::kind`]: a slice of a device that all clients share.
pub const BLOCK_ZONE: u8 = 0;
/// [`PagInfo::kind`]: an object storage target, which alone opens its device.
pub const TARGET_ZONE: u8 = 1;
/// [`PagInfo::kind`]: a slice of a device that all clients share, of another server, which offers
/// it, too. Some of its blocks that server has lent to this one. The epoch in the device's label is
/// the other server's.
pub const BORROWED_ZONE: u8 = 2;

/// The metadata server, as a session's peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mds;

/// See [`message::Message`].
pub type Message = message::Message<Mds>;
/// See [`message::Welcome`]. It offers the data zones.
pub type Welcome = message::Welcome<Mds>;
/// See [`message::Request`].
pub type Request = message::Request<Mds>;
/// See [`message::Replay`].
pub type Replay = message::Replay<Mds>;
/// See [`message::Reply`].
pub type Reply = message::Reply<Mds>;

wire_struct! {
    /// A data zone as the server knows it.
    pub struct PagInfo {
        /// Its number.
        pub id: PagId,
        /// UUID of its slice.
        pub uuid: Uuid,
        /// UUID of the device that the slice lies on.
        pub device: Uuid,
        /// Blocks, block 0 included, which is not used.
        pub blocks: u64,
        /// [`BLOCK_ZONE`], [`TARGET_ZONE`] or [`BORROWED_ZONE`].
        pub kind: u8,
        /// Of a device its path in the cluster's configuration file, of a target its address.
        pub path: String,
    }

    /// The data zones of a file system.
    #[derive(Default)]
    pub struct ZoneList {
        /// All of them. A zone that was there once stays in the list.
        pub zones: Vec<PagInfo>,
        /// Those whose devices are gone, as the administrator says.
        pub lost: Vec<PagId>,
        /// Those that drain: their blocks go elsewhere or back to the server.
        pub leaving: Vec<PagId>,
    }

    /// A metadata server of the namespace.
    pub struct ServerInfo {
        /// Its number.
        pub server: ServerId,
        /// The shards that it serves.
        pub shards: Vec<u8>,
        /// Where it listens, each as a client would name it.
        pub addresses: Vec<String>,
    }

    /// Names an operation of several shards, for ever: as `commitment::TxnId`.
    #[derive(Copy)]
    pub struct JointId {
        /// The shard that coordinates it.
        pub coordinator: u8,
        /// The epoch in which it began.
        pub epoch: Epoch,
        /// How many had begun before in that epoch.
        pub number: u64,
    }

    /// What one shard says to another of an operation of both (003), as `commitment::Envelope`.
    pub struct Letter {
        /// The shard that says it.
        pub from: u8,
        /// The epoch of that shard's server.
        pub from_epoch: Epoch,
        /// The shard that it is for.
        pub to: u8,
        /// The epoch of that shard's server, as far as the sender knows.
        pub to_epoch: Epoch,
        /// The operation.
        pub id: JointId,
        /// 1 PrN, 2 PrC, 3 EP, 4 1PC.
        pub protocol: u8,
        /// Forced records that had to come before it.
        pub forced: u8,
        /// The same of lazy records.
        pub lazy: u8,
        /// The same of messages that only the protocol needs.
        pub messages: u8,
        /// 1 UPDATE REQ, 2 UPDATED, 3 REFUSED, 4 PREPARE, 5 PREPARED, 6 NOT-PREPARED, 7 COMMIT,
        /// 8 ABORT, 9 ACK, 10 ASK. Of no operation, with `protocol` 0: 11 a question, 12 its
        /// answer, under the question's number in `id`.
        pub message: u8,
        /// With UPDATE REQ: the coordinator has no older operation left than this one.
        pub oldest: Option<JointId>,
        /// What the worker is to do for each operation of the batch, with UPDATE REQ; what it
        /// answers to each, with UPDATED and REFUSED (FORMAT.md 11.1); a question, or its answer.
        pub body: Bytes,
    }

    /// Blocks of a file that need a place.
    pub struct UnplacedPiece {
        /// The first.
        pub block: FileBlock,
        /// Blocks, at least one.
        pub len: u64,
        /// The last blocks in front of it that have a place, of this file.
        pub before: Option<Behind>,
        /// The part of a striped file that all of them lie in.
        pub part: Option<Part>,
    }

    /// Where the content of an object file lies.
    pub struct ObjectLayout {
        /// Its object, which has the same number on each of its targets.
        pub object: ObjectId,
        /// Blocks of a stripe unit.
        pub part: u64,
        /// Its targets, in the order of the units: 1 to [`crate::placement::TARGETS_MAX`].
        pub targets: Vec<PagId>,
        /// What this client may do with the object, for the targets.
        pub may: Capability,
    }

    /// An inode's attributes together with the client's lease on it after the operation.
    pub struct Leased {
        /// Attributes as the server has them.
        pub attr: Attr,
        /// All rights that the client holds on the inode now.
        pub rights: Rights,
        /// Sequence of the lease; raised by every grant and every recall.
        pub seq: u64,
    }

    /// The layout of a range of blocks.
    #[derive(Default)]
    pub struct LayoutSlice {
        /// First block of the range.
        pub from: FileBlock,
        /// One past the last block of the range (`u64::MAX`: to the end of the file and beyond).
        pub to: u64,
        /// The segments there, sorted; everything else is a hole.
        pub segments: Vec<Segment>,
        /// An evicted client may still write blocks of this file: new writes go to fresh blocks.
        pub frozen: bool,
        /// Inline data of block 0, if the range includes it; zeros follow. Empty: there is none.
        pub content: Bytes,
        /// Bytes of inline data that the inode's slot could hold if no other block were mapped; 0:
        /// the client may send none.
        pub inline_max: u32,
        /// Where new blocks go: the file's [`crate::placement::Layout`]. Empty: the default.
        pub placement: Bytes,
        /// The content lies in an object: there are no segments, and no inline data.
        pub object: Option<ObjectLayout>,
    }

    /// An entry of a directory.
    pub struct DirEntry {
        /// Cookie to continue reading after this entry.
        pub cookie: u64,
        /// Its name.
        pub name: Name,
        /// What it names.
        pub ino: Ino,
        /// Its type.
        pub kind: FileKind,
        /// The inode's attributes and lease, if requested.
        pub leased: Option<Leased>,
    }

    /// The attributes of a new inode.
    pub struct NewNode {
        /// Type.
        pub kind: FileKind,
        /// Permission bits, before the umask.
        pub mode: u16,
        /// The caller's umask; not applied where the directory has a default ACL.
        pub umask: u16,
        /// Device number.
        pub rdev: u32,
        /// Target of a symbolic link.
        pub symlink: Bytes,
    }

    /// Explicit changes of attributes. Size is not among them: a truncation is an
    /// edit of the data, done under `DATA_X`.
    pub struct SetAttr {
        /// Permission bits.
        pub mode: Option<u16>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Access time.
        pub atime: Option<SetTime>,
        /// Modification time.
        pub mtime: Option<SetTime>,
        /// Clear set-id bits as a write by an unprivileged caller does.
        pub kill_setid: bool,
        /// The owner of the inode against whom the kernel checked the caller's permission.
        pub judged_by: u32,
    }

    /// Blocks of a data zone.
    pub struct PagRun {
        /// Zone.
        pub pag: PagId,
        /// First block.
        pub addr: PagBlock,
        /// Blocks.
        pub len: u64,
    }

    /// A byte-range or whole-file lock.
    pub struct Lock {
        /// flock (whole file) or POSIX (range).
        pub flock: bool,
        /// Owner, as the client's kernel names it.
        pub owner: LockOwner,
        /// Process, for F_GETLK.
        pub pid: u32,
        /// Exclusive or shared.
        pub exclusive: bool,
        /// First byte.
        pub start: u64,
        /// Last byte, inclusive.
        pub end: u64,
    }

    /// What a holder of `DATA_X` knows better than the server, and a holder of `DATA_P` may.
    pub struct DataAttr {
        /// Size.
        pub size: u64,
        /// Blocks.
        pub blocks: u64,
        /// Modification time.
        pub mtime: Timestamp,
        /// Change time.
        pub ctime: Timestamp,
    }

    /// A lease that a client holds, reported to a restarted server.
    pub struct HeldLease {
        /// Inode.
        pub ino: Ino,
        /// Rights.
        pub rights: Rights,
        /// The client has open handles.
        pub open: bool,
        /// Under `DATA_P`: the ranges held.
        pub ranges: Vec<HeldRange>,
    }

    /// Free and total space.
    pub struct Statfs {
        /// Data blocks.
        pub blocks: u64,
        /// Free data blocks.
        pub blocks_free: u64,
        /// Inodes in use.
        pub inodes: u64,
        /// Estimated number of inodes that can still be created.
        pub inodes_free: u64,
        /// Zones: number, blocks, free blocks. Those of a lost one are 0.
        pub pags: Vec<(PagId, (u64, u64))>,
    }
}

/// A flag of [`Op::Rename`]: the same transaction makes the old name a character device 0:0 of mode
/// 0, the whiteout of overlayfs. Its number differs from RENAME_WHITEOUT (4): old clients without
/// whiteouts passed that on, and servers refuse it.
pub const LEAVE_WHITEOUT: u32 = 8;

wire_enum! {
    /// A new time.
    pub enum SetTime {
        /// The server's clock.
        Now = 1 {},
        /// This time.
        At = 2 { time: Timestamp, },
    }
}

wire_enum! {
    /// A change of a file's layout, applied in order within its commit. The data of
    /// mapped blocks is stable before the commit is sent.
    pub enum Edit {
        /// Blocks of the client's pool become the file's, replacing what was mapped there.
        Map = 1 { segment: Segment, },
        /// The blocks `from..to` of the file become a hole.
        Unmap = 2 { from: FileBlock, to: u64, },
        /// Unwritten blocks of the file now hold data.
        Written = 3 { from: FileBlock, len: u64, },
        /// The inline data of the file: block 0 holds these bytes and zeros behind them. It
        /// replaces what was mapped or stored there, and raises a smaller size to its length.
        /// `Invalid` beyond `CONTENT_MAX` bytes, without the feature `inline-data` of the file
        /// system, and under `DATA_P`.
        Content = 4 { bytes: Bytes, },
    }
}

wire_enum! {
    /// An operation. `want` are rights that the client would like on the inode of the reply. The
    /// server grants those that need no recall, and those of [`Op::Acquire`] always (or fails).
    pub enum Op {
        /// Finds a name. Reply `Entry`.
        Lookup = 1 { dir: Ino as Tagged, name: Name, want: Rights, want_dir: Rights, },
        /// Attributes. Reply `Attr`. Asks the holder of `DATA_X`, or all of `DATA_P` (glimpse).
        GetAttr = 2 { ino: Ino as Tagged, want: Rights, },
        /// Entries after `cookie` (0: from the start), attributes too if `plus`. Reply `Entries`.
        ReadDir = 3 { dir: Ino as Tagged, cookie: u64, max: u32, plus: bool, want: Rights, want_dir: Rights, },
        /// Creates a named inode. Fails `Exists` if the name exists. Reply `Created`.
        Create = 4 { dir: Ino as Tagged, name: Name, node: NewNode, want: Rights, },
        /// Creates a regular file without a name (O_TMPFILE). `placement`: it gets this one and
        /// not that of the directory (version [`LAYOUT_SWAPS`]). Reply `Created`.
        CreateTmpfile = 5 { dir: Ino as Tagged, node: NewNode, want: Rights, placement: Appended<Bytes>, },
        /// A further name. `tmpfile`: it is the first one of an inode that this client created by
        /// `CreateTmpfile`; any other orphan cannot get a name again (`NotFound`). Reply `Linked`.
        Link = 6 { ino: Ino as Tagged, dir: Ino as Tagged, name: Name, tmpfile: bool, },
        /// Removes a name. `unused`: the client has no handle of this inode open and no I/O in
        /// flight. It gives up all rights on the inode if this was the last name and no other
        /// client has the file open. Reply `Removed`.
        Unlink = 7 { dir: Ino as Tagged, name: Name, unused: Option<Ino>, },
        /// Removes an empty directory. Reply `Removed`.
        Rmdir = 8 { dir: Ino as Tagged, name: Name, },
        /// Renames. Flags as renameat2: 1 no replace, 2 exchange; and [`LEAVE_WHITEOUT`]. `unused`
        /// as for `Unlink`, for a replaced file. Reply `Renamed`. If both names lead to one inode,
        /// nothing changes, and `replaced` is `moved` itself.
        Rename = 9 { from: Ino as Tagged, name: Name, to: Ino as Tagged, new_name: Name, flags: u32, unused: Option<Ino>, },
        /// Changes attributes. Reply `Attr`.
        SetAttr = 10 { ino: Ino as Tagged, set: SetAttr, },
        /// An extended attribute. Reply `Bytes`.
        GetXattr = 11 { ino: Ino as Tagged, name: Bytes, want: Rights, },
        /// Sets one; flags as setxattr: 1 create, 2 replace. A POSIX access ACL also sets the mode.
        /// Reply `Attr`.
        SetXattr = 12 { ino: Ino as Tagged, name: Bytes, value: Bytes, flags: u32, kill_setgid: bool, },
        /// The names of all, each terminated by NUL. Reply `Bytes`.
        ListXattr = 13 { ino: Ino as Tagged, want: Rights, },
        /// Removes one. Reply `Attr`.
        RemoveXattr = 14 { ino: Ino as Tagged, name: Bytes, },
        /// Target of a symbolic link. Reply `Bytes`.
        ReadLink = 15 { ino: Ino as Tagged, },
        /// Gets rights, recalling what conflicts, and with a `DATA` right the layout from `from`.
        /// Only a client without a right on the whole content names a `range`. The server may then
        /// grant this range, or a larger one, instead of `DATA_S` or `DATA_X`, and those `ahead` up
        /// to the first that conflicts with another holder. An empty range: `OPEN` alone will do if
        /// others write. Without `range` the server grants the whole right, which replaces all
        /// ranges that the client holds: the client has cleaned them before. Reply `Acquired`.
        Acquire = 16 { ino: Ino as Tagged, rights: Rights, from: FileBlock, range: Option<BlockRange>, ahead: Ahead, },
        /// More of a layout, under a `DATA` right. Reply `Layout`.
        Layout = 17 { ino: Ino as Tagged, from: FileBlock, },
        /// Puts edits, size and times of a file in force, after its data is stable, under `DATA_X`.
        /// `mtime` only if the file was written since its times were last set explicitly. With
        /// `merge` under `DATA_P`: all edits lie in ranges held exclusively, and size and times
        /// take effect if they exceed the current ones. `tail_zero`: the bytes behind the size in
        /// the last block are zero on the device, too. Passes gates. Reply `Attr`, or
        /// `Partial`.
        Commit = 18 { ino: Ino, edits: Vec<Edit>, size: Option<u64>, mtime: Option<Timestamp>, ctime: Option<Timestamp>, merge: bool, tail_zero: bool, },
        /// Blocks for the client's pool, `blocks` wanted, of the zone `hint` if it has any, and of
        /// none of the zones `unreachable`: the client cannot use their devices now, or asks for
        /// files that may not lie there. Durable before the reply. Reply `Space`.
        Space = 19 { hint: Option<PagId>, blocks: u64, unreachable: Vec<PagId>, },
        /// Returns pool blocks, at most `RETURN_RUNS_MAX` runs. It also answers
        /// [`Push::SpaceWanted`], then perhaps without any. Reply `Done`.
        ReturnSpace = 20 { runs: Vec<PagRun>, },
        /// Every earlier operation of this session is durable when it is answered. Reply `Done`.
        Sync = 21 {},
        /// Space. Reply `Statfs`.
        Statfs = 22 {},
        /// Takes a lock. Fails `WouldBlock`; with `wait` the server pushes `LockFree` when asking
        /// again may succeed. Reply `Done`.
        Lock = 23 { ino: Ino, lock: Lock, wait: bool, },
        /// Releases the range of the owner. Reply `Done`.
        Unlock = 24 { ino: Ino, lock: Lock, },
        /// Finds the first conflicting lock. Reply `Locked`.
        TestLock = 25 { ino: Ino, lock: Lock, },
        /// Stops waiting for a lock. Reply `Done`.
        CancelLock = 26 { ino: Ino, lock: Lock, },
        /// Gives up all rights in `give`. After a recall `seq` is the recall's. `still_open`: the
        /// recall asked for `OPEN`, but the client has open handles and returns `OPEN` later.
        /// `range`: of `DATA_P` only these blocks. Passes gates. Reply `Done`, or `StaleReturn`.
        Return = 27 { ino: Ino, seq: u64, give: Rights, still_open: bool, range: Option<BlockRange>, },
        /// Reclaims the rights and locks held before the server's restart. Reply `Done`.
        Reclaim = 28 { leases: Vec<HeldLease>, locks: Vec<(Ino, Lock)>, },
        /// Reclaim and replay are complete. Reply `Done`.
        ReclaimDone = 29 {},
        /// Renews the lease. Reply `Done`.
        Renew = 30 {},
        /// The client leaves; the server frees everything it held. Reply `Done`.
        Goodbye = 31 {},
        /// The server's state as JSON (administrator). Reply `Text`.
        Status = 32 {},
        /// Evicts a client (administrator). Reply `Done`.
        Evict = 33 { client: ClientId, },
        /// Starts a scrub of the metadata device that reads at most `rate` bytes a second (0: no
        /// limit), unless one runs; `None` aborts the running one (administrator). [`Op::Status`]
        /// reports its progress. Reply `Done`.
        Scrub = 34 { rate: Option<u64>, },
        /// Who keeps the client from going on at the inode, or from taking `lock` there, as JSON:
        /// for people. Answered at once. Reply `Text`.
        Why = 35 { ino: Ino, lock: Option<Lock>, },
        /// The data zones as they are now; only with [`ZONE_PUSHES`]. Reply `Zones`.
        Zones = 36 {},
        /// Makes the device at `path`, as this server's host names it, a data zone (administrator).
        /// `overwrite`: also if it has content. `number`: that of the zone, if it is new; else the
        /// server chooses. Reply `Text`: JSON with `added`, or with `refused` and the reason.
        AddZone = 37 { path: String, overwrite: bool, number: Appended<PagId>, },
        /// Sets the state of a data zone: 0 in service, 1 draining, 2 lost, 3 drain paused
        /// (administrator). `only_from`: only if the zone is in one of these states now, at most
        /// four; empty: in any. Durable when it is answered. A zone that drains already: clients
        /// are asked again for its blocks in their pools. Reply `Text`: JSON with `before`; with
        /// `kept`, another state, which the zone keeps; or with `refused` and the reason.
        SetZoneState = 38 { pag: PagId, state: u16, only_from: Vec<u16>, },
        /// Files with blocks `from..to` of a data zone, a part of them (administrator). `at`: where
        /// the last part ended, `next` of its answer; at first zeros. Reply `Text`: JSON with
        /// `files` and `next`, which is null at the end, or with `refused` and the reason. A file
        /// may be in two parts.
        ZoneFiles = 39 { pag: PagId, from: u64, to: u64, at: (u64, u64), },
        /// Blocks for the client's pool that are the places of `pieces` of a file, at most
        /// `PLACE_PIECES_MAX`. `writer`, a handle and a process of the client, wrote them; `None`:
        /// they get no window. The server chooses by `policy`, in the order in which such requests
        /// of all clients arrive. `hint` and `unreachable` as for [`Op::Space`]. Durable before
        /// the reply. Reply `Space`: the runs in the order of the pieces, at most
        /// `PLACE_PIECES_MAX`; they may end before the pieces do.
        Place = 40 { ino: Ino, pieces: Vec<UnplacedPiece>, writer: Option<(u64, u32)>, policy: Policy, hint: Option<PagId>, unreachable: Vec<PagId>, },
        /// The client does not extend the file any more, or not through this handle: the server
        /// gives up what [`Op::Place`] keeps for its next pieces. Reply `Done`.
        EndPlacing = 41 { ino: Ino, handle: Option<u64>, },
        /// The file and `spare`, an inode without a name, exchange their layouts and placements:
        /// segments, inline data, object. One transaction, under `DATA_X` of both, whose content
        /// and size are the same and stable. All else stays with its inode. `Busy` while an
        /// evicted client may still write one of them; `TooBig` if one has too many segments.
        /// Version [`LAYOUT_SWAPS`]. Passes gates. Reply `Attr` of the file.
        SwapLayouts = 42 { ino: Ino, spare: Ino, },
        /// The metadata servers of the namespace, this one included; only with [`SHARDS`]. Reply
        /// `Servers`.
        Servers = 43 {},
        /// What another metadata server says of operations of both, one after the other. Reply
        /// `Done`: they have come. What they ask for is answered by a `Tell` the other way.
        Tell = 44 { letters: Vec<Letter>, },
        /// The metadata server of `shard` wants free blocks of another one's data zones, about
        /// `blocks`, to keep them. `sequence`: 1 for the first loan between the two, and so on; the
        /// last one again gets the same blocks. Any other number is `Invalid`, and `NoSpace` says
        /// that there is nothing to lend. Durable before the reply. Version [`LENDING`]. Reply
        /// `Lent`.
        Lend = 45 { shard: u8, sequence: u32, blocks: u64, },
        /// The shard where the inode lives, as far as the server that is asked knows: its own, the
        /// one where the inode went from here, or that of the inode's birth. Version [`MOVING`].
        /// Reply `Where`.
        Where = 46 { ino: Ino as Tagged, },
        /// Moves the directory and its names to the server of `shard`; the inodes that they lead to
        /// stay where they are. The directory keeps its number. `TooBig` if it has too many names
        /// for one move; `Busy` if the other server does not answer or cannot take part now;
        /// `NotSupported` if one of the two cannot move directories. Version [`MOVING`]. Reply
        /// `Moved`.
        MoveDirectory = 47 { dir: Ino as Tagged, shard: u8, },
        /// Moves a file, symlink or special file, whose only name is `name` in `dir`, to the server
        /// of `shard`, which has that directory. It keeps its number, and its blocks or its object
        /// stay where they are. `WouldBlock` if a client has it open or locked, or an evicted one
        /// may still write it; `TooManyLinks` if it has other names; `NotSupported` if its content
        /// lies in objects, and the other server is older than [`MOVING_OBJECTS`]; `CrossDevice`
        /// if a third server has lent its blocks, or their zone is not in service, or the other
        /// server does not know its targets; `TooBig` if it has too many segments for one move;
        /// `Stale` if the name leads elsewhere. Version [`MOVING`]. Reply `Moved`.
        MoveFile = 48 { ino: Ino as Tagged, dir: Ino as Tagged, name: Name, shard: u8, },
        /// Takes back some of the blocks of a data zone that the server of `shard` has got, and
        /// that are free there: nothing if none are. `at` is the root directory of the server whose
        /// zone it is. `Busy` if the other server does not answer or has just used some; `Invalid`
        /// if the zone is another's; `NotSupported` if one of the two cannot do it. Version
        /// [`MOVING`]. Reply `Done`.
        TakeBack = 49 { at: Ino as Tagged, pag: PagId, shard: u8, },
    }
}

wire_enum! {
    /// The result of an operation.
    pub enum OpReply {
        /// Success without a result.
        Done = 1 {},
        /// The inode that the name leads to, if it exists; the directory with its lease.
        Entry = 2 { entry: Option<Leased>, dir: Leased, },
        /// Attributes with the lease.
        Attr = 3 { leased: Leased, },
        /// Entries; `end`: there are no more.
        Entries = 4 { entries: Vec<DirEntry>, end: bool, dir: Leased, },
        /// A new inode; a `DATA` right implies its (empty) layout, and `inline_max`,
        /// `placement` and `object` are as in [`LayoutSlice`].
        Created = 5 { leased: Leased, dir: Leased, inline_max: u32, placement: Bytes, object: Option<ObjectLayout>, },
        /// The inode and the directory.
        Linked = 6 { leased: Leased, dir: Leased, },
        /// The inode that lost the name: its attributes (nlink 0: it was the last name), the
        /// directory. `kept`: another client has it open, so that no rights were given up.
        Removed = 7 { ino: Ino, attr: Attr, dir: Leased, kept: bool, },
        /// The moved inode, a replaced one (attributes after), both directories. `kept` as in
        /// `Removed`. `whiteout`: the whiteout under the old name.
        Renamed = 8 { moved: Leased, replaced: Option<Attr>, from: Leased, to: Leased, kept: bool, whiteout: Appended<Leased>, },
        /// The client holds the rights; with the layout if they include a `DATA` right. `ranges`:
        /// the ranges held, if not the whole content, the requested one first. `uncontended`: the
        /// server granted no range because no other client used the file recently: the client
        /// should ask for the whole right. `tail_unknown`: the server granted no range because the
        /// bytes behind the size in the last block are not known to be zero.
        Acquired = 9 { leased: Leased, layout: Option<LayoutSlice>, ranges: Vec<HeldRange>, uncontended: bool, tail_unknown: bool, },
        /// The layout of a range.
        Layout = 10 { slice: LayoutSlice, },
        /// Bytes.
        Bytes = 11 { bytes: Bytes, leased: Option<Leased>, },
        /// Granted runs, all of one zone, and how many blocks are free there now.
        Space = 12 { runs: Vec<PagRun>, left: u64, },
        /// Space of the file system.
        Statfs = 13 { statfs: Statfs, },
        /// A conflicting lock, if any.
        Locked = 14 { lock: Option<Lock>, },
        /// Text.
        Text = 15 { text: String, },
        /// The first `done` edits of a commit took effect (one or more), then `fault` stopped it. A
        /// size that grows is set; one that shrinks and the times are not. Ends the compound, as a
        /// failure does.
        Partial = 16 { done: u32, fault: Fault, },
        /// Nothing was given up: the return is older than the grant or recall that raised the
        /// lease's sequence to `seq`.
        StaleReturn = 17 { seq: u64, },
        /// The data zones.
        Zones = 18 { list: ZoneList, },
        /// The metadata servers, in the order of their numbers.
        Servers = 19 { list: Vec<ServerInfo>, },
        /// Blocks of one zone that are the asking server's from now on; `start`: the first block of
        /// the zone on its device.
        Lent = 20 { zone: PagInfo, start: u64, runs: Vec<PagRun>, },
        /// The shard where the inode lives.
        Where = 21 { shard: u8, },
        /// The inode lives at the other server, and already did so if `there`. What the client held
        /// of its former server counts for nothing.
        Moved = 22 { there: bool, },
    }
}

wire_enum! {
    /// What the server sends unasked.
    pub enum Push {
        /// Give up the rights `take` on the inode, as of lease sequence `seq`; of `DATA_P` only
        /// `range`, if given. Answered by [`Op::Return`].
        Recall = 1 { ino: Ino, seq: u64, take: Rights, range: Option<BlockRange>, },
        /// Asks for current size and times. Answered by [`PushReply`].
        Glimpse = 2 { id: u64, ino: Ino, },
        /// A lock that the client waits for may be free now.
        LockFree = 3 { ino: Ino, owner: LockOwner, },
        /// The session is over; what the client had not committed is lost.
        Evicted = 4 { reason: String, },
        /// Everything up to this number is durable. Sent to a quiet client with uncommitted
        /// operations, if [`COMMITTED_PUSHES`] was agreed.
        Committed = 5 { transno: Transno, },
        /// Another client needs space, and there is none: return what you do not need. Answered by
        /// [`Op::ReturnSpace`].
        SpaceWanted = 6 {},
        /// The data zones as they are now. Sent when they change, and after the welcome if some are
        /// lost, to clients with [`ZONE_PUSHES`].
        Zones = 7 { list: ZoneList, },
    }
}

wire_struct! {
    /// The answer to a glimpse; `None`: the client holds neither `DATA_X` nor `DATA_P`.
    pub struct PushReply {
        /// As in the push.
        pub id: u64,
        /// Size and times.
        pub data: Option<DataAttr>,
    }
}

impl NewNode {
    /// An inode that is neither a device nor a symbolic link.
    pub fn plain(kind: FileKind, mode: u16, umask: u16) -> NewNode {
        NewNode { kind, mode, umask, rdev: 0, symlink: Bytes::default() }
    }
}
