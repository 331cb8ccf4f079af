//! A **model** of NFS 3, beside which 000 Fig. 3 shows Redbud: no product, and no real code.
//!
//! Invariants:
//! - one server does everything, and all data pass it. It has the network, the processor's prices
//!   and the two disks of the [`cluster`](crate::cluster): one for data, one for its journal;
//! - an update is one message. A create or a remove is in the journal before its answer;
//! - what a process writes waits in its client until close or fsync. It goes in WRITEs of at most
//!   1 MiB, each on the data disk and in the journal before its answer;
//! - the server commits in groups: what waits while its disk writes is the next write. It places
//!   all files one behind the other as they come, so nothing it writes is a seek;
//! - an open asks for the attributes (close-to-open); a read is answered from the client's pages,
//!   then from the server's, then from the disk.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use env::sim::{Price, SimWorld};
use env::sync::{OneSender, oneshot};
use env::{Disk, DiskOptions, Env};
use types::limits::{BLOCK_U64, IO_MAX};
use types::{Duration, Ino};

use super::Reads;
use super::site::{Site, Station, call_cost};
use crate::cluster::{NET_BANDWIDTH, NET_LATENCY};
use bench::{BenchError, Res, failed};

/// Bytes of a message beside its data.
const HEADER: u64 = 128;
/// Bytes of a change in the journal: a block.
const CHANGE: u64 = BLOCK_U64;

/// The server.
struct Server {
    env: Env,
    processor: Station,
    inbound: Station,
    outbound: Station,
    data: Group,
    journal: Group,
    /// The last inode.
    last: Cell<u64>,
    names: RefCell<BTreeMap<(Ino, String), Ino>>,
    /// Where the pieces of each file lie: the first byte on the disk, and how many.
    places: RefCell<BTreeMap<Ino, Vec<(u64, u64)>>>,
    /// Files whose pages the server has.
    pages: RefCell<BTreeSet<Ino>>,
}

/// A disk that is written from its begin to its end, by groups.
#[derive(Clone)]
struct Group(Rc<GroupState>);

struct GroupState {
    env: Env,
    disk: Disk,
    /// The first byte that nobody has got.
    end: Cell<u64>,
    waiting: RefCell<Vec<Waiting>>,
    /// A write is under way; its end looks for the next group.
    writing: Cell<bool>,
}

struct Waiting {
    at: u64,
    bytes: u64,
    done: OneSender<bool>,
}

impl Group {
    fn new(env: &Env, disk: Disk) -> Group {
        let state = GroupState {
            env: env.clone(),
            disk,
            end: Cell::default(),
            waiting: RefCell::default(),
            writing: Cell::default(),
        };
        Group(Rc::new(state))
    }

    /// So many bytes are on the disk; where they begin.
    async fn force(&self, bytes: u64) -> Res<u64> {
        let state = &self.0;
        let bytes = bytes.next_multiple_of(BLOCK_U64);
        let mut at = state.end.get();
        if at + bytes > state.disk.size() {
            // The journal begins anew; data never come so far.
            at = 0;
        }
        state.end.set(at + bytes);
        let (done, written) = oneshot();
        state.waiting.borrow_mut().push(Waiting { at, bytes, done });
        if !state.writing.replace(true) {
            let group = self.clone();
            state.env.spawn(async move { group.write().await });
        }
        match written.await {
            Some(true) => Ok(at),
            _ => failed("the model of NFS", "its disk refused a write"),
        }
    }

    async fn write(&self) {
        let state = &self.0;
        loop {
            let group = state.waiting.take();
            let Some(first) = group.first() else { break };
            // What begins anew at 0 is another piece.
            let whole: Vec<&Waiting> = group.iter().take_while(|one| one.at >= first.at).collect();
            let bytes: u64 = whole.iter().map(|one| one.bytes).sum();
            let count = whole.len();
            let (result, _) = state.disk.write(first.at, state.env.buffer(bytes as usize)).await;
            let mut group = group.into_iter();
            for one in group.by_ref().take(count) {
                one.done.send(result.is_ok());
            }
            let rest: Vec<Waiting> = group.collect();
            state.waiting.borrow_mut().splice(0..0, rest);
        }
        state.writing.set(false);
    }
}

impl Server {
    /// A request is at the server, and its processor has worked on it.
    async fn asked(&self, bytes: u64, changes: bool) {
        let bytes = bytes + HEADER;
        self.env.sleep(NET_LATENCY).await;
        self.inbound.take(&self.env, transfer(bytes)).await;
        let price = Price::MEASURED;
        let kib = price.of(bytes as usize) - price.of(0);
        self.processor.take(&self.env, price.request(changes) + kib).await;
    }

    /// Its answer is at the client.
    async fn answered(&self, bytes: u64) {
        self.outbound.take(&self.env, transfer(bytes + HEADER)).await;
        self.env.sleep(NET_LATENCY).await;
    }

    /// A change of names, from request to answer.
    async fn changed(&self) -> Res<()> {
        self.asked(0, true).await;
        self.journal.force(CHANGE).await?;
        self.answered(0).await;
        Ok(())
    }

    fn new_name(&self, dir: Ino, name: &str) -> Ino {
        self.last.set(self.last.get() + 1);
        let ino = Ino(self.last.get());
        self.names.borrow_mut().insert((dir, name.to_owned()), ino);
        ino
    }
}

fn transfer(bytes: u64) -> Duration {
    Duration::from_nanos(bytes * 1_000_000_000 / NET_BANDWIDTH)
}

/// A client of the model.
#[derive(Clone)]
pub struct Nfs {
    env: Env,
    server: Rc<Server>,
    processor: Rc<Station>,
    /// Bytes that wait for close or fsync, and pages.
    dirty: Rc<RefCell<BTreeMap<Ino, u64>>>,
    pages: Rc<RefCell<BTreeSet<Ino>>>,
    reads: Rc<Cell<Reads>>,
}

impl Nfs {
    /// A server on disks of these names, and so many clients.
    ///
    /// # Errors
    /// A disk cannot be opened.
    pub async fn start(world: &SimWorld, disks: [&str; 2], clients: usize) -> Res<Vec<Nfs>> {
        let env = world.node("nfs");
        let open = async |name: &str| {
            let options = DiskOptions { write: true, exclusive: true };
            let opened = env.open_disk(name, options).await;
            opened.map_err(|error| BenchError(format!("the model of NFS: {error}")))
        };
        let [data, journal] = [open(disks[0]).await?, open(disks[1]).await?];
        let server = Rc::new(Server {
            processor: Station::default(),
            inbound: Station::default(),
            outbound: Station::default(),
            data: Group::new(&env, data),
            journal: Group::new(&env, journal),
            last: Cell::new(Ino::ROOT.0),
            names: RefCell::default(),
            places: RefCell::default(),
            pages: RefCell::default(),
            env,
        });
        let client = |number| Nfs {
            env: world.node(&format!("client{number}")),
            server: server.clone(),
            processor: Rc::default(),
            dirty: Rc::default(),
            pages: Rc::default(),
            reads: Rc::default(),
        };
        Ok((0..clients).map(client).collect())
    }

    async fn call(&self, bytes: u64) {
        self.processor.take(&self.env, call_cost(bytes)).await;
    }
}

impl Site for Nfs {
    type Open = Ino;

    fn env(&self) -> &Env {
        &self.env
    }

    async fn mkdir(&self, dir: Ino, name: &str) -> Res<Ino> {
        self.call(0).await;
        self.server.changed().await?;
        Ok(self.server.new_name(dir, name))
    }

    async fn lookup(&self, dir: Ino, name: &str) -> Res<Ino> {
        self.call(0).await;
        self.server.asked(0, false).await;
        self.server.answered(0).await;
        let found = self.server.names.borrow().get(&(dir, name.to_owned())).copied();
        found.map_or_else(|| failed("looking up a name", format!("there is no {name}")), Ok)
    }

    async fn create(&self, dir: Ino, name: &str) -> Res<(Ino, Ino)> {
        let ino = self.mkdir(dir, name).await?;
        self.pages.borrow_mut().insert(ino);
        Ok((ino, ino))
    }

    async fn open(&self, ino: Ino) -> Res<Ino> {
        self.call(0).await;
        self.server.asked(0, false).await;
        self.server.answered(0).await;
        Ok(ino)
    }

    async fn write(&self, ino: Ino, _: Ino, _: u64, bytes: u64) -> Res<()> {
        self.call(bytes).await;
        *self.dirty.borrow_mut().entry(ino).or_default() += bytes;
        Ok(())
    }

    async fn read(&self, ino: Ino, _: Ino, bytes: u64) -> Res<()> {
        self.call(bytes).await;
        let cached = self.pages.borrow().contains(&ino);
        self.reads.set(self.reads.get().and(cached));
        if cached {
            return Ok(());
        }
        self.server.asked(0, false).await;
        if self.server.pages.borrow_mut().insert(ino) {
            let places = self.server.places.borrow().get(&ino).cloned().unwrap_or_default();
            for (at, len) in places {
                let disk = &self.server.data.0.disk;
                let (result, _) = disk.read(at, self.env.buffer(len as usize)).await;
                result.map_err(|error| BenchError(format!("the model of NFS: {error}")))?;
            }
        }
        // Each further MiB is a message of its own, sent ahead.
        self.server.answered(bytes + HEADER * (bytes / IO_MAX as u64)).await;
        self.pages.borrow_mut().insert(ino);
        Ok(())
    }

    async fn fsync(&self, ino: Ino) -> Res<()> {
        let Some(bytes) = self.dirty.borrow_mut().remove(&ino) else { return Ok(()) };
        for from in (0..bytes).step_by(IO_MAX) {
            let len = (bytes - from).min(IO_MAX as u64);
            self.server.asked(len, true).await;
            let at = self.server.data.force(len).await?;
            self.server.places.borrow_mut().entry(ino).or_default().push((at, len));
            self.server.journal.force(CHANGE).await?;
            self.server.answered(0).await;
        }
        self.server.pages.borrow_mut().insert(ino);
        Ok(())
    }

    async fn close(&self, ino: Ino) -> Res<()> {
        self.call(0).await;
        self.fsync(ino).await
    }

    async fn stat(&self, _: Ino) -> Res<()> {
        // The client knows the attributes of files that it has just used.
        self.call(0).await;
        Ok(())
    }

    async fn unlink(&self, dir: Ino, name: &str, ino: Ino) -> Res<()> {
        self.call(0).await;
        self.server.changed().await?;
        self.server.names.borrow_mut().remove(&(dir, name.to_owned()));
        self.server.places.borrow_mut().remove(&ino);
        self.server.pages.borrow_mut().remove(&ino);
        self.pages.borrow_mut().remove(&ino);
        Ok(())
    }

    async fn sync(&self) -> Res<()> {
        let dirty: Vec<Ino> = self.dirty.borrow().keys().copied().collect();
        for ino in dirty {
            self.fsync(ino).await?;
        }
        Ok(())
    }

    fn drop_pages(&self) {
        self.pages.borrow_mut().clear();
        self.server.pages.borrow_mut().clear();
    }

    fn reads(&self) -> Reads {
        self.reads.get()
    }

    fn busy(&self) -> Duration {
        self.processor.busy()
    }
}
