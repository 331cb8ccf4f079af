use std::collections::BTreeMap;

use env::DiskOptions;
use env::sim::SimWorld;
use types::{PagId, Uuid};

use super::*;
use crate::fsck::{Report, ShardNames, across, check};
use crate::handle::Mfs;
use crate::mkfs::{FormatOptions, PagFormat};
use crate::names::DirEntry;
use crate::open::OpenOptions;
use crate::testing::{links, new_dir, new_inode};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::StoreError;
use engine::format::features::{Feature, Features};

mod files;

const THERE: ShardId = ShardId(3);
const NAMES_MAX: usize = 200;

/// Runs `body` with the metadata of two shards.
fn with_two(body: impl AsyncFn(Mfs, Mfs) + 'static) {
    let world = SimWorld::new(1);
    for name in ["zero", "three"] {
        world.disk(name, 64 << 20);
    }
    world.run(|env| async move {
        let options = DiskOptions { write: true, exclusive: false };
        let mut shards = Vec::new();
        for (shard, name) in [(ShardId(0), "zero"), (THERE, "three")] {
            let disk = env.open_disk(name, options).await.unwrap();
            let format = FormatOptions {
                name: "two".to_owned(),
                uuid: Uuid([9; 16]),
                log_bytes: 4 << 20,
                pags: vec![PagFormat::whole(
                    PagId(u16::from(shard.0)),
                    Uuid([shard.0 + 1; 16]),
                    500,
                )],
                features: Features::NONE.with(Feature::SHARDS).with(Feature::INLINE_DATA),
                force: false,
            };
            Mfs::format_shard(&env, &disk, shard, &format).await.unwrap();
            let mfs = Mfs::open(&env, &disk, OpenOptions::default()).await.unwrap();
            mfs.add_moved_directories().await.unwrap();
            mfs.add_lent_space().await.unwrap();
            shards.push(mfs);
        }
        let three = shards.pop().unwrap();
        body(shards.pop().unwrap(), three).await;
    });
}

async fn run<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> T {
    mfs.run(Cost::STEP, body).await.unwrap().0
}

async fn fault<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> Fault {
    match mfs.run(Cost::STEP, body).await {
        Err(StoreError::Fault(fault)) => fault,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("no fault"),
    }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// Both sides of a move; the second one waits until the first one has freed what was left.
async fn move_directory(dir: Ino, from: &Mfs, to: &Mfs) {
    let it = run(from, |txn| txn.names().departure(dir, NAMES_MAX)).await;
    let there = to.superblock().shard;
    run(from, |txn| txn.names().leave(dir, there, &it.names)).await;
    run(to, |txn| txn.names().arrive(&it)).await;
    while !run(from, |txn| txn.names().free_inode_step(dir, 9)).await {}
}

async fn sound(mfs: &Mfs) -> ShardNames {
    mfs.forget_indexes();
    let Report { problems, shard, .. } = check(mfs).await.unwrap();
    assert_eq!(problems, []);
    shard
}

async fn both_are_sound(zero: &Mfs, three: &Mfs) {
    let all = across(&[sound(zero).await, sound(three).await], &BTreeMap::new());
    assert_eq!(all.into_iter().collect::<Vec<_>>(), []);
}

async fn list(mfs: &Mfs, dir: Ino) -> Vec<(u64, Name, Ino, FileKind)> {
    let all: Vec<DirEntry> = run(mfs, |txn| txn.names().readdir(dir, 0, 1000)).await;
    all.into_iter().map(|it| (it.cookie, it.name, it.ino, it.kind)).collect()
}

/// A directory with one of everything, and holes between its names. Yields it, a directory below,
/// and a file that has another name in the root.
async fn make(mfs: &Mfs) -> (Ino, Ino, Ino) {
    run(mfs, |txn| {
        let dir = new_dir(txn, Ino::ROOT, "dir")?;
        links(txn, Ino::ROOT, 1)?;
        for n in 0..60 {
            let file = new_inode(FileKind::Regular);
            txn.names().create(dir, &name(&format!("f{n}")), &file, None)?;
        }
        for n in (0..60).filter(|n| n % 7 != 3) {
            txn.names().free_with_name(dir, &name(&format!("f{n}")))?;
        }
        let below = new_dir(txn, dir, "below")?;
        links(txn, dir, 1)?;
        new_dir(txn, below, "deep")?;
        links(txn, below, 1)?;
        let target = [b't'; 900];
        let symlink =
            crate::NewInode { symlink: Some(&target), size: 900, ..new_inode(FileKind::Symlink) };
        txn.names().create(dir, &name("symlink"), &symlink, None)?;
        let both =
            txn.names().create(Ino::ROOT, &name("both"), &new_inode(FileKind::Fifo), None)?;
        txn.names().link(dir, &name("second"), both)?;
        txn.names().link(dir, &name("third"), both)?;
        links(txn, both, 2)?;
        txn.names().set_xattr(dir, b"user.a", &[7; 300])?;
        Ok((dir, below, both))
    })
    .await
}

#[test]
fn directory_moves_with_its_names_and_number_and_comes_back() {
    with_two(async |zero, three| {
        let (dir, below, both) = make(&zero).await;
        let (attr, names) = (run(&zero, |txn| txn.names().attr(dir)).await, list(&zero, dir).await);
        let place = list(&zero, Ino::ROOT).await;
        move_directory(dir, &zero, &three).await;
        both_are_sound(&zero, &three).await;
        assert_eq!(list(&three, dir).await, names, "each name keeps its position");
        assert_eq!(list(&zero, Ino::ROOT).await, place, "and so does that of the directory");
        let there = run(&three, |txn| txn.names().attr(dir)).await.unwrap();
        assert_eq!((there.nlink, there.size), (attr.unwrap().nlink, there.blocks * 4096));
        assert_eq!((zero.home(dir), three.home(dir)), (THERE, THERE));
        assert_eq!(run(&zero, |txn| txn.names().locate(dir)).await, None);
        assert_eq!(run(&zero, |txn| txn.names().parent(below)).await, Some(dir));
        assert_eq!(run(&zero, |txn| txn.names().outside(both)).await, Some(Outside::Names(2)));
        let value = run(&three, |txn| txn.names().xattr(dir, b"user.a")).await;
        assert_eq!(value, Some(vec![7; 300]));

        // What is made there has numbers of that shard.
        let new = run(&three, |txn| {
            let new = txn.names().create(dir, &name("new"), &new_inode(FileKind::Regular), None)?;
            new_dir(txn, dir, "new dir")?;
            links(txn, dir, 1)?;
            Ok(new)
        })
        .await;
        assert_eq!(new.shard(), THERE);
        both_are_sound(&zero, &three).await;

        let names = list(&three, dir).await;
        move_directory(dir, &three, &zero).await;
        both_are_sound(&zero, &three).await;
        assert_eq!(list(&zero, dir).await, names);
        assert_eq!(list(&zero, Ino::ROOT).await, place);
        assert_eq!((zero.home(dir), three.home(dir)), (ShardId(0), ShardId(0)));
        assert_eq!(run(&zero, |txn| txn.names().parent(below)).await, Some(dir));
        assert_eq!(run(&zero, |txn| txn.names().outside(both)).await, None);
        let left = run(&three, |txn| txn.names().outside(new)).await;
        assert_eq!(left, Some(Outside::Names(1)), "what was made there stays there");
    });
}

#[test]
fn directory_below_one_that_moved_follows_and_both_come_back() {
    with_two(async |zero, three| {
        let (dir, below, _) = make(&zero).await;
        move_directory(dir, &zero, &three).await;
        move_directory(below, &zero, &three).await;
        both_are_sound(&zero, &three).await;
        assert_eq!(run(&three, |txn| txn.names().parent(below)).await, Some(dir));
        assert_eq!(run(&three, |txn| txn.names().outside(below)).await, None, "it has its slot");
        // The upper one alone, then the lower one.
        move_directory(dir, &three, &zero).await;
        both_are_sound(&zero, &three).await;
        assert_eq!(run(&three, |txn| txn.names().parent(below)).await, Some(dir));
        move_directory(below, &three, &zero).await;
        both_are_sound(&zero, &three).await;
        assert!(run(&three, |txn| txn.names().guests(Ino::NONE, 9)).await.is_empty());
    });
}

#[test]
fn homes_are_read_again_when_the_device_is_opened() {
    with_two(async |zero, three| {
        let (dir, ..) = make(&zero).await;
        move_directory(dir, &zero, &three).await;
        zero.known_homes().borrow_mut().clear();
        assert_eq!((zero.home(dir), zero.moved_inodes()), (ShardId(0), 0));
        zero.load_homes().await.unwrap();
        assert_eq!((zero.home(dir), zero.moved_inodes()), (THERE, 1));
    });
}

#[test]
fn what_cannot_move_is_refused_and_nothing_changes() {
    with_two(async |zero, three| {
        let (dir, below, both) = make(&zero).await;
        let it = run(&zero, |txn| txn.names().departure(dir, NAMES_MAX)).await;
        let few = it.names.len() - 1;
        assert_eq!(fault(&zero, |txn| txn.names().departure(dir, few)).await, Fault::TooBig);
        assert_eq!(fault(&zero, |txn| txn.names().departure(Ino::ROOT, 9)).await, Fault::Invalid);
        for (ino, to) in [(Ino::ROOT, THERE), (both, THERE), (dir, ShardId(0))] {
            assert_eq!(fault(&zero, |txn| txn.names().leave(ino, to, &[])).await, Fault::Invalid);
        }
        // A name came meanwhile, or went.
        let some = &it.names[1..];
        assert_eq!(fault(&zero, |txn| txn.names().leave(dir, THERE, some)).await, Fault::NotEmpty);
        run(&zero, |txn| txn.names().rename(dir, &name("below"), dir, &name("else"))).await;
        let all = &it.names;
        assert_eq!(fault(&zero, |txn| txn.names().leave(dir, THERE, all)).await, Fault::NotFound);
        run(&zero, |txn| txn.names().rename(dir, &name("else"), dir, &name("below"))).await;
        assert_eq!(run(&zero, |txn| txn.names().parent(below)).await, Some(dir));
        let file = Arrival { attr: Attr { kind: FileKind::Regular, ..it.attr }, ..it.clone() };
        assert_eq!(fault(&three, |txn| txn.names().arrive(&file)).await, Fault::Invalid);
        assert_eq!(fault(&zero, |txn| txn.names().arrive(&it)).await, Fault::Busy, "it is there");
        let mut twice = it.clone();
        twice.names[1].at = twice.names[0].at;
        assert_eq!(fault(&three, |txn| txn.names().arrive(&twice)).await, Fault::Invalid);
        both_are_sound(&zero, &three).await;
        assert_eq!((zero.moved_inodes(), three.moved_inodes()), (0, 0));
    });
}
