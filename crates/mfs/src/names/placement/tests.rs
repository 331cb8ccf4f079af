//! Where content lies, and that blocks allocated ahead are taken back.

use env::DiskOptions;
use env::sim::SimWorld;
use types::{FileKind, Name, Uuid};

use super::*;
use crate::fsck::ProblemKind;
use crate::mkfs::FormatOptions;
use crate::names::NewInode;
use crate::open::OpenOptions;
use crate::testing::{formatted_in, new_inode, now};
use crate::txn::Txn;
use engine::format::features::Features;
use types::Fault;

fn create(mfs: &Mfs, dir: Ino, text: &str, kind: FileKind, uid: u32) -> Result<Ino, StoreError> {
    let name = Name::new(text.as_bytes()).unwrap();
    now(mfs.run(Cost::SMALL, |txn| {
        txn.names().create(dir, &name, &NewInode { uid, ..new_inode(kind) }, None)
    }))
    .map(|done| done.0)
}

fn mkdir(mfs: &Mfs, dir: Ino, text: &str, uid: u32) -> Ino {
    let made = create(mfs, dir, text, FileKind::Directory, uid).unwrap();
    create(mfs, made, "a file", FileKind::Regular, uid).unwrap();
    made
}

/// First block and number of allocated blocks of a directory's content.
fn content(mfs: &Mfs, dir: Ino) -> (u64, u32) {
    let found = now(mfs.run(Cost::READ, |txn| {
        let number = txn.names().read_chunks(dir)?[0];
        let chunk = txn.names().chunk(number)?.clone();
        Ok((chunk.runs[0].start.0, chunk.allocated()))
    }));
    found.unwrap().0
}

#[test]
fn trees_of_users_lie_apart_and_siblings_together() {
    let mfs = formatted_in(100_000);
    let region = 100_000 / REGION_SHARE;
    let tops: Vec<Ino> = (0..8).map(|n| mkdir(&mfs, Ino::ROOT, &format!("top{n}"), 0)).collect();
    let users: Vec<Ino> = (1..9).map(|n| mkdir(&mfs, tops[0], &format!("user{n}"), n)).collect();
    let mut starts: Vec<u64> = Vec::new();
    starts.extend(tops.iter().chain(&users).map(|&dir| content(&mfs, dir).0));
    starts.sort_unstable();
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= region), "{starts:?}");
    // Users create directories in turns: those of each user lie together, in its region.
    for n in 0..20 {
        for (user, &dir) in users.iter().enumerate() {
            mkdir(&mfs, dir, &format!("dir{n}"), user as u32 + 1);
        }
    }
    for &dir in &users {
        let (start, _) = content(&mfs, dir);
        let subs: Vec<u64> = (0..20)
            .map(|n| {
                let name = Name::new(format!("dir{n}").as_bytes()).unwrap();
                let found =
                    now(mfs.run(Cost::READ, |txn| txn.names().lookup(dir, &name))).unwrap().0;
                content(&mfs, found.unwrap()).0
            })
            .collect();
        assert!(subs.windows(2).all(|pair| pair[1] == pair[0] + u64::from(FIRST)), "{subs:?}");
        assert!((start..start + region).contains(&subs[19]), "{start}: {subs:?}");
    }
}

#[test]
fn siblings_of_several_users_lie_together_by_user() {
    let mfs = formatted_in(100_000);
    let shared = mkdir(&mfs, Ino::ROOT, "shared", 0);
    let mut starts = [const { Vec::new() }; 4];
    for n in 0..20 {
        for (user, starts) in starts.iter_mut().enumerate() {
            let dir = mkdir(&mfs, shared, &format!("user{user}-{n}"), user as u32 + 1);
            starts.push(content(&mfs, dir).0);
        }
    }
    for of_user in &starts {
        let together = of_user.windows(2).all(|pair| pair[1] == pair[0] + u64::from(FIRST));
        assert!(together, "{of_user:?}");
    }
}

#[test]
fn directories_lie_in_order_or_spread_out_on_request() {
    let placed = |policy| {
        let mfs = formatted_in(200_000);
        mfs.volatile_state_mut().placement.policy = policy;
        let tops: Vec<Ino> = (0..4).map(|n| mkdir(&mfs, Ino::ROOT, &format!("t{n}"), n)).collect();
        let all = (0..8).map(|n| mkdir(&mfs, tops[n % 4], &format!("d{n}"), n as u32 % 4));
        all.map(|dir| content(&mfs, dir).0).collect::<Vec<u64>>()
    };
    let in_order = placed(DirPlacement::InOrder);
    assert!(in_order.windows(2).all(|pair| pair[1] == pair[0] + u64::from(FIRST)), "{in_order:?}");
    let groups: Vec<u64> = placed(DirPlacement::Spread).iter().map(|at| at / GROUP).collect();
    let count = 200_000u64.div_ceil(GROUP);
    assert!(groups.windows(2).all(|pair| pair[1] == (pair[0] + 1) % count), "{groups:?}");
}

#[test]
fn small_directory_is_one_run() {
    let mfs = formatted_in(100_000);
    let dirs: Vec<Ino> = (0..10).map(|n| mkdir(&mfs, Ino::ROOT, &format!("dir{n}"), 0)).collect();
    for n in 0..31 {
        for &dir in &dirs {
            create(&mfs, dir, &format!("file{n}"), FileKind::Regular, 0).unwrap();
        }
    }
    for dir in dirs {
        assert_eq!(content(&mfs, dir).1, FIRST, "32 entries");
    }
}

/// Fills the store with files in `dirs` directories in turns; returns the number that fit.
fn fill(mfs: &Mfs, dirs: u32) -> u64 {
    let mut made = Vec::new();
    let mut files = 0;
    for n in 0..dirs {
        match create(mfs, Ino::ROOT, &format!("dir{n}"), FileKind::Directory, n) {
            Ok(dir) => made.push(dir),
            Err(error) => panic!("{error}"),
        }
    }
    loop {
        for &dir in &made {
            match create(mfs, dir, &format!("file{files}"), FileKind::Regular, 0) {
                Ok(_) => files += 1,
                Err(StoreError::Fault(Fault::NoSpace)) => return files,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn device_is_full_only_when_its_blocks_hold_entries() {
    for dirs in [1, 40, 300] {
        let mfs = formatted_in(8000);
        let (total, free) = now(mfs.run(Cost::READ, |txn| Ok(txn.meta_space()))).unwrap().0;
        let room = (free - mfs.usage().blocks_set_aside) * 8;
        let files = fill(&mfs, dirs);
        // Not used: the table's nodes, and in each directory a block that is not full.
        let missing = u64::from(dirs) * 8 + total;
        assert!(files + missing >= room * 95 / 100, "{dirs}: {files} files, room for {room}");
        // A full device is reported at once, without reading every directory each time.
        let before = mfs.volatile_state().placement.nothing_preallocated;
        assert!(before, "trimming read all chunks, and nothing is preallocated");
    }
}

#[test]
fn directory_without_room_for_a_map_fills_the_device_without_one() {
    for blocks in [2100, 2160, 2210, 2230, 2300] {
        let mfs = formatted_in(blocks);
        let files = fill(&mfs, 1);
        let left = now(mfs.run(Cost::READ, |txn| Ok(txn.meta_space().1))).unwrap().0;
        let kept = mfs.usage().blocks_set_aside;
        assert!(left <= kept + 1, "{blocks}: {files} files, {left} blocks left of {kept}");
    }
}

#[test]
fn preallocated_blocks_are_trimmed_and_all_names_still_found() {
    let mfs = formatted_in(8000);
    let dirs: Vec<Ino> = (0..500).map(|n| mkdir(&mfs, Ino::ROOT, &format!("dir{n}"), 0)).collect();
    let free = || now(mfs.run(Cost::READ, |txn| Ok(txn.meta_space().1))).unwrap().0;
    let before = free();
    let mut back = 0;
    while let blocks @ 1.. = now(trim(&mfs)).unwrap() {
        back += blocks;
    }
    // Each has one entry, in one block; the root may have blocks allocated ahead, too.
    let wanted = 500 * u64::from(FIRST - 1);
    assert!((wanted..wanted + u64::from(RUN_MAX)).contains(&back), "{back}");
    assert!(free() - before <= back && free() - before > back * 9 / 10);
    assert_eq!(now(trim(&mfs)).unwrap(), 0);
    for (n, &dir) in dirs.iter().enumerate() {
        for file in 0..20 {
            create(&mfs, dir, &format!("more{file}"), FileKind::Regular, 0).unwrap();
        }
        assert!(content(&mfs, dir).1 >= 3, "directory {n} grows again");
    }
    // This test does not maintain the link count of the root.
    let problems = now(crate::fsck::check(&mfs)).unwrap().problems;
    assert!(problems.iter().all(|it| it.kind == ProblemKind::WrongLinkCount), "{problems:?}");
}

/// A store on a device with only so many free blocks beside the reserved ones. Directories have
/// blocks allocated ahead that are not in the cache.
async fn short_of_space(env: &env::Env, left: u64) -> Mfs {
    let disk = env.open_disk("meta", DiskOptions { write: true, exclusive: false }).await.unwrap();
    let options = FormatOptions {
        name: "home".to_owned(),
        uuid: Uuid([9; 16]),
        log_bytes: 8 << 20,
        pags: vec![],
        features: Features::NONE,
        force: false,
    };
    Mfs::format(env, &disk, &options).await.unwrap();
    let mfs = Mfs::open(env, &disk, OpenOptions::default()).await.unwrap();
    for n in 0..60 {
        let make = |parent: Ino, text: &str, kind: FileKind| {
            let (mfs, name) = (mfs.clone(), Name::new(text.as_bytes()).unwrap());
            async move {
                let new = new_inode(kind);
                mfs.run(Cost::SMALL, |txn| txn.names().create(parent, &name, &new, None))
                    .await
                    .unwrap()
                    .0
            }
        };
        let dir = make(Ino::ROOT, &format!("dir{n}"), FileKind::Directory).await;
        make(dir, "a file", FileKind::Regular).await;
    }
    let take = |txn: &mut Txn<'_>| {
        let least = txn.set_aside() + left;
        while txn.meta_space().1 > least && txn.alloc_meta(1, None).is_ok() {}
        Ok(())
    };
    mfs.run(Cost::SMALL, take).await.unwrap();
    mfs.close().await.unwrap();
    Mfs::open(env, &disk, OpenOptions::default()).await.unwrap()
}

#[test]
fn concurrent_transactions_share_the_blocks_that_one_trim_frees() {
    const MANY: usize = 12;
    let world = SimWorld::new(1);
    world.disk("meta", 64 << 20);
    world.run(|env| async move {
        let mfs = short_of_space(&env, 0).await;
        let start = |mfs: Mfs| {
            env.spawn_join(async move { mfs.run(Cost::SMALL, |txn| txn.alloc_meta(1, None)).await })
        };
        let tasks: Vec<_> = (0..MANY).map(|_| start(mfs.clone())).collect();
        let mut got = std::collections::BTreeSet::new();
        for task in tasks {
            got.insert(task.await.expect("a block that a directory had preallocated").0);
        }
        assert_eq!(got.len(), MANY);
    });
}

async fn make(mfs: &Mfs, dir: Ino, text: &str) -> Result<Ino, StoreError> {
    let name = Name::new(text.as_bytes()).unwrap();
    let new = new_inode(FileKind::Regular);
    mfs.run(Cost::SMALL, |txn| txn.names().create(dir, &name, &new, None)).await.map(|made| made.0)
}

async fn unmake(mfs: &Mfs, dir: Ino, text: &str) {
    let name = Name::new(text.as_bytes()).unwrap();
    let freed =
        mfs.run(Cost::DELETE, |txn| txn.names().free_with_name(dir, &name)).await.unwrap().0;
    assert!(freed.is_some(), "{text}");
}

async fn found(mfs: &Mfs, text: &str) -> Ino {
    let name = Name::new(text.as_bytes()).unwrap();
    mfs.run(Cost::READ, |txn| txn.names().lookup(Ino::ROOT, &name)).await.unwrap().0.unwrap()
}

#[test]
fn directory_that_cannot_grow_waits_for_its_released_slots() {
    let world = SimWorld::new(1);
    world.disk("meta", 64 << 20);
    world.run(|env| async move {
        let mfs = short_of_space(&env, 0).await;
        let dir = found(&mfs, "dir7").await;
        let mut files = 0;
        while make(&mfs, dir, &format!("file{files}")).await.is_ok() {
            files += 1;
        }
        assert!(files > 100, "{files}");
        for round in 0..20 {
            mfs.sync().await.unwrap();
            let number = mfs.last_committed();
            for n in 0..3 {
                unmake(&mfs, dir, &format!("file{}", 3 * round + n)).await;
            }
            assert_eq!(mfs.last_committed(), number, "the release is not durable yet");
            for n in 0..3 {
                let made = make(&mfs, dir, &format!("new{round}-{n}")).await;
                made.unwrap_or_else(|error| panic!("{n} of 3, {round}: {error}"));
            }
            let more = make(&mfs, dir, "one more").await.unwrap_err();
            assert_eq!(more.fault(), Fault::NoSpace);
        }
    });
}
