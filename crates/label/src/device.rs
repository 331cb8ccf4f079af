//! Reads and writes the two copies of a label on a device.
//!
//! Invariants:
//! - the copy that counts is written last: until the other one is whole and stable, it stays as it
//!   is. So a cut at any moment leaves the old label or the new one, whole;
//! - where the second copy lies, a whole label in block 0 says; without one, the device's size.

use std::fmt;
use std::io;

use env::{Disk, IoBuf};
use types::Uuid;
use types::limits::{BLOCK, BLOCK_U64};

use crate::copies::{Choice, CopyError, CopyResult, Place, choose};
use crate::format::{Label, LabelError};

/// A label that was found on a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The label.
    pub label: Label,
    /// Where it was taken from.
    pub place: Place,
    /// What is wrong with the other copy, if anything: it should be written anew.
    pub damage: Option<Damage>,
}

/// What is wrong with one copy of a label while the other one is whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// Which copy.
    pub place: Place,
    /// What is wrong with it; `None`: it is an older one.
    pub why: Option<CopyError>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Some(why) => write!(f, "{} is damaged ({why}); the other copy is whole", self.place),
            None => write!(f, "{} is older than the other copy", self.place),
        }
    }
}

/// Why a device has no label that can be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoLabel {
    /// Why.
    pub why: Why,
    /// The UUIDs of the device that the remains of the two copies name, if any.
    pub uuids: [Option<Uuid>; 2],
    /// Are both copies nothing but zeros, as far as they can be read?
    pub zeros: bool,
}

/// See [`NoLabel`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// Neither copy is Redbud's.
    Foreign,
    /// A build from before this format made it.
    Unreleased,
    /// No copy is whole.
    Damaged(CopyError),
    /// A newer release wrote it.
    Version(u16),
    /// The copies are those of two devices.
    Contradiction,
}

impl fmt::Display for NoLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::Foreign => LabelError::Foreign.fmt(f),
            Why::Unreleased => LabelError::Unreleased.fmt(f),
            Why::Damaged(error) => write!(f, "{error}, and its copy in the last block cannot help"),
            Why::Version(version) => LabelError::Version(*version).fmt(f),
            Why::Contradiction => f.write_str(
                "its label in block 0 and the copy in its last block contradict each other",
            ),
        }
    }
}

impl std::error::Error for NoLabel {}

/// Whole blocks of the device.
fn blocks_of(disk: &Disk) -> u64 {
    disk.size() / BLOCK_U64
}

async fn read_block(disk: &Disk, block: u64) -> Result<IoBuf, CopyError> {
    if block >= blocks_of(disk) {
        let text = format!("the device has {} blocks, it would be block {block}", blocks_of(disk));
        return Err(CopyError::Unreadable(text));
    }
    let (result, buf) = disk.read(block * BLOCK_U64, IoBuf::unspecified(BLOCK)).await;
    result.map(|()| buf).map_err(|error| CopyError::Unreadable(error.to_string()))
}

fn decode(bytes: &Result<IoBuf, CopyError>) -> CopyResult {
    match bytes {
        Ok(bytes) => Label::decode(bytes).map_err(CopyError::Bytes),
        Err(error) => Err(error.clone()),
    }
}

/// Reads the label of a device, which may be in use.
///
/// # Errors
/// Why there is none. An error of the device counts as damage of the copy that it hides.
pub async fn read(disk: &Disk) -> Result<Found, NoLabel> {
    if blocks_of(disk) < 3 {
        let why = Why::Damaged(CopyError::Bytes(LabelError::Short));
        return Err(NoLabel { why, uuids: [None; 2], zeros: false });
    }
    let front_bytes = read_block(disk, 0).await;
    let front = decode(&front_bytes);
    let place = front.as_ref().map_or(blocks_of(disk), |label| label.blocks) - 1;
    let end_bytes = read_block(disk, place).await;
    let end = decode(&end_bytes).and_then(|label| match label.blocks - 1 == place {
        true => Ok(label),
        false => Err(CopyError::Elsewhere),
    });
    let bytes = [front_bytes, end_bytes];
    take(choose(&front, &end), front, end).map_err(|why| NoLabel {
        why,
        uuids: [0, 1].map(|index| bytes[index].as_ref().ok().and_then(|b| uuid_in(b))),
        zeros: bytes.iter().flatten().all(|bytes| bytes.iter().all(|&byte| byte == 0)),
    })
}

/// The UUID in the remains of a copy.
fn uuid_in(bytes: &[u8]) -> Option<Uuid> {
    Label::device_uuid_in(bytes).filter(|uuid| uuid.0 != [0; 16])
}

fn take(choice: Choice, front: CopyResult, end: CopyResult) -> Result<Found, Why> {
    let damaged = |error: Option<CopyError>| match error {
        Some(error) => Why::Damaged(error),
        None => Why::Contradiction,
    };
    let (place, both) = match choice {
        Choice::Both(place) => (place, true),
        Choice::One(place) => (place, false),
        Choice::Foreign => return Err(Why::Foreign),
        Choice::Unreleased => return Err(Why::Unreleased),
        Choice::Damaged(Place::Front) => return Err(damaged(front.err())),
        Choice::Damaged(Place::End) => return Err(damaged(end.err())),
        Choice::Version(version) => return Err(Why::Version(version)),
        Choice::Contradiction => return Err(Why::Contradiction),
    };
    let (chosen, other) = match place {
        Place::Front => (front, end),
        Place::End => (end, front),
    };
    let label = chosen.map_err(Why::Damaged)?;
    let damage = (!both).then(|| Damage { place: place.other(), why: other.err() });
    Ok(Found { label, place, damage })
}

/// Does the device belong to Redbud at all, even with a damaged, newer or older label? mkfs asks
/// this before it overwrites anything.
pub async fn is_ours(disk: &Disk) -> bool {
    for block in [0, blocks_of(disk).saturating_sub(1)] {
        if read_block(disk, block).await.is_ok_and(|bytes| Label::is_ours(&bytes)) {
            return true;
        }
    }
    false
}

async fn write_block(disk: &Disk, block: u64, bytes: &[u8; BLOCK]) -> io::Result<()> {
    let mut buf = IoBuf::zeroed(BLOCK);
    buf.copy_from_slice(bytes);
    disk.write(block * BLOCK_U64, buf).await.0?;
    disk.flush().await
}

/// Writes both copies, that at `last` last.
async fn write_both(disk: &Disk, label: &Label, last: Place) -> io::Result<()> {
    if let Err(error) = label.check() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
    }
    if label.blocks > blocks_of(disk) {
        let text = format!(
            "{}: the device has {} blocks, its label would say {}",
            disk.path(),
            blocks_of(disk),
            label.blocks
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let bytes = label.encode();
    for place in [last.other(), last] {
        let block = match place {
            Place::Front => 0,
            Place::End => label.blocks - 1,
        };
        write_block(disk, block, &bytes).await?;
    }
    Ok(())
}

/// Makes sure that the device has no label: what it holds from now on belongs to nobody, until
/// [`write_new`].
///
/// # Errors
/// Those of the device.
pub async fn erase(disk: &Disk) -> io::Result<()> {
    for block in [blocks_of(disk).saturating_sub(1), 0] {
        write_block(disk, block, &[0; BLOCK]).await?;
    }
    Ok(())
}

/// Writes the label of a device that has none.
///
/// # Errors
/// Those of the device; a label that is impossible, or larger than the device.
pub async fn write_new(disk: &Disk, label: &Label) -> io::Result<()> {
    write_both(disk, label, Place::Front).await
}

/// Changes the label `found` on the device, and writes a damaged copy of it anew. Returns the new
/// one.
///
/// # Errors
/// Those of the device: it then has the old label or the new one.
pub async fn update(
    disk: &Disk,
    found: &Found,
    change: impl FnOnce(&mut Label),
) -> io::Result<Label> {
    let mut label = found.label.clone();
    change(&mut label);
    label.sequence = found.label.sequence + 1;
    write_both(disk, &label, found.place).await?;
    Ok(label)
}

#[cfg(test)]
mod tests;
