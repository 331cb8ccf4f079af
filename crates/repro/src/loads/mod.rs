//! xcdn, Filebench's personalities, and reads of what another client has just written, on a
//! [`cluster`](crate::cluster) as paper 000 has it (§V.B): one server, seven clients, 1 Gb/s, and a
//! data disk behind 4 Gb/s of Fibre Channel.
//!
//! Invariants:
//! - the processes are those that work on mounts: the same scripts ([`bench::scripts`]), the same
//!   constants. A run is bounded by operations or by virtual seconds, never by other parameters;
//! - each client has a processor that its processes share. A call takes 5 µs of it, and 1 µs for
//!   each KB that it copies;
//! - the kernel's pages are modelled, since all these loads read what they have written;
//! - two times are taken: until the processes have ended, and until all they did is durable;
//! - the same plan gives the same figures on every machine.
//!
//! A model of NFS 3 ([`measure_nfs`]) stands beside Redbud; it is no more than a model.

mod nfs;
mod site;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bench::loads::Scripted;
use bench::scripts::filebench::{Deed, FileSet, Personality, Thread};
use bench::scripts::xcdn;
use client::CommitCounts;
use serde::Serialize;
use types::{Duration, Ino, Instant};

use env::sim::{SimDisk, SimWorld};

use crate::cluster::{Cluster, Mount, Served, Shape, hard_disk};
use crate::switches::Switches;
use crate::watch::{SAMPLE, Watch};
use bench::{Res, failed};
use site::{Redbud, Site};

/// Clients of the paper's cluster.
pub const CLIENTS: usize = 7;
/// Bytes of the data disk.
const ZONE_BYTES: u64 = 256 << 30;
/// Bytes of the journal of the model of NFS.
const JOURNAL_BYTES: u64 = 1 << 30;
/// Dirty bytes of a client before its writers wait.
pub const DIRTY: usize = 64 << 20;

/// The load.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// One client makes an object, and the next one reads it at once: it is not committed then.
    Conflict {
        /// Bytes of an object.
        bytes: u64,
        /// Objects of each client.
        ops: u64,
    },
    /// One that runs on mounts, too. Of a personality of Filebench there is an instance on each
    /// client, in a directory of its own.
    #[serde(untagged)]
    Scripted(Scripted),
}

impl Load {
    /// xcdn: bytes of an object, and operations of each process.
    pub fn xcdn(bytes: u64, ops: u64) -> Load {
        Load::Scripted(Scripted::Xcdn { bytes, ops })
    }

    /// A personality of Filebench, for so many virtual milliseconds.
    pub fn filebench(personality: Personality, millis: u64) -> Load {
        Load::Scripted(Scripted::Filebench { personality, millis })
    }
}

/// What a client's commit pipeline holds at an instant.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Queue {
    /// Files that are not committed.
    pub files: usize,
    /// Requests with commits that may be in flight.
    pub tasks: usize,
    /// Commits of a request.
    pub degree: usize,
    /// Bytes that are not on a disk yet.
    pub dirty_bytes: u64,
}

impl Queue {
    /// That of this mount now.
    pub fn of(mount: &Mount) -> Queue {
        let CommitCounts { queue: files, tasks, degree, .. } = mount.client.commits();
        Queue { files, tasks, degree, dirty_bytes: mount.client.status().dirty_bytes }
    }
}

/// What a load took.
#[derive(Clone, PartialEq, Serialize, Debug, Default)]
pub struct Took {
    /// Operations of all processes.
    pub ops: u64,
    /// Nanoseconds until the processes had ended.
    pub nanos: u64,
    /// The same until all was durable.
    pub durable_nanos: u64,
    /// Requests of all clients to the server.
    pub requests: u64,
    /// Runs of blocks that the clients offered to their queues of the data disk.
    pub offered: u64,
    /// Requests that these became.
    pub sent: u64,
    /// Requests that the data disk dispatched, and those of them that began elsewhere than the one
    /// before had ended.
    pub dispatched: u64,
    /// See `dispatched`.
    pub seeks: u64,
    /// Those of `dispatched` that read.
    pub disk_reads: u64,
    /// Seeks in each tenth of a second.
    pub seeks_over_time: Vec<u64>,
    /// The first client's commit pipeline after each tenth of a second; none of a model.
    pub queue_over_time: Vec<Queue>,
    /// Reads of whole files, and those of them that the kernel's pages answered.
    pub reads: Reads,
    /// How long the clients' processors were busy, on average, the server's (with messages alone),
    /// and the data disk.
    pub busy_nanos: [u64; 3],
}

/// Reads of whole files.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug, Default)]
pub struct Reads {
    /// All.
    pub all: u64,
    /// Those that the kernel's pages answered.
    pub cached: u64,
}

impl Reads {
    /// With one more.
    fn and(self, cached: bool) -> Reads {
        Reads { all: self.all + 1, cached: self.cached + u64::from(cached) }
    }
}

impl Took {
    /// Operations in a second until all was durable.
    pub fn rate(&self) -> f64 {
        self.ops as f64 * 1e9 / self.durable_nanos.max(1) as f64
    }

    /// Operations in a second until the processes had ended.
    pub fn answered_rate(&self) -> f64 {
        self.ops as f64 * 1e9 / self.nanos.max(1) as f64
    }

    /// Percentages of the time in which a client's processor, the server's (with messages alone)
    /// and the data disk were busy.
    pub fn busy_shares(&self) -> [f64; 3] {
        self.busy_nanos.map(|busy| busy as f64 * 1e2 / self.durable_nanos.max(1) as f64)
    }

    /// The I/O merge ratio: runs that were joined with others, of those that were offered.
    pub fn merge_ratio(&self) -> f64 {
        (self.offered - self.sent.min(self.offered)) as f64 / self.offered.max(1) as f64
    }
}

/// A setting of the system under the load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// For people.
    pub name: &'static str,
    /// What is switched.
    pub switches: Switches,
}

impl Setting {
    /// Those that figures compare. The first is the original of paper 000: the server gives every
    /// place, and a write waits until its data is stable and the server has its commit.
    pub const ALL: [fn() -> Setting; 3] = [
        || Setting { name: SYNCHRONOUS, switches: Switches::without_delegation().synchronous() },
        || Setting { name: DELAYED, switches: Switches::without_delegation() },
        || Setting { name: DELEGATED, switches: Switches::default() },
    ];
}

/// Names of the settings.
pub const SYNCHRONOUS: &str = "synchronous";
/// See [`SYNCHRONOUS`].
pub const DELAYED: &str = "delayed";
/// See [`SYNCHRONOUS`].
pub const DELEGATED: &str = "delayed, delegation";

/// Measures a load with a setting.
///
/// # Errors
/// Those of the cluster and of its clients.
pub fn measure(load: Load, switches: Switches) -> Res<Took> {
    let cluster = Cluster::new(Shape {
        zones: 1,
        zone_bytes: ZONE_BYTES,
        clients: CLIENTS,
        dirty_bytes: DIRTY,
        switches,
    })?;
    cluster.run(|served| async move {
        let sites: Vec<Redbud> = served.mounts.iter().cloned().map(Redbud::new).collect();
        let first = served.mounts[0].clone();
        let look = move || Some(Queue::of(&first));
        play_load(&sites, load, &served.data[0], (|| Counts::of(&served), look)).await
    })
}

/// The same with a model of NFS 3 ([`nfs`]).
///
/// # Errors
/// Those of the simulated disks.
pub fn measure_nfs(load: Load) -> Res<Took> {
    let world = SimWorld::new(1);
    let disk = hard_disk(&world, "nfs-data", ZONE_BYTES);
    hard_disk(&world, "nfs-journal", JOURNAL_BYTES);
    let nodes = world.clone();
    world.run(|_| async move {
        let sites = nfs::Nfs::start(&nodes, ["nfs-data", "nfs-journal"], CLIENTS).await?;
        play_load(&sites, load, &disk, (Counts::default, || None)).await
    })
}

/// Prepares and does it; `counts` tells what clients have counted, `look` what the first one's
/// commit pipeline holds, and `disk` has the data.
async fn play_load<S: Site>(
    sites: &[S],
    load: Load,
    disk: &SimDisk,
    (counts, look): (impl Fn() -> Counts, impl Fn() -> Option<Queue> + 'static),
) -> Res<Took> {
    let work = Prepared::make(sites, load).await?;
    let report = || {
        let report = disk.report().unwrap_or_default();
        let busy = report.busy.as_nanos() as u64;
        (report.dispatched(), report.seeks, busy, report.reads)
    };
    let busy = || sites.iter().map(|site| site.busy().as_nanos() as u64).sum::<u64>();
    let (before, disk_before, busy_before) = (counts(), report(), busy());
    let reads_before = all_reads(sites);
    let env = sites[0].env();
    let (seeks, mut seen) = (disk.clone(), disk_before.1);
    let watch = Watch::start(env, SAMPLE, move || {
        let now = seeks.report().map_or(0, |report| report.seeks);
        (now - std::mem::replace(&mut seen, now), look())
    });
    let (ops, nanos, durable_nanos) = work.run(sites).await?;
    let (after, disk_after, reads) = (counts(), report(), all_reads(sites));
    let clients = (busy() - busy_before) / sites.len() as u64;
    let server = (after.server_busy - before.server_busy).as_nanos() as u64;
    let (seeks_over_time, queue_over_time): (Vec<_>, Vec<_>) =
        watch.end().await.into_iter().unzip();
    Ok(Took {
        ops,
        nanos,
        durable_nanos,
        requests: after.requests - before.requests,
        offered: after.offered - before.offered,
        sent: after.sent - before.sent,
        dispatched: disk_after.0 - disk_before.0,
        seeks: disk_after.1 - disk_before.1,
        disk_reads: disk_after.3 - disk_before.3,
        seeks_over_time,
        queue_over_time: queue_over_time.into_iter().flatten().collect(),
        reads: Reads {
            all: reads.all - reads_before.all,
            cached: reads.cached - reads_before.cached,
        },
        busy_nanos: [clients, server, disk_after.2 - disk_before.2],
    })
}

fn all_reads<S: Site>(sites: &[S]) -> Reads {
    sites.iter().map(Site::reads).fold(Reads::default(), |sum, one| Reads {
        all: sum.all + one.all,
        cached: sum.cached + one.cached,
    })
}

/// What clients have counted so far. The model of NFS counts nothing.
#[derive(Default)]
struct Counts {
    requests: u64,
    offered: u64,
    sent: u64,
    server_busy: Duration,
}

impl Counts {
    fn of(served: &Served) -> Counts {
        let loads: Vec<_> = served.mounts.iter().flat_map(|mount| mount.client.devices()).collect();
        Counts {
            requests: served.requests(),
            offered: loads.iter().map(|device| device.load.writes).sum(),
            sent: loads.iter().map(|device| device.load.requests).sum(),
            server_busy: served.server_busy(),
        }
    }
}

/// A load whose files are there.
enum Prepared {
    Xcdn { tree: Vec<Rc<Tree>>, bytes: u64, ops: u64 },
    Filebench { instances: Vec<Rc<Instance>>, millis: u64 },
    Conflict { dirs: Vec<Ino>, bytes: u64, ops: u64 },
}

/// The directories of xcdn as a client knows them.
type Tree = BTreeMap<(u64, u64), Ino>;

/// An instance of Filebench.
struct Instance {
    set: RefCell<FileSet>,
    dirs: Vec<Ino>,
    /// The inode and the size of each file that exists.
    files: RefCell<BTreeMap<usize, (Ino, u64)>>,
}

/// Lets each site do something at the same time; what they found, in their order.
async fn each<S: Site, T: 'static, F: Future<Output = Res<T>> + 'static>(
    sites: &[S],
    work: impl Fn(usize, S) -> F,
) -> Res<Vec<T>> {
    let start =
        |(number, site): (usize, &S)| site.env().clone().spawn_join(work(number, site.clone()));
    let tasks: Vec<_> = sites.iter().enumerate().map(start).collect();
    let mut found = Vec::new();
    for task in tasks {
        found.push(task.await?);
    }
    Ok(found)
}

/// Lets `count` processes of a site work at the same time; the sum of what they did.
async fn processes<S: Site, F: Future<Output = Res<u64>> + 'static>(
    site: S,
    count: u64,
    work: impl Fn(u64, S) -> F,
) -> Res<u64> {
    let start = |number| site.env().spawn_join(work(number, site.clone()));
    let tasks: Vec<_> = (0..count).map(start).collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.await?;
    }
    Ok(sum)
}

async fn sync<S: Site>(sites: &[S]) -> Res<()> {
    each(sites, |_, site| async move { site.sync().await }).await.map(drop)
}

impl Prepared {
    async fn make<S: Site>(sites: &[S], load: Load) -> Res<Prepared> {
        let prepared = match load {
            Load::Scripted(Scripted::Xcdn { bytes, ops }) => {
                make_tree(&sites[0]).await?;
                sync(sites).await?;
                let tree = each(sites, |_, site| async move { find_tree(&site).await }).await?;
                let stock = |client: usize, site: S| {
                    let tree = tree[client].clone();
                    processes(site, xcdn::PROCESSES, move |process, site| {
                        stock(site, tree.clone(), number(client, process), bytes)
                    })
                };
                each(sites, stock).await?;
                Prepared::Xcdn { tree, bytes, ops }
            }
            Load::Scripted(Scripted::Filebench { personality, millis }) => {
                let make = |number, site| async move { instance(&site, personality, number).await };
                Prepared::Filebench { instances: each(sites, make).await?, millis }
            }
            Load::Conflict { bytes, ops } => {
                let mut dirs = Vec::new();
                for number in 0..sites.len() {
                    dirs.push(sites[0].mkdir(Ino::ROOT, &format!("client{number}")).await?);
                }
                Prepared::Conflict { dirs, bytes, ops }
            }
        };
        sync(sites).await?;
        if matches!(prepared, Prepared::Xcdn { .. }) {
            sites.iter().for_each(Site::drop_pages);
        }
        Ok(prepared)
    }

    /// Does it: operations, nanoseconds until the processes had ended, and until all was durable.
    async fn run<S: Site>(&self, sites: &[S]) -> Res<(u64, u64, u64)> {
        let env = sites[0].env().clone();
        let begin = env.now();
        let ops = match self {
            Prepared::Xcdn { tree, bytes, ops } => {
                let (bytes, ops, all) = (*bytes, *ops, sites.len() as u64 * xcdn::PROCESSES);
                let work = |client: usize, site: S| {
                    let tree = tree[client].clone();
                    processes(site, xcdn::PROCESSES, move |process, site| {
                        let script = xcdn::Script::new(number(client, process), all, ops);
                        play(site, tree.clone(), script, bytes)
                    })
                };
                each(sites, work).await?
            }
            Prepared::Filebench { instances, millis } => {
                let end = begin + Duration::from_millis(*millis);
                let work = |client: usize, site: S| {
                    let instance = instances[client].clone();
                    let threads = instance.set.borrow().threads() as u64;
                    processes(site, threads, move |_, site| thread(site, instance.clone(), end))
                };
                each(sites, work).await?
            }
            Prepared::Conflict { dirs, bytes, ops } => {
                let (bytes, ops) = (*bytes, *ops);
                let work = |client: usize, site: S| {
                    let (dir, reader) = (dirs[client], sites[(client + 1) % sites.len()].clone());
                    async move { conflict(&site, &reader, dir, bytes, ops).await }
                };
                each(sites, work).await?
            }
        };
        let nanos = (env.now() - begin).as_nanos() as u64;
        sync(sites).await?;
        Ok((ops.iter().sum(), nanos, (env.now() - begin).as_nanos() as u64))
    }
}

/// The number of a client's process among all.
fn number(client: usize, process: u64) -> u64 {
    client as u64 * xcdn::PROCESSES + process
}

async fn make_tree<S: Site>(site: &S) -> Res<()> {
    for outer in 0..xcdn::WIDTH {
        let dir = site.mkdir(Ino::ROOT, &xcdn::dir_name(outer)).await?;
        for inner in 0..xcdn::WIDTH {
            site.mkdir(dir, &xcdn::dir_name(inner)).await?;
        }
    }
    Ok(())
}

async fn find_tree<S: Site>(site: &S) -> Res<Rc<Tree>> {
    let mut tree = Tree::new();
    for outer in 0..xcdn::WIDTH {
        let dir = site.lookup(Ino::ROOT, &xcdn::dir_name(outer)).await?;
        for inner in 0..xcdn::WIDTH {
            tree.insert((outer, inner), site.lookup(dir, &xcdn::dir_name(inner)).await?);
        }
    }
    Ok(Rc::new(tree))
}

async fn write_object<S: Site>(site: &S, dir: Ino, name: &str, bytes: u64) -> Res<()> {
    let (ino, open) = site.create(dir, name).await?;
    site.write(ino, open, 0, bytes).await?;
    site.close(open).await
}

async fn read_object<S: Site>(site: &S, dir: Ino, name: &str, bytes: u64) -> Res<()> {
    let ino = site.lookup(dir, name).await?;
    let open = site.open(ino).await?;
    site.read(ino, open, bytes).await?;
    site.close(open).await
}

fn dir_of(tree: &Tree, object: xcdn::Object) -> Res<Ino> {
    match tree.get(&object.dir()) {
        Some(&dir) => Ok(dir),
        None => failed("xcdn", format!("there is no directory for {object:?}")),
    }
}

async fn stock<S: Site>(site: S, tree: Rc<Tree>, process: u64, bytes: u64) -> Res<u64> {
    for object in xcdn::stock(process) {
        write_object(&site, dir_of(&tree, object)?, &object.name(), bytes).await?;
    }
    Ok(xcdn::STOCK)
}

async fn play<S: Site>(site: S, tree: Rc<Tree>, script: xcdn::Script, bytes: u64) -> Res<u64> {
    let mut ops = 0;
    for deed in script {
        match deed {
            xcdn::Deed::Write(object) => {
                write_object(&site, dir_of(&tree, object)?, &object.name(), bytes).await?;
            }
            xcdn::Deed::Read(object) => {
                read_object(&site, dir_of(&tree, object)?, &object.name(), bytes).await?;
            }
        }
        ops += 1;
    }
    Ok(ops)
}

/// One client writes and closes, the next one reads, in turns.
async fn conflict<S: Site>(writer: &S, reader: &S, dir: Ino, bytes: u64, ops: u64) -> Res<u64> {
    for number in 0..ops {
        let name = format!("object-{number:07}");
        write_object(writer, dir, &name, bytes).await?;
        read_object(reader, dir, &name, bytes).await?;
    }
    Ok(2 * ops)
}

/// Makes the tree of an instance, and the files that exist at first.
async fn instance<S: Site>(site: &S, what: Personality, number: usize) -> Res<Rc<Instance>> {
    let set = FileSet::new(what, number as u64);
    let mut dirs = vec![site.mkdir(Ino::ROOT, &format!("client{number}")).await?];
    for dir in &set.dirs()[1..] {
        dirs.push(site.mkdir(dirs[dir.within], &dir.name).await?);
    }
    let mut files = BTreeMap::new();
    for &number in set.first() {
        let file = &set.files()[number];
        let (ino, open) = site.create(dirs[file.within], &file.name).await?;
        site.write(ino, open, 0, file.bytes).await?;
        site.close(open).await?;
        files.insert(number, (ino, file.bytes));
    }
    Ok(Rc::new(Instance { set: RefCell::new(set), dirs, files: RefCell::new(files) }))
}

/// A thread of an instance, until `end`.
async fn thread<S: Site>(site: S, instance: Rc<Instance>, end: Instant) -> Res<u64> {
    let (mut thread, mut open, mut ops) = (Thread::default(), None, 0);
    while site.env().now() < end {
        let deed = instance.set.borrow_mut().next(&mut thread);
        instance.act(&site, deed, &mut open).await?;
        instance.set.borrow_mut().done(&mut thread);
        ops += u64::from(deed != Deed::Nothing);
    }
    if let Some((_, handle)) = open {
        site.close(handle).await?;
    }
    Ok(ops)
}

impl Instance {
    fn place(&self, number: usize) -> (Ino, String) {
        let set = self.set.borrow();
        let file = &set.files()[number];
        (self.dirs[file.within], file.name.clone())
    }

    /// The inode and the size of an existing file.
    fn file(&self, number: usize) -> Res<(Ino, u64)> {
        match self.files.borrow().get(&number) {
            Some(&file) => Ok(file),
            None => failed("Filebench", format!("file {number} is to be used, and does not exist")),
        }
    }

    /// Does a deed of a thread, whose open file is `open`.
    async fn act<S: Site>(
        &self,
        site: &S,
        deed: Deed,
        open: &mut Option<(usize, S::Open)>,
    ) -> Res<()> {
        match (deed, *open) {
            (Deed::Create(file), _) => {
                let (dir, name) = self.place(file);
                let (ino, handle) = site.create(dir, &name).await?;
                self.files.borrow_mut().insert(file, (ino, 0));
                *open = Some((file, handle));
            }
            (Deed::Open(file), _) => {
                *open = Some((file, site.open(self.file(file)?.0).await?));
            }
            (Deed::Stat(file), _) => site.stat(self.file(file)?.0).await?,
            (Deed::Delete(file), _) => {
                let ((dir, name), (ino, _)) = (self.place(file), self.file(file)?);
                self.files.borrow_mut().remove(&file);
                site.unlink(dir, &name, ino).await?;
            }
            (Deed::Write(bytes), Some((file, handle))) => {
                let (ino, size) = self.file(file)?;
                site.write(ino, handle, 0, bytes).await?;
                self.grown(file, size.max(bytes));
            }
            (Deed::Append(bytes), Some((file, handle))) => {
                let (ino, size) = self.file(file)?;
                // Another thread that appends now writes the same bytes, as with lseek and write.
                site.write(ino, handle, size, bytes).await?;
                self.grown(file, size + bytes);
            }
            (Deed::Read, Some((file, handle))) => {
                let (ino, size) = self.file(file)?;
                site.read(ino, handle, size).await?;
            }
            (Deed::Fsync, Some((_, handle))) => site.fsync(handle).await?,
            (Deed::Close, Some((_, handle))) => {
                *open = None;
                site.close(handle).await?;
            }
            (Deed::Nothing, _) => site.env().sleep(Duration::from_micros(1)).await,
            (deed, None) => return failed("Filebench", format!("{deed:?} without an open file")),
        }
        Ok(())
    }

    fn grown(&self, file: usize, size: u64) {
        if let Some((_, bytes)) = self.files.borrow_mut().get_mut(&file) {
            *bytes = size.max(*bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xcdn_is_faster_and_joined_when_writes_do_not_wait() {
        let run = |switches| measure(Load::xcdn(32 << 10, 12), switches);
        let delayed = run(Switches::default()).unwrap();
        let synchronous = run(Switches::default().synchronous()).unwrap();
        for took in [&delayed, &synchronous] {
            assert_eq!(took.ops, CLIENTS as u64 * xcdn::PROCESSES * 12, "{took:?}");
            assert!(took.nanos <= took.durable_nanos && took.dispatched > 0, "{took:?}");
        }
        assert!(delayed.rate() > 1.2 * synchronous.rate(), "{delayed:?} {synchronous:?}");
        assert!(delayed.merge_ratio() > synchronous.merge_ratio(), "{delayed:?} {synchronous:?}");
        let longest = |took: &Took| took.queue_over_time.iter().map(|queue| queue.files).max();
        assert!(longest(&delayed) > longest(&synchronous), "{delayed:?} {synchronous:?}");
        assert!(delayed.reads.all > 0 && delayed.reads.cached < delayed.reads.all, "{delayed:?}");
        for busy in delayed.busy_nanos {
            assert!(busy > 0 && busy <= delayed.durable_nanos, "{delayed:?}");
        }
        assert_eq!(run(Switches::default()).unwrap(), delayed, "the same figures again");
    }

    #[test]
    fn objects_are_read_by_the_next_client_as_soon_as_they_are_closed() {
        let took =
            measure(Load::Conflict { bytes: 32 << 10, ops: 6 }, Switches::default()).unwrap();
        assert_eq!(took.ops, CLIENTS as u64 * 12);
    }

    #[test]
    fn model_of_nfs_does_the_same_operations_and_commits_in_groups() {
        let load = Load::xcdn(32 << 10, 12);
        let took = measure_nfs(load).unwrap();
        assert_eq!(took.ops, CLIENTS as u64 * xcdn::PROCESSES * 12);
        let writes = (0..CLIENTS as u64 * xcdn::PROCESSES)
            .flat_map(|process| xcdn::Script::new(process, CLIENTS as u64 * xcdn::PROCESSES, 12))
            .filter(|deed| matches!(deed, xcdn::Deed::Write(_)))
            .count() as u64;
        assert!(took.dispatched < took.ops && took.dispatched > took.ops - writes, "{took:?}");
        // 1 Gb/s passes 16 MiB of objects no faster.
        assert!(took.nanos > writes * (32 << 10) * 8, "{took:?}");
        assert_eq!(measure_nfs(load).unwrap(), took, "the same figures again");
        let conflict = measure_nfs(Load::Conflict { bytes: 32 << 10, ops: 6 }).unwrap();
        assert_eq!(conflict.ops, CLIENTS as u64 * 12);
    }

    #[test]
    fn loads_are_written_as_those_of_mounts() {
        let json = |load: Load| serde_json::to_string(&load).unwrap();
        let mounted = Scripted::Xcdn { bytes: 4096, ops: 2 };
        assert_eq!(json(Load::xcdn(4096, 2)), serde_json::to_string(&mounted).unwrap());
        let conflict = json(Load::Conflict { bytes: 1, ops: 2 });
        assert_eq!(conflict, r#"{"conflict":{"bytes":1,"ops":2}}"#);
    }

    #[test]
    fn personality_runs_for_its_time_on_all_clients() {
        let load = Load::filebench(Personality::Varmail, 200);
        let took = measure(load, Switches::default()).unwrap();
        assert!(took.ops > 7 * 16 && took.nanos >= 200_000_000, "{took:?}");
        assert!(took.nanos < 1_000_000_000, "threads end soon after their time: {took:?}");
    }
}
