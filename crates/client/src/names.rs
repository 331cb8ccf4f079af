//! The names of a directory, cached under `NAMES`.
//!
//! Invariants:
//! - nothing is kept without the right; whoever loses it clears the map;
//! - a complete map has every name of the directory: what is not in it is missing;
//! - what another reply told about an older version of the directory is not kept; this client's own
//!   changes are, in the order in which they were made. The kernel never overlaps them, unless a
//!   process is killed that waits for one: of what is told after a newer version nothing is known.

use types::{HashMap, Ino, Name};

/// Known-missing names kept in a map that is not complete.
const MISSING_MAX: usize = 8192;
/// Lookups sent to the server before the whole directory is fetched.
const MISSES: u32 = 4;

/// What the cache knows of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// It leads there.
    Leads(Ino),
    /// There is no such name.
    Missing,
    /// Nothing.
    Nothing,
}

/// Cached names of one directory.
#[derive(Default)]
pub(crate) struct Names {
    map: HashMap<Name, Ino>,
    missing: usize,
    complete: bool,
    /// Up to which cookie the directory was listed without a gap.
    listed_to: u64,
    /// Version of the directory as of which the right was got.
    since: u64,
    /// Rises with every loss of the right.
    losses: u32,
    /// Rises whenever a name may have ceased to lead where it led.
    turns: u64,
    misses: u32,
    fetching: bool,
    /// The directory above, as far as known.
    pub parent: Option<Ino>,
}

impl Names {
    /// The right was got as of `version` of the directory.
    pub fn begin(&mut self, version: u64) {
        self.clear();
        self.since = version;
    }

    /// The server restarted: versions begin anew, the names stay under the reclaimed right.
    pub fn begin_again(&mut self) {
        self.since = 0;
    }

    /// The right went.
    pub fn clear(&mut self) {
        self.map = HashMap::default();
        self.missing = 0;
        self.complete = false;
        self.listed_to = 0;
        self.misses = 0;
        self.losses = self.losses.wrapping_add(1);
        self.turns += 1;
    }

    /// The directory was just made by this client.
    pub fn begin_empty(&mut self) {
        self.complete = true;
    }

    /// Was a change that made this version of the directory made under the right as it is held now?
    pub fn covers(&self, version: u64) -> bool {
        version >= self.since
    }

    /// What is known of `name`.
    pub fn find(&self, name: &Name) -> Known {
        match self.map.get(name) {
            Some(&Ino::NONE) => Known::Missing,
            Some(&ino) => Known::Leads(ino),
            None if self.complete => Known::Missing,
            None => Known::Nothing,
        }
    }

    /// `name` leads to `ino`.
    pub fn add(&mut self, name: &Name, ino: Ino) {
        match self.map.insert(name.clone(), ino) {
            Some(Ino::NONE) => self.missing -= 1,
            Some(before) if before != ino => self.turns += 1,
            _ => {}
        }
    }

    /// `name` is missing.
    pub fn remove(&mut self, name: &Name) {
        self.turns += 1;
        if self.complete {
            self.map.remove(name);
            return;
        }
        if self.missing >= MISSING_MAX {
            self.map.retain(|_, ino| *ino != Ino::NONE);
            self.missing = 0;
        }
        if self.map.insert(name.clone(), Ino::NONE) != Some(Ino::NONE) {
            self.missing += 1;
        }
    }

    /// Where `name` leads is not known any more.
    pub fn forget(&mut self, name: &Name) {
        self.turns += 1;
        if self.map.remove(name) == Some(Ino::NONE) {
            self.missing -= 1;
        }
        self.complete = false;
        self.listed_to = 0;
    }

    /// A listing from `cookie` reached `next`; `end`: that was all.
    pub fn listed(&mut self, cookie: u64, next: u64, end: bool) {
        if cookie != self.listed_to || self.complete {
            return;
        }
        self.listed_to = next;
        if end {
            self.complete = true;
            self.map.retain(|_, ino| *ino != Ino::NONE);
            self.missing = 0;
        }
    }

    /// A lookup had to be sent for a name that exists. True if the directory had better be
    /// fetched whole: several different names were asked for one by one.
    pub fn missed(&mut self) -> bool {
        self.misses += 1;
        if self.complete || self.fetching || self.misses < MISSES {
            return false;
        }
        self.fetching = true;
        true
    }

    /// The fetching ended.
    pub fn fetched(&mut self) {
        self.fetching = false;
        self.misses = 0;
    }

    /// Where the fetching goes on; `None`: all is known.
    pub fn next_to_list(&self) -> Option<u64> {
        (!self.complete).then_some(self.listed_to)
    }

    /// How often the right was lost.
    pub fn losses(&self) -> u32 {
        self.losses
    }

    /// While this is the same, and the right held, a name that led somewhere leads there still.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Names kept, missing ones too.
    pub fn len(&self) -> usize {
        self.map.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_whole_listing_proves_absence_until_the_right_goes() {
        let mut names = Names::default();
        names.begin(3);
        assert_eq!(names.find(&name("a")), Known::Nothing);
        names.add(&name("a"), Ino(5));
        names.listed(0, 7, false);
        names.listed(9, 12, true);
        assert!(names.next_to_list().is_some(), "a listing with a gap proves nothing");
        names.listed(7, 12, true);
        assert_eq!(names.find(&name("b")), Known::Missing);
        names.add(&name("b"), Ino(6));
        names.remove(&name("a"));
        assert_eq!(names.find(&name("b")), Known::Leads(Ino(6)));
        assert_eq!(names.find(&name("a")), Known::Missing);
        names.clear();
        assert_eq!(names.find(&name("b")), Known::Nothing);
    }

    #[test]
    fn what_is_forgotten_is_neither_there_nor_missing_until_it_is_told_again() {
        let mut names = Names::default();
        names.begin(1);
        names.add(&name("a"), Ino(5));
        names.add(&name("b"), Ino(6));
        names.remove(&name("c"));
        names.forget(&name("c"));
        assert_eq!(names.find(&name("c")), Known::Nothing);
        names.listed(0, 7, true);
        assert_eq!(names.find(&name("c")), Known::Missing);
        let turns = names.turns();
        names.forget(&name("a"));
        assert!(names.turns() > turns, "who relied on it asks again");
        assert_eq!(names.find(&name("a")), Known::Nothing);
        assert_eq!(names.find(&name("c")), Known::Nothing);
        assert_eq!(names.find(&name("b")), Known::Leads(Ino(6)));
        assert_eq!(names.next_to_list(), Some(0));
        assert_eq!(names.missing, 0);
    }

    #[test]
    fn only_news_leave_the_turns_as_they_were() {
        let mut names = Names::default();
        let mut known = names.turns();
        let mut turned =
            |names: &Names| std::mem::replace(&mut known, names.turns()) != names.turns();
        names.add(&name("a"), Ino(5));
        names.add(&name("b"), Ino(6));
        names.add(&name("a"), Ino(5));
        names.listed(0, 7, true);
        assert!(!turned(&names));
        names.add(&name("a"), Ino(6));
        assert!(turned(&names), "it leads elsewhere");
        names.remove(&name("a"));
        assert!(turned(&names), "it is gone");
        names.clear();
        assert!(turned(&names), "nothing is known");
    }

    #[test]
    fn missing_names_are_bounded_and_found_names_survive_the_bound() {
        let mut names = Names::default();
        names.add(&name("here"), Ino(9));
        for index in 0..2 * MISSING_MAX {
            names.remove(&name(&format!("gone{index}")));
        }
        assert!(names.len() <= MISSING_MAX + 1);
        assert_eq!(names.find(&name("here")), Known::Leads(Ino(9)));
    }

    #[test]
    fn a_few_misses_ask_for_the_whole_directory_once() {
        let mut names = Names::default();
        let asked: Vec<bool> = (0..6).map(|_| names.missed()).collect();
        assert_eq!(asked, [false, false, false, true, false, false]);
        names.fetched();
        assert!(!names.missed());
    }
}
