//! From an inode number to a path by a reverse walk, and to all its paths by a walk of the whole
//! tree.
//!
//! Invariants:
//! - the reverse walk goes from slot to directory, which each chunk names, so it costs a few reads
//!   for each level and searches nothing;
//! - the walk of the tree reads each directory once, from the root on, until it has found as many
//!   names of every wanted inode as the inode counts. It reports a directory that it cannot read,
//!   and goes on. What other shards hold it leaves out, so names in directories whose own name is
//!   there count as missing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use types::{Fault, FileKind, HashSet, Ino, Name};

use super::view::Names;
use crate::format::number::{is_root_dir, root_dir};
use crate::format::outside::Outside;
use crate::handle::Mfs;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};

/// Most paths of one inode that [`Mfs::all_paths`] returns; more are only counted.
pub const PATHS_MAX: usize = 10_000;
/// Entries of a directory that are listed together.
const PAGE: usize = 256;

/// Most directories of a path; a longer one is a cycle.
const DEPTH_MAX: usize = 1 << 16;

impl Names<'_, '_> {
    /// A path from the root to `ino`, beginning with a slash. `None` if there is no such inode, if
    /// it has no name, or if its own slot has none (a file whose first name was removed while it
    /// had others). Also `None` if the name of a directory on the way is on another shard.
    ///
    /// # Errors
    /// `Corrupt` if the path is a cycle; `Stop` of the blocks read.
    pub fn path(&mut self, ino: Ino) -> Result<Option<Vec<u8>>, Stop> {
        Ok(match self.upward(ino)? {
            Some((path, Top::Root)) if path.is_empty() => Some(b"/".to_vec()),
            Some((path, Top::Root)) => Some(path),
            _ => None,
        })
    }

    /// The names of this shard on the way up from `ino`, each behind a slash, and where they end.
    /// `None` if there is no such inode here.
    ///
    /// # Errors
    /// As [`Names::path`].
    pub fn upward(&mut self, ino: Ino) -> Result<Option<(Vec<u8>, Top)>, Stop> {
        if ino == Ino::NONE || self.attr(ino)?.is_none() {
            return Ok(None);
        }
        let (mut at, mut names, mut top) = (ino, Vec::new(), Top::Root);
        while !is_root_dir(at) {
            let Some((dir, name)) = self.entry_of(at)? else {
                top = match self.outside(at)? {
                    Some(Outside::Parent(parent)) => Top::Guest { dir: at, parent },
                    _ => Top::WithoutName,
                };
                break;
            };
            names.push(name);
            if names.len() > DEPTH_MAX {
                return Err(Stop::Fault(types::Fault::Corrupt));
            }
            at = dir;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name.as_bytes());
        }
        Ok(Some((path, top)))
    }
}

/// Where the names of one shard on the way up from an inode end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Top {
    /// At the shard's root directory.
    Root,
    /// At a directory that has its name on another shard.
    Guest {
        /// The directory.
        dir: Ino,
        /// The directory, of another shard, with the name.
        parent: Ino,
    },
    /// At an inode whose slot has no name.
    WithoutName,
}

/// Names that one shard has of some inodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NamesHere {
    /// Each with its directory, and the inode that it leads to.
    pub names: Vec<(Ino, Name, Ino)>,
    /// Directories that could not be read completely, and why.
    pub unread: Vec<(Ino, String)>,
}

/// The paths of one inode.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Paths {
    /// In the order of the walk, at most [`PATHS_MAX`].
    pub paths: Vec<Vec<u8>>,
    /// How many more the walk found.
    pub omitted: u64,
    /// Names that the inode counts and the walk did not find.
    pub missing: u32,
}

/// The result of a walk of the whole tree.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AllPaths {
    /// The wanted inodes that exist, each with its paths.
    pub found: BTreeMap<Ino, Paths>,
    /// Wanted inodes, and directories, that could not be read completely, and why.
    pub unread: Vec<(Ino, String)>,
}

impl AllPaths {
    fn is_done(&self) -> bool {
        self.found.values().all(|paths| paths.missing == 0)
    }

    fn add(&mut self, ino: Ino, dir: &[u8], name: &[u8]) {
        let Some(paths) = self.found.get_mut(&ino) else { return };
        paths.missing = paths.missing.saturating_sub(1);
        if paths.paths.len() == PATHS_MAX {
            paths.omitted += 1;
            return;
        }
        let above: &[u8] = if dir == b"/" { b"" } else { dir };
        paths.paths.push([above, b"/", name].concat());
    }
}

impl Mfs {
    /// All paths of these inodes. Nothing may change the store meanwhile.
    ///
    /// # Errors
    /// `Io`, `Poisoned`.
    pub async fn all_paths(&self, inodes: &BTreeSet<Ino>) -> Result<AllPaths, StoreError> {
        let mut all = AllPaths::default();
        for &ino in inodes.iter().filter(|&&ino| ino != Ino::NONE) {
            let attr = match self.run(Cost::READ, |txn| txn.names().attr(ino)).await {
                Ok((Some(attr), _)) => attr,
                Ok((None, _)) => continue,
                Err(StoreError::Corrupt { block, what }) => {
                    all.unread.push((ino, format!("metadata block {block}: {what}")));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut paths = Paths::default();
            match attr.kind {
                _ if is_root_dir(ino) => paths.paths.push(b"/".to_vec()),
                FileKind::Directory => paths.missing = 1,
                _ => paths.missing = attr.nlink,
            }
            all.found.insert(ino, paths);
        }
        let root = root_dir(self.superblock().shard);
        let (mut queue, mut met) = (VecDeque::from([root]), HashSet::default());
        while let Some(dir) = queue.pop_front().filter(|_| !all.is_done()) {
            match self.names_in(dir, &mut all, (&mut queue, &mut met)).await {
                Err(StoreError::Corrupt { block, what }) => {
                    all.unread.push((dir, format!("metadata block {block}: {what}")));
                }
                Err(StoreError::Fault(_)) => {
                    all.unread.push((dir, "there is no such directory".into()))
                }
                read => read?,
            }
        }
        Ok(all)
    }

    /// Notes the names of wanted inodes in one directory, and its subdirectories.
    async fn names_in(
        &self,
        dir: Ino,
        all: &mut AllPaths,
        (queue, met): (&mut VecDeque<Ino>, &mut HashSet<Ino>),
    ) -> Result<(), StoreError> {
        let (mut after, mut path) = (0, None);
        loop {
            let (entries, _) =
                self.run(Cost::READ, |txn| txn.names().readdir(dir, after, PAGE)).await?;
            for entry in &entries {
                if all.found.contains_key(&entry.ino) {
                    if path.is_none() {
                        let found = self.run(Cost::READ, |txn| txn.names().path(dir)).await?.0;
                        path = Some(found.ok_or(StoreError::Fault(Fault::Stale))?);
                    }
                    all.add(entry.ino, path.as_deref().unwrap_or_default(), entry.name.as_bytes());
                }
                // Directories of other shards have no attributes here.
                let here = entry.attr.is_some();
                if entry.kind == FileKind::Directory && here && met.insert(entry.ino) {
                    queue.push_back(entry.ino);
                }
            }
            let Some(last) = entries.last().filter(|_| entries.len() == PAGE) else {
                return Ok(());
            };
            after = last.cookie;
        }
    }
}

impl Mfs {
    /// The name that leads from `dir` to `ino`, which may be of another shard; `None`: there is
    /// none. Nothing may change the store meanwhile.
    ///
    /// # Errors
    /// `Corrupt`, `Io`, `Poisoned`; the fault if `dir` is no directory of this shard.
    pub async fn name_in(&self, dir: Ino, ino: Ino) -> Result<Option<Name>, StoreError> {
        let mut after = 0;
        loop {
            let (entries, _) =
                self.run(Cost::READ, |txn| txn.names().readdir(dir, after, PAGE)).await?;
            if let Some(found) = entries.iter().find(|entry| entry.ino == ino) {
                return Ok(Some(found.name.clone()));
            }
            let Some(last) = entries.last().filter(|_| entries.len() == PAGE) else {
                return Ok(None);
            };
            after = last.cookie;
        }
    }

    /// All names that this shard has of these inodes, which may be of other shards. Nothing may
    /// change the store meanwhile.
    ///
    /// # Errors
    /// `Io`, `Poisoned`.
    pub async fn names_here(&self, inodes: &BTreeSet<Ino>) -> Result<NamesHere, StoreError> {
        let (mut found, root) = (NamesHere::default(), root_dir(self.superblock().shard));
        let mut queue = VecDeque::from([root]);
        let mut after = Ino::NONE;
        loop {
            let guests = self.run(Cost::READ, |txn| txn.names().guests(after, PAGE)).await?.0;
            let Some(&(last, _)) = guests.last() else { break };
            let is_directory = |outside: &Outside| matches!(outside, Outside::Parent(_));
            queue.extend(guests.iter().filter(|(_, it)| is_directory(it)).map(|(ino, _)| *ino));
            after = last;
        }
        let mut met: HashSet<Ino> = queue.iter().copied().collect();
        while let Some(dir) = queue.pop_front() {
            match self.names_of(dir, inodes, &mut found, (&mut queue, &mut met)).await {
                Err(StoreError::Corrupt { block, what }) => {
                    found.unread.push((dir, format!("metadata block {block}: {what}")));
                }
                Err(StoreError::Fault(_)) => {
                    found.unread.push((dir, "there is no such directory".into()));
                }
                read => read?,
            }
        }
        Ok(found)
    }

    /// Notes the names of wanted inodes in one directory, and its subdirectories on this shard.
    async fn names_of(
        &self,
        dir: Ino,
        inodes: &BTreeSet<Ino>,
        found: &mut NamesHere,
        (queue, met): (&mut VecDeque<Ino>, &mut HashSet<Ino>),
    ) -> Result<(), StoreError> {
        let mut after = 0;
        loop {
            let (entries, _) =
                self.run(Cost::READ, |txn| txn.names().readdir(dir, after, PAGE)).await?;
            for entry in &entries {
                if inodes.contains(&entry.ino) {
                    found.names.push((dir, entry.name.clone(), entry.ino));
                }
                // Directories of other shards have no attributes here.
                let here = entry.attr.is_some();
                if entry.kind == FileKind::Directory && here && met.insert(entry.ino) {
                    queue.push_back(entry.ino);
                }
            }
            let Some(last) = entries.last().filter(|_| entries.len() == PAGE) else {
                return Ok(());
            };
            after = last.cookie;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use types::{Attr, FileKind, Ino, Name};

    use super::{PATHS_MAX, Paths};
    use crate::testing::{formatted, new_inode, now, run};

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn path_follows_an_inode_through_renames() {
        let mfs = formatted();
        let (tmp, out, deep) = run(&mfs, |txn| {
            let tmp = txn.names().create(
                Ino::ROOT,
                &name("tmp"),
                &new_inode(FileKind::Directory),
                None,
            )?;
            let out = txn.names().create(
                Ino::ROOT,
                &name("out"),
                &new_inode(FileKind::Directory),
                None,
            )?;
            Ok((
                tmp,
                out,
                txn.names().create(out, &name("deep"), &new_inode(FileKind::Directory), None)?,
            ))
        });
        let path = |ino: Ino| {
            run(&mfs, |txn| txn.names().path(ino)).map(|p| String::from_utf8(p).unwrap())
        };
        assert_eq!(path(Ino::ROOT).as_deref(), Some("/"));
        let mut files = Vec::new();
        for n in 0..500 {
            let text = format!("f{n}");
            let ino = run(&mfs, |txn| {
                let ino =
                    txn.names().create(tmp, &name("new"), &new_inode(FileKind::Regular), None)?;
                txn.names().rename(tmp, &name("new"), deep, &name(&text))?;
                Ok(ino)
            });
            files.push((ino, format!("/out/deep/{text}")));
        }
        for (ino, wanted) in &files {
            assert_eq!(path(*ino).as_ref(), Some(wanted));
        }
        run(&mfs, |txn| txn.names().rename(out, &name("deep"), Ino::ROOT, &name("up")));
        assert_eq!(path(files[7].0).as_deref(), Some("/up/f7"));
        let orphan = files[8].0;
        run(&mfs, |txn| {
            txn.names().remove_name(deep, &name("f8"))?;
            let attr = txn.names().attr(orphan)?.unwrap();
            txn.names().set_attr(&Attr { nlink: 0, ..attr })
        });
        assert_eq!(path(orphan), None, "an orphan has no path");
        while !run(&mfs, |txn| txn.names().free_inode_step(orphan, 9)) {}
        assert_eq!((path(orphan), path(Ino::NONE)), (None, None));
    }

    #[test]
    fn all_paths_finds_links_whose_first_name_was_removed() {
        let mfs = formatted();
        let (dir, file, other) = run(&mfs, |txn| {
            let dir = txn.names().create(
                Ino::ROOT,
                &name("dir"),
                &new_inode(FileKind::Directory),
                None,
            )?;
            let file = txn.names().create(
                Ino::ROOT,
                &name("file"),
                &new_inode(FileKind::Regular),
                None,
            )?;
            Ok((
                dir,
                file,
                txn.names().create(dir, &name("other"), &new_inode(FileKind::Fifo), None)?,
            ))
        });
        let count = PATHS_MAX + 5;
        for from in (0..count).step_by(100) {
            run(&mfs, |txn| {
                for n in from..count.min(from + 100) {
                    txn.names().link(dir, &name(&format!("l{n}")), file)?;
                }
                Ok(())
            });
        }
        run(&mfs, |txn| {
            txn.names().remove_name(Ino::ROOT, &name("file"))?;
            let attr = txn.names().attr(file)?.unwrap();
            txn.names().set_attr(&Attr { nlink: count as u32, ..attr })
        });
        assert_eq!(run(&mfs, |txn| txn.names().path(file)), None, "its own slot has none");
        let sought = BTreeSet::from([Ino::ROOT, dir, file, other, Ino(99 << 24)]);
        let all = now(mfs.all_paths(&sought)).unwrap();
        assert_eq!(all.unread, []);
        let found = |ino: Ino| all.found[&ino].clone();
        let one = |path: &str| Paths { paths: vec![path.into()], ..Paths::default() };
        assert_eq!((found(Ino::ROOT), found(dir)), (one("/"), one("/dir")));
        assert_eq!((found(other), all.found.len()), (one("/dir/other"), 4));
        let Paths { paths, omitted, missing } = found(file);
        assert_eq!((paths.len(), omitted, missing), (PATHS_MAX, 5, 0));
        let wanted: BTreeSet<_> = (0..count).map(|n| format!("/dir/l{n}").into_bytes()).collect();
        assert!(paths.iter().all(|path| wanted.contains(path)));
        assert_eq!(paths.iter().collect::<BTreeSet<_>>().len(), PATHS_MAX);
    }
}
