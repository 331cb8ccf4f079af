//! What IOzone does with files, on every client of a [`cluster`](crate::cluster) at once: each is
//! written, written again, read, and read again, from its beginning to its end.
//!
//! Invariants:
//! - each client has a directory and files of its own, and works on one file after the other;
//! - a process writes in requests of [`REQUEST`], which reach the client as they are: the mount has
//!   no write-back cache. It reads so, too, but the kernel reads ahead of it: requests of 1 MiB,
//!   16 at once, as a mount sets it. No page stays cached: files are larger than the memory;
//! - a stage begins at the same time on all clients. It ends when the last has ended, and
//!   writing only when everything is durable;
//! - the content is zeros, which neither client nor server look at.

use std::collections::VecDeque;

use client::OpenFlags;
use env::sim::{Price, SimDisk};
use proto::placement::{Layout, Policy};
use serde::Serialize;
use types::Ino;
use types::limits::IO_MAX;

use crate::cluster::{Cluster, Mount, Served, Shape, refused};
use crate::switches::Switches;
use bench::{Res, failed};

/// Bytes of a process's request (002, section 6.2).
pub const REQUEST: usize = 32 << 10;
/// Requests of the kernel that reads ahead: [`IO_MAX`] bytes each, 16 MiB together.
const AHEAD: usize = 16;
/// Bytes of a data zone: the papers' disks have 300 GB.
const ZONE_BYTES: u64 = 256 << 30;

/// What is written and read.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Files {
    /// Files of each client.
    pub files: u64,
    /// Bytes of each.
    pub bytes: u64,
}

/// What is done with the files.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// They are made and written.
    Write,
    /// They are written again.
    Rewrite,
    /// They are read by the client that has written them.
    Read,
    /// They are read again.
    Reread,
}

impl Pattern {
    /// In their order.
    pub const ALL: [Pattern; 4] =
        [Pattern::Write, Pattern::Rewrite, Pattern::Read, Pattern::Reread];

    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Pattern::Write => "write",
            Pattern::Rewrite => "re-write",
            Pattern::Read => "read",
            Pattern::Reread => "re-read",
        }
    }
}

/// What a stage took.
#[derive(Clone, Copy, PartialEq, Serialize, Debug)]
pub struct Took {
    /// What was done.
    pub pattern: Pattern,
    /// Bytes of all clients.
    pub bytes: u64,
    /// Nanoseconds until the last client had ended.
    pub nanos: u64,
    /// Bytes that the busiest disk of a data zone has moved, by the mean of all these disks.
    pub busiest: f64,
    /// Requests of all clients to the server.
    pub requests: u64,
    /// Nanoseconds of the server's processor, at most: as if every request were a change.
    pub server_nanos: u64,
}

impl Took {
    /// MB a second of all clients.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.nanos.max(1) as f64
    }

    /// The share of the server's processor, at most.
    pub fn server_share(&self) -> f64 {
        self.server_nanos as f64 / self.nanos.max(1) as f64
    }
}

/// So many clients on so many zones, with a layout and these patterns, in their order.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Clients.
    pub clients: usize,
    /// Data zones.
    pub zones: u16,
    /// Where the files' blocks go.
    pub layout: Layout,
    /// Files of each client.
    pub files: Files,
    /// What is done; it begins with writing.
    pub patterns: Vec<Pattern>,
    /// Dirty bytes of a client before its writers wait.
    pub dirty_bytes: usize,
}

/// RF-Striping with parts of so many blocks.
pub fn striping(part: u64) -> Layout {
    Layout { policy: Policy::Striping { part, width: 0 }, ..Layout::default() }
}

/// Measures it.
///
/// # Errors
/// Those of the cluster and of its clients.
pub fn measure(plan: &Plan) -> Res<Vec<Took>> {
    let cluster = Cluster::new(Shape {
        zones: plan.zones,
        zone_bytes: ZONE_BYTES,
        clients: plan.clients,
        dirty_bytes: plan.dirty_bytes,
        switches: Switches::default(),
    })?;
    let plan = plan.clone();
    cluster.run(|served| async move {
        let layout = plan.layout.clone();
        let make = move |number: usize, mount: Mount| {
            let layout = layout.clone();
            async move {
                let dir = mount.mkdir(Ino::ROOT, &format!("client{number}")).await?;
                mount.set_layout(dir, &layout).await?;
                mount.sync().await?;
                Ok(dir)
            }
        };
        let (dirs, _) = served.each(make).await?;
        let mut inos: Vec<Vec<Ino>> = Vec::new();
        let mut found = Vec::new();
        for &pattern in &plan.patterns {
            let (before, busy) = (served.requests(), served.server_busy());
            let earlier = moved(&served);
            let files = plan.files;
            let nanos = if pattern == Pattern::Write {
                let dirs = dirs.clone();
                let work = move |number: usize, mount| write(mount, dirs[number], files);
                let (made, took) = served.each(work).await?;
                inos = made;
                took
            } else {
                let inos = inos.clone();
                let work = move |number: usize, mount| {
                    again(mount, pattern, inos[number].clone(), files.bytes)
                };
                served.each(work).await?.1
            };
            let requests = served.requests() - before;
            found.push(Took {
                pattern,
                bytes: plan.clients as u64 * files.files * files.bytes,
                nanos: nanos.as_nanos() as u64,
                busiest: busiest(&earlier, &moved(&served)),
                requests,
                server_nanos: server_nanos(&served, busy, requests),
            });
        }
        Ok(found)
    })
}

/// Bytes that each disk of a data zone has read and written.
fn moved(served: &Served) -> Vec<u64> {
    let moved = |disk: &SimDisk| disk.report().map_or(0, |report| report.read + report.written);
    served.data.iter().map(moved).collect()
}

fn busiest(before: &[u64], after: &[u64]) -> f64 {
    let each = || before.iter().zip(after).map(|(before, after)| after - before);
    let mean = each().sum::<u64>() as f64 / before.len().max(1) as f64;
    each().max().unwrap_or(0) as f64 / mean.max(1.0)
}

/// Of the server's processor since it was busy for `before`: the messages, and the price of a
/// change for every request.
fn server_nanos(served: &Served, before: types::Duration, requests: u64) -> u64 {
    let messages = (served.server_busy() - before).as_nanos() as u64;
    messages + requests * Price::MEASURED.change.as_nanos() as u64
}

async fn write(mount: Mount, dir: Ino, files: Files) -> Res<Vec<Ino>> {
    let mut inos = Vec::new();
    for number in 0..files.files {
        let (entry, handle) = mount.create(dir, &format!("file{number}")).await?;
        write_all(&mount, handle, files.bytes).await?;
        mount.close(handle).await?;
        inos.push(entry.attr.ino);
    }
    mount.sync().await?;
    Ok(inos)
}

async fn again(mount: Mount, pattern: Pattern, inos: Vec<Ino>, bytes: u64) -> Res<()> {
    let writes = matches!(pattern, Pattern::Write | Pattern::Rewrite);
    for ino in inos {
        let handle = mount.open(ino, if writes { OpenFlags::WRITE_ONLY } else { 0 }).await?;
        if writes {
            write_all(&mount, handle, bytes).await?;
        } else {
            read_all(&mount, handle, bytes).await?;
        }
        mount.close(handle).await?;
    }
    if writes { mount.sync().await } else { Ok(()) }
}

async fn write_all(mount: &Mount, handle: client::Handle, bytes: u64) -> Res<()> {
    let mut at = 0;
    while at < bytes {
        let len = (REQUEST as u64).min(bytes - at);
        mount.write(handle, at, mount.env.buffer(len as usize)).await?;
        at += len;
    }
    Ok(())
}

async fn read_all(mount: &Mount, handle: client::Handle, bytes: u64) -> Res<()> {
    let mut asked = 0;
    let mut under_way = VecDeque::new();
    loop {
        while asked < bytes && under_way.len() < AHEAD {
            let (at, len) = (asked, (IO_MAX as u64).min(bytes - asked));
            let client = mount.client.clone();
            under_way.push_back(mount.env.spawn_join(async move {
                let read = client.read(handle, at, len as u32, false).await;
                match read.map_err(|fault| refused("reading", fault))?.len() as u64 {
                    whole if whole == len => Ok(()),
                    part => failed("reading", format!("{part} of {len} bytes are there")),
                }
            }));
            asked += len;
        }
        match under_way.pop_front() {
            Some(read) => read.await?,
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clients_on_two_zones_have_a_disk_each() {
        let plan = |count: u16| Plan {
            clients: usize::from(count),
            zones: count,
            layout: Layout::default(),
            files: Files { files: 1, bytes: 24 << 20 },
            patterns: Pattern::ALL.to_vec(),
            dirty_bytes: 8 << 20,
        };
        let (one, two) = (measure(&plan(1)).unwrap(), measure(&plan(2)).unwrap());
        for (one, two) in one.iter().zip(&two) {
            // The rates are those of the disk's outer tracks.
            assert!(one.rate() > 100.0 && one.rate() < 180.0, "{one:?}");
            assert!(two.rate() > 1.8 * one.rate(), "{one:?} {two:?}");
            assert!(two.busiest < 1.05, "{two:?}");
            assert!(two.bytes == 48 << 20 && two.server_share() < 0.02, "{two:?}");
        }
        assert_eq!(measure(&plan(2)).unwrap(), two, "the same run gives the same figures");
    }
}
