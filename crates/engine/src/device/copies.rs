//! The two copies of the superblock: which of them counts, and why neither may.

use types::limits::BLOCK_U64;

use crate::device::Device;
use crate::error::StoreError;
use crate::format::superblock::{FORMAT_VERSION, SuperError, Superblock};

/// The result of decoding a copy of the superblock.
pub(crate) type CopyResult = Result<Superblock, SuperError>;

/// How an opening continues after it has read both copies of the superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CopyChoice {
    /// Use this copy, 0 or 1.
    Use(usize),
    /// Both are foreign.
    Foreign,
    /// At least one is damaged and none is whole.
    Damaged(&'static str),
    /// A newer release wrote here, or (0) a build from before version 1.
    Version(u32),
    /// Unknown features, by name.
    Features(String),
    /// Whole copies of two file systems.
    Contradiction,
}

/// Decides by a table of the copies. The first row that matches decides.
///
/// | first      | second     | choice        | why                                            |
/// |------------|------------|---------------|------------------------------------------------|
/// | version    | any        | version       | the meaning of another version is unknown      |
/// | any        | version    | version       | the same                                       |
/// | features   | any        | features      | the same                                       |
/// | any        | features   | features      | the same                                       |
/// | whole      | whole, other UUID | contradiction | neither can be trusted                  |
/// | whole      | whole      | newer one     | the older one is its predecessor               |
/// | whole      | no         | first         | the second was being written, or is damaged    |
/// | no         | whole      | second        | the first was being written, or is damaged     |
/// | damaged    | no         | damaged       | nothing to start from                          |
/// | no         | damaged    | damaged       | the same                                       |
/// | foreign    | foreign    | foreign       | never was a Redbud device                      |
pub(crate) fn choose(first: &CopyResult, second: &CopyResult) -> CopyChoice {
    use SuperError::{Damaged, Features, Foreign, Version};
    match (first, second) {
        (Err(Version(version)), _) | (_, Err(Version(version))) => CopyChoice::Version(*version),
        (Err(Features(names)), _) | (_, Err(Features(names))) => {
            CopyChoice::Features(names.clone())
        }
        (Ok(a), Ok(b)) if a.uuid != b.uuid => CopyChoice::Contradiction,
        (Ok(a), Ok(b)) => CopyChoice::Use(usize::from(b.generation > a.generation)),
        (Ok(_), Err(Damaged(_) | Foreign)) => CopyChoice::Use(0),
        (Err(Damaged(_) | Foreign), Ok(_)) => CopyChoice::Use(1),
        (Err(Damaged(what)), Err(_)) | (Err(Foreign), Err(Damaged(what))) => {
            CopyChoice::Damaged(what)
        }
        (Err(Foreign), Err(Foreign)) => CopyChoice::Foreign,
    }
}

pub(crate) fn refused(device: &Device, text: &str) -> StoreError {
    StoreError::Refused(format!("{}: {text}", device.disk.path()).into())
}

/// Refuses a device that had `blocks` blocks when it was formatted, and has others now.
pub(crate) fn resized(device: &Device, blocks: u64) -> StoreError {
    let (made, is) = (blocks.saturating_mul(BLOCK_U64), device.disk.size());
    let text = format!(
        "the file system was made for {made} bytes, but the device has {is}; \
         give the device its former size back"
    );
    refused(device, &text)
}

/// Both copies of the superblock, or why they cannot be used.
pub(crate) async fn read_copies(device: &Device) -> Vec<CopyResult> {
    let blocks = device.blocks();
    let mut copies = Vec::new();
    for index in 0..2 {
        let place = Superblock::place(index, blocks);
        // Treat a copy that cannot be read as damaged: the other one suffices.
        copies.push(match device.read(place, 1).await {
            Ok(bytes) => Superblock::decode(&bytes, index, blocks),
            Err(_) => Err(SuperError::Damaged("cannot be read")),
        });
    }
    copies
}

/// Reads the superblock copies; returns the one to use and which it is.
pub(crate) async fn find_superblock(device: &Device) -> Result<(Superblock, usize), StoreError> {
    let refused = |text: String| refused(device, &text);
    let blocks = device.blocks();
    let mut copies = read_copies(device).await;
    let choice = choose(&copies[0], &copies[1]);
    let index = match choice {
        CopyChoice::Use(index) => index,
        CopyChoice::Foreign => {
            // The label is a Redbud label: otherwise the opening would have refused the device.
            return Err(refused(
                "both copies of its superblock are gone, though its label is one of Redbud; \
                 do not format it, restore the device from a backup"
                    .into(),
            ));
        }
        CopyChoice::Damaged(what) => {
            return Err(refused(format!(
                "both copies of the superblock are unusable ({what}); restore the device from a backup"
            )));
        }
        CopyChoice::Version(0) => {
            return Err(refused(
                "its file system was made by a build from before format version 1, which no release \
                 reads; make it anew with `redbud mkfs --force`"
                    .into(),
            ));
        }
        CopyChoice::Version(version) => {
            return Err(refused(format!(
                "has format version {version}, this release knows {FORMAT_VERSION}; \
                 use a newer release of redbud"
            )));
        }
        CopyChoice::Features(names) => {
            return Err(refused(format!(
                "uses features this release does not know ({names}); use a newer release of redbud"
            )));
        }
        CopyChoice::Contradiction => {
            return Err(refused(
                "its superblock copies belong to two file systems; restore the device from a backup"
                    .into(),
            ));
        }
    };
    let superblock = copies.swap_remove(index).map_err(|_| refused("no superblock".into()))?;
    if superblock.blocks != blocks {
        return Err(resized(device, device.start() + superblock.blocks + 1));
    }
    Ok((superblock, index))
}

/// Writes both superblock copies of a closed store.
///
/// # Errors
/// `Io`.
pub async fn write_copies(device: &Device, superblock: &mut Superblock) -> Result<(), StoreError> {
    for index in 0..2 {
        superblock.generation += 1;
        device.write_super(superblock, index).await?;
        device.flush().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use types::Uuid;

    use super::*;

    #[test]
    fn superblock_choice_is_unique_for_each_pair_of_copies() {
        let whole = |byte, generation| {
            let mut sb = Superblock::plan(Uuid([byte; 16]), "a", 10_000, 4 << 20).unwrap();
            sb.generation = generation;
            Ok(sb)
        };
        let damaged = || Err(SuperError::Damaged("x"));
        let foreign = || Err(SuperError::Foreign);
        let version = || Err(SuperError::Version(9));
        let features = || Err(SuperError::Features("y".into()));
        let rows: Vec<(CopyResult, CopyResult, CopyChoice)> = vec![
            (whole(1, 4), whole(1, 5), CopyChoice::Use(1)),
            (whole(1, 6), whole(1, 5), CopyChoice::Use(0)),
            (whole(1, 6), whole(2, 5), CopyChoice::Contradiction),
            (whole(1, 6), damaged(), CopyChoice::Use(0)),
            (whole(1, 6), foreign(), CopyChoice::Use(0)),
            (damaged(), whole(1, 1), CopyChoice::Use(1)),
            (foreign(), whole(1, 1), CopyChoice::Use(1)),
            (damaged(), foreign(), CopyChoice::Damaged("x")),
            (foreign(), damaged(), CopyChoice::Damaged("x")),
            (damaged(), damaged(), CopyChoice::Damaged("x")),
            (foreign(), foreign(), CopyChoice::Foreign),
            (version(), whole(1, 1), CopyChoice::Version(9)),
            (whole(1, 1), version(), CopyChoice::Version(9)),
            (features(), foreign(), CopyChoice::Features("y".into())),
            (whole(1, 1), features(), CopyChoice::Features("y".into())),
        ];
        for (first, second, choice) in rows {
            assert_eq!(choose(&first, &second), choice, "{first:?} {second:?}");
        }
    }
}
