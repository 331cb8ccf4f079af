//! Decides which copy of the roots an opening uses.
//!
//! Invariants:
//! - an image of the roots block after the tail is the newest version: redo has put it into the
//!   cache, and the opening uses it without a check of the other copies;
//! - without an image, the superblock that redo began from has the words that were at home when it
//!   was written, and they have not changed since. A later change begins with an image, and the
//!   tail does not pass the image before that version is home too. So the home block must have the
//!   same words. Its position must be that of the last change in the log, or not after the tail if
//!   there is none;
//! - an opening never replaces newer words by older ones.
//!
//! The cases, of a home block at position `lsn`, with `log` the last change after the tail (it has
//! no image):
//!
//! | home block            | superblock      | used       | reported | why                                        |
//! |-----------------------|-----------------|------------|------|--------------------------------------------|
//! | damaged or unreadable | known           | superblock | yes  | its words are as new                       |
//! | damaged or unreadable | not known       | nothing    | no   | readers of the roots get the error         |
//! | sound                 | not known       | home       | no   | it is the only copy; redo compared its age |
//! | `lsn` before `log`    | known           | superblock | yes  | a write of it was lost                     |
//! | `lsn` is `log`        | the same        | home       | no   | as it should be                            |
//! | `lsn` is `log`        | other           | home       | left | one of them is wrong; home has the right age |
//! | `lsn` after `log`     | known           | home       | left | the log or the superblock lost a write     |
//! | to the tail, no `log` | the same        | home       | no   | as it should be                            |
//! | to the tail, no `log` | other           | superblock | yes  | a write of it was lost                     |
//! | after it, no `log`    | known           | home       | left | the log or the superblock lost a write     |
//!
//! "Left": `fsck` reports the damage, and repair cannot fix it.

use std::cmp::Ordering;

use types::Lsn;

use crate::cache::Cache;
use crate::device::Device;
use crate::format::block::{self, BlockType, HEADER, lsn_of, tag_of};
use crate::format::roots::{ROOTS, ROOTS_BLOCK, RootWords, get_words, put_words};
use crate::format::superblock::Superblock;
use crate::log::recovery::{DamagedBlock, Redone, Remedy};

/// The position and the words of the home block, or what is wrong with it.
type Home = Result<(Lsn, RootWords), &'static str>;

/// Which copy an opening uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RootsSource {
    Home,
    /// The home block, although something is wrong, as the text says.
    Doubtful(&'static str),
    /// The superblock's words, and what is wrong with the home block.
    Copy(&'static str),
    Nothing,
}

/// A home block that is older than the log says.
pub const LOST_WRITE: &str = "older than the log says: a write of it was lost";
/// A home block that is newer than the log says.
pub const TOO_NEW: &str =
    "newer than the log says: a write of the log or of the superblock was lost";
const CONTRADICTION: &str =
    "its words are not those of the superblock, though both have the same age";

/// Decides by the table above. `log`: the last change after the tail, if it has no image there.
fn choose(home: &Home, log: Option<Lsn>, tail: Lsn, words: Option<&RootWords>) -> RootsSource {
    let (home, words) = match (home, words) {
        (Err(_), None) => return RootsSource::Nothing,
        (Err(what), Some(_)) => return RootsSource::Copy(what),
        (Ok(_), None) => return RootsSource::Home,
        (Ok(home), Some(words)) => (home, words),
    };
    let same = home.1 == *words;
    match (log, home.0.cmp(&log.unwrap_or(tail))) {
        (_, Ordering::Greater) => RootsSource::Doubtful(TOO_NEW),
        (Some(_), Ordering::Less) => RootsSource::Copy(LOST_WRITE),
        (_, _) if same => RootsSource::Home,
        (Some(_), Ordering::Equal) => RootsSource::Doubtful(CONTRADICTION),
        (None, _) => RootsSource::Copy(LOST_WRITE),
    }
}

/// Puts the roots into the superblock to be written, and into the cache if they do not come from
/// home. Returns what is wrong with their home block.
pub(super) async fn read_roots(
    device: &Device,
    superblock: &mut Superblock,
    cache: &mut Cache,
    redone: &Redone,
) -> Option<DamagedBlock> {
    if let Some(data) = cache.get(ROOTS_BLOCK) {
        superblock.roots = get_words(&data[HEADER..]);
        return None;
    }
    let home = read_home(device, superblock).await;
    let words = Some(&superblock.roots).filter(|words| **words != [0; ROOTS as usize]);
    let damaged = |what, remedy| Some(DamagedBlock { block: ROOTS_BLOCK, what, remedy });
    match choose(&home, redone.roots, superblock.tail, words) {
        RootsSource::Nothing => None,
        RootsSource::Home => {
            superblock.roots = home.map_or(superblock.roots, |(_, words)| words);
            None
        }
        RootsSource::Doubtful(what) => {
            superblock.roots = home.map_or(superblock.roots, |(_, words)| words);
            damaged(what, Remedy::None)
        }
        RootsSource::Copy(what) => {
            // Set the position that the log says, so that an opening can be interrupted and
            // repeated.
            let lsn = redone.roots.unwrap_or(superblock.tail);
            let mut data = cache.buffer();
            block::initialise(&mut data, ROOTS_BLOCK, BlockType::Roots, tag_of(superblock.uuid));
            block::stamp(&mut data, lsn, superblock.epoch);
            put_words(&superblock.roots, &mut data[HEADER..]);
            cache.insert(ROOTS_BLOCK, data);
            cache.mark_dirty(ROOTS_BLOCK, redone.end.lsn);
            damaged(what, Remedy::Copy)
        }
    }
}

/// Reads the home block. A block that cannot be read counts as damaged.
async fn read_home(device: &Device, superblock: &Superblock) -> Home {
    let bytes = device.read(ROOTS_BLOCK, 1).await.map_err(|_| "cannot be read")?;
    let data = bytes[..].try_into().map_err(|_| "cannot be read")?;
    match block::verify(data, ROOTS_BLOCK, tag_of(superblock.uuid))? {
        BlockType::Roots => Ok((lsn_of(data), get_words(&data[HEADER..]))),
        _ => Err("not the block of roots"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_source_follows_the_table() {
        let words = |word| [word; ROOTS as usize];
        let known = words(1);
        let (tail, log) = (Lsn(100), Some(Lsn(150)));
        let home = |lsn, word| Ok((Lsn(lsn), words(word)));
        let rows: Vec<(Home, Option<Lsn>, Option<&RootWords>, RootsSource)> = vec![
            (Err("x"), None, Some(&known), RootsSource::Copy("x")),
            (Err("x"), log, Some(&known), RootsSource::Copy("x")),
            (Err("x"), None, None, RootsSource::Nothing),
            (home(90, 2), None, None, RootsSource::Home),
            (home(149, 2), log, Some(&known), RootsSource::Copy(LOST_WRITE)),
            (home(149, 1), log, Some(&known), RootsSource::Copy(LOST_WRITE)),
            (home(150, 1), log, Some(&known), RootsSource::Home),
            (home(150, 2), log, Some(&known), RootsSource::Doubtful(CONTRADICTION)),
            (home(151, 2), log, Some(&known), RootsSource::Doubtful(TOO_NEW)),
            (home(90, 1), None, Some(&known), RootsSource::Home),
            (home(100, 1), None, Some(&known), RootsSource::Home),
            (home(90, 2), None, Some(&known), RootsSource::Copy(LOST_WRITE)),
            (home(100, 2), None, Some(&known), RootsSource::Copy(LOST_WRITE)),
            (home(101, 2), None, Some(&known), RootsSource::Doubtful(TOO_NEW)),
        ];
        for (home, log, words, source) in rows {
            assert_eq!(choose(&home, log, tail, words), source, "{home:?} {log:?} {words:?}");
        }
    }
}
