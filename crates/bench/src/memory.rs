//! Memory of the processes at a given number of files.

use serde::Serialize;

use crate::Res;
use crate::barrier::{StartBarrier, once};
use crate::contender::{Field, Kind, SetUp};
use crate::observe::{Memory, requests_between};
use crate::process::catch_interrupts;
use crate::report::Columns;
use crate::worker::{Job, Names};

/// Files of a directory.
const FILES_MAX: u64 = 50_000;
/// Load generators at once.
const WORKERS: usize = 2;
/// Bound of the client's memory, in bytes.
const CLIENT_MAX: u64 = 1 << 30;
/// Bound of the metadata server's memory, in bytes.
const SERVER_MAX: u64 = 512 << 20;

/// Resident memory, in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    version: u32,
    /// Files that were made.
    files: u64,
    /// Inodes that the kernel gave back while they were listed: so many less are cached.
    forgotten: u64,
    /// The client before and after all files were looked up on a fresh mount.
    client_begin: Memory,
    client: Memory,
    /// The client that made them.
    client_made: Memory,
    /// The server before any file was made, and after.
    server_begin: Memory,
    server: Memory,
    client_met: bool,
    server_met: bool,
}

/// Makes `files` files and looks at the memory of client and server; tells `progress` each step.
///
/// # Errors
/// The step that failed and why; everything is taken away again.
pub fn measure(set_up: &SetUp, files: u64, progress: &mut dyn FnMut(&str)) -> Res<Found> {
    catch_interrupts();
    progress("setting up");
    let mut field = Field::set_up(&SetUp { kinds: vec![Kind::Redbud], ..set_up.clone() })?;
    let memory =
        |field: &Field| field.pids(Kind::Redbud).map(|pid| pid.map(Memory::of).unwrap_or_default());
    let [_, server_begin, _] = memory(&field);
    let dirs = directories(&field, files);
    for dirs in dirs.chunks(WORKERS) {
        for names in dirs {
            let step = "making a directory";
            once(&field.tools, step, Job::MakeDir(names.dir.clone()))?;
        }
        let jobs = dirs.iter().cloned().map(Job::Create).collect();
        StartBarrier::ready(&field.tools, "making files", jobs)?.start()?;
        progress(&format!("made files in {}", dirs[dirs.len() - 1].dir.display()));
    }
    let [client_made, server, _] = memory(&field);
    progress("looking all files up on a fresh mount");
    field.refresh(Kind::Redbud)?;
    let [client_begin, ..] = memory(&field);
    let requests = |field: &Field| {
        let place = field.place(Kind::Redbud);
        Ok(once(&field.tools, "reading the counters", Job::Requests(place))?.text)
    };
    let before = requests(&field)?;
    for dirs in dirs.chunks(WORKERS) {
        let jobs = dirs.iter().map(|names| Job::List(names.dir.clone())).collect();
        StartBarrier::ready(&field.tools, "looking files up", jobs)?.start()?;
    }
    let [client, server_later, _] = memory(&field);
    let between = requests_between(&before, &requests(&field)?);
    let forgotten = between.get("forget").copied().unwrap_or_default();
    field.tear_down()?;
    let server = Memory {
        resident: server.resident.max(server_later.resident),
        peak: server.peak.max(server_later.peak),
    };
    Ok(Found {
        version: 1,
        files,
        forgotten,
        client_begin,
        client,
        client_made,
        server_begin,
        server,
        client_met: client.resident.max(client_made.resident) <= CLIENT_MAX,
        server_met: server.resident <= SERVER_MAX,
    })
}

fn directories(field: &Field, files: u64) -> Vec<Names> {
    let count = files.div_ceil(FILES_MAX).max(1);
    let one = |number| Names {
        dir: field.place(Kind::Redbud).join(format!("dir-{number:03}")),
        prefix: "file-".into(),
        count: files / count + u64::from(number < files % count),
    };
    (0..count).map(one).collect()
}

impl Found {
    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// For people.
    pub fn text(&self) -> String {
        let mib = |bytes: u64| format!("{} MiB", bytes.div_ceil(1 << 20));
        let each = |now: Memory, begin: Memory| {
            format!("{} B", now.resident.saturating_sub(begin.resident) / self.files.max(1))
        };
        let met = |met| if met { "met" } else { "MISSED" }.to_owned();
        let mut table =
            Columns::new(&["process", "at begin", "resident", "peak", "per file", "at most", ""]);
        let (client, server) = (self.client, self.server);
        table.row(vec![
            "client, after looking them up".into(),
            mib(self.client_begin.resident),
            mib(client.resident),
            mib(client.peak),
            each(client, self.client_begin),
            mib(CLIENT_MAX),
            met(self.client_met),
        ]);
        table.row(vec![
            "client, after making them".into(),
            "-".into(),
            mib(self.client_made.resident),
            mib(self.client_made.peak),
            each(self.client_made, self.client_begin),
            mib(CLIENT_MAX),
            met(self.client_met),
        ]);
        table.row(vec![
            "metadata server, cache 256 MiB".into(),
            mib(self.server_begin.resident),
            mib(server.resident),
            mib(server.peak),
            each(server, self.server_begin),
            mib(SERVER_MAX),
            met(self.server_met),
        ]);
        format!(
            "{} files; the kernel gave {} back meanwhile\n\n{}",
            self.files,
            self.forgotten,
            table.text()
        )
    }
}
