//! What `redbud migrate` moves while applications use it: files between blocks and objects, and
//! directories between metadata servers.
//!
//! A client without a kernel moves one file at a time by the product's `migrate_step`s, or one
//! directory. It may be killed at any moment. In between it changes what the root directory's
//! layout says of new files.
//!
//! Invariants:
//! - one such client runs at a time, and none after the last fault;
//! - no application notices a move, but for the time: the model knows of none.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use client::{Caller, Client, MigrateStep, Migration};
use env::sim::SimRng;
use mfs::Outside;
use proto::placement::Layout;
use types::{Duration, FileKind, Ino, ShardId};

use crate::cluster::Cluster;
use crate::drain_state::MOVER;
use crate::faults::{Fault, Injector};
use crate::targets::layout;

/// A client that does not come to its end is killed after this time.
const PATIENCE: Duration = Duration::from_secs(20);
/// One that is to be killed on the way is, within this time.
const SOON_MS: u64 = 300;
/// Interval of looks at the client.
const LOOK: Duration = Duration::from_millis(2);
/// Entries of a directory that are looked at.
const MANY: usize = 100;

impl Injector {
    /// A file moves, or the layout of the root directory changes, unless that is already so.
    pub(crate) fn migrate(&mut self) {
        self.begin_move(Fault::Migrate, self.cluster.targets.count() > 0);
    }

    /// A directory moves to another metadata server, unless one does already.
    pub(crate) fn move_directory(&mut self) {
        self.begin_move(Fault::MoveDirectory, self.cluster.all_shards().count() > 1);
    }

    fn begin_move(&mut self, kind: Fault, is_possible: bool) {
        let mut rng = SimRng::new(self.rng.next_u64());
        let kills = rng.one_in(3).then(|| Duration::from_micros(rng.below(SOON_MS * 1_000)));
        if !is_possible || !self.cluster.drains.begin() {
            // The caller counted it.
            self.made.borrow_mut().entry(kind).and_modify(|made| *made -= 1);
            return;
        }
        let cluster = self.cluster.clone();
        cluster.env.clone().spawn(async move {
            run(&cluster, kind, rng, kills.unwrap_or(PATIENCE)).await;
            cluster.drains.end();
        });
    }
}

/// Runs the client until it has ended, and kills it if it has not by then.
async fn run(cluster: &Cluster, kind: Fault, rng: SimRng, limit: Duration) {
    let node = cluster.world.node(MOVER);
    let run = cluster.world.run_of(MOVER);
    cluster.drains.mover_starts(run);
    cluster.node_begins(MOVER);
    let ended = Rc::new(Cell::new(false));
    let (its, of) = (ended.clone(), cluster.clone());
    node.spawn(async move {
        work(&of, kind, rng).await;
        its.set(true);
    });
    let until = cluster.env.now() + limit;
    while !ended.get() && cluster.world.run_of(MOVER) == run && cluster.env.now() < until {
        cluster.env.sleep(LOOK).await;
    }
    cluster.world.kill(MOVER);
    cluster.drains.mover_is(None);
}

async fn work(cluster: &Cluster, kind: Fault, mut rng: SimRng) {
    let Ok(client) = cluster.connect(MOVER).await else { return };
    cluster.drains.mover_is(Some(client.clone()));
    let objects = layout(rng.next_u64(), cluster.targets.count());
    let chosen = if rng.one_in(2) { objects.clone() } else { Layout::default().to_string() };
    let done = match kind {
        Fault::MoveDirectory => move_directory(cluster, &client, &mut rng).await,
        _ if rng.one_in(3) => set_layout(&client, &chosen).await,
        _ => move_one(cluster, &client, &objects, &mut rng).await,
    };
    cluster.events.line(&format!("{MOVER}: {done}"));
    cluster.drains.mover_is(None);
    client.unmount().await;
}

/// New files of the root directory, and of directories that are made there, get this layout.
async fn set_layout(client: &Client, layout: &str) -> String {
    let root = Caller { uid: 0, gid: 0, pid: 1 };
    let (name, value) = (b"user.redbud.dir.layout", layout.as_bytes());
    let set = client.setxattr(&root, Ino::ROOT, name, value, 0, false).await;
    format!("layout `{layout}` of the root directory: {set:?}")
}

/// Moves one of the files to the other pool, or sometimes to other objects.
async fn move_one(cluster: &Cluster, client: &Client, objects: &str, rng: &mut SimRng) -> String {
    let files = files(cluster);
    if files.is_empty() {
        return "no file to move".to_owned();
    }
    let (ino, has_object) = files[rng.below(files.len() as u64) as usize];
    let to = match has_object && !rng.one_in(4) {
        true => Layout::default(),
        false => objects.parse().expect("drawn layouts are valid"),
    };
    let text = format!("moves inode {ino} to `{to}`");
    cluster.events.line(&format!("{MOVER}: {text}"));
    let mut moving = Migration::new(ino, to, false);
    let end = loop {
        match client.migrate_step(&mut moving).await {
            Ok(MigrateStep::Copied(_) | MigrateStep::Again | MigrateStep::Waits) => {}
            end => break end,
        }
    };
    if end == Ok(MigrateStep::Moved) {
        cluster.targets.note(|counts| counts.moved += 1);
    }
    client.end_migration(&mut moving).await;
    format!("{text}: {end:?}")
}

/// Moves one of the directories to another server, and its files with it.
async fn move_directory(cluster: &Cluster, client: &Client, rng: &mut SimRng) -> String {
    let directories: Vec<Ino> =
        cluster.all_shards().flat_map(|shard| inodes_of(cluster, shard).1).collect();
    if directories.is_empty() {
        return "no directory to move".to_owned();
    }
    let dir = directories[rng.below(directories.len() as u64) as usize];
    let to = ShardId(rng.below(cluster.all_shards().count() as u64) as u8);
    let text = format!("moves directory {dir} to server {to}");
    cluster.events.line(&format!("{MOVER}: {text}"));
    let moved = client.move_directory(dir, to).await;
    let (mut followed, mut after) = (0, Some(0));
    while let Some(from) = after.filter(|_| moved.is_ok()) {
        let part = client.files_follow(dir, to, from).await.unwrap_or_default();
        followed += part.moved;
        cluster.drains.followed(part.moved);
        after = part.next;
    }
    format!("{text}: {moved:?}, and {followed} files")
}

/// The regular files with names, and whether each lies in an object. Of a shard without a server
/// there are none.
fn files(cluster: &Cluster) -> Vec<(Ino, bool)> {
    cluster.all_shards().flat_map(|shard| inodes_of(cluster, shard).0).collect()
}

/// Those of a shard, in directories of the shard; and these directories, but for its root.
fn inodes_of(cluster: &Cluster, shard: ShardId) -> (Vec<(Ino, bool)>, Vec<Ino>) {
    let found = cluster.inspect_at(shard, |txn| {
        let mut dirs = VecDeque::new();
        if shard == ShardId(0) {
            dirs.push_back(Ino::ROOT);
        }
        let is_dir = |(ino, outside)| matches!(outside, Outside::Parent(_)).then_some(ino);
        dirs.extend(txn.names().guests(Ino::NONE, MANY)?.into_iter().filter_map(is_dir));
        let (mut files, mut directories) = (Vec::new(), Vec::new());
        while let Some(dir) = dirs.pop_front() {
            if dir != Ino::ROOT {
                directories.push(dir);
            }
            for entry in txn.names().readdir(dir, 0, MANY)? {
                if txn.names().home(entry.ino)? != shard {
                    continue;
                }
                match entry.kind {
                    FileKind::Directory => dirs.push_back(entry.ino),
                    FileKind::Regular => {
                        files.push((entry.ino, txn.layouts().object(entry.ino)?.is_some()));
                    }
                    _ => {}
                }
            }
        }
        Ok((files, directories))
    });
    found.unwrap_or_default()
}
