//! What reads objects.
//!
//! Invariants:
//! - a read returns the bytes of one state of the mapping. It waits for writes in flight to the
//!   blocks that it reads, and nobody takes blocks that it may still read
//!   ([`super::space`]);
//! - bytes that do not match their checksum never leave the store.

use engine::cost::Cost;
use proto::ost::ObjectRun;
use types::limits::BLOCK;
use types::{Fault, ObjectId, crc32c};

use super::format::{BLOCKS_MAX, OBJECTS, Run, Segment, object_key};
use super::{Found, ObjectStore, map};

/// Segments that are looked at in one transaction.
const STEP: usize = 1024;

impl ObjectStore {
    /// Reads blocks, and checks them. Blocks of an object that does not exist are holes.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if a block does not match its checksum; `Invalid` beyond the last block that
    /// an object may have.
    pub async fn read(&self, object: ObjectId, block: u64, len: u32) -> Result<Found, Fault> {
        let end = block.checked_add(u64::from(len)).filter(|&end| end <= BLOCKS_MAX);
        let end = end.ok_or(Fault::Invalid)?;
        let _reading = self.space.begin_read();
        let (parts, sums) = self.look_up(object, block, end).await?;
        let data = self.read_runs(&parts).await?;
        let mut found = data.chunks_exact(BLOCK).map(crc32c).collect::<Vec<u32>>();
        if self.checksums && found != sums {
            let counters = &mut *self.counters.borrow_mut();
            counters.corrupt +=
                found.iter().zip(&sums).filter(|(found, sum)| found != sum).count() as u64;
            return Err(Fault::Corrupt);
        }
        found.truncate(data.len() / BLOCK);
        let counters = &mut *self.counters.borrow_mut();
        counters.reads += 1;
        counters.read_blocks += found.len() as u64;
        Ok(Found { runs: logical(&parts, block), data, sums: found })
    }

    /// What of an object lies in `block..end` and where, and its checksums if they are kept.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) async fn look_up(
        &self,
        object: ObjectId,
        block: u64,
        end: u64,
    ) -> Result<(Vec<Segment>, Vec<u32>), Fault> {
        let look = self.engine.run(Cost::READ, |txn| {
            let mut parts = map::overlapping(txn, object, block, end, (end - block) as usize)?;
            parts.iter_mut().for_each(|segment| *segment = segment.part(block, end));
            let mut sums = Vec::new();
            if self.checksums {
                let all = map::sums(txn, object, block, end - block)?;
                for part in &parts {
                    let from = (part.block - block) as usize;
                    sums.extend_from_slice(&all[from..from + part.len as usize]);
                }
            }
            Ok((parts, sums))
        });
        Ok(look.await.map_err(|error| error.fault())?.0)
    }

    /// Reads where segments lie, when nothing is being written there any more.
    pub(super) async fn read_runs(&self, parts: &[Segment]) -> Result<env::IoBuf, Fault> {
        let mut runs: Vec<Run> = Vec::with_capacity(parts.len());
        for part in parts {
            match runs.last_mut() {
                Some(last) if last.end() == part.at => last.len += part.len,
                _ => runs.push(part.run()),
            }
        }
        self.flight.settled(&runs).await.map_err(|error| error.fault())?;
        self.flight.content.read(&runs).await.map_err(|error| error.fault())
    }

    /// Objects from number `from` on, at most `max`, in order.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub async fn objects(&self, from: ObjectId, max: usize) -> Result<Vec<ObjectId>, Fault> {
        let look = self.engine.run(Cost::READ, |txn| {
            let mut found = Vec::new();
            OBJECTS.for_each(txn, &object_key(from), |key, _| {
                found.push(ObjectId(u64::from_be_bytes(*key)));
                found.len() < max
            })?;
            Ok(found)
        });
        Ok(look.await.map_err(|error| error.fault())?.0)
    }

    /// The runs of blocks from `from` on that hold something, at most `max`, and whether these are
    /// all.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub async fn runs(
        &self,
        object: ObjectId,
        from: u64,
        max: u32,
    ) -> Result<(Vec<ObjectRun>, bool), Fault> {
        let (mut out, mut at): (Vec<ObjectRun>, u64) = (Vec::new(), from);
        loop {
            let look = self
                .engine
                .run(Cost::READ, |txn| map::overlapping(txn, object, at, u64::MAX, STEP));
            let found = look.await.map_err(|error| error.fault())?.0;
            let Some(last) = found.last().copied() else { return Ok((out, true)) };
            for segment in found {
                let part = segment.part(from, u64::MAX);
                let full = out.len() >= max as usize;
                match out.last_mut() {
                    Some(last) if last.block + last.len == part.block => last.len += part.len,
                    _ if full => return Ok((out, false)),
                    _ => out.push(ObjectRun { block: part.block, len: part.len }),
                }
            }
            at = last.end();
        }
    }
}

/// The blocks of segments, counted from `from`.
fn logical(parts: &[Segment], from: u64) -> Vec<ObjectRun> {
    let mut out: Vec<ObjectRun> = Vec::new();
    for part in parts {
        let block = part.block - from;
        match out.last_mut() {
            Some(last) if last.block + last.len == block => last.len += part.len,
            _ => out.push(ObjectRun { block, len: part.len }),
        }
    }
    out
}
