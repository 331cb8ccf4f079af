//! A simple compression for golden images, which must be readable for ever: it only replaces
//! repeated bytes.
//!
//! Until the end: the number of literals u16 and these bytes, then a match: length u16 and distance
//! u32. A match repeats the bytes that begin `distance` before the end of the output (they may
//! overlap it).

use std::collections::BTreeMap;

use engine::format::block::{get_u16, get_u32};

/// Least bytes of a match.
const MATCH_MIN: usize = 8;
const MATCH_MAX: usize = u16::MAX as usize;

pub(super) fn compress(raw: &[u8]) -> Vec<u8> {
    let (mut out, mut literals) = (Vec::new(), Vec::new());
    let mut seen: BTreeMap<&[u8], usize> = BTreeMap::new();
    let mut at = 0;
    while at < raw.len() {
        let key = &raw[at..raw.len().min(at + MATCH_MIN)];
        let before = seen.insert(key, at).filter(|_| key.len() == MATCH_MIN);
        let same = |from: usize| {
            let pairs = raw[from..].iter().zip(&raw[at..]).take(MATCH_MAX);
            pairs.take_while(|(a, b)| a == b).count()
        };
        match before {
            Some(from) => {
                let len = same(from);
                put(&mut out, &mut literals, len, at - from);
                at += len;
            }
            None => {
                literals.push(raw[at]);
                at += 1;
            }
        }
        if literals.len() == MATCH_MAX {
            put(&mut out, &mut literals, 0, 0);
        }
    }
    put(&mut out, &mut literals, 0, 0);
    out
}

fn put(out: &mut Vec<u8>, literals: &mut Vec<u8>, len: usize, distance: usize) {
    out.extend_from_slice(&(literals.len() as u16).to_le_bytes());
    out.append(literals);
    out.extend_from_slice(&(len as u16).to_le_bytes());
    out.extend_from_slice(&(distance as u32).to_le_bytes());
}

pub(super) fn expand(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let literals = usize::from(get_u16(bytes, 0));
        out.extend_from_slice(&bytes[2..2 + literals]);
        bytes = &bytes[2 + literals..];
        let (len, distance) = (usize::from(get_u16(bytes, 0)), get_u32(bytes, 2) as usize);
        bytes = &bytes[6..];
        for _ in 0..len {
            out.push(out[out.len() - distance]);
        }
    }
    out
}

#[test]
fn expanding_compressed_bytes_restores_them() {
    let mut rng = env::sim::SimRng::new(5);
    for len in [0, 1, 7, 8, 9, 5000, 200_000] {
        let raw: Vec<u8> =
            (0..len).map(|at| if at % 700 < 500 { 0 } else { rng.next_u64() as u8 }).collect();
        let small = compress(&raw);
        assert_eq!(expand(&small), raw, "{len}");
        assert!(len < 5000 || small.len() < raw.len() / 2, "{len}");
    }
}
