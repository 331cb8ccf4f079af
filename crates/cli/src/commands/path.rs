//! `redbud path`: from inode numbers to paths, while the server is stopped.
//!
//! Invariant: the walk goes from the inode up: through its own slot's name and the directory that has
//! the slot; a further name of the inode is not found that way.

use env::{DriverKind, Env};
use serde::Serialize;
use store::{Cost, Mfs, OpenOptions};
use types::Ino;

use crate::args::PathArgs;
use crate::config::Cluster;
use crate::devices::{naming, open_exclusive};
use crate::exit::{Ended, Failure, Status};
use crate::{output, target};

#[derive(Serialize)]
struct Report {
    version: u32,
    paths: Vec<Found>,
}

#[derive(Serialize)]
struct Found {
    inode: u64,
    /// Bytes that are no UTF-8 are replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Prints the paths.
pub fn run(args: &PathArgs) -> Ended {
    let cluster = target::cluster(&args.target)?;
    let inodes = args.inodes.clone();
    let report =
        env::run(DriverKind::Auto, |env| async move { find(&env, &cluster, &inodes).await })
            .map_err(|error| failed(format!("cannot do input and output: {error}")))
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

async fn find(env: &Env, cluster: &Cluster, inodes: &[u64]) -> Result<Report, Failure> {
    let path = cluster.metadata.path.display().to_string();
    let disk =
        open_exclusive(env, &path, false).await.map_err(|error| failed(error.to_string()))?;
    let cache_bytes = cluster.cache as usize;
    let options = OpenOptions { cache_bytes, read_only: true, ..OpenOptions::default() };
    let opened = Mfs::open(env, &disk, options).await;
    let mfs = opened.map_err(|error| failed(naming(&path, &error)))?;
    let mut paths = Vec::new();
    for &inode in inodes {
        paths.push(match mfs.run(Cost::READ, |txn| txn.path(Ino(inode))).await {
            Ok((Some(path), _)) => {
                let path = Some(String::from_utf8_lossy(&path).into_owned());
                Found { inode, path, error: None }
            }
            Ok((None, _)) => Found {
                inode,
                path: None,
                error: Some("there is no such inode, or no name".into()),
            },
            Err(error) => Found { inode, path: None, error: Some(error.to_string()) },
        });
    }
    drop(mfs.close().await);
    Ok(Report { version: 1, paths })
}

fn describe(report: &Report) -> String {
    let line = |found: &Found| match (&found.path, &found.error) {
        (Some(path), _) => format!("{}\t{path}\n", found.inode),
        (None, error) => {
            format!("{}\t({})\n", found.inode, error.as_deref().unwrap_or("not found"))
        }
    };
    report.paths.iter().map(line).collect()
}
