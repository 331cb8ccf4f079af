//! A file system in memory, used through the kernel.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::thread::JoinHandleExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::memory::LONG_AGO;
use crate::common::{EXECUTORS, TestMount, abort, get_xattr, wait_for};

const LONG: Duration = Duration::from_secs(3600);

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn check(status: i32) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn errno<T>(result: io::Result<T>) -> i32 {
    result.err().and_then(|error| error.raw_os_error()).unwrap_or(0)
}

fn rename2(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let (from, to) = (c_path(from), c_path(to));
    // SAFETY: both paths are NUL-terminated and outlive the call.
    check(unsafe {
        libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags)
    })
}

#[test]
fn files_are_created_written_read_renamed_and_removed() {
    for ttl in [LONG, Duration::ZERO] {
        let mount = TestMount::new("files", ttl);
        fs::create_dir(mount.path("dir")).unwrap();
        fs::write(mount.path("dir/a"), b"hello").unwrap();
        assert_eq!(fs::read(mount.path("dir/a")).unwrap(), b"hello");
        assert_eq!(fs::metadata(mount.path("dir/a")).unwrap().len(), 5);
        fs::hard_link(mount.path("dir/a"), mount.path("b")).unwrap();
        fs::write(mount.path("c"), b"other").unwrap();
        assert_eq!(errno(rename2(&mount.path("b"), &mount.path("c"), 1)), libc::EEXIST);
        rename2(&mount.path("b"), &mount.path("c"), 2).unwrap();
        assert_eq!(fs::read(mount.path("c")).unwrap(), b"hello");
        fs::rename(mount.path("c"), mount.path("d")).unwrap();
        assert_eq!(errno(fs::read(mount.path("c"))), libc::ENOENT);
        assert_eq!(errno(fs::remove_dir(mount.path("dir"))), libc::ENOTEMPTY);
        std::os::unix::fs::symlink("dir/a", mount.path("link")).unwrap();
        assert_eq!(fs::read_link(mount.path("link")).unwrap(), Path::new("dir/a"));
        assert_eq!(fs::read(mount.path("link")).unwrap(), b"hello");
        fs::remove_file(mount.path("dir/a")).unwrap();
        fs::remove_dir(mount.path("dir")).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(&mount.dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["b", "d", "link"]);
    }
}

#[test]
fn large_and_unaligned_writes_arrive_complete_for_every_open_mode() {
    let mount = TestMount::new("writes", LONG);
    let data: Vec<u8> = (0..3_000_001u32).map(|i| (i % 251) as u8).collect();
    let ways = [libc::O_WRONLY, libc::O_RDWR, libc::O_WRONLY | libc::O_APPEND];
    for (index, way) in ways.into_iter().enumerate() {
        let path = mount.path(&format!("f{index}"));
        let mut file = OpenOptions::new()
            .read(way & libc::O_RDWR != 0)
            .write(true)
            .create_new(true)
            .custom_flags(way & libc::O_APPEND)
            .open(&path)
            .unwrap();
        for chunk in data.chunks(777_777) {
            file.write_all(chunk).unwrap();
        }
        drop(file);
        assert!(fs::read(&path).unwrap() == data, "way {way:o}");
    }
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(mount.path("f1"))
        .unwrap();
    let mut piece = vec![0u8; 100_000];
    direct.read_exact_at(&mut piece, 4_567).unwrap();
    assert!(piece == data[4_567..104_567]);
    direct.write_all_at(b"patch", 1_000_000).unwrap();
    // The kernel drops the pages under a direct write.
    let patched = fs::read(mount.path("f1")).unwrap();
    assert_eq!(&patched[1_000_000..1_000_005], b"patch");
    let mut appended = OpenOptions::new().append(true).open(mount.path("f2")).unwrap();
    appended.write_all(b"tail").unwrap();
    assert_eq!(fs::metadata(mount.path("f2")).unwrap().len(), data.len() as u64 + 4);
}

/// Threads of a busy mount.
const CALLERS: u8 = 16;

/// [`CALLERS`] threads repeat `work` until it returns `false`, or until `meanwhile` has ended.
/// `meanwhile` runs beside them and gets the number of repetitions so far.
fn while_busy(work: impl Fn(u8, usize) -> bool + Sync, meanwhile: impl FnOnce(&AtomicU64)) {
    let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (over, done, work) = (&over, &done, &work);
            scope.spawn(move || {
                for round in 0.. {
                    if over.load(Ordering::SeqCst) || !work(caller, round) {
                        return;
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        meanwhile(&done);
        over.store(true, Ordering::SeqCst);
    });
}

/// Waits until every executor has taken some of the requests.
fn wait_for_all_executors(mount: &TestMount) {
    wait_for("all executors to serve", || {
        let taken = get_xattr(&mount.dir, "user.redbud.executors").unwrap();
        let taken = String::from_utf8(taken).unwrap();
        let taken = taken.trim_matches(['[', ']']).split(',').map(|n| n.parse::<u64>().unwrap());
        let taken: Vec<u64> = taken.collect();
        assert_eq!(taken.len(), EXECUTORS);
        taken.iter().all(|&taken| taken > 100)
    });
}

#[test]
fn busy_mount_is_served_by_all_executors() {
    let mount = TestMount::new("busy", Duration::ZERO);
    let use_file = |caller: u8, round: usize| {
        let path = mount.path(&format!("{caller}-{}", round % 4));
        let data = vec![caller; 1 + (round * 4099) % 100_000];
        fs::write(&path, &data).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), data.len() as u64);
        assert!(fs::read(&path).unwrap() == data);
        fs::remove_file(&path).unwrap();
        true
    };
    while_busy(use_file, |_| wait_for_all_executors(&mount));
}

#[test]
fn dropping_serve_stops_all_executors_taking_requests() {
    let mount = TestMount::new("dropped", Duration::ZERO);
    // One request per call, so that the executors always find others waiting.
    let look = |caller: u8, _| {
        let found = fs::metadata(mount.path(&format!("{caller}")));
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    while_busy(look, |answered| {
        wait_for_all_executors(&mount);
        mount.control.give_up.store(true, Ordering::SeqCst);
        wait_for("serving to end", || mount.control.given_up.load(Ordering::SeqCst));
        let so_far = answered.load(Ordering::SeqCst);
        thread::sleep(Duration::from_millis(500));
        // Each thread may have counted one that was answered before.
        let more = answered.load(Ordering::SeqCst) - so_far;
        abort(&mount.dir);
        assert!(more <= CALLERS.into(), "{more} requests were answered after the end");
    });
}

#[test]
fn serving_ends_without_error_when_the_mount_is_aborted() {
    let mount = TestMount::new("forced", Duration::ZERO);
    let look = |caller: u8, _| {
        let found = fs::metadata(mount.path(&format!("{caller}")));
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    while_busy(look, |answered| {
        wait_for("requests", || answered.load(Ordering::SeqCst) > 1000);
        abort(&mount.dir);
    });
    mount.wait_for_end();
}

#[test]
fn long_directory_is_listed_completely_and_all_references_return() {
    let mount = TestMount::new("listing", LONG);
    let wanted: Vec<String> =
        (0..1500).map(|i| format!("{i:04}-{}", "x".repeat(i % 100))).collect();
    for name in &wanted {
        File::create(mount.path(name)).unwrap();
    }
    for _ in 0..2 {
        let mut names = Vec::new();
        for entry in fs::read_dir(&mount.dir).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().ino(), entry_ino(&entry));
            names.push(entry.file_name().into_string().unwrap());
        }
        names.sort();
        assert_eq!(names, wanted);
    }
    assert!(mount.requests().contains("\"readdirplus\":"), "{}", mount.requests());
    for name in &wanted {
        fs::remove_file(mount.path(name)).unwrap();
    }
    wait_for("the kernel to forget", || mount.control.referenced.load(Ordering::SeqCst) == 0);
}

fn entry_ino(entry: &fs::DirEntry) -> u64 {
    std::os::unix::fs::DirEntryExt::ino(entry)
}

#[test]
fn shared_mapping_reads_and_writes_the_bytes_of_the_file() {
    let mount = TestMount::new("mapping", LONG);
    let path = mount.path("f");
    fs::write(&path, vec![7u8; 10_000]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // SAFETY: a fresh mapping of an open file, unmapped below, within its 10,000 bytes.
    unsafe {
        let map = libc::mmap(
            std::ptr::null_mut(),
            10_000,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(map, libc::MAP_FAILED);
        let bytes = map.cast::<u8>();
        assert_eq!(bytes.add(9_999).read(), 7);
        bytes.add(5_000).write(9);
        assert_eq!(libc::msync(map, 10_000, libc::MS_SYNC), 0);
        assert_eq!(libc::munmap(map, 10_000), 0);
    }
    drop(file);
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let mut byte = [0];
    direct.read_exact_at(&mut byte, 5_000).unwrap();
    assert_eq!(byte, [9]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 10_000);
}

fn ofd_lock(file: &File, command: i32, kind: i32, start: i64, len: i64) -> io::Result<libc::flock> {
    // SAFETY: all-zero bytes are a valid `flock`.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_start = start;
    lock.l_len = len;
    // SAFETY: `lock` outlives the call.
    check(unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) })?;
    Ok(lock)
}

fn flock(file: &File, operation: i32) -> io::Result<()> {
    // SAFETY: takes plain integers.
    check(unsafe { libc::flock(file.as_raw_fd(), operation) })
}

#[test]
fn range_locks_and_flock_locks_exclude_within_their_kind_only() {
    let mount = TestMount::new("locks", LONG);
    let path = mount.path("f");
    fs::write(&path, b"x").unwrap();
    let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let (a, b) = (open(), open());
    ofd_lock(&a, libc::F_OFD_SETLK, libc::F_WRLCK, 10, 10).unwrap();
    let denied = ofd_lock(&b, libc::F_OFD_SETLK, libc::F_WRLCK, 15, 1);
    assert_eq!(errno(denied), libc::EAGAIN);
    ofd_lock(&b, libc::F_OFD_SETLK, libc::F_WRLCK, 20, 10).unwrap();
    let found = ofd_lock(&b, libc::F_OFD_GETLK, libc::F_RDLCK, 0, 0).unwrap();
    assert_eq!((found.l_type, found.l_start, found.l_len), (libc::F_WRLCK as i16, 10, 10));
    flock(&b, libc::LOCK_EX | libc::LOCK_NB).unwrap();
    assert_eq!(errno(flock(&a, libc::LOCK_SH | libc::LOCK_NB)), libc::EWOULDBLOCK);
    drop(b);
    wait_for("close to free the lock", || flock(&a, libc::LOCK_SH | libc::LOCK_NB).is_ok());
    let free = ofd_lock(&a, libc::F_OFD_SETLK, libc::F_WRLCK, 0, 0);
    wait_for("close to free the range", || {
        free.is_ok() || ofd_lock(&a, libc::F_OFD_SETLK, libc::F_WRLCK, 0, 0).is_ok()
    });
}

extern "C" fn ignore(_: libc::c_int) {}

fn handle_usr1() {
    // SAFETY: all-zero bytes are a valid `sigaction`; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
}

#[test]
fn lock_wait_ends_by_a_signal_or_when_the_lock_is_free() {
    handle_usr1();
    let mount = TestMount::new("interrupt", LONG);
    let path = mount.path("f");
    fs::write(&path, b"x").unwrap();
    let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let (holder, first, second) = (open(), open(), open());
    ofd_lock(&holder, libc::F_OFD_SETLK, libc::F_WRLCK, 0, 0).unwrap();
    let wait = |file: File| {
        thread::spawn(move || ofd_lock(&file, libc::F_OFD_SETLKW, libc::F_WRLCK, 0, 0))
    };
    let waits = || mount.control.lock_waits.load(Ordering::SeqCst);

    let interrupted = wait(first);
    wait_for("the wait", || waits() == 1);
    // SAFETY: the thread has not been joined yet.
    unsafe { libc::pthread_kill(interrupted.as_pthread_t(), libc::SIGUSR1) };
    assert_eq!(errno(interrupted.join().unwrap()), libc::EINTR);
    assert_eq!(waits(), 0);

    let freed = wait(second);
    wait_for("the wait", || waits() == 1);
    ofd_lock(&holder, libc::F_OFD_SETLK, libc::F_UNLCK, 0, 0).unwrap();
    freed.join().unwrap().unwrap();
    assert!(mount.requests().contains("\"interrupt\":"), "{}", mount.requests());
}

#[test]
fn signal_fails_no_call_and_a_killed_process_does_not_wait() {
    handle_usr1();
    let mount = TestMount::new("killed", Duration::ZERO);
    fs::write(mount.path("f"), b"x").unwrap();
    mount.control.park_lookups.store(true, Ordering::SeqCst);
    let path = mount.path("f");
    let waiting = thread::spawn(move || fs::metadata(path));
    let mut killed = std::process::Command::new("stat").arg(mount.path("f")).spawn().unwrap();
    mount.control.wait_parked(2);
    // SAFETY: the thread has not been joined yet.
    unsafe { libc::pthread_kill(waiting.as_pthread_t(), libc::SIGUSR1) };
    wait_for("the signal", || mount.counted("interrupt") == 1);
    killed.kill().unwrap();
    // The process is gone while its request still waits.
    assert!(!killed.wait().unwrap().success());
    assert_eq!(mount.control.parked.load(Ordering::SeqCst), 2);
    mount.control.park_lookups.store(false, Ordering::SeqCst);
    waiting.join().unwrap().expect("a handled signal ends no call");
    // The lookup's result for the killed process is forgotten with the other references.
    fs::remove_file(mount.path("f")).unwrap();
    wait_for("the kernel to forget", || mount.control.referenced.load(Ordering::SeqCst) == 0);
}

#[test]
fn xattrs_obey_size_rules_and_the_counters_are_hidden() {
    let mount = TestMount::new("xattr", LONG);
    fs::write(mount.path("f"), b"x").unwrap();
    let path = c_path(&mount.path("f"));
    let name = c"user.long";
    let value = vec![5u8; 60_000];
    let set = |flags: i32| {
        // SAFETY: the strings are NUL-terminated, and `value` has the stated length.
        check(unsafe {
            libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags)
        })
    };
    assert_eq!(errno(set(libc::XATTR_REPLACE)), libc::ENODATA);
    set(libc::XATTR_CREATE).unwrap();
    assert_eq!(errno(set(libc::XATTR_CREATE)), libc::EEXIST);
    assert_eq!(get_xattr(&mount.path("f"), "user.long").unwrap(), value);
    let mut short = [0u8; 10];
    // SAFETY: the strings are NUL-terminated, and the buffers have the stated lengths.
    let (len, refused) = unsafe {
        (
            libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0),
            libc::getxattr(path.as_ptr(), name.as_ptr(), short.as_mut_ptr().cast(), 10),
        )
    };
    assert_eq!((len, refused), (60_000, -1));
    let mut names = [0u8; 100];
    // SAFETY: the path is NUL-terminated, and the buffer has the stated length.
    let len = unsafe { libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    assert_eq!(&names[..len as usize], b"user.long\0");
    // SAFETY: both strings are NUL-terminated.
    check(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) }).unwrap();
    assert_eq!(get_xattr(&mount.path("f"), "user.long"), Err(libc::ENODATA));
    let root = c_path(&mount.dir);
    // SAFETY: the path is NUL-terminated, and the buffer has the stated length.
    let len = unsafe { libc::listxattr(root.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    assert_eq!(len, 0);
    let requests = mount.requests();
    for counted in ["\"init\":1", "\"create\":1", "\"write\":1", "\"setxattr\":3"] {
        assert!(requests.contains(counted), "{counted} in {requests}");
    }
}

#[test]
fn attributes_times_and_file_kinds_are_kept() {
    let mount = TestMount::new("attributes", LONG);
    let path = mount.path("f");
    fs::write(&path, b"content").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
    let name = c_path(&path);
    let then = libc::timespec { tv_sec: LONG_AGO.seconds, tv_nsec: LONG_AGO.nanos.into() };
    // SAFETY: the path is NUL-terminated, and two times are given.
    check(unsafe { libc::utimensat(libc::AT_FDCWD, name.as_ptr(), [then, then].as_ptr(), 0) })
        .unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!(
        (meta.uid(), meta.gid(), meta.mode()),
        (12, 34, 0o100755),
        "a new owner clears set-id"
    );
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (LONG_AGO.seconds, LONG_AGO.nanos.into()));
    assert!(meta.created().unwrap() > meta.modified().unwrap(), "statx reports the birth time");
    File::options().write(true).open(&path).unwrap().set_len(3).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"con");

    let pipe = c_path(&mount.path("pipe"));
    let device = c_path(&mount.path("null"));
    // SAFETY: both paths are NUL-terminated.
    unsafe {
        check(libc::mkfifo(pipe.as_ptr(), 0o600)).unwrap();
        check(libc::mknod(device.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 3))).unwrap();
    }
    assert!(fs::metadata(mount.path("pipe")).unwrap().file_type().is_fifo());
    let meta = fs::metadata(mount.path("null")).unwrap();
    assert!(meta.file_type().is_char_device());
    assert_eq!(meta.rdev(), libc::makedev(1, 3));
    assert_eq!(fs::read(mount.path("null")).unwrap(), b"");

    // SAFETY: all-zero bytes are a valid `statvfs`; the path is NUL-terminated.
    let space = unsafe {
        let mut space: libc::statvfs = std::mem::zeroed();
        check(libc::statvfs(name.as_ptr(), &raw mut space)).unwrap();
        space
    };
    assert_eq!(
        (space.f_blocks, space.f_bfree, space.f_ffree, space.f_namemax),
        (1000, 400, 33, 255)
    );
}

#[test]
fn ranges_are_punched_sought_copied_and_tmpfiles_get_a_name() {
    let mount = TestMount::new("ranges", LONG);
    let open = |name: &str| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(mount.path(name))
    };
    let mut file = open("f").unwrap();
    file.write_all(&[1; 12_288]).unwrap();
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: takes plain integers.
    check(unsafe { libc::fallocate(file.as_raw_fd(), punch, 4096, 4096) }).unwrap();
    // SAFETY: takes plain integers.
    let seek = |whence| unsafe { libc::lseek(file.as_raw_fd(), 0, whence) };
    assert_eq!((seek(libc::SEEK_HOLE), seek(libc::SEEK_DATA)), (4096, 0));
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(4000)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!((bytes[95], bytes[96], bytes[96 + 4096]), (1, 0, 1));

    let copy = open("g").unwrap();
    let (mut from, mut to) = (4000i64, 0i64);
    // SAFETY: the offsets outlive the call.
    let copied = unsafe {
        libc::copy_file_range(
            file.as_raw_fd(),
            &raw mut from,
            copy.as_raw_fd(),
            &raw mut to,
            200,
            0,
        )
    };
    assert_eq!(copied, 200);
    assert_eq!(fs::read(mount.path("g")).unwrap(), bytes[..200]);
    assert!(mount.requests().contains("\"copy_file_range"), "{}", mount.requests());

    let dir = c_path(&mount.dir);
    // SAFETY: the path is NUL-terminated; the descriptor is checked before it is owned.
    let tmpfile = unsafe {
        let fd = libc::open(dir.as_ptr(), libc::O_TMPFILE | libc::O_RDWR, 0o600);
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        File::from(OwnedFd::from_raw_fd(fd))
    };
    tmpfile.write_all_at(b"nameless", 0).unwrap();
    assert_eq!(tmpfile.metadata().unwrap().nlink(), 0);
    let source = CString::new(format!("/proc/self/fd/{}", tmpfile.as_raw_fd())).unwrap();
    let target = c_path(&mount.path("named"));
    // SAFETY: both paths are NUL-terminated.
    check(unsafe {
        libc::linkat(
            libc::AT_FDCWD,
            source.as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            libc::AT_SYMLINK_FOLLOW,
        )
    })
    .unwrap();
    assert_eq!(fs::read(mount.path("named")).unwrap(), b"nameless");
}

#[test]
fn unsupported_or_illegal_calls_fail_as_on_a_local_file_system() {
    let mount = TestMount::new("errors", LONG);
    let file = File::create(mount.path("f")).unwrap();
    assert_eq!(errno(File::create(mount.path(&"n".repeat(256)))), libc::ENAMETOOLONG);
    File::create(mount.path(&"n".repeat(255))).unwrap();
    assert_eq!(errno(fs::read(mount.path("none"))), libc::ENOENT);
    assert_eq!(errno(fs::create_dir(mount.path("f"))), libc::EEXIST);
    assert_eq!(errno(File::open(mount.path("f/below"))), libc::ENOTDIR);
    assert_eq!(errno(fs::read_dir(mount.path("f"))), libc::ENOTDIR);
    // SAFETY: an unknown command whose argument is ignored.
    assert_eq!(errno(check(unsafe { libc::ioctl(file.as_raw_fd(), 0x1234, 0) })), libc::ENOTTY);
    file.set_len(1 << 40).unwrap_err();
    // SAFETY: takes plain integers.
    let past = unsafe { libc::lseek(file.as_raw_fd(), 1 << 40, libc::SEEK_DATA) };
    assert_eq!((past, errno(check(-1))), (-1, libc::ENXIO));
    let exclusive = OpenOptions::new().write(true).create_new(true).open(mount.path("f"));
    assert_eq!(errno(exclusive), libc::EEXIST);
}
