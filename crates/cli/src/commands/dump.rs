//! `redbud dump` and `redbud load`: the namespace and the layouts as a stream. The servers must be
//! stopped.

use std::io::{BufReader, BufWriter, IsTerminal, Write};

use env::{DriverKind, Env};
use mfs::dump::{Dumped, Source};
use mfs::{Cost, Mfs, OpenOptions};
use types::ShardId;

use crate::args::{DumpArgs, LoadArgs};
use crate::config::Cluster;
use crate::devices::{MetadataDisks, open_error, open_metadata, with_path, zone_devices};
use crate::exit::{Ended, Failure, Status};
use crate::{output, target};

/// Buffer of one system call, in bytes.
const BUFFER: usize = 1 << 20;

fn failed(text: String) -> Failure {
    Failure::failed("RB-DUMP", text)
}

/// Writes a dump to standard output: of all servers, or of one.
pub fn dump(args: &DumpArgs) -> Ended {
    let clusters = target::chosen(target::cluster(&args.target)?, args.server)?;
    if std::io::stdout().is_terminal() {
        return Err(Failure::usage("standard output is a terminal: redirect the dump to a file"));
    }
    run(clusters, |env, clusters| async move {
        let (mut stores, mut paths) = (Vec::new(), Vec::new());
        for cluster in &clusters {
            stores.push(open(&env, cluster, clusters.len()).await?);
            paths.push(cluster.zone_paths());
        }
        if let [mfs] = &stores[..] {
            refuse_lent_space(mfs, &clusters[0]).await?;
        }
        let zones: Vec<_> = paths.iter().map(|paths| zone_devices(paths)).collect();
        let parts = stores.iter().zip(&zones);
        let sources: Vec<_> = parts.map(|(mfs, zones)| Source { mfs, zones }).collect();
        let mut out = BufWriter::with_capacity(BUFFER, std::io::stdout().lock());
        let dumped = mfs::dump::dump(&sources, &mut out).await;
        let dumped = dumped.map_err(|error| failed(error.to_string()))?;
        out.flush().map_err(|error| failed(format!("cannot write the dump: {error}")))?;
        for mfs in stores {
            drop(mfs.close().await);
        }
        let Dumped { inodes, links, segments, .. } = dumped;
        say(&clusters, (inodes, links, segments));
        for line in &dumped.left_out {
            output::eprint_line(&format!("not in the dump, with its subtree: {line}"));
        }
        for line in &dumped.elsewhere {
            output::eprint_line(&format!(
                "not in the dump, as another server holds a part: {line}"
            ));
        }
        for line in &dumped.damaged {
            output::eprint_line(&format!("not in the dump, because it cannot be read: {line}"));
        }
        match partial(&dumped, clusters.len()) {
            Some(text) => Err(Failure::new(Status::Partial, "RB-DUMP-PARTIAL", text)),
            None => Ok(0),
        }
    })
}

/// Says how much there was.
fn say(clusters: &[Cluster], (inodes, links, segments): (u64, u64, u64)) {
    output::eprint_line(&format!(
        "{}: {inodes} inodes, {links} further names, {segments} segments",
        whose(clusters)
    ));
}

/// A dump of one server says nothing of blocks that metadata servers have lent to each other: after
/// a load two of them would use these.
async fn refuse_lent_space(mfs: &Mfs, cluster: &Cluster) -> Result<(), Failure> {
    let lent = mfs.run(Cost::READ, |txn| txn.space().lent()).await;
    if lent.is_ok_and(|(lent, _)| lent.is_empty()) {
        return Ok(());
    }
    Err(failed(format!(
        "{}: this server has lent data blocks to another one, or that to it, which only a dump of all \
         servers carries: leave --server away",
        whose(std::slice::from_ref(cluster))
    )))
}

/// Says which objects a dump of so many servers lacks; `None` if it lacks none.
fn partial(dumped: &Dumped, servers: usize) -> Option<String> {
    let mut out = Vec::new();
    if dumped.damaged_count > 0 {
        out.push(format!(
            "{} objects are not in the dump, because their blocks are damaged: `redbud fsck --repair` may \
             recover them from the log; all that is in the dump is complete",
            dumped.damaged_count
        ));
    }
    if dumped.left_out_count > 0 {
        out.push(format!(
            "{} names are not in the dump, because they are illegal: run `redbud fsck --repair`, which renames \
             them, and dump again",
            dumped.left_out_count
        ));
    }
    if dumped.elsewhere_count > 0 {
        out.push(match servers {
            1 => format!(
                "{} objects are not in the dump, because they lie with several metadata servers: without \
                 --server a dump is of all",
                dumped.elsewhere_count
            ),
            _ => format!(
                "{} objects are not in the dump, because the servers do not agree on their names: `redbud \
                 fsck` says in what",
                dumped.elsewhere_count
            ),
        });
    }
    if dumped.open_operations > 0 {
        out.push(format!(
            "{} operations of several servers are open, and what they change may be missing: start all \
             servers, stop them when `redbud status` shows none open, and dump again",
            dumped.open_operations
        ));
    }
    if !dumped.zones_unknown.is_empty() {
        out.push(format!(
            "the table of data zones is damaged: the dump has no sizes of these zones, but all segments in \
             them: {}",
            dumped.zones_unknown.join("; ")
        ));
    }
    (!out.is_empty()).then(|| out.join("; "))
}

/// Loads a dump from standard input into a file system fresh from `redbud mkfs`.
pub fn load(args: &LoadArgs) -> Ended {
    let clusters = target::chosen(target::cluster(&args.target)?, args.server)?;
    let first = clusters[0].shard;
    if first != ShardId(0) {
        return Err(Failure::usage(format!(
            "--server {}: a dump begins at its root directory, and only that of server 0 can be \
             mounted: load it there, or without --server into all",
            first.0
        )));
    }
    if std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "standard input is a terminal: redirect it from the dump's file",
        ));
    }
    run(clusters, |env, clusters| async move {
        let mut all = Vec::new();
        for cluster in &clusters {
            all.push(disks(&env, cluster, true).await?);
        }
        let cache = clusters.iter().map(|cluster| cluster.cache).min().unwrap_or(0);
        let cache_bytes = cache as usize / clusters.len();
        let options = OpenOptions { cache_bytes, ..OpenOptions::default() };
        let mut input = BufReader::with_capacity(BUFFER, std::io::stdin().lock());
        let loaded = mfs::dump::load_onto(&env, &all, options, &mut input).await;
        let loaded = loaded.map_err(|error| failed(error.to_string()))?;
        say(&clusters, (loaded.inodes, loaded.links, loaded.segments));
        Ok(0)
    })
}

/// Whose metadata these are.
fn whose(clusters: &[Cluster]) -> String {
    match clusters {
        [one] if one.is_of_several() => format!("{}, only server {}", one.name, one.shard.0),
        _ => clusters[0].name.clone(),
    }
}

fn run<F: Future<Output = Ended>>(
    clusters: Vec<Cluster>,
    main: impl FnOnce(Env, Vec<Cluster>) -> F,
) -> Ended {
    env::run(DriverKind::Auto, |env| main(env, clusters))
        .map_err(|error| failed(format!("cannot start the I/O driver: {error}")))
        .flatten()
}

async fn disks(env: &Env, cluster: &Cluster, write: bool) -> Result<MetadataDisks, Failure> {
    let opened = open_metadata(env, cluster, write).await;
    opened.map_err(|error| failed(open_error(&error, "stop its server first")))
}

/// Opens the metadata of one of so many servers, which share the cache.
async fn open(env: &Env, cluster: &Cluster, servers: usize) -> Result<Mfs, Failure> {
    let disks = disks(env, cluster, false).await?;
    let cache_bytes = cluster.cache as usize / servers.max(1);
    // Reports what is damaged, and dumps everything else.
    let options =
        OpenOptions { cache_bytes, read_only: true, repair: true, ..OpenOptions::default() };
    let path = cluster.metadata.path.display().to_string();
    Mfs::open(env, &disks, options).await.map_err(|error| failed(with_path(&path, &error)))
}
