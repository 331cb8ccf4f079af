//! The data devices, and the flushes that make writes to them stable.
//!
//! Invariants:
//! - a device is opened once, however many data zones lie on it, and used only after its label has
//!   confirmed that it has the expected one;
//! - a data zone is addressed from the start of its slice. That start comes from the label, and only
//!   [`DataDisk::offset`] adds it;
//! - flushes of a device run one at a time and are numbered; a write that completed when `n`
//!   flushes had begun is stable when a flush numbered above `n` has succeeded;
//! - a failed flush loses, for good, every write that no earlier flush covers;
//! - every request to a device counts as pending until the device answers it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use env::sync::{Notify, Permit, Semaphore};
use env::{Disk, DiskOptions, Env, IoBuf};
use label::Label;
use proto::mds::PagInfo;
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
struct PendingRequest<'a>(&'a DataDevice);

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        let PendingRequests { requests, .. } = self.0.pending.get();
        self.0.pending.set(PendingRequests { requests: requests - 1, since: self.0.env.now() });
    }
}

/// An open device, with one or more data zones.
pub(super) struct DataDevice {
    env: Env,
    disk: Disk,
    pending: Cell<PendingRequests>,
    writes: Semaphore,
    flushes: RefCell<Flushes>,
    flushed: Notify,
}

/// One data zone: a slice of a device.
pub(super) struct DataDisk {
    device: Rc<DataDevice>,
    /// First block of the slice on the device.
    start: u64,
    /// Blocks of the zone, block 0 included.
    blocks: u64,
    /// By their first block.
    in_flight: RefCell<BTreeMap<u64, Flight>>,
    write_done: Notify,
}

/// A write in flight.
#[derive(Clone, Copy)]
struct Flight {
    /// One past its last block.
    end: u64,
    /// The client's session in which it was submitted.
    session: u64,
}

impl DataDevice {
    fn new(env: &Env, disk: Disk) -> DataDevice {
        DataDevice {
            env: env.clone(),
            disk,
            pending: Cell::default(),
            writes: Semaphore::new(WRITES_MAX),
            flushes: RefCell::default(),
            flushed: Notify::new(),
        }
    }

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

    /// Makes writes with these stamps stable. Concurrent calls share flushes.
    async fn flush_past(self: &Rc<Self>, stamps: (u64, u64)) -> Stability {
        loop {
            let flushed = self.flushed.notified();
            let state = self.flushes.borrow().stability(stamps);
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

impl DataDisk {
    /// Byte on the device of block `addr` of the zone.
    fn offset(&self, addr: u64) -> u64 {
        (self.start + addr) * BLOCK_U64
    }

    /// Reads whole blocks from block `addr` on.
    pub async fn read(&self, addr: u64, buf: IoBuf) -> (Result<(), Fault>, IoBuf) {
        if !self.contains(addr, buf.len()) {
            return (Err(Fault::Corrupt), buf);
        }
        let _request = self.device.begin_request();
        let (result, buf) = self.device.disk.read(self.offset(addr), buf).await;
        (result.map_err(|_| Fault::Io), buf)
    }

    /// Permits one more write in flight.
    pub async fn write_permit(&self) -> Permit {
        self.device.writes.acquire(1).await
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
        let _request = self.device.begin_request();
        let (result, _buf) = self.device.disk.write(self.offset(addr), buf).await;
        self.in_flight.borrow_mut().remove(&addr);
        self.write_done.notify_all();
        result.map_err(|_| Fault::Io)?;
        Ok(self.device.flushes.borrow().started)
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

    /// Is the range inside the zone, and not its block 0?
    fn contains(&self, addr: u64, bytes: usize) -> bool {
        let len = (bytes / BLOCK) as u64;
        addr > 0 && addr.checked_add(len).is_some_and(|end| end <= self.blocks)
    }

    /// Are writes stable that completed with these lowest and highest stamps?
    pub fn stability(&self, stamps: (u64, u64)) -> Stability {
        self.device.flushes.borrow().stability(stamps)
    }

    /// Makes writes with these stamps stable. Concurrent calls share flushes, also those for other
    /// zones of the device.
    pub async fn flush_past(&self, stamps: (u64, u64)) -> Stability {
        self.device.flush_past(stamps).await
    }
}

/// The data zones by number, and their devices.
pub(super) struct Disks {
    by_pag: BTreeMap<PagId, Rc<DataDisk>>,
    devices: Vec<Rc<DataDevice>>,
}

impl Disks {
    /// Opens every device and checks its label for each zone that lies on it.
    pub async fn open(
        env: &Env,
        config: &DataConfig,
        client: ClientId,
        fs: Uuid,
        pags: &[PagInfo],
        log: impl Fn(&str),
    ) -> Result<Disks, String> {
        let unknown = |(id, _): &&(PagId, String)| pags.iter().all(|pag| pag.id != *id);
        if let Some((id, path)) = config.devices.iter().find(unknown) {
            return Err(format!(
                "{path} is given for data zone {id}, which this file system does not have"
            ));
        }
        let mut disks = Disks { by_pag: BTreeMap::new(), devices: Vec::new() };
        let mut opened: Vec<(String, Label, Rc<DataDevice>)> = Vec::new();
        for pag in pags {
            let here = config.devices.iter().find(|(id, _)| *id == pag.id);
            let path = here.map_or(pag.path.as_str(), |(_, path)| path.as_str());
            let at = |text| format!("data zone {} at {path}: {text}", pag.id);
            if !opened.iter().any(|(other, ..)| other == path) {
                let (label, device) = open_device(env, config, path, &log)
                    .await
                    .map_err(|text| format!("data zone {}: {text}", pag.id))?;
                let same = |(_, other, _): &&(String, Label, Rc<DataDevice>)| {
                    other.device_uuid == label.device_uuid
                };
                // Under another path, but the same device: its locks exclude a second open file.
                let device = match opened.iter().find(same) {
                    Some((.., same)) => same.clone(),
                    None => {
                        // Of a device that is not ours, not even a lock is taken.
                        slice_of(&label, &device.disk, fs, pag).map_err(at)?;
                        if !config.read_only {
                            device.lock_client(client).await?;
                        }
                        disks.devices.push(device.clone());
                        device
                    }
                };
                opened.push((path.to_owned(), label, device));
            }
            let Some((_, label, device)) = opened.iter().find(|(other, ..)| other == path) else {
                continue;
            };
            let start = slice_of(label, &device.disk, fs, pag).map_err(at)?;
            let disk = DataDisk {
                device: device.clone(),
                start,
                blocks: pag.blocks,
                in_flight: RefCell::default(),
                write_done: Notify::new(),
            };
            disks.by_pag.insert(pag.id, Rc::new(disk));
        }
        Ok(disks)
    }

    /// The zone with this number. A segment that names another zone is damaged metadata.
    pub fn get(&self, pag: PagId) -> Result<&Rc<DataDisk>, Fault> {
        self.by_pag.get(&pag).ok_or(Fault::Corrupt)
    }

    /// All devices.
    pub fn devices(&self) -> impl Iterator<Item = &Rc<DataDevice>> {
        self.devices.iter()
    }
}

/// Opens the device at `path` and reads its label.
async fn open_device(
    env: &Env,
    config: &DataConfig,
    path: &str,
    log: impl Fn(&str),
) -> Result<(Label, Rc<DataDevice>), String> {
    let options = DiskOptions { write: !config.read_only, exclusive: false };
    // The error names the path.
    let disk = env.open_disk(path, options).await.map_err(|error| error.to_string())?;
    let found = label::read(&disk).await.map_err(|error| format!("{path}: {error}"))?;
    if let Some(damage) = &found.damage {
        log(&format!("{path}: {damage}; `redbud fsck --repair` writes it anew"));
    }
    Ok((found.label, Rc::new(DataDevice::new(env, disk))))
}

/// Where the slice of this zone begins on the device.
fn slice_of(label: &Label, disk: &Disk, fs: Uuid, pag: &PagInfo) -> Result<u64, String> {
    let slice = label.expect_data(fs, pag.id, Some(pag.uuid))?;
    let end = slice.start.saturating_add(pag.blocks);
    if pag.blocks > slice.blocks || end.saturating_mul(BLOCK_U64) > disk.size() {
        return Err(format!(
            "its label gives the zone {} blocks from block {} on, the device has {}, and the metadata \
             say {} blocks: run `redbud fsck`",
            slice.blocks,
            slice.start,
            disk.size() / BLOCK_U64,
            pag.blocks
        ));
    }
    Ok(slice.start)
}

impl DataContext {
    /// See [`crate::boundary::DataHalf::most_silent`].
    pub(super) fn most_silent(&self) -> Option<(&str, Duration)> {
        let all = self.disks.devices().map(|device| (device.path(), device.silence()));
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
