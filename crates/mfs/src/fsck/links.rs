//! Comparison of the walk with link counts, lists and tables.

use types::{FileKind, Ino};

use super::plan::Fix;
use super::{Check, ProblemKind, Subject};
use crate::format::number::{is_orphan_dir, is_root_dir};
use crate::trees::INODES;
use engine::error::StoreError;

impl Check {
    pub(super) async fn compare_links(&mut self) -> Result<(), StoreError> {
        self.count_outside();
        let mut links = std::mem::take(&mut self.tree.links);
        links.sort_unstable_by_key(|link| (link.ino, link.at));
        let mut further = 0;
        for (at, link) in links.iter().enumerate() {
            let (ino, dir) = (link.ino, link.dir);
            let Some(kind) = self.kind_of(ino) else {
                let detail = format!("named in directory {dir}");
                self.found(ProblemKind::DanglingName, Subject::Inode(ino), detail);
                self.plan.add(Fix::DropLink(link.at));
                continue;
            };
            if kind != link.kind || kind == FileKind::Directory {
                let detail = format!("{:?} in directory {dir}, {kind:?} itself", link.kind);
                self.found(ProblemKind::WrongKind, Subject::Inode(ino), detail);
                self.plan.add(match kind {
                    FileKind::Directory => Fix::DropLink(link.at),
                    kind => Fix::LinkKind(link.at, kind),
                });
            }
            if let Some(seen) = self.tree.inodes.get_mut(&ino) {
                seen.names += 1;
                continue;
            }
            // An ordinary inode has one link: with a further name its count is too low.
            further += 1;
            if links.get(at + 1).is_none_or(|next| next.ino != ino) {
                self.wrong_links(ino, 1, 1 + further);
                further = 0;
            }
        }
        let mut inodes: Vec<Ino> = self.tree.inodes.keys().copied().collect();
        inodes.sort_unstable();
        inodes.into_iter().for_each(|ino| self.compare_inode(ino));
        Ok(())
    }

    fn wrong_links(&mut self, ino: Ino, nlink: u32, expected: u32) {
        let detail = format!("{nlink}, but should be {expected}");
        self.found(ProblemKind::WrongLinkCount, Subject::Inode(ino), detail);
        self.plan.add(Fix::Links(ino, expected));
    }

    fn compare_inode(&mut self, ino: Ino) {
        let Some(seen) = self.tree.inodes.get(&ino) else { return };
        let system = is_root_dir(ino) || is_orphan_dir(ino);
        let (nlink, names) = (seen.nlink, seen.names);
        let expected = match seen.kind {
            FileKind::Directory if system || names > 0 => 2 + seen.subdirectories,
            _ => names,
        };
        if names < nlink && seen.kind != FileKind::Directory {
            self.underlinked.insert(ino);
        }
        if names == 0 && nlink > 0 && !system {
            let detail = format!("it counts {nlink} links");
            self.found(ProblemKind::UnreachableInode, Subject::Inode(ino), detail);
            self.plan.add(Fix::Unreachable(ino));
        } else if nlink != expected {
            self.wrong_links(ino, nlink, expected);
        }
        let listed = self.tree.orphans.remove(&ino);
        if listed != (nlink == 0) {
            let detail = if listed { "it has links" } else { "it is missing" };
            self.found(ProblemKind::WrongOrphan, Subject::Inode(ino), detail);
            self.plan.add(Fix::Orphan(ino, expected == 0 && nlink == 0));
        }
        self.report.counts.orphans += u64::from(nlink == 0);
        self.compare_home(ino, nlink);
    }

    /// Finds what lists and tables name and the walk has not met.
    pub(super) async fn compare_lists(&mut self) -> Result<(), StoreError> {
        for ino in std::mem::take(&mut self.tree.moved).into_keys() {
            self.found(ProblemKind::StaleMove, Subject::Inode(ino), "there is no such inode");
            self.plan.add(Fix::Moved(ino, None));
        }
        for ino in std::mem::take(&mut self.tree.orphans) {
            let there = self.kind_of(ino).is_some();
            let detail = if there { "it has links" } else { "there is no such inode" };
            self.found(ProblemKind::WrongOrphan, Subject::Inode(ino), detail);
            self.plan.add(Fix::Orphan(ino, false));
        }
        let chunks = self.tree.chunks.iter();
        // Whose a chunk of another shard is cannot be said here.
        let lost = chunks.filter(|(number, (_, reached))| !reached && number.shard() == self.shard);
        let lost: Vec<_> = lost.map(|(&number, (chunk, _))| (number, chunk.descriptor)).collect();
        for (number, descriptor) in lost {
            let detail = format!("of directory {}", descriptor.owner);
            self.found(ProblemKind::LostChunk, Subject::Chunk(number), detail);
            self.plan.add(Fix::AdoptChunk(number));
            self.plan.add(Fix::BreakCircle(number));
        }
        let counted = self.read(|txn| txn.root(INODES)).await?;
        let inodes = self.report.counts.inodes;
        if counted.is_some_and(|counted| counted != inodes) {
            let detail = format!("{inodes} inodes, {} counted", counted.unwrap_or(0));
            self.found(ProblemKind::WrongCount, Subject::Whole, detail);
            self.plan.add(Fix::Inodes(inodes));
        }
        Ok(())
    }
}
