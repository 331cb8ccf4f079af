//! Does a journal belong to a superblock? Decides by a table, and says why not.

use std::fmt;

use types::{Lsn, Uuid};

use crate::format::journal::{JournalError, JournalHeader};
use crate::format::superblock::Superblock;

/// A copy of a journal's header, as read.
pub(crate) type HeaderCopy = Result<JournalHeader, JournalError>;

/// Where the log of a superblock is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// On the metadata device.
    Internal,
    /// In the journal with this newest header.
    External(JournalHeader),
}

/// Why the log cannot be used. `Display` names both UUIDs and says what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// UUID of the metadata slice.
    pub metadata: Uuid,
    /// UUID of the journal that its superblock names; `None`: the log is internal.
    pub journal: Option<Uuid>,
    /// What is wrong.
    pub reason: Reason,
}

/// What is wrong with a pair of metadata and journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// A journal was given, but the log is internal.
    Unwanted,
    /// No journal was given, but the log is external.
    Missing,
    /// The device carries no journal.
    NoJournal,
    /// Both copies of its header are unusable.
    Damaged(&'static str),
    /// A version of the header that this release does not know.
    Version(u32),
    /// Its two copies are of two journals.
    Contradiction(Uuid, Uuid),
    /// It is the journal `journal` of other metadata.
    Foreign {
        /// Its UUID.
        journal: Uuid,
        /// The metadata whose log it is.
        metadata: Uuid,
    },
    /// It is a journal of these metadata, but not the one that has their log.
    Other(Uuid),
    /// The log has moved from it to another place.
    Retired,
    /// It is a copy from before the newest opening or checkpoint: `found` is less than `known`.
    Older {
        /// Generation of its header.
        found: u64,
        /// Generation that the superblock knows.
        known: u64,
    },
    /// The metadata device is a copy from before: `found` is more than `known` and one.
    Newer {
        /// Generation of its header.
        found: u64,
        /// Generation that the superblock knows.
        known: u64,
    },
    /// Redo ends at `reached`, before `durable`: the metadata device is a copy from before, and its
    /// log is overwritten, or the journal is damaged.
    Overwritten {
        /// End of what redo finds.
        reached: Lsn,
        /// Position up to which the journal was durable.
        durable: Lsn,
    },
    /// It has another size than the superblock says, or the device is too small for it.
    Size,
}

/// Where the cluster's file says on which device a log is.
pub(super) const PLACE: &str = "[metadata] of the cluster's file, or in the [[ost]] of a target";

impl Mismatch {
    fn say_place(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let metadata = self.metadata;
        match self.journal {
            Some(journal) => write!(f, "the log of metadata {metadata} is in journal {journal}, "),
            None => write!(f, "the log of metadata {metadata} is internal, "),
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.say_place(f)?;
        match &self.reason {
            Reason::Unwanted => write!(
                f,
                "not on this device: remove `journal` from {PLACE}, or move a metadata server's log \
                 here with `redbud journal move`"
            ),
            Reason::Missing => {
                write!(f, "which was not given: set `journal` in {PLACE}, to its device")
            }
            Reason::NoJournal => write!(
                f,
                "but this device carries no journal: set `journal` in {PLACE}, to the device of \
                 that journal; do not format either device"
            ),
            Reason::Damaged(what) => write!(
                f,
                "and both copies of that journal's header on this device are unusable ({what}); restore \
                 both devices from one backup"
            ),
            Reason::Version(version) => write!(
                f,
                "and this device has a journal of version {version}, which this release does not \
                 know; use a newer release of redbud"
            ),
            Reason::Contradiction(first, second) => write!(
                f,
                "but this device has headers of two journals, {first} and {second}; restore it from a \
                 backup of both devices"
            ),
            Reason::Foreign { journal, metadata } => write!(
                f,
                "but this device has journal {journal} of metadata {metadata}: set `journal` in \
                 {PLACE}, to the right device"
            ),
            Reason::Other(found) => write!(
                f,
                "but this device has journal {found}, which these metadata used before: set \
                 `journal` in {PLACE}, to the device of the newer journal"
            ),
            Reason::Retired => f.write_str(
                "but this device says that the log has moved elsewhere: the metadata device is an \
                 older copy; use the newest one, or restore both devices from one backup",
            ),
            Reason::Older { found, known } => write!(
                f,
                "and this device has an older copy of it (generation {found}, the metadata know \
                 {known}): use the newest one, or restore both devices from one backup"
            ),
            Reason::Newer { found, known } => write!(
                f,
                "and this device has a newer copy of it (generation {found}, the metadata know \
                 {known}): the metadata device is an older copy; use the newest one, or restore both \
                 devices from one backup"
            ),
            Reason::Overwritten { reached, durable } => write!(
                f,
                "and was durable up to {}, but whole only up to {}: the metadata device is an older \
                 copy, or the journal is damaged; use the newest metadata device, or restore both \
                 devices from one backup",
                durable.0, reached.0
            ),
            Reason::Size => f.write_str(
                "and this device does not have the size of that journal: give it its former size back",
            ),
        }
    }
}

/// The newest whole header, if there is one and no whole copy contradicts it.
pub(crate) fn newest(copies: &[HeaderCopy; 2]) -> Result<JournalHeader, Reason> {
    use JournalError::{Damaged, Foreign, Version};
    match copies {
        [Err(Version(version)), _] | [_, Err(Version(version))] => Err(Reason::Version(*version)),
        [Ok(a), Ok(b)] if (a.uuid, a.journal, a.metadata) != (b.uuid, b.journal, b.metadata) => {
            Err(Reason::Contradiction(a.journal, b.journal))
        }
        [Ok(a), Ok(b)] => Ok(if b.generation > a.generation { *b } else { *a }),
        [Ok(whole), Err(_)] | [Err(_), Ok(whole)] => Ok(*whole),
        [Err(Damaged(what)), Err(_)] | [Err(Foreign), Err(Damaged(what))] => {
            Err(Reason::Damaged(what))
        }
        [Err(Foreign), Err(Foreign)] => Err(Reason::NoJournal),
    }
}

/// Decides by a table; the first row that matches decides. `header` is `None` if no journal was
/// given; `room` is how many blocks its device has for a log.
///
/// | superblock | given | header                        | result                             |
/// |------------|-------|-------------------------------|------------------------------------|
/// | internal   | no    | –                             | internal                           |
/// | internal   | yes   | any                           | refused: nothing may be there      |
/// | external   | no    | –                             | refused: missing                   |
/// | external   | yes   | none whole, or contradictory  | refused: damaged, no journal       |
/// | external   | yes   | of another file system or metadata | refused: foreign              |
/// | external   | yes   | another journal of these      | refused: used before               |
/// | external   | yes   | retired                       | refused: these metadata are older  |
/// | external   | yes   | generation < known            | refused: an older copy             |
/// | external   | yes   | generation > known + 1        | refused: these metadata are older  |
/// | external   | yes   | another size, or no room      | refused                            |
/// | external   | yes   | generation = known or one more | external                          |
pub(crate) fn pair(
    superblock: &Superblock,
    header: Option<Result<JournalHeader, Reason>>,
    room: u64,
) -> Result<Place, Mismatch> {
    let metadata = superblock.metadata;
    let refused = |reason| {
        Err(Mismatch { metadata, journal: superblock.journal.map(|journal| journal.uuid), reason })
    };
    let (journal, header) = match (superblock.journal, header) {
        (None, None) => return Ok(Place::Internal),
        (None, Some(_)) => return refused(Reason::Unwanted),
        (Some(_), None) => return refused(Reason::Missing),
        (Some(_), Some(Err(reason))) => return refused(reason),
        (Some(journal), Some(Ok(header))) => (journal, header),
    };
    let (found, known) = (header.generation, superblock.log_generation);
    match () {
        () if header.uuid != superblock.uuid || header.metadata != metadata => {
            refused(Reason::Foreign { journal: header.journal, metadata: header.metadata })
        }
        () if header.journal != journal.uuid => refused(Reason::Other(header.journal)),
        () if header.retired => refused(Reason::Retired),
        () if found < known => refused(Reason::Older { found, known }),
        () if found > known.saturating_add(1) => refused(Reason::Newer { found, known }),
        () if header.blocks != journal.blocks || journal.blocks > room => refused(Reason::Size),
        () => Ok(Place::External(header)),
    }
}

/// Checks that redo, which ended at `reached`, found all that the journal had made durable.
///
/// # Errors
/// `Overwritten`.
pub(crate) fn check_reached(
    superblock: &Superblock,
    header: Option<&JournalHeader>,
    reached: Lsn,
) -> Result<(), Mismatch> {
    let behind = |header: &&JournalHeader| reached < header.durable;
    let Some(header) = header.filter(behind) else { return Ok(()) };
    let reason = Reason::Overwritten { reached, durable: header.durable };
    let journal = Some(header.journal);
    Err(Mismatch { metadata: superblock.metadata, journal, reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::superblock::Journal;

    fn header() -> JournalHeader {
        JournalHeader {
            uuid: Uuid([1; 16]),
            journal: Uuid([2; 16]),
            metadata: Uuid([3; 16]),
            generation: 7,
            blocks: 1024,
            durable: Lsn(4096),
            retired: false,
        }
    }

    fn superblock(journal: Option<u8>) -> Superblock {
        let mut superblock = Superblock::new(Uuid([1; 16]), "home", 10_000, 1024);
        superblock.metadata = Uuid([3; 16]);
        superblock.log_generation = 7;
        let journal = journal.map(|byte| Journal { uuid: Uuid([byte; 16]), blocks: 1024 });
        superblock.set_journal(journal);
        superblock
    }

    #[test]
    fn pair_of_metadata_and_journal_is_accepted_or_refused_for_each_row() {
        let (internal, external) = (superblock(None), superblock(Some(2)));
        let with = |change: fn(&mut JournalHeader)| {
            let mut header = header();
            change(&mut header);
            Some(Ok(header))
        };
        let next = JournalHeader { generation: 8, ..header() };
        let foreign = Reason::Foreign { journal: Uuid([2; 16]), metadata: Uuid([9; 16]) };
        let other = Reason::Foreign { journal: Uuid([2; 16]), metadata: Uuid([3; 16]) };
        let rows = [
            (&internal, None, Ok(Place::Internal)),
            (&internal, Some(Ok(header())), Err(Reason::Unwanted)),
            (&internal, Some(Err(Reason::NoJournal)), Err(Reason::Unwanted)),
            (&external, None, Err(Reason::Missing)),
            (&external, Some(Err(Reason::NoJournal)), Err(Reason::NoJournal)),
            (&external, with(|h| h.metadata = Uuid([9; 16])), Err(foreign)),
            (&external, with(|h| h.uuid = Uuid([9; 16])), Err(other)),
            (&external, with(|h| h.journal = Uuid([9; 16])), Err(Reason::Other(Uuid([9; 16])))),
            (&external, with(|h| h.retired = true), Err(Reason::Retired)),
            (&external, with(|h| h.generation = 6), Err(Reason::Older { found: 6, known: 7 })),
            (&external, with(|h| h.generation = 9), Err(Reason::Newer { found: 9, known: 7 })),
            (&external, with(|h| h.blocks = 1023), Err(Reason::Size)),
            (&external, with(|_| ()), Ok(Place::External(header()))),
            (&external, with(|h| h.generation = 8), Ok(Place::External(next))),
        ];
        for (superblock, header, expected) in rows {
            let found = pair(superblock, header, 1024).map_err(|mismatch| {
                let text = mismatch.to_string();
                assert!(text.contains(&mismatch.metadata.to_string()), "{text}");
                let named = mismatch.journal.is_none_or(|uuid| text.contains(&uuid.to_string()));
                assert!(named, "{text}");
                mismatch.reason
            });
            assert_eq!(found, expected, "{header:?}");
        }
        let small = pair(&external, Some(Ok(header())), 1023).map_err(|found| found.reason);
        assert_eq!(small, Err(Reason::Size));
    }

    #[test]
    fn newest_whole_header_counts_and_two_journals_contradict_each_other() {
        let next = JournalHeader { generation: 8, ..header() };
        let other = JournalHeader { journal: Uuid([9; 16]), ..header() };
        let (damaged, foreign) = (Err(JournalError::Damaged("x")), Err(JournalError::Foreign));
        let version = Err(JournalError::Version(9));
        let two = Reason::Contradiction(Uuid([2; 16]), Uuid([9; 16]));
        let rows = [
            ([Ok(header()), Ok(next)], Ok(next)),
            ([Ok(next), Ok(header())], Ok(next)),
            ([Ok(header()), damaged], Ok(header())),
            ([foreign, Ok(header())], Ok(header())),
            ([Ok(header()), Ok(other)], Err(two)),
            ([damaged, foreign], Err(Reason::Damaged("x"))),
            ([foreign, damaged], Err(Reason::Damaged("x"))),
            ([foreign, foreign], Err(Reason::NoJournal)),
            ([version, Ok(header())], Err(Reason::Version(9))),
            ([Ok(header()), version], Err(Reason::Version(9))),
        ];
        for (copies, expected) in rows {
            assert_eq!(newest(&copies), expected, "{copies:?}");
        }
    }
}
