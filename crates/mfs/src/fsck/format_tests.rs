//! Damage at rest on devices of every format: with slots of each size, and all other features that
//! last.
//!
//! | damage | kinds of block | what comes of it |
//! |---|---|---|
//! | 1 to 8 bits are flipped | all, and the label | `fsck` names the block; whoever reads is refused with its address, or told what is so |
//! | what belongs to another block is written there | all | the same |
//! | the block is as it once was, and valid | all | as [`expected_when_stale`] says |
//!
//! Groups of the log are damaged the same ways in the engine's `crash_tests`.
//!
//! Invariant of these tests: a kind of block, a size of slots or a feature that is new and of which
//! these devices have nothing fails them.

use std::collections::{BTreeMap, BTreeSet};

use env::sim::{SimDisk, SimRng};
use types::limits::BLOCK;
use types::{ClientId, FileKind, Ino, MetaBlock, Name};

use super::device_tests::{
    Shape, WRITE, blocks_in_use, contents, describe, flip_bits, in_world, is_read, name, new, open,
    populated_as, run, run_fsck,
};
use super::{ProblemKind, Subject};
use crate::format::slot::SlotSize;
use crate::golden::lasting;
use crate::handle::Mfs;
use crate::names::MapLimits;
use crate::testing::links;
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};
use engine::format::block::BlockType;
use engine::format::features::Features;

/// Blocks of each kind among which those to be damaged are chosen.
const SAMPLE: usize = 16;

/// A question to a store.
#[derive(Clone)]
enum Probe {
    /// Where a name leads.
    Name(Ino, Name),
    /// All of an inode.
    Inode(Ino),
    /// The names of a directory.
    List(Ino),
    /// What is kept for clients, and the data zones.
    Clients,
    /// A block for something new, which is not taken.
    Space,
}

type Answer = Result<String, StoreError>;

fn ask(txn: &mut Txn<'_>, probe: &Probe) -> Result<String, Stop> {
    match probe {
        Probe::Name(dir, name) => Ok(format!("{:?}", txn.names().lookup(*dir, name)?)),
        Probe::Inode(ino) => match txn.names().attr(*ino)? {
            Some(_) => describe(txn, *ino),
            None => Ok("none".to_owned()),
        },
        Probe::List(dir) => {
            let entries = txn.names().readdir(*dir, 0, 10_000)?;
            let entry = |entry: &crate::names::DirEntry| (entry.name.clone(), entry.ino);
            Ok(format!("{:?}", entries.iter().map(entry).collect::<Vec<_>>()))
        }
        Probe::Clients => {
            let mut text = format!("{:?} {:?}", txn.clients()?, txn.space().quarantines()?);
            text += &format!("{:?} {:?}", txn.names().orphans(Ino(0), 100)?, txn.space().pags()?);
            let client = ClientId(1);
            text += &format!("{:?} {:?}", txn.space().pool(client)?, txn.space().frozen(client)?);
            text += &format!("{:?} {:?}", txn.reply(client, 7)?, txn.setting(3)?);
            Ok(text)
        }
        Probe::Space => {
            let block = txn.alloc_meta(1, None)?;
            txn.free_meta(block, 1)?;
            Ok(String::new())
        }
    }
}

/// The answers of the store on a device, or why it is not opened.
fn answers(disk: &SimDisk, probes: &[Probe]) -> Result<Vec<Answer>, StoreError> {
    in_world(&disk.fork(), |env| async move {
        let device = env.open_disk("meta", WRITE).await.unwrap();
        let options = crate::open::OpenOptions { cache_bytes: 0, ..Default::default() };
        let mfs = Mfs::open(&env, &device, options).await?;
        let mut out = Vec::new();
        for probe in probes {
            out.push(mfs.run(Cost::SMALL, |txn| ask(txn, probe)).await.map(|(text, _)| text));
        }
        Ok(out)
    })
}

/// A device with everything, as it once was and as it is; closed both times.
struct Device {
    once: SimDisk,
    now: SimDisk,
    probes: Vec<Probe>,
    answers: Vec<String>,
    kinds: BTreeMap<BlockType, Vec<u64>>,
}

impl Device {
    fn new(features: Features) -> Device {
        let shape = Shape { features, maps: MapLimits::TINY, dirs: 12 };
        let once = populated_as(shape);
        let now = once.fork();
        in_world(&now, |env| async move {
            let mfs = open(&env).await;
            change(&mfs).await;
            mfs.close().await.unwrap();
        });
        assert_eq!(run_fsck(&now).problems, [], "{}", features.names());
        let probes = probes(&now);
        let answers = answers(&now, &probes).unwrap().into_iter().map(Result::unwrap).collect();
        let kinds = kinds(&now);
        Device { once, now, probes, answers, kinds }
    }

    /// `broken` is this device with damage at `at`: that is found, and nothing of it served.
    fn is_found_and_not_served(&self, broken: &SimDisk, at: u64, what: &str) {
        let block = MetaBlock(at);
        let found = run_fsck(broken).problems;
        let told = found.iter().any(|problem| {
            (problem.kind, problem.subject) == (ProblemKind::DamagedBlock, Subject::Block(block))
        });
        // One copy of the superblock is as good as two: a power cut leaves it so, too, and who
        // opens writes both anew.
        let copy = self.kinds[&BlockType::Super].contains(&at);
        assert!(told || copy && found.is_empty(), "{what}: {found:?}");
        let right = |error: &StoreError| matches!(error, StoreError::Corrupt { block: named, .. } if *named == block);
        let answers = match answers(broken, &self.probes) {
            Ok(answers) => answers,
            Err(error) => return assert!(right(&error), "{what}: {error}"),
        };
        for (answer, wanted) in answers.iter().zip(&self.answers) {
            match answer {
                Ok(text) => assert_eq!(text, wanted, "{what}"),
                Err(error) => assert!(right(error) && !copy, "{what}: {error}"),
            }
        }
    }
}

/// Everything that can be asked of a sound device.
fn probes(disk: &SimDisk) -> Vec<Probe> {
    in_world(&disk.fork(), |env| async move {
        let mfs = open(&env).await;
        let mut out = vec![Probe::Clients, Probe::Space, Probe::List(Ino::ROOT)];
        let mut dirs = vec![Ino::ROOT];
        while let Some(dir) = dirs.pop() {
            for entry in run(&mfs, |txn| txn.names().readdir(dir, 0, 10_000)).await {
                out.extend([Probe::Name(dir, entry.name), Probe::Inode(entry.ino)]);
                if entry.kind == FileKind::Directory {
                    out.push(Probe::List(entry.ino));
                    dirs.push(entry.ino);
                }
            }
        }
        out
    })
}

/// Blocks of each kind that a check reads; of the superblock both copies.
fn kinds(disk: &SimDisk) -> BTreeMap<BlockType, Vec<u64>> {
    let mut all: BTreeMap<BlockType, Vec<u64>> = BTreeMap::new();
    for (at, kind) in blocks_in_use(disk) {
        all.entry(kind).or_default().push(at);
    }
    for (kind, blocks) in &mut all {
        let step = blocks.len().div_ceil(SAMPLE);
        let sample = blocks.iter().copied().step_by(step);
        *blocks = sample.filter(|&at| *kind == BlockType::Super || is_read(disk, at)).collect();
    }
    all
}

/// Changes something in a block of each kind.
async fn change(mfs: &Mfs) {
    let entries = run(mfs, |txn| txn.names().readdir(Ino::ROOT, 0, 1000)).await;
    let mut dirs: Vec<Ino> =
        entries.iter().filter(|it| it.kind == FileKind::Directory).map(|it| it.ino).collect();
    let mut at = 0;
    while let Some(&dir) = dirs.get(at) {
        at += 1;
        let below = run(mfs, |txn| txn.names().readdir(dir, 0, 1000)).await;
        dirs.extend(below.iter().filter(|it| it.kind == FileKind::Directory).map(|it| it.ino));
        run(mfs, |txn| {
            txn.names().create(dir, &name("late".into()), &new(FileKind::Fifo), None)?;
            let file = txn.names().lookup(dir, &name("f1".into()))?.unwrap();
            txn.names().set_xattr(file, b"user.late", &[3; 20])
        })
        .await;
    }
    run(mfs, |txn| {
        let dir = txn.names().lookup(Ino::ROOT, &name("d0".into()))?.unwrap();
        let big = txn.names().lookup(dir, &name("big".into()))?.unwrap();
        for n in [0, 300, 330, 360, 600, 900, 1190] {
            txn.layouts().unmap(big, types::FileBlock(n), types::FileBlock(n + 4))?;
        }
        txn.names().set_xattr(big, b"user.long", &[2; 9000])?;
        links(txn, big, 0)?;
        txn.set_reply(ClientId(1), 7, 9, b"another")
    })
    .await;
}

/// Kinds of block that were met must be all there are; a table is a block of tests.
fn are_all(kinds: &BTreeSet<BlockType>) {
    let all = BlockType::ALL.iter().copied().filter(|kind| *kind != BlockType::Table);
    assert_eq!(*kinds, all.collect());
}

/// Does what `each` says with a device of each format, for each kind of block; the blocks are those
/// to be damaged.
fn on_each(mut each: impl FnMut(&Device, BlockType, &[u64], &str)) {
    let mut met = BTreeSet::new();
    for size in SlotSize::ALL {
        let device = Device::new(lasting(size));
        for (&kind, blocks) in device.kinds.iter().filter(|(_, blocks)| !blocks.is_empty()) {
            met.insert(kind);
            each(&device, kind, blocks, &format!("{size:?}, {kind:?}"));
        }
    }
    are_all(&met);
}

#[test]
fn flipped_bits_are_found_and_never_served_in_every_format() {
    let mut rng = SimRng::new(21);
    on_each(|device, _, blocks, what| {
        for bits in 1..=8 {
            let at = blocks[bits as usize * 5 % blocks.len()];
            let broken = device.now.fork();
            let what = format!("{what}: {}", flip_bits(&broken, at, bits, &mut rng));
            device.is_found_and_not_served(&broken, at, &what);
        }
    });
}

#[test]
fn flipped_bits_of_the_label_cost_nothing_in_every_format() {
    let mut rng = SimRng::new(22);
    for size in SlotSize::ALL {
        let disk = populated_as(Shape { features: lasting(size), maps: MapLimits::TINY, dirs: 3 });
        let before = contents(&disk);
        for bits in 1..=8 {
            let broken = disk.fork();
            flip_bits(&broken, 0, bits, &mut rng);
            let found = run_fsck(&broken).problems;
            let kinds: Vec<_> = found.iter().map(|it| (it.kind, it.subject)).collect();
            assert_eq!(kinds, [(ProblemKind::DamagedLabel, Subject::Block(MetaBlock(0)))]);
            assert_eq!(contents(&broken), before);
        }
    }
}

#[test]
fn misplaced_block_is_found_and_never_served_in_every_format() {
    on_each(|device, kind, blocks, what| {
        let at = blocks[blocks.len() / 2];
        for (&other, from) in &device.kinds {
            let Some(&from) = from.iter().find(|&&from| from != at) else { continue };
            let broken = device.now.fork();
            broken.poke(at * BLOCK as u64, &device.now.peek(from * BLOCK as u64, BLOCK));
            let what = format!("{what}: {other:?} {from} instead of {kind:?} {at}");
            device.is_found_and_not_served(&broken, at, &what);
        }
    });
}

/// What becomes of a block that is as it was before the last changes, on a device that was closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Old {
    /// There is another copy, or a later one: all is as it should be.
    Heals,
    /// It contradicts others: the check tells.
    Told,
    /// So it is where names, inodes, segments or counts changed; attributes alone contradict
    /// nothing.
    Partly,
    /// Nothing tells it from what should be there (SEMANTICS 2.8), unless the log still says how
    /// old it must be.
    Silent,
}

fn expected_when_stale(kind: BlockType) -> Old {
    use BlockType::{Bitmap, Blob, Directory, Directory1024, Directory2048, Directory4096};
    use BlockType::{Layout, NameMap, Reply, Roots, Super, Table, Tree};
    match kind {
        Super => Old::Heals,
        Roots | Bitmap | NameMap | Layout => Old::Told,
        Tree | Directory | Directory1024 | Directory2048 | Directory4096 => Old::Partly,
        Blob | Reply | Table => Old::Silent,
    }
}

#[test]
fn stale_block_is_found_or_heals_where_the_format_can_detect_it() {
    let (mut met, mut told) = (BTreeSet::new(), BTreeSet::new());
    for size in SlotSize::ALL {
        let device = Device::new(lasting(size));
        let same = |at: u64, disk: &SimDisk| disk.peek(at * BLOCK as u64, BLOCK);
        let before: BTreeMap<u64, BlockType> = blocks_in_use(&device.once).into_iter().collect();
        for (at, kind) in blocks_in_use(&device.now) {
            let old = same(at, &device.once);
            let changed = before.get(&at) == Some(&kind) && old != same(at, &device.now);
            if !changed || kind != BlockType::Super && !is_read(&device.now, at) {
                continue;
            }
            met.insert(kind);
            let broken = device.now.fork();
            broken.poke(at * BLOCK as u64, &old);
            let found = run_fsck(&broken).problems;
            let what = format!("{size:?}, {kind:?} {at} as it was");
            let given = answers(&broken, &device.probes);
            if !found.is_empty() {
                told.insert(kind);
            }
            match expected_when_stale(kind) {
                Old::Partly => {}
                Old::Told => assert!(!found.is_empty(), "{what}"),
                Old::Silent => assert_eq!(found, [], "{what}"),
                Old::Heals => {
                    let given = given.unwrap().into_iter().map(Result::unwrap);
                    assert_eq!(given.collect::<Vec<_>>(), device.answers, "{what}");
                }
            }
        }
    }
    are_all(&met);
    for kind in met {
        let wanted = matches!(expected_when_stale(kind), Old::Told | Old::Partly);
        assert_eq!(told.contains(&kind), wanted, "{kind:?}");
    }
}
