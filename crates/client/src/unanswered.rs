//! Changes that this client has requested, and whose replies are not here yet.
//!
//! Invariants:
//! - while such a change concerns a name or an inode, no cached state of it is used in an answer:
//!   the server may have made the change, and others may have seen it. The server is asked instead.

use proto::mds::Op;
use proto::operation::Invalidates;
use types::{Ino, Name};

use crate::core::Core;
use crate::inode::Inode;
use crate::names::CachedName;

/// Does the operation change where `name` leads?
fn changes_name(op: &Op, dir: Ino, name: &Name) -> bool {
    op.spec().invalidates().names().contains(&Some((dir, name)))
}

impl Core {
    /// Is what is cached of a name valid, given that the right is held?
    pub fn name_cache_valid(&self, dir: Ino, name: &Name) -> bool {
        !self.rpc.has_unanswered(|op| changes_name(op, dir, name))
    }

    /// Are the cached attributes valid?
    pub fn attr_cache_valid(&self, inode: &Inode) -> bool {
        inode.attr_is_valid() && !self.rpc.has_unanswered(|op| self.may_change(op, inode.ino))
    }

    /// May the operation change the attributes of `ino`?
    fn may_change(&self, op: &Op, ino: Ino) -> bool {
        let spec = op.spec();
        match spec.invalidates() {
            Invalidates::Nothing => false,
            Invalidates::Attributes | Invalidates::NewName(_) => spec.inodes.contains(&Some(ino)),
            Invalidates::Names(names) => {
                let mut names = names.iter().flatten();
                spec.inodes.contains(&Some(ino))
                    || names.any(|(dir, name)| self.may_lead(*dir, name, ino))
            }
        }
    }

    /// May the name lead to `ino`, as far as this client knows?
    fn may_lead(&self, dir: Ino, name: &Name, ino: Ino) -> bool {
        match self.inodes.get(dir).map_or(CachedName::Unknown, |dir| dir.cached_name(name)) {
            CachedName::Present(to) => to == ino,
            CachedName::Absent => false,
            CachedName::Unknown => true,
        }
    }
}
