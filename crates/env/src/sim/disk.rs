//! A disk in memory that knows what is stable, records what happens to it, and
//! fails on demand.
//!
//! Invariants:
//! - a read sees every write that completed before it was submitted;
//! - a write is stable once a flush that was submitted after its completion has
//!   succeeded, and not surely before; a failed flush makes nothing stable, and
//!   no later flush makes up for it for what was written through the same open file;
//! - pages are shared between the present content, the stable content and the
//!   recording, so each write is held once.

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

/// What is done to a disk.
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

/// How an action fails.
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

/// How often each action was submitted.
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

/// A write that is not surely stable.
#[derive(Clone)]
pub(crate) struct Write {
    pub(crate) id: u64,
    /// The open file that it was written through.
    file: u64,
    pub(crate) first_page: u64,
    pub(crate) pages: Vec<Page>,
    pub(crate) completed: bool,
    /// A flush that should have covered it failed: no later one does. It is of one page.
    pub(crate) stuck: bool,
}

impl Write {
    fn covers(&self, page: u64) -> bool {
        (self.first_page..self.first_page + self.pages.len() as u64).contains(&page)
    }

    /// A flush failed it: what is written to a page of it later takes that page's place.
    fn stick(self) -> impl Iterator<Item = Write> {
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

/// Fails the `nth` action from now (counted down), and those after it if `lasting`.
struct Planned {
    action: DiskAction,
    nth: u64,
    fault: DiskFault,
    lasting: bool,
}

/// Orders the events of all disks.
static CLOCK: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static LIVING: Cell<isize> = const { Cell::new(0) };
}

/// Counts the disks that there are.
struct Living;

impl Living {
    fn new() -> Living {
        LIVING.set(LIVING.get() + 1);
        Living
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        // A disk may outlive the thread's storage.
        _ = LIVING.try_with(|living| living.set(living.get() - 1));
    }
}

struct State {
    _living: Living,
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
    stalled: bool,
    write_through: bool,
    rotational: bool,
    /// Holder of each byte locked on each host; `None` is the whole disk, for all hosts.
    locks: BTreeMap<Option<(String, u64)>, u64>,
    /// How long things take; without it as the world's options say.
    mechanics: Option<Mechanics>,
}

impl State {
    fn record(&mut self, event: impl FnOnce() -> Event) {
        if let Some(recording) = &mut self.recording {
            recording.push(CLOCK.fetch_add(1, Ordering::Relaxed), event());
        }
    }

    /// A disk of the same size and kind.
    fn alike(&self, image: Image) -> SimDisk {
        let disk = SimDisk::of(self.size, image);
        let mut state = disk.lock();
        state.mechanics = self.mechanics.as_ref().map(Mechanics::idle);
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

    fn planned_fault(&mut self, action: DiskAction) -> io::Result<()> {
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

/// Puts those writes that are stable now in place. What a flush failed before, of the same pages,
/// is gone.
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

/// Puts a write's pages in place.
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
            _living: Living::new(),
            size,
            stable: present.clone(),
            present,
            unstable: Vec::new(),
            writes_made: 0,
            recording: None,
            counts: DiskCounts::default(),
            planned: Vec::new(),
            bad: Vec::new(),
            stalled: false,
            write_through: false,
            rotational: false,
            locks: BTreeMap::new(),
            mechanics: None,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Disks that were made on this thread, less those that were dropped on it.
    pub fn living() -> isize {
        LIVING.get()
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.lock().size
    }

    /// An independent disk with the present content, all of it stable.
    pub fn fork(&self) -> SimDisk {
        let mut state = self.lock();
        let image = state.present.copy();
        state.alike(image)
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

    /// How often each action was submitted.
    pub fn counts(&self) -> DiskCounts {
        self.lock().counts
    }

    /// Fails the `nth` action of this kind from now; 1 is the next.
    pub fn fail(&self, action: DiskAction, nth: u64, fault: DiskFault) {
        self.plan(action, nth, fault, false);
    }

    /// Fails the `nth` action of this kind from now, and all after it until [`SimDisk::heal`].
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
        self.lock().stalled = stalled;
    }

    /// Forgets planned faults.
    pub fn mend(&self) {
        self.lock().planned.clear();
    }

    /// Forgets planned faults of reads.
    pub fn mend_reads(&self) {
        self.lock().planned.retain(|planned| planned.action != DiskAction::Read);
    }

    /// Did a flush fail that should have made something stable which still is not?
    pub fn has_stuck(&self) -> bool {
        self.lock().unstable.iter().any(|write| write.stuck)
    }

    /// Everything written is stable from here on.
    pub fn settle(&self) {
        self.settle_what(|_| true);
    }

    /// What was written under these numbers is stable from here on, if it has reached the disk.
    pub fn settle_writes(&self, ids: &BTreeSet<u64>) {
        self.settle_what(|id| ids.contains(&id));
    }

    fn settle_what(&self, which: impl Fn(u64) -> bool) {
        let settles = |write: &Write| write.completed && which(write.id);
        let mut state = self.lock();
        let ids: Vec<u64> =
            state.unstable.iter().filter(|write| settles(write)).map(|write| write.id).collect();
        state.make_stable(&settles);
        drop(state);
        watch::tell(self, DiskEvent::Stable { ids: &ids });
    }

    /// Is it this one?
    pub fn is(&self, other: &SimDisk) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Forgets planned faults, unreadable ranges and the stall.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.planned.clear();
        state.bad.clear();
        state.stalled = false;
    }

    /// Makes completed writes stable without a flush.
    pub fn set_write_through(&self, write_through: bool) {
        self.lock().write_through = write_through;
    }

    /// Has the system say that its heads move, whatever its model.
    pub fn set_rotational(&self, rotational: bool) {
        self.lock().rotational = rotational;
    }

    /// From now on requests wait in a queue and take as long as on such a disk. Forks and what
    /// a power cut leaves are disks of the same kind.
    pub fn set_model(&self, model: DiskModel) {
        let mut state = self.lock();
        state.rotational = matches!(model, DiskModel::Hard(_));
        state.mechanics = Some(Mechanics::new(model));
    }

    /// Of a disk with a model: counts writes that begin in this range of bytes apart, too.
    pub fn count_apart(&self, range: Range<u64>) {
        if let Some(mechanics) = &mut self.lock().mechanics {
            mechanics.count_apart(range);
        }
    }

    /// What a disk with a model did so far.
    pub fn report(&self) -> Option<DiskReport> {
        self.lock().mechanics.as_ref().map(|mechanics| mechanics.report().clone())
    }

    /// Starts a recording of what happens from now on; an older one is dropped.
    pub fn record(&self) {
        let mut state = self.lock();
        let stable = state.stable.copy();
        let recording = Recording::new(state.size, stable, state.unstable.clone());
        state.recording = Some(recording);
    }

    /// Ends the recording and hands it over; `None` if none was started.
    pub fn recording(&self) -> Option<Recording> {
        self.lock().recording.take()
    }

    /// What a power cut leaves now: an independent disk with all that is stable and a
    /// part, chosen by `rng`, of what is not.
    pub fn after_power_cut(&self, rng: &mut SimRng) -> SimDisk {
        let mut state = self.lock();
        let mut image = state.stable.copy();
        Surviving::Some.choose(&state.unstable, rng, &mut image);
        state.alike(image)
    }

    /// What a power cut leaves at worst: only what is stable.
    pub fn stable_only(&self) -> SimDisk {
        let mut state = self.lock();
        let image = state.stable.copy();
        state.alike(image)
    }

    // What the simulated driver does.

    /// Puts a request into the queue; false if the disk has no model.
    pub(crate) fn enqueue(&self, now: Instant, request: DiskRequest) -> bool {
        let mut state = self.lock();
        let Some(mechanics) = &mut state.mechanics else { return false };
        mechanics.submit(now, request);
        true
    }

    /// When the next requests of the queue complete.
    pub(crate) fn next_done(&self) -> Option<Instant> {
        self.lock().mechanics.as_ref()?.next()
    }

    /// The requests of the queue that have completed.
    pub(crate) fn done(&self, now: Instant) -> Vec<u64> {
        self.lock().mechanics.as_mut().map_or_else(Vec::new, |mechanics| mechanics.completed(now))
    }

    /// Forgets the queue: the world has ended.
    pub(crate) fn forget_queue(&self) {
        if let Some(mechanics) = &mut self.lock().mechanics {
            mechanics.forget_queue();
        }
    }

    /// Does nothing complete?
    pub fn is_stalled(&self) -> bool {
        self.lock().stalled
    }

    // What the simulated driver does.

    pub(crate) fn is_write_through(&self) -> bool {
        self.lock().write_through
    }

    pub(crate) fn is_rotational(&self) -> bool {
        self.lock().rotational
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut state = self.lock();
        state.counts.reads += 1;
        state.planned_fault(DiskAction::Read)?;
        state.check_range(offset, into.len() as u64)?;
        let end = offset + into.len() as u64;
        if state.bad.iter().any(|bad| bad.start < end && offset < bad.end) {
            return Err(DiskFault::Io.error());
        }
        state.present.read(offset, into);
        Ok(())
    }

    /// A write or (without `bytes`) a discard is under way from here on; gives its id.
    pub(crate) fn begin_write(
        &self,
        file: u64,
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
        state.planned_fault(action)?;
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
        watch::tell(self, DiskEvent::Completed { id });
        if stable {
            watch::tell(self, DiskEvent::Stable { ids: &[id] });
        }
    }

    /// A flush is submitted; gives the writes that it covers.
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

    pub(crate) fn complete_flush(&self, file: u64, mut covered: Vec<u64>) -> io::Result<()> {
        let mut state = self.lock();
        covered.sort_unstable();
        let within = |write: &Write| covered.binary_search(&write.id).is_ok();
        if let Err(error) = state.planned_fault(DiskAction::Flush) {
            let mut unstable = Vec::with_capacity(state.unstable.len());
            for write in std::mem::take(&mut state.unstable) {
                if write.file == file && within(&write) && !write.stuck {
                    unstable.extend(write.stick());
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
        watch::tell(self, DiskEvent::Stable { ids: &covered });
        Ok(())
    }

    /// Locks `byte` (`None`: the whole disk) for the open file `holder`, or tells that another
    /// holds it.
    pub(crate) fn take_lock(&self, byte: Option<(String, u64)>, holder: u64) -> bool {
        *self.lock().locks.entry(byte).or_insert(holder) == holder
    }

    pub(crate) fn is_free(&self, byte: (String, u64), holder: u64) -> bool {
        self.lock().locks.get(&Some(byte)).is_none_or(|&other| other == holder)
    }

    pub(crate) fn release_locks(&self, holder: u64) {
        self.lock().locks.retain(|_, other| *other != holder);
    }
}
