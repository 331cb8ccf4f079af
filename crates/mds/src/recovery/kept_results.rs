//! The outcomes of a request, which the store keeps in the transaction that makes them. So a
//! request that is sent again after a restart is not executed again.
//!
//! A record lists the compound's operations that have changed something, each with what cannot be
//! derived again: `⟨index u8, tag u8, fields⟩*`. Operations in a row of which nothing more than
//! their success is kept are one item with their number. So a record of what clients ask for is a
//! short reply ([`engine::format::reply::SHORT_REPLY_MAX`]), unless it grants several runs of
//! blocks: it takes no space, and cannot fail for want of it.

use proto::mds::PagRun;
use proto::operation::Kept;
use proto::{Malformed, Reader, Wire};
use types::Ino;

/// The outcome of an executed operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is done; its reply can be rebuilt from the current state.
    Done,
    /// It created or found this inode.
    Inode(Ino),
    /// It moved an inode, perhaps over another.
    Moved(Ino, Ino),
    /// It moved an inode, perhaps over another, and left a whiteout, the third.
    MovedLeaving(Ino, Ino, Ino),
    /// It granted these blocks.
    Space(Vec<PagRun>),
    /// This many edits of a commit, its first ones, are done.
    Edits(u32),
}

impl Outcome {
    /// Is it an outcome of an operation that is declared to keep `kept`?
    pub fn is(&self, kept: Kept) -> bool {
        match self {
            Outcome::Done => matches!(kept, Kept::Done | Kept::Edits),
            Outcome::Inode(_) => kept == Kept::Inode,
            Outcome::Moved(..) | Outcome::MovedLeaving(..) => kept == Kept::Moved,
            Outcome::Space(_) => kept == Kept::Blocks,
            Outcome::Edits(_) => kept == Kept::Edits,
        }
    }
}

/// Outcomes by index of the operation in the compound, in order.
pub type OutcomeRecord = Vec<(u8, Outcome)>;

/// The record's bytes.
pub fn encode(record: &OutcomeRecord) -> Vec<u8> {
    let mut out = Vec::with_capacity(record.len() * 10);
    let mut left = &record[..];
    while let Some(((index, outcome), rest)) = left.split_first() {
        left = rest;
        out.push(*index);
        match outcome {
            Outcome::Done => {
                let row = (1..).zip(rest).take_while(|(nth, (at, outcome))| {
                    *outcome == Outcome::Done && usize::from(*at) == usize::from(*index) + nth
                });
                match row.count() {
                    0 => out.push(0),
                    more => {
                        left = &rest[more..];
                        // A compound has at most 64 operations.
                        out.extend([6, more as u8 + 1]);
                    }
                }
            }
            Outcome::Inode(ino) => {
                out.push(1);
                ino.put(&mut out);
            }
            Outcome::Moved(moved, replaced) => {
                out.push(2);
                moved.put(&mut out);
                replaced.put(&mut out);
            }
            Outcome::Space(runs) => {
                out.push(3);
                runs.put(&mut out);
            }
            Outcome::MovedLeaving(moved, replaced, whiteout) => {
                out.push(5);
                moved.put(&mut out);
                replaced.put(&mut out);
                whiteout.put(&mut out);
            }
            Outcome::Edits(done) => {
                out.push(4);
                done.put(&mut out);
            }
        }
    }
    out
}

/// Decodes a record.
///
/// # Errors
/// The bytes are not a record.
pub fn decode(bytes: &[u8]) -> Result<OutcomeRecord, Malformed> {
    let mut reader = Reader::new(bytes);
    let mut out = OutcomeRecord::new();
    while reader.remaining() > 0 {
        let index = u8::get(&mut reader)?;
        let outcome = match u8::get(&mut reader)? {
            0 => Outcome::Done,
            6 => {
                let count = u8::get(&mut reader)?;
                let end = index.checked_add(count).ok_or(Malformed("a row of outcomes"))?;
                out.extend((index..end).map(|at| (at, Outcome::Done)));
                continue;
            }
            1 => Outcome::Inode(Ino::get(&mut reader)?),
            2 => Outcome::Moved(Ino::get(&mut reader)?, Ino::get(&mut reader)?),
            3 => Outcome::Space(Wire::get(&mut reader)?),
            4 => Outcome::Edits(u32::get(&mut reader)?),
            5 => {
                let (moved, replaced) = (Ino::get(&mut reader)?, Ino::get(&mut reader)?);
                Outcome::MovedLeaving(moved, replaced, Ino::get(&mut reader)?)
            }
            _ => return Err(Malformed("unknown outcome in a kept reply")),
        };
        out.push((index, outcome));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::format::reply::SHORT_REPLY_MAX;
    use types::limits::COMPOUND_OPS_MAX;
    use types::{PagBlock, PagId};

    #[test]
    fn records_survive_their_encoding_and_their_truncation() {
        let run = PagRun { pag: PagId(1), addr: PagBlock(7), len: 9 };
        let record = vec![
            (0, Outcome::Done),
            (3, Outcome::Inode(Ino(77))),
            (4, Outcome::Moved(Ino(7), Ino::NONE)),
            (5, Outcome::Space(vec![run])),
            (6, Outcome::MovedLeaving(Ino(7), Ino(8), Ino(9))),
            (63, Outcome::Edits(12)),
        ];
        let bytes = encode(&record);
        assert_eq!(decode(&bytes), Ok(record));
        for len in 0..bytes.len() {
            let _ = decode(&bytes[..len]);
        }
        assert!(decode(&[200, 6, 100]).is_err());
    }

    /// What a mount asks for: one change, or a row of commits or of returns.
    #[test]
    fn records_of_what_clients_ask_for_are_short_replies() {
        let done = |count: u8| (0..count).map(|at| (at, Outcome::Done)).collect::<Vec<_>>();
        let run = PagRun { pag: PagId(1), addr: PagBlock(7), len: 9 };
        let mut records = vec![
            vec![(0, Outcome::Inode(Ino(u64::MAX)))],
            vec![(0, Outcome::Moved(Ino(u64::MAX), Ino(u64::MAX)))],
            vec![(0, Outcome::MovedLeaving(Ino(u64::MAX), Ino(u64::MAX), Ino(u64::MAX)))],
            vec![(0, Outcome::Space(vec![run]))],
            vec![(1, Outcome::Done), (3, Outcome::Done), (4, Outcome::Done)],
        ];
        for count in [1, 2, 40, COMPOUND_OPS_MAX as u8] {
            records.push(done(count));
            let mut partly = done(count);
            partly[usize::from(count) - 1].1 = Outcome::Edits(u32::MAX);
            records.push(partly);
        }
        for record in records {
            let bytes = encode(&record);
            assert!(bytes.len() <= SHORT_REPLY_MAX, "{record:?} takes {} bytes", bytes.len());
            assert_eq!(decode(&bytes), Ok(record));
        }
    }
}
