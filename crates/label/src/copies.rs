//! The two copies of a label: which of them counts, and why neither may.
//!
//! The first row that matches decides:
//!
//! | front      | end                        | choice        | why                                     |
//! |------------|----------------------------|---------------|-----------------------------------------|
//! | version    | any                        | version       | the meaning of another version is unknown |
//! | any        | version                    | version       | the same                                |
//! | unreleased | any                        | unreleased    | such a build did not know of the end    |
//! | whole      | whole, other device or file system | contradiction | neither can be trusted          |
//! | whole      | whole, equal               | both          |                                         |
//! | whole      | whole, higher sequence     | end           | an update was cut after its first half  |
//! | whole      | whole, lower sequence      | front         | the same, with the end to come          |
//! | whole      | whole, differs only by a lower fencing epoch | front | two updates at once: no epoch may be forgotten |
//! | whole      | whole, differs only by a higher fencing epoch | end  | the same                        |
//! | whole      | whole, same sequence       | contradiction | no update leaves this                   |
//! | whole      | no                         | front         | the end was being written, or is damaged |
//! | no         | whole                      | end           | the front was being written, or is damaged |
//! | damaged    | no                         | damaged       | nothing to start from                   |
//! | foreign    | damaged                    | damaged       | the same                                |
//! | foreign    | foreign                    | foreign       | never was a Redbud device               |
//!
//! "No" is a copy that is not whole: damaged or unreadable, foreign, or of a device of another
//! size.

use std::fmt;

use crate::format::{Label, LabelError};

/// Where a copy lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In block 0.
    Front,
    /// In the last block.
    End,
}

impl Place {
    /// The other one.
    pub fn other(self) -> Place {
        match self {
            Place::Front => Place::End,
            Place::End => Place::Front,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Place::Front => "the label in block 0",
            Place::End => "the label's copy in the last block",
        })
    }
}

/// Why a copy cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CopyError {
    /// Its bytes are no label.
    Bytes(LabelError),
    /// The device did not answer with them.
    Unreadable(String),
    /// It is whole, but of a device of another size: it was copied here, or the device was resized.
    Elsewhere,
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyError::Bytes(error) => error.fmt(f),
            CopyError::Unreadable(error) => write!(f, "its label cannot be read: {error}"),
            CopyError::Elsewhere => f.write_str("its label is that of a device of another size"),
        }
    }
}

/// A copy, or why it cannot be used.
pub type CopyResult = Result<Label, CopyError>;

/// What a reader does with two copies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Choice {
    /// Use this copy. The other one is equal.
    Both(Place),
    /// Use this copy. The other one is not whole, or an older one, and should be written anew.
    One(Place),
    /// The device has no label.
    Foreign,
    /// A build from before this format made it.
    Unreleased,
    /// No copy is whole; the one here was a label.
    Damaged(Place),
    /// A newer release wrote it.
    Version(u16),
    /// Whole copies of two devices, or two contents with one sequence number.
    Contradiction,
}

/// Decides by the table in the module documentation. The first row that matches decides.
pub fn choose(front: &CopyResult, end: &CopyResult) -> Choice {
    use CopyError::Bytes;
    use LabelError::{Unreleased, Version};
    match (front, end) {
        (Err(Bytes(Version(version))), _) | (_, Err(Bytes(Version(version)))) => {
            Choice::Version(*version)
        }
        (Err(Bytes(Unreleased)), _) => Choice::Unreleased,
        (Ok(a), Ok(b)) if (a.device_uuid, a.fs_uuid) != (b.device_uuid, b.fs_uuid) => {
            Choice::Contradiction
        }
        (Ok(a), Ok(b)) if a == b => Choice::Both(Place::Front),
        (Ok(a), Ok(b)) if a.sequence < b.sequence => Choice::One(Place::End),
        (Ok(a), Ok(b)) if a.sequence > b.sequence => Choice::One(Place::Front),
        (Ok(a), Ok(b)) if differ_by_epoch(a, b) => {
            let end = a.fencing_epoch < b.fencing_epoch;
            Choice::One(if end { Place::End } else { Place::Front })
        }
        (Ok(_), Ok(_)) => Choice::Contradiction,
        (Ok(_), Err(_)) => Choice::One(Place::Front),
        (Err(_), Ok(_)) => Choice::One(Place::End),
        (Err(front), Err(end)) => match (is_foreign(front), is_foreign(end)) {
            (false, _) => Choice::Damaged(Place::Front),
            (true, false) => Choice::Damaged(Place::End),
            (true, true) => Choice::Foreign,
        },
    }
}

/// Is their fencing epoch all in which they differ?
fn differ_by_epoch(a: &Label, b: &Label) -> bool {
    let same = Label { fencing_epoch: b.fencing_epoch, ..a.clone() };
    same == *b && a.fencing_epoch != b.fencing_epoch
}

/// Are these bytes, as far as one can tell, not Redbud's? A label of another size and the label of
/// a build that did not write the end are no traces of this device's one.
fn is_foreign(error: &CopyError) -> bool {
    use LabelError::{Foreign, Short, Unreleased};
    matches!(error, CopyError::Elsewhere | CopyError::Bytes(Foreign | Short | Unreleased))
}

#[cfg(test)]
mod tests {
    use types::{PagId, Uuid};

    use super::*;
    use crate::format::SliceKind;

    /// The kinds of copies that the table tells apart.
    fn copies() -> Vec<(&'static str, CopyResult)> {
        let whole = |device: u8, sequence| {
            let kind = SliceKind::Data { pag: PagId(1) };
            let label = Label::single(Uuid([1; 16]), "a", Uuid([device; 16]), 100, kind);
            Label { sequence, ..label }
        };
        let raised = |epoch| Label { fencing_epoch: types::Epoch(epoch), ..whole(2, 5) };
        let changed = Label { fs_name: "b".into(), ..raised(9) };
        let bytes = |error| Err(CopyError::Bytes(error));
        vec![
            ("whole 5", Ok(whole(2, 5))),
            ("whole 6", Ok(whole(2, 6))),
            ("epoch 8", Ok(raised(8))),
            ("epoch 9", Ok(raised(9))),
            ("changed 5", Ok(changed)),
            ("other device", Ok(whole(3, 5))),
            ("other fs", Ok(Label { fs_uuid: Uuid([4; 16]), ..whole(2, 5) })),
            ("foreign", bytes(LabelError::Foreign)),
            ("short", bytes(LabelError::Short)),
            ("elsewhere", Err(CopyError::Elsewhere)),
            ("unreleased", bytes(LabelError::Unreleased)),
            ("checksum", bytes(LabelError::Checksum)),
            ("field", bytes(LabelError::Field("x"))),
            ("unreadable", Err(CopyError::Unreadable("x".into()))),
            ("version", bytes(LabelError::Version(9))),
        ]
    }

    /// The table once more, by the names of the copies.
    fn expected(front: &str, end: &str) -> Choice {
        let whole =
            ["whole 5", "epoch 8", "epoch 9", "changed 5", "whole 6", "other device", "other fs"];
        // Each with the same sequence, and the epochs rise.
        let epochs = &whole[..3];
        let fifth = &whole[..4];
        let rank = |name: &str| epochs.iter().position(|epoch| *epoch == name);
        let damaged = ["checksum", "field", "unreadable"];
        match (front, end) {
            ("version", _) | (_, "version") => Choice::Version(9),
            ("unreleased", _) => Choice::Unreleased,
            (a, b) if whole.contains(&a) && a == b => Choice::Both(Place::Front),
            (a, b) if whole.contains(&a) && whole.contains(&b) => match (a, b) {
                (a, "whole 6") if fifth.contains(&a) => Choice::One(Place::End),
                ("whole 6", b) if fifth.contains(&b) => Choice::One(Place::Front),
                (a, b) => match (rank(a), rank(b)) {
                    (Some(a), Some(b)) if a < b => Choice::One(Place::End),
                    (Some(_), Some(_)) => Choice::One(Place::Front),
                    _ => Choice::Contradiction,
                },
            },
            (a, _) if whole.contains(&a) => Choice::One(Place::Front),
            (_, b) if whole.contains(&b) => Choice::One(Place::End),
            (a, _) if damaged.contains(&a) => Choice::Damaged(Place::Front),
            (_, b) if damaged.contains(&b) => Choice::Damaged(Place::End),
            _ => Choice::Foreign,
        }
    }

    #[test]
    fn label_choice_is_that_of_the_table_for_each_pair_of_copies() {
        for (front_name, front) in &copies() {
            for (end_name, end) in &copies() {
                let choice = choose(front, end);
                assert_eq!(choice, expected(front_name, end_name), "{front_name}, {end_name}");
            }
        }
    }
}
