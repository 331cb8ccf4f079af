//! Web content as Polygraph makes it (002 §6.3): directories eight deep, eight in each, one or
//! sixteen files in a directory, which are made and then read.
//!
//! The paper's shape leaves open what "8*8*16" and "depth of directory was 8 with 8 subdirectories
//! in each directory" mean together: all directories of such a tree would be 19 million. Here one
//! of the eight directories of each level goes on to the next, so a *web* has 64 directories, each
//! with its files; a client makes several.

use env::sim::SimRng;

/// Levels of a web, and directories of a level.
const DEPTH: u64 = 8;
const WIDTH: u64 = 8;
/// Bytes of a file.
const SIZES: std::ops::Range<u64> = 10_000..1_000_000;

/// A directory or a file of a web. Directories are numbered as they come, from 1 on; 0 is where the
/// webs are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Deed {
    /// The next directory.
    Dir {
        /// Number of the directory that it lies in.
        within: usize,
        /// Its name.
        name: String,
    },
    /// A file.
    File {
        /// Number of the directory that it lies in.
        within: usize,
        /// Its name.
        name: String,
        /// Its size.
        bytes: u64,
    },
}

/// The webs of process `number`, with so many files in each directory.
pub fn script(number: u64, webs: u64, files: u64) -> Vec<Deed> {
    let mut rng = SimRng::new(number);
    let (mut deeds, mut dirs) = (Vec::new(), 0);
    for web in 0..webs {
        deeds.push(Deed::Dir { within: 0, name: format!("web{web:04}") });
        dirs += 1;
        let mut level = dirs;
        for _ in 0..DEPTH {
            for number in 0..WIDTH {
                deeds.push(Deed::Dir { within: level, name: format!("d{number}") });
                dirs += 1;
                for file in 0..files {
                    let name = format!("object{file:02}.html");
                    let bytes = SIZES.start + rng.below(SIZES.end - SIZES.start);
                    deeds.push(Deed::File { within: dirs, name, bytes });
                }
            }
            level = dirs;
        }
    }
    deeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn web_has_64_directories_eight_deep_with_their_files() {
        let deeds = script(3, 2, 5);
        let mut depth = vec![0];
        for deed in &deeds {
            if let Deed::Dir { within, .. } = deed {
                depth.push(depth[*within] + 1);
            }
        }
        assert_eq!((depth.len(), depth.iter().max()), (1 + 2 * 65, Some(&9)));
        let files = deeds.iter().filter(|deed| matches!(deed, Deed::File { .. })).count();
        assert_eq!(files, 2 * 64 * 5);
        assert_eq!(script(3, 2, 5), deeds);
    }
}
