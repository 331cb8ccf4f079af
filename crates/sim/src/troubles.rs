//! Which devices stall or are dead for some host, and which did a moment ago.

use std::collections::BTreeMap;

use types::{Duration, Instant, PagId};

/// A client looks again at an absent device within this time.
const LOOK_AGAIN: Duration = Duration::from_secs(20);

/// The zones that stall or are dead, how often at the same time, and until when a zone did.
/// `None` is the metadata device.
#[derive(Default)]
pub(crate) struct Troubles(BTreeMap<Option<PagId>, (usize, Instant)>);

impl Troubles {
    /// A zone stalls or is dead from here on, or no longer.
    pub(crate) fn note(&mut self, zone: Option<PagId>, begins: bool, now: Instant) {
        let (count, until) = self.0.entry(zone).or_default();
        *count = if begins { *count + 1 } else { count.saturating_sub(1) };
        *until = now;
    }

    /// The data zones whose device may be absent for a client: it did not work, and the client may
    /// not have looked at it again since.
    pub(crate) fn doubtful(&self, now: Instant) -> impl Iterator<Item = PagId> {
        let until = move |until: Instant| now.since(until) <= LOOK_AGAIN;
        let zones = self.0.iter().filter_map(|(zone, state)| Some(((*zone)?, *state)));
        zones.filter(move |(_, (count, at))| *count > 0 || until(*at)).map(|(zone, _)| zone)
    }

    /// Was the zone in trouble at some moment since then?
    pub(crate) fn since(&self, zone: Option<PagId>, since: Instant) -> bool {
        self.0.get(&zone).is_some_and(|&(count, until)| count > 0 || until >= since)
    }
}
