//! Layout blocks: segments of a file that outgrew its slot, in up to two blocks of the metadata
//! zone beside its inode.
//!
//! Invariants, on a file system with the feature `layout-blocks`:
//! - a regular file has no layout block, a first one, or a first and a second. Its slot leads to
//!   them (7.2). A block belongs to one file, whose number it carries;
//! - a file whose segments all lie in its slot has at most a first block. The file got it when it
//!   was created and has not used it: the block is allocated, not initialised, and never read;
//! - else every block of the file holds at least one segment. All segments of the slot lie before
//!   all of the first block, those before all of the second, and those before all of the segment
//!   tree;
//! - the segments of one block have no order and no gaps, so that adding or removing one changes
//!   few bytes.
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 32 | header | block header, type layout |
//! | 32 | 8 | ino | the file |
//! | 40 | 2 | count | segments, 1 to 168 |
//! | 42 | 22 | reserved | zero |
//! | 64 | 168 × 24 | segments | as in a slot |

use types::limits::BLOCK;
use types::{Ino, Segment};

use super::segment::{SEGMENT, decode_segment, encode_segment};
use engine::format::block::{Block, HEADER, get_u16, get_u64, put_u16, put_u64};

/// Most segments of a block.
pub const CAPACITY: usize = 168;
/// Most layout blocks of a file.
pub const BLOCKS_MAX: usize = 2;

const OWNER: usize = HEADER;
const COUNT: usize = 40;
const RESERVED: usize = 42;
const FIRST: usize = 64;

const _: () = assert!(FIRST + CAPACITY * SEGMENT == BLOCK);

/// The file that the block belongs to.
pub fn owner(block: &Block) -> Ino {
    Ino(get_u64(block, OWNER))
}

/// The segments in the block of `ino`, in the order of the block.
///
/// # Errors
/// Says which field is invalid.
pub fn segments(block: &Block, ino: Ino) -> Result<Vec<Segment>, &'static str> {
    if owner(block) != ino {
        return Err("layout block: it belongs to another file");
    }
    let count = usize::from(get_u16(block, COUNT));
    if !(1..=CAPACITY).contains(&count) {
        return Err("layout block: an impossible number of segments");
    }
    if block[RESERVED..FIRST].iter().any(|&byte| byte != 0) {
        return Err("layout block: reserved bytes are not zero");
    }
    let bytes = &block[FIRST..FIRST + count * SEGMENT];
    let all: Option<Vec<Segment>> = bytes.chunks_exact(SEGMENT).map(decode_segment).collect();
    all.ok_or("layout block: a bad segment")
}

/// Writes `wanted`, which is sorted and fits, as the segments of the block of `ino`, whose segments
/// are `there`. A segment that stays moves only to fill a gap.
pub fn put(block: &mut Block, ino: Ino, there: &[Segment], wanted: &[Segment]) {
    assert!((1..=CAPACITY).contains(&wanted.len()), "segments that a layout block cannot hold");
    put_u64(block, OWNER, ino.0);
    put_u16(block, COUNT, wanted.len() as u16);
    for (at, segment) in arranged(there, wanted).iter().enumerate() {
        let at = FIRST + at * SEGMENT;
        block[at..at + SEGMENT].copy_from_slice(&encode_segment(segment));
    }
    block[FIRST + wanted.len() * SEGMENT..].fill(0);
}

/// Orders the sorted segments of `wanted` so that the fewest places of a block with the segments
/// `there` change.
fn arranged(there: &[Segment], wanted: &[Segment]) -> Vec<Segment> {
    let find = |segment: &Segment| wanted.binary_search_by_key(&segment.file, |e| e.file).ok();
    let mut stays = vec![false; wanted.len()];
    let mut places: Vec<Option<Segment>> = Vec::with_capacity(wanted.len());
    for (at, segment) in there.iter().enumerate() {
        // A segment beyond the new end moves into a gap.
        let same = find(segment).filter(|&found| at < wanted.len() && wanted[found] == *segment);
        if let Some(found) = same {
            stays[found] = true;
        }
        places.push(same.map(|_| *segment));
    }
    places.resize(wanted.len(), None);
    let mut others =
        wanted.iter().zip(stays).filter(|(_, stays)| !stays).map(|(segment, _)| *segment);
    places
        .into_iter()
        .map(|place| place.or_else(|| others.next()).expect("as many segments as places"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{FileBlock, PagBlock, PagId, SegmentState};

    fn segment(file: u64, addr: u64) -> Segment {
        let state = SegmentState::Written;
        Segment { file: FileBlock(file), len: 1, pag: PagId(1), addr: PagBlock(addr), state }
    }

    fn sorted(mut list: Vec<Segment>) -> Vec<Segment> {
        list.sort_by_key(|segment| segment.file);
        list
    }

    #[test]
    fn layout_block_changes_touch_few_places() {
        let mut seed = 9;
        let mut random = |below: u64| crate::testing::random(&mut seed, below);
        let mut block = [0; BLOCK];
        let (ino, mut list) = (Ino(77), vec![segment(500, 1)]);
        put(&mut block, ino, &[], &list);
        for round in 0..5000 {
            let before = block;
            let there = segments(&block, ino).unwrap();
            let changes = 1 + random(3);
            for _ in 0..changes {
                let new = segment(random(1000), 1 + random(9));
                match list.binary_search_by_key(&new.file, |e| e.file) {
                    Ok(at) if random(2) == 0 => list[at] = new,
                    Ok(at) if list.len() > 1 => drop(list.remove(at)),
                    Err(at) if list.len() < CAPACITY => list.insert(at, new),
                    _ if list.len() > 1 => drop(list.pop()),
                    _ => {}
                }
            }
            put(&mut block, ino, &there, &list);
            assert_eq!(sorted(segments(&block, ino).unwrap()), list, "round {round}");
            let touched = before.iter().zip(&block).filter(|(a, b)| a != b).count();
            assert!(
                touched <= 2 + 2 * changes as usize * SEGMENT,
                "round {round}: {touched} bytes"
            );
        }
    }

    #[test]
    fn invalid_layout_blocks_are_refused() {
        let mut good = [0; BLOCK];
        put(&mut good, Ino(5), &[], &[segment(3, 4), segment(7, 8)]);
        assert_eq!(segments(&good, Ino(5)).unwrap().len(), 2);
        assert!(segments(&good, Ino(6)).is_err(), "of another file");
        for (at, value) in [(COUNT, 0), (COUNT, 169), (COUNT + 1, 1), (RESERVED, 1), (FIRST + 8, 0)]
        {
            let mut bad = good;
            bad[at] = value;
            assert!(segments(&bad, Ino(5)).is_err(), "byte {at} is {value}");
        }
    }

    #[test]
    fn layout_block_decode_of_any_bytes_does_not_panic() {
        let mut seed = 3;
        let mut block = [0; BLOCK];
        for _ in 0..2000 {
            block.fill_with(|| crate::testing::random(&mut seed, 256) as u8);
            block[RESERVED..FIRST].fill(0);
            block[COUNT + 1] = 0;
            let ino = owner(&block);
            let _ = segments(&block, ino);
        }
    }
}
