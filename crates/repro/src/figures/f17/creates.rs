//! Creates of many sessions in one directory, by one server and by four that share out its files
//! (004 §IV.C: each of twelve processes on 18,688 nodes makes a file), in virtual time.
//!
//! Invariants:
//! - sessions are those that users' clients have, and requests those that make and open a file; a
//!   client sends one after the other, and each to the server that its name chooses;
//! - of processors only messages take virtual time. What the servers' code takes of a real one is
//!   measured beside, and is not the same on every machine.

mod clients;

use commitment::Protocol;
use serde::Serialize;
use types::{Duration, Ino};

use self::clients::{Sessions, name};
use crate::figures::chart::{self, Panel};
use crate::shards::{Kind, Logs, Served, Shape, run};
use bench::Res;
use bench::report::Columns;

/// Sessions that are opened at once.
const AT_ONCE: usize = 512;
/// Sessions of one host of clients.
const OF_HOST: usize = 32;
/// Servers that are compared with one, and by how much they are faster at least.
const SERVERS: u8 = 4;
const GOAL: f64 = 2.0;

/// How much is done.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Size {
    /// Clients, each with a session at every server.
    pub sessions: usize,
    /// Files that each makes.
    pub each: usize,
}

impl Size {
    /// That of the paper: 224,256 files.
    pub const FULL: Size = Size { sessions: 18_688, each: 12 };
}

/// See the module.
#[derive(Serialize, Debug)]
pub struct Creates {
    version: u32,
    size: Size,
    rows: Vec<Row>,
}

/// One run.
#[derive(Serialize, Debug)]
struct Row {
    disks: Kind,
    servers: u8,
    /// Creates in a second.
    rate: f64,
    /// Creations in a batch, on the average.
    batch: f64,
    /// Share of the time that each server's processor is busy with messages.
    busy: Vec<f64>,
    /// Real processor time of each server's code for a create at any server, in microseconds.
    real: Vec<f64>,
}

impl Creates {
    /// Measures it.
    ///
    /// # Errors
    /// The servers' or the clients'.
    pub fn measure(size: Size, progress: &mut dyn FnMut(&str)) -> Res<Creates> {
        let mut rows = Vec::new();
        for disks in [Kind::Flash, Kind::Hard] {
            for servers in [1, SERVERS] {
                let row = measure(size, disks, servers)?;
                let rate = row.rate;
                progress(&format!("creates, {disks:?}, {servers} servers: {rate:.0}/s"));
                rows.push(row);
            }
        }
        Ok(Creates { version: 1, size, rows })
    }

    /// The row of one server on the same disks.
    fn one(&self, row: &Row) -> f64 {
        let one = self.rows.iter().find(|it| it.servers == 1 && it.disks == row.disks);
        one.map_or(f64::NAN, |one| one.rate)
    }

    /// For people.
    pub fn text(&self) -> String {
        let Size { sessions, each } = self.size;
        let mut columns = Columns::new(&[
            "disks",
            "servers",
            "creates/s",
            "times one",
            "",
            "in a batch",
            "primary's us",
            "others' us",
        ]);
        for row in &self.rows {
            let times = row.rate / self.one(row);
            let verdict = match (row.servers, times >= GOAL) {
                (1, _) => "",
                (_, true) => "met",
                (_, false) => "MISSED",
            };
            let others = row.real.iter().skip(1).copied().fold(0.0, f64::max);
            columns.row(vec![
                format!("{:?}", row.disks).to_lowercase(),
                row.servers.to_string(),
                format!("{:.0}", row.rate),
                format!("{times:.2}"),
                verdict.to_owned(),
                format!("{:.1}", row.batch),
                format!("{:.1}", row.real.first().copied().unwrap_or_default()),
                format!("{others:.1}"),
            ]);
        }
        format!(
            "{} creates in one directory, {sessions} sessions at each server, virtual time\n\n{}\n\
             us: real processor time of a server's code by all creates; the simulated network and \
             disks are in it\n",
            sessions * each,
            columns.text()
        )
    }

    /// Creates in a second, by servers and disks.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn svg(&self) -> Res<String> {
        let of = |row: &Row| (format!("{:?}, {}", row.disks, row.servers), vec![Some(row.rate)]);
        let full = self.rows.iter().map(|row| row.rate).fold(1.0, f64::max) * 1.1;
        let title = "creates/s in one directory, by disks and servers".to_owned();
        let groups = self.rows.iter().map(of).collect();
        chart::svg(&["creates/s"], 1, &[Panel { title, full, groups }])
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// Nanoseconds that this thread has been on a processor.
fn clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn measure(size: Size, disks: Kind, servers: u8) -> Res<Row> {
    let (protocol, logs, batch) = (Protocol::OnePhase, Logs::Own, mds::BATCH_MAX);
    let shape = Shape { servers, clients: 1, protocol, batch, logs, disks };
    run(shape, |served: Served| async move {
        let dir = served.mounts[0].mkdir(Ino::ROOT, "shared").await?;
        if servers > 1 {
            served.spread(dir).await?;
        }
        let clients = open(&served, servers, size.sessions).await?;
        served.meter(clock);
        let all = || (0..servers).map(|shard| served.busy(shard));
        let (before, begin) = (all().collect::<Vec<_>>(), served.env.now());
        create_all(&served, &clients, dir, size.each).await?;
        let took = (served.env.now() - begin).as_secs_f64();
        let made = (size.sessions * size.each) as f64;
        let share = |(now, before): (Duration, Duration)| (now - before).as_secs_f64() / took;
        let real = |shard| served.metered(shard).as_secs_f64() * 1e6 / made;
        Ok(Row {
            disks,
            servers,
            rate: made / took,
            batch: served.operations_in_a_batch(),
            busy: all().zip(before).map(share).collect(),
            real: (0..servers).map(real).collect(),
        })
    })
}

/// Opens the sessions of all clients.
async fn open(served: &Served, servers: u8, count: usize) -> Res<Vec<Sessions>> {
    let mut all = Vec::new();
    while all.len() < count {
        let next = all.len()..(all.len() + AT_ONCE).min(count);
        let tasks: Vec<_> = next
            .map(|number| {
                let env = served.node(&format!("clients{}", number / OF_HOST));
                env.spawn_join(Sessions::open(env.clone(), servers, number))
            })
            .collect();
        for task in tasks {
            all.push(task.await?);
        }
    }
    Ok(all)
}

/// Every client makes its files, one after the other.
async fn create_all(served: &Served, clients: &[Sessions], dir: Ino, each: usize) -> Res<()> {
    let begin = |(number, sessions): (usize, &Sessions)| {
        let sessions = sessions.clone();
        served.node(&format!("clients{}", number / OF_HOST)).spawn_join(async move {
            for nth in 0..each {
                sessions.create(dir, name(number, nth)?).await?;
            }
            Ok(())
        })
    };
    let tasks: Vec<_> = clients.iter().enumerate().map(begin).collect();
    for task in tasks {
        let done: Res<()> = task.await;
        done?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creates_of_a_spread_directory_go_in_batches() {
        let size = Size { sessions: 60, each: 4 };
        let figure = Creates::measure(size, &mut |_| ()).unwrap();
        let text = figure.text();
        assert!(text.starts_with("240 creates"), "{text}");
        for row in &figure.rows {
            let is_joint = row.servers > 1;
            assert!(is_joint == (row.batch > 4.0), "{text}");
            assert!(row.real.iter().all(|micros| *micros > 0.0), "{text}");
            assert_eq!(row.busy.len(), usize::from(row.servers));
        }
        assert_eq!(chart::bars(&figure.svg().unwrap(), 1).len(), 4);
        assert!(figure.to_json().contains("\"Flash\""));
    }
}
