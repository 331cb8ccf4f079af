//! Media corruption of the metadata device while no server uses it: flipped bits, and misdirected
//! writes.
//!
//! Invariants:
//! - opening and reading the corrupted device gives what the intact one holds, or an error of the
//!   store that names the damage; never anything else;
//! - if fsck finds nothing, everything is intact, and a server goes on with the corrupted device.
//!   Otherwise an administrator restores an intact copy.
//!
//! Two kinds are not injected, because nothing on the device shows them: damage of the log's last
//! group, which looks like a crash during its write, and a lost write. `repairs.rs` injects lost
//! writes on a copy that no server goes on with.

use std::collections::{BTreeMap, VecDeque};

use env::sim::{SimDisk, SimRng, SimWorld};
use env::{DiskOptions, Env};
use mfs::{Cost, Mfs, OpenOptions, Stop, StoreError, Txn};
use types::limits::{BLOCK, BLOCK_U64};
use types::{FileBlock, FileKind, Ino};

use crate::cluster;
use crate::faults::{Fault, Injector};
use crate::invariant::Invariant;
use crate::repairs;

/// How often a block with any content is drawn before another one is taken.
const TRIES: u64 = 200;
/// Metadata blocks behind the log from which a block in use is drawn.
const USED: u64 = 400;
/// Blocks before the log's end that stay intact: its last group, and more.
const LAST_GROUP: u64 = 64;
/// Directory entries, or segments of a file, that one call reads.
const MANY: usize = 1000;
pub(crate) const NAME: &str = "corrupt";

/// The contents of a device by subject: as text, or the error that reading gave.
pub(crate) type Contents = BTreeMap<String, Result<String, StoreError>>;

/// Corrupted devices, by their fates.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DamageCounts {
    /// Intact for every reader: a server goes on with them.
    pub sound: u64,
    /// Readable, and the damage is reported.
    pub reported: u64,
    /// They cannot be opened.
    pub refused: u64,
    /// Copies that were repaired, or whose remaining damage is known.
    pub repaired: u64,
    /// Copies that cannot be repaired.
    pub unrepairable: u64,
}

/// The fate of a corrupted device that serves nothing false.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Sound,
    Reported,
    Refused,
}

/// The regions of a device.
struct DeviceMap {
    blocks: u64,
    log: std::ops::Range<u64>,
    /// The block of the log in which it ends.
    end: u64,
}

impl Injector {
    /// Kills the server, and corrupts the device that the next one finds.
    pub(crate) async fn damage_meta(&mut self) {
        self.cluster.kill_server();
        let good = self.cluster.meta();
        let bad = good.fork();
        match damage(&good, &bad, None, &mut self.rng).and_then(|what| {
            self.cluster.events.line(&what);
            judge(&good, &bad, self.seed).map_err(|text| format!("{what}: {text}"))
        }) {
            Err(text) => self.cluster.events.broken(Invariant::Damage, &text),
            Ok(fate) => {
                let mut damaged = self.damaged.get();
                *match fate {
                    Fate::Sound => &mut damaged.sound,
                    Fate::Reported => &mut damaged.reported,
                    Fate::Refused => &mut damaged.refused,
                } += 1;
                self.damaged.set(damaged);
                match fate {
                    Fate::Sound => self.cluster.replace(Some(bad), None),
                    _ => self
                        .cluster
                        .events
                        .line("an intact copy of the metadata device is restored"),
                }
            }
        }
        let older = self.older.replace(good.fork()).unwrap_or_else(|| good.clone());
        let nth = self.made.borrow().get(&Fault::Damage).copied().unwrap_or(0);
        match repairs::check(&good, &older, &self.cluster.data(), self.seed.wrapping_add(nth << 48))
        {
            Err(text) => self.cluster.events.broken(Invariant::Repair, &text),
            Ok(tried) => {
                let mut damaged = self.damaged.get();
                *if tried.unrepairable {
                    &mut damaged.unrepairable
                } else {
                    &mut damaged.repaired
                } += 1;
                self.damaged.set(damaged);
                self.cluster.events.line(&format!("tried on a copy: {}", tried.what));
            }
        }
        self.pause(300).await;
        self.cluster.start_server();
    }
}

/// Corrupts one to three blocks of `bad`; returns a description. With `older`, a block may get its
/// earlier content.
pub(crate) fn damage(
    good: &SimDisk,
    bad: &SimDisk,
    older: Option<&SimDisk>,
    rng: &mut SimRng,
) -> Result<String, String> {
    let map = open_copy(good, rng.next_u64(), async |env, mfs: Mfs| {
        let _ = env;
        let superblock = mfs.superblock();
        let first = superblock.log_first.0;
        let end = superblock.log_offset(mfs.last_committed().lsn) / BLOCK_U64;
        DeviceMap { blocks: superblock.blocks, log: first..first + superblock.log_blocks, end }
    });
    let map = map.map_err(|error| format!("the intact device cannot be opened: {error}"))?;
    let mut what = String::from("damage:");
    for _ in 0..[1, 1, 2, 3][rng.below(4) as usize] {
        let block = map.block_in_use(good, rng);
        if let Some(older) = older.filter(|_| rng.one_in(2)) {
            bad.poke(block * BLOCK_U64, &older.peek(block * BLOCK_U64, BLOCK));
            what += &format!(" a write never reached block {block};");
        } else if rng.one_in(3) {
            let other = map.block_in_use(good, rng);
            bad.poke(block * BLOCK_U64, &good.peek(other * BLOCK_U64, BLOCK));
            what += &format!(" block {other} was also written to block {block};");
        } else {
            let bits = rng.between(1, 8);
            for _ in 0..bits {
                bad.flip_bit(block * BLOCK_U64 + rng.below(BLOCK_U64), rng.below(8) as u8);
            }
            what += &format!(" {bits} bits of block {block} flipped;");
        }
    }
    Ok(what)
}

impl DeviceMap {
    /// A block in use whose damage is detectable.
    fn block_in_use(&self, disk: &SimDisk, rng: &mut SimRng) -> u64 {
        for _ in 0..TRIES {
            let block = match rng.below(8) {
                0 => [0, 1, 2, self.blocks - 1][rng.below(4) as usize],
                1 | 2 => rng.between(self.log.start, self.log.end - 1),
                _ => (self.log.end + rng.below(USED)).min(self.blocks - 1),
            };
            let holds = disk.peek(block * BLOCK_U64, BLOCK).iter().any(|byte| *byte != 0);
            if holds && !self.is_last_group(block) {
                return block;
            }
        }
        1
    }

    fn is_last_group(&self, block: u64) -> bool {
        let length = self.log.end - self.log.start;
        // The block in which the log ends may have been begun.
        self.log.contains(&block) && (self.end + length - block) % length <= LAST_GROUP
    }
}

/// Does reading `bad` give what `good` holds, and can a server go on with it?
fn judge(good: &SimDisk, bad: &SimDisk, seed: u64) -> Result<Fate, String> {
    let want = open_copy(good, seed, read_everything)
        .map_err(|error| format!("the intact device: {error}"))?;
    let clean = cluster::fsck(bad.fork(), seed).is_ok();
    let seen = match open_copy(bad, seed, read_everything) {
        Ok(seen) => seen,
        Err(error) if reports_damage(&error) && !clean => return Ok(Fate::Refused),
        Err(error) => return Err(format!("fsck clean: {clean}; opening the device: {error}")),
    };
    let failed = seen.values().any(Result::is_err);
    for (about, want) in &want {
        let Ok(want) = want else { return Err(format!("{about} on the intact device: {want:?}")) };
        match seen.get(about) {
            Some(Ok(seen)) if seen == want => {}
            Some(Err(error)) if reports_damage(error) && !clean => {}
            None if failed && !clean => {}
            other => {
                return Err(format!(
                    "fsck clean: {clean}; {about} is {want}; on the corrupted device {other:?}"
                ));
            }
        }
    }
    match seen.keys().find(|about| !want.contains_key(*about)) {
        Some(about) => Err(format!("{about} is missing on the intact device")),
        None => Ok(if clean { Fate::Sound } else { Fate::Reported }),
    }
}

/// Does the error report damage of the device?
pub(crate) fn reports_damage(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Corrupt { .. } | StoreError::DamagedLog { .. } | StoreError::Refused(_)
    )
}

/// Opens a copy of the device in a world of its own, read-only.
pub(crate) fn open_copy<T>(
    disk: &SimDisk,
    seed: u64,
    work: impl AsyncFnOnce(Env, Mfs) -> T,
) -> Result<T, StoreError> {
    let world = SimWorld::new(seed);
    world.attach(NAME, &disk.fork());
    world.run(|env| async move {
        let opened = env.open_disk(NAME, DiskOptions { write: false, exclusive: false }).await;
        let disk = opened.map_err(|error| StoreError::io("opening", NAME, &error))?;
        let options =
            OpenOptions { cache_bytes: 8 << 20, read_only: true, ..OpenOptions::default() };
        let mfs = Mfs::open(&env, &disk, options).await?;
        Ok(work(env, mfs).await)
    })
}

/// Reads everything that a server could serve: names, attributes, layouts, clients and their pools.
pub(crate) async fn read_everything(_: Env, mfs: Mfs) -> Contents {
    let mut seen = Contents::new();
    let mut note =
        async |about: String, body: &mut dyn FnMut(&mut Txn<'_>) -> Result<String, Stop>| {
            let read = mfs.run(Cost::READ, |txn| body(txn)).await.map(|(text, _)| text);
            seen.insert(about, read);
        };
    note("clients".to_owned(), &mut |txn| {
        let clients = txn.clients()?;
        let pools: Result<Vec<_>, Stop> =
            clients.iter().map(|(client, _)| txn.space().pool(*client)).collect();
        Ok(format!("{clients:?} {:?} {:?}", pools?, txn.space().pags()?))
    })
    .await;
    let mut dirs = VecDeque::from([Ino::ROOT]);
    while let Some(dir) = dirs.pop_front() {
        let mut found = Vec::new();
        note(format!("directory {dir}"), &mut |txn| {
            found.clear();
            let (mut text, mut after) = (String::new(), 0);
            loop {
                let part = txn.names().readdir(dir, after, MANY)?;
                let Some(last) = part.last() else { return Ok(text) };
                after = last.cookie;
                for entry in &part {
                    text += &format!("{:?} {} {:?}; ", entry.name, entry.ino, entry.kind);
                    found.push((entry.ino, entry.kind));
                }
            }
        })
        .await;
        for (ino, kind) in found {
            if kind == FileKind::Directory {
                dirs.push_back(ino);
            }
            note(format!("inode {ino}"), &mut |txn| inode(txn, ino, kind)).await;
        }
    }
    seen
}

fn inode(txn: &mut Txn<'_>, ino: Ino, kind: FileKind) -> Result<String, Stop> {
    let mut text = format!("{:?} {:?}", txn.names().attr(ino)?, txn.names().xattrs(ino)?);
    match kind {
        FileKind::Regular => {
            text += &format!("{:?}", txn.layouts().layout(ino, FileBlock(0), MANY)?)
        }
        FileKind::Symlink => text += &format!("{:?}", txn.names().symlink(ino)?),
        _ => {}
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zones::Sizes;

    /// Judges a changed copy of the metadata device of a fresh file system.
    fn changed(change: impl Fn(&SimDisk)) -> Result<Fate, String> {
        let (_, disks) = cluster::world(1);
        let bad = disks.metas[0].fork();
        change(&bad);
        judge(&disks.metas[0], &bad, 1)
    }

    fn flip(block: u64) -> impl Fn(&SimDisk) {
        move |disk| disk.flip_bit(block * BLOCK_U64 + 100, 3)
    }

    #[test]
    fn corruption_that_is_healed_or_unused_is_sound() {
        assert_eq!(changed(|_| ()), Ok(Fate::Sound));
        let end = Sizes::default().meta - 1;
        assert_eq!(changed(flip(end)), Ok(Fate::Reported), "the other copy of the label will do");
        let last = end - 1;
        assert_eq!(
            changed(flip(last)),
            Ok(Fate::Sound),
            "the other copy of the superblock will do"
        );
        assert_eq!(changed(flip(last - 1)), Ok(Fate::Sound), "a block that is free");
    }

    #[test]
    fn corruption_that_nothing_heals_is_refused() {
        // The bitmap.
        assert_eq!(changed(flip(3 + 1024)), Ok(Fate::Refused));
    }

    #[test]
    fn device_that_reads_differently_is_a_violation() {
        let other = |disk: &SimDisk| {
            let world = SimWorld::new(1);
            world.attach(NAME, disk);
            world.run(|env| async move {
                let options = DiskOptions { write: true, exclusive: true };
                let disk = env.open_disk(NAME, options).await.expect("the disk is attached");
                let mfs = Mfs::open(&env, &disk, OpenOptions::default()).await.expect("whole");
                mfs.run(Cost::SMALL, |txn| txn.new_client(b"unknown")).await.expect("room");
                mfs.close().await.expect("a device that works");
            });
        };
        assert!(changed(other).is_err());
    }
}
