//! What one server says of an inode of another: its number and its type, and nothing else.
//!
//! Invariants:
//! - such a reply grants no right on the inode and brings no attributes of it: the client asks the
//!   inode's own server for them, before it answers the kernel;
//! - after an operation of several servers the client relies on nothing that it had cached of the
//!   inodes that the answering server does not have;
//! - the client may not know yet where an inode lives. The reply itself says whether it describes
//!   the inode: attributes of version 0 are those of an inode of another server.

use std::rc::Rc;

use proto::mds::{Leased, Mds, NAMED_CALLERS, NewNode, Op, Reply};
use session::client::{Session, result};
use types::{Attr, Fault, FileKind, Ino, Rights, ServerId};

use super::Core;
use crate::api::{Caller, Place};
use crate::homes::Rehomed;
use crate::inode::{Inode, InodePin};

impl Core {
    /// Has another server the inode than the one whose reply with these attributes is being
    /// applied?
    pub(super) fn is_elsewhere(&self, attr: &Attr) -> bool {
        attr.version == 0 || self.rpc.server_of(attr.ino) != self.answering.get()
    }

    /// Asks for a new inode with a name, as [`Core::send_change`]. A regular file of a spread
    /// directory is made by the server that its name chooses, unless that refers to the
    /// directory's own.
    pub async fn send_create(
        &self,
        caller: &Caller,
        place: Place<'_>,
        node: NewNode,
        want: Rights,
    ) -> Result<Rc<Reply>, Fault> {
        let kind = node.kind;
        let op = Op::Create { dir: place.dir, name: place.name.clone(), node, want };
        if let Some(session) = self.makes_elsewhere(place, kind) {
            let call = self.change_in(&session, caller, op.clone());
            let reply = session.call(call).await?;
            // The directory's own server knows what has become of it.
            if !matches!(result(&reply, 0).err(), Some(Fault::CrossDevice | Fault::Moved)) {
                return Ok(reply);
            }
        }
        self.send_change(caller, op).await
    }

    /// The session in which a new inode at `place` is asked for, if that is not the directory's.
    fn makes_elsewhere(&self, place: Place<'_>, kind: FileKind) -> Option<Rc<Session<Mds>>> {
        let dir = self.inodes.get(place.dir)?;
        let own = self.rpc.of(place.dir);
        // The directory's server checks the callers of a squashed node itself.
        let is_believed = own.agreed().1 & NAMED_CALLERS == 0;
        let is_spread = kind == FileKind::Regular && dir.server_attr().spread && is_believed;
        let chosen = self.rpc.of_name(place.name);
        Some(chosen).filter(|chosen| is_spread && chosen.server() != own.server())
    }

    /// May a reply to a creation at `place` grant rights on the new file `ino`? It comes from the
    /// server of either, and that of the directory may be a former one.
    pub fn is_made_there(&self, place: Place<'_>, ino: Ino) -> bool {
        let chosen = || self.rpc.of_name(place.name).server();
        self.rpc.is_together(place.dir, ino)
            || self.rpc.server_of(ino) == chosen()
            || self.rpc.has_moved(place.dir)
    }

    /// A directory has its name in `parent`.
    pub(super) fn note_parent(&self, ino: Ino, parent: Ino) {
        let dir = self.inodes.get(ino).filter(|inode| inode.kind() == FileKind::Directory);
        if let Some(dir) = dir {
            dir.names(|names| names.parent = Some(parent));
        }
    }

    /// Another server than the inode's own says that it has changed. Gives `rights` back, so that
    /// the next reply of its own server can grant them with what holds since.
    pub(super) fn void(&self, ino: Ino, rights: Rights) {
        let Some(inode) = self.inodes.get(ino) else { return };
        let (held, seq) = inode.lease(|lease| (lease.rights().closed() & rights, lease.seq()));
        inode.give_up(rights, self.rpc.order());
        let Some(me) = self.me.upgrade().filter(|_| !held.is_empty()) else { return };
        let pin = InodePin::new(&inode);
        let server = self.rpc.server_of(ino);
        self.env.spawn(async move {
            me.give_back(server, (ino, seq), held, false, None).await;
            me.inodes.unpin(pin);
        });
    }

    /// Another server than the inode's own says that it has lost a name; `removed`: it is gone.
    pub(super) fn void_after_removal(&self, ino: Ino, removed: bool) {
        self.void(ino, Rights::ATTR);
        let known = self.inodes.get(ino).filter(|_| removed);
        if let Some(dir) = known {
            dir.give_up(Rights::all(), self.rpc.order());
            dir.mark_removed();
        }
    }

    /// Are the cached attributes of an inode valid that has a name in `dir`? The lease of the
    /// server of `dir` is good; another server of the inode may be away.
    pub fn is_covered(&self, dir: Ino, inode: &Inode) -> bool {
        let is_good = || self.rpc.of(inode.ino).lease_ends() > self.env.now();
        self.attr_cache_valid(inode) && (self.rpc.is_together(dir, inode.ino) || is_good())
    }

    /// The inode that a reply found or created in `dir`, and its attributes. If another server has
    /// it, that one is asked, and grants `want` if that is free.
    ///
    /// # Errors
    /// `Stale`: it has lost its name since. Else as [`Core::fetch_attr_reply`].
    pub async fn found(
        &self,
        dir: Ino,
        leased: &Leased,
        want: Rights,
    ) -> Result<(Rc<Inode>, Attr), Fault> {
        if leased.attr.version > 0 && self.rpc.is_together(dir, leased.attr.ino) {
            return Ok((self.inodes.get_or_insert(&leased.attr), leased.attr));
        }
        self.found_elsewhere(dir, leased.attr.ino, want).await
    }

    /// As [`Core::found`], of an inode that another server has than that of `dir`.
    pub async fn found_elsewhere(
        &self,
        dir: Ino,
        ino: Ino,
        want: Rights,
    ) -> Result<(Rc<Inode>, Attr), Fault> {
        self.check_not_lost(ino)?;
        let usable = |inode: &Rc<Inode>| self.is_covered(dir, inode) && inode.can_be_opened();
        let (inode, attr) = match self.inodes.get(ino).filter(usable) {
            Some(inode) => {
                let attr = inode.attr();
                (inode, attr)
            }
            None => self.fetch_attr_reply(ino, want).await?,
        };
        if attr.nlink == 0 {
            return Err(Fault::Stale);
        }
        self.note_parent(ino, dir);
        Ok((inode, attr))
    }

    /// The attributes of an inode that has lost a name in `dir`, of which a reply brought `attr`.
    /// If another server has it, that one is asked; `None`: it is gone.
    pub async fn attr_after_removal(&self, dir: Ino, attr: &Attr) -> Option<Attr> {
        if attr.version > 0 && self.rpc.is_together(dir, attr.ino) {
            return Some(*attr);
        }
        // What nobody here uses needs no answer.
        self.inodes.get(attr.ino)?;
        self.fetch_attr_reply(attr.ino, Rights::empty()).await.ok().map(|(_, attr)| attr)
    }
}

impl Rehomed for Core {
    fn is_in_use(&self, ino: Ino) -> bool {
        self.inodes.get(ino).is_some()
    }

    /// What the former server had granted counts for nothing from here on. Usually that is nothing:
    /// it recalls everything before the inode moves.
    fn rehomed(&self, ino: Ino, server: ServerId) {
        self.early_recalls.forget(|other| other == ino);
        self.returning.borrow_mut().remove(&ino);
        let losses = |server| self.rpc.get(server).map_or(0, |session| session.losses());
        self.handles.rehome(ino, losses(server), losses(self.rpc.server_of(ino)));
        let Some(inode) = self.inodes.get(ino) else { return };
        let (held, seq) = inode.lease(|lease| (lease.rights().closed(), lease.seq()));
        inode.forget_lease(self.rpc.order());
        if let Some(data_lease) = inode.data_lease() {
            data_lease.file.rehomed();
        }
        let Some(me) = self.me.upgrade().filter(|_| !held.is_empty()) else { return };
        let pin = InodePin::new(&inode);
        self.env.spawn(async move {
            me.kernel.inc_epoch().await;
            me.kernel.inval_attr(ino).await;
            me.give_back(server, (ino, seq), held, false, None).await;
            me.inodes.unpin(pin);
        });
    }
}
