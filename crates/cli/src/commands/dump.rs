//! `redbud dump` and `redbud load`: the namespace and the layouts as a stream, while the server is
//! stopped.

use std::io::{BufReader, BufWriter, IsTerminal, Write};

use env::{Disk, DriverKind, Env};
use store::dump::Dumped;
use store::{Mfs, OpenOptions};

use crate::args::{DumpArgs, LoadArgs};
use crate::config::Cluster;
use crate::devices::{naming, open_exclusive, or_in_use, zone_places};
use crate::exit::{Ended, Failure, Status};
use crate::{output, target};

/// Bytes gathered for one system call.
const BUFFER: usize = 1 << 20;

fn failed(text: String) -> Failure {
    Failure::failed("RB-DUMP", text)
}

/// Writes a dump to standard output.
pub fn dump(args: &DumpArgs) -> Ended {
    let cluster = target::cluster(&args.target)?;
    if std::io::stdout().is_terminal() {
        return Err(Failure::usage("a dump is not for a terminal: redirect it to a file"));
    }
    run(cluster, |env, cluster| async move {
        let mfs = open(&env, &cluster).await?;
        let mut out = BufWriter::with_capacity(BUFFER, std::io::stdout().lock());
        let paths = cluster.zone_paths();
        let dumped = store::dump::dump(&mfs, &zone_places(&paths), &mut out).await;
        let dumped = dumped.map_err(|error| failed(error.to_string()))?;
        out.flush().map_err(|error| failed(format!("writing the dump: {error}")))?;
        drop(mfs.close().await);
        output::tell(&format!(
            "{}: {} inodes, {} further names, {} segments",
            cluster.name, dumped.inodes, dumped.links, dumped.segments
        ));
        for line in &dumped.left_out {
            output::tell(&format!("not in the dump, with what is below it: {line}"));
        }
        for line in &dumped.damaged {
            output::tell(&format!("not in the dump, as it cannot be read: {line}"));
        }
        match partial(&dumped) {
            Some(text) => Err(Failure::new(Status::Partial, "RB-DUMP-PARTIAL", text)),
            None => Ok(0),
        }
    })
}

/// What is missing in a dump; `None`: nothing.
fn partial(dumped: &Dumped) -> Option<String> {
    let mut out = Vec::new();
    if dumped.damaged_count > 0 {
        out.push(format!(
            "{} things are not in the dump, as what they lie in is damaged: `redbud fsck --repair` may have them from the log; \
             what is in the dump is whole",
            dumped.damaged_count
        ));
    }
    if dumped.left_out_count > 0 {
        out.push(format!(
            "{} names are not in the dump: `redbud fsck --repair` gives them legal ones, then dump again",
            dumped.left_out_count
        ));
    }
    if !dumped.zones_unknown.is_empty() {
        out.push(format!(
            "the table of data zones is damaged, and the dump does not say how large these are, though what lies in them is \
             in it: {}",
            dumped.zones_unknown.join("; ")
        ));
    }
    (!out.is_empty()).then(|| out.join("; "))
}

/// Reads a dump from standard input into a file system fresh from `redbud mkfs`.
pub fn load(args: &LoadArgs) -> Ended {
    let cluster = target::cluster(&args.target)?;
    if std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "load reads a dump from standard input: redirect it from a file",
        ));
    }
    run(cluster, |env, cluster| async move {
        let disk = disk(&env, &cluster, true).await?;
        let options = OpenOptions { cache_bytes: cluster.cache as usize, ..OpenOptions::default() };
        let mut input = BufReader::with_capacity(BUFFER, std::io::stdin().lock());
        let loaded = store::dump::load_onto(&env, &disk, options, &mut input).await;
        let loaded = loaded.map_err(|error| failed(error.to_string()))?;
        output::tell(&format!(
            "{}: {} inodes, {} further names, {} segments",
            cluster.name, loaded.inodes, loaded.links, loaded.segments
        ));
        Ok(0)
    })
}

fn run<F: Future<Output = Ended>>(cluster: Cluster, main: impl FnOnce(Env, Cluster) -> F) -> Ended {
    env::run(DriverKind::Auto, |env| main(env, cluster))
        .map_err(|error| failed(format!("cannot do input and output: {error}")))
        .flatten()
}

async fn disk(env: &Env, cluster: &Cluster, write: bool) -> Result<Disk, Failure> {
    let path = cluster.metadata.path.display().to_string();
    let opened = open_exclusive(env, &path, write).await;
    opened.map_err(|error| failed(or_in_use(&error, "its server has to be stopped before")))
}

async fn open(env: &Env, cluster: &Cluster) -> Result<Mfs, Failure> {
    let disk = disk(env, cluster, false).await?;
    let cache_bytes = cluster.cache as usize;
    // What is damaged is told, and all else dumped.
    let options =
        OpenOptions { cache_bytes, read_only: true, repair: true, ..OpenOptions::default() };
    let path = cluster.metadata.path.display().to_string();
    Mfs::open(env, &disk, options).await.map_err(|error| failed(naming(&path, &error)))
}
