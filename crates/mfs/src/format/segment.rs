//! Segments of file layouts: in the tail of a slot, and in the tree of segments.
//!
//! Invariants: a segment is never empty, its ends do not overflow, and it lies
//! above block 0 of its PAG (the label).
//!
//! A segment in a slot, 24 bytes (002 §2.2: offset 64, length 48, address 80):
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | file | first file block |
//! | 8 | 6 | length and state | length in the low 46 bits, state in the high 2: 0 written, 1 unwritten |
//! | 14 | 2 | pag | |
//! | 16 | 8 | addr | first block inside the PAG |
//!
//! In the tree of segments the key is ⟨ino, file⟩ (big-endian, 16 bytes), the value
//! the last 16 bytes of a segment.

use types::{FileBlock, Ino, PagBlock, PagId, Segment, SegmentState};

use engine::format::block::{get_u16, get_u64, put_u16, put_u64};

/// Bytes of a segment in a slot.
pub const SEGMENT: usize = 24;
/// Bytes of a key of the tree of segments.
pub const SEGMENT_KEY: usize = 16;
/// Bytes of a value of the tree of segments.
pub const SEGMENT_VALUE: usize = 16;

const LEN_BITS: u32 = 46;

/// A segment's bytes.
pub fn encode_segment(segment: &Segment) -> [u8; SEGMENT] {
    debug_assert!(segment.len > 0 && segment.len < 1 << LEN_BITS);
    let mut out = [0; SEGMENT];
    put_u64(&mut out, 0, segment.file.0);
    let word = segment.len | (segment.state as u64) << LEN_BITS;
    out[8..14].copy_from_slice(&word.to_le_bytes()[..6]);
    put_u16(&mut out, 14, segment.pag.0);
    put_u64(&mut out, 16, segment.addr.0);
    out
}

/// Decodes the first 24 of `bytes`; `None` if they are no valid segment.
pub fn decode_segment(bytes: &[u8]) -> Option<Segment> {
    if bytes.len() < SEGMENT {
        return None;
    }
    let mut word = [0; 8];
    word[..6].copy_from_slice(&bytes[8..14]);
    let word = u64::from_le_bytes(word);
    let segment = Segment {
        file: FileBlock(get_u64(bytes, 0)),
        len: word & ((1 << LEN_BITS) - 1),
        pag: PagId(get_u16(bytes, 14)),
        addr: PagBlock(get_u64(bytes, 16)),
        state: match word >> LEN_BITS {
            0 => SegmentState::Written,
            1 => SegmentState::Unwritten,
            _ => return None,
        },
    };
    let sound = segment.len > 0
        && segment.addr.0 > 0
        && segment.file.0.checked_add(segment.len).is_some()
        && segment.addr.0.checked_add(segment.len).is_some();
    sound.then_some(segment)
}

/// Key of the tree of segments.
pub fn segment_key(ino: Ino, file: u64) -> [u8; SEGMENT_KEY] {
    let mut out = [0; SEGMENT_KEY];
    out[..8].copy_from_slice(&ino.0.to_be_bytes());
    out[8..].copy_from_slice(&file.to_be_bytes());
    out
}

/// The inode in a key of the tree of segments.
pub fn ino_of_key(key: &[u8; SEGMENT_KEY]) -> Ino {
    let (ino, _) = key.split_at(8);
    Ino(u64::from_be_bytes(ino.try_into().expect("eight bytes")))
}

/// Value of the tree of segments.
pub fn segment_value(segment: &Segment) -> [u8; SEGMENT_VALUE] {
    let mut out = [0; SEGMENT_VALUE];
    out.copy_from_slice(&encode_segment(segment)[8..]);
    out
}

/// Inode and segment of an item of the tree of segments.
pub fn decode_item(key: &[u8; SEGMENT_KEY], value: &[u8; SEGMENT_VALUE]) -> Option<(Ino, Segment)> {
    let (ino, file) = key.split_at(8);
    let ino = u64::from_be_bytes(ino.try_into().ok()?);
    let file = u64::from_be_bytes(file.try_into().ok()?);
    let mut segment = [0; SEGMENT];
    put_u64(&mut segment, 0, file);
    segment[8..].copy_from_slice(value);
    Some((Ino(ino), decode_segment(&segment)?))
}

/// The part of a segment after block 0 of its file; `None` if there is none.
pub(crate) fn behind_block_0(segment: &Segment) -> Option<Segment> {
    if segment.file.0 > 0 {
        return Some(*segment);
    }
    let (file, addr) = (FileBlock(1), PagBlock(segment.addr.0.saturating_add(1)));
    (segment.len > 1).then(|| Segment { file, addr, len: segment.len - 1, ..*segment })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_round_trip_in_both_encodings_at_their_limits() {
        let segment = Segment {
            file: FileBlock(u64::MAX - (1 << 46)),
            len: (1 << 46) - 1,
            pag: PagId(u16::MAX),
            addr: PagBlock(1),
            state: SegmentState::Unwritten,
        };
        assert_eq!(decode_segment(&encode_segment(&segment)), Some(segment));
        let key = segment_key(Ino(5), segment.file.0);
        assert_eq!(decode_item(&key, &segment_value(&segment)), Some((Ino(5), segment)));
    }

    #[test]
    fn invalid_segments_are_refused() {
        let good = Segment {
            file: FileBlock(1),
            len: 1,
            pag: PagId(0),
            addr: PagBlock(1),
            state: SegmentState::Written,
        };
        let mut bytes = encode_segment(&good);
        bytes[13] = 0xc0;
        assert_eq!(decode_segment(&bytes), None, "unknown state");
        let mut bytes = encode_segment(&good);
        bytes[8] = 0;
        assert_eq!(decode_segment(&bytes), None, "empty");
        let mut bytes = encode_segment(&good);
        bytes[16] = 0;
        assert_eq!(decode_segment(&bytes), None, "block 0 is the label");
        let mut bytes = encode_segment(&good);
        bytes[..8].fill(0xff);
        assert_eq!(decode_segment(&bytes), None, "past the end of all files");
        assert_eq!(decode_segment(&bytes[..20]), None);
    }
}
