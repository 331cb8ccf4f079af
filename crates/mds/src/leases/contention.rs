//! Files that several clients use at the same time: the server leases them in ranges instead of
//! passing the whole right back and forth.
//!
//! Invariants:
//! - nothing here is durable, and only speed depends on it, except for the tail: what an entry says
//!   of the tail is true as long as the entry exists;
//! - a file becomes contended at the second fast change of clients: a client within [`FAST_SWITCH`]
//!   of the last change finds another one in its way. It is contended no more when only one client
//!   has asked for [`CALM`];
//! - the table is bounded: beyond the bound no further file becomes contended.

use types::limits::{BLOCK_U64, IO_MAX};
use types::{ClientId, Duration, HashMap, Ino, Instant};

/// If the right changes clients within this time, leasing ranges is worth while.
const FAST_SWITCH: Duration = Duration::from_secs(1);
/// After this time without a change of the asking client the file is leased as a whole again.
const CALM: Duration = Duration::from_secs(3);
/// Blocks to which a range is widened at first.
const WINDOW: u64 = IO_MAX as u64 / BLOCK_U64;
/// Files in the table.
const FILES_MAX: usize = 4096;

/// How the server grants a request for a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrantMode {
    /// The whole right.
    Whole,
    /// The range, widened within aligned windows of this many blocks where nobody else holds
    /// anything.
    Range(u64),
    /// Nothing: the client holds ranges, and may as well have the whole.
    Calm,
}

/// A request for a range, and what conflicts with it.
#[derive(Clone, Copy, Debug)]
pub struct RangeRequest {
    /// The client.
    pub client: ClientId,
    /// The file.
    pub ino: Ino,
    /// The time now.
    pub now: Instant,
    /// Other clients hold rights on the whole content that exclude it.
    pub excluded: bool,
    /// Other clients hold ranges that exclude it.
    pub overlaps: bool,
    /// The client already holds ranges of the file.
    pub holds_ranges: bool,
}

struct ContendedFile {
    last: ClientId,
    switched: Instant,
    switches: u32,
    window: u64,
    /// From this size on the device holds zeros to the end of the block.
    tail: Option<u64>,
}

impl ContendedFile {
    fn is_contended(&self, now: Instant) -> bool {
        self.switches >= 2 && now.since(self.switched) <= CALM
    }
}

/// See the module.
#[derive(Default)]
pub struct Contention {
    files: HashMap<Ino, ContendedFile>,
}

impl Contention {
    /// Is the file leased in ranges?
    pub fn is_contended(&self, ino: Ino, now: Instant) -> bool {
        self.files.get(&ino).is_some_and(|file| file.is_contended(now))
    }

    /// Notes a request for a range, and decides how it is granted.
    pub fn decide(&mut self, asked: RangeRequest) -> GrantMode {
        let RangeRequest { client, ino, now, .. } = asked;
        let conflicts = asked.excluded || asked.overlaps;
        if conflicts && !self.files.contains_key(&ino) && self.has_room(now) {
            let file = ContendedFile {
                last: ClientId(0),
                switched: now,
                switches: 0,
                window: WINDOW,
                tail: None,
            };
            self.files.insert(ino, file);
        }
        let otherwise = if asked.holds_ranges { GrantMode::Calm } else { GrantMode::Whole };
        let Some(file) = self.files.get_mut(&ino) else { return otherwise };
        if file.last != client && (conflicts || asked.holds_ranges) {
            let soon = now.since(file.switched) <= FAST_SWITCH;
            file.switches = if soon { file.switches.saturating_add(1) } else { 1 };
            file.switched = now;
            file.last = client;
        }
        if asked.overlaps {
            file.window /= 4;
        }
        if file.is_contended(now) { GrantMode::Range(file.window) } else { otherwise }
    }

    /// The whole right was granted to the client that asked last. The time to the next change of
    /// clients counts from here, however long the previous holder took to write back.
    pub fn granted_whole(&mut self, ino: Ino, now: Instant) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.switched = now;
        }
    }

    /// The file's size is now `size`; `zero`: the device holds zeros from there to the end of the
    /// last block.
    pub fn note_tail(&mut self, ino: Ino, size: u64, zero: bool) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.tail = zero.then_some(size);
        }
    }

    /// Is it known that from `size`, the file's, the device holds zeros to the end of the block?
    pub fn is_tail_zero(&self, ino: Ino, size: u64) -> bool {
        let tail = self.files.get(&ino).and_then(|file| file.tail);
        size.is_multiple_of(BLOCK_U64) || tail == Some(size)
    }

    /// Forgets the file.
    pub fn forget(&mut self, ino: Ino) {
        self.files.remove(&ino);
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        assert!(self.files.len() <= FILES_MAX, "the table of contended files is too long");
        for file in self.files.values() {
            assert!(file.window <= WINDOW, "a range is widened too far");
        }
    }

    fn has_room(&mut self, now: Instant) -> bool {
        if self.files.len() >= FILES_MAX {
            self.files.retain(|_, file| now.since(file.switched) <= CALM);
        }
        self.files.len() < FILES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: Ino = Ino(5);

    fn asked(client: u64, ms: u64) -> RangeRequest {
        RangeRequest {
            client: ClientId(client),
            ino: F,
            now: Instant(0) + Duration::from_millis(ms),
            excluded: false,
            overlaps: false,
            holds_ranges: false,
        }
    }

    #[test]
    fn file_that_changes_hands_once_stays_whole() {
        let mut contention = Contention::default();
        assert_eq!(contention.decide(asked(1, 0)), GrantMode::Whole);
        assert_eq!(
            contention.decide(RangeRequest { excluded: true, ..asked(2, 1) }),
            GrantMode::Whole
        );
        assert_eq!(contention.decide(asked(2, 2)), GrantMode::Whole);
        // Slow changes of clients do not count.
        assert_eq!(
            contention.decide(RangeRequest { excluded: true, ..asked(1, 2000) }),
            GrantMode::Whole
        );
        assert_eq!(
            contention.decide(RangeRequest { excluded: true, ..asked(2, 4000) }),
            GrantMode::Whole
        );
    }

    /// PROTOCOLS 4.9.
    #[test]
    fn contended_file_is_leased_in_ranges_until_one_client_is_alone() {
        let mut contention = Contention::default();
        let excluded = |client, ms| RangeRequest { excluded: true, ..asked(client, ms) };
        assert_eq!(contention.decide(excluded(2, 0)), GrantMode::Whole);
        assert_eq!(contention.decide(excluded(1, 10)), GrantMode::Range(WINDOW));
        assert_eq!(contention.decide(excluded(2, 20)), GrantMode::Range(WINDOW));
        let mine = |ms| RangeRequest { holds_ranges: true, ..asked(2, ms) };
        assert_eq!(contention.decide(mine(2000)), GrantMode::Range(WINDOW));
        assert_eq!(contention.decide(mine(4000)), GrantMode::Calm);
        assert_eq!(contention.decide(asked(2, 4001)), GrantMode::Whole);
    }

    #[test]
    fn hold_time_counts_from_the_grant_and_not_from_the_request() {
        let mut contention = Contention::default();
        let excluded = |client, ms| RangeRequest { excluded: true, ..asked(client, ms) };
        assert_eq!(contention.decide(excluded(2, 0)), GrantMode::Whole);
        contention.granted_whole(F, asked(2, 5000).now);
        assert_eq!(contention.decide(excluded(1, 5001)), GrantMode::Range(WINDOW));
    }

    #[test]
    fn overlapping_ranges_are_widened_less_and_less() {
        let mut contention = Contention::default();
        contention.decide(RangeRequest { excluded: true, ..asked(2, 0) });
        contention.decide(RangeRequest { excluded: true, ..asked(1, 1) });
        let windows: Vec<_> = (2..8)
            .map(|ms| contention.decide(RangeRequest { overlaps: true, ..asked(ms % 2, ms) }))
            .collect();
        let parts = [64, 16, 4, 1, 0, 0].map(GrantMode::Range);
        assert_eq!(windows, parts);
    }

    #[test]
    fn tail_is_known_only_at_the_size_it_was_reported_for() {
        let mut contention = Contention::default();
        contention.note_tail(F, 100, true);
        assert!(!contention.is_tail_zero(F, 100), "not contended, so nobody watches");
        contention.decide(RangeRequest { excluded: true, ..asked(2, 0) });
        contention.note_tail(F, 100, true);
        assert!(contention.is_tail_zero(F, 100) && !contention.is_tail_zero(F, 101));
        assert!(contention.is_tail_zero(F, 8192));
        contention.note_tail(F, 100, false);
        assert!(!contention.is_tail_zero(F, 100));
    }

    #[test]
    fn contention_table_is_bounded() {
        let mut contention = Contention::default();
        for ino in 0..FILES_MAX as u64 + 10 {
            contention.decide(RangeRequest { ino: Ino(ino + 1), excluded: true, ..asked(1, 0) });
        }
        assert_eq!(contention.files.len(), FILES_MAX);
        contention.decide(RangeRequest { ino: Ino(1 << 40), excluded: true, ..asked(1, 10_000) });
        assert_eq!(contention.files.len(), 1);
    }
}
