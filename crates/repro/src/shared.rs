//! A [`Program`] on a [`cluster`](crate::cluster): its processes run on several clients, write one
//! file and read it back.
//!
//! Invariants:
//! - every process opens the file for itself. It writes without the kernel's pages (`O_DIRECT`), as
//!   programs do that share a file between hosts: so clients hold the right to ranges of it. It
//!   reads with the kernel's read-ahead;
//! - between two requests, a process takes the time that it needs to copy the bytes, more or less
//!   by chance: so the requests of one host alternate, and do not come in a fixed order;
//! - writing ends when everything is durable; reading begins after that, and nothing is cached;
//! - the same plan gives the same figures on every machine.

use client::{Handle, OpenFlags};
use env::sim::{Price, SimRng};
use proto::placement::Layout;
use proto::prealloc::{Allocation, Policy, When};
use serde::Serialize;
use types::{Duration, Ino};

use crate::cluster::{Cluster, Mount, Served, Shape, refused};
use crate::programs::{Access, Program, Step};
use crate::snapshot::{Run, runs_of};
use crate::switches::Switches;
use crate::watch::{SAMPLE, Watch};
use bench::{Res, failed};

/// Bytes of a data zone.
const ZONE_BYTES: u64 = 64 << 30;
/// Dirty bytes of a client before its writers wait.
const DIRTY: usize = 64 << 20;
/// What a process does in a microsecond: it copies so many bytes, 1 GB/s.
const COPIED: u64 = 1000;
/// Microseconds of a process's request besides, at most: the mean is half of it.
const PAUSE: u64 = 20;

/// How a file comes by its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// For people.
    pub name: &'static str,
    /// What clients do.
    pub switches: Switches,
    /// The whole file gets its blocks before it is written, by fallocate(2).
    pub announced: bool,
}

/// What runs, and on what.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The program.
    pub program: Program,
    /// Processes on each client.
    pub per_client: u64,
    /// Data zones.
    pub zones: u16,
    /// Where the file's blocks go.
    pub layout: Layout,
    /// How it comes by them.
    pub way: Way,
}

impl Way {
    /// Places are chosen at the write, as in the papers.
    pub fn at_write(name: &'static str, how: Policy) -> Way {
        let allocation = Allocation { how, when: When::Write, ..Allocation::default() };
        Way { switches: allocation.into(), ..Way::product(name) }
    }

    /// What a mount does without options.
    pub fn product(name: &'static str) -> Way {
        Way { name, switches: Switches::default(), announced: false }
    }
}

/// What a run took.
#[derive(Clone, Copy, PartialEq, Serialize, Debug)]
pub struct Took {
    /// Pieces of the file in the end, each contiguous in the file and on a device.
    pub segments: u64,
    /// Segments that the server keeps for them: it does not join all neighbours.
    pub stored: u64,
    /// Bytes written, and nanoseconds until they were durable.
    pub written: u64,
    /// See `written`.
    pub write_nanos: u64,
    /// Bytes read, and nanoseconds of it.
    pub read: u64,
    /// See `read`.
    pub read_nanos: u64,
    /// Requests of all clients to the server.
    pub requests: u64,
    /// Nanoseconds of the server's processor, at most: as if every request were a change.
    pub server_nanos: u64,
}

impl Took {
    /// MB a second of all processes that write.
    pub fn write_rate(&self) -> f64 {
        self.written as f64 * 1e3 / self.write_nanos.max(1) as f64
    }

    /// The same of those that read.
    pub fn read_rate(&self) -> f64 {
        self.read as f64 * 1e3 / self.read_nanos.max(1) as f64
    }

    /// The share of the server's processor, at most.
    pub fn server_share(&self) -> f64 {
        self.server_nanos as f64 / (self.write_nanos + self.read_nanos).max(1) as f64
    }
}

/// The processes' handles of the file, and the clients that they run on.
struct Open {
    mounts: Vec<Mount>,
    handles: Vec<Handle>,
}

/// Runs it.
///
/// # Errors
/// Those of the cluster and of its clients.
pub fn measure(plan: &Plan) -> Res<Took> {
    watch(plan, |_| ()).map(|(took, _)| took)
}

/// The same. Besides, `look` at the first client after each [`SAMPLE`] from the first write until
/// all that was written is durable.
///
/// # Errors
/// Those of the cluster and of its clients.
pub fn watch<T: 'static>(
    plan: &Plan,
    mut look: impl FnMut(&Mount) -> T + 'static,
) -> Res<(Took, Vec<T>)> {
    let cluster = Cluster::new(Shape {
        zones: plan.zones,
        zone_bytes: ZONE_BYTES,
        clients: plan.program.processes().div_ceil(plan.per_client) as usize,
        dirty_bytes: DIRTY,
        switches: plan.way.switches,
    })?;
    let plan = plan.clone();
    cluster.run(|served| async move {
        let ino = make(&served, &plan).await?;
        let (asked, busy) = (served.requests(), served.server_busy());
        let first = served.mounts[0].clone();
        let watch = Watch::start(&served.env, SAMPLE, move || look(&first));
        let begin = served.env.now();
        let written = {
            let open =
                Open::new(&served, &plan, ino, OpenFlags::WRITE_ONLY | OpenFlags::DIRECT).await?;
            let written = open.run(plan.program.writes(), Doing::Writes).await?;
            open.close().await?;
            written
        };
        let (_, _) = served.each(|_, mount| async move { mount.sync().await }).await?;
        let write_nanos = (served.env.now() - begin).as_nanos() as u64;
        let samples = watch.end().await;
        let begin = served.env.now();
        let open = Open::new(&served, &plan, ino, 0).await?;
        let read = open.run(plan.program.reads(), Doing::Reads).await?;
        let read_nanos = (served.env.now() - begin).as_nanos() as u64;
        open.close().await?;
        let requests = served.requests() - asked;
        let messages = (served.server_busy() - busy).as_nanos() as u64;
        let runs = runs_of(&served.mfs, ino).await?;
        let took = Took {
            segments: pieces(&runs),
            stored: runs.len() as u64,
            written,
            write_nanos,
            read,
            read_nanos,
            requests,
            server_nanos: messages + requests * Price::MEASURED.change.as_nanos() as u64,
        };
        Ok((took, samples))
    })
}

/// Contiguous pieces of a file without holes that lies there.
fn pieces(runs: &[Run]) -> u64 {
    let continues = |pair: &&[Run]| pair[0].zone == pair[1].zone && pair[0].to == pair[1].from;
    (runs.len() - runs.windows(2).filter(continues).count()) as u64
}

/// Makes the file in a directory with the layout.
async fn make(served: &Served, plan: &Plan) -> Res<Ino> {
    let mount = &served.mounts[0];
    let dir = mount.mkdir(Ino::ROOT, "shared").await?;
    mount.set_layout(dir, &plan.layout).await?;
    mount.sync().await?;
    let (entry, handle) = mount.create(dir, "file").await?;
    let ino = entry.attr.ino;
    if plan.way.announced {
        mount.allocate(ino, handle, plan.program.bytes()).await?;
    }
    mount.close(handle).await?;
    mount.sync().await?;
    Ok(ino)
}

impl Open {
    /// Every process opens the file.
    async fn new(served: &Served, plan: &Plan, ino: Ino, flags: u32) -> Res<Open> {
        let (mut mounts, mut handles) = (Vec::new(), Vec::new());
        for process in 0..plan.program.processes() {
            let mount = served.mounts[(process / plan.per_client) as usize].clone();
            handles.push(mount.open(ino, flags).await?);
            mounts.push(mount);
        }
        Ok(Open { mounts, handles })
    }

    /// The processes do these steps; the bytes of all their requests.
    async fn run(&self, steps: Vec<Step>, doing: Doing) -> Res<u64> {
        let mut bytes = 0;
        for (nth, step) in steps.into_iter().enumerate() {
            let mut tasks = Vec::new();
            for (process, accesses) in step.into_iter().enumerate() {
                bytes += accesses.iter().map(|access| access.len).sum::<u64>();
                let (mount, handle) = (self.mounts[process].clone(), self.handles[process]);
                let rng = SimRng::new((nth as u64) << 32 | process as u64);
                let env = mount.env.clone();
                tasks.push(env.spawn_join(work(mount, handle, accesses, doing, rng)));
            }
            for task in tasks {
                task.await?;
            }
        }
        Ok(bytes)
    }

    async fn close(self) -> Res<()> {
        for (mount, handle) in self.mounts.iter().zip(self.handles) {
            mount.close(handle).await?;
        }
        Ok(())
    }
}

/// What processes do with the ranges of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Writes,
    Reads,
}

/// One process.
async fn work(
    mount: Mount,
    handle: Handle,
    accesses: Vec<Access>,
    doing: Doing,
    mut rng: SimRng,
) -> Res<()> {
    for Access { at, len } in accesses {
        mount.env.sleep(Duration::from_micros(len / COPIED + rng.below(PAUSE + 1))).await;
        if doing == Doing::Writes {
            mount.write(handle, at, mount.env.buffer(len as usize)).await?;
            continue;
        }
        let read = mount.client.read(handle, at, len as u32, true).await;
        match read.map_err(|fault| refused("reading", fault))?.len() as u64 {
            whole if whole == len => {}
            part => return failed("reading", format!("{part} of {len} bytes are there")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::Ior;
    use crate::streams::striping;

    fn run(way: Way) -> Took {
        let ior = Ior { processes: 4, requests: 16, request: 64 << 10, strided: false };
        let layout = striping(512);
        measure(&Plan { program: Program::Ior(ior), per_client: 2, zones: 2, layout, way }).unwrap()
    }

    #[test]
    fn ways_place_the_same_bytes_in_fewer_and_fewer_pieces() {
        let vanilla = run(Way::at_write("vanilla", Policy::Vanilla));
        let od = run(Way::at_write("od", Policy::default()));
        let announced = run(Way { announced: true, ..Way::product("static") });
        let all = [vanilla, od, announced];
        for took in &all {
            assert!(took.written == 4 << 20 && took.read == 8 << 20, "{took:?}");
            assert!(took.server_share() < 1.0 && took.stored >= took.segments, "{took:?}");
        }
        let [vanilla, od, announced] = all.map(|took| took.segments);
        assert!(
            vanilla >= 48 && od * 3 <= vanilla && announced <= od,
            "{vanilla} {od} {announced}"
        );
        assert_eq!(run(Way::at_write("od", Policy::default())), all[1], "the same figures again");
    }
}
