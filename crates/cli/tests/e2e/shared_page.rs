//! Processes of two clients that use one page of a file, or its end, at the same time.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::coherence::two_mounts;
use crate::harness::{Busy, Content, on_blocks_and_objects, redbud, success};

on_blocks_and_objects!(
    process_reads_its_own_writes_in_a_page_shared_between_clients,
    processes_read_their_own_writes_in_shared_pages_of_several_files,
    writer_of_a_page_that_its_own_client_shares_keeps_its_pace,
    counters_in_a_mapping_under_range_locks_lose_no_update,
    writers_of_one_page_on_two_clients_both_make_progress,
    process_writing_a_few_bytes_in_a_loop_starves_nobody,
    read_reaches_the_size_that_fstat_returned_during_appends,
);

/// How long each test keeps its processes busy. On objects the turns of the clients are the same,
/// and only what they write back goes elsewhere.
fn busy(content: Content) -> Duration {
    match content {
        Content::Blocks | Content::Beside => Duration::from_secs(4),
        Content::Objects => Duration::from_secs(2),
    }
}

/// Nobody waits longer for the other client.
const LONGEST: Duration = Duration::from_secs(1);

/// Tells the other threads of a test to end, also where it fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn open(root: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(root.join("f")).unwrap()
}

fn number(file: &File, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, offset).unwrap();
    u64::from_le_bytes(bytes)
}

/// SEMANTICS 1.1. Client 1 has a process that writes its field and one that reads another field,
/// client 2 one that writes a third: all in one page.
fn process_reads_its_own_writes_in_a_page_shared_between_clients(content: Content) {
    let (cluster, a, b) = two_mounts(content);
    fs::write(a.join("f"), [0; 4096]).unwrap();
    let _busy = Busy::processors();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let file = open(&a);
            while !ended.load(Ordering::Relaxed) {
                number(&file, 64);
            }
        });
        scope.spawn(|| {
            let file = open(&b);
            for round in 1.. {
                file.write_all_at(&u64::to_le_bytes(round), 128).unwrap();
                assert_eq!(number(&file, 128), round);
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                thread::sleep(Duration::from_micros(200));
            }
        });
        let _end = End(&ended);
        let (file, begun) = (open(&a), Instant::now());
        let mut lost = 0;
        for round in 1.. {
            file.write_all_at(&u64::to_le_bytes(round), 0).unwrap();
            lost += u64::from(number(&file, 0) != round);
            if begun.elapsed() > 2 * busy(content) {
                break;
            }
        }
        assert_eq!(lost, 0, "reads that did not find what was written before");
    });
    cluster.finish();
}

/// SEMANTICS 1.1. Several files at once: the kernel drops pages of one file after the other.
fn processes_read_their_own_writes_in_shared_pages_of_several_files(content: Content) {
    const FILES: usize = 6;
    let (cluster, a, b) = two_mounts(content);
    for index in 0..FILES {
        fs::write(a.join(format!("f{index}")), [0; 4096]).unwrap();
    }
    let writer = |root: &Path, index: usize, offset: u64, pause: bool| {
        let name = root.join(format!("f{index}"));
        let file = OpenOptions::new().read(true).write(true).open(name).unwrap();
        let begun = Instant::now();
        let mut lost = 0;
        for round in 1.. {
            file.write_all_at(&u64::to_le_bytes(round), offset).unwrap();
            lost += u64::from(number(&file, offset) != round);
            if begun.elapsed() > busy(content) {
                break;
            }
            if pause {
                thread::sleep(Duration::from_micros(200));
            }
        }
        lost
    };
    let lost: u64 = thread::scope(|scope| {
        let mut threads = Vec::new();
        for index in 0..FILES {
            for (root, offset, pause) in [(&a, 0, false), (&a, 64, false), (&b, 128, true)] {
                threads.push(scope.spawn(move || writer(root, index, offset, pause)));
            }
        }
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(lost, 0, "reads that did not find what was written before");
    cluster.finish();
}

/// How long each of many writes took, in order of time.
struct Pace(Vec<Duration>);

impl Pace {
    fn of(mut waits: Vec<Duration>) -> Pace {
        waits.sort_unstable();
        Pace(waits)
    }

    /// All but a twentieth took less.
    fn late(&self) -> Duration {
        self.0[self.0.len() * 95 / 100]
    }

    fn count(&self) -> usize {
        self.0.len()
    }
}

/// SEMANTICS 1.1 and 3.3. Readers and writers of its own client share the page, and another client
/// writes it. On a busy machine all writers are slow: then the other client's tells how slow.
fn writer_of_a_page_that_its_own_client_shares_keeps_its_pace(content: Content) {
    let (cluster, a, b) = two_mounts(content);
    fs::write(a.join("f"), [0; 4096]).unwrap();
    for others_write in [false, true] {
        let ended = AtomicBool::new(false);
        let (mine, other) = thread::scope(|scope| {
            for offset in [64, 72] {
                let (file, ended) = (open(&a), &ended);
                scope.spawn(move || {
                    while !ended.load(Ordering::Relaxed) {
                        if others_write {
                            file.write_all_at(b"others", offset).unwrap();
                        }
                        number(&file, offset);
                    }
                });
            }
            let other = scope.spawn(|| {
                let (file, mut waits) = (open(&b), Vec::new());
                while !ended.load(Ordering::Relaxed) {
                    waits.push(time_of_write(&file, 128));
                    number(&file, 128);
                    thread::sleep(Duration::from_micros(200));
                }
                waits
            });
            let end = End(&ended);
            let (file, begun) = (open(&a), Instant::now());
            let mut mine = Vec::new();
            while begun.elapsed() < busy(content) {
                mine.push(time_of_write(&file, 0));
            }
            drop(end);
            (Pace::of(mine), Pace::of(other.join().unwrap()))
        });
        let (late, least) = (mine.late(), 75 * busy(content).as_secs() as usize);
        assert!(
            late < Duration::from_millis(90).max(4 * other.late()),
            "{late:?} of {}; the other client {:?}",
            mine.count(),
            other.late()
        );
        let (mine, other) = (mine.count(), other.count());
        assert!(mine > least.min(other / 4), "{mine} writes; the other client {other}");
    }
    cluster.finish();
}

fn time_of_write(file: &File, offset: u64) -> Duration {
    let before = Instant::now();
    file.write_all_at(b"others", offset).unwrap();
    before.elapsed()
}

/// SEMANTICS 1.1: what was stored into a mapping under a range lock is there for the next holder.
fn counters_in_a_mapping_under_range_locks_lose_no_update(content: Content) {
    const ROUNDS: u64 = 150;
    let (cluster, a, b) = two_mounts(content);
    fs::write(a.join("f"), [0; 16384]).unwrap();
    let sum: u64 = thread::scope(|scope| {
        for root in [&a, &b, &a, &b] {
            let (program, file) = (COUNT_IN_A_MAPPING, root.join("f"));
            scope.spawn(move || {
                let mut command = std::process::Command::new("python3");
                success(command.args(["-c", program]).arg(file).arg(ROUNDS.to_string()));
            });
        }
        ROUNDS * 4
    });
    for root in [&a, &b] {
        let file = open(root);
        let counted: u64 = (0..8).map(|counter| number(&file, counter * 2000)).sum();
        assert_eq!(counted, sum);
    }
    cluster.finish();
}

/// Counts up one of eight counters in turns, under its lock: through a mapping, or by read and
/// write. A process of its own, because POSIX locks are one per process.
const COUNT_IN_A_MAPPING: &str = "\
import fcntl, mmap, os, random, struct, sys
f = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(f, 16384)
r = random.Random(os.getpid())
for i in range(int(sys.argv[2])):
    at = r.randrange(8) * 2000
    fcntl.lockf(f, fcntl.LOCK_EX, 8, at)
    if i % 3:
        struct.pack_into('q', m, at, struct.unpack_from('q', m, at)[0] + 1)
    else:
        os.pwrite(f, struct.pack('q', struct.unpack('q', os.pread(f, 8, at))[0] + 1), at)
    fcntl.lockf(f, fcntl.LOCK_UN, 8, at)
";

/// SEMANTICS 1.1 and 3.3: a hand-over between clients ends, whatever they do.
fn writers_of_one_page_on_two_clients_both_make_progress(content: Content) {
    let (cluster, a, b) = two_mounts(content);
    fs::write(a.join("f"), [0; 4096]).unwrap();
    let turns = |root: &Path, offset: u64, reads: bool| {
        let (file, begun) = (open(root), Instant::now());
        let (mut count, mut longest, mut last) = (0u64, Duration::ZERO, begun);
        while begun.elapsed() < busy(content) {
            count += 1;
            file.write_all_at(&count.to_le_bytes(), offset).unwrap();
            if reads {
                number(&file, offset);
            }
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        (count, longest)
    };
    for reads in [false, true] {
        let (one, other) = thread::scope(|scope| {
            let other = scope.spawn(|| turns(&b, 128, reads));
            (turns(&a, 0, true), other.join().unwrap())
        });
        assert!(one.1.max(other.1) < LONGEST, "waits of {:?} and {:?}", one.1, other.1);
        let (most, least) = (one.0.max(other.0), one.0.min(other.0));
        assert!(most < 20 * least, "{} and {} turns", one.0, other.0);
    }
    let status = success(redbud().args(["status", "--json"]).arg(&a));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let server = &status["filesystems"][0]["server"];
    assert!(server["hand_overs"].as_u64() > Some(10), "{server}");
    assert!(server["hand_over_longest_ms"].as_u64() < Some(1000), "{server}");
    cluster.finish();
}

/// SEMANTICS 1.1 and 3.3.
fn process_writing_a_few_bytes_in_a_loop_starves_nobody(content: Content) {
    let (cluster, a, b) = two_mounts(content);
    fs::write(a.join("f"), vec![0; 1 << 20]).unwrap();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let file = open(&a);
            while !ended.load(Ordering::Relaxed) {
                file.write_all_at(b"a few bytes", 0).unwrap();
            }
        });
        let _end = End(&ended);
        let file = open(&b);
        for round in 0..40 {
            let begun = Instant::now();
            if round % 2 == 0 {
                number(&file, 5000);
            } else {
                file.write_all_at(b"y", 5000).unwrap();
            }
            let waited = begun.elapsed();
            assert!(waited < LONGEST, "round {round} waited for {waited:?}");
        }
    });
    cluster.finish();
}

/// SEMANTICS 1.1: no read ends below the size that `fstat` has shown.
fn read_reaches_the_size_that_fstat_returned_during_appends(content: Content) {
    let (cluster, a, b) = two_mounts(content);
    fs::write(a.join("f"), b"").unwrap();
    let _busy = Busy::processors();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let file = OpenOptions::new().append(true).open(a.join("f")).unwrap();
            for round in 0..u64::MAX {
                let bytes = vec![b'x'; 10 + (round % 100) as usize];
                std::io::Write::write_all(&mut &file, &bytes).unwrap();
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                if round % 50 == 0 {
                    thread::sleep(Duration::from_millis(3));
                }
            }
        });
        let _end = End(&ended);
        let (file, begun) = (File::open(b.join("f")).unwrap(), Instant::now());
        let (mut got, mut short) = (0, 0);
        while begun.elapsed() < 2 * busy(content) {
            let size = file.metadata().unwrap().len();
            let mut bytes = vec![0; (size - got) as usize];
            let read = file.read_at(&mut bytes, got).unwrap();
            short += u64::from(read < bytes.len());
            assert!(bytes[..read].iter().all(|byte| *byte == b'x'), "zeros at {got}");
            got += read as u64;
        }
        assert!(got > 0);
        assert_eq!(short, 0, "reads that ended below the size");
    });
    cluster.finish();
}
