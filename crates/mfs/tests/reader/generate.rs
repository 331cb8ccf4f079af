//! Images made by the store, and their content as the store reads it.

use std::collections::VecDeque;
use std::time::Duration;

use env::sim::{SimDisk, SimRng, SimWorld};
use env::{DiskOptions, Env};
use redbud_mfs::SlotFeatures;
use redbud_mfs::journal::Disks;
use redbud_mfs::{
    Cost, Feature, Features, FormatOptions, MapLimits, Mfs, NewInode, ObjectRecord, OpenOptions,
    PagFormat, PagUse, SlotSize, Stop, Txn, Within, ZoneKind,
};
use types::{
    Attr, ClientId, Fault, FileBlock, FileKind, Ino, Name, ObjectId, PagBlock, PagId, SegmentState,
    ShardId, Timestamp, Uuid,
};

use crate::image::NamedInode;
use crate::inode::{Inode, Kind, Object, Segment};
use crate::space::{Pag, Run};

const WRITE: DiskOptions = DiskOptions { write: true, exclusive: false };
const SIZE: u64 = 64 << 20;
/// Bytes of the log.
pub const LOG: u64 = 4 << 20;
/// Blocks of each data zone.
const PAG_BLOCKS: u64 = 6000;

/// The properties of an image.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub shard: u8,
    pub slots: SlotSize,
    pub inline: bool,
    pub near: bool,
    /// After a power cut, with a log that must be redone; otherwise closed.
    pub cut: bool,
    /// Names in the large directory, and number of random operations.
    pub names: u32,
    pub operations: u64,
}

/// The content of a file system.
#[derive(PartialEq, Eq, Debug)]
pub struct Contents {
    pub found: Vec<NamedInode>,
    pub orphans: Vec<u64>,
    pub pags: Vec<Pag>,
    pub pools: Vec<Run>,
    pub clients: Vec<(u64, Vec<u8>)>,
    /// Of the first client: slot, sequence and answer.
    pub replies: Vec<(u64, u32, Vec<u8>)>,
    pub setting: Option<Vec<u8>>,
}

impl Plan {
    fn features(self) -> Features {
        let mut features = Features::NONE.with_slots(self.slots);
        for (wanted, feature) in [
            (self.inline, Feature::INLINE_DATA),
            (self.inline, Feature::OBJECT_FILES),
            (self.inline, Feature::FOLLOWED_OBJECTS),
            (self.near, Feature::LAYOUT_BLOCKS),
        ] {
            features = if wanted { features.with(feature) } else { features.without(feature) };
        }
        features
    }
}

/// Options by which small directories have all structures of large ones.
fn options() -> OpenOptions {
    OpenOptions { cache_bytes: 0, home_batch: 1, maps: MapLimits::TINY, ..OpenOptions::default() }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// The metadata device, and that of the log if the world has one.
async fn disks(env: &Env) -> Disks {
    let home = env.open_disk("meta", WRITE).await.unwrap();
    Disks { home, log: env.open_disk("log", WRITE).await.ok() }
}

async fn open(env: &Env, read_only: bool) -> Mfs {
    let disks = disks(env).await;
    Mfs::open(env, &disks, OpenOptions { read_only, ..options() }).await.unwrap()
}

async fn run<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> T {
    mfs.run(Cost::STEP, body).await.unwrap().0
}

fn new(kind: FileKind, n: u64) -> NewInode<'static> {
    let time =
        |n: u64| Timestamp { seconds: 7 * n as i64 - 50, nanos: 999_999_000 + n as u32 % 1000 };
    NewInode {
        kind,
        mode: 0o1000 | n as u16 & 0o777,
        uid: 70_000 + n as u32,
        gid: 100 + n as u32 % 3,
        rdev: if kind == FileKind::CharDevice { 0x103 } else { 0 },
        size: 0,
        atime: time(n),
        mtime: time(n + 1),
        ctime: time(n + 2),
        btime: time(n + 3),
        client: ClientId(n % 5),
        symlink: None,
    }
}

/// The device of a file system that has every structure, after a power cut.
pub fn make(plan: Plan) -> SimDisk {
    make_cutting(plan, u64::MAX).pop().unwrap()
}

/// The same, preceded by states that a power cut would have left. These are the states after every
/// `each` operations, and when a group reached from the end of the log to its beginning.
pub fn make_cutting(plan: Plan, each: u64) -> Vec<SimDisk> {
    make_in(&SimWorld::new(1), plan, each)
}

/// As [`make`], with the log on a second device.
pub fn make_external(plan: Plan) -> [SimDisk; 2] {
    let world = SimWorld::new(1);
    // Label, two headers, the log, and the label's second copy.
    let log = world.disk("log", LOG + 4 * 4096);
    let disk = make_in(&world, plan, u64::MAX).pop().unwrap();
    [disk, log.after_power_cut(&mut SimRng::new(1))]
}

fn make_in(world: &SimWorld, plan: Plan, each: u64) -> Vec<SimDisk> {
    let disk = world.disk("meta", SIZE);
    let device = disk.clone();
    let mut rng = SimRng::new(1);
    let cuts = world.run(move |env| async move {
        format(&env, plan).await;
        let mfs = open(&env, false).await;
        large_directory(&mfs, plan.names).await;
        mfs.close().await.unwrap();
        let mfs = open(&env, false).await;
        let client = run(&mfs, |txn| txn.new_client(&[b'c'; 4000])).await;
        run(&mfs, |txn| txn.new_client(b"")).await;
        one_of_each_kind(&mfs, client).await;
        if plan.inline {
            loans(&mfs, client).await;
        }
        fragmented(&mfs, client).await;
        let mut cuts = Vec::new();
        let mut random = RandomOperations::new(client, run(&mfs, |txn| Ok(txn.root_dir())).await);
        for n in 0..plan.operations {
            random.operation(&mfs, n).await;
            // Log commits and checkpoints run meanwhile.
            env.sleep(Duration::from_micros(100)).await;
            let before_end = LOG - mfs.last_committed().lsn.0 % LOG;
            if before_end < LARGE_TRANSACTION / 2 {
                large_transaction(&mfs, n).await;
            }
            if each < u64::MAX && (n % each == each - 1 || before_end < LARGE_TRANSACTION / 2) {
                cuts.push(device.after_power_cut(&mut rng));
            }
        }
        match plan.cut {
            true => mfs.sync().await.unwrap(),
            false => mfs.close().await.unwrap(),
        }
        cuts
    });
    cuts.into_iter().chain([disk.after_power_cut(&mut SimRng::new(1))]).collect()
}

async fn format(env: &Env, plan: Plan) {
    let disks = disks(env).await;
    let pag = |id: u16| PagFormat {
        device: Uuid([9; 16]),
        start: u64::from(id) * PAG_BLOCKS,
        ..PagFormat::whole(PagId(id), Uuid([id as u8; 16]), PAG_BLOCKS)
    };
    let format = FormatOptions {
        name: "made".to_owned(),
        uuid: Uuid([0x51; 16]),
        log_bytes: LOG,
        pags: vec![pag(0), pag(3), pag(7)],
        features: plan.features(),
        force: false,
    };
    Mfs::format_shard(env, &disks, ShardId(plan.shard), &format).await.unwrap();
}

/// Makes a directory that is large enough for a name map, and removes every third name.
async fn large_directory(mfs: &Mfs, names: u32) {
    let dir = run(mfs, |txn| {
        let root = txn.root_dir();
        txn.names().create(root, &name("large"), &new(FileKind::Directory, 1), None)
    })
    .await;
    for first in (0..names).step_by(20) {
        run(mfs, |txn| {
            (first..names.min(first + 20)).try_for_each(|n| {
                let new = new(FileKind::Regular, u64::from(n));
                txn.names().create(dir, &name(&format!("{n}")), &new, None).map(drop)
            })
        })
        .await;
    }
    for n in (0..names).step_by(3) {
        run(mfs, |txn| txn.names().free_with_name(dir, &name(&format!("{n}")))).await;
    }
}

/// Makes an inode of each kind, with everything that may belong to it.
async fn one_of_each_kind(mfs: &Mfs, client: ClientId) {
    let dir = run(mfs, |txn| {
        let root = txn.root_dir();
        txn.names().create(root, &name("special"), &new(FileKind::Directory, 2), None)
    })
    .await;
    run(mfs, |txn| {
        for kind in [FileKind::Fifo, FileKind::Socket, FileKind::CharDevice, FileKind::BlockDevice]
        {
            txn.names().create(dir, &name(&format!("{kind:?}")), &new(kind, 3), None)?;
        }
        for len in [1, 100, 300, 900, 4095] {
            let target = vec![b't'; len];
            let new =
                NewInode { symlink: Some(&target), size: len as u64, ..new(FileKind::Symlink, 4) };
            txn.names().create(dir, &name(&format!("to {len}")), &new, None)?;
        }
        for (n, len) in [0, 10, 150, 9000].into_iter().enumerate() {
            let ino = txn.names().create(
                dir,
                &name(&"n".repeat(255 - 80 * n)),
                &new(FileKind::Regular, 5),
                None,
            )?;
            txn.names().set_xattr(ino, b"user.long", &vec![b'x'; len])?;
            txn.names().set_xattr(ino, b"security.short", b"")?;
        }
        if txn.has_feature(Feature::OBJECT_FILES) {
            objects(txn, dir, client)?;
        }
        txn.set_reply(client, 4, 9, b"an answer")?;
        txn.set_reply(client, 0, 10, b"")?;
        txn.set_reply(client, 1, 1, &[b'l'; 1024])?;
        txn.set_reply(client, 1, 2, b"short after long")?;
        txn.set_reply(client, 2, 3, &[b's'; 26])?;
        txn.set_reply(client, 127, 7, &[b'l'; 27])?;
        txn.space().set_pag_use(PagId(3), PagUse::Lost)?;
        txn.set_setting(3, b"a setting")
    })
    .await;
}

/// Makes object targets, and files that lie there: beside names and attributes of all lengths.
fn objects(txn: &mut Txn<'_>, dir: Ino, client: ClientId) -> Result<(), Stop> {
    let targets: Vec<PagId> = (20..52).map(PagId).collect();
    for &id in &targets {
        txn.space().set_target_address(id, &format!("host{id}:1"))?;
        txn.space().add_target(id, Uuid([id.0 as u8; 16]), 9_000)?;
    }
    txn.space().owe_fences(client, &targets[..3])?;
    let numbers = txn.space().take_objects()?;
    for (number, (width, len)) in numbers.zip([(1, 1), (2, 255), (8, 90), (32, 255), (32, 3)]) {
        let text = name(&format!("{number}{}", "o".repeat(len)[1..].to_owned()));
        let ino = txn.names().create(dir, &text, &new(FileKind::Regular, 6), None)?;
        txn.names().set_xattr(ino, b"user.some", &[b'x'; 100])?;
        let targets = targets[..width].to_vec();
        // One has come from another shard.
        let far = ObjectId::of(ShardId(77), number);
        let object = if width == 2 { far } else { ObjectId(number) };
        let record = ObjectRecord { object, part: number, targets };
        txn.layouts().set_object(ino, &record)?;
        let attr = attr(txn, ino)?;
        txn.names().set_attr(&Attr { size: 123_456, ..attr })?;
        if width == 8 {
            txn.names().free_with_name(dir, &text)?;
        }
        if width == 32 && len == 3 {
            txn.names().rename(dir, &text, dir, &name(&"z".repeat(255)))?;
        }
    }
    Ok(())
}

/// Lends space to other shards, and takes a zone of another one, of which a client gets blocks.
async fn loans(mfs: &Mfs, client: ClientId) {
    mfs.add_lent_space().await.unwrap();
    for (shard, sequence) in [(77, 1), (78, 1), (77, 2)] {
        run(mfs, |txn| txn.space().lend(ShardId(shard), sequence, 100)).await;
    }
    let zone = PagFormat::whole(PagId(60), Uuid([60; 16]), 900);
    for (sequence, runs) in [(1, vec![(1, 50), (100, 7)]), (2, vec![(51, 20), (880, 20)])] {
        let runs = runs.into_iter().map(|(start, len)| (PagBlock(start), len)).collect();
        let loan = redbud_mfs::Loan { zone, runs };
        run(mfs, |txn| txn.space().borrow(ShardId(79), sequence, &loan)).await;
    }
    run(mfs, |txn| txn.space().grant(client, Some(zone.id), 12)).await;
}

/// Makes files of few and many segments, mapped in random order; then unmaps the middle of each.
async fn fragmented(mfs: &Mfs, client: ClientId) {
    let new_dir = new(FileKind::Directory, 3);
    let dir = run(mfs, |txn| {
        let root = txn.root_dir();
        txn.names().create(root, &name("fragmented"), &new_dir, None)
    })
    .await;
    for count in [1, 14, 40, 200, 400, 900] {
        let text = name(&format!("{count}"));
        let ino =
            run(mfs, |txn| txn.names().create(dir, &text, &new(FileKind::Regular, 8), None)).await;
        let mut left = Vec::new();
        for n in (0..count).map(|n| n * 7_919 % count) {
            if left.is_empty() {
                left = run(mfs, |txn| txn.space().grant(client, None, 100)).await;
            }
            let (pag, addr, len) = left.pop().unwrap();
            let state = if n % 3 == 0 { SegmentState::Unwritten } else { SegmentState::Written };
            let segment = types::Segment { file: FileBlock(2 * n), len: 1, pag, addr, state };
            run(mfs, |txn| txn.layouts().map(ino, client, segment)).await;
            if len > 1 {
                left.push((pag, PagBlock(addr.0 + 1), len - 1));
            }
        }
        let middle = (FileBlock(count), FileBlock(count + count / 10));
        while !run(mfs, |txn| txn.layouts().unmap(ino, middle.0, middle.1)).await {}
    }
}

/// Least bytes of the log that [`large_transaction`] takes.
const LARGE_TRANSACTION: u64 = 60_000;

/// Runs a large transaction and waits until it is durable.
async fn large_transaction(mfs: &Mfs, n: u64) {
    run(mfs, |txn| {
        let root = txn.root_dir();
        let ino = match txn.names().lookup(root, &name("wide"))? {
            Some(ino) => ino,
            None => txn.names().create(root, &name("wide"), &new(FileKind::Regular, n), None)?,
        };
        txn.names().set_xattr(ino, b"user.wide", &vec![n as u8 | 1; LARGE_TRANSACTION as usize])
    })
    .await;
    mfs.sync().await.unwrap();
}

/// Random operations on the files of a few directories.
struct RandomOperations {
    rng: SimRng,
    client: ClientId,
    dirs: Vec<Ino>,
    /// The unused remainder of the client's last grant.
    pool: Vec<(PagId, PagBlock, u64)>,
}

impl RandomOperations {
    fn new(client: ClientId, root: Ino) -> RandomOperations {
        RandomOperations { rng: SimRng::new(7), client, dirs: vec![root], pool: Vec::new() }
    }

    async fn operation(&mut self, mfs: &Mfs, n: u64) {
        let mut below = |limit: u64| self.rng.next_u64() % limit;
        let mut dir = || self.dirs[below(self.dirs.len() as u64) as usize];
        let (dir, to) = (dir(), dir());
        let mut file = || name(&format!("f{}", below(20)));
        let (text, other) = (file(), file());
        let (what, at, amount) = (below(12), below(60), below(30));
        if self.pool.is_empty() {
            self.pool = run(mfs, |txn| txn.space().grant(self.client, None, 200)).await;
        }
        let (client, (pag, addr, len)) = (self.client, self.pool[0]);
        let done = mfs.run(Cost::STEP, |txn| {
            let made = match txn.names().lookup(dir, &text)? {
                Some(ino) => ino,
                None if n.is_multiple_of(70) => {
                    let made =
                        txn.names().create(dir, &text, &new(FileKind::Directory, n), None)?;
                    return Ok(Done::Directory(made));
                }
                None => txn.names().create(dir, &text, &new(FileKind::Regular, n), None)?,
            };
            if attr(txn, made)?.kind == FileKind::Directory {
                if txn.names().is_within(to, made)? == Within::No {
                    txn.names().rename(dir, &text, to, &other)?;
                }
                return Ok(Done::Other);
            }
            match what {
                0..6 => {
                    let state =
                        if what == 0 { SegmentState::Unwritten } else { SegmentState::Written };
                    let segment =
                        types::Segment { file: FileBlock(at * 3), len: 1, pag, addr, state };
                    txn.layouts().map(made, client, segment)?;
                    let old = attr(txn, made)?;
                    let size = old.size.max((at * 3 + 1) << 12);
                    txn.names().set_attr(&Attr { size, version: old.version + 1, ..old })?;
                    return Ok(Done::Mapped);
                }
                6 => txn.layouts().set_content(made, &vec![n as u8; (at * 60 + 1) as usize])?,
                7 => drop(txn.layouts().unmap(made, FileBlock(at), FileBlock(at + amount))?),
                8 => txn.names().rename(dir, &text, to, &other)?,
                9 => {
                    txn.names().link(to, &other, made)?;
                    links(txn, made, 1)?;
                }
                10 => {
                    txn.names().remove_name(dir, &text)?;
                    links(txn, made, -1)?;
                }
                _ => txn.names().set_xattr(made, b"user.some", &vec![b'y'; (at * 9) as usize])?,
            }
            Ok(Done::Other)
        });
        match done.await.map(|(done, _)| done) {
            Ok(Done::Directory(made)) => self.dirs.push(made),
            Ok(Done::Mapped) => {
                self.pool[0] = (pag, PagBlock(addr.0 + 1), len - 1);
                self.pool.retain(|run| run.2 > 0);
            }
            // If a name exists already, or there is no inline data, nothing happens.
            Ok(Done::Other) | Err(_) => {}
        }
    }
}

enum Done {
    Directory(Ino),
    Mapped,
    Other,
}

fn attr(txn: &mut Txn<'_>, ino: Ino) -> Result<Attr, Stop> {
    txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))
}

fn links(txn: &mut Txn<'_>, ino: Ino, change: i32) -> Result<(), Stop> {
    let attr = attr(txn, ino)?;
    txn.names().set_attr(&Attr { nlink: attr.nlink.saturating_add_signed(change), ..attr })
}

/// The content of a device as the store reads it, without changing the device.
pub fn store_contents(disk: &SimDisk, log: Option<&SimDisk>) -> Contents {
    let world = SimWorld::new(1);
    world.attach("meta", disk);
    if let Some(log) = log {
        world.attach("log", log);
    }
    world.run(|env| async move {
        let mfs = open(&env, true).await;
        let found = walk(&mfs).await;
        run(&mfs, |txn| {
            let clients = txn.clients()?;
            let mut pools = Vec::new();
            for (client, _) in &clients {
                let run = |(pag, start, len): (PagId, PagBlock, u64)| Run {
                    pag: pag.0,
                    start: start.0,
                    len,
                    client: client.0,
                };
                pools.extend(txn.space().pool(*client)?.into_iter().map(run));
            }
            let pag = |pag: redbud_mfs::PagState| Pag {
                id: pag.id.0,
                uuid: pag.uuid.0,
                device: pag.device.0,
                start: pag.start,
                blocks: pag.total + 1,
                state: pag.state.number() as u8,
                target: pag.kind == ZoneKind::Target,
                borrowed: pag.kind == ZoneKind::Borrowed,
                free: pag.free,
                freed: pag.freed,
            };
            let mut replies = Vec::new();
            for slot in 0..128 {
                let reply = txn.reply(clients[0].0, slot)?;
                replies.extend(reply.map(|(seq, answer)| (slot.into(), seq, answer)));
            }
            Ok(Contents {
                found: Vec::new(),
                orphans: txn.names().orphans(Ino(0), 100_000)?.iter().map(|ino| ino.0).collect(),
                pags: txn.space().pags()?.into_iter().map(pag).collect(),
                replies,
                setting: txn.setting(3)?,
                clients: clients.into_iter().map(|(client, info)| (client.0, info)).collect(),
                pools,
            })
        })
        .await
        .with(found)
    })
}

impl Contents {
    fn with(self, found: Vec<NamedInode>) -> Contents {
        Contents { found, ..self }
    }
}

async fn walk(mfs: &Mfs) -> Vec<NamedInode> {
    let root = run(mfs, |txn| Ok(txn.root_dir())).await;
    let inode_of_root = run(mfs, |txn| inode(txn, root)).await;
    let mut found = vec![NamedInode { path: Vec::new(), parent: root.0, inode: inode_of_root }];
    let mut queue = VecDeque::from([(Vec::new(), root)]);
    while let Some((above, dir)) = queue.pop_front() {
        for entry in run(mfs, |txn| txn.names().readdir(dir, 0, 1_000_000)).await {
            let path = [&above[..], b"/", entry.name.as_bytes()].concat();
            if entry.kind == FileKind::Directory {
                queue.push_back((path.clone(), entry.ino));
            }
            let inode = run(mfs, |txn| inode(txn, entry.ino)).await;
            found.push(NamedInode { path, parent: dir.0, inode });
        }
    }
    found
}

fn inode(txn: &mut Txn<'_>, ino: Ino) -> Result<Inode, Stop> {
    let attr = attr(txn, ino)?;
    let is_file = attr.kind == FileKind::Regular;
    let mut xattrs = Vec::new();
    for (name, _) in txn.names().xattrs(ino)? {
        let value = txn.names().xattr(ino, &name)?.ok_or(Stop::Fault(Fault::Stale))?;
        xattrs.push((name, value));
    }
    let time = |time: Timestamp| (time.seconds, time.nanos);
    let segment = |segment: types::Segment| Segment {
        file: segment.file.0,
        len: segment.len,
        written: segment.state == SegmentState::Written,
        pag: segment.pag.0,
        addr: segment.addr.0,
    };
    let object = if is_file { txn.layouts().object(ino)? } else { None };
    let content = if is_file { txn.layouts().content(ino)? } else { Vec::new() };
    let layout =
        if is_file { txn.layouts().layout(ino, FileBlock(0), 100_000)? } else { Vec::new() };
    Ok(Inode {
        ino: ino.0,
        kind: match attr.kind {
            FileKind::Regular => Kind::Regular,
            FileKind::Directory => Kind::Directory,
            FileKind::Symlink => Kind::Symlink,
            FileKind::CharDevice => Kind::CharDevice,
            FileKind::BlockDevice => Kind::BlockDevice,
            FileKind::Fifo => Kind::Fifo,
            FileKind::Socket => Kind::Socket,
        },
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        size: attr.size,
        // For inline data the store reports a block more than the slot has, for an object its size.
        blocks: match &object {
            Some(_) => 0,
            None => attr.blocks - u64::from(!content.is_empty()),
        },
        times: [attr.atime, attr.mtime, attr.ctime, attr.btime].map(time),
        version: attr.version,
        xattrs,
        target: if attr.kind == FileKind::Symlink { txn.names().symlink(ino)? } else { Vec::new() },
        content,
        segments: layout.into_iter().map(segment).collect(),
        object: object.map(|record| Object {
            number: record.object.0,
            part: record.part,
            targets: record.targets.iter().map(|target| target.0).collect(),
        }),
    })
}
