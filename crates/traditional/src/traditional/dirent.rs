//! A block of directory entries, as ext3 has them.
//!
//! Invariants:
//! - the entries fill the block without gaps; space that a removed entry leaves belongs to the
//!   entry before it, or to an entry without an inode at the block's beginning;
//! - functions are total: bytes that are no entries give an error.
//!
//! | offset | size | field    | meaning                                    |
//! |-------:|-----:|----------|--------------------------------------------|
//! |      0 |    4 | ino      | number of the inode, 0: unused             |
//! |      4 |    2 | length   | to the next entry, a multiple of 4         |
//! |      6 |    1 | name_len |                                            |
//! |      7 |    1 | kind     | `FileKind`                                 |
//! |      8 |      | name     |                                            |

use mfs::Block;
use mfs::block::{HEADER, get_u16, get_u32, put_u16, put_u32};
use types::limits::BLOCK;
use types::{FileKind, Ino};

/// Bytes of an entry before its name.
const HEAD: usize = 8;

/// An entry of a block.
#[derive(Clone, Copy, Debug)]
pub struct Dirent<'a> {
    /// Where it begins in the block.
    pub at: usize,
    /// To the next one.
    pub len: usize,
    /// Its inode; `Ino::NONE`: unused.
    pub ino: Ino,
    /// Type of the inode.
    pub kind: u8,
    /// Its name.
    pub name: &'a [u8],
}

impl Dirent<'_> {
    /// Bytes that it does not need.
    fn spare(&self) -> usize {
        if self.ino == Ino::NONE { self.len } else { self.len - needed(self.name.len()) }
    }

    /// Its inode's type, if the number is one.
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_u8(self.kind)
    }
}

/// Bytes of an entry whose name has `len`.
pub fn needed(len: usize) -> usize {
    HEAD + len.next_multiple_of(4)
}

/// The entries of a block, one after the other; the first that makes no sense is an error, and the
/// last.
pub struct Entries<'a> {
    block: &'a Block,
    at: usize,
}

impl<'a> Entries<'a> {
    /// From the block's beginning.
    pub fn of(block: &'a Block) -> Entries<'a> {
        Entries { block, at: HEADER }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Dirent<'a>, &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= BLOCK {
            return None;
        }
        let at = self.at;
        self.at = BLOCK;
        if at + HEAD > BLOCK {
            return Some(Err("a directory entry crosses the end of its block"));
        }
        let len = usize::from(get_u16(self.block, at + 4));
        let name_len = usize::from(self.block[at + 6]);
        if len < needed(name_len) || !len.is_multiple_of(4) || at + len > BLOCK {
            return Some(Err("a directory entry has a wrong length"));
        }
        self.at = at + len;
        Some(Ok(Dirent {
            at,
            len,
            ino: Ino(u64::from(get_u32(self.block, at))),
            kind: self.block[at + 7],
            name: &self.block[at + HEAD..at + HEAD + name_len],
        }))
    }
}

/// One entry without an inode from `from` to the block's end.
pub fn clear(block: &mut Block, from: usize) {
    block[from..].fill(0);
    put_u16(block, from + 4, (BLOCK - from) as u16);
}

/// The entry of this name.
///
/// # Errors
/// The block makes no sense.
pub fn find<'a>(block: &'a Block, name: &[u8]) -> Result<Option<Dirent<'a>>, &'static str> {
    for entry in Entries::of(block) {
        let entry = entry?;
        if entry.ino != Ino::NONE && entry.name == name {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// Bytes of the largest gap.
///
/// # Errors
/// The block makes no sense.
pub fn room(block: &Block) -> Result<usize, &'static str> {
    let mut most = 0;
    for entry in Entries::of(block) {
        most = most.max(entry?.spare());
    }
    Ok(most)
}

/// Puts an entry into the first gap that it fits into; `false` if there is none.
///
/// # Errors
/// The block makes no sense.
pub fn insert(block: &mut Block, name: &[u8], ino: Ino, kind: u8) -> Result<bool, &'static str> {
    let mut gap = None;
    for entry in Entries::of(block) {
        let entry = entry?;
        if entry.spare() >= needed(name.len()) {
            gap = Some((entry.at, entry.len, entry.spare()));
            break;
        }
    }
    let Some((at, len, spare)) = gap else { return Ok(false) };
    let (begin, rest) = (at + len - spare, spare);
    if begin > at {
        put_u16(block, at + 4, (begin - at) as u16);
    }
    put_u32(block, begin, ino.0 as u32);
    put_u16(block, begin + 4, rest as u16);
    block[begin + 6] = name.len() as u8;
    block[begin + 7] = kind;
    block[begin + HEAD..begin + HEAD + name.len()].copy_from_slice(name);
    Ok(true)
}

/// Takes away the entry of this name; `false` if there is none.
///
/// # Errors
/// The block makes no sense.
pub fn remove(block: &mut Block, name: &[u8]) -> Result<bool, &'static str> {
    let mut before: Option<(usize, usize)> = None;
    let mut found = None;
    for entry in Entries::of(block) {
        let entry = entry?;
        if entry.ino != Ino::NONE && entry.name == name {
            found = Some((entry.at, entry.len));
            break;
        }
        before = Some((entry.at, entry.len));
    }
    let Some((at, len)) = found else { return Ok(false) };
    match before {
        Some((before, its)) => put_u16(block, before + 4, (its + len) as u16),
        None => {
            put_u32(block, at, 0);
            block[at + 6] = 0;
        }
    }
    Ok(true)
}

/// Lets the entry `name` lead to another inode.
///
/// # Errors
/// The block makes no sense, or has no such entry.
pub fn redirect(block: &mut Block, name: &[u8], ino: Ino) -> Result<(), &'static str> {
    let at = find(block, name)?.ok_or("an entry is missing")?.at;
    put_u32(block, at, ino.0 as u32);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(block: &Block) -> Vec<(u64, Vec<u8>)> {
        Entries::of(block)
            .map(Result::unwrap)
            .filter(|entry| entry.ino != Ino::NONE)
            .map(|entry| (entry.ino.0, entry.name.to_vec()))
            .collect()
    }

    #[test]
    fn entries_are_added_removed_and_their_space_reused() {
        let mut block = [0; BLOCK];
        clear(&mut block, HEADER);
        let mut count = 0;
        while insert(&mut block, format!("file{count:04}").as_bytes(), Ino(count + 1), 1).unwrap() {
            count += 1;
        }
        assert_eq!(count, ((BLOCK - HEADER) / needed(8)) as u64);
        assert!(!remove(&mut block, b"nothing").unwrap());
        for gone in [0u64, 7, 8] {
            assert!(remove(&mut block, format!("file{gone:04}").as_bytes()).unwrap());
        }
        assert_eq!(room(&block).unwrap(), 2 * needed(8));
        assert!(insert(&mut block, b"a longer name", Ino(900), 2).unwrap());
        assert!(insert(&mut block, b"new", Ino(901), 1).unwrap());
        let found = find(&block, b"a longer name").unwrap().unwrap();
        assert_eq!((found.ino, found.kind()), (Ino(900), Some(FileKind::Directory)));
        assert_eq!(names(&block).len() as u64, count - 1);
        assert_eq!(names(&block)[0], (901, b"new".to_vec()));
    }

    #[test]
    fn arbitrary_bytes_parse_or_give_an_error() {
        let mut seed = 7u64;
        for _ in 0..2000 {
            let mut block = [0; BLOCK];
            clear(&mut block, HEADER);
            insert(&mut block, b"x", Ino(1), 1).unwrap();
            for _ in 0..3 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                block[HEADER + (seed >> 33) as usize % 40] = (seed >> 20) as u8;
            }
            let before = (find(&block, b"y").is_err(), room(&block).is_err());
            let put = insert(&mut block, b"z", Ino(3), 1);
            assert!(before.0 || put != Ok(true) || find(&block, b"z").is_ok());
            assert!(remove(&mut block, b"x").is_ok() || before.1 || put.is_err());
        }
    }
}
