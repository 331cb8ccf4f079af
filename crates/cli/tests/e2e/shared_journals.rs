//! Targets with their journals on one device: killed under load, recovered and checked.

use std::path::Path;
use std::process::Output;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{
    Running, Scratch, SharedPids, describe, eventually, free_port, redbud, success,
};

const UUID: &str = "abababab-abab-abab-abab-abababababab";
/// Room for three slices of 8 MiB and the copy of the label, not for four.
const JOURNALS: u64 = 24 * (1 << 20) + 4096;

fn format(dir: &Path, device: &str, options: &[&str]) -> Output {
    let mut command = redbud();
    command.current_dir(dir).args(["ost", "format", device, "--size", "256M"]);
    command.args(["--journal", "journals.img"]).args(options);
    if !options.contains(&"--uuid") {
        command.args(["--fs", "test", "--uuid", UUID]);
    }
    command.output().unwrap()
}

/// Formats two targets with a slice each.
fn formatted() -> Scratch {
    let scratch = Scratch::new();
    let dir = scratch.path();
    success(redbud().args(["ost", "key"]).arg(dir.join("targets.key")));
    let journals = std::fs::File::create(dir.join("journals.img")).unwrap();
    journals.set_len(JOURNALS).unwrap();
    for device in ["a.img", "b.img"] {
        let output = format(dir, device, &["--journal-size", "8M"]);
        assert!(output.status.success(), "{}", describe(&output));
    }
    scratch
}

fn serve(dir: &Path, devices: &[&str], port: u16, log: &str) -> Running {
    let mut command = redbud();
    command.current_dir(dir).args(["ost", "serve", "--key", "targets.key"]);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    command.args(devices.iter().map(|device| format!("{device},journal=journals.img")));
    Running::ready(command, &dir.join(log), &SharedPids::default())
}

fn check(dir: &Path, device: &str) -> Value {
    let spec = format!("{device},journal=journals.img");
    let mut check = redbud();
    check.current_dir(dir).args(["ost", "check", "--scrub", "--json", &spec]);
    serde_json::from_str(&success(&mut check)).unwrap()
}

/// Blocks that hold something, and where the journal is.
fn used(report: &Value) -> (u64, u64, u64) {
    assert_eq!(report["findings"], Value::Array(Vec::new()), "{report}");
    assert_eq!(report["scrub"]["damaged"], 0, "{report}");
    let number = |value: &Value| value.as_u64().unwrap();
    let journal = &report["journal"];
    let used = number(&report["blocks"]) - number(&report["free"]);
    (used, number(&journal["first_block"]), number(&journal["others"]))
}

/// A survey writes without end; it ends when its target dies.
fn load(dir: &Path, port: u16) -> std::process::Child {
    let mut survey = redbud();
    survey.current_dir(dir).args(["ost", "survey", &format!("127.0.0.1:{port}"), "--fs", "test"]);
    survey.args(["--key", "targets.key", "--size", "48M", "--record", "64K", "--sync"]);
    survey.args(["--passes", "write,rewrite,rewrite,rewrite,rewrite,rewrite,rewrite"]);
    survey.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    survey.spawn().unwrap()
}

/// Objects were written since the server has started.
fn has_written(dir: &Path, port: u16) -> bool {
    let mut status = redbud();
    let address = format!("127.0.0.1:{port}");
    status.current_dir(dir).args(["ost", "status", &address, "--fs", "test", "--json"]);
    let report: Value = serde_json::from_str(&success(&mut status)).unwrap();
    let written = report["targets"][0]["store"]["written_blocks"].as_u64();
    written.unwrap_or_else(|| panic!("{report}")) > 1000
}

/// Two servers, and then one with both: each is killed under load.
#[test]
fn killed_targets_with_one_journal_device_recover_and_are_clean() {
    let scratch = formatted();
    let dir = scratch.path();
    // The store sets blocks aside.
    let empty = used(&check(dir, "a.img")).0;
    for together in [false, true, false] {
        let ports = [free_port(), free_port()];
        let servers = match together {
            false => vec![
                serve(dir, &["a.img"], ports[0], "a.log"),
                serve(dir, &["b.img"], ports[1], "b.log"),
            ],
            true => {
                let b = format!("b.img,listen=127.0.0.1:{}", ports[1]);
                let devices = ["a.img", b.as_str()];
                vec![serve(dir, &devices, ports[0], "both.log")]
            }
        };
        let loads = ports.map(|port| load(dir, port));
        for port in ports {
            eventually("the target has written", || has_written(dir, port));
        }
        for server in servers {
            server.kill();
        }
        for mut load in loads {
            load.kill().unwrap();
            load.wait().unwrap();
        }
        let found = ["a.img", "b.img"].map(|device| used(&check(dir, device)));
        assert!(found.iter().all(|(used, ..)| *used > empty + 1000), "{found:?}");
        assert_eq!(found.map(|(_, first, _)| first), [0, 2048]);
        assert!(found.iter().all(|(_, _, others)| *others == 1), "{found:?}");
    }
    let ports = [free_port(), free_port()];
    let mut servers = vec![serve(dir, &["a.img"], ports[0], "a.log")];
    servers.push(serve(dir, &["b.img"], ports[1], "b.log"));
    for server in servers {
        server.signal(Signal::TERM);
        assert!(server.wait().success());
    }
}

/// A server keeps others from its target and its slice, and from the whole device; not from another
/// slice.
#[test]
fn shared_journal_device_excludes_all_but_users_of_other_slices() {
    let scratch = formatted();
    let dir = scratch.path();
    let first = serve(dir, &["a.img"], free_port(), "a.log");
    let refused = |mut command: std::process::Command, wanted: &str| {
        let output = command.current_dir(dir).output().unwrap();
        let text = describe(&output);
        assert!(!output.status.success() && text.contains(wanted), "{text}");
    };
    let ost = |arguments: &[&str]| {
        let mut command = redbud();
        command.arg("ost").args(arguments);
        command
    };
    let key = ["--key", "targets.key"];
    refused(ost(&[&["serve", "a.img,journal=journals.img"], &key[..]].concat()), "a.img");
    refused(ost(&["check", "a.img,journal=journals.img"]), "a.img");
    // A copy of the target is another file, but has the same journal.
    std::fs::copy(dir.join("a.img"), dir.join("copy.img")).unwrap();
    let copied = "another process uses the journal of target";
    refused(ost(&[&["serve", "copy.img,journal=journals.img"], &key[..]].concat()), copied);
    refused(ost(&["survey", "--mode", "raw", "--force", "journals.img"]), "in use by process");
    let whole = format(dir, "c.img", &["--force"]);
    assert!(describe(&whole).contains("--journal-size"), "{}", describe(&whole));

    // A third target finds room while the first one is served, a fourth does not.
    let third = format(dir, "c.img", &["--journal-size", "8M"]);
    assert!(third.status.success(), "{}", describe(&third));
    let fourth = format(dir, "d.img", &["--journal-size", "8M"]);
    let text = describe(&fourth);
    assert!(text.contains("journals.img") && text.contains("it has 3 journals"), "{text}");
    let other = ["--journal-size", "8M", "--fs", "other", "--uuid"];
    let other =
        format(dir, "d.img", &[&other[..], &["cdcdcdcd-cdcd-cdcd-cdcd-cdcdcdcdcdcd"]].concat());
    let text = describe(&other);
    assert!(text.contains("of the file system `test`"), "{text}");

    // The slice of a target that is lost can be given back, that of a running one cannot.
    let journals = |arguments: &[&str]| {
        let mut command = redbud();
        command.current_dir(dir).args(["ost", "journals", "journals.img"]).args(arguments);
        command
    };
    let listed: Value = serde_json::from_str(&success(&mut journals(&["--json"]))).unwrap();
    let in_use = |index: usize| listed["journals"][index]["in_use"].as_bool().unwrap();
    assert_eq!([in_use(0), in_use(1), in_use(2)], [true, false, false], "{listed}");
    assert_eq!(listed["free_bytes"], 0, "{listed}");
    let owner = |index: usize| listed["journals"][index]["owner"].as_str().unwrap();
    refused(journals(&["--release", owner(0)]), "a server uses the journal");
    refused(journals(&["--release", UUID]), "it has no journal of");
    let text = success(&mut journals(&["--release", owner(2)]));
    assert!(text.contains("2 journals of `test`") && text.contains("another one: 8"), "{text}");
    refused(ost(&["check", "c.img,journal=journals.img"]), "journals.img");
    let third = format(dir, "c.img", &["--journal-size", "8M", "--force"]);
    assert!(third.status.success(), "{}", describe(&third));

    let second = serve(dir, &["b.img", "c.img"], free_port(), "b.log");
    for server in [first, second] {
        server.signal(Signal::TERM);
        assert!(server.wait().success());
    }
    let found = ["a.img", "b.img", "c.img"].map(|device| used(&check(dir, device)));
    assert_eq!(found.map(|(_, first, others)| (first, others)), [(0, 2), (2048, 2), (4096, 2)]);

    // A target that is made anew takes the place of its former journal.
    let again = format(dir, "b.img", &["--journal-size", "8M", "--force"]);
    assert!(again.status.success(), "{}", describe(&again));
    let (fresh, third) = (used(&check(dir, "b.img")), used(&check(dir, "c.img")));
    assert_eq!((fresh.1, fresh.2, third), (2048, 2, (fresh.0, 4096, 2)), "c has no objects");
}
