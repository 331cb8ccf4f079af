//! The servers that users run, in virtual time: distributed operations of one directory, creates
//! in directories of their own, and what the death of a server costs the others.
//!
//! Directories with a name at one server and their inode at another one stand for the paper's
//! distributed creates (003 §III): it is the same work, and each holds the parent's gate until its
//! protocol frees it.

use commitment::Protocol;
use serde::Serialize;
use types::{Duration, Ino};

use crate::cluster::Mount;
use crate::shards::{Kind, Logs, Served, Shape, run};
use bench::Res;
use bench::report::Columns;

/// Clients of the distributed operations; each has one in flight.
const CLIENTS: usize = 8;
/// By how much 1PC is faster than PrN, at least.
const ONE_PHASE: f64 = 1.55;
/// By how much 1PC in batches of what waits is faster than 1PC alone, at least.
const BATCHED: f64 = 3.0;
/// Servers whose directories are compared with those of one, and by how much they are faster.
const SERVERS: u8 = 4;
const SCALED: f64 = 3.5;
/// Processes of each client that create in directories of their own.
const PROCESSES: usize = 8;
/// Clients there: more than one server can serve.
const MANY_CLIENTS: usize = 32;
/// For how long processes create while a server dies.
const WATCHED: Duration = Duration::from_secs(4);
/// Between two creates of a process then.
const PAUSE: Duration = Duration::from_millis(2);

/// How much is done.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Size {
    /// Distributed operations of each client.
    pub distributed: u64,
    /// Creates of each process in a directory of its own.
    pub own: u64,
}

impl Size {
    /// That of the figure.
    pub const FULL: Size = Size { distributed: 50, own: 100 };
}

/// Distributed operations of one directory in a second.
#[derive(Serialize, Debug)]
struct Distributed {
    logs: Logs,
    /// Each by itself, by protocol.
    alone: [f64; 4],
    /// Those that wait together, by protocol.
    batched: [f64; 4],
}

/// See the module.
#[derive(Serialize, Debug)]
pub struct Servers {
    size: Size,
    /// Distributed operations in a second, for each place of the logs.
    distributed: Vec<Distributed>,
    /// Creates in a second, in directories of their own, by number of servers.
    own: Vec<(u8, f64)>,
    /// The longest create at the other three of four servers, in milliseconds: nothing happens,
    /// and one of them is killed.
    longest: (f64, f64),
}

impl Servers {
    /// Measures it.
    ///
    /// # Errors
    /// The servers' or the clients'.
    pub fn measure(size: Size, progress: &mut dyn FnMut(&str)) -> Res<Servers> {
        let mut distributed = Vec::new();
        for logs in [Logs::Own, Logs::Shared] {
            let mut rates = [[0.0; 4]; 2];
            for (rates, batch) in rates.iter_mut().zip([1, mds::BATCH_MAX]) {
                for (rate, protocol) in rates.iter_mut().zip(Protocol::ALL) {
                    *rate = one_directory(size, (logs, batch), protocol)?;
                    let name = protocol.name();
                    progress(&format!("F17, servers, {name} by up to {batch}: {rate:.0}/s"));
                }
            }
            let [alone, batched] = rates;
            distributed.push(Distributed { logs, alone, batched });
        }
        let mut own = Vec::new();
        for servers in [1, 2, SERVERS] {
            let rate = directories(size, servers)?;
            progress(&format!("F17, {servers} servers: {rate:.0} creates/s"));
            own.push((servers, rate));
        }
        let longest = (longest_create(false)?, longest_create(true)?);
        Ok(Servers { size, distributed, own, longest })
    }

    /// Is 1PC faster than the other protocols, wherever the logs are?
    #[cfg(test)]
    pub fn one_phase_is_ahead(&self) -> bool {
        self.distributed.iter().all(|it| it.alone[..3].iter().all(|rate| *rate < it.alone[3]))
    }

    /// Is each protocol faster in batches, wherever the logs are?
    #[cfg(test)]
    pub fn batches_are_ahead(&self) -> bool {
        let ahead = |it: &Distributed| it.alone.iter().zip(it.batched).all(|(one, all)| *one < all);
        self.distributed.iter().all(ahead)
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = "\nthe servers that users run, in virtual time\n\n".to_owned();
        let mut columns = Columns::new(&["logs", "PrN", "PrC", "EP", "1PC", "", ""]);
        for Distributed { logs, alone, batched } in &self.distributed {
            let place = format!("{logs:?}").to_lowercase();
            let is_shared = *logs == Logs::Shared;
            let gain = alone[3] / alone[0];
            let met = verdict(gain >= ONE_PHASE, is_shared);
            columns.row(row(place.clone(), alone, [format!("1PC / PrN {gain:.2}"), met]));
            let gain = batched[3] / alone[3];
            let met = verdict(gain >= BATCHED, is_shared);
            let text = format!("batches / 1PC {gain:.2}");
            columns.row(row(format!("{place}, in batches"), batched, [text, met]));
        }
        text += &columns.text();
        let mut columns = Columns::new(&["servers", "creates/s", "times one", ""]);
        for &(servers, rate) in &self.own {
            let times = rate / self.own[0].1;
            let verdict = verdict(times >= SCALED, servers == SERVERS);
            columns.row(vec![
                servers.to_string(),
                format!("{rate:.0}"),
                format!("{times:.2}"),
                verdict,
            ]);
        }
        let (calm, killed) = self.longest;
        format!(
            "{text}\n{}\nlongest create at three of four servers: {calm:.2} ms; while the fourth \
             is killed: {killed:.2} ms\n",
            columns.text()
        )
    }
}

fn row(place: String, rates: &[f64; 4], rest: [String; 2]) -> Vec<String> {
    let rates = rates.iter().map(|rate| format!("{rate:.0}/s"));
    std::iter::once(place).chain(rates).chain(rest).collect()
}

/// Of a figure that has a goal.
fn verdict(met: bool, has_goal: bool) -> String {
    match (has_goal, met) {
        (false, _) => "",
        (true, true) => "met",
        (true, false) => "MISSED",
    }
    .to_owned()
}

/// Operations of all clients in one directory, in a second; `batch`: so many together at most.
fn one_directory(size: Size, (logs, batch): (Logs, usize), protocol: Protocol) -> Res<f64> {
    let shape = Shape { servers: 2, clients: CLIENTS, protocol, batch, logs, disks: Kind::Hard };
    run(shape, |served: Served| async move {
        let dir = served.pinned("shared", 1).await?;
        let work = served.each(1, |n, mount| async move {
            for number in 0..size.distributed {
                mount.mkdir(dir, &format!("{n}-{number}")).await?;
            }
            Ok(())
        });
        let (_, took) = work.await?;
        Ok(rate(CLIENTS as u64 * size.distributed, took))
    })
}

fn rate(done: u64, took: Duration) -> f64 {
    done as f64 / took.as_secs_f64()
}

/// Creates of many processes, each in a directory of its own, by turns at each server.
fn directories(size: Size, servers: u8) -> Res<f64> {
    let protocol = Protocol::OnePhase;
    let (clients, logs, batch) = (MANY_CLIENTS, Logs::Own, mds::BATCH_MAX);
    let shape = Shape { servers, clients, protocol, batch, logs, disks: Kind::Hard };
    run(shape, |served: Served| async move {
        let homes = own_directories(&served, 0, servers, MANY_CLIENTS * PROCESSES).await?;
        let work = served.each(PROCESSES, |n, mount| {
            let dir = homes[n];
            async move {
                for number in 0..size.own {
                    create(&mount, dir, number).await?;
                }
                Ok(())
            }
        });
        let (_, took) = work.await?;
        Ok(rate((MANY_CLIENTS * PROCESSES) as u64 * size.own, took))
    })
}

/// Makes a file, and closes it.
async fn create(mount: &Mount, dir: Ino, number: u64) -> Res<()> {
    let (_, handle) = mount.create(dir, &number.to_string()).await?;
    mount.close(handle).await
}

/// Directories of so many processes, by turns at the servers from `first` on.
async fn own_directories(
    served: &Served,
    first: u8,
    servers: u8,
    processes: usize,
) -> Res<Vec<Ino>> {
    let mut parents = Vec::new();
    for shard in first..servers {
        parents.push(match servers {
            1 => served.mounts[0].mkdir(Ino::ROOT, "0").await?,
            _ => served.pinned(&shard.to_string(), shard).await?,
        });
    }
    let mut homes = Vec::new();
    for process in 0..processes {
        let parent = parents[process % parents.len()];
        homes.push(served.mounts[0].mkdir(parent, &process.to_string()).await?);
    }
    Ok(homes)
}

/// The longest create in directories of the first three of four servers, in milliseconds, while
/// the fourth dies or does not.
fn longest_create(dies: bool) -> Res<f64> {
    let (servers, protocol) = (SERVERS, Protocol::OnePhase);
    let (clients, logs, batch) = (CLIENTS, Logs::Own, mds::BATCH_MAX);
    let shape = Shape { servers, clients, protocol, batch, logs, disks: Kind::Hard };
    run(shape, |served: Served| async move {
        let homes = own_directories(&served, 0, servers - 1, CLIENTS).await?;
        let (clock, end) = (served.env.clone(), served.env.now() + WATCHED);
        if dies {
            served.kill_after(servers - 1, WATCHED / 4);
        }
        let work = served.each(1, |n, mount| {
            let (dir, clock) = (homes[n], clock.clone());
            async move {
                let (mut longest, mut number) = (Duration::ZERO, 0);
                while clock.now() < end {
                    let begin = clock.now();
                    create(&mount, dir, number).await?;
                    longest = longest.max(clock.now() - begin);
                    number += 1;
                    clock.sleep(PAUSE).await;
                }
                Ok(longest)
            }
        });
        let (found, _) = work.await?;
        let longest = found.into_iter().max().unwrap_or_default();
        Ok(longest.as_secs_f64() * 1e3)
    })
}
