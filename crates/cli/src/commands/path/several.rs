//! Paths over several metadata servers: each knows the names that lie with it.
//!
//! Invariants:
//! - the way up goes on at the server that has the name of the directory where the last one ended;
//! - a server whose metadata cannot be opened ends only the ways that lead to it.

use std::collections::{BTreeMap, BTreeSet};

use env::Env;
use mfs::{Cost, Mfs, NamesHere, StoreError, Top};
use types::{FileKind, Ino, ShardId};

use super::{InodePath, NO_NAME, Report, open};
use crate::args::PathArgs;
use crate::config::Cluster;
use crate::exit::Failure;

/// Most servers on one way: more is a cycle.
const TURNS_MAX: usize = 1 << 16;

/// The stores of all servers, or why one cannot be opened.
struct Stores(BTreeMap<ShardId, Result<Mfs, String>>);

/// The paths of inodes of several servers.
pub async fn find(env: &Env, servers: &[Cluster], args: &PathArgs) -> Result<Report, Failure> {
    let mut stores = BTreeMap::new();
    for cluster in servers {
        let opened = open(env, cluster).await;
        stores.insert(cluster.shard, opened.map_err(|failure| failure.text));
    }
    let stores = Stores(stores);
    let paths = match args.all {
        true => stores.every(&args.inodes).await,
        false => {
            let mut paths = Vec::new();
            for &inode in &args.inodes {
                paths.push(match stores.path(Ino(inode)).await {
                    Ok(path) => InodePath::path(inode, &path),
                    Err(text) => InodePath::error(inode, text),
                });
            }
            paths
        }
    };
    for store in stores.0.into_values().flatten() {
        drop(store.close().await);
    }
    Ok(Report { version: 1, paths })
}

impl Stores {
    fn at(&self, number: ShardId) -> Result<&Mfs, String> {
        match self.0.get(&number) {
            Some(Ok(store)) => Ok(store),
            Some(Err(text)) => Err(format!("at server {number}: {text}")),
            None => Err(format!("there is no server {number}")),
        }
    }

    /// The server that has the inode, and its store. A directory may have moved: each server says
    /// where it went from there.
    async fn of(&self, ino: Ino) -> Result<(ShardId, &Mfs), String> {
        let mut number = ino.shard();
        for _ in &self.0 {
            let home = self.at(number)?.run(Cost::READ, |txn| txn.names().home(ino)).await;
            let home = home.map_err(|error| format!("at server {number}: {error}"))?.0;
            if home == number {
                break;
            }
            number = home;
        }
        Ok((number, self.at(number)?))
    }

    /// A path of an inode.
    async fn path(&self, ino: Ino) -> Result<Vec<u8>, String> {
        let at = |number: ShardId, error: StoreError| format!("at server {number}: {error}");
        let (mut from, mut below) = (ino, Vec::new());
        for _ in 0..TURNS_MAX {
            let (number, store) = self.of(from).await?;
            let looked = store.run(Cost::READ, |txn| txn.names().upward(from)).await;
            let Some((path, top)) = looked.map_err(|error| at(number, error))?.0 else {
                return Err(NO_NAME.into());
            };
            let (dir, parent) = match top {
                Top::Guest { dir, parent } => (dir, parent),
                Top::Root if number == Ino::ROOT.shard() => {
                    let whole = [path, below].concat();
                    return Ok(if whole.is_empty() { b"/".to_vec() } else { whole });
                }
                Top::Root => {
                    let text = String::from_utf8_lossy(&path).into_owned();
                    return Err(format!(
                        "{text} in the root of server {number}, which no mount reaches"
                    ));
                }
                Top::WithoutName => return Err(NO_NAME.into()),
            };
            let (number, store) = self.of(parent).await?;
            let named = store.name_in(parent, dir).await;
            let Some(name) = named.map_err(|error| at(number, error))? else {
                return Err(format!(
                    "directory {dir} has no name in directory {parent} of server {number}: `redbud \
                     fsck` compares the servers"
                ));
            };
            below = [b"/", name.as_bytes(), &path, &below].concat();
            from = parent;
        }
        Err("its directories are in a circle: run `redbud fsck`".into())
    }

    /// All paths of each inode.
    async fn every(&self, inodes: &[u64]) -> Vec<InodePath> {
        let sought: BTreeSet<Ino> = inodes.iter().copied().map(Ino).collect();
        let (mut out, mut names) = (Vec::new(), Vec::new());
        for (number, store) in &self.0 {
            let here = match store {
                Ok(store) => store.names_here(&sought).await.map_err(|error| error.to_string()),
                Err(text) => Err(text.clone()),
            };
            match here {
                Ok(NamesHere { names: found, unread }) => {
                    names.extend(found);
                    let unread = unread.into_iter().map(|(dir, why)| {
                        InodePath::error(dir.0, format!("cannot be read: {why}"))
                    });
                    out.extend(unread);
                }
                Err(text) => {
                    let text = format!("names at server {number} were not searched: {text}");
                    out.extend(inodes.iter().map(|&ino| InodePath::error(ino, text.clone())));
                }
            }
        }
        for &ino in &sought {
            let mut found = 0;
            if ino == Ino::ROOT {
                out.push(InodePath::path(ino.0, b"/"));
                found = 1;
            }
            for (dir, name, _) in names.iter().filter(|(.., leads)| *leads == ino) {
                found += 1;
                out.push(match self.path(*dir).await {
                    Ok(dir) if dir == b"/" => {
                        InodePath::path(ino.0, &[b"/", name.as_bytes()].concat())
                    }
                    Ok(dir) => InodePath::path(ino.0, &[&dir[..], b"/", name.as_bytes()].concat()),
                    Err(text) => InodePath::error(ino.0, text),
                });
            }
            out.extend(self.missing(ino, found).await.map(|text| InodePath::error(ino.0, text)));
        }
        out
    }

    /// What is wrong if an inode has so many names.
    async fn missing(&self, ino: Ino, found: u32) -> Option<String> {
        let store = match self.of(ino).await {
            Ok((_, store)) => store,
            Err(text) => return Some(text),
        };
        let attr = match store.run(Cost::READ, |txn| txn.names().attr(ino)).await {
            Ok((Some(attr), _)) => attr,
            Ok((None, _)) => return Some("no such inode".into()),
            Err(error) => return Some(error.to_string()),
        };
        let wanted = if attr.kind == FileKind::Directory { 1 } else { attr.nlink };
        let missing = wanted.saturating_sub(found);
        (missing > 0).then(|| format!("{missing} of its names, by its link count, were not found"))
    }
}
