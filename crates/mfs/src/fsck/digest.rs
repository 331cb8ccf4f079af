//! Digests of content blocks, made apart from the rest of the check: on any thread.
//!
//! Invariants:
//! - a [`Digest`] depends only on the blocks of its [`Unit`] and on the superblock: the thread and
//!   the time do not matter;
//! - a slot is *plain* if it holds an ordinary inode, sound, at home and with a legal name. Only
//!   two questions are left: was its number met before, and does the tree of segments also map the
//!   block of its inline data? Plain slots give no findings, so their order does not matter. The
//!   digest has all other slots as they are, in order;
//! - a digest only names a block that is damaged or of another type: the check reads it again and
//!   reports it.

use types::{Attr, DirNo, FileKind, Ino, MetaBlock, Name};

use super::names::Ordinary;
use super::plan::SlotAt;
use super::space::{Owner, Piece};
use crate::format::lmap::{NameMapEntry, hash_of};
use crate::format::number::{SlotPlace, home_of, is_orphan_dir, is_system, reuse_of};
use crate::format::slot::{SLOTS_PER_BLOCK, Slot, SlotSize, SlotState};
use crate::format::slot_size::SlotFeatures;
use crate::format::xattr::decode_xattrs;
use crate::names::{Chunk, Position};
use engine::format::block::{self, Block, BlockType};
use engine::format::features::{Feature, Features};
use engine::format::superblock::Superblock;
use types::limits::CONTENT_MAX;

/// Content blocks of one unit at most.
pub(super) const BATCH: u32 = 64;

/// Content blocks of a chunk that lie together, at most [`BATCH`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unit {
    pub(super) dir: Ino,
    pub(super) chunk: DirNo,
    /// Index of the chunk in its directory.
    position: u32,
    /// Index in the chunk of the first block.
    pub(super) first: u32,
    /// Where that lies.
    pub(super) home: MetaBlock,
    pub(super) len: u32,
}

impl Unit {
    /// The content blocks in use of a chunk, in order.
    pub(super) fn all(dir: Ino, number: DirNo, chunk: &Chunk) -> Vec<Unit> {
        let mut out = Vec::new();
        for run in chunk.runs.iter().filter(|run| run.is_present()) {
            let used = run.len.min(chunk.descriptor.used.saturating_sub(run.first));
            out.extend((0..used).step_by(BATCH as usize).map(|at| Unit {
                dir,
                chunk: number,
                position: position(chunk),
                first: run.first + at,
                home: run.home(run.first + at),
                len: BATCH.min(used - at),
            }));
        }
        out
    }

    /// Where its `n`-th block lies.
    pub(super) fn block(&self, n: u32) -> MetaBlock {
        MetaBlock(self.home.0 + u64::from(n))
    }

    /// One past its last block.
    pub(super) fn end(&self) -> MetaBlock {
        self.block(self.len)
    }

    fn place(&self, n: u32, index: u32) -> SlotPlace {
        SlotPlace { chunk: self.chunk, slot: (self.first + n) * SLOTS_PER_BLOCK + index }
    }
}

/// Index of a chunk in its directory, as names are noted with it.
pub(super) fn position(chunk: &Chunk) -> u32 {
    chunk.descriptor.index & 0xffff
}

/// What the superblock says of content blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    tag: u32,
    slots: SlotSize,
    inline_data: bool,
}

impl Rules {
    pub(super) fn new(superblock: &Superblock) -> Rules {
        let features: Features = superblock.features;
        Rules {
            tag: block::tag_of(superblock.uuid),
            slots: features.slots(),
            inline_data: features.has(Feature::INLINE_DATA),
        }
    }

    /// The bytes read at `address`, if they verify as that block.
    pub(super) fn verified<'a>(&self, bytes: &'a [u8], address: MetaBlock) -> Option<&'a Block> {
        let data = bytes.try_into().ok()?;
        block::verify(data, address, self.tag).is_ok().then_some(data)
    }

    fn content_of(&self, chunk: DirNo) -> BlockType {
        if is_system(chunk) { BlockType::Directory } else { self.slots.kind() }
    }
}

/// A slot or block that the check itself must look at.
pub(super) struct Deferred {
    /// Index in the unit of the block.
    pub(super) block: u32,
    /// `None`: the whole block is damaged, or of another type.
    pub(super) slot: Option<(SlotAt, Slot)>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Digest {
    /// The names of plain slots, sorted.
    pub(super) names: Vec<NameMapEntry>,
    /// The inodes of plain slots: slot, and the two bytes of [`Ordinary`].
    pub(super) ordinary: Vec<(u16, u16)>,
    pub(super) segments: u64,
    pub(super) pieces: Vec<Piece>,
    /// Fragments of the files in plain slots.
    pub(super) fragments: u64,
    /// Inodes of plain slots with inline data, sorted.
    pub(super) contents: Vec<Ino>,
    /// Everything else, in order.
    pub(super) deferred: Vec<Deferred>,
    /// An inode is in another slot of its home chunk: the order may decide, so the check takes all
    /// slots in order.
    pub(super) tangled: bool,
}

/// Makes the digest of a unit's blocks; `None` stands for one that is unreadable or damaged.
pub(super) fn digest<'a>(
    rules: Rules,
    unit: &Unit,
    blocks: impl Iterator<Item = Option<&'a Block>>,
) -> Digest {
    let mut builder = DigestBuilder { rules, unit, out: Digest::default() };
    for (n, block) in (0..unit.len).zip(blocks) {
        builder.block(n, block);
    }
    let mut out = builder.out;
    out.names.sort_unstable();
    out.contents.sort_unstable();
    out
}

struct DigestBuilder<'a> {
    rules: Rules,
    unit: &'a Unit,
    out: Digest,
}

impl DigestBuilder<'_> {
    fn block(&mut self, n: u32, block: Option<&Block>) {
        let kind = self.rules.content_of(self.unit.chunk);
        let Some(block) = block.filter(|block| block::type_of(block) == Some(kind)) else {
            self.out.deferred.push(Deferred { block: n, slot: None });
            return;
        };
        for index in 0..SLOTS_PER_BLOCK {
            let mut slot = Slot::load(block, index);
            let place = self.unit.place(n, index);
            if !self.is_sound(&mut slot) {
                self.keep(n, place, Slot::load(block, index));
            } else if slot.state() != SlotState::Empty && !self.plain(place, &slot) {
                self.keep(n, place, slot);
            }
        }
    }

    /// Is the slot well formed? If not, the copy is changed.
    fn is_sound(&self, slot: &mut Slot) -> bool {
        !slot.clear_unknown_flags()
            && !slot.repair_layout_blocks()
            && slot.repair_object().is_none()
            && slot.repair_content(self.rules.inline_data).is_none()
            && slot.check().is_ok()
    }

    fn keep(&mut self, n: u32, place: SlotPlace, slot: Slot) {
        let home = home_of(slot.ino());
        self.out.tangled |=
            slot.state() == SlotState::Inode && home.chunk == self.unit.chunk && home != place;
        let at = SlotAt { home: self.unit.block(n), place };
        self.out.deferred.push(Deferred { block: n, slot: Some((at, slot)) });
    }

    /// Adds a sound slot to the digest if it is plain; else returns `false`.
    fn plain(&mut self, place: SlotPlace, slot: &Slot) -> bool {
        let hidden = is_orphan_dir(self.unit.dir) || self.unit.dir == Ino::NONE;
        let named = !hidden && Name::new(slot.name()).is_ok();
        let ino = slot.ino();
        let at_home = home_of(ino) == place && u16::from(reuse_of(ino)) < slot.next_reuse();
        if slot.state() != SlotState::Inode || !named || !at_home {
            return false;
        }
        let attr = slot.attr();
        let attributes = slot.xattr_blob().is_none()
            && (slot.xattrs().is_empty() || decode_xattrs(slot.xattrs()).is_some());
        let plain = attributes
            && attr.nlink == 1
            && match attr.kind {
                FileKind::Directory => false,
                FileKind::Regular => self.file(slot, &attr),
                FileKind::Symlink => {
                    let target = slot.payload();
                    let whole = target.len() as u64 == attr.size && !target.is_empty();
                    slot.target_blob().is_none() && whole
                }
                _ => true,
            };
        if plain {
            let at = Position::new(self.unit.position, place.slot).0;
            self.out.names.push(NameMapEntry { hash: hash_of(slot.name()), at });
            self.out.ordinary.push((place.slot as u16, Ordinary::word(ino, attr.kind)));
        }
        plain
    }

    /// Adds the segments of a file, or its inline data, if it has no other content and its block
    /// count is right.
    fn file(&mut self, slot: &Slot, attr: &Attr) -> bool {
        let ino = slot.ino();
        let elsewhere =
            slot.body() != 0 || slot.content_blob().is_some() || !slot.layout_blocks().is_empty();
        let elsewhere = elsewhere || slot.has_object();
        let content = slot.content();
        let fits = content.is_none_or(|content| {
            let len = content.len();
            len > 0 && len as u64 <= attr.size && len <= CONTENT_MAX
        });
        let segments = slot.segments();
        let pieces = segments.iter().map(|segment| Piece::of(segment, Owner::File(ino)).ok());
        let pieces: Option<Vec<Piece>> = pieces.collect();
        let mapped = segments.iter().fold(0, |sum: u64, segment| sum.saturating_add(segment.len));
        let Some(pieces) = pieces.filter(|_| !elsewhere && fits && mapped == attr.blocks) else {
            return false;
        };
        self.out.segments += pieces.len() as u64;
        self.out.pieces.extend(pieces);
        self.out.fragments += u64::from(slot.own_fragments());
        if content.is_some() {
            self.out.contents.push(ino);
        }
        true
    }
}
