//! The cost of computing, in virtual time.
//!
//! Invariants:
//! - without a price, computing takes no virtual time, and nothing here is used;
//! - a processor does one thing at a time, in the order of requests; a request to a busy processor
//!   waits;
//! - a price never reorders the bytes of one direction of a connection.
//!
//! A *message* is what one send passes to a connection, as far as the window allows, so data that
//! a sender combines is paid once. It is paid at both ends: it leaves when the sender's processor
//! has handled it, and is readable when the receiver's has. A sender does not wait for its own
//! processor: what it sends later leaves later.

use types::{Duration, Instant};

const KIB: u64 = 1024;

/// The price of messages, and of a metadata server's work between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Price {
    /// Sending or receiving a message.
    pub message: Duration,
    /// Each KiB of it.
    pub kib: Duration,
    /// A transaction of the store that changes something.
    pub change: Duration,
}

impl Price {
    /// The result of `repro price`; docs/BENCHMARKS.md says when and where.
    pub const MEASURED: Price = Price {
        message: Duration::from_nanos(1_700),
        kib: Duration::from_nanos(84),
        change: Duration::from_nanos(19_100),
    };

    /// Sending or receiving `bytes` bytes.
    pub fn of(&self, bytes: usize) -> Duration {
        let payload = self.kib.as_nanos() as u64 * bytes as u64 / KIB;
        Duration::from_nanos(self.message.as_nanos() as u64 + payload)
    }

    /// The work of the server's processor for a request with its answer, whether it changes
    /// something or not.
    pub fn request(&self, changes: bool) -> Duration {
        let work = if changes { self.change } else { Duration::ZERO };
        Duration::from_nanos(2 * self.message.as_nanos() as u64 + work.as_nanos() as u64)
    }
}

/// The processors of one host, and their queues.
#[derive(Clone, Debug)]
pub struct Processors {
    /// When each is free.
    free: Vec<Instant>,
    busy: Duration,
}

impl Default for Processors {
    fn default() -> Processors {
        Processors::new(1)
    }
}

impl Processors {
    /// `count` idle processors.
    ///
    /// # Panics
    /// `count` is 0.
    pub fn new(count: usize) -> Processors {
        assert!(count > 0, "a host has a processor");
        Processors { free: vec![Instant(0); count], busy: Duration::ZERO }
    }

    /// Gives work to the processor that is free first; returns when it is done.
    pub fn take(&mut self, now: Instant, cost: Duration) -> Instant {
        let next = self.free.iter_mut().min().expect("a host has a processor");
        *next = (*next).max(now) + cost;
        self.busy += cost;
        *next
    }

    /// The sum of the busy times.
    pub fn busy(&self) -> Duration {
        self.busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn each_processor_does_one_thing_at_a_time() {
        let at = |count| Instant(0) + micros(count);
        let mut one = Processors::default();
        let done = [(0, 5), (1, 5), (30, 2)].map(|(now, cost)| one.take(at(now), micros(cost)));
        assert_eq!(done, [at(5), at(10), at(32)]);
        assert_eq!(one.busy(), micros(12));
        let mut two = Processors::new(2);
        let done = [(0, 5), (1, 5), (2, 5)].map(|(now, cost)| two.take(at(now), micros(cost)));
        assert_eq!(done, [at(5), at(6), at(10)]);
    }

    #[test]
    fn price_has_a_part_per_message_and_one_per_byte() {
        let price = Price { message: micros(10), kib: micros(2), change: micros(7) };
        assert_eq!(price.of(0), micros(10));
        assert_eq!(price.of(4096), micros(18));
        assert_eq!((price.request(false), price.request(true)), (micros(20), micros(27)));
    }
}
