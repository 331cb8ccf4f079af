//! The scrub of a target's content: reads all of it while the target is in use, and compares it
//! with its checksums.
//!
//! Invariant: a finding is about a block as it was at one moment: it was mapped, and its bytes did
//! not match, or could not be read.

use std::cell::RefCell;

use engine::cost::Cost;
use types::limits::{BLOCK, BLOCK_U64};
use types::{Duration, Fault, ObjectId, crc32c};

use super::format::{OBJECTS, Segment};
use super::{ObjectStore, map};

/// Blocks of one read at most.
const READ: u64 = 256;
/// Findings that are kept at most.
const FINDINGS_MAX: usize = 1024;

/// What a scrub has found.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Scrubbed {
    /// Objects that were there.
    pub objects: u64,
    /// Blocks that were read.
    pub blocks: u64,
    /// Blocks that are damaged.
    pub damaged: u64,
    /// The first of them.
    pub findings: Vec<Damaged>,
}

/// A damaged block of content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damaged {
    /// The object.
    pub object: ObjectId,
    /// Its block.
    pub block: u64,
    /// Where it lies in the content slice.
    pub at: u64,
    /// `Io`: it cannot be read; `Corrupt`: it does not match its checksum.
    pub fault: Fault,
}

impl Scrubbed {
    fn add(&mut self, object: ObjectId, segment: &Segment, fault: Fault) {
        self.damaged += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Damaged { object, block: segment.block, at: segment.at, fault });
        }
    }
}

impl ObjectStore {
    /// Reads all content at `rate` bytes per second at most (0: as fast as the device gives), and
    /// verifies it if checksums are kept. `out` has what is read and found so far.
    ///
    /// # Errors
    /// `Io` if the store has stopped; `Corrupt` if its records are damaged: a check says which.
    pub async fn scrub_into(&self, rate: u64, out: &RefCell<Scrubbed>) -> Result<(), Fault> {
        let mut from = Some(0u64);
        while let Some(at) = from {
            let next = self.engine.run(Cost::READ, |txn| OBJECTS.next(txn, &at.to_be_bytes()));
            let Some((key, _)) = next.await.map_err(|error| error.fault())?.0 else { break };
            let object = ObjectId(u64::from_be_bytes(key));
            out.borrow_mut().objects += 1;
            self.scrub_object(object, rate, out).await?;
            from = object.0.checked_add(1);
        }
        Ok(())
    }

    /// As [`ObjectStore::scrub_into`], for who waits for its end.
    ///
    /// # Errors
    /// As there.
    pub async fn scrub(&self, rate: u64) -> Result<Scrubbed, Fault> {
        let out = RefCell::default();
        self.scrub_into(rate, &out).await?;
        Ok(out.into_inner())
    }

    async fn scrub_object(
        &self,
        object: ObjectId,
        rate: u64,
        out: &RefCell<Scrubbed>,
    ) -> Result<(), Fault> {
        let mut at = 0;
        loop {
            let next =
                self.engine.run(Cost::READ, |txn| map::overlapping(txn, object, at, u64::MAX, 1));
            let found = next.await.map_err(|error| error.fault())?.0;
            let Some(first) = found.first() else { return Ok(()) };
            let begin = first.block.max(at);
            if !self.space.holds(first.run()) {
                // A check says what is wrong with it.
                out.borrow_mut().add(object, first, Fault::Corrupt);
                at = first.end();
                continue;
            }
            let end = begin.saturating_add(READ);
            let read = self.scrub_blocks(object, begin, end, out).await?;
            if let Some(nanos) = (read * BLOCK_U64 * 1_000_000_000).checked_div(rate) {
                self.flight.content.env.sleep(Duration::from_nanos(nanos)).await;
            }
            at = end;
        }
    }

    /// Reads what is in `begin..end` of an object; returns how many blocks these are.
    async fn scrub_blocks(
        &self,
        object: ObjectId,
        begin: u64,
        end: u64,
        out: &RefCell<Scrubbed>,
    ) -> Result<u64, Fault> {
        let _reading = self.space.begin_read();
        let (parts, sums) = self.look_up(object, begin, end).await?;
        let blocks: Vec<Segment> = parts
            .iter()
            .flat_map(|part| (part.block..part.end()).map(|block| part.part(block, block + 1)))
            .collect();
        out.borrow_mut().blocks += blocks.len() as u64;
        match self.read_runs(&parts).await {
            Ok(data) => {
                for ((block, sum), bytes) in blocks.iter().zip(&sums).zip(data.chunks_exact(BLOCK))
                {
                    if crc32c(bytes) != *sum {
                        out.borrow_mut().add(object, block, Fault::Corrupt);
                    }
                }
            }
            Err(_) => {
                let mut sums = sums.iter();
                for block in &blocks {
                    let sum = sums.next();
                    match self.read_runs(std::slice::from_ref(block)).await {
                        Ok(data) if sum.is_none_or(|sum| crc32c(&data) == *sum) => {}
                        Ok(_) => out.borrow_mut().add(object, block, Fault::Corrupt),
                        // The engine says whether the store has stopped.
                        Err(fault) => {
                            self.engine.begin(Cost::READ).map_err(|_| Fault::Io)?.abort();
                            out.borrow_mut().add(object, block, fault);
                        }
                    }
                }
            }
        }
        Ok(blocks.len() as u64)
    }
}
