//! `redbud ost survey` of each layer: a device, a store, a target, and striped targets.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Running, Scratch, SharedPids, describe, free_port, redbud, success};

/// Bytes of a survey, 16 records of each of its four objects.
const BYTES: u64 = 16 << 20;

/// `ost survey` in this directory.
fn survey(dir: &Path, mode: &str, places: &[&str]) -> Command {
    let mut command = redbud();
    command.current_dir(dir).args(["ost", "survey", "--mode", mode]).args(places);
    command.args(["--threads", "4", "--size", "16M", "--record", "256K", "--json"]);
    command
}

/// The report of a survey that did all.
fn measured(mut command: Command) -> Value {
    let report: Value = serde_json::from_str(&success(&mut command)).unwrap();
    let passes = report["passes"].as_array().unwrap();
    let names: Vec<&str> = passes.iter().map(|pass| pass["pass"].as_str().unwrap()).collect();
    assert_eq!(names, ["write", "rewrite", "read"], "{report}");
    assert!(passes.iter().all(|pass| pass["bytes"] == BYTES), "{report}");
    report
}

/// It is refused, and says so.
fn refused(mut command: Command, code: i32, why: &str) {
    let output = command.output().unwrap();
    let said = describe(&output);
    assert!(output.status.code() == Some(code) && said.contains(why), "{said}");
}

/// A loop device over a file.
struct Loop(PathBuf);

impl Loop {
    fn of(file: &Path) -> Loop {
        let made = success(Command::new("losetup").args(["--find", "--show"]).arg(file));
        Loop(made.trim().into())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        success(Command::new("losetup").arg("--detach").arg(&self.0));
    }
}

#[test]
fn survey_of_a_device_alone_spares_content_unless_it_is_forced() {
    let scratch = Scratch::new();
    let dir = scratch.path();
    let file = dir.join("raw.img");
    std::fs::File::create(&file).unwrap().set_len(BYTES).unwrap();
    let report = measured(survey(dir, "raw", &["raw.img"]));
    assert_eq!((&report["mode"], &report["device"]), (&"raw".into(), &"raw.img".into()));
    refused(survey(dir, "raw", &["raw.img"]), 1, "--force");
    let device = Loop::of(&file);
    let name = device.0.to_str().unwrap();
    let report = measured(survey(dir, "raw", &[name, "--force"]));
    assert_eq!(report["device"], name);
    measured(survey(dir, "raw", &[name, "--force", "--sync"]));
    drop(device);
    std::fs::File::options().write(true).open(&file).unwrap().set_len(BYTES - 4096).unwrap();
    refused(survey(dir, "raw", &["raw.img", "--force"]), 1, "it is smaller than");
}

/// A target on `FILE.img` in this directory.
fn format(dir: &Path, device: &str, options: &[&str]) {
    let mut format = redbud();
    format.current_dir(dir).args(["ost", "format", "--fs", "test", "--size", "128M"]);
    format.args(["--uuid", "ab000000-0000-4000-8000-000000000000", device]).args(options);
    success(&mut format);
}

#[test]
fn survey_of_a_store_and_of_striped_targets_leaves_nothing() {
    let scratch = Scratch::new();
    let dir = scratch.path();
    success(redbud().current_dir(dir).args(["ost", "key", "targets.key"]));
    format(dir, "a.img", &[]);
    format(dir, "b.img", &["--journal", "j.img", "--journal-size", "16M"]);
    let devices = ["a.img", "b.img,journal=j.img"];
    let free = |device: &str| {
        let mut check = redbud();
        check.current_dir(dir).args(["ost", "check", "--scrub", "--json", device]);
        let report: Value = serde_json::from_str(&success(&mut check)).unwrap();
        assert_eq!(report["scrub"]["objects"], 0, "{report}");
        report["free"].as_u64().unwrap()
    };
    let before = devices.map(free);
    for device in devices {
        let report = measured(survey(dir, "store", &[device]));
        assert_eq!(report["device"], device.split(',').next().unwrap());
    }
    measured(survey(dir, "store", &[devices[1], "--sync"]));
    refused(survey(dir, "raw", &["a.img"]), 1, "formatted already");
    assert_eq!(devices.map(free), before);

    let pids = SharedPids::default();
    let serve = |device: &str| {
        let address = format!("127.0.0.1:{}", free_port());
        let mut serve = redbud();
        serve.current_dir(dir).args(["ost", "serve", device, "--key", "targets.key"]);
        serve.args(["--listen", &address]);
        let log = dir.join(format!("{address}.log"));
        (Running::ready(serve, &log, &pids), address)
    };
    let [(first, one), (second, other)] = devices.map(serve);
    let whose = ["--fs", "test", "--key", "targets.key", "--part", "64K"];
    let survey_of = |mode: &str, addresses: &[&str]| {
        let mut command = survey(dir, mode, addresses);
        command.args(whose);
        command
    };
    let report = measured(survey_of("striped", &[&one, &other]));
    assert_eq!(report["part"], 64 << 10);
    for (index, address) in [&one, &other].into_iter().enumerate() {
        assert_eq!(report["targets"][index]["address"], address.as_str());
        assert_eq!(written_blocks(address), 2 * BYTES / 4096 / 2, "half of two passes");
    }
    let report = measured(survey_of("messages", &[&one]));
    assert_eq!(report["address"], one.as_str());
    refused(survey_of("messages", &[&one, &other]), 2, "--mode striped");
    refused(survey_of("striped", &[&one, &one]), 2, "name each target once");
    refused(survey(dir, "striped", &[&one]), 2, "--config");
    for running in [first, second] {
        running.signal(Signal::TERM);
        assert!(running.wait().success());
    }
    assert_eq!(devices.map(free), before);
}

/// What a target says that clients wrote there.
fn written_blocks(address: &str) -> u64 {
    let status = success(redbud().args(["ost", "status", address, "--fs", "test", "--json"]));
    let status: Value = serde_json::from_str(&status).unwrap();
    status["targets"][0]["store"]["written_blocks"].as_u64().unwrap()
}
