//! Repair of corrupted metadata devices, lost writes included, with the data zones' labels present.
//!
//! Invariants for a device on which one to three blocks were corrupted, in any of three ways:
//! - fsck ends, and so does opening the device and reading everything: with its contents, or with
//!   an error of the store that names the damage. A block whose write was lost is valid. Reading
//!   may give its content, or report as missing what other blocks refer to: no more is demanded;
//! - where fsck finds nothing, everything can be read;
//! - `fsck --repair` has one of three results. The device is clean for fsck and can be read
//!   completely; or repair lists what is left, and fsck finds exactly that; or repair refuses, and
//!   fsck refuses too.
//!
//! Whether repair keeps everything possible is tested in the store, where the content of a block is
//! known.

use env::DiskOptions;
use env::sim::{SimDisk, SimRng, SimWorld};
use mfs::fsck::{FsckOptions, Repaired, repair};
use mfs::{StoreError, ZoneDevice};
use types::PagId;

use crate::cluster;
use crate::media_corruption::{self, Contents, NAME};
use crate::zones;

/// The result of a repair of a copy.
#[derive(Debug)]
pub(crate) struct RepairAttempt {
    /// A description.
    pub what: String,
    /// The copy cannot be repaired.
    pub unrepairable: bool,
}

/// Corrupts a copy of `good` and repairs it beside the data zones; returns what was done. `older`
/// holds an earlier state of the device.
pub(crate) fn check(
    good: &SimDisk,
    older: &SimDisk,
    data: &[SimDisk],
    seed: u64,
) -> Result<RepairAttempt, String> {
    let bad = good.fork();
    let what = media_corruption::damage(good, &bad, Some(older), &mut SimRng::new(seed))?;
    let clean = cluster::fsck(bad.fork(), seed).is_ok();
    match (media_corruption::open_copy(&bad, seed, media_corruption::read_everything), clean) {
        (Ok(seen), true) => {
            whole(&seen).map_err(|text| format!("{what} fsck finds nothing; {text}"))?
        }
        (Err(error), true) => {
            return Err(format!("{what} fsck finds nothing; opening the device: {error}"));
        }
        (Ok(seen), false) => {
            let mut errors = seen.values().filter_map(|seen| seen.as_ref().err());
            if let Some(error) = errors.find(|error| !reports_damage(error)) {
                return Err(format!("{what} reading the device: {error}"));
            }
        }
        (Err(error), false) if !reports_damage(&error) => {
            return Err(format!("{what} opening the device: {error}"));
        }
        (Err(_), false) => {}
    }
    let repaired = repaired(&bad, data, seed);
    let left = cluster::fsck(bad.fork(), seed);
    let repaired = match repaired {
        Ok(repaired) if repaired.left.is_clean() || repaired.rounds > 0 => repaired,
        Err(error) if !reports_damage(&error) => {
            return Err(format!("{what} repairing the device: {error}"));
        }
        // The device was not opened at all.
        refused => {
            return match left {
                Err(_) => {
                    let what = format!("{what} it cannot be repaired");
                    Ok(RepairAttempt { what, unrepairable: true })
                }
                Ok(()) => {
                    Err(format!("{what} fsck finds nothing, and repair refuses: {refused:?}"))
                }
            };
        }
    };
    let done = format!("{what} repair: {:?}", repaired.done);
    match left {
        Ok(()) => {}
        Err(left) if left == cluster::findings(&repaired.left) => {
            let what = format!("{what} of that is left: {left}");
            return Ok(RepairAttempt { what, unrepairable: false });
        }
        Err(left) => return Err(format!("{done}; fsck then finds:\n  {left}")),
    }
    let seen = media_corruption::open_copy(&bad, seed, media_corruption::read_everything)
        .map_err(|error| format!("{done}; opening the device: {error}"))?;
    whole(&seen).map_err(|text| format!("{done}; {text}"))?;
    Ok(RepairAttempt { what, unrepairable: false })
}

/// Does the error report damage, or something missing from its place?
fn reports_damage(error: &StoreError) -> bool {
    media_corruption::reports_damage(error) || matches!(error, StoreError::Fault(_))
}

/// Could everything be read?
fn whole(seen: &Contents) -> Result<(), String> {
    match seen.iter().find_map(|(about, seen)| Some((about, seen.as_ref().err()?))) {
        Some((about, error)) => Err(format!("{about}: {error}")),
        None => Ok(()),
    }
}

/// Repairs the device itself, in a world of its own.
fn repaired(bad: &SimDisk, data: &[SimDisk], seed: u64) -> Result<Repaired, StoreError> {
    let world = SimWorld::new(seed);
    world.attach(NAME, bad);
    let names: Vec<(PagId, String)> =
        zones::zones(data.len()).map(|zone| (zone, zones::name(zone))).collect();
    for ((_, name), disk) in names.iter().zip(data) {
        world.attach(name, &disk.fork());
    }
    world.run(|env| async move {
        let opened = env.open_disk(NAME, DiskOptions { write: true, exclusive: true }).await;
        let disk = opened.map_err(|error| StoreError::io("opening", NAME, &error))?;
        let zones: Vec<ZoneDevice<'_>> =
            names.iter().map(|(id, path)| ZoneDevice { id: *id, path }).collect();
        let options = FsckOptions { cache_bytes: 8 << 20, zones: &zones, ..FsckOptions::default() };
        repair(&env, &disk, options).await
    })
}

#[cfg(test)]
mod tests {
    use mfs::{Cost, Mfs, NewInode, OpenOptions};
    use types::{ClientId, FileKind, Ino, Name, Timestamp};

    use super::*;

    /// Creates files on a device.
    fn fill(disk: &SimDisk) {
        let world = SimWorld::new(1);
        world.attach(NAME, disk);
        world.run(|env| async move {
            let options = DiskOptions { write: true, exclusive: true };
            let disk = env.open_disk(NAME, options).await.expect("the disk is attached");
            let mfs = Mfs::open(&env, &disk, OpenOptions::default()).await.expect("whole");
            for part in 0..4 {
                let name = |text: String| Name::new(text.as_bytes()).expect("a name");
                let new = NewInode {
                    kind: FileKind::Regular,
                    mode: 0o755,
                    uid: part,
                    gid: 0,
                    rdev: 0,
                    size: 0,
                    atime: Timestamp::default(),
                    mtime: Timestamp::default(),
                    ctime: Timestamp::default(),
                    btime: Timestamp::default(),
                    client: ClientId::NONE,
                    symlink: None,
                };
                let made = mfs.run(Cost::SMALL, |txn| {
                    for file in 0..30 {
                        let name = name(format!("f{part} {file}"));
                        txn.names().create(Ino::ROOT, &name, &new, None)?;
                    }
                    Ok(())
                });
                made.await.expect("room");
            }
            mfs.close().await.expect("a device that works");
        });
    }

    #[test]
    fn repair_succeeds_on_nearly_every_corrupted_device() {
        let (_, disks) = cluster::world(1);
        let older = disks.metas[0].fork();
        fill(&disks.metas[0]);
        let (mut refused, mut left, mut lost) = (0, 0, 0);
        for seed in 0..100 {
            let what = check(&disks.metas[0], &older, &disks.data, seed).expect("it is repaired");
            refused += usize::from(what.unrepairable);
            let what = what.what;
            left += usize::from(what.contains("of that is left"));
            lost += usize::from(what.contains("a write never reached"));
        }
        assert!(
            refused < 10 && left < 3,
            "of 100 devices {refused} were refused, and {left} repaired in part"
        );
        assert!(lost > 30, "only {lost} of 100 devices had a lost write");
    }

    #[test]
    fn unreadable_object_is_reported() {
        let seen = Contents::from([("inode 7".to_owned(), Err(StoreError::Refused("why".into())))]);
        assert!(whole(&seen).is_err_and(|text| text.contains("inode 7")));
    }
}
