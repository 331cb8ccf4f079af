//! Whoever looks content through, and ahead of what, the check finds what it finds slot by slot.

use std::cell::Cell;

use env::DiskOptions;
use env::sim::{DiskModel, Flash, SimDisk, SimWorld};
use types::{
    Duration, FileBlock, FileKind, Ino, MetaBlock, PagBlock, PagId, Segment, SegmentState,
};

use super::tests::name;
use super::{FsckOptions, ProblemKind, Report, check, fsck};
use crate::format::segment::{segment_key, segment_value};
use crate::format::slot::SlotSize;
use crate::format::slot_size::SlotFeatures;
use crate::handle::Mfs;
use crate::names::NewInode;
use crate::testing::{formatted_for_images, image_of, links, new_inode, now, random, run};
use crate::trees::{MOVED, SEGMENTS};
use crate::txn::Txn;
use engine::error::Stop;
use engine::format::features::{Feature, Features};

std::thread_local! {
    /// Does the check look at every slot itself?
    pub(super) static ONE_BY_ONE: Cell<bool> = const { Cell::new(false) };
}

/// The report of a device, and how long the check took.
fn timed(disk: &SimDisk, jobs: usize) -> (Report, Duration) {
    let world = SimWorld::new(jobs as u64);
    world.attach("meta", disk);
    world.run(|env| async move {
        let disk = env.open_disk("meta", DiskOptions::default()).await.unwrap();
        let options = FsckOptions { cache_bytes: 0, jobs, ..FsckOptions::USUAL };
        let begin = env.now();
        let report = fsck(&env, &disk, options).await.unwrap();
        (report, env.now().since(begin))
    })
}

/// The report of a device, which must be the same with any number of threads, and slot by slot.
pub(super) fn same_report(disk: &SimDisk) -> Report {
    ONE_BY_ONE.set(true);
    let (wanted, _) = timed(disk, 1);
    ONE_BY_ONE.set(false);
    for jobs in [1, 2, 4] {
        assert_eq!(timed(disk, jobs).0, wanted, "{jobs} threads");
    }
    wanted
}

/// The report of a store in memory, which must be that of a device with the same content.
pub(super) fn checked(mfs: &Mfs) -> Report {
    let report = now(check(mfs)).unwrap();
    let on_device = same_report(&image_of(mfs));
    let found = |report: &Report| -> Vec<_> {
        report.problems.iter().map(|problem| (problem.kind, problem.subject)).collect()
    };
    assert_eq!(found(&on_device), found(&report));
    assert_eq!((on_device.counts, on_device.omitted), (report.counts, report.omitted));
    report
}

/// Directories with files of every sort: with content, in segments of the slot, of the tree and of
/// both, renamed, with two names, orphans; and what is no file.
fn mixed(slots: SlotSize) -> Mfs {
    const DIRS: u64 = 40;
    let features = Features::NONE.with(Feature::INLINE_DATA).with(Feature::LAYOUT_BLOCKS);
    let mfs = formatted_for_images(20_000, features.with_slots(slots));
    let client = run(&mfs, |txn| txn.new_client(b"client"));
    let (pag, addr, _) = run(&mfs, |txn| txn.space().grant(client, Some(PagId(0)), 6000))[0];
    let mut next = addr.0;
    let mut seed = 5;
    let mut dirs = vec![Ino::ROOT];
    for n in 0..DIRS {
        let parent = dirs[random(&mut seed, dirs.len() as u64) as usize];
        let dir = run(&mfs, |txn| {
            links(txn, parent, 1)?;
            txn.names().create(
                parent,
                &name(&format!("d{n}")),
                &new_inode(FileKind::Directory),
                None,
            )
        });
        dirs.push(dir);
    }
    let mut segment = |txn: &mut Txn<'_>, ino: Ino, at: u64| -> Result<(), Stop> {
        next += 1;
        let (file, addr, state) = (FileBlock(at), PagBlock(next), SegmentState::Written);
        txn.layouts().map(ino, client, Segment { file, len: 1, pag, addr, state })
    };
    for n in 0..25 * DIRS {
        let dir = dirs[random(&mut seed, dirs.len() as u64) as usize];
        let other = dirs[random(&mut seed, dirs.len() as u64) as usize];
        let [first, second] = ["f", "g"].map(|text| name(&format!("{text}{n}")));
        let what = random(&mut seed, 12);
        let sort = match what {
            0 => FileKind::Fifo,
            1 => FileKind::Symlink,
            _ => FileKind::Regular,
        };
        let target: &[u8] = if n.is_multiple_of(2) { b"target" } else { &[b't'; 900] };
        let new = NewInode { symlink: (what == 1).then_some(target), ..new_inode(sort) };
        let ino = run(&mfs, |txn| txn.names().create(dir, &first, &new, None));
        let segments = match what {
            2..5 => 0,
            5..8 => 1 + random(&mut seed, 4),
            // 350 are more than slot and layout blocks hold.
            8 if n.is_multiple_of(9) => 350,
            8 => 30,
            _ => 0,
        };
        for at in 0..segments {
            run(&mfs, |txn| segment(txn, ino, 2 * at));
        }
        run(&mfs, |txn| match what {
            2..5 => {
                let size = 1 + 60 * (n % 50);
                let attr = txn.names().attr(ino)?.unwrap();
                txn.names().set_attr(&types::Attr { size, ..attr })?;
                txn.layouts().set_content(ino, &vec![7; size as usize])
            }
            9 => txn.names().rename(dir, &first, other, &second).map(drop),
            10 => {
                txn.names().link(other, &second, ino)?;
                links(txn, ino, 1)
            }
            11 => txn.names().set_xattr(ino, b"user.x", &vec![1; 1 + 50 * (n as usize % 80)]),
            _ => Ok(()),
        });
    }
    for _ in 0..20 {
        run(&mfs, |txn| txn.names().create_orphan(&new_inode(FileKind::Regular), None));
    }
    mfs.forget_indexes();
    mfs
}

#[test]
fn files_of_every_sort_are_sound_with_any_number_of_threads() {
    // In larger slots files have so many segments that they are fragments of their directories.
    for slots in [SlotSize::Bytes512, SlotSize::Bytes1024] {
        let report = checked(&mixed(slots));
        assert_eq!(report.problems, []);
        assert_eq!(report.counts.directories, 41);
        assert!(report.counts.segments > 3000 && report.counts.names > 1000, "{report:?}");
    }
}

/// A directory of ordinary files, the even ones with content, the odd ones with a segment; in a
/// file system of them alone.
fn ordinary() -> (Mfs, Vec<Ino>) {
    let mfs = formatted_for_images(20_000, Features::NONE.with(Feature::INLINE_DATA));
    let client = run(&mfs, |txn| txn.new_client(b"client"));
    let (pag, addr, _) = run(&mfs, |txn| txn.space().grant(client, Some(PagId(0)), 100))[0];
    let dir = run(&mfs, |txn| {
        links(txn, Ino::ROOT, 1)?;
        txn.names().create(Ino::ROOT, &name("dir"), &new_inode(FileKind::Directory), None)
    });
    let file = |n: u64| {
        run(&mfs, |txn| {
            let ino = txn.names().create(
                dir,
                &name(&format!("{n}")),
                &new_inode(FileKind::Regular),
                None,
            )?;
            let attr = txn.names().attr(ino)?.unwrap();
            txn.names().set_attr(&types::Attr { size: 4096, ..attr })?;
            if n.is_multiple_of(2) {
                txn.layouts().set_content(ino, b"content")?;
                return Ok(ino);
            }
            let (file, addr, state) = (FileBlock(0), PagBlock(addr.0 + n), SegmentState::Written);
            txn.layouts().map(ino, client, Segment { file, len: 1, pag, addr, state })?;
            Ok(ino)
        })
    };
    let files = (0..60).map(file).collect();
    mfs.forget_indexes();
    assert_eq!(checked(&mfs).problems, []);
    (mfs, files)
}

/// Plants something among ordinary files, and expects these findings of any number of threads.
fn planted(wanted: &[ProblemKind], plant: impl Fn(&[Ino], &mut Txn<'_>) -> Result<(), Stop>) {
    let (mfs, files) = ordinary();
    run(&mfs, |txn| plant(&files, txn));
    mfs.forget_indexes();
    let found = checked(&mfs).problems;
    let kinds: Vec<ProblemKind> = found.iter().map(|problem| problem.kind).collect();
    assert!(wanted.iter().all(|kind| kinds.contains(kind)), "{wanted:?} in {found:?}");
}

#[test]
fn faults_among_ordinary_files_are_found_with_any_number_of_threads() {
    use ProblemKind::{BadContent, DuplicateInode, MisplacedInode, StaleMove};
    let copy = |from: Ino, to: (MetaBlock, u32), txn: &mut Txn<'_>| {
        let (_, slot) = txn.names().locate_live(from)?;
        slot.store(txn.write(to.0)?, to.1);
        Ok::<_, Stop>(())
    };
    // A number again, in a slot before its own and in one behind it.
    for (from, to) in [(9, 3), (3, 9)] {
        planted(
            &[DuplicateInode, MisplacedInode][..if from > to { 2 } else { 1 }],
            |files, txn| {
                let (spot, _) = txn.names().locate_live(files[to])?;
                copy(files[from], (spot.block, spot.place.index()), txn)
            },
        );
    }
    // In a directory that is read before.
    planted(&[DuplicateInode, MisplacedInode], |files, txn| {
        let spot = txn.names().take_slot(Ino::ROOT)?;
        copy(files[9], (spot.block, spot.place.index()), txn)
    });
    planted(&[StaleMove], |files, txn| {
        MOVED.insert(txn, &files[9].0.to_be_bytes(), &7u64.to_le_bytes())?;
        Ok(())
    });
    planted(&[BadContent], |files, txn| {
        let state = SegmentState::Written;
        let (file, addr, pag) = (FileBlock(0), PagBlock(5000), PagId(1));
        let segment = Segment { file, len: 1, pag, addr, state };
        SEGMENTS.insert(txn, &segment_key(files[8], 0), &segment_value(&segment))?;
        Ok(())
    });
}

#[test]
fn changed_byte_gives_the_same_report_with_any_number_of_threads() {
    let (mfs, files) = ordinary();
    let mut seed = 3;
    let mut findings = 0;
    for round in 0..150 {
        let ino = files[random(&mut seed, 60) as usize];
        let (spot, _) = run(&mfs, |txn| txn.names().locate_live(ino));
        let at = match round {
            0..136 => round,
            _ => 136 + random(&mut seed, 40) as usize,
        };
        let at = 32 + 508 * spot.place.index() as usize + at;
        let flip = 1 << random(&mut seed, 8);
        let change = |txn: &mut Txn<'_>| {
            txn.write(spot.block)?[at] ^= flip;
            Ok(())
        };
        run(&mfs, change);
        mfs.forget_indexes();
        findings += checked(&mfs).problems.len();
        run(&mfs, change);
    }
    assert!(findings > 60, "{findings}");
}

#[test]
fn directories_of_one_block_are_read_concurrently() {
    const DIRS: u32 = 300;
    let mfs = formatted_for_images(20_000, Features::NONE);
    for n in 0..DIRS {
        run(&mfs, |txn| {
            links(txn, Ino::ROOT, 1)?;
            let new = new_inode(FileKind::Directory);
            let dir = txn.names().create(Ino::ROOT, &name(&format!("d{n}")), &new, None)?;
            txn.names().create(dir, &name("file"), &new_inode(FileKind::Regular), None)
        });
    }
    let disk = image_of(&mfs);
    let flash = Flash::nvme();
    let one_by_one = flash.latency.0 * DIRS;
    disk.set_model(DiskModel::Flash(flash));
    for jobs in [1, 4] {
        let (report, took) = timed(&disk, jobs);
        assert_eq!((report.problems, report.counts.directories), (Vec::new(), 1 + u64::from(DIRS)));
        assert!(took < one_by_one / 2, "{jobs} threads: {took:?}");
    }
}

#[test]
fn read_error_ends_the_check_with_any_number_of_threads() {
    let mfs = mixed(SlotSize::default());
    let disk = image_of(&mfs);
    // In the content of the root, which is read before its turn.
    let home = run(&mfs, |txn| {
        let first = txn.names().readdir(Ino::ROOT, 0, 1)?[0].ino;
        Ok(txn.names().locate_live(first)?.0.block)
    });
    disk.make_unreadable(home.0 * 4096..home.0 * 4096 + 4096);
    for jobs in [1, 2, 4] {
        let world = SimWorld::new(jobs);
        world.attach("meta", &disk);
        let ended = world.run(|env| async move {
            let disk = env.open_disk("meta", DiskOptions::default()).await.unwrap();
            let options = FsckOptions { jobs: jobs as usize, ..FsckOptions::default() };
            fsck(&env, &disk, options).await
        });
        assert!(matches!(ended, Err(engine::error::StoreError::Io { .. })), "{ended:?}");
    }
}
