//! The tree of the golden images: a directory of each kind, a file of each kind, and state of
//! clients.

use commitment::{Entry, Kept, Part, Protocol, TxnId};
use env::sim::{SimDisk, SimRng, SimWorld};
use types::limits::BLOCK;
use types::{
    Attr, ClientId, DirNo, Epoch, Fault, FileBlock, FileKind, Ino, Name, ObjectId, PagBlock, PagId,
    Segment, SegmentState, ShardId, Timestamp, Uuid,
};

use super::{Devices, Golden, disks, options};
use crate::format::number::{CHUNK_SLOTS, SlotPlace, ino_of};
use crate::format::object::ObjectRecord;
use crate::format::outside::Outside;
use crate::format::space::PagUse;
use crate::handle::Mfs;
use crate::layouts::LayoutAhead;
use crate::mkfs::{FormatOptions, PagFormat};
use crate::names::{Arrival, MapLimits, NewInode, PlacedName};
use crate::open::OpenOptions;
use crate::space::Loan;
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::Stop;
use engine::format::features::{Feature, Features};

/// Bytes of the metadata device.
const SIZE: u64 = 64 << 20;
/// Bytes of the log.
const LOG: u64 = 4 << 20;
/// Names that the long directory has for a while, and of how many it keeps one. The names are in
/// several chunks, which are nearly all freed, or in one chunk with a name map, which shrinks.
const LONG: (u32, u32) = (CHUNK_SLOTS + 200, 1999);
const SHORT: (u32, u32) = (1000, 59);

pub(super) fn new(kind: FileKind, n: u64) -> NewInode<'static> {
    let time = |n: u64| Timestamp { seconds: n as i64 - 5, nanos: 999_999_000 + n as u32 % 1000 };
    NewInode {
        kind,
        mode: 0o640,
        uid: 1000 + n as u32,
        gid: 100,
        rdev: if kind == FileKind::CharDevice { 0x103 } else { 0 },
        size: 0,
        atime: time(n),
        mtime: time(n + 1),
        ctime: time(n + 2),
        btime: time(n + 3),
        client: ClientId::NONE,
        symlink: None,
    }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

async fn run<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> T {
    mfs.run(Cost::STEP, body).await.unwrap().0
}

fn links(txn: &mut Txn<'_>, ino: Ino, change: i32) -> Result<(), Stop> {
    let attr = txn.names().attr(ino)?.unwrap();
    txn.names().set_attr(&Attr { nlink: attr.nlink.saturating_add_signed(change), ..attr })
}

fn mkdir(txn: &mut Txn<'_>, parent: Ino, text: &str) -> Result<Ino, Stop> {
    let dir = txn.names().create(parent, &name(text), &new(FileKind::Directory, 7), None)?;
    links(txn, parent, 1)?;
    Ok(dir)
}

fn mkdir_in_root(txn: &mut Txn<'_>, text: &str) -> Result<Ino, Stop> {
    let root = txn.root_dir();
    mkdir(txn, root, text)
}

fn file(txn: &mut Txn<'_>, dir: Ino, text: &str, n: u64) -> Result<Ino, Stop> {
    txn.names().create(dir, &name(text), &new(FileKind::Regular, n), None)
}

/// The devices of a file system with the tree, after a power cut while the log had changes that
/// were not yet home.
pub(super) fn make(golden: &Golden) -> Devices {
    let (features, shard) = (golden.features, golden.shard);
    let world = SimWorld::new(1);
    let home = world.disk("meta", SIZE);
    // Label, two headers, the log, and the label's second copy.
    let external = features.has(Feature::EXTERNAL_LOG);
    let log = external.then(|| world.disk("log", LOG + 4 * BLOCK as u64));
    world.run(|env| async move {
        let disks = disks(&env, external).await;
        let pag = |id: u16| PagFormat::whole(PagId(id), Uuid([id as u8; 16]), 5000);
        let format = FormatOptions {
            name: "golden".to_owned(),
            uuid: Uuid([0x60; 16]),
            log_bytes: LOG,
            pags: vec![pag(3), pag(4)],
            features,
            force: false,
        };
        Mfs::format_shard(&env, &disks, shard, &format).await.unwrap();
        let (maps, long) = match features {
            Features::NONE => (MapLimits::USUAL, LONG),
            _ => (MapLimits::TINY, SHORT),
        };
        let first = OpenOptions { maps, ..options() };
        let mfs = Mfs::open(&env, &disks, first).await.unwrap();
        long_directory(&mfs, long).await;
        mfs.close().await.unwrap();
        let mfs = Mfs::open(&env, &disks, options()).await.unwrap();
        directories(&mfs).await;
        files(&mfs).await;
        if features.has(Feature::SHARDS) {
            run(&mfs, intents).await;
            run(&mfs, outside).await;
        }
        if features.has(Feature::LENT_SPACE) {
            run(&mfs, loans).await;
        }
        if features.has(Feature::MOVED_DIRECTORIES) {
            run(&mfs, moves).await;
        }
        mfs.close().await.unwrap();
        let mfs = Mfs::open(&env, &disks, options()).await.unwrap();
        afterwards(&mfs).await;
        mfs.sync().await.unwrap();
    });
    let cut = |disk: SimDisk| disk.after_power_cut(&mut SimRng::new(1));
    Devices { home: cut(home), log: log.map(cut) }
}

/// Makes a directory with many names, and removes nearly all of them.
async fn long_directory(mfs: &Mfs, (names, kept): (u32, u32)) {
    let dir = run(mfs, |txn| mkdir_in_root(txn, "long")).await;
    for first in (0..names).step_by(8) {
        run(mfs, |txn| {
            (first..names.min(first + 8))
                .try_for_each(|n| file(txn, dir, &format!("l{n}"), 1).map(drop))
        })
        .await;
    }
    for first in (0..names).step_by(8) {
        run(mfs, |txn| {
            for n in (first..names.min(first + 8)).filter(|n| n % kept != 0) {
                let ino = txn.names().remove_name(dir, &name(&format!("l{n}")))?;
                links(txn, ino, -1)?;
                txn.names().free_inode_step(ino, 9)?;
            }
            Ok(())
        })
        .await;
    }
}

async fn directories(mfs: &Mfs) {
    let many = run(mfs, |txn| mkdir_in_root(txn, "many")).await;
    for n in 0..90 {
        run(mfs, |txn| file(txn, many, &format!("m{n}"), n)).await;
    }
    let mut deep = run(mfs, |txn| mkdir_in_root(txn, "deep")).await;
    for n in 0..5 {
        deep = run(mfs, |txn| mkdir(txn, deep, &format!("d{n}"))).await;
    }
    run(mfs, |txn| {
        file(txn, deep, &"n".repeat(255), 2)?;
        mkdir_in_root(txn, "empty").map(drop)
    })
    .await;
}

async fn files(mfs: &Mfs) {
    let dir = run(mfs, |txn| mkdir_in_root(txn, "small")).await;
    let client = run(mfs, |txn| txn.new_client(b"a client that is there")).await;
    let (pag, mut next, _) = run(mfs, |txn| txn.space().grant(client, None, 300)).await[0];
    let kinds = [FileKind::Fifo, FileKind::Socket, FileKind::CharDevice, FileKind::BlockDevice];
    run(mfs, |txn| {
        for (n, kind) in (0..).zip(kinds) {
            txn.names().create(dir, &name(&format!("{kind:?}")), &new(kind, n), None)?;
        }
        for (text, len) in [("short", 20), ("symlink", 2000)] {
            let target = vec![b't'; len];
            let new = NewInode {
                symlink: Some(&target),
                size: len as u64,
                ..new(FileKind::Symlink, len as u64)
            };
            txn.names().create(dir, &name(text), &new, None)?;
        }
        for (text, len) in [("few", 30), ("attributes", 6000)] {
            let ino = file(txn, dir, text, len)?;
            txn.names().set_xattr(ino, b"user.one", &vec![b'x'; len as usize])?;
            txn.names().set_xattr(ino, b"user.two", b"2")?;
        }
        Ok(())
    })
    .await;
    for (text, segments) in [("one", 1), ("fragments", 40)] {
        let ino = run(mfs, |txn| file(txn, dir, text, segments)).await;
        for n in 0..segments {
            let state = if n % 3 == 0 { SegmentState::Unwritten } else { SegmentState::Written };
            let segment = Segment { file: FileBlock(3 * n), len: 1, pag, addr: next, state };
            next = PagBlock(next.0 + 2);
            run(mfs, |txn| txn.layouts().map(ino, client, segment)).await;
        }
        run(mfs, |txn| {
            let attr = txn.names().attr(ino)?.unwrap();
            txn.names().set_attr(&Attr { size: segments * 3 * 4096, ..attr })
        })
        .await;
    }
    if mfs.superblock().features.has(Feature::LAYOUT_BLOCKS) {
        layouts(mfs, dir, client).await;
    }
    if mfs.superblock().features.has(Feature::INLINE_DATA) {
        run(mfs, |txn| {
            for (text, len) in [("in the slot", 200), ("in a blob", 3000)] {
                let ino = file(txn, dir, text, 3)?;
                txn.layouts().set_content(ino, &vec![b'c'; len])?;
            }
            Ok(())
        })
        .await;
    }
    if mfs.superblock().features.has(Feature::OBJECT_FILES) {
        objects(mfs, dir, client).await;
    }
    let evicted = run(mfs, |txn| txn.new_client(&[b'g'; 5000][..4000])).await;
    run(mfs, |txn| {
        txn.space().grant(evicted, None, 50)?;
        txn.set_reply(client, 4, 9, b"a reply")?;
        txn.set_reply(client, 127, 2, b"a reply that is too long for a short one")?;
        txn.set_setting(3, b"a setting")?;
        let ino = txn.names().lookup(dir, &name("one"))?.unwrap();
        txn.space().freeze(evicted, ino)?;
        txn.space().quarantine(evicted)
    })
    .await;
}

/// Keeps operations of several shards: of each protocol, as coordinator and as worker.
fn intents(txn: &mut Txn<'_>) -> Result<(), Stop> {
    let kept = [Kept::Started, Kept::Prepared, Kept::Aborted, Kept::Committed];
    for ((n, protocol), kept) in (1..).zip(Protocol::ALL).zip(kept) {
        let id = TxnId { coordinator: txn.shard(), epoch: Epoch(3), number: n << 40 };
        let workers = (3..3 + n.min(3) as u8).map(ShardId).collect();
        let entry = Entry { protocol, part: Part::Coordinator(workers), kept };
        txn.intents().put(id, &entry, Some(&vec![n as u8; 100 * n as usize]))?;
        let id = TxnId { coordinator: ShardId(250), ..id };
        txn.intents().put(id, &Entry { part: Part::Worker, ..entry }, Some(b"an operation"))?;
    }
    Ok(())
}

/// Lends space to two shards, and takes some of a third one.
fn loans(txn: &mut Txn<'_>) -> Result<(), Stop> {
    for (shard, sequence) in [(0, 1), (1, 1), (0, 2)] {
        txn.space().lend(ShardId(shard), sequence, 10)?;
    }
    let zone = PagFormat::whole(PagId(60), Uuid([60; 16]), 5000);
    let runs = vec![(PagBlock(1), 20), (PagBlock(700), 1)];
    txn.space().borrow(ShardId(0), 1, &Loan { zone, runs })?;
    let client = txn.new_client(b"a borrower")?;
    txn.space().grant(client, Some(PagId(60)), 7).map(drop)
}

/// Sends two directories away, of which one is freed; and takes one, with names of every sort.
fn moves(txn: &mut Txn<'_>) -> Result<(), Stop> {
    for text in ["sent", "sent and left over"] {
        let sent = mkdir_in_root(txn, text)?;
        mkdir(txn, sent, "below")?;
        file(txn, sent, "file", 4)?;
        let names = txn.names().departure(sent, 9)?.names;
        txn.names().leave(sent, ShardId(9), &names)?;
        while text == "sent" && !txn.names().free_inode_step(sent, 9)? {}
    }
    let dir = mkdir_in_root(txn, "with one that came")?;
    txn.names().link_outside(dir, &name("came"), far(40), FileKind::Directory)?;
    links(txn, dir, 1)?;
    let root = txn.root_dir();
    let attr = txn.names().attr(root)?.ok_or(Stop::Fault(Fault::Stale))?;
    let placed =
        |(at, n, kind)| PlacedName { at, name: name(&format!("at {at}")), ino: far(n), kind };
    txn.names().arrive(&Arrival {
        attr: Attr { ino: far(40), nlink: 3, ..attr },
        parent: dir,
        stream: 77,
        xattrs: vec![(b"user.came".to_vec(), vec![7; 300])],
        annexes: vec![false],
        names: [(3, 41, FileKind::Directory), (20, 42, FileKind::Regular)].map(placed).to_vec(),
    })?;
    file(txn, far(40), "new", 4).map(drop)
}

/// The `n`-th inode of another shard.
fn far(n: u32) -> Ino {
    ino_of(SlotPlace { chunk: DirNo::of(ShardId(9), 5), slot: n }, 3)
}

/// Makes names that lead to another shard, and inodes with names there. These are a directory that
/// was never here and one that was, a symlink, and a file that has a name here, too.
fn outside(txn: &mut Txn<'_>) -> Result<(), Stop> {
    let dir = mkdir_in_root(txn, "shared")?;
    txn.names().link_outside(dir, &name("there"), far(1), FileKind::Directory)?;
    links(txn, dir, 1)?;
    txn.names().link_outside(dir, &name(&"f".repeat(255)), far(2), FileKind::Regular)?;
    let guest = txn.names().create_guest(far(1), &new(FileKind::Directory, 4), None)?;
    mkdir(txn, guest, "below")?;
    file(txn, guest, "file", 4)?;
    txn.names().link_outside(guest, &name("further"), far(3), FileKind::Fifo)?;
    let target = [b't'; 900];
    let symlink = NewInode { symlink: Some(&target), ..new(FileKind::Symlink, 900) };
    txn.names().create_guest(Ino::NONE, &symlink, None)?;
    let both = file(txn, dir, "both", 4)?;
    links(txn, both, 2)?;
    txn.names().set_outside(both, Some(Outside::Names(2)))?;
    let away = mkdir(txn, dir, "away")?;
    mkdir(txn, away, "with it")?;
    txn.names().remove_name(dir, &name("away"))?;
    links(txn, dir, -1)?;
    txn.names().set_outside(away, Some(Outside::Parent(far(4))))
}

/// Makes object targets, files that lie there, one that is gone, and an owed fence.
async fn objects(mfs: &Mfs, dir: Ino, client: ClientId) {
    run(mfs, |txn| {
        for id in [6, 9] {
            txn.space().set_target_address(PagId(id), &format!("host{id}:10822"))?;
            txn.space().add_target(PagId(id), Uuid([id as u8; 16]), 70_000)?;
        }
        txn.space().set_pag_use(PagId(9), PagUse::Draining)?;
        txn.space().owe_fences(client, &[PagId(9)])?;
        let numbers = txn.space().take_objects()?;
        let long = "o".repeat(255);
        let files = [("object", 1), (long.as_str(), 3), ("no object any more", 2)];
        for (number, (text, part)) in numbers.zip(files) {
            let ino = file(txn, dir, text, part)?;
            txn.names().set_xattr(ino, b"user.one", &[b'x'; 100])?;
            let targets = if part == 1 { vec![PagId(9)] } else { vec![PagId(9), PagId(6)] };
            let record = ObjectRecord { object: ObjectId(number), part, targets };
            txn.layouts().set_object(ino, &record)?;
            let attr = txn.names().attr(ino)?.unwrap();
            txn.names().set_attr(&Attr { size: 10_000, ..attr })?;
        }
        let freed = txn.names().free_with_name(dir, &name("no object any more"))?;
        assert!(freed.is_some());
        let came = ["came with its object", "no object of another shard any more"];
        for (n, text) in (77..).zip(came) {
            if txn.has_feature(Feature::FOLLOWED_OBJECTS) {
                let ino = file(txn, dir, text, 4)?;
                let (object, targets) = (ObjectId::of(ShardId(9), n), vec![PagId(6), PagId(9)]);
                txn.layouts().set_object(ino, &ObjectRecord { object, part: 8, targets })?;
                if n == 78 {
                    txn.names().free_with_name(dir, &name(text))?;
                }
            }
        }
        Ok(())
    })
    .await;
}

/// Makes a file with segments in both layout blocks and in the segment tree, and a file with an
/// unused layout block.
async fn layouts(mfs: &Mfs, dir: Ino, client: ClientId) {
    let ino = run(mfs, |txn| file(txn, dir, "two blocks", 9)).await;
    let (pag, first, _) = run(mfs, |txn| txn.space().grant(client, None, 400)).await[0];
    for n in (0..400).map(|n| n * 171 % 400) {
        let (addr, state) = (PagBlock(first.0 + n), SegmentState::Written);
        let segment = Segment { file: FileBlock(2 * n), len: 1, pag, addr, state };
        run(mfs, |txn| txn.layouts().map(ino, client, segment)).await;
    }
    run(mfs, |txn| {
        let attr = txn.names().attr(ino)?.unwrap();
        txn.names().set_attr(&Attr { size: 800 * 4096, ..attr })
    })
    .await;
    mfs.volatile_state_mut().layouts.ahead = LayoutAhead::Above(1);
    let ino = run(mfs, |txn| file(txn, dir, "not fragmented", 9)).await;
    mfs.volatile_state_mut().layouts.ahead = LayoutAhead::Usual;
    let blocks = run(mfs, |txn| Ok(txn.names().locate_live(ino)?.1.layout_blocks().len())).await;
    assert_eq!(blocks, 1);
}

/// Makes changes that are only in the log.
async fn afterwards(mfs: &Mfs) {
    run(mfs, |txn| {
        let find = |txn: &mut Txn<'_>, text: &str| {
            let root = txn.root_dir();
            Ok::<_, Stop>(txn.names().lookup(root, &name(text))?.unwrap())
        };
        let (small, many, deep) = (find(txn, "small")?, find(txn, "many")?, find(txn, "deep")?);
        let fragments = txn.names().lookup(small, &name("fragments"))?.unwrap();
        txn.names().link(deep, &name("hard"), fragments)?;
        links(txn, fragments, 1)?;
        txn.layouts().unmap(fragments, FileBlock(30), FileBlock(60))?;
        for n in 0..12 {
            txn.names().rename(many, &name(&format!("m{n}")), deep, &name(&format!("moved{n}")))?;
        }
        for n in 80..85 {
            let ino = txn.names().remove_name(many, &name(&format!("m{n}")))?;
            links(txn, ino, -1)?;
        }
        txn.names().create_orphan(&new(FileKind::Regular, 5), None)?;
        if txn.has_feature(Feature::SHARDS) {
            txn.names().create_guest(far(5), &new(FileKind::Directory, 6), None)?;
        }
        mkdir(txn, deep, "late").map(drop)
    })
    .await;
}
