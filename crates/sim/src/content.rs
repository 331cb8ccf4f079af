//! The possible contents of a file.
//!
//! Invariants:
//! - a file's content is known until a client with unsynced changes loses them. Then every byte is
//!   one that the file had there since it was last stable, and the size is one of its sizes, until
//!   a client sees which;
//! - what was seen is final: a byte or size that was read once keeps that value;
//! - equal content is shared: an edit of an uncertain file copies only the pieces that it touches,
//!   and the same edit of the same bytes gives the same allocation.

use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::ops::Range;
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
    /// Exactly these bytes.
    Known(Rc<Vec<u8>>),
    /// One of several contents.
    Uncertain(Rc<UncertainBytes>),
}

/// Hashes a sample of bytes: different contents mostly differ there, because a write repeats its
/// bytes.
impl Hash for Content {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Content::Known(bytes) => {
                bytes.len().hash(state);
                sample(bytes).for_each(|byte| byte.hash(state));
            }
            Content::Uncertain(uncertain) => {
                (&uncertain.sizes, uncertain.pieces.len()).hash(state);
                for piece in sample(&uncertain.pieces) {
                    (piece.0.len(), piece.0.first().map(|bytes| bytes[0])).hash(state);
                }
            }
        }
    }
}

/// The last item, and earlier ones at equal distances.
fn sample<T>(items: &[T]) -> impl Iterator<Item = &T> {
    const FEW: usize = 16;
    items.iter().rev().step_by(items.len().div_ceil(FEW).max(1))
}

/// Content of which a part is uncertain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UncertainBytes {
    /// Pieces up to the largest size, zero after it.
    pieces: Vec<Rc<Piece>>,
    /// Possible sizes, as ranges: from, to.
    sizes: Vec<(u64, u64)>,
}

const PIECE: usize = 512;

/// The possible contents of a piece, sorted: every byte is that of one of these.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Piece(Vec<[u8; PIECE]>);

impl Piece {
    fn of(bytes: &[u8]) -> [u8; PIECE] {
        let mut piece = [0; PIECE];
        piece[..bytes.len()].copy_from_slice(bytes);
        piece
    }

    fn may_be(&self, at: usize, byte: u8) -> bool {
        self.0.iter().any(|piece| piece[at] == byte)
    }

    /// These bytes are known now.
    fn set(self: &mut Rc<Piece>, at: usize, bytes: &[u8]) {
        let range = at..at + bytes.len();
        if self.0.iter().all(|piece| piece[range.clone()] == *bytes) {
            return;
        }
        let pieces = &mut Rc::make_mut(self).0;
        pieces.iter_mut().for_each(|piece| piece[range.clone()].copy_from_slice(bytes));
        pieces.sort_unstable();
        pieces.dedup();
    }

    /// Adds a possibility.
    fn add(&mut self, piece: &[u8; PIECE]) {
        if let Err(place) = self.0.binary_search(piece) {
            self.0.insert(place, *piece);
        }
    }
}

impl Default for Content {
    fn default() -> Content {
        Content::Known(Rc::default())
    }
}

/// An edit of a file's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edit {
    /// Writes bytes of a pattern; without an offset it appends.
    Write {
        /// First byte.
        offset: Option<u64>,
        /// Bytes.
        len: u32,
        /// Pattern.
        tag: u32,
    },
    /// Sets the size.
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
    /// The blocks that it changes: from, to. All blocks if it needs the whole file.
    pub fn blocks(&self) -> (u64, u64) {
        match *self {
            Edit::Write { offset: Some(offset), len, .. } => blocks_of(offset, len),
            _ => (0, u64::MAX),
        }
    }

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

/// The blocks of a range of bytes: from, to.
pub fn blocks_of(offset: u64, len: u32) -> (u64, u64) {
    (offset / BLOCK, (offset + u64::from(len)).div_ceil(BLOCK))
}

impl Content {
    /// The possible contents after an edit.
    pub fn edit(&self, edit: Edit) -> Vec<Content> {
        match self {
            Content::Known(bytes) => vec![Content::Known(edited_shared(bytes, edit))],
            Content::Uncertain(uncertain) => uncertain.edit(edit),
        }
    }

    /// The contents after an edit, as one; `None`: the edit is impossible.
    pub fn edited(&self, edit: Edit) -> Option<Content> {
        let mut all = self.edit(edit);
        match all.len() {
            0 | 1 => all.pop(),
            _ => Some(Content::any_of(all.iter().map(|content| (content, false)))),
        }
    }

    /// The content once a read of at most `asked` bytes returned `read`; else what the read should
    /// return.
    pub fn read(&self, offset: u64, asked: u32, read: &[u8]) -> Result<Option<Content>, String> {
        match self {
            Content::Known(bytes) => {
                let size = bytes.len() as u64;
                let from = offset.min(size) as usize;
                let to = (offset + u64::from(asked)).min(size) as usize;
                let want = &bytes[from..to];
                if read == want { Ok(None) } else { Err(describe(want)) }
            }
            Content::Uncertain(uncertain) => uncertain.read(offset, asked, read).map(Some),
        }
    }

    /// The content if it has this size; else its possible sizes.
    pub fn sized(&self, size: u64) -> Result<Option<Content>, String> {
        match self {
            Content::Known(bytes) if bytes.len() as u64 == size => Ok(None),
            Content::Known(bytes) => Err(format!("size {}", bytes.len())),
            Content::Uncertain(uncertain) => uncertain.sized(size, size).map(Some),
        }
    }

    /// The same bytes with the possible sizes of `other`.
    pub fn sized_as(self, other: &Content) -> Content {
        let Content::Uncertain(uncertain) = self else { return self };
        let mut uncertain = Rc::unwrap_or_clone(uncertain);
        uncertain.sizes = other.sizes();
        uncertain.simplified()
    }

    /// The same bytes, but no longer than `other`.
    pub fn no_longer_than(self, other: &Content) -> Content {
        match (&self, other) {
            (Content::Known(bytes), Content::Known(others)) if bytes.len() > others.len() => {
                Content::Known(Rc::new(bytes[..others.len()].to_vec()))
            }
            (Content::Known(_), Content::Uncertain(_)) => {
                Content::any_of([(&self, false), (other, false)].into_iter()).sized_as(other)
            }
            _ => self.sized_as(other),
        }
    }

    /// The bytes, if they are known.
    pub fn known(&self) -> Option<&Rc<Vec<u8>>> {
        match self {
            Content::Known(bytes) => Some(bytes),
            Content::Uncertain(_) => None,
        }
    }

    /// Possible sizes.
    fn sizes(&self) -> Vec<(u64, u64)> {
        match self {
            Content::Known(bytes) => vec![(bytes.len() as u64, bytes.len() as u64)],
            Content::Uncertain(uncertain) => uncertain.sizes.clone(),
        }
    }

    /// Adds the possible pieces to `all`.
    fn join(&self, all: &mut [Piece]) {
        for (nth, into) in all.iter_mut().enumerate() {
            match self {
                Content::Known(bytes) => {
                    let rest = bytes.get(nth * PIECE..).unwrap_or_default();
                    into.add(&Piece::of(&rest[..rest.len().min(PIECE)]));
                }
                Content::Uncertain(uncertain) => match uncertain.pieces.get(nth) {
                    Some(piece) => piece.0.iter().for_each(|piece| into.add(piece)),
                    None => into.add(&[0; PIECE]),
                },
            }
        }
    }

    /// Any of these contents; if a write led from one to the next, also any size between them.
    pub fn any_of<'a>(history: impl Iterator<Item = (&'a Content, bool)>) -> Content {
        let (mut contents, mut sizes) = (Vec::new(), Vec::new());
        let mut before: Option<(u64, u64)> = None;
        for (content, by_write) in history {
            let own = content.sizes();
            let low = own.iter().map(|size| size.0).min().unwrap_or(0);
            let high = own.iter().map(|size| size.1).max().unwrap_or(0);
            contents.push(content);
            sizes.extend(own);
            if let Some((start, _)) = before.filter(|_| by_write)
                && start < high
            {
                sizes.push((start, high));
            }
            before = Some((low, high));
        }
        sizes.sort_unstable();
        sizes.dedup();
        let longest = sizes.iter().map(|size| size.1).max().unwrap_or(0) as usize;
        let mut pieces = vec![Piece(Vec::new()); longest.div_ceil(PIECE)];
        contents.into_iter().for_each(|content| content.join(&mut pieces));
        UncertainBytes { pieces: pieces.into_iter().map(Rc::new).collect(), sizes }.simplified()
    }
}

/// Remembered edits: more than are tried at one moment.
const REMEMBERED: usize = 32;

struct RememberedEdit {
    edit: Edit,
    before: Rc<Vec<u8>>,
    after: Rc<Vec<u8>>,
}

/// The result of an edit, shared. Dozens of candidates take the same step, mostly on the same file:
/// comparing separate copies would take longer than everything else.
fn edited_shared(bytes: &Rc<Vec<u8>>, edit: Edit) -> Rc<Vec<u8>> {
    thread_local! {
        static LAST: RefCell<Vec<RememberedEdit>> = const { RefCell::new(Vec::new()) };
    }
    LAST.with_borrow_mut(|last| {
        // Comparing is fast for the same allocation.
        let known = last.iter().find(|it| it.edit == edit && it.before == *bytes);
        if let Some(known) = known {
            return known.after.clone();
        }
        let after = Rc::new(edited(bytes, edit));
        if last.len() == REMEMBERED {
            last.remove(0);
        }
        last.push(RememberedEdit { edit, before: bytes.clone(), after: after.clone() });
        after
    })
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

/// Splits a range at piece boundaries: the offset in the file, and the part of the range.
fn parts(from: usize, len: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = from + done;
        let end = (done + PIECE - at % PIECE).min(len);
        let part = done..end;
        done = end;
        (!part.is_empty()).then_some((at, part))
    })
}

impl UncertainBytes {
    fn longest(&self) -> usize {
        self.sizes.iter().map(|size| size.1).max().unwrap_or(0) as usize
    }

    /// `Known` if nothing is uncertain.
    fn simplified(mut self) -> Content {
        let longest = self.longest();
        self.resize(longest);
        let Some((size, _)) = self.sizes.first() else { return Content::default() };
        if self.sizes.iter().all(|(low, high)| (low, high) == (size, size))
            && self.pieces.iter().all(|piece| piece.0.len() == 1)
        {
            let mut bytes: Vec<u8> = self.pieces.iter().flat_map(|piece| piece.0[0]).collect();
            bytes.truncate(longest);
            return Content::Known(Rc::new(bytes));
        }
        Content::Uncertain(Rc::new(self))
    }

    /// Ends the content at `len`; zeros up to there.
    fn resize(&mut self, len: usize) {
        self.pieces.resize_with(len.div_ceil(PIECE), || Rc::new(Piece(vec![[0; PIECE]])));
        let behind = len % PIECE;
        if behind > 0
            && let Some(last) = self.pieces.last_mut()
        {
            last.set(behind, &[0; PIECE][behind..]);
        }
    }

    /// These bytes are known; the pieces reach that far.
    fn set_known(&mut self, from: usize, bytes: &[u8]) {
        for (at, part) in parts(from, bytes.len()) {
            self.pieces[at / PIECE].set(at % PIECE, &bytes[part]);
        }
    }

    /// The content with a size within these bounds.
    fn bounded(&self, low: u64, high: u64) -> Option<UncertainBytes> {
        let mut new = self.clone();
        new.sizes = self.sizes.iter().map(|size| (size.0.max(low), size.1.min(high))).collect();
        new.sizes.retain(|(low, high)| low <= high);
        new.sizes.sort_unstable();
        new.sizes.dedup();
        (!new.sizes.is_empty()).then_some(new)
    }

    fn sized(&self, low: u64, high: u64) -> Result<Content, String> {
        let new = self.bounded(low, high);
        new.map(UncertainBytes::simplified).ok_or_else(|| format!("a size of {:?}", self.sizes))
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
            let piece = &self.pieces[at / PIECE];
            if !piece.may_be(at % PIECE, byte) {
                let mut may: Vec<u8> = piece.0.iter().map(|piece| piece[at % PIECE]).collect();
                may.sort_unstable();
                may.dedup();
                return Err(format!("at {at} one of {may:?}, not {byte}"));
            }
        }
        new.set_known(offset as usize, read);
        Ok(new.simplified())
    }

    /// Writes known bytes, and extends the file.
    fn set(&mut self, from: u64, bytes: &[u8]) {
        let end = from + bytes.len() as u64;
        for size in &mut self.sizes {
            *size = (size.0.max(end), size.1.max(end));
        }
        self.resize(self.longest());
        self.set_known(from as usize, bytes);
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
                    Some(new.simplified())
                });
                return appended.collect();
            }
            Edit::Write { offset: Some(offset), len, tag } => {
                new.set(offset, &pattern(tag, 0, len as usize));
            }
            Edit::Truncate(to) => {
                new.sizes = vec![(to, to)];
            }
            Edit::Allocate { mode, offset, len } => {
                let end = offset + len;
                if mode & KEEP_SIZE == 0 {
                    new.sizes.iter_mut().for_each(|s| *s = (s.0.max(end), s.1.max(end)));
                    new.resize(new.longest());
                }
                if mode & (PUNCH | ZERO) != 0 {
                    let stop = new.longest().min(end as usize);
                    let start = (offset as usize).min(stop);
                    new.set_known(start, &vec![0; stop - start]);
                }
            }
        }
        vec![new.simplified()]
    }
}

/// An earlier or present content, and the position at which its edit ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Version {
    content: Content,
    /// The content without later changes of other clients, if there are any: those may be lost as
    /// well.
    without_others: Option<Content>,
    ended: u64,
    /// A write made it from the version before, so a part of the write may have been committed.
    by_write: bool,
}

/// A client's unsynced versions of a file: all since it was last stable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dirty {
    /// The client.
    pub client: usize,
    /// The stable version first, the present one last.
    versions: Vec<Version>,
    /// The blocks that the client changed: from, to.
    blocks: Vec<(u64, u64)>,
}

/// Hashes the newest version.
impl Hash for Dirty {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let newest = self.versions.last();
        (self.client, self.versions.len(), newest.map(|version| &version.content)).hash(state);
    }
}

impl Dirty {
    /// No changes yet of a file with this stable content.
    pub fn new(client: usize, stable: &Content) -> Dirty {
        let stable =
            Version { content: stable.clone(), without_others: None, ended: 0, by_write: false };
        Dirty { client, versions: vec![stable], blocks: Vec::new() }
    }

    /// The client changes these blocks.
    pub fn changes(&mut self, blocks: (u64, u64)) {
        if !self.blocks.contains(&blocks) {
            self.blocks.push(blocks);
        }
    }

    /// Did the client change any of these blocks?
    pub fn touches(&self, (from, to): (u64, u64)) -> bool {
        self.blocks.iter().any(|&(start, end)| start < to && from < end)
    }

    /// A new version by the client.
    pub fn add(&mut self, content: &Content, ended: u64, by_write: bool) {
        self.versions.push(Version {
            content: content.clone(),
            without_others: None,
            ended,
            by_write,
        });
    }

    /// Everything that ended before `begun` is stable.
    pub fn synced(&mut self, begun: u64) {
        let stable = self.versions.iter().take_while(|version| version.ended < begun).count();
        self.versions.drain(..stable.saturating_sub(1));
    }

    /// This edit is stable, whether the earlier ones are or not.
    pub fn wrote_through(&mut self, edit: Edit) {
        for version in &mut self.versions {
            if let [one] = &version.content.edit(edit)[..] {
                let before = std::mem::replace(&mut version.content, one.clone());
                version.without_others.get_or_insert(before);
            }
        }
    }

    /// Another client read these bytes: no loss changes them.
    pub fn was_read(&mut self, offset: u64, asked: u32, read: &[u8]) {
        for version in &mut self.versions {
            if let Ok(Some(known)) = version.content.read(offset, asked, read) {
                version.content = known;
            }
            version.without_others = version.without_others.take().and_then(|without_others| {
                without_others
                    .read(offset, asked, read)
                    .ok()
                    .map(|known| known.unwrap_or(without_others))
            });
        }
    }

    /// Another client with changes of other blocks lost some of them: the file became `left`.
    pub fn other_lost(&mut self, other: &Dirty, left: &Content) {
        let all = || self.versions.iter().chain(&other.versions);
        let without_others = all().map(|version| {
            (version.without_others.as_ref().unwrap_or(&version.content), version.by_write)
        });
        let whole = all().map(|version| (&version.content, version.by_write));
        let all = Content::any_of(without_others.chain(whole));
        let ended = self.versions.last().map_or(0, |version| version.ended);
        self.replace_versions(&all, left, ended);
    }

    /// The file became `left`; until that is stable it may become any of `all`.
    pub fn replace_versions(&mut self, all: &Content, left: &Content, ended: u64) {
        let version = |content: &Content| Version {
            content: content.clone(),
            without_others: None,
            ended,
            by_write: false,
        };
        self.versions = vec![version(all), version(left)];
    }

    /// May a change from before this position be lost?
    pub fn has_unsynced_before(&self, position: u64) -> bool {
        self.versions.iter().skip(1).any(|version| version.ended < position)
    }

    /// Is there nothing to lose?
    pub fn is_stable(&self) -> bool {
        self.versions.len() <= 1
    }

    /// The possible contents after the client loses its unsynced changes.
    pub fn lost(&self) -> Content {
        Content::any_of(self.versions.iter().map(|version| (&version.content, version.by_write)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 64 * PIECE;

    /// A file that held zeros, and may hold ones.
    fn uncertain() -> Content {
        let sure = |byte| Content::Known(Rc::new(vec![byte; LEN]));
        Content::any_of([(&sure(0), false), (&sure(1), false)].into_iter())
    }

    fn pieces(content: &Content) -> &[Rc<Piece>] {
        match content {
            Content::Uncertain(uncertain) => &uncertain.pieces,
            Content::Known(_) => panic!("the content is known"),
        }
    }

    #[test]
    fn uncertain_byte_is_one_it_was_and_is_final_once_seen() {
        let seen =
            uncertain().read(700, 3, &[0, 1, 0]).expect("possible").expect("it was uncertain");
        assert!(seen.read(700, 3, &[0, 0, 0]).is_err());
        assert!(seen.read(700, 3, &[0, 1, 0]).is_ok() && seen.read(703, 1, &[0]).is_ok());
        assert_eq!(seen.read(0, 1, &[2]).unwrap_err(), "at 0 one of [0, 1], not 2");
    }

    #[test]
    fn uncertain_file_is_known_once_all_bytes_were_seen() {
        let bytes: Vec<u8> = (0..LEN).map(|at| (at / 100 % 2) as u8).collect();
        let seen = uncertain().read(0, LEN as u32 + 1, &bytes).expect("possible");
        assert_eq!(seen, Some(Content::Known(Rc::new(bytes))));
    }

    #[test]
    fn equal_edits_of_equal_bytes_share_one_allocation() {
        let content = Content::Known(Rc::new(vec![0; LEN]));
        let edit = Edit::Write { offset: Some(5), len: 10, tag: 7 };
        let [Content::Known(one)] = &content.edit(edit)[..] else { panic!("sure") };
        let equal = Content::Known(Rc::new(vec![0; LEN]));
        let [Content::Known(other)] = &equal.edit(edit)[..] else { panic!("sure") };
        assert!(Rc::ptr_eq(one, other));
        let longer = Edit::Write { offset: Some(5), len: 11, tag: 7 };
        let [Content::Known(third)] = &content.edit(longer)[..] else { panic!("sure") };
        assert_ne!(one, third);
    }

    #[test]
    fn edit_copies_only_the_pieces_that_it_touches() {
        let before = uncertain();
        let edit = Edit::Write { offset: Some(PIECE as u64 + 5), len: 10, tag: 7 };
        let [after] = &before.edit(edit)[..] else { panic!("one content follows") };
        let (old, new) = (pieces(&before), pieces(after));
        let shared = old.iter().zip(new).filter(|(old, new)| Rc::ptr_eq(old, new)).count();
        assert_eq!(shared, old.len() - 1);
        let all = Content::any_of([(&before, false), (after, true), (&before, true)].into_iter());
        assert_eq!(pieces(&all)[1].0.len(), 4);
        assert_eq!(pieces(&all)[0].0.len(), 2);
    }
}
