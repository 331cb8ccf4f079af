//! Orders of messages that a test cannot force on a real kernel: here the test is the kernel.

use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use env::{DriverKind, FuseChannel};
use redbud_fuse::{ServeOptions, serve};

use crate::common::memory::MemoryFs;
use crate::common::{Control, PATIENCE, wait_for};

const INIT: u32 = 26;
const SETLKW: u32 = 33;
const CREATE: u32 = 35;
const INTERRUPT: u32 = 36;

/// The kernel's end of a channel that preserves message boundaries.
struct Kernel {
    socket: std::fs::File,
    /// The process id in the requests.
    caller: u32,
}

fn words32(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn words64(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

impl Kernel {
    /// The kernel, and the descriptor to serve.
    fn new() -> (Kernel, OwnedFd) {
        let mut ends = [0; 2];
        // SAFETY: the array has room for two descriptors.
        let made =
            unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, ends.as_mut_ptr()) };
        assert_eq!(made, 0);
        // SAFETY: both were just created and have no other owner.
        let [mine, served] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        let limit = libc::timeval { tv_sec: PATIENCE.as_secs() as i64, tv_usec: 0 };
        // SAFETY: the option's value is a live timeval of the stated size.
        let set = unsafe {
            libc::setsockopt(
                ends[0],
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const limit).cast(),
                size_of::<libc::timeval>() as libc::socklen_t,
            )
        };
        assert_eq!(set, 0);
        (Kernel { socket: mine.into(), caller: 0 }, served)
    }

    fn send(&mut self, opcode: u32, unique: u64, node: u64, arguments: &[u8]) {
        let mut message = words32(&[40 + arguments.len() as u32, opcode]);
        message.extend(words64(&[unique, node]));
        message.extend(words32(&[0, 0, self.caller, 0]));
        message.extend(arguments);
        self.socket.write_all(&message).unwrap();
    }

    /// The next reply: the request's number, its error, and the payload.
    fn reply(&mut self) -> (u64, i32, Vec<u8>) {
        let mut reply = vec![0; 4096];
        let len = self.socket.read(&mut reply).expect("a reply");
        reply.truncate(len);
        let error = i32::from_ne_bytes(reply[4..8].try_into().unwrap());
        let unique = u64::from_ne_bytes(reply[8..16].try_into().unwrap());
        (unique, error, reply.split_off(16))
    }

    /// Requests an exclusive lock of the whole file, waiting without limit.
    fn lock(&mut self, unique: u64, node: u64, handle: u64, owner: u64) {
        let mut arguments = words64(&[handle, owner, 0, u64::MAX >> 1]);
        arguments.extend(words32(&[libc::F_WRLCK as u32, 0, 0, 0]));
        self.send(SETLKW, unique, node, &arguments);
    }

    fn create(&mut self, unique: u64, name: &[u8]) {
        let mut arguments = words32(&[libc::O_RDWR as u32, 0o100_644, 0, 0]);
        arguments.extend(name);
        self.send(CREATE, unique, 1, &arguments);
    }

    fn interrupt(&mut self, unique: u64) {
        self.send(INTERRUPT, unique | 1, 0, &words64(&[unique]));
    }
}

/// A kernel, and the file system that serves it.
fn mounted() -> (Kernel, Arc<Control>, thread::JoinHandle<()>) {
    let (mut kernel, served) = Kernel::new();
    let control = Arc::new(Control::default());
    let shared = control.clone();
    let server = thread::spawn(move || {
        env::run(DriverKind::Auto, |env| async move {
            let channel = FuseChannel::new(&env, served).unwrap();
            let fs = MemoryFs::new(&env, Duration::ZERO, shared);
            serve(&env, channel, fs, ServeOptions::default()).await.unwrap();
        })
        .unwrap();
    });
    let mut init = words32(&[7, 41, 1 << 20, 0]);
    init.extend([0; 48]);
    kernel.send(INIT, 2, 0, &init);
    assert_eq!(kernel.reply().1, 0);
    (kernel, control, server)
}

#[test]
fn interrupt_that_overtakes_its_request_is_not_lost() {
    let (mut kernel, _control, server) = mounted();
    kernel.create(4, b"f\0");
    let (_, error, created) = kernel.reply();
    assert_eq!(error, 0);
    let node = u64::from_ne_bytes(created[..8].try_into().unwrap());
    let handle = u64::from_ne_bytes(created[128..136].try_into().unwrap());
    kernel.lock(6, node, handle, 1);
    assert_eq!(kernel.reply(), (6, 0, Vec::new()));
    // An INTERRUPT that comes too late affects no other request.
    kernel.interrupt(6);
    for unique in (8..40).step_by(4) {
        kernel.interrupt(unique);
        kernel.lock(unique, node, handle, 2);
        assert_eq!(kernel.reply(), (unique, -libc::EINTR, Vec::new()));
        kernel.lock(unique + 2, node, handle, 2);
        kernel.interrupt(unique + 2);
        assert_eq!(kernel.reply(), (unique + 2, -libc::EINTR, Vec::new()));
    }
    kernel.lock(40, node, handle, 1);
    assert_eq!(kernel.reply(), (40, 0, Vec::new()));
    drop(kernel);
    server.join().unwrap();
}

#[test]
fn file_created_for_a_killed_process_is_closed_and_forgotten() {
    let (mut kernel, control, server) = mounted();
    // A zombie: it looks like a process that is being killed.
    let mut dying = std::process::Command::new("true").spawn().unwrap();
    kernel.caller = dying.id();
    let stat = format!("/proc/{}/stat", dying.id());
    wait_for("its end", || std::fs::read_to_string(&stat).unwrap().contains(") Z "));
    control.park_creates.store(true, Ordering::SeqCst);
    for unique in [4, 6, 8] {
        kernel.create(unique, format!("f{unique}\0").as_bytes());
        kernel.interrupt(unique);
        assert_eq!(kernel.reply(), (unique, -libc::EINTR, Vec::new()));
    }
    control.park_creates.store(false, Ordering::SeqCst);
    wait_for("the creates", || control.parked.load(Ordering::SeqCst) == 0);
    // The names exist, and none of the files is open or known to the kernel.
    kernel.caller = 0;
    kernel.create(10, b"g\0");
    assert_eq!(kernel.reply().1, 0);
    let open = || control.open.load(Ordering::SeqCst);
    wait_for("the files to be closed", || open() == 1);
    assert_eq!(control.created.load(Ordering::SeqCst), 4);
    assert_eq!(control.referenced.load(Ordering::SeqCst), 1);
    dying.wait().unwrap();
    drop(kernel);
    server.join().unwrap();
}
