//! Restarts with clients that replay: after every cut, no inode number is issued twice while
//! somebody may present it, and restarts use up no numbers.

use std::collections::BTreeMap;

use env::Env;
use env::sim::{SimDisk, SimRng, SimWorld};
use types::{ClientId, FileKind, Ino, Name, ShardId, Uuid};

use super::chunk_numbers::ChunkNumbers;
use crate::format::number::{home_of, is_annex};
use crate::fsck::check;
use crate::handle::Mfs;
use crate::mkfs::FormatOptions;
use crate::open::OpenOptions;
use crate::testing::{links, new_inode};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::Stop;
use engine::format::features::Features;

const WRITE: env::DiskOptions = env::DiskOptions { write: true, exclusive: false };
const SHARD: ShardId = ShardId(7);
/// Directories that all clients use.
const SHARED: u64 = 3;
/// Clients at a time.
const CLIENTS: usize = 3;

/// A change that a client asks for. Its names are its own.
#[derive(Clone, Debug)]
enum Op {
    /// Creates a file or a directory.
    Create { dir: Ino, name: String, kind: FileKind },
    /// Gives a file another name, which takes a slot without a number.
    Link { ino: Ino, dir: Ino, name: String },
    /// Removes a name; its inode moves to the orphan directory if it lies there.
    Remove { dir: Ino, name: String },
}

/// An answered request.
#[derive(Clone, Debug)]
struct Answered {
    seq: u32,
    op: Op,
    made: Option<Ino>,
}

/// A client, with everything that it was answered.
#[derive(Clone, Default, Debug)]
struct Client {
    id: ClientId,
    seq: u32,
    answered: Vec<Answered>,
    /// Files and directories that it made, for later operations.
    files: Vec<(Ino, String, Ino)>,
    dirs: Vec<Ino>,
}

/// What is known outside of the server.
#[derive(Clone, Default, Debug)]
struct World {
    clients: Vec<Client>,
    shared: Vec<Ino>,
    /// Numbers that somebody may present, or that were durable once.
    known: BTreeMap<Ino, String>,
    names: u64,
}

/// The server is killed before a step.
struct Killed;

/// Counts steps of the server, until it is killed.
struct Fuse {
    left: usize,
    burnt: usize,
}

impl Fuse {
    fn step(&mut self) -> Result<(), Killed> {
        self.left = self.left.checked_sub(1).ok_or(Killed)?;
        self.burnt += 1;
        Ok(())
    }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn execute(txn: &mut Txn<'_>, op: &Op, given: Option<Ino>) -> Result<Option<Ino>, Stop> {
    match op {
        Op::Create { dir, name: text, kind } => {
            let ino = txn.names().create(*dir, &name(text), &new_inode(*kind), given)?;
            if *kind == FileKind::Directory {
                links(txn, *dir, 1)?;
            }
            Ok(Some(ino))
        }
        Op::Link { ino, dir, name: text } => {
            txn.names().link(*dir, &name(text), *ino)?;
            links(txn, *ino, 1)?;
            Ok(None)
        }
        Op::Remove { dir, name: text } => {
            let ino = txn.names().remove_name(*dir, &name(text))?;
            links(txn, ino, -1)?;
            Ok(None)
        }
    }
}

/// Runs an operation as the server does: its result is kept in the same transaction.
async fn serve(
    mfs: &Mfs,
    client: ClientId,
    (seq, op): (u32, &Op),
    given: Option<Ino>,
) -> Option<Ino> {
    let ran = mfs.run(Cost::SMALL, |txn| {
        let made = execute(txn, op, given)?;
        txn.set_reply(client, 0, seq, b"")?;
        Ok(made)
    });
    ran.await.unwrap_or_else(|error| panic!("{op:?} of client {client}, {given:?}: {error}")).0
}

async fn open(env: &Env) -> Mfs {
    let disk = env.open_disk("meta", WRITE).await.unwrap();
    Mfs::open(env, &disk, OpenOptions { cache_bytes: 0, ..OpenOptions::default() }).await.unwrap()
}

async fn numbers(mfs: &Mfs) -> ChunkNumbers {
    mfs.run(Cost::READ, |txn| txn.names().chunk_numbers()).await.unwrap().0
}

async fn new_client(mfs: &Mfs) -> Client {
    let (id, number) = mfs.run(Cost::DELETE, |txn| txn.new_client(b"client")).await.unwrap();
    mfs.wait_durable(number).await.unwrap();
    assert_eq!(id.shard(), SHARD);
    Client { id, ..Client::default() }
}

impl World {
    /// A client draws its next operation.
    fn draw(&mut self, rng: &mut SimRng, client: usize) -> Op {
        self.names += 1;
        let text = format!("{}-{}", self.clients[client].id, self.names);
        let of = &self.clients[client];
        let dirs = self.shared.len() + of.dirs.len();
        let at = rng.below(dirs as u64) as usize;
        let dir = *self.shared.iter().chain(&of.dirs).nth(at).unwrap();
        let file = match of.files.len() as u64 {
            0 => None,
            count => Some(rng.below(count) as usize),
        };
        match (rng.below(8), file) {
            (0..=1, _) => Op::Create { dir, name: text, kind: FileKind::Directory },
            (2..=3, Some(file)) => Op::Link { ino: of.files[file].2, dir, name: text },
            (4, Some(file)) => {
                let (dir, name, _) = self.clients[client].files.swap_remove(file);
                Op::Remove { dir, name }
            }
            _ => Op::Create { dir, name: text, kind: FileKind::Regular },
        }
    }

    /// The answer to a new operation reaches its client.
    fn answered(&mut self, client: usize, op: Op, made: Option<Ino>) {
        let of = &mut self.clients[client];
        if let (Op::Create { dir, name, kind }, Some(ino)) = (&op, made) {
            assert_eq!(ino.shard(), SHARD);
            assert!(!is_annex(home_of(ino).chunk), "{ino} has its home in an annex");
            let before = self.known.insert(ino, name.clone());
            assert_eq!(before, None, "{ino} was issued to {name} as well");
            match kind {
                FileKind::Directory => of.dirs.push(ino),
                _ => of.files.push((*dir, name.clone(), ino)),
            }
        }
        of.answered.push(Answered { seq: of.seq, op, made });
    }

    /// The client is evicted, durably; `kept` was its last request that survived.
    fn evicted(&mut self, client: usize, kept: u32) {
        for lost in self.clients[client].answered.iter().filter(|answered| answered.seq > kept) {
            if let Some(ino) = lost.made {
                self.known.remove(&ino);
            }
        }
    }

    /// The replays after a restart: clients take turns at random, each in its own order.
    async fn replay(&mut self, mfs: &Mfs, rng: &mut SimRng, fuse: &mut Fuse) -> Result<(), Killed> {
        let mut left = Vec::new();
        for client in 0..self.clients.len() {
            let of = &self.clients[client];
            let kept = mfs.run(Cost::READ, |txn| txn.reply(of.id, 0)).await.unwrap().0;
            let kept = kept.map_or(0, |(seq, _)| seq);
            let lost = of.answered.iter().filter(|answered| answered.seq > kept);
            left.push((client, kept, lost.cloned().collect::<std::collections::VecDeque<_>>()));
        }
        let absent = rng.one_in(3).then(|| rng.below(CLIENTS as u64) as usize);
        let mut here: Vec<usize> = (0..left.len()).filter(|&at| Some(at) != absent).collect();
        while !here.is_empty() {
            let at = rng.below(here.len() as u64) as usize;
            let (client, _, list) = &mut left[here[at]];
            let Some(lost) = list.pop_front() else {
                here.swap_remove(at);
                continue;
            };
            fuse.step()?;
            let id = self.clients[*client].id;
            let made = serve(mfs, id, (lost.seq, &lost.op), lost.made).await;
            assert_eq!(made, lost.made, "{lost:?}");
            if rng.one_in(6) {
                mfs.sync().await.unwrap();
            }
        }
        if let Some(absent) = absent {
            fuse.step()?;
            let id = self.clients[absent].id;
            while !mfs.run(Cost::DELETE, |txn| txn.drop_client(id)).await.unwrap().0 {}
            let next = new_client(mfs).await;
            mfs.sync().await.unwrap();
            self.evicted(absent, left[absent].1);
            self.clients[absent] = next;
        }
        Ok(())
    }

    /// One run of the server, until the fuse is burnt or it has done `work` operations.
    async fn live(
        &mut self,
        mfs: &Mfs,
        rng: &mut SimRng,
        (fuse, work): (&mut Fuse, usize),
    ) -> Result<(), Killed> {
        fuse.step()?;
        mfs.run(Cost::READ, |txn| {
            txn.names().begin_replays();
            Ok(())
        })
        .await
        .unwrap();
        self.replay(mfs, rng, fuse).await?;
        fuse.step()?;
        mfs.run(Cost::DELETE, |txn| txn.names().end_replays()).await.unwrap();
        for _ in 0..work {
            fuse.step()?;
            let client = rng.below(self.clients.len() as u64) as usize;
            let op = self.draw(rng, client);
            self.clients[client].seq += 1;
            let (id, seq) = (self.clients[client].id, self.clients[client].seq);
            let made = serve(mfs, id, (seq, &op), None).await;
            self.answered(client, op, made);
            if rng.one_in(9) {
                mfs.sync().await.unwrap();
            }
        }
        Ok(())
    }
}

/// A new file system of shard 7 with its clients.
fn formatted() -> (SimDisk, World) {
    let simulated = SimWorld::new(1);
    let disk = simulated.disk("meta", 16 << 20);
    let world = simulated.run(|env| async move {
        let meta = env.open_disk("meta", WRITE).await.unwrap();
        let options = FormatOptions {
            name: "home".to_owned(),
            uuid: Uuid([9; 16]),
            log_bytes: 1 << 20,
            pags: vec![],
            features: Features::NONE,
            force: false,
        };
        Mfs::format_shard(&env, &meta, SHARD, &options).await.unwrap();
        let mfs = open(&env).await;
        let mut world = World::default();
        for n in 0..SHARED {
            let made = mfs.run(Cost::SMALL, |txn| {
                let (root, text) = (txn.root_dir(), name(&format!("shared{n}")));
                links(txn, root, 1)?;
                txn.names().create(root, &text, &new_inode(FileKind::Directory), None)
            });
            let ino = made.await.unwrap().0;
            world.known.insert(ino, format!("shared{n}"));
            world.shared.push(ino);
        }
        for _ in 0..CLIENTS {
            world.clients.push(new_client(&mfs).await);
        }
        mfs.close().await.unwrap();
        world
    });
    (disk, world)
}

/// Runs the server once on `disk`; returns the steps that it took, and what it knew at the end.
fn run_once(
    disk: &SimDisk,
    mut world: World,
    (seed, steps, work): (u64, usize, usize),
    check_it: bool,
) -> (usize, World, ChunkNumbers) {
    let simulated = SimWorld::new(seed);
    simulated.attach("meta", disk);
    simulated.run(|env| async move {
        let mfs = open(&env).await;
        let (mut rng, mut fuse) = (SimRng::new(seed), Fuse { left: steps, burnt: 0 });
        let ended = world.live(&mfs, &mut rng, (&mut fuse, work)).await;
        let numbers = numbers(&mfs).await;
        if ended.is_ok() && check_it {
            assert_eq!(check(&mfs).await.unwrap().problems, [], "seed {seed}");
        }
        (fuse.burnt, world, numbers)
    })
}

#[test]
fn no_number_is_issued_twice_wherever_a_restart_is_cut_off() {
    for seed in 1..7 {
        let (disk, world) = formatted();
        let (_, world, _) = run_once(&disk, world, (seed, usize::MAX, 40), false);
        let crashed = disk.after_power_cut(&mut SimRng::new(seed));
        // How many steps the next server takes when it is not cut off.
        let again = (seed + 100, usize::MAX, 12);
        let (steps, ..) = run_once(&crashed.fork(), world.clone(), again, true);
        assert!(steps > 12, "nothing was replayed");
        for cut in 0..=steps {
            let disk = crashed.fork();
            let (_, world, _) = run_once(&disk, world.clone(), (seed + 100, cut, 12), false);
            let disk = disk.after_power_cut(&mut SimRng::new(seed + cut as u64));
            run_once(&disk, world, (seed + 200, usize::MAX, 12), true);
        }
    }
}

#[test]
fn hundreds_of_restarts_with_replays_use_up_no_number() {
    const RESTARTS: u64 = 300;
    let (mut disk, mut world) = formatted();
    let mut rng = SimRng::new(5);
    let mut last = ChunkNumbers { next: 0, annexes: 0 };
    for seed in 0..RESTARTS {
        let steps = if rng.one_in(3) { rng.below(14) as usize } else { usize::MAX };
        let (_, after, numbers) = run_once(&disk, world, (seed, steps, 6), seed % 20 == 0);
        (world, last) = (after, numbers);
        disk = disk.after_power_cut(&mut rng);
    }
    let chunks = world.known.keys().map(|&ino| home_of(ino).chunk);
    let used = chunks.collect::<std::collections::BTreeSet<_>>().len() as u64;
    // Some are of directories whose last inode was lost with its client.
    assert!(last.next <= 2 * used + 10, "{last:?}, and {used} chunks have inodes");
    // The shared directories, those of clients, and the orphan directory have one each at most.
    assert!((1..=world.names).contains(&last.annexes), "{last:?}");
    assert!(last.next + last.annexes < RESTARTS * 3, "{last:?}");
}
