//! A disk in memory that knows what is stable, records its events, and fails on demand.
//!
//! Invariants:
//! - a read sees every write that completed before the read was submitted;
//! - a write is stable once a flush that was submitted after its completion has
//!   succeeded, and may be unstable until then;
//! - a failed flush makes nothing stable, and no later flush makes stable what the failed one
//!   covered and the same open file wrote;
//! - the present content, the stable content and the recording share pages, so each write is
//!   stored once.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use types::Instant;

use super::crash::{Event, Recording, Surviving};
use super::image::{Image, PAGE, Page, pages_of, zero_page};
use super::mechanics::{DiskModel, DiskReport, DiskRequest, Mechanics};
use super::rng::SimRng;
use super::watch::{self, DiskEvent};

/// A kind of disk operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DiskAction {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A discard.
    Discard,
}

/// The error of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskFault {
    /// EIO.
    Io,
    /// ENOSPC.
    NoSpace,
}

impl DiskFault {
    fn error(self) -> io::Error {
        io::Error::from_raw_os_error(match self {
            DiskFault::Io => libc::EIO,
            DiskFault::NoSpace => libc::ENOSPC,
        })
    }
}

/// The number of operations of each kind that were submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
}

/// A disk in memory. Clones are the same disk; it may be attached to several
/// worlds, one after the other.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

/// A write that may be unstable.
#[derive(Clone)]
pub(crate) struct Write {
    pub(crate) id: u64,
    /// The open file that it was written through.
    file: u64,
    pub(crate) first_page: u64,
    pub(crate) pages: Vec<Page>,
    pub(crate) completed: bool,
    /// A flush that should have covered it failed: no later one does. It then has one page.
    pub(crate) stuck: bool,
}

impl Write {
    fn covers(&self, page: u64) -> bool {
        (self.first_page..self.first_page + self.pages.len() as u64).contains(&page)
    }

    /// A flush failed for it: splits it, so that a later write to a page can replace that page.
    fn split_stuck(self) -> impl Iterator<Item = Write> {
        let Write { id, file, first_page, pages, completed, .. } = self;
        (first_page..).zip(pages).map(move |(first_page, page)| Write {
            id,
            file,
            first_page,
            pages: vec![page],
            completed,
            stuck: true,
        })
    }
}

/// Fails the `nth` operation from now (counted down), and all later ones if `lasting`.
struct Planned {
    action: DiskAction,
    nth: u64,
    fault: DiskFault,
    lasting: bool,
}

/// The nodes that a state of a disk concerns.
#[derive(Default)]
struct Nodes {
    all: bool,
    some: BTreeSet<String>,
}

impl Nodes {
    /// Adds or removes a node; `None`: all of them.
    fn set(&mut self, node: Option<&str>, concerned: bool) {
        match node {
            None => self.all = concerned,
            Some(node) if concerned => _ = self.some.insert(node.to_owned()),
            Some(node) => _ = self.some.remove(node),
        }
    }

    fn has(&self, node: &str) -> bool {
        self.all || self.some.contains(node)
    }
}

/// Stands for the whole disk among the locked bytes of a host: other hosts do not see such a lock.
const WHOLE: u64 = u64::MAX;

/// Orders the events of all disks.
static CLOCK: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static LIVE_DISKS: Cell<isize> = const { Cell::new(0) };
}

/// Counts the live disks of a thread.
struct LiveDisk;

impl LiveDisk {
    fn new() -> LiveDisk {
        LIVE_DISKS.set(LIVE_DISKS.get() + 1);
        LiveDisk
    }
}

impl Drop for LiveDisk {
    fn drop(&mut self) {
        // A disk may outlive the thread-local storage.
        _ = LIVE_DISKS.try_with(|live| live.set(live.get() - 1));
    }
}

struct State {
    _live: LiveDisk,
    size: u64,
    present: Image,
    stable: Image,
    /// In the order in which they take effect: the completed ones first.
    unstable: Vec<Write>,
    writes_made: u64,
    recording: Option<Recording>,
    counts: DiskCounts,
    planned: Vec<Planned>,
    bad: Vec<Range<u64>>,
    stalled: Nodes,
    dead: Nodes,
    write_through: bool,
    rotational: bool,
    /// Holder of each locked byte, by host; [`WHOLE`] is the whole disk.
    locks: BTreeMap<(String, u64), u64>,
    /// Who shares the whole disk, by host.
    shares: BTreeSet<(String, u64)>,
    /// Computes how long requests take; if absent, the world's options say it.
    mechanics: Option<Share>,
}

/// A disk's place in a model, which other disks may share.
#[derive(Clone)]
struct Share {
    model: Arc<Mutex<Mechanics>>,
    /// Where the disk's first byte lies for the model.
    at: u64,
}

impl Share {
    fn alone(mechanics: Mechanics) -> Share {
        Share { model: Arc::new(Mutex::new(mechanics)), at: 0 }
    }

    /// The queue. No disk is locked while it is held.
    fn lock(&self) -> MutexGuard<'_, Mechanics> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn record(&mut self, event: impl FnOnce() -> Event) {
        if let Some(recording) = &mut self.recording {
            recording.push(CLOCK.fetch_add(1, Ordering::Relaxed), event());
        }
    }

    /// A disk of the same size and kind.
    fn same_kind(&self, image: Image) -> SimDisk {
        let disk = SimDisk::of(self.size, image);
        let mut state = disk.lock();
        let idle = |share: &Share| Share { at: share.at, ..Share::alone(share.lock().idle()) };
        state.mechanics = self.mechanics.as_ref().map(idle);
        state.rotational = self.rotational;
        drop(state);
        disk
    }

    fn check_range(&self, offset: u64, len: u64) -> io::Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("past the end, which is {}", self.size),
            )),
        }
    }

    /// The fault of a node's operation, if there is one.
    fn fault_of(&mut self, node: &str, action: DiskAction) -> io::Result<()> {
        if self.dead.has(node) {
            return Err(DiskFault::Io.error());
        }
        let mut fault = None;
        for planned in self.planned.iter_mut().filter(|planned| planned.action == action) {
            planned.nth = planned.nth.saturating_sub(1);
            if planned.nth == 0 {
                fault = fault.or(Some(planned.fault));
            }
        }
        self.planned.retain(|planned| planned.nth > 0 || planned.lasting);
        fault.map_or(Ok(()), |fault| Err(fault.error()))
    }

    fn make_stable(&mut self, covers: &dyn Fn(&Write) -> bool) {
        make_stable(&mut self.unstable, &mut self.stable, covers);
    }
}

/// Makes the covered writes stable. They replace older writes of the same pages for which a flush
/// failed.
pub(crate) fn make_stable(
    unstable: &mut Vec<Write>,
    stable: &mut Image,
    covers: &dyn Fn(&Write) -> bool,
) {
    let fresh: Vec<Write> = unstable.extract_if(.., |write| covers(write)).collect();
    for write in &fresh {
        apply(stable, write);
    }
    unstable.retain(|old| {
        !old.stuck || !fresh.iter().any(|new| new.id > old.id && new.covers(old.first_page))
    });
}

/// Writes the pages into the image.
pub(crate) fn apply(image: &mut Image, write: &Write) {
    for (index, page) in (write.first_page..).zip(&write.pages) {
        image.set(index, page.clone());
    }
}

impl SimDisk {
    /// A disk of `size` zero bytes; the size is a multiple of 4096.
    pub fn new(size: u64) -> SimDisk {
        SimDisk::of(size, Image::default())
    }

    /// A disk with this content, padded with zeros to a multiple of 4096.
    pub fn from_image(mut bytes: Vec<u8>) -> SimDisk {
        bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
        let mut image = Image::default();
        for (index, page) in (0..).zip(pages_of(&bytes)) {
            if *page != *zero_page() {
                image.set(index, page);
            }
        }
        SimDisk::of(bytes.len() as u64, image)
    }

    pub(crate) fn of(size: u64, image: Image) -> SimDisk {
        assert!(size.is_multiple_of(PAGE as u64), "a disk's size is a multiple of {PAGE}");
        let present = image;
        SimDisk(Arc::new(Mutex::new(State {
            _live: LiveDisk::new(),
            size,
            stable: present.clone(),
            present,
            unstable: Vec::new(),
            writes_made: 0,
            recording: None,
            counts: DiskCounts::default(),
            planned: Vec::new(),
            bad: Vec::new(),
            stalled: Nodes::default(),
            dead: Nodes::default(),
            write_through: false,
            rotational: false,
            locks: BTreeMap::new(),
            shares: BTreeSet::new(),
            mechanics: None,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Disks that were created on this thread, minus those that were dropped on it.
    pub fn live_count() -> isize {
        LIVE_DISKS.get()
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.lock().size
    }

    /// An independent disk with the present content, all of it stable.
    pub fn fork(&self) -> SimDisk {
        let mut state = self.lock();
        let image = state.present.copy();
        state.same_kind(image)
    }

    /// The present content of a range, without counting as a read.
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.lock().present.read(offset, &mut bytes);
        bytes
    }

    /// Changes the present and the stable content, as damage does.
    pub fn poke(&self, offset: u64, bytes: &[u8]) {
        let mut state = self.lock();
        state.present.write(offset, bytes);
        state.stable.write(offset, bytes);
    }

    /// Flips one bit of the byte at `offset`, as damage does.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        let old = self.peek(offset, 1)[0];
        self.poke(offset, &[old ^ (1 << (bit % 8))]);
    }

    /// Pages of 4096 bytes that were ever written.
    pub fn used_pages(&self) -> usize {
        self.lock().present.pages()
    }

    /// The number of operations of each kind that were submitted.
    pub fn counts(&self) -> DiskCounts {
        self.lock().counts
    }

    /// Fails the `nth` operation of this kind from now; 1 is the next.
    pub fn fail(&self, action: DiskAction, nth: u64, fault: DiskFault) {
        self.plan(action, nth, fault, false);
    }

    /// Fails the `nth` operation of this kind from now, and all later ones until [`SimDisk::heal`].
    pub fn fail_from(&self, action: DiskAction, nth: u64, fault: DiskFault) {
        self.plan(action, nth, fault, true);
    }

    fn plan(&self, action: DiskAction, nth: u64, fault: DiskFault, lasting: bool) {
        assert!(nth > 0, "actions are counted from 1");
        self.lock().planned.push(Planned { action, nth, fault, lasting });
    }

    /// Reads of any byte of the range fail with EIO until it is healed or written.
    pub fn make_unreadable(&self, range: Range<u64>) {
        self.lock().bad.push(range);
    }

    /// Nothing completes while a disk is stalled.
    pub fn stall(&self, stalled: bool) {
        self.stall_for(None, stalled);
    }

    /// The same for the requests of one node; `None`: of all.
    pub fn stall_for(&self, node: Option<&str>, stalled: bool) {
        self.lock().stalled.set(node, stalled);
    }

    /// Every request of this node (`None`: of any) fails with EIO as long as the disk is dead.
    pub fn set_dead_for(&self, node: Option<&str>, dead: bool) {
        self.lock().dead.set(node, dead);
    }

    /// Is it dead for this node?
    pub fn is_dead_for(&self, node: &str) -> bool {
        self.lock().dead.has(node)
    }

    /// Clears planned faults.
    pub fn clear_faults(&self) {
        self.lock().planned.clear();
    }

    /// Clears planned faults of reads.
    pub fn clear_read_faults(&self) {
        self.lock().planned.retain(|planned| planned.action != DiskAction::Read);
    }

    /// Is there a write that a failed flush should have made stable, and that is still unstable?
    pub fn has_stuck(&self) -> bool {
        self.lock().unstable.iter().any(|write| write.stuck)
    }

    /// Makes everything written stable.
    pub fn make_all_stable(&self) {
        self.make_matching_stable(|_| true);
    }

    /// Makes these writes stable, if they have reached the disk.
    pub fn make_writes_stable(&self, ids: &BTreeSet<u64>) {
        self.make_matching_stable(|id| ids.contains(&id));
    }

    fn make_matching_stable(&self, which: impl Fn(u64) -> bool) {
        let matches = |write: &Write| write.completed && which(write.id);
        let mut state = self.lock();
        let ids: Vec<u64> =
            state.unstable.iter().filter(|write| matches(write)).map(|write| write.id).collect();
        state.make_stable(&matches);
        drop(state);
        watch::notify(self, DiskEvent::Stable { ids: &ids });
    }

    /// Are both handles on the same disk?
    pub fn is(&self, other: &SimDisk) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Clears planned faults, unreadable ranges and stalls; a dead disk works again.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.planned.clear();
        state.bad.clear();
        state.stalled = Nodes::default();
        state.dead = Nodes::default();
    }

    /// Makes completed writes stable without a flush.
    pub fn set_write_through(&self, write_through: bool) {
        self.lock().write_through = write_through;
    }

    /// Makes the system report a disk with seek times, whatever its model.
    pub fn set_rotational(&self, rotational: bool) {
        self.lock().rotational = rotational;
    }

    /// From now on, requests wait in a queue and take as long as on a disk of this model. Forks and
    /// the disks that a power cut leaves have the same model.
    pub fn set_model(&self, model: DiskModel) {
        let mut state = self.lock();
        state.rotational = matches!(model, DiskModel::Hard(_));
        state.mechanics = Some(Share::alone(Mechanics::new(model)));
    }

    /// From now on, this disk is a part of the same device as `other`, `at` bytes behind its first
    /// byte. The parts have one queue and one set of heads, and their requests take turns. The
    /// parts are used in one world; a stall of one may hold up the others. A fork has a device of
    /// its own.
    ///
    /// # Panics
    /// If `other` has no model.
    pub fn share_model(&self, other: &SimDisk, at: u64) {
        let (whole, rotational) = {
            let other = other.lock();
            (other.mechanics.clone().expect("a shared model is set first"), other.rotational)
        };
        let mut state = self.lock();
        state.rotational = rotational;
        state.mechanics = Some(Share { at: whole.at + at, ..whole });
    }

    /// Counts writes that begin in this range of bytes separately, too. Needs a model; the parts of
    /// a device have one range together.
    pub fn count_range(&self, range: Range<u64>) {
        if let Some(share) = &self.lock().mechanics {
            share.lock().count_range(range.start + share.at..range.end + share.at);
        }
    }

    /// The statistics of a disk with a model; if it shares the model, those of all parts.
    pub fn report(&self) -> Option<DiskReport> {
        self.lock().mechanics.as_ref().map(|share| share.lock().report().clone())
    }

    /// Starts a recording of the disk's events; drops an older one.
    pub fn record(&self) {
        let mut state = self.lock();
        let stable = state.stable.copy();
        let recording = Recording::new(state.size, stable, state.unstable.clone());
        state.recording = Some(recording);
    }

    /// Ends the recording and returns it; `None` if none was started.
    pub fn recording(&self) -> Option<Recording> {
        self.lock().recording.take()
    }

    /// The disk after a power cut now: an independent disk with everything stable and a
    /// subset, chosen by `rng`, of the unstable writes.
    pub fn after_power_cut(&self, rng: &mut SimRng) -> SimDisk {
        let mut state = self.lock();
        let mut image = state.stable.copy();
        Surviving::Some.choose(&state.unstable, rng, &mut image);
        state.same_kind(image)
    }

    /// The disk after the worst power cut: only what is stable.
    pub fn stable_only(&self) -> SimDisk {
        let mut state = self.lock();
        let image = state.stable.copy();
        state.same_kind(image)
    }

    // The operations of the simulated driver.

    /// Puts a request into the queue; false if the disk has no model.
    pub(crate) fn enqueue(&self, now: Instant, request: DiskRequest) -> bool {
        let state = self.lock();
        let Some(share) = &state.mechanics else { return false };
        let offset = match request.action {
            DiskAction::Flush => request.offset,
            _ => request.offset + share.at,
        };
        share.lock().submit(now, DiskRequest { offset, ..request });
        true
    }

    /// When the next requests of the queue complete.
    pub(crate) fn next_done(&self) -> Option<Instant> {
        self.lock().mechanics.as_ref()?.lock().next()
    }

    /// The requests of the queue that have completed.
    pub(crate) fn done(&self, now: Instant) -> Vec<u64> {
        self.lock().mechanics.as_ref().map_or_else(Vec::new, |share| share.lock().completed(now))
    }

    /// Clears the queue: the world has ended.
    pub(crate) fn forget_queue(&self) {
        if let Some(share) = &self.lock().mechanics {
            share.lock().forget_queue();
        }
    }

    /// Is the disk stalled for all nodes?
    pub fn is_stalled(&self) -> bool {
        self.lock().stalled.all
    }

    /// Is the disk stalled for this node?
    pub fn is_stalled_for(&self, node: &str) -> bool {
        self.lock().stalled.has(node)
    }

    // The operations of the simulated driver.

    pub(crate) fn is_write_through(&self) -> bool {
        self.lock().write_through
    }

    pub(crate) fn is_rotational(&self) -> bool {
        self.lock().rotational
    }

    pub(crate) fn read(&self, node: &str, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut state = self.lock();
        state.counts.reads += 1;
        state.fault_of(node, DiskAction::Read)?;
        state.check_range(offset, into.len() as u64)?;
        let end = offset + into.len() as u64;
        if state.bad.iter().any(|bad| bad.start < end && offset < bad.end) {
            return Err(DiskFault::Io.error());
        }
        state.present.read(offset, into);
        Ok(())
    }

    /// Starts a write or (without `bytes`) a discard by an open file of a node; returns its id.
    pub(crate) fn begin_write(
        &self,
        (file, node): (u64, &str),
        offset: u64,
        len: u64,
        bytes: Option<&[u8]>,
    ) -> io::Result<u64> {
        let mut state = self.lock();
        let action = if bytes.is_some() { DiskAction::Write } else { DiskAction::Discard };
        match action {
            DiskAction::Write => state.counts.writes += 1,
            _ => state.counts.discards += 1,
        }
        state.fault_of(node, action)?;
        state.check_range(offset, len)?;
        let pages = match bytes {
            Some(bytes) => pages_of(bytes),
            None => vec![zero_page(); (len / PAGE as u64) as usize],
        };
        state.writes_made += 1;
        let id = state.writes_made;
        let first_page = offset / PAGE as u64;
        let write = Write { id, file, first_page, pages, completed: false, stuck: false };
        state.record(|| Event::Begin(write.clone()));
        state.unstable.push(write);
        Ok(id)
    }

    pub(crate) fn complete_write(&self, id: u64) {
        let mut state = self.lock();
        let Some(at) = state.unstable.iter().rposition(|write| write.id == id) else { return };
        let mut write = state.unstable.remove(at);
        write.completed = true;
        let bytes = write.first_page * PAGE as u64
            ..(write.first_page + write.pages.len() as u64) * PAGE as u64;
        state.bad.retain(|bad| !(bytes.start <= bad.start && bad.end <= bytes.end));
        apply(&mut state.present, &write);
        let place = state.unstable.partition_point(|write| write.completed);
        state.unstable.insert(place, write);
        state.record(|| Event::Complete(id));
        let stable = state.write_through;
        if stable {
            state.make_stable(&|write| write.id == id);
            state.record(|| Event::Stable(vec![id]));
        }
        drop(state);
        watch::notify(self, DiskEvent::Completed { id });
        if stable {
            watch::notify(self, DiskEvent::Stable { ids: &[id] });
        }
    }

    /// Starts a flush; returns the writes that it covers.
    pub(crate) fn begin_flush(&self) -> Vec<u64> {
        let mut state = self.lock();
        state.counts.flushes += 1;
        state
            .unstable
            .iter()
            .filter(|write| write.completed && !write.stuck)
            .map(|write| write.id)
            .collect()
    }

    pub(crate) fn complete_flush(
        &self,
        (file, node): (u64, &str),
        mut covered: Vec<u64>,
    ) -> io::Result<()> {
        let mut state = self.lock();
        covered.sort_unstable();
        let within = |write: &Write| covered.binary_search(&write.id).is_ok();
        if let Err(error) = state.fault_of(node, DiskAction::Flush) {
            let mut unstable = Vec::with_capacity(state.unstable.len());
            for write in std::mem::take(&mut state.unstable) {
                if write.file == file && within(&write) && !write.stuck {
                    unstable.extend(write.split_stuck());
                } else {
                    unstable.push(write);
                }
            }
            state.unstable = unstable;
            return Err(error);
        }
        state.make_stable(&within);
        state.record(|| Event::Stable(covered.clone()));
        drop(state);
        watch::notify(self, DiskEvent::Stable { ids: &covered });
        Ok(())
    }

    /// Locks `byte` of a host for the open file `holder`; `false` if another one of that host holds
    /// it.
    pub(crate) fn take_lock(&self, byte: (String, u64), holder: u64) -> bool {
        *self.lock().locks.entry(byte).or_insert(holder) == holder
    }

    pub(crate) fn is_free(&self, byte: (String, u64), holder: u64) -> bool {
        self.lock().locks.get(&byte).is_none_or(|&other| other == holder)
    }

    /// As [`SimDisk::take_lock`], of the whole disk: nobody of that host may share it either.
    pub(crate) fn take_whole(&self, host: String, holder: u64) -> bool {
        let is_shared = self.lock().shares.iter().any(|(other, _)| *other == host);
        !is_shared && self.take_lock((host, WHOLE), holder)
    }

    /// Shares the whole disk; `false` if another open file of that host has it to itself.
    pub(crate) fn share_whole(&self, host: String, holder: u64) -> bool {
        let is_free = self.is_free((host.clone(), WHOLE), holder);
        if is_free {
            self.lock().shares.insert((host, holder));
        }
        is_free
    }

    /// Gives `byte` back, if `holder` has it.
    pub(crate) fn release_lock(&self, byte: (String, u64), holder: u64) -> bool {
        let mut state = self.lock();
        let has = state.locks.get(&byte) == Some(&holder);
        if has {
            state.locks.remove(&byte);
        }
        has
    }

    pub(crate) fn release_locks(&self, holder: u64) {
        let mut state = self.lock();
        state.locks.retain(|_, other| *other != holder);
        state.shares.retain(|(_, other)| *other != holder);
    }
}
