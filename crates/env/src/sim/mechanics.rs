//! How long a disk takes: a queue with an elevator in front of a hard disk or an SSD.
//!
//! Invariants:
//! - pure: requests and times in, completions and times out; the same requests at the same times
//!   give the same completions;
//! - a request completes when it is on the medium (no write cache), and exactly once;
//! - a dispatch is contiguous, of one kind, and not larger than the model allows;
//! - the elevator serves every request that waits when it turns before it turns again.
//!
//! The reference disks: fibre channel, 172 / 178 MB/s read / write on the outer tracks,
//! 137 / 139 MB/s in the middle, links of 400 MB/s.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use types::{Duration, Instant};

use super::disk::DiskAction;

/// A hard disk. Addresses grow from the outer tracks to the inner ones.
#[derive(Clone, Debug)]
pub struct HardDisk {
    /// Bytes; a smaller simulated disk occupies the beginning of it.
    pub capacity: u64,
    /// One revolution.
    pub revolution: Duration,
    /// Bytes a second at the outermost track: read, written.
    pub outer: (u64, u64),
    /// Bytes a second in the middle: read, written.
    pub middle: (u64, u64),
    /// Bytes a second between host and disk.
    pub link: u64,
    /// Overhead of each dispatched request, in the disk and in transfer.
    pub overhead: Duration,
    /// Seek times: to a neighbouring track, over a third of all tracks, and over all.
    pub seek: (Duration, Duration, Duration),
    /// Bytes that the disk reads ahead after a request.
    pub read_ahead: u64,
}

impl HardDisk {
    /// The reference disk: 15,000 revolutions a minute, 300 GB, with the seek times in data sheets
    /// of such disks.
    pub fn fibre_channel() -> HardDisk {
        HardDisk {
            capacity: 300_000_000_000,
            revolution: Duration::from_millis(4),
            outer: (172_000_000, 178_000_000),
            middle: (137_000_000, 139_000_000),
            link: 400_000_000,
            overhead: Duration::from_micros(100),
            seek: (
                Duration::from_micros(250),
                Duration::from_micros(3500),
                Duration::from_micros(6600),
            ),
            read_ahead: 1 << 20,
        }
    }

    /// Bytes a second under the heads at `offset`: the rate falls linearly towards the inner
    /// tracks.
    fn rate(&self, offset: u64, write: bool) -> u64 {
        let of = |pair: (u64, u64)| if write { pair.1 } else { pair.0 };
        let lost = u128::from(of(self.outer) - of(self.middle)) * 2 * u128::from(offset);
        of(self.outer) - (lost / u128::from(self.capacity)) as u64
    }

    /// Seek time from one track to another: acceleration goes with the square root of the distance,
    /// travel with the distance. The curve passes through the three points of the data sheet.
    fn seek(&self, from: u64, to: u64) -> Duration {
        let track = self.track_bytes(to);
        let distance = from.abs_diff(to);
        if distance < track {
            return Duration::ZERO;
        }
        let part = (distance as f64 / self.capacity as f64).min(1.0);
        let third = 1.0_f64 / 3.0;
        let near = self.seek.0.as_secs_f64();
        let (average, full) = (self.seek.1.as_secs_f64() - near, self.seek.2.as_secs_f64() - near);
        let by_root = (average - full * third) / (third.sqrt() - third);
        let by_distance = full - by_root;
        Duration::from_secs_f64(near + by_root * part.sqrt() + by_distance * part)
    }

    fn track_bytes(&self, offset: u64) -> u64 {
        transferred(self.rate(offset, false), self.revolution)
    }

    /// The position of `offset` on its track, as the time since the index mark passed.
    fn angle(&self, offset: u64) -> u64 {
        let track = self.track_bytes(offset);
        let revolution = self.revolution.as_nanos() as u64;
        (u128::from(offset % track) * u128::from(revolution) / u128::from(track)) as u64
    }
}

/// Flash: channels that work in parallel, with addresses striped over them.
#[derive(Clone, Debug)]
pub struct Flash {
    /// Channels.
    pub channels: usize,
    /// Bytes of consecutive addresses on one channel.
    pub stripe: u64,
    /// Time from command to data: read, written.
    pub latency: (Duration, Duration),
    /// Bytes a second of one channel: read, written.
    pub rate: (u64, u64),
    /// Bytes a second between host and disk.
    pub link: u64,
    /// Duration of a flush.
    pub flush: Duration,
}

impl Flash {
    /// An ordinary PCIe SSD: about 3 GB/s, 90 µs for a read.
    pub fn nvme() -> Flash {
        Flash {
            channels: 16,
            stripe: 16 << 10,
            latency: (Duration::from_micros(80), Duration::from_micros(20)),
            rate: (250_000_000, 150_000_000),
            link: 3_500_000_000,
            flush: Duration::from_micros(50),
        }
    }
}

/// The kind of disk.
#[derive(Clone, Debug)]
pub enum DiskModel {
    /// Heads and platters.
    Hard(HardDisk),
    /// Flash.
    Flash(Flash),
}

impl DiskModel {
    /// The longest time of a read or write of `len` bytes, at most a stripe, and that of a flush.
    /// The disk is idle, and its first `size` bytes are used.
    pub fn longest(&self, size: u64, len: u64) -> (Duration, Duration) {
        match self {
            DiskModel::Hard(disk) => {
                let rate = disk.rate(size, false).min(disk.rate(size, true));
                let transfer = needed(rate, len).max(needed(disk.link, len));
                let time = disk.overhead + disk.seek(0, size) + disk.revolution + transfer;
                (time, disk.overhead)
            }
            DiskModel::Flash(flash) => {
                let (read, written) = flash.rate;
                let latency = flash.latency.0.max(flash.latency.1);
                let time = latency + needed(read.min(written), len).max(needed(flash.link, len));
                (time, flash.flush)
            }
        }
    }
}

/// A request to a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskRequest {
    /// Chosen by the caller, unique among the waiting requests.
    pub id: u64,
    /// The operation.
    pub action: DiskAction,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub len: u64,
}

impl DiskRequest {
    fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// The statistics of a disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DiskReport {
    /// Requests received.
    pub requests: u64,
    /// Requests that were dispatched together with a preceding neighbour.
    pub merged: u64,
    /// Dispatches that did not begin where the previous one had ended.
    pub seeks: u64,
    /// Sum of the address distances in bytes between the end of a dispatch and the start of the
    /// next.
    pub distance: u64,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Dispatched reads and writes by size: `sizes[n]` counts those of [2^n, 2^(n+1)) bytes.
    pub sizes: BTreeMap<u32, u64>,
    /// Dispatched reads.
    pub reads: u64,
    /// Dispatched writes, including those of `counted`.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Writes within the range that is counted separately.
    pub counted: RangeWrites,
    /// Time in which the disk was busy.
    pub busy: Duration,
}

/// Writes to a range of addresses that is counted separately, such as a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RangeWrites {
    /// Dispatched writes that begin in the range.
    pub writes: u64,
    /// Their bytes.
    pub written: u64,
}

impl DiskReport {
    /// Reads and writes dispatched.
    pub fn dispatched(&self) -> u64 {
        self.sizes.values().sum()
    }
}

/// Upper bound of a merged dispatch in bytes.
const DISPATCH_MAX: u64 = 1 << 20;

/// The state of a disk and its queue.
pub struct Mechanics {
    model: DiskModel,
    /// Waiting for this pass of the elevator and the next, by address.
    waiting: [BTreeMap<(u64, u64), DiskRequest>; 2],
    /// Flushes and discards, in the order of their submission.
    others: VecDeque<DiskRequest>,
    /// Dispatched requests and when they complete.
    at_work: VecDeque<(Instant, Vec<u64>)>,
    /// Where the last dispatch ended, in address and in time, and whether it read.
    head: u64,
    head_at: Instant,
    head_read: bool,
    /// When each flash channel and the link are free.
    channels: Vec<Instant>,
    link_free: Instant,
    report: DiskReport,
    counted: Range<u64>,
}

impl Mechanics {
    /// A disk with its heads at the outermost track.
    pub fn new(model: DiskModel) -> Mechanics {
        let channels = match &model {
            DiskModel::Hard(_) => 1,
            DiskModel::Flash(flash) => flash.channels,
        };
        Mechanics {
            model,
            waiting: Default::default(),
            others: VecDeque::new(),
            at_work: VecDeque::new(),
            head: 0,
            head_at: Instant(0),
            head_read: false,
            channels: vec![Instant(0); channels],
            link_free: Instant(0),
            report: DiskReport::default(),
            counted: 0..0,
        }
    }

    /// A disk of the same model, with an empty queue.
    pub fn idle(&self) -> Mechanics {
        Mechanics::new(self.model.clone())
    }

    /// Clears the queue and the dispatched requests.
    pub fn forget_queue(&mut self) {
        self.waiting = Default::default();
        self.others.clear();
        self.at_work.clear();
    }

    /// Counts writes that begin in this range of addresses separately, too.
    pub fn count_range(&mut self, range: Range<u64>) {
        self.counted = range;
    }

    /// The statistics so far.
    pub fn report(&self) -> &DiskReport {
        &self.report
    }

    /// Submits a request at `now`.
    pub fn submit(&mut self, now: Instant, request: DiskRequest) {
        self.report.requests += 1;
        match request.action {
            DiskAction::Read | DiskAction::Write => {
                // Behind the heads: it waits for the next pass.
                let turn = usize::from(request.offset < self.head);
                self.waiting[turn].insert((request.offset, request.id), request);
            }
            DiskAction::Flush | DiskAction::Discard => self.others.push_back(request),
        }
        self.dispatch(now);
    }

    /// When the next requests complete.
    pub fn next(&self) -> Option<Instant> {
        self.at_work.front().map(|(at, _)| *at)
    }

    /// The requests that have completed by `now`.
    pub fn completed(&mut self, now: Instant) -> Vec<u64> {
        let mut done = Vec::new();
        while self.at_work.front().is_some_and(|(at, _)| *at <= now) {
            let (at, ids) = self.at_work.pop_front().expect("just seen");
            done.extend(ids);
            self.dispatch(at);
        }
        done
    }

    /// Dispatches waiting requests while the disk can take more.
    fn dispatch(&mut self, now: Instant) {
        let most = match self.model {
            DiskModel::Hard(_) => 1,
            DiskModel::Flash(ref flash) => 2 * flash.channels,
        };
        while self.at_work.len() < most {
            let Some((request, ids)) = self.choose() else { return };
            let done = self.serve(now, &request);
            let at = self.at_work.partition_point(|(other, _)| *other <= done);
            self.at_work.insert(at, (done, ids));
        }
    }

    /// The next request, merged with those that directly follow it.
    fn choose(&mut self) -> Option<(DiskRequest, Vec<u64>)> {
        if let Some(other) = self.others.pop_front() {
            return Some((other, vec![other.id]));
        }
        if self.waiting[0].is_empty() {
            self.waiting.swap(0, 1);
        }
        let (_, mut request) = self.waiting[0].pop_first()?;
        let mut ids = vec![request.id];
        loop {
            let behind = (request.end(), 0)..=(request.end(), u64::MAX);
            let next = self.waiting[0].range(behind).next().map(|(key, next)| (*key, *next));
            let Some((key, next)) = next else { break };
            if next.action != request.action || request.len + next.len > DISPATCH_MAX {
                break;
            }
            self.waiting[0].remove(&key);
            request.len += next.len;
            ids.push(next.id);
            self.report.merged += 1;
        }
        Some((request, ids))
    }

    /// Serves a dispatch that may begin at `now`; returns its completion time.
    fn serve(&mut self, now: Instant, request: &DiskRequest) -> Instant {
        let moves = matches!(request.action, DiskAction::Read | DiskAction::Write);
        if moves {
            let write = request.action == DiskAction::Write;
            *if write { &mut self.report.written } else { &mut self.report.read } += request.len;
            *if write { &mut self.report.writes } else { &mut self.report.reads } += 1;
            if write && self.counted.contains(&request.offset) {
                self.report.counted.writes += 1;
                self.report.counted.written += request.len;
            }
            *self.report.sizes.entry(request.len.max(1).ilog2()).or_insert(0) += 1;
            if request.offset != self.head {
                self.report.seeks += 1;
                self.report.distance += request.offset.abs_diff(self.head);
            }
        }
        self.report.flushes += u64::from(request.action == DiskAction::Flush);
        let before = self.channels.iter().max().copied().unwrap_or(now).max(now);
        let done = match self.model.clone() {
            DiskModel::Hard(disk) if moves => self.turn(&disk, now, request),
            // Nothing is cached: a flush is an empty command.
            DiskModel::Hard(disk) => now + disk.overhead,
            DiskModel::Flash(flash) if moves => self.program(&flash, now, request),
            DiskModel::Flash(flash) => now + flash.flush,
        };
        self.report.busy += match self.model {
            DiskModel::Hard(_) => done - now,
            DiskModel::Flash(_) => done - before,
        };
        if moves {
            self.head = request.end();
            self.head_at = done;
            self.head_read = request.action == DiskAction::Read;
        }
        done
    }

    /// A hard disk: seek, wait for the sector, transfer; or serve from the read-ahead.
    fn turn(&self, disk: &HardDisk, now: Instant, request: &DiskRequest) -> Instant {
        let write = request.action == DiskAction::Write;
        let ready = now + disk.overhead;
        let rate = disk.rate(request.offset, write);
        let over_link = needed(disk.link, request.len);
        if !write && self.head_read && request.offset == self.head {
            // The heads went on reading; the part that they have not read yet passes under them
            // now.
            let ahead = transferred(rate, ready - self.head_at).min(disk.read_ahead);
            let rest = request.len.saturating_sub(ahead);
            return ready + needed(rate, rest).max(over_link);
        }
        let there = if write && request.offset == self.head && now == self.head_at {
            // The disk received the next command before the last sector passed.
            now
        } else {
            ready + disk.seek(self.head, request.offset)
        };
        let revolution = disk.revolution.as_nanos() as u64;
        let angle = there.0 % revolution;
        let wait = (disk.angle(request.offset) + revolution - angle) % revolution;
        let wait = if there == now { 0 } else { wait };
        there + Duration::from_nanos(wait) + needed(rate, request.len).max(over_link)
    }

    /// Flash: each stripe on its channel, all of it over the link.
    fn program(&mut self, flash: &Flash, now: Instant, request: &DiskRequest) -> Instant {
        let write = request.action == DiskAction::Write;
        let (latency, rate) = match write {
            true => (flash.latency.1, flash.rate.1),
            false => (flash.latency.0, flash.rate.0),
        };
        let mut done = now;
        let mut at = request.offset;
        // A channel pays for the command once, however many of its stripes are requested.
        let commands_to = request.offset + flash.channels as u64 * flash.stripe;
        while at < request.end() {
            let latency = if at < commands_to { latency } else { Duration::ZERO };
            let end = (at / flash.stripe * flash.stripe + flash.stripe).min(request.end());
            let channel = (at / flash.stripe) as usize % flash.channels;
            let free = self.channels[channel].max(now) + latency + needed(rate, end - at);
            self.channels[channel] = free;
            done = done.max(free);
            at = end;
        }
        self.link_free = self.link_free.max(now) + needed(flash.link, request.len);
        done.max(self.link_free)
    }
}

/// Time that `len` bytes need at `rate` bytes a second.
fn needed(rate: u64, len: u64) -> Duration {
    Duration::from_nanos((u128::from(len) * 1_000_000_000 / u128::from(rate)) as u64)
}

/// Bytes that pass in `time` at `rate` bytes a second.
fn transferred(rate: u64, time: Duration) -> u64 {
    (u128::from(rate) * time.as_nanos() / 1_000_000_000) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimRng;

    const MIB: u64 = 1 << 20;

    fn fibre_channel() -> Mechanics {
        Mechanics::new(DiskModel::Hard(HardDisk::fibre_channel()))
    }

    fn request(id: u64, action: DiskAction, offset: u64, len: u64) -> DiskRequest {
        DiskRequest { id, action, offset, len }
    }

    /// Serves requests with up to `depth` of them waiting; returns the time taken.
    fn run(disk: &mut Mechanics, requests: &[DiskRequest], depth: usize) -> Duration {
        let mut now = Instant(1_000_000);
        let begun = now;
        let mut pending = requests.iter();
        let mut open = 0;
        loop {
            while open < depth
                && let Some(request) = pending.next()
            {
                disk.submit(now, *request);
                open += 1;
            }
            let Some(at) = disk.next() else { break };
            now = at;
            open -= disk.completed(now).len();
        }
        assert_eq!(open, 0, "every request completes, once");
        now - begun
    }

    #[test]
    fn no_request_of_an_idle_disk_takes_longer_than_the_longest() {
        let size = 512 * MIB;
        for model in [DiskModel::Hard(HardDisk::fibre_channel()), DiskModel::Flash(Flash::nvme())] {
            let (longest, flush) = model.longest(size, 4096);
            let mut rng = SimRng::new(7);
            let (mut disk, mut most) = (Mechanics::new(model), Duration::ZERO);
            let mut now = Instant(1_000_000);
            let mut serve = |request| {
                let begun = now;
                disk.submit(now, request);
                now = disk.next().unwrap();
                assert_eq!(disk.completed(now).len(), 1);
                now - begun
            };
            for id in 0..2000 {
                let action = if rng.one_in(2) { DiskAction::Read } else { DiskAction::Write };
                let at = rng.below(size / 4096) * 4096;
                most = most.max(serve(request(id, action, at, 4096)));
                let flushed = serve(request(id, DiskAction::Flush, 0, 0));
                assert!(flushed <= flush, "{flushed:?}");
            }
            assert!(most <= longest && longest < most + most, "{most:?} of {longest:?}");
        }
    }

    fn stream(action: DiskAction, from: u64, depth: usize) -> u64 {
        let requests: Vec<_> =
            (0..256).map(|id| request(id, action, from + id * MIB, MIB)).collect();
        let time = run(&mut fibre_channel(), &requests, depth);
        (256.0 * MIB as f64 / time.as_secs_f64() / 1e6) as u64
    }

    #[test]
    fn hard_disk_streams_at_the_reference_speeds() {
        let middle = HardDisk::fibre_channel().capacity / 2 / MIB * MIB;
        let near = |speed: u64, paper: u64| speed.abs_diff(paper) * 100 <= paper * 3;
        for (action, from, paper) in [
            (DiskAction::Read, 0, 172),
            (DiskAction::Write, 0, 178),
            (DiskAction::Read, middle, 137),
            (DiskAction::Write, middle, 139),
        ] {
            let speed = stream(action, from, 4);
            assert!(near(speed, paper), "{action:?} at {from}: {speed} MB/s, not {paper}");
        }
    }

    #[test]
    fn hard_disk_write_without_a_queue_waits_for_a_revolution() {
        let lone = stream(DiskAction::Write, 0, 1);
        let alone = run(
            &mut fibre_channel(),
            &[request(0, DiskAction::Write, 0, 4096), request(1, DiskAction::Write, 4096, 4096)],
            1,
        );
        assert!(lone <= 178, "{lone}");
        assert!(alone < Duration::from_millis(9), "{alone:?}");
    }

    fn scattered(count: u64, len: u64) -> Vec<DiskRequest> {
        let mut rng = SimRng::new(7);
        let blocks = HardDisk::fibre_channel().capacity / len;
        let read = |id| request(id, DiskAction::Read, rng.below(blocks) * len, len);
        (0..count).map(read).collect()
    }

    #[test]
    fn hard_disk_random_reads_seek_and_a_queue_shortens_the_seeks() {
        let reads = scattered(2000, 4096);
        let lone = run(&mut fibre_channel(), &reads, 1).as_secs_f64() / 2000.0;
        // 3.5 ms of seek, 2 ms of rotation, 0.1 ms of overhead.
        assert!((0.0050..0.0062).contains(&lone), "{lone}");
        let mut deep = fibre_channel();
        let queued = run(&mut deep, &reads, 64).as_secs_f64() / 2000.0;
        assert!(queued < lone * 0.7, "{queued} against {lone}");
        assert_eq!(deep.report().seeks, 2000);
    }

    #[test]
    fn neighbouring_requests_that_wait_together_are_merged() {
        let mut disk = fibre_channel();
        // The even blocks first, then the odd ones; the first is served alone.
        let order = (0..64).filter(|n| n % 2 == 0).chain((0..64).filter(|n| n % 2 == 1));
        let requests: Vec<_> =
            order.map(|n| request(n, DiskAction::Write, MIB + n * 4096, 4096)).collect();
        run(&mut disk, &requests, 64);
        let report = disk.report();
        assert_eq!((report.requests, report.written), (64, 64 * 4096));
        assert_eq!((report.merged, report.dispatched()), (62, 2), "{report:?}");
    }

    #[test]
    fn writes_in_a_range_are_counted_by_where_a_dispatch_begins() {
        let mut disk = fibre_channel();
        disk.count_range(MIB..2 * MIB);
        let mut requests: Vec<_> = (0..8)
            .map(|n| request(n, DiskAction::Write, 2 * MIB - 4 * 4096 + n * 4096, 4096))
            .collect();
        requests.insert(0, request(8, DiskAction::Write, 0, 4096));
        requests.push(request(9, DiskAction::Read, MIB, 4096));
        requests.push(request(10, DiskAction::Flush, 0, 0));
        run(&mut disk, &requests, 64);
        let report = disk.report();
        assert_eq!(report.counted, RangeWrites { writes: 1, written: 8 * 4096 }, "{report:?}");
        assert_eq!((report.reads, report.writes, report.flushes), (1, 2, 1), "{report:?}");
    }

    #[test]
    fn elevator_moves_one_way_and_restarts_at_the_lowest_address() {
        let mut disk = fibre_channel();
        let at = [5, 1, 9, 7, 3].map(|place: u64| place << 30);
        for (id, offset) in (0..).zip(at) {
            disk.submit(Instant(0), request(id, DiskAction::Read, offset, 4096));
        }
        let mut order = Vec::new();
        while let Some(now) = disk.next() {
            let done = disk.completed(now);
            if done.contains(&3) {
                // Behind the heads by now: it waits for the next pass.
                disk.submit(now, request(5, DiskAction::Read, 6 << 30, 4096));
            }
            order.extend(done);
        }
        assert_eq!(order, [0, 3, 2, 1, 4, 5]);
    }

    #[test]
    fn flash_serves_channels_in_parallel_up_to_its_link() {
        let flash = Flash::nvme();
        let reads = scattered(4000, 4096);
        let model = DiskModel::Flash(flash.clone());
        let lone = run(&mut Mechanics::new(model.clone()), &reads, 1);
        let deep = run(&mut Mechanics::new(model.clone()), &reads, 32);
        assert!(deep * 8 < lone, "{deep:?} against {lone:?}");
        let stream: Vec<_> =
            (0..256).map(|id| request(id, DiskAction::Read, id * MIB, MIB)).collect();
        let time = run(&mut Mechanics::new(model), &stream, 8);
        let speed = 256.0 * MIB as f64 / time.as_secs_f64();
        assert!(speed > 0.8 * flash.link as f64 && speed <= 1.001 * flash.link as f64, "{speed}");
    }
}
