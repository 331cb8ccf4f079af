//! Reads and writes whole blocks of the metadata, which lie in a slice of a device.
//!
//! Invariants:
//! - this module seals every block before it writes it home; the reader verifies it;
//! - blocks are numbered from the start of the slice; only this module adds that start.

pub mod copies;
pub mod label;
pub mod log;
pub mod pairing;
pub mod shared;

use std::collections::VecDeque;

use env::{Disk, Env, IoBuf, Join};
use types::MetaBlock;
use types::limits::{BLOCK, BLOCK_U64};

use crate::error::StoreError;
use crate::format::block::{self, Block};
use crate::format::superblock::Superblock;

/// Most blocks in one request.
pub const RUN_MAX: usize = 256;
/// Most requests in flight.
const REQUESTS_MAX: usize = 16;
/// Bytes of zeros in one write.
const ZEROS: u64 = 1 << 20;

/// A slice of an open device and the environment that it belongs to.
#[derive(Clone)]
pub struct Device {
    /// Where it lives.
    pub env: Env,
    /// The device itself.
    pub disk: Disk,
    start: u64,
    blocks: u64,
}

impl Device {
    /// The slice that takes the whole device but for the label's second copy, its last block.
    pub fn whole(env: &Env, disk: &Disk) -> Device {
        let blocks = (disk.size() / BLOCK_U64).saturating_sub(1);
        Device { env: env.clone(), disk: disk.clone(), start: 0, blocks }
    }

    /// The slice of `blocks` blocks from block `start` of the device on.
    pub fn of(device: &Device, start: u64, blocks: u64) -> Device {
        Device { start, blocks, ..device.clone() }
    }

    /// Does the slice take the whole device, but for the label's second copy?
    pub(crate) fn is_whole(&self) -> bool {
        self.start == 0 && self.blocks == (self.disk.size() / BLOCK_U64).saturating_sub(1)
    }

    /// First block of the slice on the device.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Blocks of the slice.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(crate) fn error(&self, what: &'static str, error: &std::io::Error) -> StoreError {
        StoreError::io(what, self.disk.path(), error)
    }

    /// Reads `count` blocks from `first` on.
    ///
    /// # Errors
    /// `Io`.
    pub async fn read(&self, first: MetaBlock, count: usize) -> Result<IoBuf, StoreError> {
        self.read_bytes(first.0 * BLOCK_U64, count * BLOCK).await
    }

    /// Reads `len` bytes at `offset` of the slice, both multiples of 4096.
    pub(crate) async fn read_bytes(&self, offset: u64, len: usize) -> Result<IoBuf, StoreError> {
        // A read fills the whole buffer or fails.
        let (result, buf) =
            self.disk.read(self.start * BLOCK_U64 + offset, IoBuf::unspecified(len)).await;
        result.map(|()| buf).map_err(|error| self.error("reading", &error))
    }

    /// Writes `buf` at byte `offset` of the slice.
    pub(crate) async fn write_bytes(&self, offset: u64, buf: IoBuf) -> Result<(), StoreError> {
        let (result, _) = self.disk.write(self.start * BLOCK_U64 + offset, buf).await;
        result.map_err(|error| self.error("writing", &error))
    }

    /// Makes everything written so far stable.
    ///
    /// # Errors
    /// `Io`.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.disk.flush().await.map_err(|error| self.error("flushing", &error))
    }

    /// Seals blocks and writes them home in the order of their addresses.
    pub(crate) async fn write_home(
        &self,
        mut blocks: Vec<(MetaBlock, Box<Block>)>,
    ) -> Result<(), StoreError> {
        blocks.sort_unstable_by_key(|(block, _)| *block);
        let mut requests = WriteQueue::new(self);
        let mut rest = &mut blocks[..];
        while let Some((first, _)) = rest.first() {
            let first = *first;
            let adjoins = |(index, entry): (usize, &(MetaBlock, Box<Block>))| {
                entry.0.0 == first.0 + index as u64
            };
            let len = rest.iter().enumerate().take(RUN_MAX).take_while(|&e| adjoins(e)).count();
            let (run, after) = rest.split_at_mut(len);
            let mut buf = self.env.buffer(len * BLOCK);
            for ((_, data), out) in run.iter_mut().zip(buf.chunks_exact_mut(BLOCK)) {
                block::seal(&mut data[..]);
                out.copy_from_slice(&data[..]);
            }
            requests.write(first.0 * BLOCK_U64, buf).await?;
            rest = after;
        }
        requests.finish().await
    }

    /// Writes zeros to the `len` bytes at `start`, both multiples of 4096.
    pub(crate) async fn write_zeros(&self, start: u64, len: u64) -> Result<(), StoreError> {
        let (mut at, end) = (start, start + len);
        while at < end {
            let len = (end - at).min(ZEROS);
            self.write_bytes(at, self.env.buffer(len as usize)).await?;
            at += len;
        }
        Ok(())
    }

    /// Writes copy `index` of the superblock.
    pub(crate) async fn write_super(
        &self,
        superblock: &Superblock,
        index: usize,
    ) -> Result<(), StoreError> {
        let mut buf = self.env.buffer(BLOCK);
        superblock.encode(index, &mut buf);
        let place = Superblock::place(index, superblock.blocks);
        self.write_bytes(place.0 * BLOCK_U64, buf).await
    }
}

/// Writes in flight. The last write runs in the caller's task, so a single write needs no task of
/// its own.
struct WriteQueue<'a> {
    device: &'a Device,
    pending: VecDeque<Join<Result<(), StoreError>>>,
    last: Option<(u64, IoBuf)>,
}

impl<'a> WriteQueue<'a> {
    fn new(device: &'a Device) -> WriteQueue<'a> {
        WriteQueue { device, pending: VecDeque::new(), last: None }
    }

    async fn write(&mut self, offset: u64, buf: IoBuf) -> Result<(), StoreError> {
        if let Some((offset, buf)) = self.last.replace((offset, buf)) {
            let device = self.device.clone();
            let task = async move { device.write_bytes(offset, buf).await };
            self.pending.push_back(self.device.env.spawn_join(task));
        }
        while self.pending.len() >= REQUESTS_MAX {
            self.next().await?;
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<(), StoreError> {
        match self.pending.pop_front() {
            Some(join) => join.await,
            None => Ok(()),
        }
    }

    async fn finish(mut self) -> Result<(), StoreError> {
        let mut result = Ok(());
        if let Some((offset, buf)) = self.last.take() {
            result = self.device.write_bytes(offset, buf).await;
        }
        while !self.pending.is_empty() {
            result = result.and(self.next().await);
        }
        result
    }
}
