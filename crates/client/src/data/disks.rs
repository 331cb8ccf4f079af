//! The data devices, and the flushes that make what was written to them stable.
//!
//! Invariants:
//! - a device is used only after its label said that it is the data zone expected;
//! - flushes of a device run one at a time and are numbered; a write that completed
//!   when `n` flushes had begun is stable when a flush numbered above `n` succeeded;
//! - a failed flush loses every write that no earlier flush covers, for good;
//! - every request to a device counts as awaited until the device answers it.

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

/// Writes of one device in flight at most.
const WRITES_MAX: usize = 128;
/// Ranges of lost flushes that are told apart; older ones are joined.
const LOST_MAX: usize = 64;

/// How data devices are used.
#[derive(Clone, Debug)]
pub struct DataConfig {
    /// Paths of devices that lie elsewhere here than the server says.
    pub devices: Vec<(PagId, String)>,
    /// Dirty bytes before writers wait.
    pub dirty_max: usize,
    /// Devices are opened for reading only.
    pub read_only: bool,
    /// Who looks on as content changes, if anyone.
    pub on_edit: Option<OnEdit>,
}

/// The flushes of one device.
#[derive(Default)]
struct Flushes {
    /// Flushes begun.
    started: u64,
    /// Number of the last that succeeded.
    good: u64,
    running: bool,
    /// Stamps `[from, to)` whose writes are lost.
    lost: Vec<(u64, u64)>,
}

/// What is known of the writes with some stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stable {
    /// They are stable.
    Yes,
    /// No flush has covered them yet.
    NotYet,
    /// A flush failed.
    Lost,
}

impl Flushes {
    fn state(&self, (low, high): (u64, u64)) -> Stable {
        if self.lost.iter().any(|&(from, to)| from <= high && low < to) {
            Stable::Lost
        } else if self.good > high {
            Stable::Yes
        } else {
            Stable::NotYet
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
        // Stamps below `good` are stable; those below `number` were to become so.
        let from = self.lost.last().map_or(self.good, |&(_, to)| to.max(self.good));
        self.lost.push((from, number));
        if self.lost.len() > LOST_MAX {
            let (_, to) = self.lost.remove(1);
            self.lost[0].1 = to;
        }
    }
}

/// What a device owes.
#[derive(Clone, Copy, Default)]
struct Awaited {
    requests: usize,
    /// Its last answer, or the first request after that.
    since: Instant,
}

/// A request that a device has not answered.
struct Asked<'a>(&'a DataDisk);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let Awaited { requests, .. } = self.0.awaited.get();
        self.0.awaited.set(Awaited { requests: requests - 1, since: self.0.env.now() });
    }
}

/// One data zone.
pub(super) struct DataDisk {
    env: Env,
    disk: Disk,
    awaited: Cell<Awaited>,
    blocks: u64,
    writes: Semaphore,
    /// Writes in flight, by their first block.
    in_flight: RefCell<BTreeMap<u64, Flight>>,
    landed: Notify,
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
    /// A request begins.
    fn ask(&self) -> Asked<'_> {
        let Awaited { requests, since } = self.awaited.get();
        let since = if requests == 0 { self.env.now() } else { since };
        self.awaited.set(Awaited { requests: requests + 1, since });
        Asked(self)
    }

    /// For how long it has answered nothing although it was asked.
    pub fn silence(&self) -> Duration {
        let Awaited { requests, since } = self.awaited.get();
        if requests == 0 { Duration::ZERO } else { self.env.now().since(since) }
    }

    /// Its path.
    pub fn path(&self) -> &str {
        self.disk.path()
    }

    /// Reads whole blocks from block `addr` on.
    pub async fn read(&self, addr: u64, buf: IoBuf) -> (Result<(), Fault>, IoBuf) {
        if !self.holds(addr, buf.len()) {
            return (Err(Fault::Corrupt), buf);
        }
        let _asked = self.ask();
        let (result, buf) = self.disk.read(addr * BLOCK_U64, buf).await;
        (result.map_err(|_| Fault::Io), buf)
    }

    /// The right to have one more write in flight.
    pub async fn slot(&self) -> Permit {
        self.writes.acquire(1).await
    }

    /// Writes whole blocks from block `addr` on, in a session of the client; the stamp is that of
    /// its completion. No write of an earlier session may be in flight there.
    pub async fn write(
        &self,
        _slot: Permit,
        session: u64,
        addr: u64,
        buf: IoBuf,
    ) -> Result<u64, Fault> {
        if !self.holds(addr, buf.len()) {
            return Err(Fault::Corrupt);
        }
        let end = addr + (buf.len() / BLOCK) as u64;
        self.begin_write(session, addr, end);
        let _asked = self.ask();
        let (result, _buf) = self.disk.write(addr * BLOCK_U64, buf).await;
        self.in_flight.borrow_mut().remove(&addr);
        self.landed.notify_all();
        result.map_err(|_| Fault::Io)?;
        Ok(self.flushes.borrow().started)
    }

    /// Waits for writes of earlier sessions that are in flight in `[addr, end)`: a device that
    /// stood still may hold one for longer than its session, and then its blocks' quarantine, last.
    pub async fn earlier_landed(&self, session: u64, addr: u64, end: u64) {
        loop {
            let landed = self.landed.notified();
            if !self.is_written_earlier(session, addr, end) {
                return;
            }
            landed.await;
        }
    }

    /// Is a write of an earlier session in flight in `[addr, end)`?
    pub fn is_written_earlier(&self, session: u64, addr: u64, end: u64) -> bool {
        let writes = self.in_flight.borrow();
        let mut met = writes.range(..end).rev().take_while(|(_, flight)| flight.end > addr);
        met.any(|(_, flight)| flight.session != session)
    }

    /// Two writes to one block at a time would leave it to chance which of them stays.
    fn begin_write(&self, session: u64, addr: u64, end: u64) {
        let mut writes = self.in_flight.borrow_mut();
        let before = writes.range(..end).next_back();
        assert!(
            before.is_none_or(|(_, other)| other.end <= addr),
            "two writes of block {addr} at once"
        );
        writes.insert(addr, Flight { end, session });
    }

    /// Is the range inside the zone, and not its label?
    fn holds(&self, addr: u64, bytes: usize) -> bool {
        let len = (bytes / BLOCK) as u64;
        addr > 0 && addr.checked_add(len).is_some_and(|end| end <= self.blocks)
    }

    /// Are writes that completed with the lowest and highest stamps given stable?
    pub fn stable(&self, stamps: (u64, u64)) -> Stable {
        self.flushes.borrow().state(stamps)
    }

    /// Makes writes that completed with these stamps stable. Calls at the same time share flushes.
    pub async fn flush_past(self: &Rc<Self>, stamps: (u64, u64)) -> Stable {
        loop {
            let flushed = self.flushed.notified();
            let state = self.stable(stamps);
            if state != Stable::NotYet {
                return state;
            }
            if !self.flushes.borrow().running {
                let number = self.flushes.borrow_mut().begin();
                let this = self.clone();
                // In a task of its own: it ends even if whoever asked for it went away.
                self.env.spawn(async move {
                    let skipped = planted(Bug::CommitBeforeStable);
                    let asked = this.ask();
                    let begun = this.env.now();
                    let mut good = skipped || this.disk.flush().await.is_ok();
                    if planted(Bug::SlowFlushFailed) {
                        good &= this.env.now().since(begun) < Duration::from_millis(100);
                    }
                    drop(asked);
                    this.flushes.borrow_mut().end(number, good);
                    this.flushed.notify_all();
                });
            }
            flushed.await;
        }
    }

    /// Shows other processes of this host that `client` lives and may write.
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
                awaited: Cell::default(),
                blocks: pag.blocks,
                writes: Semaphore::new(WRITES_MAX),
                in_flight: RefCell::default(),
                landed: Notify::new(),
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

    /// The zone with this number. Extents that name another are damaged metadata.
    pub fn get(&self, pag: PagId) -> Result<&Rc<DataDisk>, Fault> {
        self.by_pag.get(&pag).ok_or(Fault::Corrupt)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Rc<DataDisk>> {
        self.by_pag.values()
    }
}

impl DataContext {
    /// The device that has answered nothing for the longest time although it was asked, and that
    /// time.
    pub fn most_silent(&self) -> Option<(&str, Duration)> {
        let all = self.disks.iter().map(|disk| (disk.path(), disk.silence()));
        all.filter(|(_, silence)| *silence > Duration::ZERO).max_by_key(|(_, silence)| *silence)
    }

    /// Ends when a device has answered nothing for `patience` from now on, although it was asked.
    pub async fn unanswered(&self, patience: Duration) {
        const LOOK: Duration = Duration::from_millis(250);
        let begin = self.env.now();
        loop {
            let silence = self.most_silent().map_or(Duration::ZERO, |(_, silence)| silence);
            if silence.min(self.env.now().since(begin)) >= patience {
                return;
            }
            self.env.sleep(LOOK).await;
        }
    }

    /// Writes that were launched and have not ended.
    pub fn writes_in_flight(&self) -> usize {
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
    fn a_write_is_stable_only_by_a_flush_that_began_after_it() {
        let mut flushes = Flushes::default();
        let first = flushes.begin();
        // It completed while the first flush ran.
        let stamp = flushes.started;
        flushes.end(first, true);
        assert_eq!(flushes.state((0, 0)), Stable::Yes);
        assert_eq!(flushes.state((stamp, stamp)), Stable::NotYet);
        let second = flushes.begin();
        flushes.end(second, true);
        assert_eq!(flushes.state((stamp, stamp)), Stable::Yes);
    }

    #[test]
    fn a_failed_flush_loses_what_was_not_stable_and_nothing_else() {
        let mut flushes = Flushes::default();
        let number = flushes.begin();
        flushes.end(number, true);
        let number = flushes.begin();
        flushes.end(number, false);
        let number = flushes.begin();
        flushes.end(number, true);
        assert_eq!(flushes.state((0, 0)), Stable::Yes);
        assert_eq!(flushes.state((1, 1)), Stable::Lost);
        assert_eq!(flushes.state((2, 2)), Stable::Yes);
    }
}
