//! What a file may contain.
//!
//! Invariants:
//! - a file is surely what it is until a client that may have kept changes of it to itself
//!   loses them; then every byte is one of those that the file had there since it was last
//!   stable, and the size one of its sizes, until somebody sees which;
//! - what was seen stays: a byte or size that was read once is that one from then on.

use std::rc::Rc;

use crate::call::{Op, describe, pattern};

/// FALLOC_FL_KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE.
const KEEP_SIZE: u32 = 1;
const PUNCH: u32 = 2;
const ZERO: u32 = 16;
const BLOCK: u64 = 4096;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// These bytes.
    Sure(Rc<Vec<u8>>),
    /// One of several.
    Loose(Rc<Loose>),
}

/// Bytes of which a part is not known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loose {
    /// What is known, as long as the file may be.
    bytes: Vec<u8>,
    known: Vec<bool>,
    /// What it may be where it is not known; zero beyond the end.
    versions: Vec<Rc<Vec<u8>>>,
    /// Sizes that it may have: from, to.
    sizes: Vec<(u64, u64)>,
}

impl Default for Content {
    fn default() -> Content {
        Content::Sure(Rc::default())
    }
}

/// An edit of a file's content.
#[derive(Clone, Copy, Debug)]
pub enum Edit {
    /// Bytes of a pattern; at the end without an offset.
    Write {
        /// First byte.
        offset: Option<u64>,
        /// Bytes.
        len: u32,
        /// Pattern.
        tag: u32,
    },
    /// Another size.
    Truncate(u64),
    /// fallocate(2).
    Allocate {
        /// As fallocate(2).
        mode: u32,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

impl Edit {
    /// The edit that an operation makes.
    pub fn of(op: &Op) -> Option<Edit> {
        match *op {
            Op::Write { offset, len, tag, .. } => Some(Edit::Write { offset, len, tag }),
            Op::Truncate(_, size) => Some(Edit::Truncate(size)),
            Op::Allocate { mode, offset, len, .. } => Some(Edit::Allocate { mode, offset, len }),
            _ => None,
        }
    }
}

impl Content {
    /// What it may be after an edit.
    pub fn edit(&self, edit: Edit) -> Vec<Content> {
        match self {
            Content::Sure(bytes) => vec![Content::Sure(Rc::new(edited(bytes, edit)))],
            Content::Loose(loose) => loose.edit(edit),
        }
    }

    /// What it is if these bytes were read there, `asked` at most; else what was to be read.
    pub fn read(&self, offset: u64, asked: u32, read: &[u8]) -> Result<Option<Content>, String> {
        match self {
            Content::Sure(bytes) => {
                let size = bytes.len() as u64;
                let from = offset.min(size) as usize;
                let to = (offset + u64::from(asked)).min(size) as usize;
                let want = &bytes[from..to];
                if read == want { Ok(None) } else { Err(describe(want)) }
            }
            Content::Loose(loose) => loose.read(offset, asked, read).map(Some),
        }
    }

    /// What it is if it has this size; else the sizes that it may have.
    pub fn sized(&self, size: u64) -> Result<Option<Content>, String> {
        match self {
            Content::Sure(bytes) if bytes.len() as u64 == size => Ok(None),
            Content::Sure(bytes) => Err(format!("size {}", bytes.len())),
            Content::Loose(loose) => loose.sized(size, size).map(Some),
        }
    }

    /// The same with the sizes that `other` may have.
    pub fn sized_as(self, other: &Content) -> Content {
        let Content::Loose(loose) = self else { return self };
        let mut loose = Rc::unwrap_or_clone(loose);
        loose.sizes = match other {
            Content::Sure(bytes) => vec![(bytes.len() as u64, bytes.len() as u64)],
            Content::Loose(other) => other.sizes.clone(),
        };
        loose.settled()
    }

    /// The bytes, if they are known.
    pub fn sure(&self) -> Option<&Rc<Vec<u8>>> {
        match self {
            Content::Sure(bytes) => Some(bytes),
            Content::Loose(_) => None,
        }
    }

    /// Everything that it may be, byte by byte.
    fn expand(&self, versions: &mut Vec<Rc<Vec<u8>>>, sizes: &mut Vec<(u64, u64)>) {
        match self {
            Content::Sure(bytes) => {
                let size = bytes.len() as u64;
                versions.push(bytes.clone());
                sizes.push((size, size));
            }
            Content::Loose(loose) => {
                for version in &loose.versions {
                    let byte = |at: usize| match loose.known[at] {
                        true => loose.bytes[at],
                        false => version.get(at).copied().unwrap_or(0),
                    };
                    versions.push(Rc::new((0..loose.bytes.len()).map(byte).collect()));
                }
                sizes.extend(&loose.sizes);
            }
        }
    }

    /// Any of these, and what lies between one and the next if that grew out of it by a write.
    pub fn any_of<'a>(history: impl Iterator<Item = (&'a Content, bool)>) -> Content {
        let (mut versions, mut sizes) = (Vec::new(), Vec::new());
        let mut before: Option<(u64, u64)> = None;
        for (content, grew) in history {
            let first = sizes.len();
            content.expand(&mut versions, &mut sizes);
            let low = sizes[first..].iter().map(|size| size.0).min().unwrap_or(0);
            let high = sizes[first..].iter().map(|size| size.1).max().unwrap_or(0);
            if let Some((start, _)) = before.filter(|_| grew)
                && start < high
            {
                sizes.push((start, high));
            }
            before = Some((low, high));
        }
        versions.sort();
        versions.dedup();
        sizes.sort_unstable();
        sizes.dedup();
        let longest = sizes.iter().map(|size| size.1).max().unwrap_or(0) as usize;
        let mut loose =
            Loose { bytes: vec![0; longest], known: vec![false; longest], versions, sizes };
        loose.agree();
        loose.settled()
    }
}

fn edited(bytes: &[u8], edit: Edit) -> Vec<u8> {
    let mut new = bytes.to_vec();
    match edit {
        Edit::Write { offset, len, tag } => {
            let at = offset.unwrap_or(bytes.len() as u64);
            let end = (at + u64::from(len)) as usize;
            new.resize(new.len().max(end), 0);
            new[at as usize..end].copy_from_slice(&pattern(tag, 0, len as usize));
        }
        Edit::Truncate(to) => new.resize(to as usize, 0),
        Edit::Allocate { mode, offset, len } => {
            let end = offset + len;
            if mode & KEEP_SIZE == 0 {
                new.resize(new.len().max(end as usize), 0);
            }
            if mode & (PUNCH | ZERO) != 0 {
                let stop = (new.len() as u64).min(end) as usize;
                let start = (offset as usize).min(stop);
                new[start..stop].fill(0);
            }
        }
    }
    new
}

impl Loose {
    fn may_be(&self, at: usize, byte: u8) -> bool {
        if self.known[at] {
            return self.bytes[at] == byte;
        }
        self.versions.iter().any(|version| version.get(at).copied().unwrap_or(0) == byte)
    }

    /// Where all versions agree it is known.
    fn agree(&mut self) {
        let byte = |version: &[u8], at: usize| version.get(at).copied().unwrap_or(0);
        for at in 0..self.known.len() {
            let first = byte(&self.versions[0], at);
            if self.versions.iter().all(|version| byte(version, at) == first) {
                self.known[at] = true;
                self.bytes[at] = first;
            }
        }
    }

    /// It is sure if nothing is left open.
    fn settled(mut self) -> Content {
        let longest = self.sizes.iter().map(|size| size.1).max().unwrap_or(0) as usize;
        self.bytes.resize(longest, 0);
        self.known.resize(longest, true);
        if self.sizes.iter().all(|&(low, high)| low == high && high == self.sizes[0].0)
            && self.known.iter().all(|known| *known)
        {
            return Content::Sure(Rc::new(self.bytes));
        }
        Content::Loose(Rc::new(self))
    }

    /// The size is within these bounds.
    fn bounded(&self, low: u64, high: u64) -> Option<Loose> {
        let mut new = self.clone();
        new.sizes = self.sizes.iter().map(|size| (size.0.max(low), size.1.min(high))).collect();
        new.sizes.retain(|(low, high)| low <= high);
        new.sizes.sort_unstable();
        new.sizes.dedup();
        (!new.sizes.is_empty()).then_some(new)
    }

    fn sized(&self, low: u64, high: u64) -> Result<Content, String> {
        let new = self.bounded(low, high);
        new.map(Loose::settled).ok_or_else(|| format!("a size of {:?}", self.sizes))
    }

    fn read(&self, offset: u64, asked: u32, read: &[u8]) -> Result<Content, String> {
        let len = read.len() as u64;
        let bounds = match (len, len == u64::from(asked)) {
            (0, false) => (0, offset),
            (_, false) => (offset + len, offset + len),
            (_, true) => (offset + len, u64::MAX),
        };
        let new = self.bounded(bounds.0, bounds.1);
        let mut new = new.ok_or_else(|| format!("a size of {:?}", self.sizes))?;
        for (at, &byte) in (offset as usize..).zip(read) {
            if !self.may_be(at, byte) {
                let mut may: Vec<u8> =
                    self.versions.iter().map(|v| v.get(at).copied().unwrap_or(0)).collect();
                if self.known[at] {
                    may = vec![self.bytes[at]];
                }
                may.dedup();
                return Err(format!("at {at} one of {may:?}, not {byte}"));
            }
            new.known[at] = true;
            new.bytes[at] = byte;
        }
        Ok(new.settled())
    }

    /// Sets a range, and makes the file so long.
    fn set(&mut self, from: u64, bytes: &[u8]) {
        let end = from + bytes.len() as u64;
        for size in &mut self.sizes {
            *size = (size.0.max(end), size.1.max(end));
        }
        self.grow(end);
        let range = from as usize..end as usize;
        self.bytes[range.clone()].copy_from_slice(bytes);
        self.known[range].fill(true);
    }

    fn grow(&mut self, end: u64) {
        if self.bytes.len() < end as usize {
            self.bytes.resize(end as usize, 0);
            self.known.resize(end as usize, true);
        }
    }

    fn edit(&self, edit: Edit) -> Vec<Content> {
        let mut new = self.clone();
        match edit {
            Edit::Write { offset: None, len, tag } => {
                let ends = self.sizes.iter().flat_map(|&(low, high)| {
                    let blocks = (low / BLOCK + 1..=high / BLOCK).map(|block| block * BLOCK);
                    [low, high].into_iter().chain(blocks)
                });
                let mut ends: Vec<u64> = ends.collect();
                ends.sort_unstable();
                ends.dedup();
                let appended = ends.into_iter().filter_map(|end| {
                    let mut new = self.bounded(end, end)?;
                    new.set(end, &pattern(tag, 0, len as usize));
                    Some(new.settled())
                });
                return appended.collect();
            }
            Edit::Write { offset: Some(offset), len, tag } => {
                new.set(offset, &pattern(tag, 0, len as usize));
            }
            Edit::Truncate(to) => {
                new.sizes = vec![(to, to)];
                new.bytes.resize(to as usize, 0);
                new.known.resize(to as usize, true);
            }
            Edit::Allocate { mode, offset, len } => {
                let end = offset + len;
                if mode & KEEP_SIZE == 0 {
                    new.sizes.iter_mut().for_each(|s| *s = (s.0.max(end), s.1.max(end)));
                    new.grow(end);
                }
                if mode & (PUNCH | ZERO) != 0 {
                    let stop = (new.bytes.len() as u64).min(end) as usize;
                    let start = (offset as usize).min(stop);
                    new.bytes[start..stop].fill(0);
                    new.known[start..stop].fill(true);
                }
            }
        }
        vec![new.settled()]
    }
}

/// A content that a file had, and the position at which the edit that made it had ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Version {
    content: Content,
    ended: u64,
    /// A write made it of the one before: a part of it may have been committed.
    grew: bool,
}

/// What a client may lose of a file: all that it was since it was last stable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dirty {
    /// The client.
    pub client: usize,
    /// The stable one first, the present one last.
    versions: Vec<Version>,
}

impl Dirty {
    /// The file was stable with this content.
    pub fn new(client: usize, stable: &Content) -> Dirty {
        let stable = Version { content: stable.clone(), ended: 0, grew: false };
        Dirty { client, versions: vec![stable] }
    }

    /// The client made it this.
    pub fn add(&mut self, content: &Content, ended: u64, grew: bool) {
        self.versions.push(Version { content: content.clone(), ended, grew });
    }

    /// All that had ended before `begun` is stable.
    pub fn synced(&mut self, begun: u64) {
        let stable = self.versions.iter().take_while(|version| version.ended < begun).count();
        self.versions.drain(..stable.saturating_sub(1));
    }

    /// This edit is stable, whatever of those before it is.
    pub fn wrote_through(&mut self, edit: Edit) {
        for version in &mut self.versions {
            if let [one] = &version.content.edit(edit)[..] {
                version.content = one.clone();
            }
        }
    }

    /// It became `left`, and until that is stable it may be any of `all`.
    pub fn become_any(&mut self, all: &Content, left: &Content, ended: u64) {
        let version = |content: &Content| Version { content: content.clone(), ended, grew: false };
        self.versions = vec![version(all), version(left)];
    }

    /// May anything be lost?
    pub fn is_stable(&self) -> bool {
        self.versions.len() <= 1
    }

    /// What is left when the client loses what it had not made stable.
    pub fn lost(&self) -> Content {
        Content::any_of(self.versions.iter().map(|version| (&version.content, version.grew)))
    }
}
