//! The program `repro`, at sizes that say nothing about speed: it measures, and leaves nothing.
//! Needs root, loop devices and e2fsprogs.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test lies above the seam: it runs programs"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The program under test.
fn repro() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_repro"));
    command.stdin(Stdio::null());
    command
}

/// A directory that goes with this value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("redbud-repro-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A test that failed may have left a mount in it: never what is below that.
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn describe(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    format!("{}\n{out}{err}", output.status)
}

/// Files, mounts and loop devices in a directory.
fn left(dir: &Path) -> Vec<String> {
    let root = format!("{}/", dir.display());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned);
    let loops = std::fs::read_dir("/sys/block").unwrap().filter_map(|block| {
        let file = block.unwrap().path().join("loop/backing_file");
        Some(std::fs::read_to_string(file).ok()?.trim().to_owned())
    });
    let files = std::fs::read_dir(dir).unwrap();
    let files = files.map(|file| file.unwrap().path().display().to_string());
    mounts.chain(loops).chain(files).filter(|path| path.starts_with(&root)).collect()
}

/// Runs a command that works in `dir`, named as `.`; what it said. It writes JSON, and leaves
/// nothing.
fn measured(dir: &Path, work: &str) -> String {
    let json = Scratch::new("json");
    let json = json.0.join("found.json");
    let mut command = repro();
    // The directory's name need not be absolute.
    command.current_dir(dir).args(work.split(' ')).arg("--json").arg(&json);
    let output = command.output().unwrap();
    let said = describe(&output);
    assert!(output.status.success(), "{work}: {said}");
    let found = std::fs::read_to_string(&json).unwrap();
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert!(found.as_object().is_some_and(|found| !found.is_empty()), "{work}: {found}");
    assert_eq!(left(dir), Vec::<String>::new(), "{work}");
    said
}

/// On the virtual disk, and on loop devices beside ext4.
const LAYOUTS: [&str; 4] = [
    "metarates --clients 1 --processes 2 --files 60 --log 16M --device 256M --dir .",
    "postmark --pool 50 --transactions 100 --clients 1 --device 512M --dir .",
    "polygraph --webs 1 --clients 1 --device 2G --lazy --dir .",
    "source --sources 60 --clients 1 --device 512M --lazy --dir .",
];

/// Within one process, in virtual time or on a sparse file.
const ALONE: [&str; 4] = [
    "placement --users 2 --dirs 3 --files 4",
    "inline --dirs 1 --files 30",
    "mfs --files 2000 --log 16M --dir .",
    "mds --files 2000 --log 16M --dir .",
];

/// One test: `measured` has one place for JSON.
#[test]
fn every_command_measures_and_cleans_up() {
    let scratch = Scratch::new("commands");
    for work in LAYOUTS {
        let said = measured(&scratch.0, work);
        for contender in ["embedded", "traditional", "traditional, hashed", "ext4", "ext4, hashed"]
        {
            let line = format!(", {contender}: ");
            let on_loops = |text: &str| text.starts_with("loop devices") && text.contains(&line);
            assert!(said.lines().any(on_loops), "{work} by {contender}: {said}");
        }
    }
    for work in ALONE {
        measured(&scratch.0, work);
    }
}

#[test]
fn figure_is_written_and_progress_goes_to_standard_error() {
    let scratch = Scratch::new("figure");
    let output = repro().args(["F4", "--files", "10", "--out"]).arg(&scratch.0).output().unwrap();
    let said = describe(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("create") && said.contains(" writes home, "), "{said}");
    assert!(!said.contains(['{', '}']) && !said.contains("Counts"), "{said}");
    let written = |ending: &str| std::fs::read_to_string(scratch.0.join(ending)).unwrap();
    assert!(written("F4.svg").starts_with("<svg") && written("F4.json").starts_with('{'));
}

#[test]
fn figure_ends_when_its_reader_is_gone() {
    let scratch = Scratch::new("unread");
    let mut command = repro();
    command.args(["F4", "--files", "10", "--out"]).arg(&scratch.0);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    let status = child.wait().unwrap();
    assert!(status.success() && scratch.0.join("F4.svg").exists(), "{status}");
}

#[test]
fn failure_is_reported_in_one_line() {
    for (line, code, text) in [
        ("F9 --aged 1M", 2, "at least 64 MiB"),
        ("nonsense", 2, "'nonsense'"),
        ("F4 --files 10 --out /dev/null/figures", 1, "repro: /dev/null/figures: "),
        (
            "price --dir /tmp --redbud /nowhere",
            1,
            "/nowhere is no file: build it with `cargo build",
        ),
        ("mfs --dir /nowhere", 1, "repro: looking for the directory: /nowhere"),
    ] {
        let output = repro().args(line.split(' ')).output().unwrap();
        let said = describe(&output);
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        assert!(said.contains(text), "{line}: {said}");
        assert!(code == 2 || output.stderr.iter().filter(|&&byte| byte == b'\n').count() == 1);
    }
}
