//! The privileges of a caller that the request does not name.
//!
//! A kernel that maps ids names the caller only in requests that create an inode
//! (FUSE_ALLOW_IDMAP). For the few other operations that depend on the caller's privileges, this
//! module inspects the calling thread, which waits for the answer.
//!
//! Invariant: a thread that cannot be inspected, or lives in another user namespace, has no
//! privilege.
#![allow(clippy::disallowed_methods, reason = "reading /proc does not wait")]

use crate::fs::Caller;

/// Bits as in `linux/capability.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Capability {
    /// CAP_FOWNER.
    Fowner = 3,
    /// CAP_FSETID.
    Fsetid = 4,
    /// CAP_SYS_ADMIN.
    SysAdmin = 21,
}

/// Does the calling thread have the capability, for files of this mount?
pub(crate) fn may(caller: &Caller, capability: Capability) -> bool {
    if caller.pid == 0 {
        return false;
    }
    let namespace = |thread: &str| std::fs::read_link(format!("/proc/{thread}/ns/user")).ok();
    let thread = caller.pid.to_string();
    let theirs = namespace(&thread);
    theirs.is_some()
        && theirs == namespace("self")
        && std::fs::read_to_string(format!("/proc/{thread}/status"))
            .is_ok_and(|status| has_effective(&status, capability))
}

/// The user and groups by which the calling thread's accesses to files are judged, as this
/// process's user namespace names them; `None`: it cannot be inspected, and the request does not
/// name them.
pub(crate) fn credentials(caller: &Caller) -> Option<(u32, u32, Vec<u32>)> {
    let status = match caller.pid {
        0 => None,
        thread => std::fs::read_to_string(format!("/proc/{thread}/status")).ok(),
    };
    let Some(status) = status else {
        return caller.is_known().then(|| (caller.uid, caller.gid, Vec::new()));
    };
    let (uid, gid, groups) = ids(&status)?;
    // What the request says comes first: it has been mapped for this mount.
    match caller.is_known() {
        true => Some((caller.uid, caller.gid, groups)),
        false => Some((uid, gid, groups)),
    }
}

/// User, group and supplementary groups in proc_pid_status(5): of four ids the last is that for
/// files.
fn ids(status: &str) -> Option<(u32, u32, Vec<u32>)> {
    let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
    let for_files = |key| line(key)?.split_whitespace().nth(3)?.parse().ok();
    let groups = line("Groups:")?.split_whitespace().map(str::parse).collect::<Result<_, _>>();
    Some((for_files("Uid:")?, for_files("Gid:")?, groups.ok()?))
}

/// Is the capability among the effective ones in proc_pid_status(5)?
fn has_effective(status: &str, capability: Capability) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.unwrap_or(0) & (1 << capability as u64) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_effective_capabilities_count() {
        let status = "Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000000008\n";
        assert!(has_effective(status, Capability::Fowner));
        assert!(
            !has_effective(status, Capability::Fsetid)
                && !has_effective(status, Capability::SysAdmin)
        );
        assert!(
            !has_effective("", Capability::Fowner)
                && !has_effective("CapEff:\tx", Capability::Fowner)
        );
    }

    #[test]
    fn ids_are_those_for_files() {
        let status = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \n";
        assert_eq!(ids(status), Some((4, 8, vec![9, 10])));
        assert_eq!(ids("Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t \n"), Some((4, 8, vec![])));
        assert_eq!(ids("Uid:\t1\t2\t3\n"), None);
    }

    #[test]
    fn thread_that_cannot_be_inspected_has_no_privilege() {
        let unknown = Caller { uid: Caller::UNKNOWN, gid: Caller::UNKNOWN, pid: 0 };
        assert!(!may(&unknown, Capability::SysAdmin));
        assert!(!may(&Caller { pid: u32::MAX, ..unknown }, Capability::SysAdmin));
    }
}
