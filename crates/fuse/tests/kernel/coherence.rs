//! What the kernel's invalidations wait for, and what they do not wait for: recalls of rights
//! rely on this.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{Notice, TestMount, wait_for};

const LONG: Duration = Duration::from_secs(3600);

fn done(flag: &AtomicBool) -> bool {
    flag.load(Ordering::SeqCst)
}

/// A file of two pages that are not in the kernel's page cache.
fn cold_file(mount: &TestMount, name: &str) -> u64 {
    fs::write(mount.path(name), [3u8; 8192]).unwrap();
    fs::metadata(mount.path(name)).unwrap().ino()
}

#[test]
fn invalidating_names_and_attributes_does_not_wait_for_locks_of_two_mounts() {
    let mounts = [TestMount::new("voids-a", LONG), TestMount::new("voids-b", LONG)];
    let inodes = mounts.each_ref().map(|mount| cold_file(mount, "f"));
    let mut callers = Vec::new();
    for mount in &mounts {
        mount.control.park_lookups.store(true, Ordering::SeqCst);
        mount.control.park_reads.store(true, Ordering::SeqCst);
        let path = mount.path("f");
        let file = File::open(&path).unwrap();
        callers.push(thread::spawn(move || {
            let mut byte = [0];
            file.read_exact_at(&mut byte, 0).unwrap();
            assert_eq!(byte, [3]);
        }));
        // The lookup of a create holds the directory's lock.
        let path = mount.path("new");
        callers.push(thread::spawn(move || drop(File::create(path).unwrap())));
    }
    for mount in &mounts {
        mount.control.wait_parked(2);
    }
    for (mount, ino) in mounts.iter().zip(inodes) {
        let notices = [Notice::IncEpoch, Notice::InvalAttr(ino), Notice::InvalAttr(1)];
        let notified = notices.map(|notice| mount.control.notify(notice));
        wait_for("notifications that wait for nothing", || notified.iter().all(|flag| done(flag)));
        assert_eq!(mount.control.parked.load(Ordering::SeqCst), 2);
    }
    for mount in &mounts {
        mount.control.park_lookups.store(false, Ordering::SeqCst);
        mount.control.park_reads.store(false, Ordering::SeqCst);
    }
    for caller in callers {
        caller.join().unwrap();
    }
}

#[test]
fn invalidating_pages_waits_only_for_reads_of_these_pages() {
    let mount = TestMount::new("range", LONG);
    let (ino, other) = (cold_file(&mount, "f"), cold_file(&mount, "g"));
    mount.control.park_reads.store(true, Ordering::SeqCst);
    let file = File::open(mount.path("f")).unwrap();
    let reader = thread::spawn(move || {
        let mut byte = [0];
        file.read_exact_at(&mut byte, 0).unwrap();
    });
    mount.control.wait_parked(1);
    let elsewhere = mount.control.notify(Notice::InvalPages(other, 0, 0));
    wait_for("the invalidation of another file", || done(&elsewhere));
    let behind = mount.control.notify(Notice::InvalPages(ino, 0, 0));
    // It cannot end before the answer, however long the test waits.
    thread::sleep(Duration::from_millis(200));
    assert!(!done(&behind), "the page is locked until the READ is answered");
    let attributes = mount.control.notify(Notice::InvalAttr(ino));
    wait_for("the attributes", || done(&attributes));
    mount.control.park_reads.store(false, Ordering::SeqCst);
    wait_for("the range", || done(&behind));
    reader.join().unwrap();
}

#[test]
fn invalidating_dirty_pages_waits_for_a_truncation_in_service() {
    let mount = TestMount::new("truncate", LONG);
    let ino = cold_file(&mount, "f");
    let file = OpenOptions::new().read(true).write(true).open(mount.path("f")).unwrap();
    // SAFETY: a fresh mapping of the file's first page, written within it and unmapped below.
    let map = unsafe {
        let map = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(map, libc::MAP_FAILED);
        map.cast::<u8>().write(9);
        map as usize
    };
    mount.control.park_setattrs.store(true, Ordering::SeqCst);
    let other = file.try_clone().unwrap();
    let truncation = thread::spawn(move || other.set_len(6000).unwrap());
    mount.control.wait_parked(1);
    let file_again = file.try_clone().unwrap();
    // Dirty once more: the truncation wrote back what was dirty before it.
    // SAFETY: the page is still mapped.
    let dirtied = thread::spawn(move || unsafe { (map as *mut u8).add(1).write(9) });
    dirtied.join().unwrap();
    let behind = mount.control.notify(Notice::InvalPages(ino, 0, 4096));
    thread::sleep(Duration::from_millis(200));
    assert!(!done(&behind), "the truncation blocks write-back");
    mount.control.park_setattrs.store(false, Ordering::SeqCst);
    wait_for("the range", || done(&behind));
    truncation.join().unwrap();
    let mut bytes = [0; 2];
    file_again.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!((bytes, file.metadata().unwrap().len()), ([9, 9], 6000));
    // SAFETY: the mapping was made above and is not used any more.
    assert_eq!(unsafe { libc::munmap(map as *mut libc::c_void, 4096) }, 0);
}

#[test]
fn invalidated_names_and_pages_alone_are_requested_again() {
    let mount = TestMount::new("again", LONG);
    let ino = cold_file(&mount, "f");
    let path = mount.path("f");
    let count = |what: &str| mount.counted(what);
    assert_eq!(fs::read(&path).unwrap().len(), 8192);
    let before = (count("lookup"), count("read"));
    for _ in 0..3 {
        assert_eq!(fs::read(&path).unwrap().len(), 8192);
    }
    assert_eq!((count("lookup"), count("read")), before, "all is cached");

    // A listing may still be on its way if its caller sends no further request.
    let dir = mount.dir.clone();
    let lister = thread::spawn(move || fs::read_dir(dir).unwrap().next().unwrap().unwrap());
    lister.join().unwrap();
    let notified = mount.control.notify(Notice::IncEpoch);
    wait_for("the epoch", || done(&notified));
    fs::metadata(&path).unwrap();
    assert!(count("lookup") > before.0, "names are looked up again");
    assert_eq!(count("read"), before.1, "pages stay");

    let notified = mount.control.notify(Notice::InvalPages(ino, 0, 0));
    wait_for("the pages", || done(&notified));
    assert_eq!(fs::read(&path).unwrap().len(), 8192);
    assert!(count("read") > before.1, "pages are read again");
}

#[test]
fn invalidating_attributes_of_an_unknown_inode_invalidates_all_names() {
    let mount = TestMount::new("unknown", LONG);
    let path = mount.path("f");
    let ino = cold_file(&mount, "f");
    fs::write(mount.path("g"), b"").unwrap();
    fs::metadata(mount.path("g")).unwrap();
    let before = mount.counted("lookup");
    fs::metadata(mount.path("g")).unwrap();
    assert_eq!(mount.counted("lookup"), before, "the name is cached");
    let stranger = mount.control.notify(Notice::InvalAttr(ino + 1_000_000));
    wait_for("the notification", || done(&stranger));
    fs::metadata(mount.path("g")).unwrap();
    assert!(mount.counted("lookup") > before, "the name is looked up again");
    // Invalidating a known inode keeps its names.
    fs::metadata(&path).unwrap();
    let before = mount.counted("lookup");
    let known = mount.control.notify(Notice::InvalAttr(ino));
    wait_for("the notification", || done(&known));
    fs::metadata(&path).unwrap();
    assert_eq!(mount.counted("lookup"), before);
}
