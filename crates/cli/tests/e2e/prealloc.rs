//! Several processes write one file: where its blocks go.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Cluster, Spec, client_status, eventually, redbud, success};

const WRITERS: usize = 4;
/// Requests of 64 KiB in each writer's part: 8 MiB.
const REQUESTS: usize = 128;

/// Writes its part of the file, a request for each line that it reads, and answers with a line.
const WRITER: &str = "
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY)
at, byte = int(sys.argv[2]), int(sys.argv[3])
for line in sys.stdin:
    assert os.pwrite(file, bytes([byte]) * 65536, at) == 65536
    at += 65536
    print('done', flush=True)
";

/// A process that writes one part.
struct Writer {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Writer {
    fn start(file: &Path, index: usize) -> Writer {
        let mut command = Command::new("python3");
        command.args(["-c", WRITER]).arg(file);
        command.args([(index * REQUESTS * 65536).to_string(), (index + 1).to_string()]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
        let asks = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Writer { child, asks, answers }
    }

    fn write(&mut self) {
        self.asks.write_all(b"\n").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }

    fn end(mut self) {
        drop(self.asks);
        assert!(self.child.wait().unwrap().success());
    }
}

fn held_bytes(mount: &Path, what: &str) -> u64 {
    client_status(mount)["holds"][what].as_u64().expect("a number")
}

fn window_bytes(mount: &Path) -> u64 {
    held_bytes(mount, "window_bytes")
}

/// Blocks of the first zone that the server keeps in windows, and those in the pools of clients.
fn at_server(cluster: &Cluster) -> (u64, u64) {
    let status = cluster.status();
    let zone = &status["pags"][0];
    let number = |key: &str| zone[key].as_u64().unwrap_or_else(|| panic!("{key}: {status}"));
    (number("windows"), number("pooled"))
}

/// Segments of a file, as `redbud layout` shows them.
fn segments_of(file: &Path) -> usize {
    let text = success(redbud().args(["layout", "--json"]).arg(file));
    let layout: Value = serde_json::from_str(&text).unwrap();
    layout["files"][0]["segments"].as_array().expect("segments").len()
}

/// Is the file what the processes have written, each its part?
fn check_content(file: &Path) {
    let content = std::fs::read(file).unwrap();
    assert_eq!(content.len(), WRITERS * REQUESTS * 65536);
    for (part, byte) in content.chunks(REQUESTS * 65536).zip(1..) {
        assert!(part.iter().all(|found| *found == byte), "{}: part {byte}", file.display());
    }
}

/// Segments of a file that the processes have written in turns, on a mount of its own.
fn segments(cluster: &mut Cluster, prealloc: &str) -> usize {
    let mount = cluster.mount_with(&[&format!("prealloc={prealloc}")]);
    let root = cluster.path(mount).to_path_buf();
    let file = root.join(prealloc);
    std::fs::write(&file, b"").unwrap();
    let mut writers: Vec<Writer> = (0..WRITERS).map(|at| Writer::start(&file, at)).collect();
    for _ in 0..REQUESTS {
        writers.iter_mut().for_each(Writer::write);
    }
    // The window of a reservation may just be used up.
    if prealloc == "od" {
        assert!(window_bytes(&root) > 0);
    }
    writers.into_iter().for_each(Writer::end);
    std::fs::File::open(&file).unwrap().sync_all().unwrap();
    eventually("no block waits for a closed file", || window_bytes(&root) == 0);
    check_content(&file);
    let found = segments_of(&file);
    eprintln!("{prealloc}: {found} segments");
    found
}

#[test]
fn parts_of_a_file_that_several_processes_write_are_contiguous() {
    let mut cluster = Cluster::start(&Spec { data: vec![512 << 20], ..Spec::default() });
    let on_demand = segments(&mut cluster, "od");
    let reservation = segments(&mut cluster, "reservation");
    let vanilla = segments(&mut cluster, "vanilla");
    assert!(on_demand * 2 <= reservation, "{on_demand} against {reservation}");
    assert!(reservation <= vanilla + WRITERS, "{reservation} against {vanilla}");
    cluster.finish();
}

/// Mounts that keep no blocks.
fn undelegated(cluster: &mut Cluster, prealloc: &str) -> [PathBuf; 2] {
    let prealloc = format!("prealloc={prealloc}");
    [(); 2].map(|()| {
        let mount = cluster.mount_with(&["delegation=off", &prealloc]);
        cluster.path(mount)
    })
}

/// Segments of a file that the processes have written in turns, two on each of two mounts, while
/// the server chose the places.
fn undelegated_segments(cluster: &mut Cluster, prealloc: &str) -> usize {
    let roots = undelegated(cluster, prealloc);
    let files = roots.each_ref().map(|root| root.join(format!("undelegated-{prealloc}")));
    std::fs::write(&files[0], b"").unwrap();
    let mut writers: Vec<Writer> =
        (0..WRITERS).map(|at| Writer::start(&files[at % 2], at)).collect();
    for _ in 0..REQUESTS {
        writers.iter_mut().for_each(Writer::write);
    }
    let (windows, _) = at_server(cluster);
    assert!(if prealloc == "od" { windows > 0 } else { prealloc != "vanilla" || windows == 0 });
    assert!(roots.iter().all(|root| window_bytes(root) == 0), "clients have no windows");
    writers.into_iter().for_each(Writer::end);
    files.iter().for_each(|file| std::fs::File::open(file).unwrap().sync_all().unwrap());
    eventually("no block waits for a closed file", || {
        let pools = roots.each_ref().map(|root| held_bytes(root, "pool_bytes"));
        (at_server(cluster), pools) == ((0, 0), [0, 0])
    });
    files.iter().for_each(|file| check_content(file));
    let found = segments_of(&files[0]);
    eprintln!("{prealloc}, delegation=off: {found} segments");
    found
}

#[test]
fn parts_that_processes_of_two_mounts_write_are_contiguous_where_the_server_chooses_so() {
    let mut cluster = Cluster::start(&Spec { data: vec![512 << 20], ..Spec::default() });
    let on_demand = undelegated_segments(&mut cluster, "od");
    let reservation = undelegated_segments(&mut cluster, "reservation");
    let vanilla = undelegated_segments(&mut cluster, "vanilla");
    // No two requests in a row are of one process.
    assert!(vanilla >= WRITERS * REQUESTS * 9 / 10, "{vanilla} of {}", WRITERS * REQUESTS);
    assert!(on_demand * 4 <= reservation, "{on_demand} against {reservation}");
    assert!(reservation <= vanilla, "{reservation} against {vanilla}");
    cluster.finish();
}

/// One of two clients without a pool dies, and so does the server, while both write.
#[test]
fn blocks_that_the_server_chose_survive_its_death_and_return_from_a_dead_client() {
    let spec = Spec { data: vec![512 << 20], lease: Duration::from_secs(3), ..Spec::default() };
    let mut cluster = Cluster::start(&spec);
    let roots = undelegated(&mut cluster, "od");
    let files = roots.each_ref().map(|root| root.join("written"));
    std::fs::write(&files[0], b"").unwrap();
    std::fs::write(roots[1].join("other"), vec![8; 1 << 20]).unwrap();
    let mut writers: Vec<Writer> = (0..WRITERS).map(|at| Writer::start(&files[0], at)).collect();
    for turn in 0..REQUESTS {
        writers.iter_mut().for_each(Writer::write);
        match turn {
            20 => {
                // Its writer has places, and has committed none of them.
                let mut open = std::fs::File::create(roots[1].join("lost")).unwrap();
                open.write_all(&vec![7; 4 << 20]).unwrap();
                cluster.kill_client(1);
            }
            40 => {
                cluster.kill_server();
                cluster.start_server();
            }
            _ => {}
        }
    }
    writers.into_iter().for_each(Writer::end);
    std::fs::File::open(&files[0]).unwrap().sync_all().unwrap();
    eventually("the dead client's blocks are free", || at_server(&cluster) == (0, 0));
    check_content(&files[0]);
    assert!(segments_of(&files[0]) < WRITERS * REQUESTS / 4, "{}", segments_of(&files[0]));
    cluster.finish();
}
