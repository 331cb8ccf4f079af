//! `xdd` (001, Table 1): requests to the tiers themselves, without a store.
//!
//! Invariant: places at random have no stride, and each tier has its own. With a constant stride
//! the requests keep step with the platters.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use env::sim::{SimOptions, SimRng, SimWorld};
use env::{Disk, IoBuf};
use serde::Serialize;

use super::{SERVERS, TIER_BYTES, Took, io, open, tier};
use bench::Res;

/// Requests in flight on each tier, in sequence. At random it is one.
const DEPTH: u64 = 8;
/// A tier takes no more requests than these, however small they are.
const REQUESTS_MAX: u64 = 1024;
/// How many more bytes are at random places: the times of those requests vary, and the slowest of
/// the tiers counts.
const MORE: u64 = 10;

/// Which requests.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Transfers {
    /// Tiers that get them at the same time.
    pub tiers: usize,
    /// Bytes of a request.
    pub bytes: u64,
    /// At random places, one in flight; otherwise in sequence, with eight in flight.
    pub random: bool,
    /// Writes; otherwise reads.
    pub write: bool,
}

impl Transfers {
    /// Runs them: `most` bytes on each tier, ten times as many at random, but not more than 1,024
    /// requests.
    ///
    /// # Errors
    /// A device fails.
    pub fn run(self, most: u64) -> Res<Took> {
        let most = if self.random { most * MORE } else { most };
        let requests = (most / self.bytes).min(REQUESTS_MAX);
        let world = SimWorld::with_options(1, SimOptions::default());
        let inner = world.clone();
        world.run(|env| async move {
            let mut work = Vec::new();
            let begun = env.now();
            for number in 0..self.tiers {
                let name = format!("tier{number}");
                inner.disk(&name, TIER_BYTES).set_model(tier());
                let node = inner.node(&format!("oss{}", number % SERVERS));
                let device = open(&node, &name).await?;
                let left = Rc::new(Cell::new(requests));
                let places = Rc::new(RefCell::new(Places::new(self, number)));
                for _ in 0..if self.random { 1 } else { DEPTH } {
                    let (device, left, places) = (device.clone(), left.clone(), places.clone());
                    work.push(node.spawn_join(self.serve(device, left, places)));
                }
            }
            for thread in work {
                thread.await?;
            }
            let nanos = env.now().since(begun).as_nanos() as u64;
            let bytes = self.tiers as u64 * requests * self.bytes;
            Ok(Took { bytes, nanos, journal_writes: 0, journal_bytes: 0 })
        })
    }

    async fn serve(
        self,
        device: Disk,
        left: Rc<Cell<u64>>,
        places: Rc<RefCell<Places>>,
    ) -> Res<()> {
        let mut buf = IoBuf::zeroed(self.bytes as usize);
        while left.get() > 0 {
            left.set(left.get() - 1);
            let at = places.borrow_mut().next();
            let done;
            (done, buf) = match self.write {
                true => device.write(at, buf).await,
                false => device.read(at, buf).await,
            };
            done.map_err(io("a request of xdd"))?;
        }
        Ok(())
    }
}

/// Where the requests of a tier go.
struct Places {
    transfers: Transfers,
    rng: SimRng,
    begun: u64,
}

impl Places {
    fn new(transfers: Transfers, tier: usize) -> Places {
        Places { transfers, rng: SimRng::new(tier as u64), begun: 0 }
    }

    /// The first byte of the next request.
    fn next(&mut self) -> u64 {
        let places = TIER_BYTES / self.transfers.bytes;
        let place = match self.transfers.random {
            true => self.rng.below(places),
            false => self.begun % places,
        };
        self.begun += 1;
        place * self.transfers.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const WRITES: Transfers = Transfers { tiers: 1, bytes: 4096, random: true, write: true };

    #[test]
    fn random_places_have_no_stride_and_differ_by_tier() {
        let places = |tier| {
            let mut places = Places::new(WRITES, tier);
            std::iter::repeat_with(move || places.next()).take(256).collect::<Vec<_>>()
        };
        let steps = |places: &[u64]| {
            let step = |pair: &[u64]| (pair[1] + TIER_BYTES - pair[0]) % TIER_BYTES;
            places.windows(2).map(step).collect::<BTreeSet<_>>()
        };
        assert_eq!(steps(&places(0)).len(), 255);
        assert!(places(0).iter().all(|at| at % 4096 == 0 && at + 4096 <= TIER_BYTES));
        assert_ne!(places(0), places(1));
        let in_sequence = Transfers { random: false, ..WRITES };
        assert_eq!((Places::new(in_sequence, 3).next(), Places::new(in_sequence, 3).begun), (0, 0));
    }

    #[test]
    fn small_request_at_random_waits_for_half_a_revolution_and_a_seek() {
        let took = WRITES.run(1 << 20).unwrap();
        assert_eq!(took.bytes, REQUESTS_MAX * 4096);
        // 4.2 ms of rotation, 2 ms of seek.
        let millis = took.nanos as f64 / 1e6 / REQUESTS_MAX as f64;
        assert!((5.9..6.5).contains(&millis), "{millis}");
        let sequence = Transfers { random: false, ..WRITES }.run(1 << 20).unwrap();
        assert!(sequence.rate() > 20.0 * took.rate(), "{sequence:?}");
    }
}
