//! The names of a directory, cached under `NAMES`.
//!
//! Invariants:
//! - nothing is cached without the right; a client that loses it clears the cache;
//! - a complete cache has every name of the directory: a name that is not in it does not exist;
//! - names from a reply about an older version of the directory are not cached. This client's own
//!   changes are, in the order in which they were made. The kernel never overlaps them, unless a
//!   process is killed that waits for one. If a reply to such a change comes after a newer version,
//!   the name becomes unknown.

use types::{HashMap, Ino, Name};

/// How many absent names an incomplete cache keeps.
const ABSENT_MAX: usize = 8192;
/// Lookups sent to the server before the whole directory is fetched.
const MISSES: u32 = 4;

/// What the cache knows of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CachedName {
    /// It leads to this inode.
    Present(Ino),
    /// There is no such name.
    Absent,
    /// The cache does not know.
    Unknown,
}

/// Cached names of one directory.
#[derive(Default)]
pub(crate) struct Names {
    map: HashMap<Name, Ino>,
    absent: usize,
    complete: bool,
    /// The cookie up to which the directory was listed without a gap.
    listed_to: u64,
    /// Version of the directory when the right was granted.
    since: u64,
    /// Rises with every loss of the right.
    losses: u32,
    /// Rises whenever a name may have stopped leading where it led.
    change_count: u64,
    misses: u32,
    fetching: bool,
    /// The parent directory, as far as known.
    pub parent: Option<Ino>,
}

impl Names {
    /// The right was granted when the directory had `version`.
    pub fn begin(&mut self, version: u64) {
        self.clear();
        self.since = version;
    }

    /// The server restarted: versions start again, the names stay under the reclaimed right.
    pub fn restart_versions(&mut self) {
        self.since = 0;
    }

    /// The right was lost.
    pub fn clear(&mut self) {
        self.map = HashMap::default();
        self.absent = 0;
        self.complete = false;
        self.listed_to = 0;
        self.misses = 0;
        self.losses = self.losses.wrapping_add(1);
        self.change_count += 1;
    }

    /// This client has just created the directory.
    pub fn begin_empty(&mut self) {
        self.complete = true;
    }

    /// Was the change that made this version of the directory made under the right that is held
    /// now?
    pub fn covers(&self, version: u64) -> bool {
        version >= self.since
    }

    /// What the cache knows of `name`.
    pub fn find(&self, name: &Name) -> CachedName {
        match self.map.get(name) {
            Some(&Ino::NONE) => CachedName::Absent,
            Some(&ino) => CachedName::Present(ino),
            None if self.complete => CachedName::Absent,
            None => CachedName::Unknown,
        }
    }

    /// `name` leads to `ino`.
    pub fn add(&mut self, name: &Name, ino: Ino) {
        match self.map.insert(name.clone(), ino) {
            Some(Ino::NONE) => self.absent -= 1,
            Some(before) if before != ino => self.change_count += 1,
            _ => {}
        }
    }

    /// `name` does not exist.
    pub fn remove(&mut self, name: &Name) {
        self.change_count += 1;
        if self.complete {
            self.map.remove(name);
            return;
        }
        if self.absent >= ABSENT_MAX {
            self.map.retain(|_, ino| *ino != Ino::NONE);
            self.absent = 0;
        }
        if self.map.insert(name.clone(), Ino::NONE) != Some(Ino::NONE) {
            self.absent += 1;
        }
    }

    /// It is no longer known where `name` leads.
    pub fn forget(&mut self, name: &Name) {
        self.change_count += 1;
        if self.map.remove(name) == Some(Ino::NONE) {
            self.absent -= 1;
        }
        self.complete = false;
        self.listed_to = 0;
    }

    /// A listing from `cookie` reached `next`; `end`: it reached the end.
    pub fn listed(&mut self, cookie: u64, next: u64, end: bool) {
        if cookie != self.listed_to || self.complete {
            return;
        }
        self.listed_to = next;
        if end {
            self.complete = true;
            self.map.retain(|_, ino| *ino != Ino::NONE);
            self.absent = 0;
        }
    }

    /// A lookup of an existing name had to be sent. True if the caller should fetch the whole
    /// directory: several different names were looked up one by one.
    pub fn missed(&mut self) -> bool {
        self.misses += 1;
        if self.complete || self.fetching || self.misses < MISSES {
            return false;
        }
        self.fetching = true;
        true
    }

    /// The fetch of the whole directory ended.
    pub fn fetched(&mut self) {
        self.fetching = false;
        self.misses = 0;
    }

    /// The cookie at which the fetch continues; `None`: the cache is complete.
    pub fn next_to_list(&self) -> Option<u64> {
        (!self.complete).then_some(self.listed_to)
    }

    /// How often the right was lost.
    pub fn losses(&self) -> u32 {
        self.losses
    }

    /// While this does not change, and the right is held, every cached name leads where it led.
    pub fn change_count(&self) -> u64 {
        self.change_count
    }

    /// The number of cached names, including absent ones.
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
    fn complete_listing_proves_absence_until_the_right_is_lost() {
        let mut names = Names::default();
        names.begin(3);
        assert_eq!(names.find(&name("a")), CachedName::Unknown);
        names.add(&name("a"), Ino(5));
        names.listed(0, 7, false);
        names.listed(9, 12, true);
        assert!(names.next_to_list().is_some(), "a listing with a gap proves nothing");
        names.listed(7, 12, true);
        assert_eq!(names.find(&name("b")), CachedName::Absent);
        names.add(&name("b"), Ino(6));
        names.remove(&name("a"));
        assert_eq!(names.find(&name("b")), CachedName::Present(Ino(6)));
        assert_eq!(names.find(&name("a")), CachedName::Absent);
        names.clear();
        assert_eq!(names.find(&name("b")), CachedName::Unknown);
    }

    #[test]
    fn forgotten_name_is_unknown_until_it_is_cached_again() {
        let mut names = Names::default();
        names.begin(1);
        names.add(&name("a"), Ino(5));
        names.add(&name("b"), Ino(6));
        names.remove(&name("c"));
        names.forget(&name("c"));
        assert_eq!(names.find(&name("c")), CachedName::Unknown);
        names.listed(0, 7, true);
        assert_eq!(names.find(&name("c")), CachedName::Absent);
        let change_count = names.change_count();
        names.forget(&name("a"));
        assert!(names.change_count() > change_count, "a caller that relied on it asks again");
        assert_eq!(names.find(&name("a")), CachedName::Unknown);
        assert_eq!(names.find(&name("c")), CachedName::Unknown);
        assert_eq!(names.find(&name("b")), CachedName::Present(Ino(6)));
        assert_eq!(names.next_to_list(), Some(0));
        assert_eq!(names.absent, 0);
    }

    #[test]
    fn change_count_rises_only_if_a_name_may_lead_elsewhere() {
        let mut names = Names::default();
        let mut known = names.change_count();
        let mut changed = |names: &Names| {
            std::mem::replace(&mut known, names.change_count()) != names.change_count()
        };
        names.add(&name("a"), Ino(5));
        names.add(&name("b"), Ino(6));
        names.add(&name("a"), Ino(5));
        names.listed(0, 7, true);
        assert!(!changed(&names));
        names.add(&name("a"), Ino(6));
        assert!(changed(&names), "it leads elsewhere");
        names.remove(&name("a"));
        assert!(changed(&names), "it is gone");
        names.clear();
        assert!(changed(&names), "nothing is known");
    }

    #[test]
    fn absent_names_are_bounded_and_present_names_survive() {
        let mut names = Names::default();
        names.add(&name("here"), Ino(9));
        for index in 0..2 * ABSENT_MAX {
            names.remove(&name(&format!("gone{index}")));
        }
        assert!(names.len() <= ABSENT_MAX + 1);
        assert_eq!(names.find(&name("here")), CachedName::Present(Ino(9)));
    }

    #[test]
    fn repeated_misses_fetch_the_whole_directory_once() {
        let mut names = Names::default();
        let asked: Vec<bool> = (0..6).map(|_| names.missed()).collect();
        assert_eq!(asked, [false, false, false, true, false, false]);
        names.fetched();
        assert!(!names.missed());
    }
}
