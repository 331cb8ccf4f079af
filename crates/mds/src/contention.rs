//! Files that several clients use at the same time: they are given parts instead of taking turns.
//!
//! Invariants:
//! - nothing here is durable, and nothing but speed depends on it, the tail excepted: what is
//!   said of it is true as long as the entry is there;
//! - a file is contended from the second time within [`TURN`] that the client which asks
//!   changes, and stands in another's way, until for [`CALM`] only one has asked;
//! - the table is bounded: beyond it no further file becomes contended.

use types::limits::{BLOCK_U64, IO_MAX};
use types::{ClientId, Duration, HashMap, Ino, Instant};

/// Within this time turns follow each other so fast that parts are worth while.
const TURN: Duration = Duration::from_secs(1);
/// After this time without a change of the client that asks, the file is whole again.
const CALM: Duration = Duration::from_secs(3);
/// Blocks to which a part is widened at first.
const WINDOW: u64 = IO_MAX as u64 / BLOCK_U64;
/// Files in the table.
const FILES_MAX: usize = 4096;

/// How a request for a part is met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// By the whole right.
    Whole,
    /// By the part, widened within aligned ranges of so many blocks where nobody else has anything.
    Part(u64),
    /// Not at all: who asks holds parts, and may as well have the whole.
    Calm,
}

/// Who asks for a part, and what stands in the way.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Who.
    pub client: ClientId,
    /// Of what.
    pub ino: Ino,
    /// When.
    pub now: Instant,
    /// Others hold rights on the whole content that exclude it.
    pub excluded: bool,
    /// Others hold parts that exclude it.
    pub overlaps: bool,
    /// The client holds parts of the file already.
    pub holds_parts: bool,
}

struct File {
    last: ClientId,
    switched: Instant,
    switches: u32,
    window: u64,
    /// Behind this size there are zeros to the end of the block, on the device.
    tail: Option<u64>,
}

impl File {
    fn is_contended(&self, now: Instant) -> bool {
        self.switches >= 2 && now.since(self.switched) <= CALM
    }
}

/// See the module.
#[derive(Default)]
pub struct Contention {
    files: HashMap<Ino, File>,
}

impl Contention {
    /// Is the file being given in parts?
    pub fn is_contended(&self, ino: Ino, now: Instant) -> bool {
        self.files.get(&ino).is_some_and(|file| file.is_contended(now))
    }

    /// Notes a request for a part, and decides how it is met.
    pub fn ask(&mut self, asked: Asked) -> Manner {
        let Asked { client, ino, now, .. } = asked;
        let stands = asked.excluded || asked.overlaps;
        if stands && !self.files.contains_key(&ino) && self.has_room(now) {
            let file =
                File { last: ClientId(0), switched: now, switches: 0, window: WINDOW, tail: None };
            self.files.insert(ino, file);
        }
        let otherwise = if asked.holds_parts { Manner::Calm } else { Manner::Whole };
        let Some(file) = self.files.get_mut(&ino) else { return otherwise };
        if file.last != client && (stands || asked.holds_parts) {
            let soon = now.since(file.switched) <= TURN;
            file.switches = if soon { file.switches.saturating_add(1) } else { 1 };
            file.switched = now;
            file.last = client;
        }
        if asked.overlaps {
            file.window /= 4;
        }
        if file.is_contended(now) { Manner::Part(file.window) } else { otherwise }
    }

    /// The whole right was given to who asked last: a turn is short or long from here, however long
    /// it took the one before to save what it had written.
    pub fn given(&mut self, ino: Ino, now: Instant) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.switched = now;
        }
    }

    /// The file's size is `size` now; `zero`: what lies behind it in the last block is zero on the
    /// device.
    pub fn note_tail(&mut self, ino: Ino, size: u64, zero: bool) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.tail = zero.then_some(size);
        }
    }

    /// Is it known that behind `size`, the file's, there are zeros to the end of the block?
    pub fn is_tail_zero(&self, ino: Ino, size: u64) -> bool {
        let tail = self.files.get(&ino).and_then(|file| file.tail);
        size.is_multiple_of(BLOCK_U64) || tail == Some(size)
    }

    /// Nothing is known of the file any more.
    pub fn forget(&mut self, ino: Ino) {
        self.files.remove(&ino);
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

    fn asked(client: u64, ms: u64) -> Asked {
        Asked {
            client: ClientId(client),
            ino: F,
            now: Instant(0) + Duration::from_millis(ms),
            excluded: false,
            overlaps: false,
            holds_parts: false,
        }
    }

    #[test]
    fn a_file_that_changes_hands_once_stays_whole() {
        let mut contention = Contention::default();
        assert_eq!(contention.ask(asked(1, 0)), Manner::Whole);
        assert_eq!(contention.ask(Asked { excluded: true, ..asked(2, 1) }), Manner::Whole);
        assert_eq!(contention.ask(asked(2, 2)), Manner::Whole);
        // Slow turns are turns.
        assert_eq!(contention.ask(Asked { excluded: true, ..asked(1, 2000) }), Manner::Whole);
        assert_eq!(contention.ask(Asked { excluded: true, ..asked(2, 4000) }), Manner::Whole);
    }

    #[test]
    fn fast_turns_are_ended_by_parts_until_one_client_is_alone() {
        let mut contention = Contention::default();
        let excluded = |client, ms| Asked { excluded: true, ..asked(client, ms) };
        assert_eq!(contention.ask(excluded(2, 0)), Manner::Whole);
        assert_eq!(contention.ask(excluded(1, 10)), Manner::Part(WINDOW));
        assert_eq!(contention.ask(excluded(2, 20)), Manner::Part(WINDOW));
        let mine = |ms| Asked { holds_parts: true, ..asked(2, ms) };
        assert_eq!(contention.ask(mine(2000)), Manner::Part(WINDOW));
        assert_eq!(contention.ask(mine(4000)), Manner::Calm);
        assert_eq!(contention.ask(asked(2, 4001)), Manner::Whole);
    }

    #[test]
    fn a_turn_is_short_however_long_it_was_waited_for() {
        let mut contention = Contention::default();
        let excluded = |client, ms| Asked { excluded: true, ..asked(client, ms) };
        assert_eq!(contention.ask(excluded(2, 0)), Manner::Whole);
        contention.given(F, asked(2, 5000).now);
        assert_eq!(contention.ask(excluded(1, 5001)), Manner::Part(WINDOW));
    }

    #[test]
    fn parts_that_overlap_are_widened_less_and_less() {
        let mut contention = Contention::default();
        contention.ask(Asked { excluded: true, ..asked(2, 0) });
        contention.ask(Asked { excluded: true, ..asked(1, 1) });
        let windows: Vec<_> = (2..8)
            .map(|ms| contention.ask(Asked { overlaps: true, ..asked(ms % 2, ms) }))
            .collect();
        let parts = [64, 16, 4, 1, 0, 0].map(Manner::Part);
        assert_eq!(windows, parts);
    }

    #[test]
    fn a_tail_is_known_only_at_the_size_it_was_told_for() {
        let mut contention = Contention::default();
        contention.note_tail(F, 100, true);
        assert!(!contention.is_tail_zero(F, 100), "not contended, so nobody watches");
        contention.ask(Asked { excluded: true, ..asked(2, 0) });
        contention.note_tail(F, 100, true);
        assert!(contention.is_tail_zero(F, 100) && !contention.is_tail_zero(F, 101));
        assert!(contention.is_tail_zero(F, 8192));
        contention.note_tail(F, 100, false);
        assert!(!contention.is_tail_zero(F, 100));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut contention = Contention::default();
        for ino in 0..FILES_MAX as u64 + 10 {
            contention.ask(Asked { ino: Ino(ino + 1), excluded: true, ..asked(1, 0) });
        }
        assert_eq!(contention.files.len(), FILES_MAX);
        contention.ask(Asked { ino: Ino(1 << 40), excluded: true, ..asked(1, 10_000) });
        assert_eq!(contention.files.len(), 1);
    }
}
