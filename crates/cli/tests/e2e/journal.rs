//! The log on a device of its own: served, moved, killed in the move, and refused where it does not
//! belong.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::harness::{Cluster, Spec, describe, pattern, redbud, success};

/// One test at a time: the child of one, before it runs its program, would hold files of the
/// other's mount open.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A cluster whose log is on `journal.img`.
fn with_journal() -> Cluster {
    Cluster::formatted(&Spec { journal: Some(16 << 20), ..Spec::default() })
}

/// Sets or removes the key `journal` in the cluster's file.
fn set_journal(cluster: &Cluster, journal: Option<&str>) {
    let text = fs::read_to_string(&cluster.config).unwrap();
    let kept = text.lines().filter(|line| !line.starts_with("journal"));
    let lines = kept.flat_map(|line| {
        let key = journal.filter(|_| line == "[metadata]");
        [Some(line.to_owned()), key.map(|path| format!("journal = \"{path}\""))]
    });
    let text = lines.flatten().collect::<Vec<_>>().join("\n") + "\n";
    fs::write(&cluster.config, text).unwrap();
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let said = describe(&output);
    assert!(!said.contains("panicked"), "{said}");
    output
}

/// The values of `redbud journal status`: metadata, journal, problem.
fn status(cluster: &Cluster) -> (String, Option<String>, Option<String>) {
    let output = run(redbud().args(["journal", "status", "--json"]).arg(&cluster.config));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", describe(&output)));
    let text = |key: &str| report[key].as_str().map(str::to_owned);
    assert_eq!(output.status.success(), report["problem"].is_null(), "{}", describe(&output));
    (text("metadata").unwrap(), text("journal"), text("problem"))
}

/// Every command that opens the metadata refuses them, and says all of `texts`.
fn assert_refused(cluster: &Cluster, texts: &[&str]) {
    let commands: [&[&str]; 4] = [&["mds"], &["fsck"], &["fsck", "--repair"], &["dump"]];
    for arguments in commands {
        let mut command = Command::new("timeout");
        command.args(["60", env!("CARGO_BIN_EXE_redbud")]).args(arguments).arg(&cluster.config);
        let output = run(command.stdin(Stdio::null()));
        let said = describe(&output);
        assert!(!output.status.success() && output.status.code() != Some(124), "{said}");
        for text in texts {
            assert!(said.contains(text), "{arguments:?}: expected `{text}` in: {said}");
        }
    }
}

fn write_files(root: &Path, round: u64) {
    for n in 0..20 {
        fs::write(root.join(format!("f{round}-{n}")), pattern(round * 100 + n, 5000)).unwrap();
    }
    fs::File::open(root).unwrap().sync_all().unwrap();
}

fn assert_files(root: &Path, rounds: u64) {
    for round in 0..rounds {
        for n in 0..20 {
            let found = fs::read(root.join(format!("f{round}-{n}"))).unwrap();
            assert!(found == pattern(round * 100 + n, 5000), "f{round}-{n}");
        }
    }
}

/// Serves, writes the files of `round`, kills the server, and serves again.
fn use_and_kill(cluster: &mut Cluster, mount: usize, round: u64) {
    cluster.start_server();
    match mount == round as usize {
        true => drop(cluster.mount()),
        false => cluster.remount(mount, &[]),
    }
    write_files(&cluster.path(mount), round);
    cluster.kill_server();
    cluster.start_server();
    assert_files(&cluster.path(mount), round + 1);
    cluster.unmount(mount);
    cluster.kill_server();
}

#[test]
fn log_on_a_device_of_its_own_survives_kills_and_moves_in_and_out() {
    let _alone = alone();
    let mut cluster = with_journal();
    use_and_kill(&mut cluster, 0, 0);
    let (metadata, journal, problem) = status(&cluster);
    let journal = journal.unwrap();
    assert_eq!(problem, None);
    // The file names the wrong place: every command refuses it with both UUIDs.
    set_journal(&cluster, None);
    assert_refused(&cluster, &[&metadata, &journal, "set `journal`"]);
    set_journal(&cluster, Some("data0.img"));
    assert_refused(&cluster, &["named twice"]);
    fs::write(cluster.dir.join("empty.img"), vec![0; 16 << 20]).unwrap();
    set_journal(&cluster, Some("empty.img"));
    assert_refused(&cluster, &[&metadata, &journal, "carries no journal"]);
    // An older copy of the journal.
    let older = cluster.dir.join("older.img");
    fs::copy(cluster.dir.join("journal.img"), &older).unwrap();
    set_journal(&cluster, Some("journal.img"));
    use_and_kill(&mut cluster, 1, 1);
    set_journal(&cluster, Some("older.img"));
    assert_refused(&cluster, &[&metadata, &journal, "older copy"]);
    // In, out to another device, and on.
    set_journal(&cluster, Some("journal.img"));
    let moved = success(redbud().args(["journal", "move", "--internal"]).arg(&cluster.config));
    assert!(moved.contains(&metadata) && moved.contains("remove `journal`"), "{moved}");
    assert_refused(&cluster, &[&metadata, "is internal"]);
    set_journal(&cluster, None);
    assert_eq!(status(&cluster), (metadata.clone(), None, None));
    use_and_kill(&mut cluster, 2, 2);
    let new = cluster.dir.join("new.img");
    let to = ["--size", "32M", "--to", new.to_str().unwrap()];
    let moved = success(redbud().args(["journal", "move"]).arg(&cluster.config).args(to));
    assert!(moved.contains("new.img"), "{moved}");
    let repeated = success(redbud().args(["journal", "move"]).arg(&cluster.config).args(to));
    assert!(repeated.contains("already"), "{repeated}");
    set_journal(&cluster, Some("journal.img"));
    assert_refused(&cluster, &[&metadata, &journal, "used before"]);
    set_journal(&cluster, Some("new.img"));
    use_and_kill(&mut cluster, 3, 3);
    cluster.start_server();
    let usage = success(redbud().args(["status", "--json"]).arg(&cluster.source));
    assert!(usage.contains("log"), "{usage}");
    assert_eq!(status(&cluster).2, None);
    cluster.finish();
}

/// A move that is killed between the superblock and the second copy of the label leaves a label
/// that lags, or a copy that does. The superblock is what counts; a repair writes the label anew.
fn repair_label_that_lags(cluster: &Cluster) {
    let fsck = |repair: &[&str]| {
        let output = redbud().arg("fsck").args(repair).arg(&cluster.config).output().unwrap();
        (output.status.code(), describe(&output))
    };
    let (code, said) = fsck(&[]);
    let mut others =
        said.lines().filter(|line| line.starts_with("warning:") || line.contains("error"));
    let only_label = others.all(|line| line.contains("(DamagedLabel)"));
    let lags = code == Some(4) && only_label && said.contains("no file is at risk");
    assert!(lags || code == Some(0), "{said}");
    assert!(!lags || fsck(&["--repair"]).0 == Some(1), "{said}");
}

#[test]
fn killed_move_leaves_the_log_in_one_of_both_places() {
    let _alone = alone();
    let mut cluster = Cluster::formatted(&Spec::default());
    use_and_kill(&mut cluster, 0, 0);
    let (there, mut rounds, mut interrupted) = (cluster.dir.join("journal.img"), 1, 0);
    fs::write(&there, vec![0; 8 << 20]).unwrap();
    let place = |cluster: &Cluster| {
        let places = [None, Some("journal.img")];
        let fits = |place: &&Option<&str>| {
            set_journal(cluster, **place);
            status(cluster).2.is_none()
        };
        let found: Vec<_> = places.iter().filter(fits).copied().collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found[0]
    };
    for step in 0..24 {
        let from = place(&cluster);
        set_journal(&cluster, from);
        let mut command = redbud();
        command.args(["journal", "move"]).arg(&cluster.config);
        match from {
            None => command.arg("--to").arg(&there),
            Some(_) => command.arg("--internal"),
        };
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(step * 3));
        drop(child.kill());
        interrupted += u64::from(!child.wait().unwrap().success());
        let now = place(&cluster);
        set_journal(&cluster, now);
        repair_label_that_lags(&cluster);
        cluster.assert_clean();
        if step % 6 == 5 {
            cluster.start_server();
            cluster.remount(0, &[]);
            assert_files(&cluster.root(), rounds);
            write_files(&cluster.root(), rounds);
            rounds += 1;
            cluster.unmount(0);
            cluster.kill_server();
        }
    }
    assert!(interrupted > 3, "{interrupted}");
    cluster.assert_clean();
}
