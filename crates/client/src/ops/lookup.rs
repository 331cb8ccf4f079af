//! Looking up names and attributes.

use std::rc::Rc;

use env::sync::Notified;
use proto::mds::{Op, OpReply};
use types::limits::READDIR_MAX;
use types::{Attr, Duration, Fault, FileKind, Ino, Name, Rights};

use crate::api::{Caller, Entry, LookupResult};
use crate::client::Client;
use crate::core::Core;
use crate::inode::Inode;
use crate::names::CachedName;
use crate::rpc::{Call, result};

/// Rights to acquire with a found inode: it can then be opened without a request.
pub(super) const WANT_FOUND: Rights = Rights::ATTR.union(Rights::OPEN);
/// How often a lookup whose reply was overtaken is repeated.
const LOOKUP_RETRIES: u32 = 16;
/// How often a name is looked up again that leads to an inode of another server which is gone: the
/// name is going just now.
const GOING_RETRIES: u32 = 4;
/// Rights to acquire with the directory of a lookup.
pub(super) const WANT_DIR: Rights = Rights::ATTR.union(Rights::NAMES);

/// How long an answer with attributes waits for a recall to invalidate the inode in the kernel.
const RECALL_WAIT: Duration = Duration::from_secs(1);

impl Client {
    /// Finds a name; a found inode counts one lookup.
    pub async fn lookup(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &Name,
    ) -> Result<LookupResult, Fault> {
        let looked = self.find(caller, dir, name).await?;
        if let Ok(entry) = &looked {
            self.core.path_hints.note(entry.attr.ino, dir, name);
        }
        Ok(looked)
    }

    async fn find(&self, caller: &Caller, dir: Ino, name: &Name) -> Result<LookupResult, Fault> {
        let core = &self.core;
        core.wait_for_lease(dir).await?;
        core.check_not_lost(dir)?;
        // An inode that is given up with its last name is no longer found.
        while let Some(ended) = core.removal_of(dir, name) {
            ended.await;
        }
        if core.inodes.get(dir).is_some_and(|dir| dir.is_removed_directory()) {
            return Ok(Err(Duration::ZERO));
        }
        if let Some(dir) = core.inodes.get(dir)
            && dir.holds(Rights::NAMES)
            && core.name_cache_valid(dir.ino, name)
        {
            match dir.names(|names| names.find(name)) {
                CachedName::Present(ino) => {
                    if let Some(inode) = core
                        .inodes
                        .get(ino)
                        .filter(|inode| core.is_covered(dir.ino, inode) && inode.can_be_opened())
                    {
                        inode.note_lookup(core.env.now(), caller.pid);
                        return Ok(Ok(core.entry(&inode, dir.ino)));
                    }
                }
                CachedName::Absent => return Ok(Err(core.name_ttl(dir.ino))),
                CachedName::Unknown => {}
            }
        }
        let _lookup = core.lookups.begin(dir, name);
        if let Some(found) = self.find_elsewhere(caller, dir, name).await {
            return found.map(Ok);
        }
        let (mut retries, mut going) = (LOOKUP_RETRIES, GOING_RETRIES);
        let (inode, attr) = loop {
            let op = Op::Lookup { dir, name: name.clone(), want: WANT_FOUND, want_dir: WANT_DIR };
            let reply = core.rpc.call(Call::one(caller, op)).await?;
            let entry = match result(&reply, 0) {
                Ok(OpReply::Entry { entry, .. }) => entry,
                Ok(_) => return Err(Fault::Protocol),
                Err(fault) => return Err(core.dir_fault(dir, fault)),
            };
            let Some(leased) = entry else {
                return Ok(Err(core.name_ttl_from_reply(dir, name, CachedName::Absent)));
            };
            let (inode, attr) = match core.found(dir, leased, WANT_FOUND).await {
                Err(Fault::Stale) if going > 0 => {
                    going -= 1;
                    continue;
                }
                found => found?,
            };
            // The reply was made before the server had what this client returned of the inode,
            // which may be gone by now.
            let overtaken =
                !inode.can_be_opened() && inode.lease(|l| l.given_up().contains(Rights::OPEN));
            if !overtaken || retries == 0 {
                break (inode, attr);
            }
            retries -= 1;
        };
        inode.note_lookup(core.env.now(), caller.pid);
        let found = core.entry_with_attr(&inode, dir, name, &attr);
        self.fetch_names_if_missed(dir);
        Ok(Ok(found))
    }

    /// Lookups that miss in a directory whose names the client may cache bring all of them.
    fn fetch_names_if_missed(&self, dir: Ino) {
        let core = &self.core;
        if let Some(dir) = core.inodes.get(dir)
            && dir.holds(Rights::NAMES)
            && dir.names(|names| names.missed())
        {
            core.env.spawn(core.clone().fetch_names(dir));
        }
    }

    /// Finds a name that is cached and leads to an inode of another server than the directory's:
    /// only that other one is asked. `None`: the name has to be looked up.
    async fn find_elsewhere(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &Name,
    ) -> Option<Result<Entry, Fault>> {
        let core = &self.core;
        let CachedName::Present(ino) = core.inodes.get(dir)?.cached_name(name) else { return None };
        if core.rpc.is_together(dir, ino) {
            return None;
        }
        match core.found_elsewhere(dir, ino, WANT_FOUND).await {
            Ok((inode, attr)) => {
                inode.note_lookup(core.env.now(), caller.pid);
                Some(Ok(core.entry_with_attr(&inode, dir, name, &attr)))
            }
            Err(Fault::Stale) => None,
            Err(fault) => Some(Err(fault)),
        }
    }

    /// The parent of a directory, as far as this client knows.
    ///
    /// # Errors
    /// `Stale` if this client did not find the directory by its name.
    pub async fn lookup_parent(&self, dir: Ino) -> Result<Entry, Fault> {
        let core = &self.core;
        let inode = core.inode(dir).await?;
        if inode.kind() != FileKind::Directory {
            return Err(Fault::NotDirectory);
        }
        let parent = if dir == self.root() { Some(dir) } else { inode.names(|names| names.parent) };
        let parent = core.inode(parent.ok_or(Fault::Stale)?).await?;
        Ok(core.entry(&parent, parent.ino))
    }

    /// The kernel forgot `count` lookups of the inode.
    pub fn forget(&self, ino: Ino, count: u64) {
        self.core.inodes.forgotten(ino, count);
        if self.core.inodes.get(ino).is_none_or(|inode| !inode.is_known_to_kernel()) {
            self.core.kernel_forgot(ino);
        }
    }

    /// The attributes, and their TTL.
    pub async fn getattr(&self, ino: Ino) -> Result<(Attr, Duration), Fault> {
        self.or_last_known(ino, self.getattr_online(ino), |root| {
            root.report_owner();
            Some(Ok((root.attr(), Duration::ZERO)))
        })
        .await
    }

    async fn getattr_online(&self, ino: Ino) -> Result<(Attr, Duration), Fault> {
        let core = &self.core;
        core.wait_for_lease(ino).await?;
        core.check_not_lost(ino)?;
        let known = core.inodes.get(ino);
        let (inode, attr) = match known
            .filter(|inode| core.attr_cache_valid(inode) || inode.is_removed_directory())
        {
            Some(inode) => {
                let attr = inode.attr();
                (inode, attr)
            }
            None => match core.fetch_attr_reply(ino, Rights::ATTR).await {
                // The kernel found it by a name that another client has removed since.
                Err(Fault::Stale) => {
                    core.check_not_lost(ino)?;
                    // An open file was lost with the session: its attributes here may be outdated.
                    let inode = core.inodes.get(ino).filter(|inode| inode.opens() == 0);
                    return inode.map_or(Err(Fault::Stale), removed_attr);
                }
                fetched => fetched?,
            },
        };
        let ttl = core.report_attr(&inode, &attr);
        // The kernel ignores a size that it asked for before an invalidation. A process that reads
        // up to this size asks again, and then the invalidations are done.
        if ttl.is_zero()
            && let Some(data_lease) = inode.data_lease()
        {
            core.env.timeout(RECALL_WAIT, data_lease.pages.wait_recalls()).await;
        }
        Ok((attr, ttl))
    }

    /// Target of a symbolic link.
    pub async fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Fault> {
        let core = &self.core;
        core.wait_for_lease(ino).await?;
        let inode = core.inode(ino).await?;
        if inode.kind() != FileKind::Symlink {
            return Err(Fault::Invalid);
        }
        if let Some(target) = inode.target() {
            return Ok(target);
        }
        let op = Op::ReadLink { ino };
        let reply = core.rpc.call(Call::one(&Caller::default(), op)).await?;
        let OpReply::Bytes { bytes, .. } = result(&reply, 0)? else { return Err(Fault::Protocol) };
        inode.set_target(&bytes.0);
        Ok(bytes.0.clone())
    }
}

/// The attributes of a file that is gone. On a local file system, too, the last name may be removed
/// between the lookup and the `stat` of a file.
fn removed_attr(inode: Rc<Inode>) -> Result<(Attr, Duration), Fault> {
    Ok((Attr { nlink: 0, ..inode.attr() }, Duration::ZERO))
}

impl Core {
    /// Waits for a removal in progress of this name whose inode is given up with it; `None`: there
    /// is none.
    fn removal_of(&self, dir: Ino, name: &Name) -> Option<Notified> {
        let removing = self.removing.borrow();
        let removal = removing.values().find(|r| r.dir == dir && r.name == *name)?;
        Some(removal.ended.notified())
    }

    /// Reads a whole directory ahead, with attributes. A process that looks up a few names of a
    /// directory one by one, like `stat` of a sorted list, looks up all of them. Stops when the
    /// right is lost or when the inode table is three quarters full.
    async fn fetch_names(self: Rc<Core>, dir: Rc<Inode>) {
        let losses = dir.names(|names| names.losses());
        let mut stuck = 0;
        loop {
            let next = dir
                .names(|names| if names.losses() == losses { names.next_to_list() } else { None });
            let Some(cookie) = next else { break };
            if self.inodes.len() + READDIR_MAX > self.config.inodes_max / 4 * 3 || stuck > 4 {
                break;
            }
            let op = Op::ReadDir {
                dir: dir.ino,
                cookie,
                max: READDIR_MAX as u32,
                plus: true,
                want: WANT_FOUND,
                want_dir: WANT_DIR,
            };
            match self.rpc.call(Call::one(&Caller::default(), op)).await {
                Ok(reply) if result(&reply, 0).is_ok() => {}
                _ => break,
            }
            if dir.names(|names| names.next_to_list()) == Some(cookie) {
                stuck += 1;
            }
        }
        dir.names(|names| names.fetched());
    }
}
