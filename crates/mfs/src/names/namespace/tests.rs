//! The index has exactly the existing directories, leads to them without reading their parents'
//! content, and is searched from where the last search ended.

use crate::volatile::searches::SearchCounts;
use std::collections::{BTreeMap, BTreeSet};

use env::sim::{DiskModel, HardDisk, SimDisk, SimRng, SimWorld};
use env::{DiskOptions, Env};
use types::{Attr, ClientId, FileKind, Name, Uuid};

use super::*;
use crate::fsck::check;
use crate::handle::Mfs;
use crate::mkfs::FormatOptions;
use crate::names::{NewInode, Within};
use crate::open::OpenOptions;
use crate::testing::{formatted, formatted_in, new_inode, now, run};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::format::features::Features;

const WRITE: DiskOptions = DiskOptions { write: true, exclusive: false };

fn name(text: impl AsRef<[u8]>) -> Name {
    Name::new(text.as_ref()).unwrap()
}

fn make(txn: &mut Txn<'_>, dir: Ino, text: &str, (uid, client): (u32, u64)) -> Result<Ino, Stop> {
    let new = NewInode { uid, client: ClientId(client), ..new_inode(FileKind::Directory) };
    link_count(txn, dir, 1)?;
    txn.names().create(dir, &name(text), &new, None)
}

fn link_count(txn: &mut Txn<'_>, ino: Ino, change: i32) -> Result<(), Stop> {
    let attr = txn.names().attr(ino)?.ok_or(Stop::Fault(types::Fault::Stale))?;
    txn.names().set_attr(&Attr { nlink: attr.nlink.saturating_add_signed(change), ..attr })
}

fn mkdir(mfs: &Mfs, dir: Ino, text: &str, uid: u32, client: u64) -> Ino {
    run(mfs, |txn| make(txn, dir, text, (uid, client)))
}

/// The subdirectories that the index has, read in batches.
fn listed(mfs: &Mfs, dir: Ino, batch: usize) -> Vec<Ino> {
    let (mut out, mut after) = (Vec::new(), None);
    loop {
        let some = run(mfs, |txn| txn.names().subdirectories(dir, after, batch));
        out.extend(some.iter().map(|sub| sub.ino));
        if some.len() < batch {
            return out;
        }
        after = some.last().map(|sub| sub.cursor);
    }
}

/// The subdirectories that the content has.
fn found(mfs: &Mfs, dir: Ino) -> BTreeSet<Ino> {
    let entries = run(mfs, |txn| txn.names().readdir(dir, 0, usize::MAX));
    let dirs = entries.into_iter().filter(|entry| entry.kind == FileKind::Directory);
    dirs.map(|entry| entry.ino).collect()
}

fn assert_clean(mfs: &Mfs) {
    assert_eq!(now(check(mfs)).unwrap().problems, []);
}

#[test]
fn namespace_index_follows_mkdir_rmdir_rename_and_exchange() {
    let mfs = formatted();
    let (a, b) = (mkdir(&mfs, Ino::ROOT, "a", 1, 1), mkdir(&mfs, Ino::ROOT, "b", 1, 2));
    let sub = mkdir(&mfs, a, "sub", 1, 1);
    let other = mkdir(&mfs, b, "other", 2, 1);
    run(&mfs, |txn| txn.names().create(a, &name("file"), &new_inode(FileKind::Regular), None));
    let is = |dir, subs: &[Ino]| {
        assert_clean(&mfs);
        assert_eq!(listed(&mfs, dir, 3), subs);
    };
    is(Ino::ROOT, &[a, b]);
    is(a, &[sub]);
    run(&mfs, |txn| txn.names().exchange((a, &name("sub")), (b, &name("other"))));
    is(a, &[other]);
    is(b, &[sub]);
    // With a file: only one of them is in the index.
    run(&mfs, |txn| {
        txn.names().exchange((a, &name("file")), (b, &name("other")))?;
        link_count(txn, a, 1)?;
        link_count(txn, b, -1)
    });
    is(a, &[sub, other]);
    is(b, &[]);
    run(&mfs, |txn| {
        txn.names().rename(a, &name("sub"), b, &name("moved"))?;
        txn.names().rename(a, &name("file"), a, &name("again"))?;
        link_count(txn, a, -1)?;
        link_count(txn, b, 1)
    });
    is(a, &[sub]);
    is(b, &[other]);
    run(&mfs, |txn| {
        txn.names().remove_name(b, &name("moved"))?;
        link_count(txn, b, -1)?;
        link_count(txn, other, -2)
    });
    is(b, &[]);
    run(&mfs, |txn| while_steps(txn, other));
    is(a, &[sub]);
}

fn while_steps(txn: &mut Txn<'_>, ino: Ino) -> Result<(), Stop> {
    while !txn.names().free_inode_step(ino, 3)? {}
    Ok(())
}

#[test]
fn namespace_index_equals_the_content_after_random_changes() {
    for seed in 1..4 {
        let mfs = formatted_in(60_000);
        let mut rng = SimRng::new(seed);
        let mut dirs = vec![(Ino::ROOT, Ino::NONE, String::new())];
        for n in 0..3000u32 {
            let at = rng.below(dirs.len() as u64) as usize;
            let parent = dirs[at].0;
            let text = format!("d{n}");
            match rng.below(8) {
                0 if at > 0 && found(&mfs, parent).is_empty() => {
                    let (ino, within, old) = dirs.swap_remove(at);
                    run(&mfs, |txn| {
                        txn.names().remove_name(within, &name(&old))?;
                        link_count(txn, within, -1)?;
                        link_count(txn, ino, -2)?;
                        while_steps(txn, ino)
                    });
                }
                1 => {
                    let other = rng.below(dirs.len() as u64) as usize;
                    let (ino, within, old) = dirs[other].clone();
                    let below = run(&mfs, |txn| txn.names().is_within(parent, ino));
                    if other == 0 || below == Within::Yes {
                        continue;
                    }
                    run(&mfs, |txn| {
                        txn.names().rename(within, &name(&old), parent, &name(&text))?;
                        link_count(txn, within, -1)?;
                        link_count(txn, parent, 1)
                    });
                    dirs[other] = (ino, parent, text);
                }
                _ => {
                    let (uid, client) = (rng.below(3) as u32, rng.below(3));
                    dirs.push((mkdir(&mfs, parent, &text, uid, client), parent, text));
                }
            }
        }
        for (dir, ..) in &dirs {
            let subs = listed(&mfs, *dir, 7);
            assert_eq!(subs.iter().copied().collect::<BTreeSet<_>>(), found(&mfs, *dir));
            assert_eq!(subs.len(), found(&mfs, *dir).len(), "each once");
        }
        assert_clean(&mfs);
    }
}

#[test]
fn failed_transaction_leaves_the_search_finger_unchanged() {
    let mfs = formatted_in(60_000);
    let top = mkdir(&mfs, Ino::ROOT, "top", 1, 1);
    for n in 0..5 {
        // Splits nodes, and then fails.
        let failed = now(mfs.run(Cost::STEP, |txn| {
            for m in 0..400 {
                make(txn, top, &format!("lost{m}"), (1, 1))?;
            }
            Err::<(), _>(Stop::Fault(types::Fault::Exists))
        }));
        assert!(failed.is_err());
        mkdir(&mfs, top, &format!("d{n}"), 1, 1);
    }
    assert_eq!(listed(&mfs, top, 100).len(), 5);
    assert_clean(&mfs);
}

fn counts(mfs: &Mfs) -> SearchCounts {
    mfs.volatile_state().namespace.counts
}

#[test]
fn search_near_the_last_one_reads_one_node() {
    let mfs = formatted_in(200_000);
    let tops: Vec<Ino> = (0..40).map(|n| mkdir(&mfs, Ino::ROOT, &format!("t{n}"), n, 1)).collect();
    for n in 0..800 {
        for (user, &top) in tops.iter().enumerate() {
            mkdir(&mfs, top, &format!("d{n}"), user as u32, 1);
        }
    }
    let mut levels = 0;
    run(&mfs, |txn| NAMESPACE.nodes(txn, |_, level| levels = levels.max(u64::from(level) + 1)));
    assert_eq!(levels, 3, "32,000 directories");
    let nodes_each = |near: bool| {
        let before = counts(&mfs);
        for n in 0..400usize {
            let top = tops[if near { n / 100 } else { n * 7 % 40 }];
            mkdir(&mfs, top, &format!("{near}{n}"), 40, 1);
        }
        let after = counts(&mfs);
        (after.nodes - before.nodes) as f64 / (after.searches - before.searches) as f64
    };
    let (near, far) = (nodes_each(true), nodes_each(false));
    assert!(near < 1.1, "{near}");
    // A mkdir searches twice; the second search is near the first.
    assert!(far > 1.4 && far < 2.1, "{far}");
}

async fn open(env: &Env) -> Mfs {
    let disk = env.open_disk("meta", WRITE).await.unwrap();
    let options = OpenOptions { cache_bytes: 16 << 20, ..OpenOptions::default() };
    Mfs::open(env, &disk, options).await.unwrap()
}

/// Formats and opens a file system, and runs `body` on it.
fn on_disk<T: 'static, F: Future<Output = T>>(
    disk: Option<&SimDisk>,
    body: impl FnOnce(Env) -> F,
) -> (SimDisk, T) {
    let world = SimWorld::new(1);
    let disk = match disk {
        Some(disk) => {
            world.attach("meta", disk);
            disk.clone()
        }
        None => world.disk("meta", 400 << 20),
    };
    let done = world.run(body);
    (disk, done)
}

async fn format(env: Env) {
    format_with(env, Features::NONE).await;
}

async fn format_with(env: Env, features: Features) {
    let disk = env.open_disk("meta", WRITE).await.unwrap();
    let options = FormatOptions {
        name: "home".to_owned(),
        uuid: Uuid([9; 16]),
        log_bytes: 16 << 20,
        pags: vec![],
        features,
        force: false,
    };
    Mfs::format(&env, &disk, &options).await.unwrap();
}

/// Creates a directory with a file; returns where its content begins.
async fn mkdir_with_file(mfs: &Mfs, dir: Ino, text: &str, uid: u32, client: u64) -> (Ino, u64) {
    let body = |txn: &mut Txn<'_>| {
        let made = make(txn, dir, text, (uid, client))?;
        txn.names().create(made, &name("file"), &new_inode(FileKind::Regular), None)?;
        let number = txn.names().read_chunks(made)?[0];
        Ok((made, txn.names().chunk(number)?.runs[0].start.0))
    };
    mfs.run(Cost::SMALL, body).await.unwrap().0
}

#[test]
fn directories_follow_their_siblings_after_a_reopening() {
    let (disk, ()) = on_disk(None, format);
    // Two users, and two clients of the first, in turns; the store is opened again each time.
    let mut starts: BTreeMap<(u32, u64), Vec<u64>> = BTreeMap::new();
    let (disk, shared) = on_disk(Some(&disk), |env| async move {
        let mfs = open(&env).await;
        let shared = mkdir_with_file(&mfs, Ino::ROOT, "shared", 0, 1).await.0;
        mfs.close().await.unwrap();
        shared
    });
    for n in 0..12 {
        let (_, placed) = on_disk(Some(&disk), |env| async move {
            let mfs = open(&env).await;
            let mut placed = Vec::new();
            for (uid, client) in [(7, 1), (8, 1), (9, 2)] {
                let text = format!("{uid}-{client}-{n}");
                placed.push((
                    (uid, client),
                    mkdir_with_file(&mfs, shared, &text, uid, client).await.1,
                ));
            }
            mfs.close().await.unwrap();
            placed
        });
        placed.into_iter().for_each(|(creator, at)| starts.entry(creator).or_default().push(at));
    }
    for (creator, starts) in &starts {
        assert!(starts.windows(2).all(|pair| pair[1] == pair[0] + 4), "{creator:?}: {starts:?}");
    }
    let (_, problems) = on_disk(Some(&disk), |env| async move {
        let mfs = open(&env).await;
        check(&mfs).await.unwrap().problems
    });
    assert_eq!(problems, []);
}

#[test]
fn subdirectories_are_listed_without_reading_content() {
    let (disk, ()) = on_disk(None, format);
    let (disk, (top, subs)) = on_disk(Some(&disk), |env| async move {
        let mfs = open(&env).await;
        let (top, _) = mkdir_with_file(&mfs, Ino::ROOT, "top", 0, 1).await;
        let mut subs = BTreeSet::new();
        for n in 0..300 {
            subs.insert(mkdir_with_file(&mfs, top, &format!("d{n}"), 1, 1).await.0);
            for m in 0..10 {
                let text = name(format!("file{n}-{m}"));
                let new = new_inode(FileKind::Regular);
                mfs.run(Cost::SMALL, |txn| txn.names().create(top, &text, &new, None))
                    .await
                    .unwrap();
            }
        }
        mfs.close().await.unwrap();
        (top, subs)
    });
    let (_, (listed, cached)) = on_disk(Some(&disk), |env| async move {
        let mfs = open(&env).await;
        let body = |txn: &mut Txn<'_>| txn.names().subdirectories(top, None, usize::MAX);
        let listed = mfs.run(Cost::READ, body).await.unwrap().0;
        let content = |txn: &mut Txn<'_>| {
            let runs = txn.names().read_chunks(top)?;
            txn.names().ensure_chunk(runs[0])?;
            Ok(txn.names().chunk(runs[0])?.runs.clone())
        };
        let runs = mfs.run(Cost::READ, content).await.unwrap().0;
        let blocks = runs.iter().flat_map(|run| (0..run.len).map(|n| run.start.0 + u64::from(n)));
        let cached = blocks
            .filter(|&block| mfs.with_cached(MetaBlock(block), |data| data.is_some()))
            .count();
        (listed, cached)
    });
    assert_eq!(listed.iter().map(|sub| sub.ino).collect::<BTreeSet<_>>(), subs);
    assert_eq!(cached, 0, "blocks of the directory's content are cached");
}

#[test]
fn listing_of_small_siblings_reads_ahead() {
    let (disk, ()) = on_disk(None, format);
    let (disk, top) = on_disk(Some(&disk), |env| async move {
        let mfs = open(&env).await;
        let (top, _) = mkdir_with_file(&mfs, Ino::ROOT, "top", 0, 1).await;
        for n in 0..200 {
            // Unused blocks lie between those of one and of the next.
            mkdir_with_file(&mfs, top, &format!("d{n}"), 0, 1).await;
        }
        mfs.close().await.unwrap();
        top
    });
    disk.set_model(DiskModel::Hard(HardDisk::fibre_channel()));
    let reads = |disk: &SimDisk| disk.report().map_or((0, 0), |report| (report.reads, report.read));
    let watched = disk.clone();
    let (_, (requests, bytes)) = on_disk(Some(&disk), |env| async move {
        let mfs = open(&env).await;
        let list = |dir: Ino| {
            let mfs = mfs.clone();
            async move {
                let body = |txn: &mut Txn<'_>| txn.names().readdir(dir, 0, 1000);
                mfs.run(Cost::READ, body).await.unwrap().0
            }
        };
        let subs = list(top).await;
        let before = reads(&watched);
        for entry in subs.iter().filter(|entry| entry.kind == FileKind::Directory) {
            assert_eq!(list(entry.ino).await.len(), 1);
        }
        let after = reads(&watched);
        mfs.close().await.unwrap();
        (after.0 - before.0, after.1 - before.1)
    });
    assert!(requests < 40, "{requests} requests for 200 directories");
    // Four blocks for each directory, read-ahead after the last, and nodes of trees.
    assert!(bytes <= (4 * 200 + 64 + 20) * 4096, "{bytes} bytes");
}

#[test]
fn readahead_ignores_damaged_and_unreadable_blocks() {
    let (disk, ()) = on_disk(None, format);
    let (disk, (first, second, third)) = on_disk(Some(&disk), |env| async move {
        let mfs = open(&env).await;
        let (top, _) = mkdir_with_file(&mfs, Ino::ROOT, "top", 0, 1).await;
        let first = mkdir_with_file(&mfs, top, "first", 0, 1).await;
        let second = mkdir_with_file(&mfs, top, "second", 0, 1).await;
        let third = mkdir_with_file(&mfs, top, "third", 0, 1).await;
        mfs.close().await.unwrap();
        (first, second, third)
    });
    disk.flip_bit(third.1 * 4096 + 700, 3);
    let (_, listed) = on_disk(Some(&disk), |env| async move {
        let mfs = open(&env).await;
        let mut listed = Vec::new();
        for dir in [first.0, second.0, third.0] {
            let body = |txn: &mut Txn<'_>| txn.names().readdir(dir, 0, 10);
            listed.push(mfs.run(Cost::READ, body).await.is_ok());
        }
        listed
    });
    assert_eq!(listed, [true, true, false], "only the requested blocks must be valid");
}
