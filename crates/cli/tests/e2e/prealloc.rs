//! Several processes write one file: where its blocks go.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::harness::{Cluster, Spec, eventually, redbud, success};

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

fn window_bytes(mount: &Path) -> u64 {
    let text = success(redbud().args(["status", "--json"]).arg(mount));
    let status: Value = serde_json::from_str(&text).unwrap();
    status["mounts"][0]["client"]["holds"]["window_bytes"].as_u64().expect("a number")
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
    let content = std::fs::read(&file).unwrap();
    assert_eq!(content.len(), WRITERS * REQUESTS * 65536);
    for (part, byte) in content.chunks(REQUESTS * 65536).zip(1..) {
        assert!(part.iter().all(|found| *found == byte), "{prealloc}: part {byte}");
    }
    let text = success(redbud().args(["layout", "--json"]).arg(&file));
    let layout: Value = serde_json::from_str(&text).unwrap();
    let found = layout["files"][0]["segments"].as_array().expect("segments").len();
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
