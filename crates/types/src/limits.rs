//! Every limit of the system, with the relations between them.

use crate::Duration;

/// Bytes of a block, everywhere.
pub const BLOCK: usize = 4096;
/// [`BLOCK`] as a 64-bit count.
pub const BLOCK_U64: u64 = BLOCK as u64;
/// log2 of [`BLOCK`].
pub const BLOCK_SHIFT: u32 = 12;
/// Longest name of a directory entry, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// Longest name of an extended attribute, in bytes, prefix included.
pub const XATTR_NAME_MAX: usize = 255;
/// Longest value of an extended attribute, in bytes.
pub const XATTR_VALUE_MAX: usize = 65_536;
/// Most bytes of names and values of one inode's extended attributes.
pub const XATTR_TOTAL_MAX: usize = 65_536;
/// Bytes of extended attributes that fit in a slot; larger sets are stored outside it.
pub const SLOT_XATTRS_MAX: usize = 160;
/// Bytes of the length fields of one name and value in a slot.
pub const XATTR_LENGTHS: usize = 5;
/// Hard links to one file.
pub const LINK_MAX: u32 = 65_000;
/// Largest file: 8 EiB minus one byte.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// Largest FUSE request payload.
pub const IO_MAX: usize = 1 << 20;
/// Bytes of inline data: the tail of the largest slot.
pub const CONTENT_MAX: usize = 3928;
/// Edits of one commit that carry inline data; a client never needs more than the newest.
pub const CONTENTS_MAX: usize = 4;
/// Largest frame of the wire protocol, header included.
pub const FRAME_MAX: usize = 4 << 20;
/// Operations in one compound request.
pub const COMPOUND_OPS_MAX: usize = 64;
/// Ordinary request slots of one connection.
pub const SLOTS: u16 = 64;
/// Reserved slots of one connection, for requests that complete a recall.
pub const RESERVED_SLOTS: u16 = 64;
/// Edits of layouts in one commit of one inode.
pub const COMMIT_EDITS_MAX: usize = 512;
/// Segments in one reply.
pub const REPLY_SEGMENTS_MAX: usize = 4096;
/// Entries in one readdir reply.
pub const READDIR_MAX: usize = 4096;
/// Supplementary groups of a principal.
pub const GROUPS_MAX: usize = 65_536;
/// Data zones (PAGs) of one file system.
pub const PAGS_MAX: usize = 1024;
/// Leases that one server keeps; beyond it the server recalls the coldest.
pub const LEASES_MAX: usize = 4 << 20;
/// Blocks of one granted range of a file: what the largest request touches, and some around it.
pub const RANGE_BLOCKS_MAX: u64 = 1024;
/// Ranges granted in one answer.
pub const RANGES_AHEAD_MAX: usize = 16;
/// Ranges of one file that one client holds; beyond it the client takes the right to the whole.
pub const RANGES_MAX: usize = 16_384;
/// Ranges that all clients of a server hold together; beyond it the server grants none.
pub const RANGES_TOTAL_MAX: usize = 1 << 20;
/// Ranges in one message by which a client reclaims them from a restarted server.
pub const RECLAIM_RANGES_MAX: usize = 65_536;
/// Blocks of one space grant: 16 MiB.
pub const GRANT_BLOCKS: u64 = (16 << 20) / BLOCK_U64;
/// Runs of pool blocks in one operation that returns them.
pub const RETURN_RUNS_MAX: usize = 64;
/// Pieces of a file in one operation that has places chosen for them, and runs in its answer.
pub const PLACE_PIECES_MAX: usize = 16;
/// Dirty bytes that a client holds before its writers wait.
pub const DIRTY_MAX: usize = 256 << 20;
/// Uncommitted requests that a client keeps for replay, those in flight included. From half of that
/// on it asks for a commit; at the limit it waits.
pub const REPLAY_MAX: usize = 65_536;
/// Bytes of such requests.
pub const REPLAY_BYTES_MAX: usize = 128 << 20;
/// Sessions of one server.
pub const SESSIONS_MAX: usize = 32_000;
/// Connections of one server whose handshake is in progress; beyond it, it closes the oldest.
pub const HALF_OPEN_MAX: usize = 8192;
/// How long a handshake may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an eviction waits for a data device to flush what the client wrote there in place.
pub const EVICTION_FLUSH: Duration = Duration::from_secs(5);
/// Threads that serve one mount.
pub const EXECUTORS_MAX: usize = 64;

const _: () = assert!(BLOCK == 1 << BLOCK_SHIFT);
const _: () = assert!(IO_MAX + 65_536 <= FRAME_MAX, "a frame holds the largest request");
const _: () = assert!(XATTR_VALUE_MAX <= XATTR_TOTAL_MAX);
const _: () = assert!(COMMIT_EDITS_MAX * 64 <= FRAME_MAX / 2);
const _: () = assert!(COMPOUND_OPS_MAX * CONTENTS_MAX * (CONTENT_MAX + 64) <= FRAME_MAX / 4);
const _: () = assert!(CONTENT_MAX < BLOCK);
const _: () = assert!(
    RESERVED_SLOTS as usize * FRAME_MAX / 4 <= REPLAY_BYTES_MAX / 2,
    "all reserved slots together do not fill half of the list: commits go on while others wait"
);
const _: () = assert!(RANGES_MAX <= RECLAIM_RANGES_MAX && RECLAIM_RANGES_MAX * 2 * 17 <= FRAME_MAX);
const _: () =
    assert!(RANGE_BLOCKS_MAX < REPLY_SEGMENTS_MAX as u64, "a range's layout fits a reply");
const _: () = assert!(IO_MAX as u64 / BLOCK_U64 < RANGE_BLOCKS_MAX);
const _: () = assert!(REPLY_SEGMENTS_MAX * 48 <= FRAME_MAX);
