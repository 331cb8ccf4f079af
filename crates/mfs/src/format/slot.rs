//! A slot of a directory content block: one inode with its name, small xattrs and first segments,
//! or a name of an inode that lies elsewhere, also on another shard (7.5).
//!
//! Invariants:
//! - a content block is the 32-byte block header and 8 slots of 508 bytes. On a file system with
//!   the feature `slots-1024`, `slots-2048` or `slots-4096` it is of another type and has 4 slots
//!   of 1,016, 2 of 2,032 or 1 of 4,064 bytes. The block of the system's chunk always has 8;
//! - slots are numbered as if each block had 8: numbers for which a block has no slot count as
//!   retired;
//! - `next_reuse` only grows: a number once issued for a slot is never issued again; at 256 the
//!   slot is retired and stays empty until its chunk is freed;
//! - the tail holds, without gaps, the name, the inline xattrs, and then one of four. These are
//!   the target of a short symlink, the file's *lowest* segments, sorted, the content of its block
//!   0, or the object record of a file that lies in objects;
//! - a file with an object record (feature `object-files`) has no segment and no content anywhere,
//!   and its blocks are 0 (a stat shows its size in blocks). The record has the number of the
//!   object 8, the blocks of a stripe unit 8, the number of targets 1, and their data zones 2 each:
//!   1 to 32 of them, each once. It always fits beside a name: xattrs give way to it. With the
//!   feature `followed-objects` the number of the object may be another shard's, from which the
//!   file came with it;
//! - no segment maps block 0 of a file with content in its slot or in a blob; the block is zero
//!   after the content. Content is not empty, not longer than the file and not longer than 3,928
//!   bytes, in a slot or in a blob. If a file has both content and a segment for block 0, the
//!   content counts: it has a checksum;
//! - a regular file with layout blocks (8.1) has a first one, and a second only if segments lie in
//!   both; they lie below block 2^32 of the metadata zone;
//! - a directory's fragmentation count (fragments) is a sum over the regular files whose slots lie
//!   in it: of each file's segments one sixteenth, rounded down. A file of 15 segments adds none,
//!   one of 47 adds two. The orphan directory counts none, nor does any directory without the
//!   feature `layout-blocks`;
//! - repair clears flags that are damage. These are unknown flags, and two of those of content and
//!   of an object record at once. Flags of content, layout blocks or an object record are damage
//!   without the feature for them, and on an inode that is no regular file;
//! - new files of a spread directory go to the shards that their names choose. The flag is for
//!   directories, and needs the feature `shards`;
//! - a link has only state, kind, name, number and `next_reuse`;
//! - a slot carries no checksum: it is never copied without its block, whose header has one.
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 1 | state | 0 empty, 1 inode, 2 link (a further name of `ino`, or one on another shard than it) |
//! | 1 | 1 | kind | of the inode: 1 regular file, 2 directory, 3 symlink, 4 character device, 5 block device, 6 named pipe, 7 socket |
//! | 2 | 2 | next_reuse | reuse number of the next inode born here; 256 = retired |
//! | 4 | 1 | name_len | 0: an inode without a name here (in the orphan directory) |
//! | 5 | 1 | flags | 1 xattrs in a blob, 2 symlink target in a blob, 4 content of block 0 in the tail, 8 in a blob, 16 layout blocks, 32 an object record in the tail, 64 a spread directory |
//! | 6 | 2 | xattr_len | bytes of xattrs in the tail |
//! | 8 | 8 | ino | number of the inode (or of the link's inode) |
//! | 16 | 2 | mode | permission, set-id and sticky bits: 12 |
//! | 18 | 2 | rest_len | bytes of segments, symlink target, content or object record in the tail |
//! | 20 | 4 | nlink | as a stat tells it; 0: an orphan |
//! | 24 | 4 | uid | |
//! | 28 | 4 | gid | |
//! | 32 | 4 | rdev | of a device, as Linux encodes it; of a directory: its stream (7.4); with flag 16 the first layout block |
//! | 36 | 16 | nanos | of atime, mtime, ctime, btime, 4 bytes each |
//! | 52 | 4 | names | of a directory with a name map: names in it; with flag 16 the second layout block, 0 none; else 0 |
//! | 56 | 8 | size | bytes; of a directory those of its content blocks |
//! | 64 | 8 | blocks | data blocks of all segments (a stat tells one more if content lies with the inode, and the size of an object file); of a directory: content blocks 4, fragments 4 |
//! | 72 | 32 | seconds | since 1970, signed; of atime, mtime, ctime, btime, 8 bytes each |
//! | 104 | 8 | version | |
//! | 112 | 8 | xattrs | first block of the xattr blob, 0 none |
//! | 120 | 8 | body | regular: segments that are not in the tail; symlink: first block of the target's blob; directory: its first `DirNo`, 0 as long as it has no content |
//! | 128 | 8 | map | first `DirNo` of a directory's name map; of a regular file with that flag the first block of the blob with its content; 0 none |
//! | 136 | 372 | tail | name, xattrs (section 9), segments, target, content or object record; of larger slots 880, 1,896 or 3,928 bytes |

mod object;
mod repair;

use types::limits::{BLOCK, BLOCK_U64, CONTENT_MAX};
use types::{Attr, FileKind, Ino, MetaBlock, Segment, Timestamp};

use super::layout::BLOCKS_MAX;
use super::namespace::Stream;
use super::number::DIRNO_MAX;
use super::segment::{SEGMENT, decode_segment, encode_segment};
pub use super::slot_size::SlotSize;
use engine::format::blob::{BlobKind, BlobOwner};
use engine::format::block::{HEADER, get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};

/// Bytes of an ordinary slot.
pub const SLOT: usize = 508;
/// Slot numbers of a content block; with larger slots fewer are in use ([`SlotSize::per_block`]).
pub const SLOTS_PER_BLOCK: u32 = 8;
/// Bytes of a slot's fixed fields.
pub const FIXED: usize = 136;
/// Bytes of an ordinary slot's tail.
pub const TAIL: usize = SLOT - FIXED;
/// `next_reuse` of a slot that is never used again.
pub const RETIRED: u16 = 256;

const _: () = assert!(HEADER + SLOT * SLOTS_PER_BLOCK as usize == BLOCK);
const _: () = assert!(TAIL >= types::limits::NAME_MAX + 4 * SEGMENT);

const FLAG_XATTR_BLOB: u8 = 1;
const FLAG_TARGET_BLOB: u8 = 2;
const FLAG_CONTENT: u8 = 4;
const FLAG_CONTENT_BLOB: u8 = 8;
const FLAG_LAYOUT: u8 = 16;
const FLAG_OBJECT: u8 = 32;
const FLAG_SPREAD: u8 = 64;
const FLAGS: u8 = FLAG_XATTR_BLOB
    | FLAG_TARGET_BLOB
    | FLAG_CONTENT
    | FLAG_CONTENT_BLOB
    | FLAG_LAYOUT
    | FLAG_OBJECT
    | FLAG_SPREAD;

/// Segments that a directory counts as one fragment.
pub const FRAGMENT: u64 = 16;
/// Layout blocks lie below this block: a slot has four bytes for the number of one.
pub const LAYOUT_END: u64 = 1 << 32;

/// The bytes of slot `index` in a content block; `None` if the block has fewer slots.
pub(crate) fn slot_range(block: &[u8; BLOCK], index: u32) -> Option<std::ops::Range<usize>> {
    let slots = SlotSize::of(block).per_block();
    let len = (BLOCK - HEADER) / slots as usize;
    let at = HEADER + len * index as usize;
    (index < slots).then_some(at..at + len)
}

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotState {
    /// Nothing.
    Empty,
    /// An inode, with its name unless it is in the orphan directory.
    Inode,
    /// A further name of an inode that lies elsewhere.
    Link,
}

/// The bytes of one slot, copied out of its block.
#[derive(Clone, PartialEq, Eq)]
pub struct Slot(Bytes);

/// Ordinary slots are many, so they are kept without an allocation.
#[derive(Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "the large variant is meant to be stored inline")]
enum Bytes {
    Ordinary([u8; SLOT]),
    Large(Box<[u8]>),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Ordinary(bytes) => bytes,
            Bytes::Large(bytes) => bytes,
        }
    }
}

impl std::ops::DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Bytes::Ordinary(bytes) => bytes,
            Bytes::Large(bytes) => bytes,
        }
    }
}

impl Default for Slot {
    fn default() -> Slot {
        Slot(Bytes::Ordinary([0; SLOT]))
    }
}

impl Slot {
    /// Slot `index` (below 8) of a content block; a retired one if the block has no slot of that
    /// number. [`Slot::check`] checks what it holds.
    pub fn load(block: &[u8; BLOCK], index: u32) -> Slot {
        let Some(place) = slot_range(block, index) else {
            let mut none = Slot::default();
            none.set_next_reuse(RETIRED);
            return none;
        };
        if place.len() != SLOT {
            return Slot(Bytes::Large(block[place].into()));
        }
        let mut bytes = [0; SLOT];
        bytes.copy_from_slice(&block[place]);
        Slot(Bytes::Ordinary(bytes))
    }

    /// Does slot `index` of a content block hold the inode `ino`?
    pub fn holds_at(block: &[u8; BLOCK], index: u32, ino: Ino) -> bool {
        let at = slot_range(block, index).map(|place| place.start);
        at.is_some_and(|at| block[at] == 1 && get_u64(block, at + 8) == ino.0)
    }

    /// Is slot `index` of a content block used under this name?
    pub fn named_at(block: &[u8; BLOCK], index: u32, name: &[u8]) -> bool {
        let Some(at) = slot_range(block, index).map(|place| place.start) else { return false };
        let tail = at + FIXED;
        matches!(block[at], 1 | 2)
            && usize::from(block[at + 4]) == name.len()
            && &block[tail..tail + name.len()] == name
    }

    /// Writes it to slot `index` of a content block. If the block has no slot of that number this
    /// does nothing, and the slot must be empty.
    pub fn store(&self, block: &mut [u8; BLOCK], index: u32) {
        let Some(place) = slot_range(block, index) else {
            assert!(self.state() == SlotState::Empty, "a content block has no slot of this number");
            return;
        };
        let len = place.len().min(self.0.len());
        assert!(
            FIXED + self.name_len() + self.xattr_len() + self.rest_len() <= len || self.0[0] == 0
        );
        let (head, unused) = block[place].split_at_mut(len);
        head.copy_from_slice(&self.0[..len]);
        unused.fill(0);
    }

    /// Is it well-formed? All other methods are safe on any bytes, but their results mean something
    /// only for a slot that passed.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.next_reuse() > RETIRED {
            return Err("slot: reuse number above 256");
        }
        match self.0[0] {
            0 => return Ok(()),
            1 | 2 => {}
            _ => return Err("slot: unknown state"),
        }
        if FileKind::from_u8(self.0[1]).is_none() {
            return Err("slot: unknown kind");
        }
        if self.ino() == Ino::NONE {
            return Err("slot: no inode number");
        }
        if self.name_len() + self.xattr_len() + self.rest_len() > self.room() {
            return Err("slot: the tail overflows");
        }
        if self.0[0] == 2 && self.name_len() == 0 {
            return Err("slot: a link without a name");
        }
        let mapped = self.map() != 0;
        if self.map() > DIRNO_MAX || self.names() != 0 && !mapped {
            return Err("slot: a bad name map");
        }
        if mapped && (self.0[0] != 1 || self.kind() != FileKind::Directory) {
            return Err("slot: a name map on an inode that is no directory");
        }
        if self.0[5] & !FLAGS != 0 {
            return Err("slot: unknown flags");
        }
        if self.is_spread() && (self.0[0] != 1 || self.kind() != FileKind::Directory) {
            return Err("slot: spread, and no directory");
        }
        self.check_layout_blocks()?;
        let content = self.0[5] & (FLAG_CONTENT | FLAG_CONTENT_BLOB);
        if content != 0 && (self.0[0] != 1 || self.kind() != FileKind::Regular) {
            return Err("slot: content on an inode that is no regular file");
        }
        if content == FLAG_CONTENT | FLAG_CONTENT_BLOB {
            return Err("slot: content in two places");
        }
        if content == FLAG_CONTENT && !(1..=CONTENT_MAX).contains(&self.rest_len()) {
            return Err("slot: content of an impossible length");
        }
        if self.0[5] & FLAG_OBJECT != 0 {
            return self.check_object();
        }
        if self.kind() == FileKind::Regular && content != FLAG_CONTENT {
            self.check_segments()?;
        }
        Ok(())
    }

    /// Are the fields that lead to layout blocks valid?
    fn check_layout_blocks(&self) -> Result<(), &'static str> {
        if self.0[5] & FLAG_LAYOUT == 0 {
            return Ok(());
        }
        if self.0[0] != 1 || self.kind() != FileKind::Regular {
            return Err("slot: layout blocks on an inode that is no regular file");
        }
        let (first, second) = (get_u32(&self.0, 32), get_u32(&self.0, 52));
        let used = self.body() >= BLOCKS_MAX as u64;
        if first == 0 || first == second || second != 0 && !used {
            return Err("slot: impossible layout blocks");
        }
        Ok(())
    }

    /// Are the bytes after name and xattrs valid segments?
    fn check_segments(&self) -> Result<(), &'static str> {
        if !self.rest_len().is_multiple_of(SEGMENT) {
            return Err("slot: segments are cut");
        }
        let mut end = 0;
        for segment in self.payload().chunks_exact(SEGMENT) {
            let segment = decode_segment(segment).ok_or("slot: a bad segment")?;
            if segment.file.0 < end {
                return Err("slot: segments out of order");
            }
            end = segment.end();
        }
        Ok(())
    }

    /// What it holds.
    pub fn state(&self) -> SlotState {
        match self.0[0] {
            1 => SlotState::Inode,
            2 => SlotState::Link,
            _ => SlotState::Empty,
        }
    }

    /// Type of the inode; `Regular` if the bytes are no known type.
    pub fn kind(&self) -> FileKind {
        FileKind::from_u8(self.0[1]).unwrap_or(FileKind::Regular)
    }

    /// The reuse number of the next inode created here.
    pub fn next_reuse(&self) -> u16 {
        get_u16(&self.0, 2)
    }

    /// Sets [`Slot::next_reuse`].
    pub fn set_next_reuse(&mut self, value: u16) {
        put_u16(&mut self.0, 2, value);
    }

    /// The number of its inode, or of the inode that its link names.
    pub fn ino(&self) -> Ino {
        Ino(get_u64(&self.0, 8))
    }

    /// Does it hold the inode `ino`?
    pub fn holds(&self, ino: Ino) -> bool {
        self.state() == SlotState::Inode && self.ino() == ino
    }

    /// Empties it; the reuse number stays.
    pub fn clear(&mut self) {
        let next = self.next_reuse();
        self.0.fill(0);
        self.set_next_reuse(next);
    }

    /// Makes it a further name of `ino`; the reuse number stays.
    pub fn set_link(&mut self, name: &[u8], ino: Ino, kind: FileKind) {
        self.clear();
        self.0[0] = 2;
        self.0[1] = kind as u8;
        self.0[4] = name.len() as u8;
        put_u64(&mut self.0, 8, ino.0);
        self.0[FIXED..FIXED + name.len()].copy_from_slice(name);
    }

    /// Makes it an inode without xattrs, segments or target; the reuse number stays.
    pub fn set_inode(&mut self, name: &[u8], attr: &Attr) {
        self.clear();
        self.0[0] = 1;
        self.0[4] = name.len() as u8;
        self.0[FIXED..FIXED + name.len()].copy_from_slice(name);
        self.set_attr(attr);
    }

    /// Takes over the inode of `from`, and keeps its own reuse number.
    pub fn adopt(&mut self, from: &Slot) {
        let next = self.next_reuse();
        self.0 = from.0.clone();
        self.set_next_reuse(next);
    }

    /// Bytes of the tail.
    fn room(&self) -> usize {
        self.0.len() - FIXED
    }

    fn name_len(&self) -> usize {
        usize::from(self.0[4])
    }

    fn xattr_len(&self) -> usize {
        usize::from(get_u16(&self.0, 6))
    }

    fn rest_len(&self) -> usize {
        usize::from(get_u16(&self.0, 18))
    }

    fn tail(&self, from: usize, len: usize) -> &[u8] {
        self.0[FIXED..].get(from..from + len).unwrap_or(&[])
    }

    /// Its name; empty for an inode in the orphan directory.
    pub fn name(&self) -> &[u8] {
        self.tail(0, self.name_len())
    }

    /// The xattrs of the tail, encoded.
    pub fn xattrs(&self) -> &[u8] {
        self.tail(self.name_len(), self.xattr_len())
    }

    /// Segments, symlink target, content or object record in the tail, encoded, as `rest_len` says.
    pub fn payload(&self) -> &[u8] {
        self.tail(self.name_len() + self.xattr_len(), self.rest_len())
    }

    /// Room in the tail for segments, target or content, with a name of `name_len` bytes and the
    /// present xattrs.
    pub fn payload_room(&self, name_len: usize) -> usize {
        self.room().saturating_sub(name_len + self.xattr_len())
    }

    /// Bytes of the tail that neither the name nor the payload uses.
    pub fn xattr_room(&self) -> usize {
        self.room().saturating_sub(self.name_len() + self.rest_len())
    }

    /// Replaces the whole tail. The caller ensures that it fits.
    pub fn set_tail(&mut self, name: &[u8], xattrs: &[u8], payload: &[u8]) {
        let len = name.len() + xattrs.len() + payload.len();
        assert!(
            len <= self.room() && name.len() <= types::limits::NAME_MAX,
            "the tail of a slot overflows"
        );
        let tail = &mut self.0[FIXED..];
        tail[..name.len()].copy_from_slice(name);
        tail[name.len()..name.len() + xattrs.len()].copy_from_slice(xattrs);
        tail[name.len() + xattrs.len()..len].copy_from_slice(payload);
        tail[len..].fill(0);
        self.0[4] = name.len() as u8;
        put_u16(&mut self.0, 6, xattrs.len() as u16);
        put_u16(&mut self.0, 18, payload.len() as u16);
    }

    /// Changes the name; xattrs and payload stay, and everything must fit.
    pub fn set_name(&mut self, name: &[u8]) {
        let (xattrs, payload) = (self.xattrs().to_vec(), self.payload().to_vec());
        self.set_tail(name, &xattrs, &payload);
    }

    /// Changes the inline xattrs; name and payload stay, and everything must fit.
    pub fn set_xattrs(&mut self, xattrs: &[u8]) {
        let (name, payload) = (self.name().to_vec(), self.payload().to_vec());
        self.set_tail(&name, xattrs, &payload);
    }

    /// Changes the payload; name and xattrs stay, and everything must fit.
    pub fn set_payload(&mut self, payload: &[u8]) {
        let (name, xattrs) = (self.name().to_vec(), self.xattrs().to_vec());
        self.set_tail(&name, &xattrs, payload);
    }

    /// First blocks and owners of its blobs.
    pub fn blobs(&self) -> Vec<(MetaBlock, BlobOwner)> {
        let all = [
            (self.xattr_blob(), BlobKind::Xattrs),
            (self.target_blob(), BlobKind::Target),
            (self.content_blob(), BlobKind::Content),
        ];
        let each =
            |(first, kind): (Option<u64>, _)| Some((MetaBlock(first?), self.blob_owner(kind)));
        all.into_iter().filter_map(each).collect()
    }

    /// The owner that a blob of this inode carries.
    pub fn blob_owner(&self, kind: BlobKind) -> BlobOwner {
        BlobOwner::inode(self.ino(), kind)
    }

    /// First block of the xattr blob, if there is one.
    pub fn xattr_blob(&self) -> Option<u64> {
        (self.0[5] & FLAG_XATTR_BLOB != 0).then(|| get_u64(&self.0, 112))
    }

    /// Sets or clears [`Slot::xattr_blob`].
    pub fn set_xattr_blob(&mut self, block: Option<u64>) {
        self.flag(FLAG_XATTR_BLOB, block.is_some());
        put_u64(&mut self.0, 112, block.unwrap_or(0));
    }

    /// First block of the blob with a long symlink target, if there is one.
    pub fn target_blob(&self) -> Option<u64> {
        (self.0[5] & FLAG_TARGET_BLOB != 0).then(|| get_u64(&self.0, 120))
    }

    /// Sets or clears [`Slot::target_blob`].
    pub fn set_target_blob(&mut self, block: Option<u64>) {
        self.flag(FLAG_TARGET_BLOB, block.is_some());
        put_u64(&mut self.0, 120, block.unwrap_or(0));
    }

    /// Is the content of block 0 in the tail or in a blob?
    pub fn has_content(&self) -> bool {
        self.0[5] & (FLAG_CONTENT | FLAG_CONTENT_BLOB) != 0
    }

    /// The content of block 0, if it is in the tail.
    pub fn content(&self) -> Option<&[u8]> {
        (self.0[5] & FLAG_CONTENT != 0).then(|| self.payload())
    }

    /// First block of the blob with the content of block 0, if there is one.
    pub fn content_blob(&self) -> Option<u64> {
        (self.0[5] & FLAG_CONTENT_BLOB != 0).then(|| get_u64(&self.0, 128))
    }

    /// Puts the content of block 0 into the tail, where it must fit and no segment may be.
    pub fn set_content(&mut self, content: &[u8]) {
        self.clear_content();
        self.flag(FLAG_CONTENT, true);
        self.set_payload(content);
    }

    /// Sets the first block of the blob with the content of block 0.
    pub fn set_content_blob(&mut self, block: u64) {
        self.clear_content();
        self.flag(FLAG_CONTENT_BLOB, true);
        put_u64(&mut self.0, 128, block);
    }

    /// Removes content and its flags from the slot.
    pub fn clear_content(&mut self) {
        if self.content().is_some() {
            self.set_payload(b"");
        }
        if self.content_blob().is_some() {
            put_u64(&mut self.0, 128, 0);
        }
        self.flag(FLAG_CONTENT | FLAG_CONTENT_BLOB, false);
    }

    fn flag(&mut self, flag: u8, on: bool) {
        if on {
            self.0[5] |= flag;
        } else {
            self.0[5] &= !flag;
        }
    }

    /// Layout blocks of a regular file, in order. If all segments are in the slot, the block is not
    /// in use.
    pub fn layout_blocks(&self) -> Vec<MetaBlock> {
        layout_words(&self.0).into_iter().flatten().collect()
    }

    /// The layout blocks of the file in slot `index` of a content block; none if the block has no
    /// such slot or the file has none.
    pub fn layout_blocks_at(block: &[u8; BLOCK], index: u32) -> [Option<MetaBlock>; BLOCKS_MAX] {
        slot_range(block, index).map_or([None; BLOCKS_MAX], |place| layout_words(&block[place]))
    }

    /// Sets [`Slot::layout_blocks`]: at most [`BLOCKS_MAX`], all below [`LAYOUT_END`].
    pub fn set_layout_blocks(&mut self, blocks: &[MetaBlock]) {
        assert!(blocks.len() <= BLOCKS_MAX && blocks.iter().all(|block| block.0 < LAYOUT_END));
        let word = |at: usize| blocks.get(at).map_or(0, |block| block.0 as u32);
        if !blocks.is_empty() || self.0[5] & FLAG_LAYOUT != 0 {
            put_u32(&mut self.0, 32, word(0));
            put_u32(&mut self.0, 52, word(1));
        }
        self.flag(FLAG_LAYOUT, !blocks.is_empty());
    }

    /// Are new files of the directory spread over the shards?
    pub fn is_spread(&self) -> bool {
        self.0[5] & FLAG_SPREAD != 0
    }

    /// The fragmentation count of a directory.
    pub fn fragments(&self) -> u32 {
        if self.kind() == FileKind::Directory { get_u32(&self.0, 68) } else { 0 }
    }

    /// The fragmentation count of the directory in slot `index` of a content block.
    pub fn fragments_at(block: &[u8; BLOCK], index: u32) -> u32 {
        slot_range(block, index).map_or(0, |place| get_u32(&block[place], 68))
    }

    /// Sets the fragmentation count of a directory.
    pub fn set_fragments(&mut self, value: u32) {
        put_u32(&mut self.0, 68, value);
    }

    /// What a regular file adds to the fragmentation count of its directory.
    pub fn own_fragments(&self) -> u32 {
        if self.state() != SlotState::Inode || self.kind() != FileKind::Regular {
            return 0;
        }
        let bytes = self.content().is_some() || self.has_object();
        let tail = if bytes { 0 } else { self.rest_len() / SEGMENT };
        fragments_of(self.body().saturating_add(tail as u64))
    }

    /// How many segments of a regular file are outside the tail; of a directory the first `DirNo`
    /// (0: no content yet).
    pub fn body(&self) -> u64 {
        get_u64(&self.0, 120)
    }

    /// Sets [`Slot::body`].
    pub fn set_body(&mut self, value: u64) {
        put_u64(&mut self.0, 120, value);
    }

    /// First `DirNo` of a directory's name map; 0 without one.
    pub fn map(&self) -> u64 {
        if self.content_blob().is_some() {
            return 0;
        }
        get_u64(&self.0, 128)
    }

    /// Sets [`Slot::map`].
    pub fn set_map(&mut self, value: u64) {
        put_u64(&mut self.0, 128, value);
    }

    /// The stream that created the directory.
    pub fn stream(&self) -> Stream {
        Stream::from_number(get_u32(&self.0, 32))
    }

    /// Sets [`Slot::stream`].
    pub fn set_stream(&mut self, stream: Stream) {
        put_u32(&mut self.0, 32, stream.number());
    }

    /// Names in the directory's name map.
    pub fn names(&self) -> u32 {
        if self.0[5] & FLAG_LAYOUT != 0 {
            return 0;
        }
        get_u32(&self.0, 52)
    }

    /// Sets [`Slot::names`].
    pub fn set_names(&mut self, value: u32) {
        put_u32(&mut self.0, 52, value);
    }

    /// The segments of the tail.
    pub fn segments(&self) -> Vec<Segment> {
        if self.kind() != FileKind::Regular || self.content().is_some() || self.has_object() {
            return Vec::new();
        }
        self.payload().chunks_exact(SEGMENT).filter_map(decode_segment).collect()
    }

    /// Replaces the segments of the tail, which must fit.
    pub fn set_segments(&mut self, segments: &[Segment]) {
        let mut bytes = Vec::with_capacity(segments.len() * SEGMENT);
        if self.content().is_some() || self.has_object() {
            assert!(segments.is_empty(), "segments in a slot with content or an object record");
            return;
        }
        for segment in segments {
            bytes.extend_from_slice(&encode_segment(segment));
        }
        self.set_payload(&bytes);
    }

    /// How many segments fit beside a name of `name_len` bytes.
    pub fn segment_room(&self, name_len: usize) -> usize {
        if self.content().is_some() || self.has_object() {
            return 0;
        }
        self.payload_room(name_len) / SEGMENT
    }

    /// Allocated blocks.
    pub fn blocks(&self) -> u64 {
        match self.kind() {
            FileKind::Directory => get_u32(&self.0, 64).into(),
            _ => get_u64(&self.0, 64),
        }
    }

    /// Sets [`Slot::blocks`]. A directory has fewer than 2^32.
    pub fn set_blocks(&mut self, value: u64) {
        match self.kind() {
            FileKind::Directory => put_u32(&mut self.0, 64, value as u32),
            _ => put_u64(&mut self.0, 64, value),
        }
    }

    /// Sets the size in bytes.
    pub fn set_size(&mut self, value: u64) {
        put_u64(&mut self.0, 56, value);
    }

    /// Hard links.
    pub fn nlink(&self) -> u32 {
        get_u32(&self.0, 20)
    }

    /// The attributes of the inode.
    pub fn attr(&self) -> Attr {
        let time = |index: usize| Timestamp {
            seconds: get_u64(&self.0, 72 + 8 * index) as i64,
            nanos: get_u32(&self.0, 36 + 4 * index),
        };
        Attr {
            ino: self.ino(),
            kind: self.kind(),
            mode: get_u16(&self.0, 16),
            nlink: self.nlink(),
            uid: get_u32(&self.0, 24),
            gid: get_u32(&self.0, 28),
            rdev: if has_rdev(self.kind()) { get_u32(&self.0, 32) } else { 0 },
            size: get_u64(&self.0, 56),
            blocks: self.blocks(),
            atime: time(0),
            mtime: time(1),
            ctime: time(2),
            btime: time(3),
            spread: self.is_spread(),
            version: get_u64(&self.0, 104),
        }
    }

    /// The attributes as stat shows them: content in the slot or a blob counts as one block,
    /// because some programs take a file without blocks for a single hole. So does each block of
    /// the size of an object file: only its targets know which of them are holes.
    pub fn stat_attr(&self) -> Attr {
        let attr = self.attr();
        if self.has_object() {
            return Attr { blocks: attr.size.div_ceil(BLOCK_U64), ..attr };
        }
        Attr { blocks: attr.blocks.saturating_add(u64::from(self.has_content())), ..attr }
    }

    /// Replaces the attributes, number and kind included.
    pub fn set_attr(&mut self, attr: &Attr) {
        self.0[1] = attr.kind as u8;
        self.flag(FLAG_SPREAD, attr.spread && attr.kind == FileKind::Directory);
        put_u64(&mut self.0, 8, attr.ino.0);
        put_u16(&mut self.0, 16, attr.mode);
        put_u32(&mut self.0, 20, attr.nlink);
        put_u32(&mut self.0, 24, attr.uid);
        put_u32(&mut self.0, 28, attr.gid);
        if has_rdev(attr.kind) {
            put_u32(&mut self.0, 32, attr.rdev);
        }
        put_u64(&mut self.0, 56, attr.size);
        self.set_blocks(attr.blocks);
        for (index, time) in [attr.atime, attr.mtime, attr.ctime, attr.btime].iter().enumerate() {
            put_u64(&mut self.0, 72 + 8 * index, time.seconds as u64);
            put_u32(&mut self.0, 36 + 4 * index, time.nanos);
        }
        put_u64(&mut self.0, 104, attr.version);
    }
}

/// Does an inode of this type have a device number? Directories and regular files use the field for
/// something else.
fn has_rdev(kind: FileKind) -> bool {
    !matches!(kind, FileKind::Directory | FileKind::Regular)
}

/// What a file of so many segments adds to the fragmentation count of its directory.
fn fragments_of(segments: u64) -> u32 {
    u32::try_from(segments / FRAGMENT).unwrap_or(u32::MAX)
}

/// The layout blocks in the fields of a slot.
fn layout_words(slot: &[u8]) -> [Option<MetaBlock>; BLOCKS_MAX] {
    let word = |at| Some(MetaBlock(get_u32(slot, at).into())).filter(|block| block.0 != 0);
    match slot[0] == 1 && slot[5] & FLAG_LAYOUT != 0 {
        true => [word(32), word(52)],
        false => [None; BLOCKS_MAX],
    }
}

#[cfg(test)]
mod tests;
