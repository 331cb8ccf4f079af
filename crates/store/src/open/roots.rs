//! Which copy of the roots an opening takes.
//!
//! Invariants:
//! - an image of their block behind the tail is the newest version: redo has put it into the cache,
//!   and nothing else is asked;
//! - without one, the words of the superblock that redo began from are what was at home when it was
//!   written, and nothing has changed them since: a change after they went home begins with an
//!   image, and the tail does not pass that before it, too, is at home. So the home block must hold
//!   the same words, and its position must be that of the last change in the log, or one before the
//!   tail if there is none;
//! - newer words are never replaced by older ones.
//!
//! The cases, of a home block at position `lsn`, with `log` the last change behind the tail (it has
//! no image):
//!
//! | home block            | words           | taken      | told | why                                        |
//! |-----------------------|-----------------|------------|------|--------------------------------------------|
//! | damaged or unreadable | known           | superblock | yes  | they are as new                            |
//! | damaged or unreadable | not known       | nothing    | no   | whoever needs the roots is told            |
//! | sound                 | not known       | home       | no   | it is the only copy; redo compared its age |
//! | `lsn` before `log`    | known           | superblock | yes  | a write of it was lost                     |
//! | `lsn` is `log`        | the same        | home       | no   | as it should be                            |
//! | `lsn` is `log`        | other           | home       | left | one of them is wrong; this one has its age |
//! | `lsn` after `log`     | known           | home       | left | the log or the superblock lost a write     |
//! | to the tail, no `log` | the same        | home       | no   | as it should be                            |
//! | to the tail, no `log` | other           | superblock | yes  | a write of it was lost                     |
//! | after it, no `log`    | known           | home       | left | the log or the superblock lost a write     |
//!
//! "Left": `fsck` tells of it, and repair cannot mend it.

use std::cmp::Ordering;

use types::Lsn;

use crate::block::{self, BlockType, HEADER, lsn_of, tag_of};
use crate::cache::Cache;
use crate::device::Device;
use crate::recovery::{Damaged, Redone, Remedy};
use crate::roots::{ROOTS, ROOTS_BLOCK, RootWords, get_words, put_words};
use crate::superblock::Superblock;

/// What the home block says and when it was changed last, or what is wrong with it.
type Home = Result<(Lsn, RootWords), &'static str>;

/// What is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Home,
    /// The home block, although something is wrong.
    Doubtful(&'static str),
    /// The superblock's words, and what is wrong with the home block.
    Copy(&'static str),
    Nothing,
}

const LOST_WRITE: &str = "older than the log says: a write of it was lost";
const TOO_NEW: &str = "newer than the log says: a write of the log or of the superblock was lost";
const CONTRADICTION: &str = "its words are not those of the superblock, though they are as old";

/// The table above. `log`: the last change behind the tail that has no image there.
fn choose(home: &Home, log: Option<Lsn>, tail: Lsn, words: Option<&RootWords>) -> Source {
    let (home, words) = match (home, words) {
        (Err(_), None) => return Source::Nothing,
        (Err(what), Some(_)) => return Source::Copy(what),
        (Ok(_), None) => return Source::Home,
        (Ok(home), Some(words)) => (home, words),
    };
    let same = home.1 == *words;
    match (log, home.0.cmp(&log.unwrap_or(tail))) {
        (_, Ordering::Greater) => Source::Doubtful(TOO_NEW),
        (Some(_), Ordering::Less) => Source::Copy(LOST_WRITE),
        (_, _) if same => Source::Home,
        (Some(_), Ordering::Equal) => Source::Doubtful(CONTRADICTION),
        (None, _) => Source::Copy(LOST_WRITE),
    }
}

/// Makes sure that the superblock to be written repeats the roots, and that the cache has them if
/// they do not come from home; gives what is wrong with their block.
pub(super) async fn read_roots(
    device: &Device,
    superblock: &mut Superblock,
    cache: &mut Cache,
    redone: &Redone,
) -> Option<Damaged> {
    if let Some(data) = cache.get(ROOTS_BLOCK) {
        superblock.roots = get_words(&data[HEADER..]);
        return None;
    }
    let home = read_home(device, superblock).await;
    let words = Some(&superblock.roots).filter(|words| **words != [0; ROOTS as usize]);
    let damaged = |what, remedy| Some(Damaged { block: ROOTS_BLOCK, what, remedy });
    match choose(&home, redone.roots, superblock.tail, words) {
        Source::Nothing => None,
        Source::Home => {
            superblock.roots = home.map_or(superblock.roots, |(_, words)| words);
            None
        }
        Source::Doubtful(what) => {
            superblock.roots = home.map_or(superblock.roots, |(_, words)| words);
            damaged(what, Remedy::Left)
        }
        Source::Copy(what) => {
            // As new as the log says: an opening that is broken off is begun again.
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

/// Reads the home block. One that cannot be read is as good as a damaged one.
async fn read_home(device: &Device, superblock: &Superblock) -> Home {
    let bytes = device.read(ROOTS_BLOCK, 1).await.map_err(|_| "cannot be read")?;
    let data = bytes[..].try_into().map_err(|_| "cannot be read")?;
    match block::verify(data, ROOTS_BLOCK, tag_of(superblock.uuid))? {
        BlockType::Roots => Ok((lsn_of(data), get_words(&data[HEADER..]))),
        _ => Err("not the block of roots"),
    }
}

#[cfg(test)]
mod tests;
