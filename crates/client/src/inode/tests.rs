use types::Timestamp;

use super::*;

#[test]
fn idle_inode_takes_less_than_four_hundred_bytes() {
    let bytes = size_of::<Inode>() + 2 * size_of::<usize>() + 2 * size_of::<(Ino, Rc<Inode>)>();
    assert!(bytes <= 400, "{bytes}");
}

fn attr_of(version: u64, size: u64) -> Attr {
    Attr { version, size, ..attr() }
}

#[test]
fn early_removal_reply_does_not_hide_the_size_of_a_getattr_reply() {
    let inode = Inode::new(&attr_of(1, 0), 0);
    // The reply to GETATTR was made first, with what the writer elsewhere said.
    let question = attr_of(2, 5000);
    inode.apply_removal(&Attr { nlink: 0, ..attr_of(3, 0) });
    inode.apply_attr(&question);
    assert_eq!(inode.attr_for_reply(&question), question);
    // A later reply is valid again.
    inode.apply_attr(&attr_of(4, 100));
    assert_eq!(inode.attr_for_reply(&question).size, 100);
}

#[test]
fn overtaken_getattr_reply_is_not_mixed_with_newer_attributes() {
    let inode = Inode::new(&attr_of(1, 0), 0);
    let question = attr_of(2, 5000);
    // Meanwhile another client appended and changed the mode, and this one got a range of the
    // file.
    inode.apply_attr(&Attr { mode: 0o600, ..attr_of(4, 9000) });
    inode.mark_size_stale();
    inode.apply_attr(&question);
    assert_eq!(inode.attr_for_reply(&question), question);
    // The same with the change time of two GETATTR replies of one version.
    let later = Attr { ctime: Timestamp { seconds: 7, nanos: 0 }, ..attr_of(5, 9000) };
    let question = attr_of(5, 8000);
    inode.apply_attr(&later);
    assert_eq!(inode.attr_for_reply(&question), question);
}

#[test]
fn xattr_list_from_before_a_change_is_not_cached() {
    let inode = Inode::new(&attr_of(1, 0), 0);
    let leased = |version| Leased { attr: attr_of(version, 0), rights: Rights::ATTR, seq: version };
    inode.apply_lease(&leased(1), 1);
    let names = || Xattrs::Names(b"user.a\0".as_slice().into());
    inode.cache_xattrs(&attr_of(1, 0), names());
    assert_eq!(inode.xattrs(), names());
    // An attribute is set; then a list arrives that was read before that.
    inode.apply_lease(&leased(2), 2);
    inode.forget_xattrs();
    inode.cache_xattrs(&attr_of(1, 0), names());
    assert_eq!(inode.xattrs(), Xattrs::Unknown);
    inode.cache_xattrs(&attr_of(2, 0), names());
    assert_eq!(inode.xattrs(), names());
}

#[test]
fn number_means_the_lost_inode_until_the_kernel_knows_a_new_one() {
    let (inodes, ino) = (Inodes::default(), Ino(7));
    let old = inodes.get_or_insert(&attr_of(1, 0));
    old.looked_up();
    old.looked_up();
    inodes.lose(&[ino, Ino(8)]);
    assert!(old.is_lost() && inodes.is_lost(ino) && inodes.get(ino).is_none());
    assert!(!inodes.is_lost(Ino(8)), "the kernel never knew it");
    inodes.forgotten(ino, 1);
    let new = inodes.get_or_insert(&attr_of(1, 0));
    assert!(inodes.is_lost(ino) && !new.is_lost() && new.generation != old.generation);
    let other = inodes.get_or_insert(&Attr { ino: Ino(9), ..attr_of(1, 0) });
    assert_eq!((new.generation, other.generation), (1, 0), "no inode of that number was lost");
    new.looked_up();
    assert!(!inodes.is_lost(ino));
    assert_eq!(new.forgotten(1), 1, "the kernel also knows the lost one");
    inodes.lose(&[ino]);
    inodes.forgotten(ino, 1);
    assert!(!inodes.is_lost(ino), "forgotten");
}

fn attr() -> Attr {
    Attr {
        ino: Ino(7),
        kind: FileKind::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        btime: Timestamp::default(),
        spread: false,
        version: 0,
    }
}
