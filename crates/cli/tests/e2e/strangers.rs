//! Strangers at the server's port: idle connections, half frames, recorded sessions with flipped
//! bits. The mount goes on meanwhile, and afterwards the server has freed everything.
//!
//! The gate tries few of each. `REDBUD_STRANGERS=3000` tries that many idle connections, a tenth
//! of it half frames and half of it flipped sessions, and also measures the mount's rate: for a
//! release build on an idle machine.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::harness::{Cluster, eventually, redbud, success};

/// More memory than the strangers may cost the server.
const MEMORY_MAX: u64 = 32 << 20;
/// When everything of theirs is gone.
const FREED_WITHIN: Duration = Duration::from_secs(15);

/// Idle connections of a run, and whether it measures.
fn size() -> (usize, bool) {
    let asked = std::env::var("REDBUD_STRANGERS").ok();
    let asked = asked.map(|text| text.parse().expect("a number of connections"));
    (asked.unwrap_or(60), asked.is_some())
}

/// Passes one connection on to the server, and records what the client sends.
fn record(cluster: &Cluster, address: &str) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = listener.local_addr().unwrap();
    let file = with_address(cluster, &proxy.to_string());
    let server = address.to_owned();
    let passing = std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(server).unwrap();
        let (mut back, mut to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        let answering = std::thread::spawn(move || std::io::copy(&mut back, &mut to));
        let (mut near, mut far, mut recorded) = (near, far, Vec::new());
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = near.read(&mut bytes) {
            recorded.extend_from_slice(&bytes[..read]);
            far.write_all(&bytes[..read]).unwrap();
        }
        // The server closes the connection in turn, or has.
        let _ = far.shutdown(Shutdown::Write);
        drop(answering.join());
        recorded
    });
    success(redbud().arg("status").arg(&file));
    passing.join().unwrap()
}

/// A cluster's file for a client at another address, with its key.
fn with_address(cluster: &Cluster, address: &str) -> PathBuf {
    let (key, public) = cluster.new_key("recorded.key");
    cluster.allow(&public, "recorded", &["--role", "administrator"]);
    let text = fs::read_to_string(&cluster.config).unwrap();
    let line = |line: &str| match line.starts_with("listen") {
        true => format!("listen = \"{address}\"\n"),
        false => format!("{line}\n"),
    };
    let text: String = text.lines().map(line).collect();
    let file = cluster.dir.join("recorded.toml");
    fs::write(&file, format!("{text}[client]\nkey = \"{}\"\n", key.display())).unwrap();
    file
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Sends a recorded session with a flipped bit, and waits until the server closes it.
fn replay(address: &str, session: &[u8], flip: usize) {
    let mut changed = session.to_vec();
    let at = flip % (changed.len() * 8);
    changed[at / 8] ^= 1 << (at % 8);
    let mut stream = connect(address);
    // The server may have closed it already.
    let _ = stream.write_all(&changed);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.len() < 200, "an answer of {} bytes to nobody", rest.len());
}

fn memory(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn open_files(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Creates and removes files in a thread of its own, and counts them.
struct Work {
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Work {
    fn start(root: &Path) -> Work {
        let (done, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (root, counted, stopped) = (root.to_owned(), done.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let path = root.join(format!("f{}", counted.load(Ordering::Relaxed) % 100));
                fs::write(&path, b"content").unwrap();
                fs::remove_file(&path).unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Work { done, stop, thread: Some(thread) }
    }

    fn count(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Files in a second of so many.
    fn rate(&self, seconds: u64) -> f64 {
        let (before, begin) = (self.count(), Instant::now());
        std::thread::sleep(Duration::from_secs(seconds));
        (self.count() - before) as f64 / begin.elapsed().as_secs_f64()
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))));
    }
}

#[test]
fn strangers_cost_little_and_leave_nothing() {
    let (idle, measures) = size();
    let mut cluster = Cluster::mounted();
    let address = cluster.source.trim_end_matches(":/test").to_owned();
    let session = record(&cluster, &address);
    assert!(session.len() > 200, "{} bytes recorded", session.len());
    let pid = cluster.server_pid();
    let work = Work::start(&cluster.root());
    let usual = if measures { work.rate(5) } else { 0.0 };
    let (memory_before, files_before) = (memory(pid), open_files(pid));

    let mut held: Vec<TcpStream> = (0..idle).map(|_| connect(&address)).collect();
    for half in 0..idle / 10 {
        let mut stream = connect(&address);
        stream.write_all(&session[..1 + half % 150]).unwrap();
        held.push(stream);
    }
    let flips = AtomicU64::new(0);
    let failed = Mutex::new(None);
    let begin = (Instant::now(), work.count());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let flip = flips.fetch_add(1, Ordering::Relaxed) as usize;
                    if flip >= idle / 2 {
                        return;
                    }
                    let done = std::panic::catch_unwind(|| replay(&address, &session, flip * 13));
                    if done.is_err() {
                        *failed.lock().unwrap() = Some(flip);
                    }
                }
            });
        }
    });
    assert_eq!(*failed.lock().unwrap(), None);
    let during = (work.count() - begin.1) as f64 / begin.0.elapsed().as_secs_f64();
    let reached = work.count();
    eventually("the mount goes on", || work.count() > reached);
    let more = memory(pid).saturating_sub(memory_before);
    assert!(more <= MEMORY_MAX, "the server has {more} bytes more");

    let door = cluster.status()["door"].clone();
    let count = |name: &str| door[name].as_u64().unwrap();
    let refused = count("wrong_proof") + count("malformed") + count("wrong_server");
    let refused = refused + count("wrong_mode") + count("unfinished");
    assert!(refused >= (idle / 2) as u64, "{door}");
    assert_eq!(count("by_key"), 1, "{door}");
    // The strangers stay connected; the server ends it.
    let since = Instant::now();
    eventually("everything of theirs is freed", || {
        open_files(pid) <= files_before && cluster.status()["door"]["half_open"] == 0
    });
    assert!(since.elapsed() < FREED_WITHIN + Duration::from_secs(5));
    if measures {
        let seconds = since.elapsed().as_secs_f64();
        println!(
            "{idle} idle, {} half, {} flipped: {usual:.0} files a second before, {during:.0} during \
             the flips; {more} bytes more; freed after {seconds:.1} s",
            idle / 10,
            idle / 2
        );
        assert!(during >= 0.9 * usual, "{during:.0} of {usual:.0} files a second");
    }
    drop((work, held));
    cluster.unmount(0);
    cluster.finish();
}
