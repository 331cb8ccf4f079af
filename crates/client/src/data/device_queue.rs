//! The writes that wait for a data device, and which of them go next. Pure: time is an argument,
//! and nothing waits.
//!
//! Requests go in the order of their blocks, like an elevator that returns to the bottom. Waiting
//! writes that are neighbours on the device go as one request.
//!
//! Invariants:
//! - a write that was pushed leaves the queue exactly once: in a request, or by
//!   [`DeviceQueue::take_waiting`];
//! - of two writes to one block, the later one goes when the earlier one has ended;
//! - at most [`REQUESTS_MAX`] requests are in flight. While fewer are, a small write waits only for
//!   one of the same blocks;
//! - a large write waits also while large requests in flight have as many blocks as the device
//!   takes in 50 ms ([`super::intake`]): whatever comes then is not behind more than these;
//! - of [`TURNS`] requests, one goes out of turn: it takes the oldest write that may go, if it has
//!   waited for [`AGE_MAX`], or the oldest small one, if that has waited for [`SMALL_AGE_MAX`] and
//!   large ones wait. If there are both, they alternate. So writes elsewhere starve no old one, and
//!   an fsync of a small file does not wait for a stream, however old the stream's writes are.

use std::collections::{BTreeMap, BTreeSet};

use types::{Duration, Instant};

use super::intake::Intake;

/// Most requests in flight. With 32, simulated flash of 16 channels is as fast as with any number
/// (random blocks; with 8 it takes twice the time), and a simulated hard disk within 2 % of what it
/// does with 128. The fewer are in flight, the more can be joined.
pub(super) const REQUESTS_MAX: usize = 32;
/// Most blocks of a request that joins writes: 1 MiB, as much as a launch has.
pub(super) const JOINED_MAX: u64 = 256;
/// A write that has waited for so long goes out of turn.
pub(super) const AGE_MAX: Duration = Duration::from_millis(500);
/// A write of at most [`SMALL`] blocks that has waited for so long beside larger ones goes out of
/// turn.
pub(super) const SMALL_AGE_MAX: Duration = Duration::from_millis(2);
/// See [`SMALL_AGE_MAX`]. Larger writes and requests are large.
pub(super) const SMALL: u64 = 16;
/// One of so many requests goes out of turn at most. If all waiting writes are old, the others keep
/// the elevator's order.
pub(super) const TURNS: u32 = 8;
/// Upper bounds of the sizes of requests that are counted apart, in blocks; one more count is for
/// those above.
pub(super) const SIZES: [u64; 5] = [1, 4, 16, 64, 256];

/// Requests for one device so far, and now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct QueueCounts {
    /// Writes that have gone to the device.
    pub writes: u64,
    /// Requests that they were.
    pub requests: u64,
    /// Blocks of them.
    pub blocks: u64,
    /// Requests by size; see [`SIZES`].
    pub sizes: [u64; SIZES.len() + 1],
    /// Requests in flight, now and at most.
    pub in_flight: usize,
    pub in_flight_max: usize,
    /// Writes that wait, now and at most.
    pub waiting: usize,
    pub waiting_max: usize,
}

/// Its first block, then its number: the order of arrival.
type Key = (u64, u64);

/// A write that waits.
struct Waiting<T> {
    /// One past its last block.
    end: u64,
    since: Instant,
    item: T,
}

/// Writes that go to the device as one.
pub(super) struct Request<T> {
    /// For [`DeviceQueue::ended`].
    pub number: u64,
    /// Its first block.
    pub first: u64,
    /// The writes, each beginning where the one before it ends.
    pub items: Vec<T>,
}

/// See the module.
pub(super) struct DeviceQueue<T> {
    waiting: BTreeMap<Key, Waiting<T>>,
    /// First block of each waiting write, by its number.
    by_age: BTreeMap<u64, u64>,
    /// The same of those that are small.
    small: BTreeMap<u64, u64>,
    /// These in the order of blocks.
    small_keys: BTreeSet<Key>,
    /// Waiting writes that met an earlier waiting one in one of their blocks.
    crossing: BTreeSet<u64>,
    /// Most blocks that a write ever had.
    longest: u64,
    /// Blocks of each request in flight, by its number.
    in_flight: BTreeMap<u64, (u64, u64)>,
    /// Blocks of large requests in flight.
    large_in_flight: u64,
    intake: Intake,
    /// One past the last block of the last request.
    head: u64,
    /// Requests since one took an old write out of turn.
    in_turn: u32,
    /// The last write that went out of turn was a small one's.
    was_small: bool,
    next_number: u64,
    counts: QueueCounts,
}

impl<T> Default for DeviceQueue<T> {
    fn default() -> DeviceQueue<T> {
        DeviceQueue {
            waiting: BTreeMap::new(),
            by_age: BTreeMap::new(),
            small: BTreeMap::new(),
            small_keys: BTreeSet::new(),
            crossing: BTreeSet::new(),
            longest: 0,
            in_flight: BTreeMap::new(),
            large_in_flight: 0,
            intake: Intake::default(),
            head: 0,
            in_turn: TURNS,
            was_small: false,
            next_number: 0,
            counts: QueueCounts::default(),
        }
    }
}

impl<T> DeviceQueue<T> {
    /// Adds a write of `blocks` blocks from `first` on.
    pub fn push(&mut self, now: Instant, first: u64, blocks: u64, item: T) {
        let (number, end) = (self.take_number(), first + blocks);
        self.longest = self.longest.max(blocks);
        if self.meets_waiting((first, number), end) {
            self.crossing.insert(number);
        }
        self.waiting.insert((first, number), Waiting { end, since: now, item });
        self.by_age.insert(number, first);
        if blocks <= SMALL {
            self.small.insert(number, first);
            self.small_keys.insert((first, number));
        }
        self.counts.waiting_max = self.counts.waiting_max.max(self.waiting.len());
    }

    /// The request that goes now, if one may. It is in flight until [`DeviceQueue::ended`].
    pub fn next(&mut self, now: Instant) -> Option<Request<T>> {
        if self.in_flight.len() >= REQUESTS_MAX {
            return None;
        }
        let out = if self.in_turn + 1 >= TURNS { self.out_of_turn(now) } else { None };
        let key = out.map(|(key, _)| key).or_else(|| self.next_above())?;
        match out {
            Some((_, is_small)) => (self.in_turn, self.was_small) = (0, is_small),
            None => self.in_turn = self.in_turn.saturating_add(1),
        }
        let (keys, end) = self.with_neighbours(key);
        let first = keys[0].0;
        let items: Vec<T> = keys.into_iter().map(|key| self.remove(key)).collect();
        let number = self.take_number();
        self.in_flight.insert(number, (first, end));
        self.large_in_flight += large_blocks(first, end);
        self.intake.begun(now);
        self.head = end;
        self.count(items.len(), end - first);
        Some(Request { number, first, items })
    }

    /// The request with this number has ended.
    pub fn ended(&mut self, now: Instant, number: u64) {
        let known = self.in_flight.remove(&number);
        debug_assert!(known.is_some(), "request {number} ended twice");
        let Some((first, end)) = known else { return };
        self.large_in_flight -= large_blocks(first, end);
        self.intake.ended(now, end - first, self.in_flight.is_empty());
    }

    /// Removes all writes that wait, the oldest first.
    pub fn take_waiting(&mut self) -> Vec<T> {
        let keys: Vec<Key> = self.by_age.iter().map(|(&number, &first)| (first, number)).collect();
        keys.into_iter().map(|key| self.remove(key)).collect()
    }

    /// See [`QueueCounts`].
    pub fn counts(&self) -> QueueCounts {
        let (in_flight, waiting) = (self.in_flight.len(), self.waiting.len());
        QueueCounts { in_flight, waiting, ..self.counts }
    }

    fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn remove(&mut self, key: Key) -> T {
        self.by_age.remove(&key.1);
        self.small.remove(&key.1);
        self.small_keys.remove(&key);
        self.crossing.remove(&key.1);
        self.waiting.remove(&key).expect("a waiting write").item
    }

    fn count(&mut self, writes: usize, blocks: u64) {
        let counts = &mut self.counts;
        counts.writes += writes as u64;
        counts.requests += 1;
        counts.blocks += blocks;
        let class = SIZES.iter().position(|&most| blocks <= most).unwrap_or(SIZES.len());
        counts.sizes[class] += 1;
        counts.in_flight_max = counts.in_flight_max.max(self.in_flight.len());
    }

    /// The write that goes out of turn, and whether it does as a small one.
    fn out_of_turn(&self, now: Instant) -> Option<(Key, bool)> {
        let first_of = |order: &BTreeMap<u64, u64>, age: Duration| {
            let keys = order.iter().map(|(&number, &first)| (first, number));
            let mut old = keys.take_while(|key| now.since(self.waiting[key].since) >= age);
            old.find(|&key| self.may_go(key))
        };
        let large_wait = self.small.len() < self.by_age.len();
        let small = || {
            let key = first_of(&self.small, SMALL_AGE_MAX).filter(|_| large_wait)?;
            Some((key, true))
        };
        let any = || Some((first_of(&self.by_age, AGE_MAX)?, false));
        if self.was_small { any().or_else(small) } else { small().or_else(any) }
    }

    /// The next write in the order of blocks that may go.
    fn next_above(&self) -> Option<Key> {
        let head = (self.head, 0);
        if self.is_full() {
            let order = self.small_keys.range(head..).chain(self.small_keys.range(..head));
            return order.copied().find(|&key| self.may_go(key));
        }
        let order = self.waiting.range(head..).chain(self.waiting.range(..head));
        order.map(|(&key, _)| key).find(|&key| self.may_go(key))
    }

    /// Do large writes wait for large ones in flight?
    fn is_full(&self) -> bool {
        self.large_in_flight >= self.intake.bound()
    }

    /// A write and those that go with it, in the order of blocks; and one past their last block.
    fn with_neighbours(&self, key: Key) -> (Vec<Key>, u64) {
        let (mut keys, mut first, mut end) = (vec![key], key.0, self.waiting[&key].end);
        loop {
            let mut above = self.waiting.range((end, 0)..(end + 1, 0)).map(|(&key, _)| key);
            let Some(key) = above.find(|&key| self.may_go(key)) else { break };
            let last = self.waiting[&key].end;
            if last - first > JOINED_MAX {
                break;
            }
            keys.push(key);
            end = last;
        }
        let mut below = Vec::new();
        while let Some((&key, waiting)) = self.waiting.range(..(first, 0)).next_back() {
            if waiting.end != first || end - key.0 > JOINED_MAX || !self.may_go(key) {
                break;
            }
            below.push(key);
            first = key.0;
        }
        below.reverse();
        below.append(&mut keys);
        (below, end)
    }

    /// May this write go, because nothing ahead of it has one of its blocks, and a large one
    /// because of those in flight?
    fn may_go(&self, key: Key) -> bool {
        let end = self.waiting[&key].end;
        if self.is_full() && large_blocks(key.0, end) > 0 {
            return false;
        }
        let mut in_flight = self.in_flight.values();
        let is_behind = in_flight.any(|&(from, to)| from < end && key.0 < to)
            || self.crossing.contains(&key.1) && self.meets_waiting(key, end);
        !is_behind
    }

    /// Has a waiting write with a smaller number a block in `[key.0, end)`?
    fn meets_waiting(&self, key: Key, end: u64) -> bool {
        let mut below = self.waiting.range(..(end, 0)).rev();
        if self.crossing.is_empty() {
            // A new write, and those that wait do not overlap: the last one below `end` reaches
            // farthest.
            return below.next().is_some_and(|(_, write)| write.end > key.0);
        }
        let from = key.0.saturating_sub(self.longest);
        let mut near = below.take_while(|(other, _)| other.0 >= from);
        near.any(|(other, write)| other.1 < key.1 && write.end > key.0)
    }
}

/// The blocks `[first, end)` of a large write or request; 0 if it is small.
fn large_blocks(first: u64, end: u64) -> u64 {
    let blocks = end - first;
    if blocks > SMALL { blocks } else { 0 }
}

#[cfg(test)]
mod tests {
    use env::sim::SimRng;

    use super::*;
    use crate::data::intake::LEAST;

    fn at(millis: u64) -> Instant {
        Instant::default() + Duration::from_millis(millis)
    }

    /// A queue with `REQUESTS_MAX` requests in flight, far above all others, and their numbers.
    fn busy() -> (DeviceQueue<u64>, Vec<u64>) {
        let mut queue = DeviceQueue::default();
        let far = |nth: usize| (1 << 40) + 2 * nth as u64;
        let numbers = (0..REQUESTS_MAX).map(|nth| {
            queue.push(at(0), far(nth), 1, far(nth));
            queue.next(at(0)).expect("there is room").number
        });
        let numbers = numbers.collect();
        queue.head = 0;
        (queue, numbers)
    }

    /// Ends all requests in flight, and returns what goes then, one request after another.
    fn drain(queue: &mut DeviceQueue<u64>, numbers: Vec<u64>, now: Instant) -> Vec<Vec<u64>> {
        numbers.into_iter().for_each(|number| queue.ended(now, number));
        let mut out = Vec::new();
        while let Some(request) = queue.next(now) {
            queue.ended(now, request.number);
            out.push(request.items);
        }
        out
    }

    #[test]
    fn write_goes_at_once_while_few_are_in_flight() {
        let (mut queue, numbers) = busy();
        queue.push(at(0), 7, 1, 7);
        assert!(queue.next(at(0)).is_none());
        queue.ended(at(0), numbers[3]);
        assert_eq!(queue.next(at(0)).unwrap().items, [7]);
        let counts = queue.counts();
        assert_eq!((counts.in_flight, counts.in_flight_max), (REQUESTS_MAX, REQUESTS_MAX));
        assert_eq!((counts.waiting, counts.waiting_max), (0, 1));
    }

    #[test]
    fn waiting_neighbours_go_as_one_and_all_in_the_order_of_blocks() {
        let (mut queue, numbers) = busy();
        for first in [40, 12, 8, 90, 10] {
            queue.push(at(0), first, 2, first);
        }
        queue.head = 20;
        assert_eq!(drain(&mut queue, numbers, at(0)), [vec![40], vec![90], vec![8, 10, 12]]);
        let counts = queue.counts();
        let busy = REQUESTS_MAX as u64;
        assert_eq!((counts.writes, counts.requests), (busy + 5, busy + 3));
        assert_eq!((counts.blocks, counts.sizes), (busy + 10, [busy, 2, 1, 0, 0, 0]));
    }

    #[test]
    fn joined_request_has_a_limit_that_a_single_write_may_exceed() {
        let (mut queue, numbers) = busy();
        queue.push(at(0), 0, JOINED_MAX - 1, 1);
        queue.push(at(0), JOINED_MAX - 1, 1, 2);
        queue.push(at(0), JOINED_MAX, 2 * JOINED_MAX, 3);
        assert_eq!(drain(&mut queue, numbers, at(0)), [vec![1, 2], vec![3]]);
        assert_eq!(queue.counts().sizes[4..], [1, 1]);
    }

    #[test]
    fn old_write_goes_out_of_turn_and_takes_its_neighbours_along() {
        let (mut queue, numbers) = busy();
        queue.push(at(0), 5, 1, 5);
        for first in [4, 100, 6, 200] {
            queue.push(at(499), first, 1, first);
        }
        queue.head = 50;
        assert_eq!(drain(&mut queue, numbers, at(500))[0], [4, 5, 6]);
    }

    #[test]
    fn small_write_goes_out_of_turn_beside_large_ones_only() {
        let (mut queue, numbers) = busy();
        queue.push(at(0), 5, SMALL, 5);
        for first in [1000, 2000, 3000] {
            queue.push(at(0), first, JOINED_MAX, first);
        }
        queue.head = 500;
        assert_eq!(drain(&mut queue, numbers, at(2))[..2], [vec![5], vec![1000]]);
        let (mut queue, numbers) = busy();
        for first in [5, 1000, 2000] {
            queue.push(at(0), first, SMALL, first);
        }
        queue.head = 500;
        assert_eq!(drain(&mut queue, numbers, at(2)), [[1000], [2000], [5]]);
    }

    #[test]
    fn small_write_has_its_turn_beside_large_ones_that_are_older() {
        let (mut queue, numbers) = busy();
        let large: Vec<u64> = (1..31).rev().map(|nth| 1000 * nth).collect();
        large.iter().for_each(|&first| queue.push(at(0), first, JOINED_MAX, first));
        [5, 15_500].iter().for_each(|&first| queue.push(at(8_998), first, 1, first));
        queue.head = 4_500;
        let order = drain(&mut queue, numbers, at(9_000)).concat();
        let turns = TURNS as usize;
        assert_eq!(order[..2], [5, 1000], "the oldest small one, then the elevator goes on");
        assert_eq!(order[turns], 30_000, "then the oldest one of all");
        assert_eq!(order[2 * turns], 15_500);
        assert_eq!(order.len(), large.len() + 2);
    }

    #[test]
    fn large_writes_in_flight_are_bounded_and_small_ones_pass_them() {
        let mut queue = DeviceQueue::default();
        for nth in 1..40 {
            queue.push(at(0), 1000 * nth, JOINED_MAX, 1000 * nth);
        }
        let begin = |queue: &mut DeviceQueue<u64>, now| {
            std::iter::from_fn(|| queue.next(now)).map(|request| request.number).collect()
        };
        let mut numbers: Vec<u64> = begin(&mut queue, at(0));
        assert_eq!(numbers.len() as u64, LEAST / JOINED_MAX);
        queue.push(at(0), 1000 + JOINED_MAX, 1, 7);
        let small = queue.next(at(0)).expect("it waits for no large one");
        assert_eq!((small.items, queue.next(at(0)).is_none()), (vec![7], true));
        queue.ended(at(0), small.number);
        // A device that takes 1 MiB in 2 ms may have more of them.
        for millis in 1..=60 {
            queue.ended(at(2 * millis), numbers.remove(0));
            let next: Vec<u64> = begin(&mut queue, at(2 * millis));
            numbers.extend(next);
            let first = 1_000_000 + 1000 * millis;
            queue.push(at(2 * millis), first, JOINED_MAX, first);
        }
        assert!((12..=25).contains(&numbers.len()), "{} are in flight", numbers.len());
    }

    #[test]
    fn large_write_goes_alone_beyond_every_bound() {
        let mut queue = DeviceQueue::default();
        queue.push(at(0), 0, 4 * LEAST, 'a');
        queue.push(at(0), 5 * LEAST, SMALL + 1, 'b');
        let a = queue.next(at(0)).unwrap();
        assert_eq!((a.items, queue.next(at(0)).is_none()), (vec!['a'], true));
        queue.ended(at(5), a.number);
        assert_eq!(queue.next(at(5)).unwrap().items, ['b']);
    }

    #[test]
    fn write_is_not_starved_by_younger_ones_above_it() {
        let (mut queue, mut numbers) = busy();
        queue.push(at(0), 1, 1, 1);
        queue.head = 100;
        // A device that takes 10 ms for each request, and always has another write ahead.
        for step in 0.. {
            let now = at(10 * step);
            assert!(now <= at(500 + 10 * u64::from(TURNS)), "starved");
            queue.push(now, 100 + 2 * step, 1, 0);
            queue.ended(now, numbers.remove(0));
            let request = queue.next(now).expect("two wait");
            numbers.push(request.number);
            if request.items == [1] {
                assert!(now >= at(500), "it went in turn");
                return;
            }
        }
    }

    #[test]
    fn elevator_goes_on_when_all_writes_are_old() {
        let (mut queue, numbers) = busy();
        let blocks = [30, 10, 50, 20, 40];
        blocks.iter().for_each(|&first| queue.push(at(0), first, 1, first));
        let order = drain(&mut queue, numbers, at(9_000)).concat();
        assert_eq!(order, [30, 40, 50, 10, 20]);
    }

    #[test]
    fn writes_of_one_block_go_in_the_order_in_which_they_came() {
        let mut queue = DeviceQueue::default();
        queue.push(at(0), 10, 4, 'a');
        let a = queue.next(at(0)).unwrap();
        queue.push(at(0), 12, 4, 'b');
        queue.push(at(0), 8, 6, 'c');
        queue.push(at(0), 16, 1, 'd');
        let d = queue.next(at(0)).unwrap();
        assert_eq!(d.items, ['d'], "the others wait for a write in flight");
        assert!(queue.next(at(900)).is_none());
        queue.ended(at(900), a.number);
        let b = queue.next(at(900)).unwrap();
        assert_eq!(b.items, ['b']);
        assert!(queue.next(at(900)).is_none(), "`c` has blocks of `b`");
        queue.ended(at(900), b.number);
        assert_eq!(queue.next(at(900)).unwrap().items, ['c']);
    }

    #[test]
    fn taken_writes_come_in_the_order_of_arrival_and_never_again() {
        let (mut queue, numbers) = busy();
        for first in [9, 3, 6] {
            queue.push(at(0), first, 1, first);
        }
        assert_eq!(queue.take_waiting(), [9, 3, 6]);
        assert!(drain(&mut queue, numbers, at(0)).is_empty());
    }

    /// What the test knows of a write.
    struct Known {
        first: u64,
        end: u64,
        since: Instant,
        gone: bool,
        ended: bool,
    }

    impl Known {
        fn meets(&self, other: &Known) -> bool {
            self.first < other.end && other.first < self.end
        }
    }

    /// Checks a request against all writes that were pushed; it begins.
    fn check_request(known: &mut [Known], request: &Request<usize>) {
        let mut at = request.first;
        for &item in &request.items {
            let write = &known[item];
            assert!(!write.gone, "write {item} goes twice");
            assert_eq!(write.first, at, "the request has a gap");
            at = write.end;
            let ahead = known[..item].iter().find(|other| !other.ended && other.meets(write));
            assert!(ahead.is_none(), "write {item} overtakes one of its blocks");
            let later = known[item + 1..].iter().find(|other| other.gone && other.meets(write));
            assert!(later.is_none(), "a later write of its blocks went before write {item}");
        }
        let alone = request.items.len() == 1;
        assert!(alone || at - request.first <= JOINED_MAX, "the request is too large");
        request.items.iter().for_each(|&item| known[item].gone = true);
    }

    /// The oldest write that is old and may go: if the device is `full`, a small one.
    fn oldest(known: &[Known], now: Instant, full: bool) -> Option<usize> {
        let fits = |write: &Known| !full || write.end - write.first <= SMALL;
        let old = |write: &Known| !write.gone && now.since(write.since) >= AGE_MAX && fits(write);
        let may_go = |nth: usize| {
            let ahead = |(other, write): (usize, &Known)| {
                !write.ended && (other < nth || write.gone) && write.meets(&known[nth])
            };
            !known.iter().enumerate().any(ahead)
        };
        (0..known.len()).find(|&nth| old(&known[nth]) && may_go(nth))
    }

    #[test]
    fn random_writes_go_once_in_order_and_in_time() {
        let (mut most, mut skips_max, mut was_full) = (0, 0, false);
        for seed in 0..40 {
            let mut rng = SimRng::new(seed);
            // Few blocks: many writes meet; many: few do.
            let span = if seed % 2 == 0 { 500 } else { 50_000 };
            let mut queue = DeviceQueue::default();
            let mut known: Vec<Known> = Vec::new();
            let mut flying: Vec<Request<usize>> = Vec::new();
            let mut skips = 0;
            for step in 0..3_500 {
                let now = at(step);
                if step < 1_500 && rng.one_in(2) {
                    let first = rng.below(span);
                    let most = if rng.one_in(8) { 300 } else { 8 };
                    let end = first + 1 + rng.below(most);
                    queue.push(now, first, end - first, known.len());
                    known.push(Known { first, end, since: now, gone: false, ended: false });
                }
                // Fewer end than come, then all do.
                if !flying.is_empty() && (step >= 2_500 || rng.one_in(4)) {
                    let nth = rng.below(flying.len() as u64) as usize;
                    let request = flying.swap_remove(nth);
                    request.items.iter().for_each(|&item| known[item].ended = true);
                    queue.ended(now, request.number);
                }
                loop {
                    let full = queue.large_in_flight >= queue.intake.bound();
                    let oldest = oldest(&known, now, full);
                    let Some(request) = queue.next(now) else {
                        assert!(oldest.is_none() || flying.len() == REQUESTS_MAX);
                        break;
                    };
                    let large = |&nth: &usize| known[nth].end - known[nth].first > SMALL;
                    assert!(!full || !request.items.iter().any(large), "beyond the bound");
                    was_full |= full;
                    let takes = |nth: usize| request.items.contains(&nth);
                    skips = if oldest.is_none_or(takes) { 0 } else { skips + 1 };
                    skips_max = skips.max(skips_max);
                    check_request(&mut known, &request);
                    flying.push(request);
                }
                assert!(flying.len() <= REQUESTS_MAX);
                assert!(skips < 2 * TURNS, "seed {seed}: writes elsewhere starve an old one");
                let waiting = known.iter().filter(|write| !write.gone).count();
                most = most.max(waiting);
                assert_eq!(queue.counts().waiting, waiting);
                assert_eq!(queue.counts().in_flight, flying.len());
            }
            assert!(known.iter().all(|write| write.ended), "seed {seed}: a write was lost");
            let counts = queue.counts();
            assert_eq!(counts.writes, known.len() as u64);
            assert_eq!(counts.sizes.iter().sum::<u64>(), counts.requests);
        }
        assert!(
            was_full && most > 100 && skips_max > 2,
            "{most} waited, {skips_max} went before an old one"
        );
    }
}
