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
    fn thread_that_cannot_be_inspected_has_no_privilege() {
        let unknown = Caller { uid: Caller::UNKNOWN, gid: Caller::UNKNOWN, pid: 0 };
        assert!(!may(&unknown, Capability::SysAdmin));
        assert!(!may(&Caller { pid: u32::MAX, ..unknown }, Capability::SysAdmin));
    }
}
