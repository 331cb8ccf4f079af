//! POSIX access control lists in the kernel's format: version 2, then entries ⟨tag u16, permissions
//! u16, id u32⟩ sorted by tag and id.
//!
//! Invariants:
//! - an [`Acl`] is valid: it has one entry each for owner, group and others, at most one mask, and
//!   a mask if there are named users or groups;
//! - an access ACL that says no more than the mode is not stored; a stored one agrees with the
//!   mode.

use types::Fault;

/// Name of the attribute with the access ACL.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the attribute with the default ACL of a directory.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;
const NO_ID: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A valid list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<Entry>);

impl Acl {
    /// Decodes a list.
    ///
    /// # Errors
    /// `NotSupported` for another version, `Invalid`.
    pub fn parse(bytes: &[u8]) -> Result<Acl, Fault> {
        let (version, rest) = bytes.split_first_chunk::<4>().ok_or(Fault::Invalid)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Fault::NotSupported);
        }
        if rest.is_empty() || rest.len() % 8 != 0 {
            return Err(Fault::Invalid);
        }
        let entry = |e: &[u8]| Entry {
            tag: u16::from_le_bytes([e[0], e[1]]),
            perm: u16::from_le_bytes([e[2], e[3]]),
            id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
        };
        let acl = Acl(rest.chunks_exact(8).map(entry).collect());
        if acl.is_valid() { Ok(acl) } else { Err(Fault::Invalid) }
    }

    /// Does the attribute's value mean "no list" (a header without entries)?
    pub fn is_none(bytes: &[u8]) -> bool {
        bytes.is_empty() || (bytes.len() == 4 && bytes == VERSION.to_le_bytes())
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            out.extend_from_slice(&entry.tag.to_le_bytes());
            out.extend_from_slice(&entry.perm.to_le_bytes());
            let named = matches!(entry.tag, USER | GROUP);
            out.extend_from_slice(&(if named { entry.id } else { NO_ID }).to_le_bytes());
        }
        out
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let known = self.0.iter().all(|e| {
            matches!(e.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER) && e.perm <= 7
        });
        let order = self.0.windows(2).all(|pair| {
            let named = matches!(pair[0].tag, USER | GROUP) && pair[0].tag == pair[1].tag;
            pair[0].tag < pair[1].tag || (named && pair[0].id < pair[1].id)
        });
        let named = count(USER) + count(GROUP) > 0;
        known
            && order
            && [USER_OBJ, GROUP_OBJ, OTHER].into_iter().all(|tag| count(tag) == 1)
            && (count(MASK) == 1 || (!named && count(MASK) == 0))
    }

    fn get(&self, tag: u16) -> Option<u16> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm)
    }

    fn set(&mut self, tag: u16, perm: u16) {
        for entry in self.0.iter_mut().filter(|entry| entry.tag == tag) {
            entry.perm = perm;
        }
    }

    /// Does it say no more than mode bits can?
    pub fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// The nine permission bits that agree with it as an access ACL.
    pub fn mode(&self) -> u16 {
        let group = self.get(MASK).or_else(|| self.get(GROUP_OBJ)).unwrap_or(0);
        (self.get(USER_OBJ).unwrap_or(0) << 6) | (group << 3) | self.get(OTHER).unwrap_or(0)
    }

    /// The permission bits that an access ACL gives a user who does not own the file: those of the
    /// entry for `user`, else those of one entry for its groups that has all of `bits`, else those
    /// of others. `owning`: the group of the file.
    pub fn given(&self, (user, owning): (u32, u32), bits: u16, is_in: impl Fn(u32) -> bool) -> u16 {
        let mask = self.get(MASK).unwrap_or(7);
        if let Some(named) = self.0.iter().find(|entry| entry.tag == USER && entry.id == user) {
            return named.perm & mask;
        }
        let mut groups = self.0.iter().filter(|entry| match entry.tag {
            GROUP_OBJ => is_in(owning),
            GROUP => is_in(entry.id),
            _ => false,
        });
        let mut any = false;
        let enough = groups.any(|entry| {
            any = true;
            entry.perm & mask & bits == bits
        });
        match (enough, any) {
            (true, _) => bits,
            (false, true) => 0,
            (false, false) => self.get(OTHER).unwrap_or(0),
        }
    }

    /// The access ACL after a chmod.
    pub fn chmod(&mut self, mode: u16) {
        self.set(USER_OBJ, (mode >> 6) & 7);
        self.set(OTHER, mode & 7);
        let group = if self.get(MASK).is_some() { MASK } else { GROUP_OBJ };
        self.set(group, (mode >> 3) & 7);
    }

    /// Mode and access ACL of an inode created with `mode` in a directory whose default ACL this
    /// is.
    pub fn inherit(&self, mode: u16) -> (u16, Option<Acl>) {
        let mut acl = self.clone();
        let masked = acl.mode() & mode & 0o777;
        acl.chmod(masked);
        let minimal = acl.is_minimal();
        ((mode & !0o777) | masked, (!minimal).then_some(acl))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&perm.to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }

    #[test]
    fn acl_is_valid_only_if_complete_and_sorted() {
        let good =
            acl(&[(1, 7, NO_ID), (2, 5, 1000), (4, 5, NO_ID), (16, 7, NO_ID), (32, 0, NO_ID)]);
        assert_eq!(Acl::parse(&good).unwrap().encode(), good);
        let no_mask = acl(&[(1, 7, NO_ID), (2, 5, 1000), (4, 5, NO_ID), (32, 0, NO_ID)]);
        assert_eq!(Acl::parse(&no_mask), Err(Fault::Invalid));
        let unsorted = acl(&[(4, 7, NO_ID), (1, 5, NO_ID), (32, 0, NO_ID)]);
        assert_eq!(Acl::parse(&unsorted), Err(Fault::Invalid));
        for len in 0..good.len() {
            let _ = Acl::parse(&good[..len]);
        }
    }

    #[test]
    fn default_acl_is_narrowed_by_the_mode_and_not_by_the_umask() {
        let bytes =
            acl(&[(1, 7, NO_ID), (2, 6, 1000), (4, 5, NO_ID), (16, 7, NO_ID), (32, 5, NO_ID)]);
        let (mode, access) = Acl::parse(&bytes).unwrap().inherit(0o664);
        assert_eq!(mode, 0o664);
        let access = access.unwrap();
        assert_eq!((access.get(MASK), access.get(OTHER)), (Some(6), Some(4)));
        assert_eq!(access.get(GROUP_OBJ), Some(5), "the mask stands for the group");
        let minimal = acl(&[(1, 7, NO_ID), (4, 5, NO_ID), (32, 0, NO_ID)]);
        assert_eq!(Acl::parse(&minimal).unwrap().inherit(0o2666), (0o2640, None));
    }
}
