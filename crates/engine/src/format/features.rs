//! Features of a file system: options and additions to version 1 of the format, as bits with names.
//!
//! Invariants:
//! - the meaning of a bit and its name never change, and neither is ever reused;
//! - a release that does not know a *needed* feature of a device refuses the device; a release
//!   that does not know a feature *to write* opens the device read-only at most;
//! - the superblock has the names of its features beside the bits, so that a release that is older
//!   than a feature can refuse it by name.
//!
//! | set | bit | name | meaning |
//! |---|---|---|---|
//! | needed | 0 | `unfinished-load` | a `redbud load` began and has not ended: the tree is incomplete, and no server serves it |
//! | needed | 1, 2, 3 | `slots-1024`, `slots-2048`, `slots-4096` | size of directory slots (7.2), at most one of them; without any 512 bytes |
//! | needed | 4 | `inline-data` | files may have their block 0 with the inode (7.2); without it none has |
//! | needed | 5 | `layout-blocks` | files may have layout blocks (8.1), and directories have a fragmentation count (7.2) |
//! | needed | 6 | `external-log` | the log is a journal on another device or in another slice (4.2) |
//! | needed | 7 | `object-files` | data zones may be object targets (10), and files may have an object record (7.2) |
//! | needed | 8 | `shards` | the file system may have other shards: names may lead to inodes there (7.5), and there are the trees of such names and of operations that several shards agree on (11.1) |
//! | needed | 9 | `lent-space` | blocks of data zones may be lent to other shards, or by them: there is the tree `lent`, and data zones may be another shard's (10) |
//! | needed | 10 | `moved-directories` | directories, and files that followed them, may be on another shard than their numbers name: there is the tree of their homes (7.6) |
//! | needed | 11 | `followed-objects` | files may lie in objects whose numbers another shard has issued (7.2), and such objects may be doomed (10) |
//!
//! The names are in the superblock one after the other: bit u8 (64 or more for features to write),
//! length u8 (1 to 32), and the name, of letters, digits and hyphens.

use crate::format::superblock::SuperError;

/// Bytes of a feature's name at most.
pub const FEATURE_NAME_MAX: usize = 32;
/// Number of the first bit of the set *to write*.
const TO_WRITE: u32 = 64;

/// One feature, by its bit number in both sets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Feature(u32);

impl Feature {
    /// A load has begun and not ended.
    pub const UNFINISHED_LOAD: Feature = Feature(0);
    /// Directory slots of a quarter of a block.
    pub const SLOTS_1024: Feature = Feature(1);
    /// Directory slots of half a block.
    pub const SLOTS_2048: Feature = Feature(2);
    /// Directory slots of a whole block.
    pub const SLOTS_4096: Feature = Feature(3);
    /// Files may have their block 0 with the inode.
    pub const INLINE_DATA: Feature = Feature(4);
    /// Files may have layout blocks.
    pub const LAYOUT_BLOCKS: Feature = Feature(5);
    /// The log is a journal on another device or in another slice.
    pub const EXTERNAL_LOG: Feature = Feature(6);
    /// Data zones may be object targets, and files may lie in objects there.
    pub const OBJECT_FILES: Feature = Feature(7);
    /// The file system may have other shards.
    pub const SHARDS: Feature = Feature(8);
    /// Blocks of data zones may be lent to other shards, or by them.
    pub const LENT_SPACE: Feature = Feature(9);
    /// Directories may be on another shard than their numbers name.
    pub const MOVED_DIRECTORIES: Feature = Feature(10);
    /// Files may lie in objects whose numbers another shard has issued.
    pub const FOLLOWED_OBJECTS: Feature = Feature(11);

    /// At most one of these.
    pub const SLOT_SIZES: [Feature; 3] =
        [Feature::SLOTS_1024, Feature::SLOTS_2048, Feature::SLOTS_4096];

    /// All features that this release knows, with their names.
    pub const KNOWN: &'static [(Feature, &'static str)] = &[
        (Feature::UNFINISHED_LOAD, "unfinished-load"),
        (Feature::SLOTS_1024, "slots-1024"),
        (Feature::SLOTS_2048, "slots-2048"),
        (Feature::SLOTS_4096, "slots-4096"),
        (Feature::INLINE_DATA, "inline-data"),
        (Feature::LAYOUT_BLOCKS, "layout-blocks"),
        (Feature::EXTERNAL_LOG, "external-log"),
        (Feature::OBJECT_FILES, "object-files"),
        (Feature::SHARDS, "shards"),
        (Feature::LENT_SPACE, "lent-space"),
        (Feature::MOVED_DIRECTORIES, "moved-directories"),
        (Feature::FOLLOWED_OBJECTS, "followed-objects"),
    ];

    /// Its name, if this release knows it.
    pub fn name(self) -> Option<&'static str> {
        Feature::KNOWN.iter().find(|(known, _)| *known == self).map(|(_, name)| *name)
    }
}

/// Features of one file system.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Features {
    /// Bits that a reader must know.
    pub needed: u64,
    /// Bits that a writer must know.
    pub to_write: u64,
}

impl Features {
    /// None: version 1 of the format, with slots of 512 bytes and no option.
    pub const NONE: Features = Features { needed: 0, to_write: 0 };

    /// Does the set have this feature?
    pub const fn has(&self, feature: Feature) -> bool {
        match feature.0 {
            bit @ 0..TO_WRITE => self.needed & (1 << bit) != 0,
            bit => self.to_write & (1 << (bit - TO_WRITE)) != 0,
        }
    }

    /// This set and `feature`.
    pub const fn with(mut self, feature: Feature) -> Features {
        match feature.0 {
            bit @ 0..TO_WRITE => self.needed |= 1 << bit,
            bit => self.to_write |= 1 << (bit - TO_WRITE),
        }
        self
    }

    /// This set without `feature`.
    pub const fn without(mut self, feature: Feature) -> Features {
        match feature.0 {
            bit @ 0..TO_WRITE => self.needed &= !(1 << bit),
            bit => self.to_write &= !(1 << (bit - TO_WRITE)),
        }
        self
    }

    /// The names, separated by spaces; a feature that this release does not know by its number.
    pub fn names(self) -> String {
        let name = |feature: Feature| match feature.name() {
            Some(name) => name.to_owned(),
            None => format!("{}", feature.0),
        };
        self.iter().map(name).collect::<Vec<_>>().join(" ")
    }

    /// Every feature of the set.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        (0..2 * TO_WRITE).map(Feature).filter(move |feature| self.has(*feature))
    }

    /// The features that this release does not know.
    fn unknown(self) -> Features {
        Feature::KNOWN.iter().fold(self, |set, (known, _)| set.without(*known))
    }

    /// The names, as encoded in the superblock.
    pub(crate) fn encode_names(self) -> Vec<u8> {
        let mut out = Vec::new();
        for feature in self.iter() {
            let name = feature.name().expect("only known features are written");
            out.extend_from_slice(&[feature.0 as u8, name.len() as u8]);
            out.extend_from_slice(name.as_bytes());
        }
        out
    }

    /// Refuses needed features that this release does not know. Returns the names of the unknown
    /// features to write, which forbid writing; empty if there are none.
    ///
    /// # Errors
    /// `Features` with the names of the unknown needed features.
    pub(crate) fn check_known(self, names: &[u8]) -> Result<String, SuperError> {
        let Features { needed, to_write } = self.unknown();
        let needed = text(Features { needed, to_write: 0 }, names);
        if Feature::SLOT_SIZES.iter().filter(|size| self.has(**size)).count() > 1 {
            return Err(SuperError::Damaged("more than one slot size"));
        }
        if needed.is_empty() {
            return Ok(text(Features { needed: 0, to_write }, names));
        }
        Err(SuperError::Features(needed))
    }
}

/// Features for messages: by name where `names` has one, else by bit.
fn text(features: Features, names: &[u8]) -> String {
    let named = |feature: Feature| {
        let name = names_in(names).find(|(of, _)| *of == feature).map(|(_, name)| name.to_owned());
        name.unwrap_or_else(|| match feature.0 {
            bit @ 0..TO_WRITE => format!("bit {bit}"),
            bit => format!("bit {} of those to write", bit - TO_WRITE),
        })
    };
    features.iter().map(named).collect::<Vec<_>>().join(", ")
}

/// The names in a superblock, up to the first invalid one.
fn names_in(mut names: &[u8]) -> impl Iterator<Item = (Feature, &str)> {
    std::iter::from_fn(move || {
        let (&[bit, len], rest) = names.split_first_chunk::<2>()?;
        let (name, rest) = rest.split_at_checked(usize::from(len))?;
        names = rest;
        let legal = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
        let fits = (1..=FEATURE_NAME_MAX).contains(&name.len()) && name.iter().all(legal);
        let name = std::str::from_utf8(name).ok().filter(|_| fits)?;
        Some((Feature(u32::from(bit)), name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_names_are_distinct_and_decode_to_their_features() {
        let all =
            Feature::KNOWN.iter().fold(Features::NONE, |all, (feature, _)| all.with(*feature));
        let names = all.encode_names();
        assert_eq!(names_in(&names).collect::<Vec<_>>(), Feature::KNOWN);
        assert_eq!(all.iter().count(), Feature::KNOWN.len());
        assert_eq!(all.check_known(&names), Err(SuperError::Damaged("more than one slot size")));
        let without = Feature::SLOT_SIZES.iter().fold(all, |set, size| set.without(*size));
        for size in Feature::SLOT_SIZES {
            assert_eq!(without.with(size).check_known(&names), Ok(String::new()));
        }
    }

    #[test]
    fn unknown_feature_is_refused_by_its_name_or_else_its_bit() {
        let strange = Features { needed: 1 << 40 | 1, to_write: 0 };
        let refused = |names: &[u8]| strange.check_known(names).unwrap_err();
        assert_eq!(refused(b"\x28\x05warps"), SuperError::Features("warps".into()));
        for names in
            [&b""[..], b"\x28", b"\x28\x05war", b"\x28\x00", b"\x28\x05wa\nps", b"\x29\x01x"]
        {
            assert_eq!(refused(names), SuperError::Features("bit 40".into()), "{names:?}");
        }
        let written = Features { needed: 1, to_write: 1 << 2 };
        assert_eq!(written.check_known(b"\x42\x04sums"), Ok("sums".into()));
        assert_eq!(written.check_known(b""), Ok("bit 2 of those to write".into()));
    }
}
