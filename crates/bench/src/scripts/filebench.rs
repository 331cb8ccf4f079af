//! Filebench's personalities `fileserver`, `varmail` and `webproxy` (000 §V.B): the parameters and
//! the flow of operations are those that Filebench comes with, unchanged.
//!
//! One instance has one set of files, which all its threads share. A thread does the operations of
//! its flow over and over; each is a [`Deed`]. [`FileSet`] chooses the files as Filebench does:
//!
//! - files that exist, and files that do not, are each taken in turn by their number; the two turns
//!   are shared by all threads. A file that an operation works on is passed over;
//! - a file that some thread has open is not deleted: the operation does nothing then;
//! - a thread that finds no file begins its flow anew;
//! - an append goes to the end of the file and has an even chance for each number of bytes up to
//!   the mean that the personality names; a file that is written whole gets the size that was drawn
//!   for it when the set was made;
//! - sizes, widths and depths of the tree are gamma-distributed ([`super::gamma`]); 80 % of the
//!   files exist at the begin, and are made in a random order.
//!
//! The same order of calls gives the same choices. It is the program that gives each contender the
//! same: in virtual time the order itself repeats, on a mount the distributions do.

use std::collections::BTreeSet;

use env::sim::SimRng;
use serde::{Deserialize, Serialize};

use super::gamma;

/// Bytes of a request that reads or writes a whole file, in all personalities.
pub const REQUEST: u64 = 1 << 20;
/// Of a hundred files, so many exist at the begin.
const EXISTING: u64 = 80;

/// A personality.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Personality {
    /// Home directories on a file server: files are made, appended to, read, deleted.
    Fileserver,
    /// A mail server with a file for each mail, which is made durable.
    Varmail,
    /// A web proxy: one object is replaced, five are read.
    Webproxy,
}

/// An operation of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Create,
    WriteWhole,
    Append,
    Fsync,
    Close,
    Open,
    ReadWhole,
    Delete,
    Stat,
}

/// The parameters of a personality, with Filebench's names for them in parentheses.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// Files that exist or do not (nfiles).
    pub files: usize,
    /// Entries of a directory, on average (meandirwidth).
    pub dir_width: u64,
    /// Bytes of a file, on average (meanfilesize).
    pub file_size: u64,
    /// Threads (nthreads).
    pub threads: usize,
    /// Bound of the bytes of an append (meanappendsize; meaniosize of webproxy).
    pub append: u64,
    flow: &'static [Op],
}

const FILESERVER: Parameters = Parameters {
    files: 10_000,
    dir_width: 20,
    file_size: 128 << 10,
    threads: 50,
    append: 16 << 10,
    flow: &[
        Op::Create,
        Op::WriteWhole,
        Op::Close,
        Op::Open,
        Op::Append,
        Op::Close,
        Op::Open,
        Op::ReadWhole,
        Op::Close,
        Op::Delete,
        Op::Stat,
    ],
};

const VARMAIL: Parameters = Parameters {
    files: 1_000,
    dir_width: 1_000_000,
    file_size: 16 << 10,
    threads: 16,
    append: 16 << 10,
    flow: &[
        Op::Delete,
        Op::Create,
        Op::Append,
        Op::Fsync,
        Op::Close,
        Op::Open,
        Op::ReadWhole,
        Op::Append,
        Op::Fsync,
        Op::Close,
        Op::Open,
        Op::ReadWhole,
        Op::Close,
    ],
};

const WEBPROXY: Parameters = Parameters {
    files: 10_000,
    dir_width: 1_000_000,
    file_size: 16 << 10,
    threads: 100,
    append: 16 << 10,
    flow: &[
        Op::Delete,
        Op::Create,
        Op::Append,
        Op::Close,
        Op::Open,
        Op::ReadWhole,
        Op::Close,
        Op::Open,
        Op::ReadWhole,
        Op::Close,
        Op::Open,
        Op::ReadWhole,
        Op::Close,
        Op::Open,
        Op::ReadWhole,
        Op::Close,
        Op::Open,
        Op::ReadWhole,
        Op::Close,
    ],
};

impl Personality {
    /// All.
    pub const ALL: [Personality; 3] =
        [Personality::Fileserver, Personality::Varmail, Personality::Webproxy];

    /// Its name in Filebench.
    pub fn text(self) -> &'static str {
        match self {
            Personality::Fileserver => "fileserver",
            Personality::Varmail => "varmail",
            Personality::Webproxy => "webproxy",
        }
    }

    /// What it does with how much.
    pub fn parameters(self) -> Parameters {
        match self {
            Personality::Fileserver => FILESERVER,
            Personality::Varmail => VARMAIL,
            Personality::Webproxy => WEBPROXY,
        }
    }
}

/// What a thread does next. A file is known by its number in the set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// Makes a file that does not exist, and opens it.
    Create(usize),
    /// Opens a file that exists.
    Open(usize),
    /// Writes so many bytes from the begin of the open file on.
    Write(u64),
    /// Writes so many bytes to the end of the open file.
    Append(u64),
    /// Reads the open file from its begin to its end.
    Read,
    /// Makes the open file durable.
    Fsync,
    /// Closes the open file.
    Close,
    /// Deletes a file.
    Delete(usize),
    /// Asks for the attributes of a file.
    Stat(usize),
    /// There is nothing to do: the file to delete is in use, or there is no file.
    Nothing,
}

/// A directory of the set's tree. They are numbered as they come; 0 is the top.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dir {
    /// Number of the directory that it lies in.
    pub within: usize,
    /// Its name.
    pub name: String,
}

/// A file of the set, whether it exists or not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct File {
    /// Number of its directory.
    pub within: usize,
    /// Its name.
    pub name: String,
    /// Bytes that it has when it is written whole.
    pub bytes: u64,
}

/// What the threads of an instance know of a file.
#[derive(Clone, Copy, Default, Debug)]
struct State {
    /// An operation that opens, makes, deletes or asks for it is under way.
    busy: bool,
    /// Threads that have it open.
    open: u64,
}

/// A thread of an instance.
#[derive(Clone, Copy, Default, Debug)]
pub struct Thread {
    /// Place in the flow.
    at: usize,
    /// The file that it has open.
    open: Option<usize>,
    /// What it does now.
    now: Option<Deed>,
}

/// The files of an instance, and what its threads do with them.
#[derive(Debug)]
pub struct FileSet {
    parameters: Parameters,
    rng: SimRng,
    dirs: Vec<Dir>,
    files: Vec<File>,
    states: Vec<State>,
    existing: BTreeSet<usize>,
    missing: BTreeSet<usize>,
    /// The files whose turn is next: of the existing ones, of the missing ones.
    turns: (usize, usize),
    first: Vec<usize>,
}

impl FileSet {
    /// Of instance `number`, whose random choices differ from those of others.
    pub fn new(personality: Personality, number: u64) -> FileSet {
        FileSet::with(personality.parameters(), number)
    }

    fn with(parameters: Parameters, number: u64) -> FileSet {
        let mut set = FileSet {
            parameters,
            rng: SimRng::new(number),
            dirs: Vec::new(),
            files: Vec::new(),
            states: vec![State::default(); parameters.files],
            existing: BTreeSet::new(),
            missing: BTreeSet::new(),
            turns: (0, 0),
            first: Vec::new(),
        };
        let depth = (parameters.files as f64).ln() / (parameters.dir_width as f64).ln();
        set.grow(0, String::new(), 1.0, depth);
        for file in 0..set.files.len() {
            if set.rng.below(100) < EXISTING {
                set.existing.insert(file);
                set.first.push(file);
            } else {
                set.missing.insert(file);
            }
        }
        for at in (1..set.first.len()).rev() {
            let other = set.rng.below(at as u64 + 1) as usize;
            set.first.swap(at, other);
        }
        set
    }

    /// A directory at `depth` with what lies in it. The top takes directories until all files have
    /// a place; others take as many entries as their width: files, if it is deep enough.
    fn grow(&mut self, within: usize, name: String, depth: f64, mean_depth: f64) {
        let number = self.dirs.len();
        self.dirs.push(Dir { within, name });
        let leaf_from = gamma::draw(&mut self.rng, mean_depth).trunc().max(1.0);
        let width = gamma::draw(&mut self.rng, self.parameters.dir_width as f64);
        let (top, leaf) = (number == 0, depth >= leaf_from);
        let mut entry = 1u64;
        while (top || (entry as f64) < width + 1.0) && self.files.len() < self.parameters.files {
            let name = format!("{entry:08}");
            if leaf && !top {
                let bytes = gamma::draw(&mut self.rng, self.parameters.file_size as f64) as u64;
                self.files.push(File { within: number, name, bytes });
            } else {
                self.grow(number, name, depth + 1.0, mean_depth);
            }
            entry += 1;
        }
    }

    /// Threads of the instance.
    pub fn threads(&self) -> usize {
        self.parameters.threads
    }

    /// The tree, each directory behind the one that it lies in.
    pub fn dirs(&self) -> &[Dir] {
        &self.dirs
    }

    /// The files.
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// The files that exist before the threads begin, in the order in which they are made.
    pub fn first(&self) -> &[usize] {
        &self.first
    }

    /// What a thread does next. It must be done before [`FileSet::done`] is called.
    pub fn next(&mut self, thread: &mut Thread) -> Deed {
        let op = self.parameters.flow[thread.at];
        thread.at = (thread.at + 1) % self.parameters.flow.len();
        let deed = match op {
            Op::Create => self.take(false).map(Deed::Create),
            Op::Open => self.take(true).map(Deed::Open),
            Op::Stat => self.take(true).map(Deed::Stat),
            Op::Delete => self.take(true).map(|file| {
                if self.states[file].open == 0 {
                    return Deed::Delete(file);
                }
                self.states[file].busy = false;
                Deed::Nothing
            }),
            Op::WriteWhole => thread.open.map(|file| Deed::Write(self.files[file].bytes)),
            Op::Append => Some(Deed::Append(self.rng.below(self.parameters.append))),
            Op::ReadWhole => Some(Deed::Read),
            Op::Fsync => Some(Deed::Fsync),
            Op::Close => Some(Deed::Close),
        };
        let deed = deed.unwrap_or_else(|| {
            // No file is open here: every operation that chooses one comes behind a close.
            thread.at = 0;
            Deed::Nothing
        });
        thread.now = Some(deed);
        deed
    }

    /// A thread has done its deed.
    pub fn done(&mut self, thread: &mut Thread) {
        match thread.now.take() {
            Some(Deed::Create(file)) => {
                self.missing.remove(&file);
                self.existing.insert(file);
                self.opened(thread, file);
            }
            Some(Deed::Open(file)) => self.opened(thread, file),
            Some(Deed::Stat(file)) => self.states[file].busy = false,
            Some(Deed::Delete(file)) => {
                self.existing.remove(&file);
                self.missing.insert(file);
                self.states[file].busy = false;
            }
            Some(Deed::Close) => {
                if let Some(file) = thread.open.take() {
                    self.states[file].open -= 1;
                }
            }
            _ => {}
        }
    }

    fn opened(&mut self, thread: &mut Thread, file: usize) {
        let state = &mut self.states[file];
        (state.busy, state.open) = (false, state.open + 1);
        thread.open = Some(file);
    }

    /// The next file in turn that nothing works on; it is busy then.
    fn take(&mut self, exists: bool) -> Option<usize> {
        let (files, turn) = if exists {
            (&self.existing, &mut self.turns.0)
        } else {
            (&self.missing, &mut self.turns.1)
        };
        let around = || files.range(*turn..).chain(files.range(..*turn));
        let first = *around().next()?;
        let found = around().copied().find(|&file| !self.states[file].busy);
        *turn = first + 1;
        self.states[found?].busy = true;
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn sets_have_the_sizes_and_the_tree_of_their_parameters() {
        for personality in Personality::ALL {
            let (set, parameters) = (FileSet::new(personality, 3), personality.parameters());
            assert_eq!(set.files().len(), parameters.files, "{personality:?}");
            let mean = set.files().iter().map(|file| file.bytes).sum::<u64>() as f64
                / parameters.files as f64;
            let off = mean / parameters.file_size as f64;
            assert!((off - 1.0).abs() < 0.08, "{personality:?}: the mean is {mean}");
            let share = set.first().len() * 100 / parameters.files;
            assert!(share.abs_diff(80) < 4, "{personality:?}: {share} % exist");
            assert!(set.dirs().iter().enumerate().skip(1).all(|(n, dir)| dir.within < n));
            let mut width = BTreeMap::<usize, u64>::new();
            set.files().iter().for_each(|file| *width.entry(file.within).or_default() += 1);
            if personality == Personality::Fileserver {
                let mean = parameters.files / width.len();
                assert!(mean > 12 && mean < 30, "{mean} files in each of {}", width.len());
            } else {
                assert!(width.len() < 3, "{personality:?}: {} directories", width.len());
            }
            let names = set.files().iter().map(|file| (file.within, &file.name));
            assert_eq!(names.collect::<BTreeSet<_>>().len(), parameters.files);
            assert_eq!(FileSet::new(personality, 3).files(), set.files(), "the same again");
            assert_ne!(FileSet::new(personality, 4).files(), set.files());
        }
    }

    /// Lets the threads take turns at random; checks what they do, and counts it.
    fn play(personality: Personality, rounds: u64, seed: u64) -> (Vec<Deed>, Vec<u64>) {
        let mut set = FileSet::new(personality, 1);
        let mut threads = vec![Thread::default(); set.threads()];
        let mut exists: BTreeSet<usize> = set.first().iter().copied().collect();
        let mut open = vec![None; threads.len()];
        let (mut rng, mut deeds, mut appended) = (SimRng::new(seed), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let number = rng.below(threads.len() as u64) as usize;
            let thread = &mut threads[number];
            if thread.now.is_some() {
                set.done(thread);
                continue;
            }
            let deed = set.next(thread);
            deeds.push(deed);
            match deed {
                Deed::Create(file) => {
                    assert!(open[number].replace(file).is_none() && exists.insert(file));
                }
                Deed::Open(file) => {
                    assert!(open[number].replace(file).is_none() && exists.contains(&file));
                }
                Deed::Delete(file) => {
                    assert!(exists.remove(&file) && !open.contains(&Some(file)), "{file}");
                }
                Deed::Stat(file) => assert!(exists.contains(&file)),
                Deed::Write(bytes) => {
                    assert_eq!(bytes, set.files()[open[number].unwrap()].bytes);
                }
                Deed::Append(bytes) => {
                    assert!(open[number].is_some());
                    appended.push(bytes);
                }
                Deed::Read | Deed::Fsync => assert!(open[number].is_some()),
                Deed::Close => assert!(open[number].take().is_some()),
                Deed::Nothing => {}
            }
        }
        (deeds, appended)
    }

    #[test]
    fn threads_use_files_that_are_there_and_delete_none_that_is_open() {
        for personality in Personality::ALL {
            let (deeds, appended) = play(personality, 60_000, 9);
            assert_eq!(play(personality, 60_000, 9).0, deeds, "the same order, the same choices");
            let bound = personality.parameters().append;
            let mean = appended.iter().sum::<u64>() / appended.len() as u64;
            assert!(appended.iter().all(|&bytes| bytes < bound));
            assert!(mean.abs_diff(bound / 2) < bound / 20, "{personality:?}: {mean}");
        }
    }

    #[test]
    fn operations_have_the_shares_of_their_flow() {
        // Reads, appends, files made, fsyncs, writes of whole files of a round of the flow.
        let shares = [
            (Personality::Fileserver, 11, [1, 1, 1, 0, 1]),
            (Personality::Varmail, 13, [2, 2, 1, 2, 0]),
            (Personality::Webproxy, 19, [5, 1, 1, 0, 0]),
        ];
        for (personality, ops, shares) in shares {
            let (deeds, _) = play(personality, 120_000, 4);
            let kinds: [fn(&Deed) -> bool; 5] = [
                |deed| matches!(deed, Deed::Read),
                |deed| matches!(deed, Deed::Append(_)),
                |deed| matches!(deed, Deed::Create(_)),
                |deed| matches!(deed, Deed::Fsync),
                |deed| matches!(deed, Deed::Write(_)),
            ];
            for (is, share) in kinds.into_iter().zip(shares) {
                let count = deeds.iter().filter(|deed| is(deed)).count();
                let due = deeds.len() * share / ops;
                assert!(count.abs_diff(due) <= due / 20, "{personality:?}: {count} of {due}");
            }
            let idle = deeds.iter().filter(|deed| matches!(deed, Deed::Nothing)).count();
            assert!(idle * 50 < deeds.len(), "{personality:?}: {idle} did nothing");
        }
    }
}
