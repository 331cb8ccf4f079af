//! Differences between two versions of a block, encoded as runs of new bytes.
//!
//! Invariants:
//! - a difference never includes the header;
//! - applying the runs to the old body gives the new body;
//! - decoding is total: a run outside the body is an error.
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 2 | offset | offset of the bytes in the block, 32 or more |
//! | 2 | 2 | length | 1 or more; offset and length are at most 4096 together |
//! | 4 | length | bytes | |

use types::limits::BLOCK;

use crate::format::block::{Block, HEADER, get_u16, get_u64};

/// A run ends before an equal word: fewer equal bytes cost less inside a run than a new run
/// costs.
const WORD: usize = 8;
const STRIDE: usize = 32;
/// Most of a block is equal, so the first comparison takes few, long steps.
const LEAP: usize = 512;

/// Appends the runs by which `new` differs from `old` (`None`: from zeros) to `out`:
/// offset u16, length u16, bytes. Returns how many there are.
pub fn encode(old: Option<&Block>, new: &Block, out: &mut Vec<u8>) -> u16 {
    static ZEROS: Block = [0; BLOCK];
    let old = old.unwrap_or(&ZEROS);
    let mut runs = 0;
    let mut at = HEADER;
    while let Some(start) = first_difference(old, new, at) {
        let end = end_of_run(old, new, start);
        let len = (end - start) as u16;
        out.extend_from_slice(&(start as u16).to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&new[start..end]);
        runs += 1;
        at = end.next_multiple_of(WORD);
    }
    runs
}

fn first_difference(old: &Block, new: &Block, from: usize) -> Option<usize> {
    let leap = first_step(old, new, from, LEAP)?;
    let mut at = first_step(old, new, leap, STRIDE)?;
    while difference(old, new, at) == 0 {
        at += WORD;
    }
    Some(at + difference(old, new, at).trailing_zeros() as usize / 8)
}

/// The first aligned piece of `step` bytes with a difference (the piece at `from` may be shorter).
fn first_step(old: &Block, new: &Block, from: usize, step: usize) -> Option<usize> {
    let mut at = from;
    while at < BLOCK {
        let end = at + step - at % step;
        if old[at..end] != new[at..end] {
            return Some(at);
        }
        at = end;
    }
    None
}

/// The end of the run that starts at `start`: one past its last differing byte.
fn end_of_run(old: &Block, new: &Block, start: usize) -> usize {
    let mut at = start - start % WORD;
    let mut last = difference(old, new, at);
    while at + WORD < BLOCK {
        let next = difference(old, new, at + WORD);
        if next == 0 {
            break;
        }
        last = next;
        at += WORD;
    }
    at + WORD - last.leading_zeros() as usize / 8
}

/// The bits in which the word at `at` differs; `at` is a multiple of [`WORD`].
fn difference(old: &Block, new: &Block, at: usize) -> u64 {
    get_u64(old, at) ^ get_u64(new, at)
}

/// Applies `runs` runs from the front of `bytes` to `block`; returns what follows them.
///
/// # Errors
/// The runs are malformed; `block` may have changed.
pub fn apply<'a>(block: &mut Block, runs: u16, bytes: &'a [u8]) -> Result<&'a [u8], &'static str> {
    let mut rest = bytes;
    for _ in 0..runs {
        let (start, data, after) = split_run(rest)?;
        block[start..start + data.len()].copy_from_slice(data);
        rest = after;
    }
    Ok(rest)
}

/// Checks `runs` runs at the front of `bytes`; returns what follows them.
///
/// # Errors
/// The runs are malformed.
pub fn skip(runs: u16, bytes: &[u8]) -> Result<&[u8], &'static str> {
    let mut rest = bytes;
    for _ in 0..runs {
        rest = split_run(rest)?.2;
    }
    Ok(rest)
}

fn split_run(bytes: &[u8]) -> Result<(usize, &[u8], &[u8]), &'static str> {
    if bytes.len() < 4 {
        return Err("a run is cut off");
    }
    let (start, len) = (usize::from(get_u16(bytes, 0)), usize::from(get_u16(bytes, 2)));
    if start < HEADER || len == 0 || start + len > BLOCK {
        return Err("a run lies outside its block");
    }
    if bytes.len() < 4 + len {
        return Err("a run is cut off");
    }
    Ok((start, &bytes[4..4 + len], &bytes[4 + len..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }
    }

    fn check(old: &Block, new: &Block) -> usize {
        let mut out = Vec::new();
        let runs = encode(Some(old), new, &mut out);
        let mut copy = *old;
        assert_eq!(apply(&mut copy, runs, &out), Ok(&[][..]));
        assert_eq!(skip(runs, &out), Ok(&[][..]));
        assert_eq!(copy[HEADER..], new[HEADER..]);
        out.len()
    }

    #[test]
    fn diff_of_random_changes_restores_the_new_block() {
        let mut random = Random(7);
        for round in 0..2000 {
            let mut old = [0; BLOCK];
            for byte in &mut old {
                *byte = random.next() as u8 & 3;
            }
            let mut new = old;
            for _ in 0..round % 40 {
                let at = random.next() as usize % BLOCK;
                let len = (random.next() as usize % 50).min(BLOCK - at);
                let value = random.next() as u8 & 3;
                new[at..at + len].fill(value);
            }
            check(&old, &new);
        }
    }

    #[test]
    fn diff_of_equal_bodies_has_no_runs() {
        let mut new = [7; BLOCK];
        assert_eq!(check(&[7; BLOCK], &new), 0);
        new[..HEADER].fill(1);
        assert_eq!(check(&[7; BLOCK], &new), 0);
    }

    #[test]
    fn diff_of_a_small_change_is_small() {
        let mut new = [7; BLOCK];
        new[1000] = 8;
        new[1010..1030].fill(9);
        assert!(check(&[7; BLOCK], &new) <= 8 + 1 + 20 + 9);
        new[HEADER] = 1;
        new[BLOCK - 1] = 1;
        check(&[7; BLOCK], &new);
    }

    #[test]
    fn runs_of_any_bytes_decode_without_a_panic() {
        let mut random = Random(9);
        for _ in 0..20_000 {
            let len = random.next() as usize % 64;
            let bytes: Vec<u8> =
                (0..len).map(|_| random.next() as u8 & random.next() as u8).collect();
            let runs = random.next() as u16 % 8;
            let mut block = [0; BLOCK];
            let applied = apply(&mut block, runs, &bytes).map(<[u8]>::len);
            assert_eq!(applied, skip(runs, &bytes).map(<[u8]>::len));
        }
    }
}
