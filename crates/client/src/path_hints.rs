//! By which names inodes were found, for log messages.
//!
//! Invariants:
//! - bounded: the oldest hints are dropped, so a message may have only an inode number;
//! - nothing else relies on the hints: names may have changed since.

use std::cell::RefCell;
use std::collections::VecDeque;

use types::{HashMap, Ino, Name};

/// How many hints are kept.
const PATH_HINTS_MAX: usize = 16_384;
/// How many names a path in a message has at most.
const DEPTH_MAX: usize = 64;

#[derive(Default)]
struct Hints {
    names: HashMap<Ino, (Ino, Name)>,
    order: VecDeque<Ino>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct PathHints(RefCell<Hints>);

impl PathHints {
    /// `name` in `dir` leads to `ino`.
    pub fn note(&self, ino: Ino, dir: Ino, name: &Name) {
        let mut state = self.0.borrow_mut();
        if state.names.get(&ino).is_some_and(|known| known.0 == dir && known.1 == *name) {
            return;
        }
        if state.names.insert(ino, (dir, name.clone())).is_none() {
            state.order.push_back(ino);
        }
        if state.order.len() > PATH_HINTS_MAX
            && let Some(oldest) = state.order.pop_front()
        {
            state.names.remove(&oldest);
        }
    }

    /// "inode 7 (/dir/name)", or as much of it as is known.
    pub fn describe(&self, ino: Ino) -> String {
        let state = self.0.borrow();
        let mut path = String::new();
        let mut at = ino;
        for _ in 0..DEPTH_MAX {
            let Some((dir, name)) = state.names.get(&at) else { break };
            path.insert_str(0, &format!("/{name}"));
            at = *dir;
        }
        match (path.is_empty(), at == Ino::ROOT) {
            (true, _) => format!("inode {ino}"),
            (false, true) => format!("inode {ino} ({path})"),
            (false, false) => format!("inode {ino} (…{path})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn inode_is_described_by_the_known_part_of_its_path() {
        let path_hints = PathHints::default();
        assert_eq!(path_hints.describe(Ino(7)), "inode 7");
        path_hints.note(Ino(7), Ino(5), &name("file"));
        assert_eq!(path_hints.describe(Ino(7)), "inode 7 (…/file)");
        path_hints.note(Ino(5), Ino::ROOT, &name("dir"));
        assert_eq!(path_hints.describe(Ino(7)), "inode 7 (/dir/file)");
        path_hints.note(Ino(7), Ino::ROOT, &name("moved"));
        assert_eq!(path_hints.describe(Ino(7)), "inode 7 (/moved)");
    }

    #[test]
    fn path_of_names_in_a_cycle_is_bounded() {
        let path_hints = PathHints::default();
        path_hints.note(Ino(7), Ino(8), &name("a"));
        path_hints.note(Ino(8), Ino(7), &name("b"));
        assert!(path_hints.describe(Ino(7)).len() < 1000);
    }

    #[test]
    fn hints_are_bounded() {
        let path_hints = PathHints::default();
        for number in 0..2 * PATH_HINTS_MAX as u64 {
            path_hints.note(Ino(10 + number), Ino::ROOT, &name("x"));
        }
        let state = path_hints.0.borrow();
        assert_eq!((state.names.len(), state.order.len()), (PATH_HINTS_MAX, PATH_HINTS_MAX));
    }
}
