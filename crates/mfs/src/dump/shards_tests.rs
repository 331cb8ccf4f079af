//! Dumps of several shards: what is loaded again has the same tree, at the same shards.

use env::sim::SimWorld;
use env::{DiskOptions, Env};
use types::{
    FileBlock, FileKind, Ino, Name, ObjectId, PagBlock, PagId, Segment, SegmentState, ShardId, Uuid,
};

use super::load::{LoadError, load, load_onto};
use super::{Dumped, Source, dump};
use crate::format::object::ObjectRecord;
use crate::format::outside::Outside;
use crate::fsck::{Report, across, check};
use crate::handle::Mfs;
use crate::mkfs::{FormatOptions, PagFormat};
use crate::open::OpenOptions;
use crate::testing::{links, new_dir, new_inode};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::device::log::Disks;
use engine::error::Stop;
use engine::format::features::{Feature, Features};

const WRITE: DiskOptions = DiskOptions { write: true, exclusive: false };
const SHARDS: u8 = 3;

fn format_of(shard: ShardId, blocks: u64) -> FormatOptions {
    let id = PagId(u16::from(shard.0));
    FormatOptions {
        name: "three".to_owned(),
        uuid: Uuid([9; 16]),
        log_bytes: 4 << 20,
        pags: vec![PagFormat::whole(id, Uuid([shard.0 + 1; 16]), blocks)],
        features: Features::NONE.with(Feature::SHARDS).with(Feature::INLINE_DATA),
        force: true,
    }
}

/// New metadata of this many shards, closed.
async fn made(env: &Env, count: u8, blocks: u64) -> Vec<Disks> {
    let mut all = Vec::new();
    for shard in (0..count).map(ShardId) {
        let disk = env.open_disk(&format!("disk{}", shard.0), WRITE).await.unwrap();
        Mfs::format_shard(env, &disk, shard, &format_of(shard, blocks)).await.unwrap();
        all.push(Disks::from(&disk));
    }
    all
}

async fn opened(env: &Env, disks: &[Disks]) -> Vec<Mfs> {
    let mut all = Vec::new();
    for disks in disks {
        all.push(Mfs::open(env, disks, OpenOptions::default()).await.unwrap());
    }
    all
}

/// Runs `body` in a world with a device for each shard.
fn in_world(body: impl AsyncFnOnce(Env) + 'static) {
    let world = SimWorld::new(1);
    for shard in 0..=SHARDS {
        world.disk(&format!("disk{shard}"), 64 << 20);
    }
    world.run(|env| async move { body(env).await });
}

async fn run<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> T {
    mfs.run(Cost::STEP, body).await.unwrap().0
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

async fn dumped(all: &[Mfs]) -> (Vec<u8>, Dumped) {
    let sources: Vec<_> = all.iter().map(Source::of).collect();
    let mut out = Vec::new();
    let said = dump(&sources, &mut out).await.unwrap();
    (out, said)
}

/// Each shard alone is sound, and they agree.
async fn assert_sound(all: &[Mfs]) {
    let mut shards = Vec::new();
    for mfs in all {
        mfs.forget_indexes();
        let Report { problems, shard, .. } = check(mfs).await.unwrap();
        assert_eq!(problems, []);
        shards.push(shard);
    }
    assert_eq!(across(&shards, &std::collections::BTreeMap::new()), [].into());
}

/// A directory of one shard with its name at another one.
async fn far_dir(all: &[Mfs], (there, parent): (usize, Ino), to: usize, text: &str) -> Ino {
    let new = new_inode(FileKind::Directory);
    let dir = run(&all[to], |txn| txn.names().create_guest(parent, &new, None)).await;
    run(&all[there], |txn| {
        txn.names().link_outside(parent, &name(text), dir, FileKind::Directory)?;
        links(txn, parent, 1)
    })
    .await;
    dir
}

/// A file of one shard with its name at another one, and these blocks.
async fn far_file(all: &[Mfs], (there, parent): (usize, Ino), to: usize, text: &str) -> Ino {
    let new = new_inode(FileKind::Regular);
    let file = run(&all[to], |txn| txn.names().create_guest(parent, &new, None)).await;
    run(&all[there], |txn| txn.names().link_outside(parent, &name(text), file, FileKind::Regular))
        .await;
    file
}

/// A further name of a file of another shard.
async fn far_link(all: &[Mfs], (there, dir): (usize, Ino), (of, file): (usize, Ino), text: &str) {
    run(&all[there], |txn| txn.names().link_outside(dir, &name(text), file, FileKind::Regular))
        .await;
    run(&all[of], |txn| {
        let names = txn.names().outside(file)?.map_or(0, Outside::names);
        txn.names().set_outside(file, Some(Outside::Names(names + 1)))?;
        links(txn, file, 1)
    })
    .await;
}

/// Maps blocks of the shard's own zone into a file.
async fn map(mfs: &Mfs, file: Ino, addr: u64, len: u64) {
    let pag = PagId(u16::from(mfs.superblock().shard.0));
    let at = FileBlock(addr);
    let segment =
        Segment { file: at, len, pag, addr: PagBlock(addr), state: SegmentState::Written };
    run(mfs, |txn| {
        txn.space().take_run(segment.pag, segment.addr.0, segment.len)?;
        txn.layouts().map_taken(file, segment)
    })
    .await;
}

/// Moves a file whose name is at the other shard there.
async fn follow(all: &[Mfs], (from, file): (usize, Ino), (to, dir): (usize, Ino), text: &str) {
    let (here, there) = (all[from].superblock().shard, all[to].superblock().shard);
    for mfs in [&all[from], &all[to]] {
        mfs.add_moved_directories().await.unwrap();
        mfs.add_lent_space().await.unwrap();
    }
    let (it, zones) = run(&all[from], |txn| txn.names().file_departure(file, there)).await;
    run(&all[to], |txn| {
        zones.iter().try_for_each(|zone| txn.space().enter_lender(zone))?;
        txn.names().arrive_file((dir, &name(text)), here, &it)
    })
    .await;
    run(&all[from], |txn| txn.names().leave_file(&it, there)).await;
    while !run(&all[from], |txn| txn.names().free_inode_step(file, 9)).await {}
}

/// Directories and files with names and content at all shards.
async fn filled(all: &[Mfs]) {
    let top = (0, Ino::ROOT);
    let near = run(&all[0], |txn| {
        links(txn, Ino::ROOT, 1)?;
        new_dir(txn, Ino::ROOT, "near")
    })
    .await;
    let one = (1, far_dir(all, top, 1, "one").await);
    let two = (2, far_dir(all, one, 2, "two").await);
    let back = (0, far_dir(all, two, 0, "back").await);
    let file = far_file(all, back, 2, "file").await;
    map(&all[2], file, 7, 5).await;
    map(&all[2], file, 100, 200).await;
    far_link(all, one, (2, file), "same").await;
    // A name where the inode is, behind those elsewhere.
    run(&all[2], |txn| {
        txn.names().bring_home(two.1, &name("home"), file)?;
        links(txn, file, 1)
    })
    .await;
    let moved = far_file(all, one, 0, "moved").await;
    map(&all[0], moved, 50, 40).await;
    follow(all, (0, moved), one, "moved").await;
    // What is free in a loan stays with the lender after a load.
    let loan = run(&all[2], |txn| txn.space().lend(ShardId(0), 1, 60)).await;
    run(&all[0], |txn| txn.space().borrow(ShardId(2), 1, &loan)).await;
    run(&all[0], |txn| {
        let file = txn.names().create(near, &name("lent"), &new_inode(FileKind::Regular), None)?;
        let (addr, len) = (loan.runs[0].0, loan.runs[0].1.min(20));
        let state = SegmentState::Written;
        let segment = Segment { file: FileBlock(3), len, pag: PagId(2), addr, state };
        txn.space().take_run(segment.pag, segment.addr.0, segment.len)?;
        txn.layouts().map_taken(file, segment)
    })
    .await;
}

#[test]
fn dump_of_several_shards_is_loaded_to_the_same_ones() {
    in_world(async |env| {
        let disks = made(&env, SHARDS, 2000).await;
        let all = opened(&env, &disks).await;
        all[0].add_lent_space().await.unwrap();
        all[2].add_lent_space().await.unwrap();
        filled(&all).await;
        assert_sound(&all).await;
        let (bytes, said) = dumped(&all).await;
        let wanted = Dumped { inodes: 8, links: 2, segments: 4, ..Dumped::default() };
        assert_eq!(said, wanted);
        for mfs in all {
            mfs.close().await.unwrap();
        }

        // One shard more than the dump has.
        let disks = made(&env, SHARDS + 1, 2000).await;
        let options = OpenOptions::default();
        let loaded = load_onto(&env, &disks, options, &mut &bytes[..]).await.unwrap();
        assert_eq!((loaded.inodes, loaded.links, loaded.segments), (8, 2, 4));
        let all = opened(&env, &disks).await;
        assert_sound(&all).await;
        assert_eq!(dumped(&all[..3]).await.0, bytes);
        // Blocks that are in no file are free with those whose zones have them.
        let mut lent = run(&all[2], |txn| txn.space().lent()).await;
        assert_eq!(lent.len(), 1);
        let (_, _, run_of_zero) = lent.remove(0);
        assert_eq!((run_of_zero.shard, run_of_zero.len), (ShardId(0), 20));
        let of_zero = run(&all[0], |txn| txn.space().lent_by_zone()).await;
        assert_eq!(of_zero[&PagId(0)], [(ShardId(1), 40)].into());
        for mfs in all {
            mfs.close().await.unwrap();
        }
    });
}

/// The object of a file that has followed its name has a number of another shard. After a load that
/// shard does not issue it again.
#[test]
fn object_of_another_shard_is_known_to_that_one_after_a_load() {
    in_world(async |env| {
        let disks = made(&env, SHARDS, 2000).await;
        let all = opened(&env, &disks).await;
        for mfs in &all {
            mfs.add_object_files();
            let uuid = Uuid([20; 16]);
            run(mfs, |txn| txn.space().add_target(PagId(20), uuid, 900)).await;
        }
        let one = (1, far_dir(&all, (0, Ino::ROOT), 1, "one").await);
        let file = far_file(&all, one, 0, "moved").await;
        let object = run(&all[0], |txn| {
            txn.space().take_objects()?;
            let object = ObjectId(txn.space().take_objects()?.start + 5);
            let record = ObjectRecord { object, part: 16, targets: vec![PagId(20)] };
            txn.layouts().set_object(file, &record)?;
            Ok(object)
        })
        .await;
        for mfs in [&all[0], &all[1]] {
            mfs.add_moved_directories().await.unwrap();
            mfs.add_followed_objects().await.unwrap();
        }
        follow(&all, (0, file), one, "moved").await;
        assert_sound(&all).await;
        let (bytes, said) = dumped(&all).await;
        assert_eq!((said.inodes, said.elsewhere_count), (3, 0));
        for mfs in all {
            mfs.close().await.unwrap();
        }
        let disks = made(&env, SHARDS, 2000).await;
        load_onto(&env, &disks, OpenOptions::default(), &mut &bytes[..]).await.unwrap();
        let all = opened(&env, &disks).await;
        assert_sound(&all).await;
        assert!(all[1].superblock().features.has(Feature::FOLLOWED_OBJECTS));
        assert_eq!(dumped(&all).await.0, bytes);
        assert_eq!(run(&all[0], |txn| txn.space().take_objects()).await.start, object.0 + 1);
    });
}

#[test]
fn load_refuses_fewer_shards_and_other_zones() {
    in_world(async |env| {
        let disks = made(&env, SHARDS, 2000).await;
        let all = opened(&env, &disks).await;
        far_dir(&all, (0, Ino::ROOT), 2, "two").await;
        let (bytes, _) = dumped(&all).await;
        for (count, blocks, wanted) in
            [(2, 2000, "the dump is of 3 metadata servers"), (3, 1999, "of 2000 blocks")]
        {
            let disks = made(&env, count, blocks).await;
            let refused = load_onto(&env, &disks, OpenOptions::default(), &mut &bytes[..]).await;
            let Err(LoadError::Target(text)) = refused else { panic!("{refused:?}") };
            assert!(text.contains(wanted), "{text}");
            // What is refused is as it was.
            opened(&env, &disks).await;
        }
    });
}

#[test]
fn load_that_ends_early_leaves_no_shard_that_opens() {
    in_world(async |env| {
        let disks = made(&env, SHARDS, 2000).await;
        let all = opened(&env, &disks).await;
        filled_with_lent(&all).await;
        let (bytes, _) = dumped(&all).await;
        drop(all);
        let disks = made(&env, SHARDS, 2000).await;
        let options = OpenOptions::default();
        let cut = load_onto(&env, &disks, options, &mut &bytes[..bytes.len() - 9]).await;
        assert!(matches!(cut, Err(LoadError::Stream(_))), "{cut:?}");
        for disks in &disks {
            assert!(Mfs::open(&env, disks, options).await.is_err());
        }
    });
}

async fn filled_with_lent(all: &[Mfs]) {
    all[0].add_lent_space().await.unwrap();
    all[2].add_lent_space().await.unwrap();
    filled(all).await;
}

#[test]
fn names_that_shards_do_not_agree_on_are_reported() {
    in_world(async |env| {
        let disks = made(&env, 2, 2000).await;
        let all = opened(&env, &disks).await;
        let new = new_inode(FileKind::Directory);
        run(&all[1], |txn| txn.names().create_guest(Ino::ROOT, &new, None)).await;
        let gone = Ino(run(&all[1], |txn| new_dir(txn, txn.root_dir(), "x")).await.0 + 99);
        run(&all[0], |txn| {
            txn.names().link_outside(Ino::ROOT, &name("gone"), gone, FileKind::Regular)
        })
        .await;
        let (bytes, said) = dumped(&all).await;
        assert_eq!((said.inodes, said.elsewhere_count, said.damaged_count), (1, 1, 1), "{said:?}");
        assert!(said.damaged[0].contains("gone"), "{said:?}");
        assert!(said.elsewhere[0].contains("of directory 1"), "{said:?}");
        let disks = made(&env, 2, 2000).await;
        let fresh = opened(&env, &disks).await;
        load(&fresh, &mut &bytes[..]).await.unwrap();
        assert_sound(&fresh).await;
    });
}
