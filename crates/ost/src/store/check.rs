//! The check of a target (`fsck`): the engine's structures, and whether objects, segments,
//! checksums and free runs agree.
//!
//! Invariants:
//! - a check changes nothing, and nothing else changes the store meanwhile;
//! - it holds a bit for each metadata block, a bit for each of [`WINDOW`] content blocks at a time,
//!   and what is left to compare of the objects.

use std::collections::BTreeMap;
use std::fmt;

use engine::alloc::metaspace::BITS;
use engine::btree::Tree;
use engine::check::{self, Checker, Claims, Mismatch};
use engine::clients::CLIENT_INFO_MAX;
use engine::error::{Stop, StoreError};
use engine::store::Store;
use engine::txn::Txn;
use types::ObjectId;

use super::format::{
    Extent, FENCED, FREE, GROUP, OBJECTS, Run, SEGMENTS, SUMS, Segment, free_of, place_of,
    segment_of, sums_of,
};
use super::{ObjectStore, map};

/// Content blocks that are compared at a time: 16 TiB.
const WINDOW: u64 = 1 << 32;
/// Entries that are read in one transaction.
const STEP: usize = 512;

/// What is wrong with a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// A structure of the engine.
    Records(check::Finding),
    /// Metadata blocks that are allocated, and that nothing has: the first, and the one behind the
    /// last.
    LostRecords(u64, u64),
    /// Metadata blocks that are in use and marked as free.
    RecordsMarkedFree(u64, u64),
    /// A segment that lies outside the content slice, or has no block.
    ImpossibleSegment(ObjectId, Segment),
    /// A segment that overlaps the one before.
    Overlap(ObjectId, Segment),
    /// Segments belong to an object that does not exist.
    NoObject(ObjectId),
    /// An object has other blocks, or another end, than it should: what it says, and what is so.
    WrongExtent(ObjectId, Extent, Extent),
    /// A checksum of a block that is a hole.
    StraySum(ObjectId, u64),
    /// A free run that lies outside the content slice, or touches the one before.
    ImpossibleFree(Run),
    /// Content blocks that two segments have, or a segment and a free run.
    Shared(Run),
    /// Content blocks that no object has, and that are not free.
    Lost(Run),
    /// The count of free blocks in memory, and what the tree has.
    WrongCount(u64, u64),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = |run: &Run| format!("content blocks {}..{}", run.at, run.end());
        match self {
            Finding::Records(finding) => write!(f, "the target's records: {finding:?}"),
            Finding::LostRecords(from, to) => {
                write!(f, "metadata blocks {from}..{to} are allocated, and nothing has them")
            }
            Finding::RecordsMarkedFree(from, to) => {
                write!(f, "metadata blocks {from}..{to} are in use and marked as free")
            }
            Finding::ImpossibleSegment(object, segment) => write!(
                f,
                "object {object}: its segment at block {} is impossible ({} at {})",
                segment.block, segment.len, segment.at
            ),
            Finding::Overlap(object, segment) => {
                write!(f, "object {object}: two segments have block {}", segment.block)
            }
            Finding::NoObject(object) => {
                write!(f, "object {object} has segments, and does not exist")
            }
            Finding::WrongExtent(object, said, is) => write!(
                f,
                "object {object} says {} blocks up to block {}, and has {} up to block {}",
                said.blocks, said.end, is.blocks, is.end
            ),
            Finding::StraySum(object, block) => {
                write!(f, "object {object}: block {block} is a hole, and has a checksum")
            }
            Finding::ImpossibleFree(run) => write!(f, "the free run {} is impossible", blocks(run)),
            Finding::Shared(run) => write!(f, "{} are used twice, or used and free", blocks(run)),
            Finding::Lost(run) => write!(f, "{} are neither used nor free", blocks(run)),
            Finding::WrongCount(counted, is) => {
                write!(f, "{counted} content blocks count as free, {is} are")
            }
        }
    }
}

impl ObjectStore {
    /// Checks the target. Nothing may change it meanwhile.
    ///
    /// # Errors
    /// `Io`, `Poisoned`; damage is a finding.
    pub async fn check(&self) -> Result<Vec<Finding>, StoreError> {
        let store = self.engine.clone();
        let claims = Claims::new(&store.superblock());
        let mut check = Check { store, claims, findings: Vec::new() };
        check.records().await?;
        check.objects().await?;
        if !check.is_readable() {
            // What cannot be read would only look lost.
            return Ok(check.findings);
        }
        check.sums().await?;
        let free = check.space(self.flight.content.blocks).await?;
        if free != self.space.free() {
            check.findings.push(Finding::WrongCount(self.space.free(), free));
        }
        Ok(check.findings)
    }
}

/// A running check.
struct Check {
    store: Store,
    claims: Claims,
    findings: Vec<Finding>,
}

impl Checker for Check {
    fn store(&self) -> &Store {
        &self.store
    }

    fn claims(&mut self) -> &mut Claims {
        &mut self.claims
    }

    fn note(&mut self, finding: check::Finding) {
        self.findings.push(Finding::Records(finding));
    }
}

impl Check {
    /// Could all records be read so far?
    fn is_readable(&self) -> bool {
        use check::Finding::{BrokenTree, Damaged, LostNode, Unreadable};
        !self.findings.iter().any(|finding| {
            matches!(
                finding,
                Finding::Records(Damaged(..) | LostNode { .. } | BrokenTree(_) | Unreadable)
            )
        })
    }

    /// Label, journal, clients, the nodes of all trees, and the bitmap of metadata blocks.
    async fn records(&mut self) -> Result<(), StoreError> {
        if let Some(what) = check::label_damage(&self.store).await {
            self.note(check::Finding::DamagedLabel(what));
        }
        if let Some(what) = check::journal_damage(&self.store).await {
            self.note(check::Finding::DamagedJournal(what));
        }
        check::clients(self, CLIENT_INFO_MAX).await?;
        check::walk(self, OBJECTS, "objects", |_, _, _| ()).await?;
        check::walk(self, SEGMENTS, "segments", |_, _, _| ()).await?;
        check::walk(self, SUMS, "checksums", |_, _, _| ()).await?;
        check::walk(self, FREE, "free runs", |_, _, _| ()).await?;
        check::walk(self, FENCED, "fenced clients", |_, _, _| ()).await?;
        if !self.is_readable() {
            return Ok(());
        }
        for index in 0..self.claims.blocks.div_ceil(BITS) {
            for mismatch in check::mismatches(self, index).await? {
                self.findings.push(match mismatch {
                    Mismatch::Lost(from, to) => Finding::LostRecords(from, to),
                    Mismatch::MarkedFree(from, to) => Finding::RecordsMarkedFree(from, to),
                });
            }
        }
        Ok(())
    }

    /// Calls `each` with all entries of a tree in order, and with the findings.
    async fn entries<const K: usize, const V: usize>(
        &mut self,
        tree: Tree<K, V>,
        mut each: impl FnMut(&[u8; K], &[u8; V], &mut Vec<Finding>),
    ) -> Result<(), StoreError> {
        let mut from = Some([0; K]);
        while let Some(key) = from {
            let Some(found) = check::read(self, |txn| tree.range(txn, &key, STEP)).await? else {
                return Ok(());
            };
            for (key, value) in &found {
                each(key, value, &mut self.findings);
            }
            from = found.last().and_then(|(last, _)| behind(*last));
        }
        Ok(())
    }

    /// Compares objects with their segments.
    async fn objects(&mut self) -> Result<(), StoreError> {
        let mut are: BTreeMap<ObjectId, Extent> = BTreeMap::new();
        self.entries(SEGMENTS, |key, value, findings| {
            let (object, segment) = (place_of(key).0, segment_of(key, value));
            let extent = are.entry(object).or_default();
            if segment.block < extent.end {
                findings.push(Finding::Overlap(object, segment));
            }
            extent.blocks += segment.len;
            extent.end = extent.end.max(segment.block.saturating_add(segment.len));
        })
        .await?;
        self.entries(OBJECTS, |key, value, findings| {
            let (object, said) = (ObjectId(u64::from_be_bytes(*key)), Extent::decode(value));
            let is = are.remove(&object).unwrap_or_default();
            if is != said {
                findings.push(Finding::WrongExtent(object, said, is));
            }
        })
        .await?;
        self.findings.extend(are.into_keys().map(Finding::NoObject));
        Ok(())
    }

    /// Looks for checksums of holes.
    async fn sums(&mut self) -> Result<(), StoreError> {
        let mut from = Some([0; 16]);
        while let Some(key) = from {
            let body = |txn: &mut Txn<'_>| {
                let found = SUMS.range(txn, &key, STEP)?;
                let mut stray = Vec::new();
                for (key, value) in &found {
                    stray.extend(stray_sums(txn, key, &sums_of(value))?);
                }
                Ok((found.last().and_then(|(last, _)| behind(*last)), stray))
            };
            let Some((next, stray)) = check::read(self, body).await? else { return Ok(()) };
            self.findings.extend(stray);
            from = next;
        }
        Ok(())
    }

    /// Compares segments and free runs with the content slice; returns the free blocks.
    async fn space(&mut self, blocks: u64) -> Result<u64, StoreError> {
        let mut free = 0;
        for begin in (1..blocks).step_by(WINDOW as usize) {
            let mut content = Content::new(begin, blocks.min(begin + WINDOW));
            self.entries(SEGMENTS, |key, value, findings| {
                let (object, segment) = (place_of(key).0, segment_of(key, value));
                let possible = |end| segment.len > 0 && segment.at > 0 && end <= blocks;
                match segment.at.checked_add(segment.len).is_some_and(possible) {
                    true => findings.extend(content.claim(segment.run())),
                    false if begin == 1 => {
                        findings.push(Finding::ImpossibleSegment(object, segment));
                    }
                    false => {}
                }
            })
            .await?;
            let (mut last, mut sum) = (0, 0);
            self.entries(FREE, |key, value, findings| {
                let run = free_of(key, value);
                let end = run.at.checked_add(run.len).filter(|&end| run.len > 0 && end <= blocks);
                let Some(end) = end.filter(|_| run.at > last) else {
                    if begin == 1 {
                        findings.push(Finding::ImpossibleFree(run));
                    }
                    return;
                };
                (last, sum) = (end, sum + run.len);
                findings.extend(content.claim(run));
            })
            .await?;
            free = sum;
            self.findings.extend(content.unclaimed().map(Finding::Lost));
        }
        Ok(free)
    }
}

/// The sums of a group that belong to holes.
fn stray_sums(txn: &Txn<'_>, key: &[u8; 16], sums: &[u32]) -> Result<Vec<Finding>, Stop> {
    let (object, group) = place_of(key);
    let begin = group.saturating_mul(GROUP);
    let end = begin.saturating_add(GROUP);
    let segments = map::overlapping(txn, object, begin, end, GROUP as usize)?;
    let is_hole = |block: u64| !segments.iter().any(|it| it.block <= block && block < it.end());
    let stray = (begin..end).zip(sums).filter(|&(block, &sum)| sum != 0 && is_hole(block));
    Ok(stray.map(|(block, _)| Finding::StraySum(object, block)).collect())
}

/// A bit for each content block of a window.
struct Content {
    begin: u64,
    end: u64,
    bits: Vec<u64>,
}

impl Content {
    fn new(begin: u64, end: u64) -> Content {
        Content { begin, end, bits: vec![0; (end - begin).div_ceil(64) as usize] }
    }

    fn get(&self, block: u64) -> bool {
        let at = block - self.begin;
        self.bits[(at / 64) as usize] & 1 << (at % 64) != 0
    }

    /// Claims a run; returns what was claimed already.
    fn claim(&mut self, run: Run) -> Option<Finding> {
        let (from, to) = (run.at.max(self.begin), run.end().min(self.end));
        let mut shared: Option<Run> = None;
        for block in from..to {
            if self.get(block) {
                let first = shared.map_or(block, |run| run.at);
                shared = Some(Run { at: first, len: block + 1 - first });
            }
            let at = block - self.begin;
            self.bits[(at / 64) as usize] |= 1 << (at % 64);
        }
        shared.map(Finding::Shared)
    }

    /// The runs that nobody claimed.
    fn unclaimed(&self) -> impl Iterator<Item = Run> {
        let mut at = self.begin;
        std::iter::from_fn(move || {
            let first = (at..self.end).find(|&block| !self.get(block))?;
            at = (first..self.end).find(|&block| self.get(block)).unwrap_or(self.end);
            Some(Run { at: first, len: at - first })
        })
    }
}

/// The least key above `key`.
fn behind<const K: usize>(mut key: [u8; K]) -> Option<[u8; K]> {
    let at = key.iter().rposition(|&byte| byte < 0xff)?;
    key[at] += 1;
    key[at + 1..].fill(0);
    Some(key)
}
