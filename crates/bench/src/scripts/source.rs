//! A source tree that is unpacked, compiled and cleaned, as the papers do with Linux 2.6.30 (002
//! §6.3, 004 §V.D.3): the shape of that tree, not its content.
//!
//! Invariants:
//! - directories hang below earlier ones, at most eight deep, with 1 to 31 files each;
//! - every second file is compiled: it is read, with headers that its client has not read yet, the
//!   processor works on it for [`COMPILE`], and an object file comes to lie beside it;
//! - the work is one list of [`Deed`]s, for the store as a library and for system calls.

use std::collections::BTreeSet;

use env::sim::SimRng;
use serde::{Deserialize, Serialize};
use types::Duration;

/// Files of a directory, at most.
const FILES_MAX: u64 = 31;
/// Directories on the way to one, at most.
const DEPTH_MAX: u32 = 8;
/// Bytes of a file: mean of an even distribution from one byte on.
const MEAN: u64 = 12 << 10;
/// Headers of a compilation.
const HEADERS: u64 = 8;
/// Processor time of a compilation.
pub const COMPILE: Duration = Duration::from_millis(100);

/// What is done with the tree.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum Step {
    /// tar
    Unpack,
    /// make
    Compile,
    /// make clean
    Clean,
}

/// A source tree: the same shape for the same number of files.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    files: u64,
}

/// A directory of the tree.
struct Dir {
    parent: usize,
    depth: u32,
    files: u64,
}

impl Source {
    /// A tree of about so many files.
    pub fn new(files: u64) -> Source {
        Source { files }
    }

    /// The tree: the first directory is the client's own. It is the same for every client.
    fn dirs(&self) -> Vec<Dir> {
        let mut rng = SimRng::new(self.files);
        let mut dirs = vec![Dir { parent: 0, depth: 0, files: 1 + rng.below(FILES_MAX) }];
        let mut files = dirs[0].files;
        while files < self.files {
            let parent = rng.below(dirs.len() as u64) as usize;
            let depth = dirs[parent].depth + 1;
            if depth > DEPTH_MAX {
                continue;
            }
            let new = Dir { parent, depth, files: 1 + rng.below(FILES_MAX) };
            files += new.files;
            dirs.push(new);
        }
        dirs
    }
}

/// What is done with a file or directory. Directories are numbered as they come; 0 is the top.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Deed {
    /// The next directory is made.
    NewDir {
        /// Number of the directory that it lies in.
        within: usize,
        /// Its name.
        name: String,
    },
    /// The next directory is found.
    Dir {
        /// Number of the directory that it lies in.
        within: usize,
        /// Its name.
        name: String,
    },
    /// A file is made with its content, and given its mode, owner and times, as tar does.
    Unpack {
        /// Number of its directory.
        within: usize,
        /// Its name.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// A file is read.
    Read {
        /// Number of its directory.
        within: usize,
        /// Its name.
        name: String,
    },
    /// The processor works for [`COMPILE`].
    Compile,
    /// What was compiled is written.
    Object {
        /// Number of its directory.
        within: usize,
        /// Its name.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// The names of a directory are listed.
    List {
        /// Its number.
        within: usize,
    },
    /// A file is deleted.
    Delete {
        /// Number of its directory.
        within: usize,
        /// Its name.
        name: String,
    },
}

impl Deed {
    /// Does it begin with a message? A listing sends its own, and an object follows its
    /// compilation.
    pub fn begins(&self) -> bool {
        !matches!(self, Deed::Compile | Deed::Object { .. } | Deed::List { .. })
    }

    /// Is it one of the operations that the step is there for?
    pub fn counts(&self) -> bool {
        matches!(self, Deed::Unpack { .. } | Deed::Object { .. } | Deed::Delete { .. })
    }
}

fn sub(number: usize) -> String {
    format!("dir{number:04}")
}

fn source(number: u64) -> String {
    format!("source{number:03}.c")
}

fn object(number: u64) -> String {
    format!("source{number:03}.o")
}

impl Source {
    /// What process `number` does in a step.
    pub fn script(&self, number: u64, step: Step) -> Vec<Deed> {
        let mut rng = SimRng::new(number);
        let dirs = self.dirs();
        match step {
            Step::Unpack => unpack(&mut rng, &dirs),
            Step::Compile => compile(&mut rng, &dirs),
            Step::Clean => clean(&dirs),
        }
    }
}

/// All directories below the top are found.
fn find(dirs: &[Dir]) -> Vec<Deed> {
    let below = dirs.iter().enumerate().skip(1);
    below.map(|(number, dir)| Deed::Dir { within: dir.parent, name: sub(number) }).collect()
}

fn unpack(rng: &mut SimRng, dirs: &[Dir]) -> Vec<Deed> {
    let mut deeds = Vec::new();
    for (within, dir) in dirs.iter().enumerate() {
        if within > 0 {
            deeds.push(Deed::NewDir { within: dir.parent, name: sub(within) });
        }
        for file in 0..dir.files {
            let bytes = 1 + rng.below(2 * MEAN);
            deeds.push(Deed::Unpack { within, name: source(file), bytes });
        }
    }
    deeds
}

fn compile(rng: &mut SimRng, dirs: &[Dir]) -> Vec<Deed> {
    let mut deeds = find(dirs);
    let mut read = BTreeSet::new();
    for (within, dir) in dirs.iter().enumerate() {
        for file in (0..dir.files).step_by(2) {
            deeds.push(Deed::Read { within, name: source(file) });
            for _ in 0..HEADERS {
                let header = rng.below(dirs.len() as u64) as usize;
                let which = rng.below(dirs[header].files);
                if read.insert((header, which)) {
                    deeds.push(Deed::Read { within: header, name: source(which) });
                }
            }
            deeds.push(Deed::Compile);
            let bytes = 1 + rng.below(2 * MEAN);
            deeds.push(Deed::Object { within, name: object(file), bytes });
        }
    }
    deeds
}

fn clean(dirs: &[Dir]) -> Vec<Deed> {
    let mut deeds = find(dirs);
    for (within, dir) in dirs.iter().enumerate() {
        deeds.push(Deed::List { within });
        let objects = (0..dir.files).step_by(2);
        deeds.extend(objects.map(|file| Deed::Delete { within, name: object(file) }));
    }
    deeds
}
