//! Slots and their inodes, including parts outside the slot: FORMAT.md 7.2, 8, 8.1 and 9.

use crate::Image;
use crate::device::{BLOB, Error, LAYOUT, big, damaged, u16_at, u32_at, u64_at};
use crate::superblock::{INLINE_DATA, LAYOUT_BLOCKS, OBJECT_FILES, SHARDS};
use crate::tree::SEGMENTS;

/// States of a slot in use.
pub const INODE: u8 = 1;
pub const LINK: u8 = 2;
/// Flags of a slot.
const XATTRS_IN_BLOB: u8 = 1;
const TARGET_IN_BLOB: u8 = 2;
const CONTENT_IN_TAIL: u8 = 4;
const CONTENT_IN_BLOB: u8 = 8;
const LAYOUT_BLOCK: u8 = 16;
const OBJECT: u8 = 32;
const SPREAD: u8 = 64;
const FLAGS: u8 = 127;
/// Kinds of blobs, by what they hold of their owner (9).
const XATTRS: u8 = 1;
const TARGET: u8 = 2;
const BLOCK_0: u8 = 3;
pub const DESCRIPTION: u8 = 4;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Regular,
    Directory,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
    Socket,
}

const KINDS: [Kind; 7] = [
    Kind::Regular,
    Kind::Directory,
    Kind::Symlink,
    Kind::CharDevice,
    Kind::BlockDevice,
    Kind::Fifo,
    Kind::Socket,
];

/// Seconds since 1970 and nanoseconds.
pub type Time = (i64, u32);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Segment {
    /// First block in the file.
    pub file: u64,
    pub len: u64,
    pub written: bool,
    pub pag: u16,
    pub addr: u64,
}

/// An inode, independent of its location.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    pub ino: u64,
    pub kind: Kind,
    pub mode: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub size: u64,
    /// Data blocks; for a directory, content blocks.
    pub blocks: u64,
    /// Times of access, of change of content, of change of the inode, and of birth.
    pub times: [Time; 4],
    pub version: u64,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub target: Vec<u8>,
    /// Inline data: the beginning of block 0.
    pub content: Vec<u8>,
    pub segments: Vec<Segment>,
    /// Where the file lies, if that is in an object.
    pub object: Option<Object>,
}

/// An object record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    pub number: u64,
    /// Blocks of a stripe unit.
    pub part: u64,
    pub targets: Vec<u16>,
}

/// A slot in use, as in its block.
#[derive(Clone)]
pub struct Slot {
    pub state: u8,
    pub ino: u64,
    pub name: Vec<u8>,
    /// First chunk of a directory, and of its name map; other inodes use these fields otherwise.
    pub body: u64,
    pub map: u64,
    /// Offset 32: the creator of a directory; the first layout block of a file.
    /// Offset 52: the names of a directory with a name map; the second layout block of a file.
    pub words: [u32; 2],
    /// The fragmentation count of a directory.
    pub fragments: u32,
    flags: u8,
    block: u64,
    xattrs: u64,
    tail_xattrs: Vec<u8>,
    rest: Vec<u8>,
    inode: Inode,
}

impl Slot {
    pub fn decode(bytes: &[u8], block: u64) -> Result<Slot, Error> {
        let kind = KINDS.get(usize::from(bytes[1]).wrapping_sub(1));
        let lengths = [usize::from(bytes[4]), u16_at(bytes, 6).into(), u16_at(bytes, 18).into()];
        let (Some(&kind), INODE | LINK, 0) = (kind, bytes[0], bytes[5] & !FLAGS) else {
            return damaged(block, "a slot of an unknown state or kind, or with unknown flags");
        };
        let mut tail = &bytes[136..];
        if lengths.iter().sum::<usize>() > tail.len() {
            return damaged(block, "a slot is too full");
        }
        let [name, tail_xattrs, rest] = lengths.map(|len| {
            let (part, after) = tail.split_at(len);
            tail = after;
            part.to_vec()
        });
        let inode = Inode {
            ino: u64_at(bytes, 8),
            kind,
            mode: u16_at(bytes, 16),
            nlink: u32_at(bytes, 20),
            uid: u32_at(bytes, 24),
            gid: u32_at(bytes, 28),
            rdev: match kind {
                Kind::CharDevice | Kind::BlockDevice => u32_at(bytes, 32),
                _ => 0,
            },
            size: u64_at(bytes, 56),
            blocks: match kind {
                Kind::Directory => u32_at(bytes, 64).into(),
                _ => u64_at(bytes, 64),
            },
            times: std::array::from_fn(|n| {
                (u64_at(bytes, 72 + 8 * n) as i64, u32_at(bytes, 36 + 4 * n))
            }),
            version: u64_at(bytes, 104),
            xattrs: Vec::new(),
            target: Vec::new(),
            content: Vec::new(),
            segments: Vec::new(),
            object: None,
        };
        Ok(Slot {
            state: bytes[0],
            ino: inode.ino,
            name,
            body: u64_at(bytes, 120),
            map: u64_at(bytes, 128),
            flags: bytes[5],
            block,
            words: [u32_at(bytes, 32), u32_at(bytes, 52)],
            fragments: u32_at(bytes, 68),
            xattrs: u64_at(bytes, 112),
            tail_xattrs,
            rest,
            inode,
        })
    }

    pub fn kind(&self) -> Kind {
        self.inode.kind
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

impl Image {
    /// The whole inode of a slot.
    pub fn inode(&self, slot: &Slot) -> Result<Inode, Error> {
        let mut inode = slot.inode.clone();
        let xattrs = match slot.has(XATTRS_IN_BLOB) {
            true => self.blob(slot.xattrs, slot.ino, XATTRS)?,
            false => slot.tail_xattrs.clone(),
        };
        let Some(xattrs) = xattrs_of(&xattrs) else {
            return damaged(slot.block, "extended attributes are malformed");
        };
        inode.xattrs = xattrs;
        let spread = slot.has(SPREAD);
        if spread && (slot.kind() != Kind::Directory || !self.superblock.has(SHARDS)) {
            return damaged(slot.block, "a spread directory that cannot be");
        }
        match slot.kind() {
            Kind::Regular => self.body(slot, &mut inode)?,
            Kind::Symlink if slot.has(TARGET_IN_BLOB) => {
                inode.target = self.blob(slot.body, slot.ino, TARGET)?;
            }
            Kind::Symlink => inode.target = slot.rest.clone(),
            _ => {}
        }
        Ok(inode)
    }

    /// Reads the inline data of a regular file, and its segments.
    fn body(&self, slot: &Slot, inode: &mut Inode) -> Result<(), Error> {
        let needs = [
            (CONTENT_IN_TAIL | CONTENT_IN_BLOB, INLINE_DATA),
            (LAYOUT_BLOCK, LAYOUT_BLOCKS),
            (OBJECT, OBJECT_FILES),
        ];
        if needs.iter().any(|&(flags, feature)| slot.has(flags) && !self.superblock.has(feature)) {
            return damaged(slot.block, "a flag without its feature");
        }
        let mut in_tail = &slot.rest[..];
        if slot.has(OBJECT) {
            // It is alone: no content, and no segment anywhere.
            let alone = !slot.has(CONTENT_IN_TAIL | CONTENT_IN_BLOB) && slot.body == 0;
            inode.object = object_of(std::mem::take(&mut in_tail)).filter(|_| alone);
            if inode.object.is_none() {
                return damaged(slot.block, "an object record is malformed");
            }
        }
        if slot.has(CONTENT_IN_BLOB) {
            inode.content = self.blob(slot.map, slot.ino, BLOCK_0)?;
        } else if slot.has(CONTENT_IN_TAIL) {
            inode.content = std::mem::take(&mut in_tail).to_vec();
        }
        inode.segments = in_tail.chunks_exact(24).map(segment_of).collect();
        // The word `body` counts the segments beyond the slot: in layout blocks (8.1), then in the
        // segment tree (8).
        let all = slot.body.saturating_add(inode.segments.len() as u64);
        if slot.has(LAYOUT_BLOCK) && slot.body > 0 {
            for word in slot.words.into_iter().filter(|&word| word != 0) {
                self.layout_block(u64::from(word), slot.ino, &mut inode.segments)?;
            }
        }
        if (inode.segments.len() as u64) < all {
            let key = |file: u64| [slot.ino.to_be_bytes(), file.to_be_bytes()].concat();
            for (key, value) in self.range(&SEGMENTS, &key(0), &key(u64::MAX))? {
                let file = big(&key[8..]).to_le_bytes();
                inode.segments.push(segment_of(&[&file[..], &value].concat()));
            }
        }
        inode.segments.sort();
        let apart = |pair: &[Segment]| pair[0].file.saturating_add(pair[0].len) <= pair[1].file;
        if inode.segments.len() as u64 != all || !inode.segments.windows(2).all(apart) {
            return damaged(slot.block, "a file's segments do not add up");
        }
        Ok(())
    }

    fn layout_block(&self, block: u64, ino: u64, out: &mut Vec<Segment>) -> Result<(), Error> {
        let data = self.device.read(block, LAYOUT)?;
        let count = usize::from(u16_at(&data[..], 40));
        if u64_at(&data[..], 32) != ino || !(1..=168).contains(&count) {
            return damaged(block, "a layout block of another file");
        }
        out.extend(data[64..].chunks_exact(24).take(count).map(segment_of));
        Ok(())
    }

    /// The bytes of a blob (9), which must have this owner and kind.
    pub fn blob(&self, first: u64, owner: u64, what: u8) -> Result<Vec<u8>, Error> {
        let (mut out, mut block, mut total) = (Vec::new(), first, 0);
        let begin = 64;
        let mut index = 0;
        while block != 0 {
            let data = self.device.read(block, BLOB)?;
            let said = (u64_at(&data[..], 48), data[56], u32_at(&data[..], 60));
            if said != (owner, what, index) {
                return damaged(block, "of another blob");
            }
            index += 1;
            let len = u32_at(&data[..], 44) as usize;
            if block == first {
                total = u32_at(&data[..], 40) as usize;
            }
            // A chain with blocks that add nothing could have a cycle.
            if len == 0 || len > data.len() - begin || out.len() + len > total {
                return damaged(block, "a blob has another length");
            }
            out.extend_from_slice(&data[begin..begin + len]);
            block = u64_at(&data[..], 32);
        }
        if out.len() != total { damaged(first, "a blob is cut off") } else { Ok(out) }
    }
}

/// 24 bytes of a slot or a layout block (8).
fn segment_of(bytes: &[u8]) -> Segment {
    let word = u64_at(bytes, 8);
    Segment {
        file: u64_at(bytes, 0),
        len: word & ((1 << 46) - 1),
        written: word >> 46 & 3 == 0,
        pag: (word >> 48) as u16,
        addr: u64_at(bytes, 16),
    }
}

/// Object 8, blocks of a unit 8, number of targets 1, targets 2 each (7.2).
fn object_of(bytes: &[u8]) -> Option<Object> {
    let (head, rest) = bytes.split_at_checked(17)?;
    let targets: Vec<u16> = rest.chunks_exact(2).map(|target| u16_at(target, 0)).collect();
    let fits = rest.len() == 2 * usize::from(head[16]) && (1..=32).contains(&targets.len());
    let object = Object { number: u64_at(head, 0), part: u64_at(head, 8), targets };
    (fits && object.number != 0 && object.part != 0).then_some(object)
}

/// ⟨name length 1, value length 4, name, value⟩, until the end (9).
fn xattrs_of(mut bytes: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(5)?;
        let (name, rest) = rest.split_at_checked(usize::from(head[0]))?;
        let (value, rest) = rest.split_at_checked(u32_at(head, 1) as usize)?;
        out.push((name.to_vec(), value.to_vec()));
        bytes = rest;
    }
    Some(out)
}
