//! `redbud path`: finds the paths of inode numbers. The server must be stopped.
//!
//! Invariant: the search goes up from the inode, through the name in its slot and the directory of
//! the slot. It does not find further names of the inode. `--all` walks the tree from the root
//! instead. Of several servers the search goes on where the name of a directory lies (`several`).

mod several;

use std::collections::BTreeSet;

use env::{DriverKind, Env};
use mfs::{Cost, Mfs, OpenOptions, Paths, StoreError, Top};
use serde::Serialize;
use types::Ino;

use crate::args::PathArgs;
use crate::config::Cluster;
use crate::devices::{open_error, open_metadata, with_path};
use crate::exit::{Ended, Failure, Status};
use crate::{output, target};

/// Said of an inode without a path.
const NO_NAME: &str = "no such inode, or its slot has no name; `--all` finds further names";

#[derive(Serialize)]
struct Report {
    version: u32,
    paths: Vec<InodePath>,
}

#[derive(Serialize)]
struct InodePath {
    inode: u64,
    /// Bytes that are not UTF-8 are replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Prints the paths.
pub fn run(args: &PathArgs) -> Ended {
    let file = target::cluster(&args.target)?;
    let report = env::run(DriverKind::Auto, |env| async move {
        match (file.is_several(), args.server.number) {
            (true, None) => several::find(&env, &file.servers, args).await,
            (_, chosen) => find(&env, &file.server(chosen).map_err(Failure::usage)?, args).await,
        }
    })
    .map_err(|error| failed(format!("cannot start the I/O driver: {error}")))
    .flatten()?;
    let missing = report.paths.iter().filter(|found| found.path.is_none()).count();
    output::print_report(args.output, &report, describe)?;
    Ok(match missing {
        0 => 0,
        n if n == report.paths.len() => Status::Failed as u8,
        _ => Status::Partial as u8,
    })
}

fn failed(text: String) -> Failure {
    Failure::failed("RB-PATH", text)
}

async fn find(env: &Env, cluster: &Cluster, args: &PathArgs) -> Result<Report, Failure> {
    let path = cluster.metadata.path.display().to_string();
    let mfs = open(env, cluster).await?;
    let report = match args.all {
        true => every(&mfs, &args.inodes).await,
        false => Ok(first(&mfs, &args.inodes).await),
    };
    drop(mfs.close().await);
    report.map_err(|error| failed(with_path(&path, &error)))
}

/// The store of a server that is stopped.
async fn open(env: &Env, cluster: &Cluster) -> Result<Mfs, Failure> {
    let path = cluster.metadata.path.display().to_string();
    let disks = open_metadata(env, cluster, false).await;
    let disks = disks.map_err(|error| failed(open_error(&error, "stop its server first")))?;
    let cache_bytes = cluster.cache as usize;
    let options = OpenOptions { cache_bytes, read_only: true, ..OpenOptions::default() };
    Mfs::open(env, &disks, options).await.map_err(|error| failed(with_path(&path, &error)))
}

/// One path of each inode.
async fn first(mfs: &Mfs, inodes: &[u64]) -> Report {
    let mut paths = Vec::new();
    for &inode in inodes {
        paths.push(match mfs.run(Cost::READ, |txn| txn.names().upward(Ino(inode))).await {
            Ok((Some((path, Top::Root)), _)) if path.is_empty() => InodePath::path(inode, b"/"),
            Ok((Some((path, Top::Root)), _)) => InodePath::path(inode, &path),
            Ok((Some((_, Top::Guest { parent, .. })), _)) => {
                let home = mfs.run(Cost::READ, |txn| txn.names().home(parent)).await;
                let number = home.map_or(parent.shard(), |(home, _)| home);
                let text = "a name on the way is at server";
                InodePath::error(inode, format!("{text} {number}: leave out `--server`"))
            }
            Ok(_) => InodePath::error(inode, NO_NAME.into()),
            Err(error) => InodePath::error(inode, error.to_string()),
        });
    }
    Report { version: 1, paths }
}

/// All paths of each inode.
async fn every(mfs: &Mfs, inodes: &[u64]) -> Result<Report, StoreError> {
    let sought: BTreeSet<Ino> = inodes.iter().copied().map(Ino).collect();
    let all = mfs.all_paths(&sought).await?;
    let mut out = Vec::new();
    for ino in sought {
        let Some(Paths { paths, omitted, missing }) = all.found.get(&ino) else {
            if all.unread.iter().any(|(unread, _)| *unread == ino) {
                continue;
            }
            out.push(InodePath::error(ino.0, "no such inode".into()));
            continue;
        };
        out.extend(paths.iter().map(|path| InodePath::path(ino.0, path)));
        if *omitted > 0 {
            out.push(InodePath::error(ino.0, format!("and {omitted} more")));
        }
        if *missing > 0 {
            out.push(InodePath::error(
                ino.0,
                format!("{missing} of its names, by its link count, were not found"),
            ));
        }
    }
    for (dir, why) in &all.unread {
        out.push(InodePath::error(dir.0, format!("cannot be read: {why}")));
    }
    Ok(Report { version: 1, paths: out })
}

impl InodePath {
    fn path(inode: u64, path: &[u8]) -> InodePath {
        let path = Some(String::from_utf8_lossy(path).into_owned());
        InodePath { inode, path, error: None }
    }

    fn error(inode: u64, text: String) -> InodePath {
        InodePath { inode, path: None, error: Some(text) }
    }
}

fn describe(report: &Report) -> String {
    let line = |found: &InodePath| match (&found.path, &found.error) {
        (Some(path), _) => format!("{}\t{path}\n", found.inode),
        (None, error) => {
            format!("{}\t({})\n", found.inode, error.as_deref().unwrap_or("not found"))
        }
    };
    report.paths.iter().map(line).collect()
}
