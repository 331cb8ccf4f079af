//! A cluster of Redbud: a metadata server, perhaps object targets, and a client that mounts it.
//! Each is a process of this program.

use std::ffi::OsStr;
use std::fmt::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use crate::barrier::once;
use crate::contender::{SetUp, Tcp, make_dir, words};
use crate::process::{self, Deadline, Process, Tools};
use crate::worker::Job;
use crate::{Res, failed, relay};

/// Ports that a server may take: below the range that the kernel hands out.
const PORTS: std::ops::Range<u16> = 10_000..31_000;
/// The key that the metadata server and the targets share.
const TARGETS_KEY: &str = "targets.key";

/// Where content lies.
pub(crate) enum Content {
    /// On these data disks, as blocks.
    Disks(Vec<PathBuf>),
    /// At object targets, each with one of these disks.
    Targets(Vec<PathBuf>),
}

/// A cluster that is mounted.
pub(crate) struct Redbud {
    client: Option<Process>,
    server: Process,
    targets: Option<Process>,
    source: String,
    mount: PathBuf,
    /// Options of the mount.
    options: String,
}

/// The addresses of a cluster, all at 127.0.0.1.
struct Ports {
    /// Those that servers listen on: the metadata server's, then the targets'.
    listen: Vec<u16>,
    /// Those that clients know, in the same order.
    reached: Vec<u16>,
}

impl Ports {
    fn choose(count: usize, relayed: bool) -> Res<Ports> {
        let listen = free_ports(count)?;
        let relay = |port: &u16| match relayed {
            true => relay::start(*port).or_else(|error| failed("starting a relay", error)),
            false => Ok(*port),
        };
        let reached = listen.iter().map(relay).collect::<Res<Vec<u16>>>()?;
        Ok(Ports { listen, reached })
    }
}

impl Redbud {
    /// Makes the cluster and mounts it.
    ///
    /// # Errors
    /// The step that failed and why.
    pub fn start(tools: &Tools, what: &SetUp, metadata: &Path, content: &Content) -> Res<Redbud> {
        let root = &tools.logs;
        let (name, disks, targets) = match content {
            Content::Disks(disks) => ("redbud", &disks[..], &[][..]),
            Content::Targets(targets) => ("objects", &[][..], &targets[..]),
        };
        let mount = root.join(format!("mnt-{name}"));
        make_dir(&mount)?;
        let ports = Ports::choose(1 + targets.len(), what.tcp.is_some())?;
        let (security, keys) = match &what.tcp {
            None => ("none", String::new()),
            Some(Tcp { security, keys }) => {
                let keys = keys(root).or_else(|error| failed("making keys", error))?;
                (security.as_str(), keys)
            }
        };
        let config = root.join(format!("{name}.toml"));
        let text = format!(
            "name = \"bench\"\n[server]\nlisten = \"127.0.0.1:{}\"\n\
             security = \"{security}\"\n{keys}\
             [metadata]\npath = \"{}\"\n{}",
            ports.listen[0],
            metadata.display(),
            tables(disks, targets, &ports.listen[1..])
        );
        std::fs::write(&config, text)
            .or_else(|error| failed(&format!("writing {}", config.display()), error))?;
        let run = |step: &str, before: &[&str], path: &Path| {
            process::run(tools, step, &before_path(before, path))
        };
        run("mkfs", &["mkfs", "--force", "--"], &config)?;
        let source = format!("127.0.0.1:{}:/bench", ports.reached[0]);
        let options = {
            let transport = if what.uring { "uring" } else { "dev" };
            format!("transport={transport},cluster={}", config.display())
        };
        let osts = match targets {
            [] => None,
            _ => Some(serve_targets(tools, &config, targets)?),
        };
        let serve = before_path(&["mds", "--until-eof", "--"], &config);
        let server = Process::serve(tools, &format!("{name}-mds"), &serve)?;
        let mut redbud = Redbud { client: None, server, targets: osts, source, mount, options };
        for port in &ports.reached[1..] {
            let target = format!("ost:127.0.0.1:{port}");
            run("adding a target", &["pag", "add", "--", &target], &config)?;
        }
        redbud.mount(tools, "")?;
        Ok(redbud)
    }

    /// Its processes: of the mount, of the metadata server, and of the targets.
    pub fn pids(&self) -> [Option<u32>; 3] {
        let client = self.client.as_ref();
        [client, Some(&self.server), self.targets.as_ref()].map(|one| Some(one?.pid()))
    }

    /// Mounts with `more` options, each behind a comma.
    fn mount(&mut self, tools: &Tools, more: &str) -> Res<()> {
        let (parent, options) = (std::process::id().to_string(), format!("{}{more}", self.options));
        let head = ["mount", "--foreground", "--parent", &parent, "-o", &options, "--"];
        let arguments = [&head[..], &[self.source.as_str()]].concat();
        let arguments = [&words(&arguments)[..], &[self.mount.as_os_str()]].concat();
        self.client = Some(Process::serve(tools, "client", &arguments)?);
        Ok(())
    }

    fn unmount(&mut self, tools: &Tools) -> Res<()> {
        let Some(client) = self.client.take() else { return Ok(()) };
        once(tools, "unmounting Redbud", Job::Unmount(self.mount.clone()))?;
        client.wait(&Deadline::new("waiting for Redbud's client to end", tools.limit))
    }

    /// Mounts it anew, with `more` options, each behind a comma.
    pub fn remount(&mut self, tools: &Tools, more: &str) -> Res<()> {
        self.unmount(tools)?;
        self.mount(tools, more)
    }

    /// Unmounts it, and stops its servers.
    pub fn stop(mut self, tools: &Tools) -> Res<()> {
        self.unmount(tools)?;
        let servers = [("metadata server", Some(self.server)), ("object targets", self.targets)];
        for (what, server) in servers {
            let Some(mut server) = server else { continue };
            server.close_input();
            server.wait(&Deadline::new(format!("waiting for the {what} to end"), tools.limit))?;
        }
        Ok(())
    }
}

/// The tables of the disks with content in the cluster's file.
fn tables(disks: &[PathBuf], targets: &[PathBuf], ports: &[u16]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for disk in disks {
        let _ = writeln!(text, "[[data]]\npath = \"{}\"", disk.display());
    }
    if !targets.is_empty() {
        let _ = writeln!(text, "[targets]\nkey = \"{TARGETS_KEY}\"");
    }
    for (disk, port) in targets.iter().zip(ports) {
        let address = format!("127.0.0.1:{port}");
        let _ = writeln!(text, "[[ost]]\ndevice = \"{}\"\naddress = \"{address}\"", disk.display());
    }
    text
}

/// Formats the targets on `disks`, and serves them in one process.
fn serve_targets(tools: &Tools, config: &Path, disks: &[PathBuf]) -> Res<Process> {
    let key = tools.logs.join(TARGETS_KEY);
    process::run(tools, "making a key", &before_path(&["ost", "key", "--"], &key))?;
    for disk in disks {
        let mut format = before_path(&["ost", "format", "--force", "--config"], config);
        format.push(disk.as_os_str());
        process::run(tools, "formatting a target", &format)?;
    }
    let serve = before_path(&["ost", "serve", "--until-eof", "--config"], config);
    Process::serve(tools, "osts", &serve)
}

/// Arguments of a command, the last of which is a path.
fn before_path<'a>(before: &'a [&'a str], path: &'a Path) -> Vec<&'a OsStr> {
    before.iter().map(OsStr::new).chain([path.as_os_str()]).collect()
}

/// Free ports, searched from a place that differs from process to process.
fn free_ports(wanted: usize) -> Res<Vec<u16>> {
    let count = u32::from(PORTS.end - PORTS.start);
    let start = std::process::id().wrapping_mul(2_654_435_761) % count;
    let candidates = (0..count).map(|step| PORTS.start + ((start + step) % count) as u16);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let ports: Vec<u16> = candidates.filter(free).take(wanted).collect();
    if ports.len() == wanted { Ok(ports) } else { failed("choosing ports", "too few are free") }
}
