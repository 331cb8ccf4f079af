//! The data devices, and the flushes that make writes to them stable.
//!
//! Invariants:
//! - a device is used only after its label has confirmed that it is the expected data zone;
//! - flushes of a device run one at a time and are numbered; a write that completed when `n`
//!   flushes had begun is stable when a flush numbered above `n` has succeeded;
//! - a failed flush loses, for good, every write that no earlier flush covers;
//! - every request to a device counts as pending until the device answers it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use env::sync::{Notify, Permit, Semaphore};
use env::{Disk, DiskOptions, Env, IoBuf};
use proto::mds::PagInfo;
use types::label::{Label, LabelKind};
use types::limits::{BLOCK, BLOCK_U64};
use types::{Bug, ClientId, Duration, Fault, Instant, PagId, Uuid, planted};

use super::commit::DataContext;
use crate::api::OnEdit;

/// Most writes of one device in flight.
const WRITES_MAX: usize = 128;
/// Ranges of lost flushes that are kept apart; older ones are joined.
const LOST_MAX: usize = 64;

/// Settings for the data devices.
#[derive(Clone)]
pub struct DataConfig {
    /// Paths of devices that differ on this host from those that the server reports.
    pub devices: Vec<(PagId, String)>,
    /// Dirty bytes beyond which writers wait.
    pub dirty_max: usize,
    /// Devices are opened for reading only.
    pub read_only: bool,
    /// Called whenever content changes.
    pub on_edit: Option<OnEdit>,
}

/// The flushes of one device.
#[derive(Default)]
struct Flushes {
    /// Number of flushes begun.
    started: u64,
    /// Number of the last flush that succeeded.
    good: u64,
    running: bool,
    /// Stamps `[from, to)` whose writes are lost.
    lost: Vec<(u64, u64)>,
}

/// What is known of writes with certain stamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stability {
    /// They are stable.
    Yes,
    /// No flush has covered them yet.
    NotYet,
    /// A flush failed.
    Lost,
}

impl Flushes {
    fn stability(&self, (low, high): (u64, u64)) -> Stability {
        if self.lost.iter().any(|&(from, to)| from <= high && low < to) {
            Stability::Lost
        } else if self.good > high {
            Stability::Yes
        } else {
            Stability::NotYet
        }
    }

    fn begin(&mut self) -> u64 {
        self.running = true;
        self.started += 1;
        self.started
    }

    fn end(&mut self, number: u64, good: bool) {
        self.running = false;
        if good {
            self.good = number;
            return;
        }
        // Stamps below `good` are stable; this flush was to make those below `number` stable.
        let from = self.lost.last().map_or(self.good, |&(_, to)| to.max(self.good));
        self.lost.push((from, number));
        if self.lost.len() > LOST_MAX {
            let (_, to) = self.lost.remove(1);
            self.lost[0].1 = to;
        }
    }
}

/// Requests that a device has not answered.
#[derive(Clone, Copy, Default)]
struct PendingRequests {
    requests: usize,
    /// Time of its last answer, or of the first request after that.
    since: Instant,
}

/// A request that a device has not answered.
struct PendingRequest<'a>(&'a DataDisk);

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        let PendingRequests { requests, .. } = self.0.pending.get();
        self.0.pending.set(PendingRequests { requests: requests - 1, since: self.0.env.now() });
    }
}

/// One data zone.
pub(super) struct DataDisk {
    env: Env,
    disk: Disk,
    pending: Cell<PendingRequests>,
    blocks: u64,
    writes: Semaphore,
    /// By their first block.
    in_flight: RefCell<BTreeMap<u64, Flight>>,
    write_done: Notify,
    flushes: RefCell<Flushes>,
    flushed: Notify,
}

/// A write in flight.
#[derive(Clone, Copy)]
struct Flight {
    /// One past its last block.
    end: u64,
    /// The client's session in which it was submitted.
    session: u64,
}

impl DataDisk {
    /// Counts a request until the result is dropped.
    fn begin_request(&self) -> PendingRequest<'_> {
        let PendingRequests { requests, since } = self.pending.get();
        let since = if requests == 0 { self.env.now() } else { since };
        self.pending.set(PendingRequests { requests: requests + 1, since });
        PendingRequest(self)
    }

    /// For how long the device has not answered, although requests are pending.
    pub fn silence(&self) -> Duration {
        let PendingRequests { requests, since } = self.pending.get();
        if requests == 0 { Duration::ZERO } else { self.env.now().since(since) }
    }

    /// Its path.
    pub fn path(&self) -> &str {
        self.disk.path()
    }

    /// Reads whole blocks from block `addr` on.
    pub async fn read(&self, addr: u64, buf: IoBuf) -> (Result<(), Fault>, IoBuf) {
        if !self.contains(addr, buf.len()) {
            return (Err(Fault::Corrupt), buf);
        }
        let _request = self.begin_request();
        let (result, buf) = self.disk.read(addr * BLOCK_U64, buf).await;
        (result.map_err(|_| Fault::Io), buf)
    }

    /// Permits one more write in flight.
    pub async fn write_permit(&self) -> Permit {
        self.writes.acquire(1).await
    }

    /// Writes whole blocks from block `addr` on, and returns the stamp of completion. No write of
    /// an earlier session may be in flight there.
    pub async fn write(
        &self,
        _permit: Permit,
        session: u64,
        addr: u64,
        buf: IoBuf,
    ) -> Result<u64, Fault> {
        if !self.contains(addr, buf.len()) {
            return Err(Fault::Corrupt);
        }
        let end = addr + (buf.len() / BLOCK) as u64;
        self.begin_write(session, addr, end);
        let _request = self.begin_request();
        let (result, _buf) = self.disk.write(addr * BLOCK_U64, buf).await;
        self.in_flight.borrow_mut().remove(&addr);
        self.write_done.notify_all();
        result.map_err(|_| Fault::Io)?;
        Ok(self.flushes.borrow().started)
    }

    /// Waits until no write of an earlier session is in flight in `[addr, end)`. A stalled device
    /// may hold one for longer than the session and its blocks' quarantine.
    pub async fn earlier_writes_done(&self, session: u64, addr: u64, end: u64) {
        loop {
            let done = self.write_done.notified();
            if !self.is_written_earlier(session, addr, end) {
                return;
            }
            done.await;
        }
    }

    /// Is a write of an earlier session in flight in `[addr, end)`?
    pub fn is_written_earlier(&self, session: u64, addr: u64, end: u64) -> bool {
        let writes = self.in_flight.borrow();
        let mut met = writes.range(..end).rev().take_while(|(_, flight)| flight.end > addr);
        met.any(|(_, flight)| flight.session != session)
    }

    /// Of two concurrent writes to one block, either could be the one that stays.
    fn begin_write(&self, session: u64, addr: u64, end: u64) {
        let mut writes = self.in_flight.borrow_mut();
        let before = writes.range(..end).next_back();
        assert!(
            before.is_none_or(|(_, other)| other.end <= addr),
            "two writes of block {addr} in flight at once"
        );
        writes.insert(addr, Flight { end, session });
    }

    /// Is the range inside the zone, and not its label?
    fn contains(&self, addr: u64, bytes: usize) -> bool {
        let len = (bytes / BLOCK) as u64;
        addr > 0 && addr.checked_add(len).is_some_and(|end| end <= self.blocks)
    }

    /// Are writes stable that completed with these lowest and highest stamps?
    pub fn stability(&self, stamps: (u64, u64)) -> Stability {
        self.flushes.borrow().stability(stamps)
    }

    /// Makes writes with these stamps stable. Concurrent calls share flushes.
    pub async fn flush_past(self: &Rc<Self>, stamps: (u64, u64)) -> Stability {
        loop {
            let flushed = self.flushed.notified();
            let state = self.stability(stamps);
            if state != Stability::NotYet {
                return state;
            }
            if !self.flushes.borrow().running {
                let number = self.flushes.borrow_mut().begin();
                let this = self.clone();
                // In a task of its own, so that it ends even if the caller is cancelled.
                self.env.spawn(async move {
                    let skipped = planted(Bug::CommitBeforeStable);
                    let request = this.begin_request();
                    let begun = this.env.now();
                    let mut good = skipped || this.disk.flush().await.is_ok();
                    if planted(Bug::SlowFlushFailed) {
                        good &= this.env.now().since(begun) < Duration::from_millis(100);
                    }
                    drop(request);
                    this.flushes.borrow_mut().end(number, good);
                    this.flushed.notify_all();
                });
            }
            flushed.await;
        }
    }

    /// Shows other processes of this host that `client` is alive and may write.
    pub async fn lock_client(&self, client: ClientId) -> Result<(), String> {
        self.disk.lock_byte(client.0).await.map_err(|error| {
            format!("{}: cannot lock this client's byte: {error}", self.disk.path())
        })
    }
}

/// The data zones by number.
pub(super) struct Disks {
    by_pag: BTreeMap<PagId, Rc<DataDisk>>,
}

impl Disks {
    /// Opens every zone and checks its label.
    pub async fn open(
        env: &Env,
        config: &DataConfig,
        client: ClientId,
        fs: Uuid,
        pags: &[PagInfo],
    ) -> Result<Disks, String> {
        let unknown = |(id, _): &&(PagId, String)| pags.iter().all(|pag| pag.id != *id);
        if let Some((id, path)) = config.devices.iter().find(unknown) {
            return Err(format!(
                "{path} is given for data zone {id}, which this file system does not have"
            ));
        }
        let mut by_pag = BTreeMap::new();
        for pag in pags {
            let here = config.devices.iter().find(|(id, _)| *id == pag.id);
            let path = here.map_or(pag.path.as_str(), |(_, path)| path.as_str());
            let options = DiskOptions { write: !config.read_only, exclusive: false };
            let disk = env
                .open_disk(path, options)
                .await
                .map_err(|error| format!("data zone {}: {error}", pag.id))?;
            check_label(env, &disk, fs, pag)
                .await
                .map_err(|text| format!("data zone {} at {path}: {text}", pag.id))?;
            let disk = DataDisk {
                env: env.clone(),
                disk,
                pending: Cell::default(),
                blocks: pag.blocks,
                writes: Semaphore::new(WRITES_MAX),
                in_flight: RefCell::default(),
                write_done: Notify::new(),
                flushes: RefCell::default(),
                flushed: Notify::new(),
            };
            if !config.read_only {
                disk.lock_client(client).await?;
            }
            by_pag.insert(pag.id, Rc::new(disk));
        }
        Ok(Disks { by_pag })
    }

    /// The zone with this number. A segment that names another zone is damaged metadata.
    pub fn get(&self, pag: PagId) -> Result<&Rc<DataDisk>, Fault> {
        if planted(Bug::ErrorSpreads)
            && self.iter().any(|disk| !disk.flushes.borrow().lost.is_empty())
        {
            return Err(Fault::Io);
        }
        self.by_pag.get(&pag).ok_or(Fault::Corrupt)
    }

    /// All zones.
    pub fn iter(&self) -> impl Iterator<Item = &Rc<DataDisk>> {
        self.by_pag.values()
    }
}

impl DataContext {
    /// See [`crate::boundary::DataHalf::most_silent`].
    pub(super) fn most_silent(&self) -> Option<(&str, Duration)> {
        let all = self.disks.iter().map(|disk| (disk.path(), disk.silence()));
        all.filter(|(_, silence)| *silence > Duration::ZERO).max_by_key(|(_, silence)| *silence)
    }

    /// See [`crate::boundary::DataHalf::device_silent_for`].
    pub(super) async fn device_silent_for(&self, patience: Duration) {
        const POLL: Duration = Duration::from_millis(250);
        let begin = self.env.now();
        loop {
            let silence = self.most_silent().map_or(Duration::ZERO, |(_, silence)| silence);
            if silence.min(self.env.now().since(begin)) >= patience {
                return;
            }
            self.env.sleep(POLL).await;
        }
    }

    /// See [`crate::boundary::DataHalf::writes_in_flight`].
    pub(super) fn writes_in_flight(&self) -> usize {
        self.flights.get()
    }
}

async fn check_label(env: &Env, disk: &Disk, fs: Uuid, pag: &PagInfo) -> Result<(), String> {
    if disk.size() < pag.blocks.saturating_mul(BLOCK_U64) {
        return Err(format!(
            "the device has {} bytes, the zone has {} blocks of {BLOCK}",
            disk.size(),
            pag.blocks
        ));
    }
    let (result, buf) = disk.read(0, env.buffer(BLOCK)).await;
    result.map_err(|error| format!("cannot read its label: {error}"))?;
    let label = Label::decode(&buf).map_err(|error| error.to_string())?;
    if label.kind != LabelKind::Data {
        return Err(format!("its label says that it holds {}, clients open data only", label.kind));
    }
    if label.fs_uuid != fs {
        return Err(format!(
            "it belongs to file system {} ({}), not to {fs}",
            label.fs_uuid, label.fs_name
        ));
    }
    if label.pag != pag.id || label.pag_uuid != pag.uuid {
        return Err(format!(
            "it is zone {} ({}), expected zone {} ({})",
            label.pag, label.pag_uuid, pag.id, pag.uuid
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_is_stable_only_by_a_flush_that_began_after_it() {
        let mut flushes = Flushes::default();
        let first = flushes.begin();
        // The write completed while the first flush ran.
        let stamp = flushes.started;
        flushes.end(first, true);
        assert_eq!(flushes.stability((0, 0)), Stability::Yes);
        assert_eq!(flushes.stability((stamp, stamp)), Stability::NotYet);
        let second = flushes.begin();
        flushes.end(second, true);
        assert_eq!(flushes.stability((stamp, stamp)), Stability::Yes);
    }

    #[test]
    fn failed_flush_loses_writes_that_were_not_stable_and_no_others() {
        let mut flushes = Flushes::default();
        let number = flushes.begin();
        flushes.end(number, true);
        let number = flushes.begin();
        flushes.end(number, false);
        let number = flushes.begin();
        flushes.end(number, true);
        assert_eq!(flushes.stability((0, 0)), Stability::Yes);
        assert_eq!(flushes.stability((1, 1)), Stability::Lost);
        assert_eq!(flushes.stability((2, 2)), Stability::Yes);
    }
}
