//! The FUSE channel against the kernel: a file system of one file, mounted by
//! mount(2), which needs root and /dev/fuse.
#![allow(clippy::disallowed_methods, reason = "a test of the seam stands on both of its sides")]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use redbud_env::{DriverKind, Env, FuseChannel, FuseRequest, NotifyLane, UringOptions};
use types::Duration;

const FILE: u64 = 2;
const MIB: usize = 1 << 20;
/// In the upper half of INIT's flags.
const FUSE_OVER_IO_URING: u32 = 1 << 9;

struct Mount {
    point: PathBuf,
}

impl Mount {
    fn new(name: &str) -> (Mount, OwnedFd) {
        let point = std::env::temp_dir().join(format!("redbud-fuse-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&point).unwrap();
        let mounted = mount(&point);
        let fd = mounted.expect("these tests mount: they need root and /dev/fuse");
        (Mount { point }, fd)
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

fn mount(point: &Path) -> io::Result<OwnedFd> {
    let fd = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", fd.as_raw_fd());
    let options = CString::new(options).unwrap();
    // SAFETY: all arguments are live C strings.
    let result = unsafe {
        libc::mount(
            c"redbud-test".as_ptr(),
            c_path(point).as_ptr(),
            c"fuse".as_ptr(),
            libc::MS_NODEV | libc::MS_NOSUID,
            options.as_ptr().cast(),
        )
    };
    if result == 0 { Ok(fd.into()) } else { Err(io::Error::last_os_error()) }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let path = c_path(&self.point);
        // SAFETY: the path is a live C string.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        let _ = std::fs::remove_dir(&self.point);
    }
}

/// A sequence of integers in native byte order, as in the kernel's structures.
#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    fn u64s(mut self, words: &[u64]) -> Words {
        words.iter().for_each(|word| self.0.extend_from_slice(&word.to_ne_bytes()));
        self
    }

    fn u32s(mut self, words: &[u32]) -> Words {
        words.iter().for_each(|word| self.0.extend_from_slice(&word.to_ne_bytes()));
        self
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn attr(ino: u64) -> Vec<u8> {
    let (mode, size) = if ino == FILE { (0o100_666, 4 * MIB as u64) } else { (0o040_777, 0) };
    Words::default()
        .u64s(&[ino, size, size / 512, 0, 0, 0])
        .u32s(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0])
        .0
}

fn reply(channel: &FuseChannel, unique: u64, error: i32, fixed: &[u8], body: &[u8]) {
    let len = (16 + fixed.len() + body.len()) as u32;
    let mut head = Words::default().u32s(&[len, error.wrapping_neg() as u32]).u64s(&[unique]).0;
    head.extend_from_slice(fixed);
    channel.reply(&head, body).unwrap();
}

/// Answers one request; the file's content is its offset in KiB, byte by byte.
/// Returns whether io_uring was agreed on.
fn answer(channel: &FuseChannel, request: &FuseRequest, uring_wanted: bool) -> bool {
    let (head, unique, node) = (&request.head, u64_at(&request.head, 8), u64_at(&request.head, 16));
    let len = u32_at(head, 0) as usize;
    assert_eq!(len, request.head_len + request.body.len(), "a request has the stated length");
    match u32_at(head, 4) {
        // INIT
        26 => {
            let offered = u32_at(head, 56) & FUSE_OVER_IO_URING;
            let uring = if uring_wanted { offered } else { 0 };
            let flags = 1 << 5 | 1 << 22 | 1 << 30;
            let fixed = [7, 36, 1 << 20, flags, 0, MIB as u32, 1, 256, uring];
            let fixed = Words::default().u32s(&fixed).u32s(&[0; 7]);
            reply(channel, unique, 0, &fixed.0, &[]);
            return uring != 0;
        }
        // LOOKUP
        1 => {
            let name: Vec<u8> =
                head[40..request.head_len].iter().chain(request.body.iter()).copied().collect();
            let found = &name[..name.len() - 1] == b"file";
            let entry = Words::default().u64s(&[FILE, 0, 0, 0]).u32s(&[0, 0]).0;
            if found {
                reply(channel, unique, 0, &entry, &attr(FILE));
            } else {
                reply(channel, unique, libc::ENOENT, &[], &[]);
            }
        }
        // GETATTR, SETATTR
        3 | 4 => reply(channel, unique, 0, &[0; 16], &attr(node)),
        // OPEN (FOPEN_DIRECT_IO)
        14 => reply(channel, unique, 0, &Words::default().u64s(&[0]).u32s(&[1, 0]).0, &[]),
        // READ
        15 => {
            let (offset, size) = (u64_at(head, 48), u32_at(head, 56) as usize);
            let data: Vec<u8> = (offset..offset + size as u64).map(|at| (at >> 10) as u8).collect();
            reply(channel, unique, 0, &[], &data);
        }
        // WRITE
        16 => {
            let (offset, size) = (u64_at(head, 48), u32_at(head, 56) as usize);
            assert_eq!((request.head_len, request.body.len()), (80, size));
            assert_eq!(request.body.as_ptr() as usize % 4096, 0, "write data is aligned");
            let good =
                (offset..).zip(request.body.iter()).all(|(at, &byte)| byte == (at >> 10) as u8);
            let error = if good { 0 } else { libc::EIO };
            reply(channel, unique, error, &Words::default().u32s(&[size as u32, 0]).0, &[]);
        }
        // FORGET, INTERRUPT, BATCH_FORGET have no reply.
        2 | 36 | 42 => {}
        // RELEASE, FLUSH
        18 | 25 => reply(channel, unique, 0, &[], &[]),
        _ => reply(channel, unique, libc::ENOSYS, &[], &[]),
    }
    false
}

/// Serves a channel until the file system is unmounted.
async fn serve(channel: FuseChannel, uring: Option<UringOptions>) -> u64 {
    let mut served = 0;
    while let Some(request) = channel.recv().await.unwrap() {
        if answer(&channel, &request, uring.is_some()) {
            channel.start_uring(uring.unwrap()).unwrap();
        }
        served += 1;
    }
    served
}

/// The file operations of an application.
fn use_file(point: &Path) {
    assert!(!point.join("n".repeat(255)).exists());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(point.join("file"));
    let file = file.unwrap();
    let data: Vec<u8> = (0..4 * MIB).map(|at| (at >> 10) as u8).collect();
    file.write_all_at(&data[..100], 0).unwrap();
    file.write_all_at(&data[5000..70_000], 5000).unwrap();
    file.write_all_at(&data[..4 * MIB], 0).unwrap();
    let mut read = vec![0; 4 * MIB];
    file.read_exact_at(&mut read, 0).unwrap();
    assert!(read == data);
}

fn unmount(point: &Path) {
    let path = c_path(point);
    // SAFETY: the path is a live C string.
    let result = unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

fn on_mount(kind: DriverKind, name: &str, test: impl AsyncFnOnce(Env, FuseChannel, PathBuf)) {
    on_mount_with(kind, name, None, test);
}

fn on_mount_with(
    kind: DriverKind,
    name: &str,
    uring: Option<UringOptions>,
    test: impl AsyncFnOnce(Env, FuseChannel, PathBuf),
) {
    let (mount, fd) = Mount::new(name);
    let point = mount.point.clone();
    redbud_env::run(kind, |env| async move {
        let channel = FuseChannel::new(&env, fd).unwrap();
        let server = env.spawn_join(serve(channel.clone(), uring));
        test(env.clone(), channel, point.clone()).await;
        env.offload(move || unmount(&point)).await;
        let served = env.timeout(Duration::from_secs(60), server).await;
        assert!(served.expect("the channel ends with the mount") > 5);
    })
    .unwrap();
}

#[test]
fn fuse_requests_are_answered_until_the_unmount() {
    for (kind, name) in [(DriverKind::Auto, "auto"), (DriverKind::Fallback, "fallback")] {
        on_mount(kind, name, async |env, _, point| env.offload(move || use_file(&point)).await);
    }
}

#[test]
fn fuse_callers_are_served_by_the_channels_of_two_executors() {
    let (mount, fd) = Mount::new("many");
    let point = mount.point.clone();
    redbud_env::run_group(DriverKind::Auto, 2, |env| async move {
        let channel = FuseChannel::new(&env, fd).unwrap();
        let server = env.spawn_join(serve(channel.clone(), None));
        // INIT has been answered once another request was.
        let first = point.clone();
        env.offload(move || drop(std::fs::metadata(first.join("file")))).await;
        let other = channel.clone_channel().expect("a mounted channel can be cloned");
        env.spawn_on(1, {
            let (env, other) = (env.clone(), other.clone());
            async move {
                loop {
                    match other.try_recv() {
                        Ok(request) => _ = answer(&other, &request, false),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            env.sleep(Duration::from_micros(50)).await;
                        }
                        Err(error) => return assert_eq!(error.raw_os_error(), Some(libc::ENODEV)),
                    }
                }
            }
        });
        while other.requests() < 20 {
            let callers: Vec<_> = (0..4)
                .map(|_| {
                    let (env, point) = (env.clone(), point.clone());
                    env.clone()
                        .spawn_join(async move { env.offload(move || use_file(&point)).await })
                })
                .collect();
            for caller in callers {
                caller.await;
            }
        }
        env.offload(move || unmount(&point)).await;
        let served = env.timeout(Duration::from_secs(60), server).await;
        assert!(served.expect("the channel ends with the mount") > 5);
    })
    .unwrap();
}

/// Runs over io_uring if the kernel offers it for FUSE, else by the device.
#[test]
fn fuse_requests_over_io_uring_are_answered_until_the_unmount() {
    let uring = UringOptions { executor: 0, executors: 1, depth: 2, depth_max: 8 };
    on_mount_with(DriverKind::Auto, "uring", Some(uring), async |env, channel, point| {
        let callers: Vec<_> = (0..6)
            .map(|_| {
                let (env, point) = (env.clone(), point.clone());
                env.clone().spawn_join(async move { env.offload(move || use_file(&point)).await })
            })
            .collect();
        for caller in callers {
            caller.await;
        }
        channel.notify(NotifyLane::Pages, inval_inode(FILE)).await.unwrap();
        eprintln!("{} requests came over io_uring", channel.requests_by_uring());
    });
}

/// FUSE_NOTIFY_INVAL_INODE for all of an inode.
fn inval_inode(ino: u64) -> Vec<u8> {
    let body = Words::default().u64s(&[ino, 0, 0]).0;
    let mut message = Words::default().u32s(&[16 + body.len() as u32, 2]).u64s(&[0]).0;
    message.extend(body);
    message
}

#[test]
fn notifications_are_written_on_every_lane_and_may_name_unknown_inodes() {
    on_mount(DriverKind::Auto, "notify", async |env, channel, point| {
        env.offload(move || use_file(&point)).await;
        for lane in
            [NotifyLane::Names, NotifyLane::Pages, NotifyLane::Attrs, NotifyLane::Background]
        {
            channel.notify(lane, inval_inode(FILE)).await.unwrap();
            assert!(!channel.notify(lane, inval_inode(99)).await.unwrap());
        }
        let malformed = channel.notify(NotifyLane::Pages, vec![0; 16]).await;
        assert!(malformed.is_err());
    });
}

#[test]
fn reply_to_an_unknown_request_is_no_error() {
    on_mount(DriverKind::Auto, "nobody", async |env, channel, point| {
        reply(&channel, 0x7777_7777, 0, &[], &[]);
        env.offload(move || use_file(&point)).await;
    });
}

#[test]
fn descriptor_without_a_mount_yields_an_error_without_blocking() {
    let Ok(fd) = OpenOptions::new().read(true).write(true).open("/dev/fuse") else { return };
    redbud_env::run(DriverKind::Auto, |env| async move {
        let channel = FuseChannel::new(&env, fd.into()).unwrap();
        assert!(!matches!(
            env.timeout(Duration::from_secs(60), channel.recv()).await,
            Some(Ok(Some(_)))
        ));
    })
    .unwrap();
}

#[test]
fn small_request_body_does_not_pin_a_large_buffer() {
    // Messages of a socket pair replace requests.
    let mut ends = [0; 2];
    // SAFETY: the kernel fills the two descriptors.
    let made =
        unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, ends.as_mut_ptr()) };
    assert_eq!(made, 0);
    // SAFETY: both were just made for us.
    let (near, far) = unsafe {
        use std::os::fd::FromRawFd;
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    redbud_env::run(DriverKind::Auto, |env| async move {
        let channel = FuseChannel::new(&env, near).unwrap();
        let mut far = File::from(far);
        for len in [40usize, 80, 81, 5000, 80 + (64 << 10) - 1, 80 + (64 << 10), 200] {
            let message: Vec<u8> = (0..len).map(|at| at as u8).collect();
            far.write_all(&message).unwrap();
            let request = channel.recv().await.unwrap().unwrap();
            assert_eq!(request.head_len, len.min(80));
            assert_eq!(request.head[..request.head_len], message[..request.head_len]);
            assert_eq!(request.body[..], message[request.head_len..]);
            let pinned = request.body.capacity();
            assert_eq!(
                pinned > 128 << 10,
                request.body.len() >= 64 << 10,
                "{len} bytes pin {pinned}"
            );
        }
        channel.reply(b"head", b"body").unwrap();
        let mut answer = [0; 100];
        assert_eq!(far.read(&mut answer).unwrap(), 8);
        assert_eq!(&answer[..8], b"headbody");
        drop(far);
        assert!(channel.recv().await.unwrap().is_none());
    })
    .unwrap();
}
