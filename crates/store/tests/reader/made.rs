//! Images that the store makes, and what it tells of them itself.

use std::collections::VecDeque;

use env::sim::{SimDisk, SimRng, SimWorld};
use env::{DiskOptions, Env};
use redbud_store::{
    Cost, Feature, Features, FormatOptions, LayoutLimits, MapLimits, Mfs, NewInode, OpenOptions,
    PagFormat, SlotSize, Stop, Txn,
};
use types::{
    Attr, ClientId, Extent, ExtentState, Fault, FileBlock, FileKind, Ino, Name, PagBlock, PagId,
    Timestamp, Uuid,
};

use crate::image::Found;
use crate::inode::{Inode, Kind, Segment};
use crate::space::{Pag, Run};

const WRITE: DiskOptions = DiskOptions { write: true, exclusive: false };
const SIZE: u64 = 64 << 20;
/// Blocks of each data zone.
pub const PAG_BLOCKS: u64 = 6000;

/// What an image is to be like.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub slots: SlotSize,
    pub inline: bool,
    pub near: bool,
    /// Cut from the power, with a log that must be redone; else closed.
    pub cut: bool,
    /// Names that the large directory gets.
    pub names: u32,
}

/// The file system as the store tells it.
#[derive(PartialEq, Eq, Debug)]
pub struct Told {
    pub found: Vec<Found>,
    pub orphans: Vec<u64>,
    pub pags: Vec<Pag>,
    pub pools: Vec<Run>,
    pub clients: Vec<(u64, Vec<u8>)>,
    pub reply: Option<(u32, Vec<u8>)>,
    pub setting: Option<Vec<u8>>,
}

impl Plan {
    fn features(self) -> Features {
        let mut features = Features::USUAL.with_slots(self.slots);
        for (wanted, feature) in
            [(self.inline, Feature::INLINE_DATA), (self.near, Feature::LAYOUT_BLOCKS)]
        {
            features = if wanted { features.with(feature) } else { features.without(feature) };
        }
        features
    }
}

fn options() -> OpenOptions {
    // Small directories have all that large ones have, and so have small files.
    let (maps, layouts) = (MapLimits::TINY, LayoutLimits::TINY);
    OpenOptions { cache_bytes: 0, maps, layouts, ..OpenOptions::default() }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

async fn open(env: &Env, read_only: bool) -> Mfs {
    let device = env.open_disk("meta", WRITE).await.unwrap();
    Mfs::open(env, &device, OpenOptions { read_only, ..options() }).await.unwrap()
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

/// The device of a file system that has everything.
pub fn make(plan: Plan) -> SimDisk {
    let world = SimWorld::new(1);
    let disk = world.disk("meta", SIZE);
    world.run(move |env| async move {
        let device = env.open_disk("meta", WRITE).await.unwrap();
        let pag =
            |id: u16| PagFormat { id: PagId(id), uuid: Uuid([id as u8; 16]), blocks: PAG_BLOCKS };
        let format = FormatOptions {
            name: "made".to_owned(),
            uuid: Uuid([0x51; 16]),
            log_bytes: 4 << 20,
            pags: vec![pag(0), pag(7)],
            features: plan.features(),
            force: false,
        };
        Mfs::format(&env, &device, &format).await.unwrap();
        let mfs = open(&env, false).await;
        large(&mfs, plan.names).await;
        mfs.close().await.unwrap();
        let mfs = open(&env, false).await;
        let client = run(&mfs, |txn| txn.new_client(&[b'c'; 4000])).await;
        special(&mfs, client).await;
        work(&mfs, client).await;
        match plan.cut {
            true => mfs.sync().await.unwrap(),
            false => mfs.close().await.unwrap(),
        }
    });
    disk.after_power_cut(&mut SimRng::new(1))
}

/// A directory that is so large that it has a name map, and lost every third name.
async fn large(mfs: &Mfs, names: u32) {
    let dir =
        run(mfs, |txn| txn.create(Ino::ROOT, &name("large"), &new(FileKind::Directory, 1), None))
            .await;
    for first in (0..names).step_by(20) {
        run(mfs, |txn| {
            (first..names.min(first + 20)).try_for_each(|n| {
                let new = new(FileKind::Regular, u64::from(n));
                txn.create(dir, &name(&format!("{n}")), &new, None).map(drop)
            })
        })
        .await;
    }
    for n in (0..names).step_by(3) {
        run(mfs, |txn| txn.free_with_name(dir, &name(&format!("{n}")))).await;
    }
}

/// One of each kind of inode, with all that may lie beside it.
async fn special(mfs: &Mfs, client: ClientId) {
    let dir =
        run(mfs, |txn| txn.create(Ino::ROOT, &name("special"), &new(FileKind::Directory, 2), None))
            .await;
    run(mfs, |txn| {
        for kind in [FileKind::Fifo, FileKind::Socket, FileKind::CharDevice, FileKind::BlockDevice]
        {
            txn.create(dir, &name(&format!("{kind:?}")), &new(kind, 3), None)?;
        }
        for len in [1, 100, 300, 900, 4095] {
            let target = vec![b't'; len];
            let new =
                NewInode { symlink: Some(&target), size: len as u64, ..new(FileKind::Symlink, 4) };
            txn.create(dir, &name(&format!("to {len}")), &new, None)?;
        }
        for (n, len) in [0, 10, 150, 9000].into_iter().enumerate() {
            let ino = txn.create(
                dir,
                &name(&"n".repeat(255 - 80 * n)),
                &new(FileKind::Regular, 5),
                None,
            )?;
            txn.set_xattr(ino, b"user.long", &vec![b'x'; len])?;
            txn.set_xattr(ino, b"security.short", b"")?;
        }
        txn.set_reply(client, 4, 9, b"an answer")?;
        txn.set_setting(3, b"a setting")
    })
    .await;
}

/// Operations by chance on files of one tree.
async fn work(mfs: &Mfs, client: ClientId) {
    let mut rng = SimRng::new(7);
    let mut dirs = vec![Ino::ROOT];
    let mut pool = Vec::new();
    for n in 0..900 {
        let mut below = |limit: u64| rng.next_u64() % limit;
        let (dir, to) =
            (dirs[below(dirs.len() as u64) as usize], dirs[below(dirs.len() as u64) as usize]);
        let (text, other) = (name(&format!("f{}", below(40))), name(&format!("f{}", below(40))));
        let (what, at, amount) = (below(12), below(60), below(30));
        if pool.is_empty() {
            pool = run(mfs, |txn| txn.grant(client, None, 200)).await;
        }
        let (pag, addr) = (pool[0].0, pool[0].1);
        let done = mfs.run(Cost::STEP, |txn| {
            let found = txn.lookup(dir, &text)?;
            let made = match found {
                Some(ino) => ino,
                None if n % 25 == 0 => {
                    let made = txn.create(dir, &text, &new(FileKind::Directory, n), None)?;
                    return Ok((Some(made), false));
                }
                None => txn.create(dir, &text, &new(FileKind::Regular, n), None)?,
            };
            match what {
                0..6 => {
                    let state =
                        if what == 0 { ExtentState::Unwritten } else { ExtentState::Written };
                    let extent = Extent { file: FileBlock(at * 3), len: 1, pag, addr, state };
                    txn.map(made, client, extent)?;
                    let attr = txn.attr(made)?.ok_or(Stop::Fault(Fault::Stale))?;
                    let size = attr.size.max((at * 3 + 1) << 12);
                    txn.set_attr(&Attr { size, version: attr.version + 1, ..attr })?;
                    return Ok((None, true));
                }
                6 => txn.set_content(made, &vec![n as u8; (at * 60 + 1) as usize])?,
                7 => drop(txn.unmap(made, FileBlock(at), FileBlock(at + amount))?),
                8 => txn.rename(dir, &text, to, &other)?,
                9 => {
                    txn.link(to, &other, made)?;
                    links(txn, made, 1)?;
                }
                10 => {
                    txn.remove_name(dir, &text)?;
                    links(txn, made, -1)?;
                }
                _ => txn.set_xattr(made, b"user.some", &vec![b'y'; (at * 9) as usize])?,
            }
            Ok((None, false))
        });
        // Names that are taken, directories where files should be: nothing happens then.
        if let Ok(((made, mapped), _)) = done.await {
            dirs.extend(made);
            if mapped {
                pool[0].1 = PagBlock(addr.0 + 1);
                pool[0].2 -= 1;
                pool.retain(|run| run.2 > 0);
            }
        }
    }
}

fn links(txn: &mut Txn<'_>, ino: Ino, change: i32) -> Result<(), Stop> {
    let attr = txn.attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
    txn.set_attr(&Attr { nlink: attr.nlink.saturating_add_signed(change), ..attr })
}

/// What the store tells of a device, which stays as it is.
pub fn told(disk: &SimDisk) -> Told {
    let world = SimWorld::new(1);
    world.attach("meta", disk);
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
                pools.extend(txn.pool(*client)?.into_iter().map(run));
            }
            let pag = |pag: redbud_store::PagState| Pag {
                id: pag.id.0,
                uuid: pag.uuid.0,
                blocks: pag.total + 1,
                free: pag.free,
                freed: pag.freed,
            };
            Ok(Told {
                found: Vec::new(),
                orphans: txn.orphans(Ino(0), 100_000)?.iter().map(|ino| ino.0).collect(),
                pags: txn.pags()?.into_iter().map(pag).collect(),
                reply: txn.reply(clients[0].0, 4)?,
                setting: txn.setting(3)?,
                clients: clients.into_iter().map(|(client, info)| (client.0, info)).collect(),
                pools,
            })
        })
        .await
        .with(found)
    })
}

impl Told {
    fn with(self, found: Vec<Found>) -> Told {
        Told { found, ..self }
    }
}

async fn walk(mfs: &Mfs) -> Vec<Found> {
    let root = run(mfs, |txn| inode(txn, Ino::ROOT)).await;
    let mut found = vec![Found { path: Vec::new(), parent: Ino::ROOT.0, inode: root }];
    let mut queue = VecDeque::from([(Vec::new(), Ino::ROOT)]);
    while let Some((above, dir)) = queue.pop_front() {
        for entry in run(mfs, |txn| txn.readdir(dir, 0, 1_000_000)).await {
            let path = [&above[..], b"/", entry.name.as_bytes()].concat();
            if entry.kind == FileKind::Directory {
                queue.push_back((path.clone(), entry.ino));
            }
            let inode = run(mfs, |txn| inode(txn, entry.ino)).await;
            found.push(Found { path, parent: dir.0, inode });
        }
    }
    found
}

fn inode(txn: &mut Txn<'_>, ino: Ino) -> Result<Inode, Stop> {
    let attr = txn.attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
    let is_file = attr.kind == FileKind::Regular;
    let mut xattrs = Vec::new();
    for (name, _) in txn.xattrs(ino)? {
        let value = txn.xattr(ino, &name)?.ok_or(Stop::Fault(Fault::Stale))?;
        xattrs.push((name, value));
    }
    let time = |time: Timestamp| (time.seconds, time.nanos);
    let segment = |extent: Extent| Segment {
        file: extent.file.0,
        len: extent.len,
        written: extent.state == ExtentState::Written,
        pag: extent.pag.0,
        addr: extent.addr.0,
    };
    let content = if is_file { txn.content(ino)? } else { Vec::new() };
    let layout = if is_file { txn.layout(ino, FileBlock(0), 100_000)? } else { Vec::new() };
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
        // The store tells a block more than the slot has where content lies with the inode.
        blocks: attr.blocks - u64::from(!content.is_empty()),
        times: [attr.atime, attr.mtime, attr.ctime, attr.btime].map(time),
        version: attr.version,
        xattrs,
        target: if attr.kind == FileKind::Symlink { txn.symlink(ino)? } else { Vec::new() },
        content,
        segments: layout.into_iter().map(segment).collect(),
    })
}
