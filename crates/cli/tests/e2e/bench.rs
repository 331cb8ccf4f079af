//! The benchmark runs, at sizes that say nothing about speed, and leaves nothing.

use std::process::Stdio;

use rustix::process::Signal;

use crate::harness::{Scratch, describe, eventually, redbud, signal, wait_child};

fn left(scratch: &Scratch) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = table.lines().filter_map(|line| line.split(' ').nth(4));
    let root = format!("{}/", scratch.path().display());
    let mounts = mounts.filter(|mount| mount.starts_with(&root)).map(str::to_owned);
    let files = std::fs::read_dir(scratch.path()).unwrap();
    mounts.chain(files.map(|file| file.unwrap().path().display().to_string())).collect()
}

#[test]
fn every_contender_runs_every_work_with_the_same_requests() {
    let scratch = Scratch::new();
    let json = Scratch::new();
    let json = json.path().join("table.json");
    let mut command = redbud();
    command.args(["bench", "table", "--runs", "1", "--files", "80", "--entries", "300"]);
    command.args(["--size", "4M", "--depth", "4", "--random", "100ms", "--json"]).arg(&json);
    let output = command.arg("--dir").arg(scratch.path()).output().unwrap();
    let said = describe(&output);
    assert!(output.status.success(), "{said}");
    let report = std::fs::read_to_string(&json).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 12, "{said}");
    for row in rows {
        for (kind, samples) in row["samples"].as_object().unwrap() {
            assert_eq!(samples.as_array().unwrap().len(), 1, "{} on {kind}", row["work"]);
            assert!(samples[0]["ops"].as_u64().unwrap() > 0, "{} on {kind}", row["work"]);
        }
        // None of these is asked twice. (Names that a stalled machine lets run out are looked
        // up again, so lookups are compared only where every name is new.)
        let fresh = row["work"].as_str().unwrap().starts_with("stat-");
        let lookup: &[&str] = if fresh { &["lookup"] } else { &[] };
        for request in ["create", "unlink", "write", "fsync"].iter().chain(lookup) {
            let count = |kind: &str| row["samples"][kind][0]["requests"][request].as_u64();
            if row["samples"].get("null").is_some() {
                assert_eq!(count("redbud"), count("null"), "{} {request}", row["work"]);
            }
        }
    }
    assert_eq!(left(&scratch), Vec::<String>::new());
}

#[test]
fn object_targets_do_every_work_beside_data_disks_and_have_a_bound() {
    let (scratch, json) = (Scratch::new(), Scratch::new());
    let json = json.path().join("table.json");
    let measure = |options: &[&str]| {
        let mut command = redbud();
        command.args(["bench", "table", "--osts", "2", "--runs", "1", "--files", "80"]);
        command.args(["--entries", "300", "--size", "4M", "--random", "100ms"]).args(options);
        let output = command.arg("--json").arg(&json).arg("--dir").arg(scratch.path()).output();
        let said = describe(output.as_ref().unwrap());
        assert!(output.unwrap().status.success(), "{said}");
        assert_eq!(left(&scratch), Vec::<String>::new(), "{said}");
        let report = std::fs::read_to_string(&json).unwrap();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        report["rows"].as_array().unwrap().clone()
    };
    let rows = measure(&[]);
    assert_eq!(rows.len(), 12);
    for row in &rows {
        let samples = row["samples"].as_object().unwrap();
        assert_eq!(samples.keys().collect::<Vec<_>>(), ["objects", "redbud"], "{row}");
        for kind in ["objects", "redbud"] {
            assert!(samples[kind][0]["ops"].as_u64().unwrap() > 0, "{row}");
        }
        let (target, median) = (&row["target"], |kind: &str| row["median"][kind].as_f64().unwrap());
        assert_eq!((&target["of"], &target["than"]), (&"objects".into(), &"redbud".into()));
        let (reached, least) =
            (target["reached"].as_f64().unwrap(), target["least"].as_f64().unwrap());
        assert!((reached - median("objects") / median("redbud")).abs() < 1e-6, "{row}");
        assert_eq!((least, target["met"].as_bool()), (0.6, Some(reached >= least)), "{row}");
    }
    // The bytes went to the targets: only their process works with them.
    let cpu = |row: &serde_json::Value, kind: &str| {
        row["samples"][kind][0]["targets_cpu"].as_u64().unwrap()
    };
    let written = rows.iter().find(|row| row["work"] == "seq-write").unwrap();
    assert!(cpu(written, "objects") > 0 && cpu(written, "redbud") == 0, "{written}");
    let rows = measure(&["--tcp", "encrypted", "--only", "seq-write,seq-read"]);
    assert_eq!(rows.len(), 2);
}

#[test]
fn memory_is_reported_for_every_process() {
    let scratch = Scratch::new();
    let mut command = redbud();
    command.args(["bench", "memory", "--inodes", "500", "--dir"]).arg(scratch.path());
    let output = command.output().unwrap();
    let said = describe(&output);
    assert!(output.status.success() && said.contains("metadata server"), "{said}");
    assert_eq!(left(&scratch), Vec::<String>::new());
}

#[test]
fn bounded_devices_bound_the_raw_disks_and_redbud_and_are_gone_afterwards() {
    let (scratch, json) = (Scratch::new(), Scratch::new());
    let json = json.path().join("devices.json");
    let mut command = redbud();
    command.args(["bench", "devices", "--runs", "1", "--size", "8M", "--rate", "16M"]);
    command.args(["--shared", "8M", "--files", "16", "--only", "sum", "--only", "small", "--json"]);
    let output = command.arg(&json).arg("--dir").arg(scratch.path()).output().unwrap();
    let said = describe(&output);
    assert!(output.status.success(), "{said}");
    let report = std::fs::read_to_string(&json).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    for (name, rates) in report["values"].as_object().unwrap() {
        let rate = rates[0].as_f64().unwrap();
        let Some(devices) = name.strip_suffix(" raw, write") else { continue };
        let devices: f64 = devices.split(' ').next().unwrap().parse().unwrap();
        let bound = devices * f64::from(16 << 20);
        // The kernel lets a little through before it begins to count.
        assert!(rate > bound / 8.0 && rate < bound * 1.5, "{name}: {rate} of {bound}");
    }
    assert_eq!(report["ratios"].as_array().unwrap().len(), 9, "{said}");
    assert_eq!(left(&scratch), Vec::<String>::new());
    let loops = std::fs::read_dir("/sys/block").unwrap().filter_map(Result::ok);
    let backing = |device: std::fs::DirEntry| {
        std::fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default()
    };
    let root = scratch.path().display().to_string();
    let of_this = || loops.map(backing).filter(|file| file.starts_with(&root)).collect::<Vec<_>>();
    assert_eq!(of_this(), Vec::<String>::new());
}

#[test]
fn loads_compare_mount_options_and_ext4_in_turns() {
    let (scratch, json) = (Scratch::new(), Scratch::new());
    let json = json.path().join("load.json");
    let measure = |arguments: &[&str]| {
        let mut command = redbud();
        command.arg("bench").args(arguments).args(["--runs", "2", "--json"]).arg(&json);
        let output = command.arg("--dir").arg(scratch.path()).output().unwrap();
        let said = describe(&output);
        assert!(output.status.success(), "{said}");
        let report = std::fs::read_to_string(&json).unwrap();
        assert_eq!(left(&scratch), Vec::<String>::new(), "{said}");
        serde_json::from_str::<serde_json::Value>(&report).unwrap()
    };
    let turns = |report: &serde_json::Value, names: &[&str]| -> Vec<serde_json::Value> {
        let rows = report["rows"].as_array().unwrap();
        let found: Vec<&str> = rows.iter().map(|row| row["contender"].as_str().unwrap()).collect();
        assert_eq!(found, names);
        rows.iter().flat_map(|row| row["turns"].as_array().unwrap().clone()).collect()
    };
    let options = ["--options", "", "--options", "dirty=1M"];
    let xcdn = measure(&[&["xcdn", "--size", "64K", "--ops", "8"][..], &options].concat());
    let xcdn = turns(&xcdn, &["redbud", "redbud dirty=1M", "ext4"]);
    assert_eq!(xcdn.len(), 6);
    for turn in &xcdn {
        assert_eq!(turn["ops"], 64, "eight processes do eight operations: {turn}");
        assert!(turn["durable_nanos"].as_u64() > turn["nanos"].as_u64(), "{turn}");
    }
    // All turns of Redbud make, write and read the same objects.
    for request in ["create", "write"] {
        let count = |turn: &serde_json::Value| turn["requests"][request].as_u64();
        assert!(count(&xcdn[0]).is_some_and(|count| count > 0), "{}", xcdn[0]);
        assert!(xcdn[..4].iter().all(|turn| count(turn) == count(&xcdn[0])), "{request}");
    }
    let throttled = ["varmail", "--time", "300ms", "--without-ext4", "--writes", "2000"];
    let varmail = turns(&measure(&throttled), &["redbud"]);
    assert!(varmail.iter().all(|turn| turn["ops"].as_u64() > Some(16)), "{varmail:?}");
    let mut command = redbud();
    command.args(["bench", "varmail", "--writes", "200", "--dir"]).arg(scratch.path());
    let output = command.output().unwrap();
    let said = describe(&output);
    assert!(!output.status.success() && said.contains("--without-ext4"), "{said}");
}

#[test]
fn interrupted_benchmark_reports_it_and_cleans_up() {
    let scratch = Scratch::new();
    let mut command = redbud();
    command.args(["bench", "table", "--only", "create-1", "--runs", "1000", "--size", "4M"]);
    command.args(["--files", "1000", "--dir"]).arg(scratch.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("both mounts stand", || {
        left(&scratch).iter().filter(|name| name.contains("/mnt-")).count() == 2
    });
    signal(child.id() as i32, Signal::INT);
    assert_eq!(wait_child(&mut child).code(), Some(1));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("interrupted"), "{said}");
    assert_eq!(left(&scratch), Vec::<String>::new());
}
