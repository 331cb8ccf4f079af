//! `redbud fsck` and `path` of several servers.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use super::{Local, run, server_of};
use crate::harness::{eventually, redbud, shell, success};

/// The text of a failed or sound `redbud fsck`, with its exit status.
fn fsck(target: &Path, options: &[&str]) -> (i32, String) {
    run(redbud().arg("fsck").arg(target).args(options))
}

#[test]
fn fsck_names_what_servers_do_not_agree_on() {
    let mut local = Local::start(2);
    let (_, child) = local.nested();
    let kept = fs::metadata(&child).unwrap().ino();
    local.stop();
    let said = local.assert_clean();
    assert!(said.contains("local: the servers agree: 1 names lead to other servers"), "{said}");
    let (image, older) = (local.dir().join("metadata1.img"), local.scratch.path().join("older"));
    shell(local.scratch.path(), "cp --sparse=always cluster/metadata1.img older");
    local.begin(&[]);
    let far = local.mount().join("parent/far");
    fs::create_dir(&far).unwrap();
    fs::write(far.join("file"), "content").unwrap();
    let lost = fs::metadata(&far).unwrap().ino();
    local.stop();
    local.assert_clean();
    fs::rename(&older, &image).unwrap();
    let (code, said) = fsck(&local.dir(), &[]);
    assert_eq!(code, 4, "{said}");
    let wanted = "servers 0 and 1: the name \"far\" in directory";
    assert!(said.contains(wanted) && said.contains(&format!("inode {lost}")), "{said}");
    assert!(said.contains("(NameWithoutInode)") && said.contains("DO NOT AGREE"), "{said}");
    assert!(!said.contains(&format!("inode {kept}")), "{said}");
    // Each alone is sound, and says that it was alone.
    for server in ["0", "1"] {
        let (code, said) = fsck(&local.dir(), &["--server", server]);
        assert!(code == 0 && said.contains("only this server was checked"), "{said}");
    }
    let (code, said) = fsck(&local.dir(), &["--json"]);
    let report: Value = serde_json::from_str(said.lines().find(|it| it.starts_with('{')).unwrap())
        .unwrap_or_else(|error| panic!("{error}: {said}"));
    let found = &report["between"]["problems"][0];
    assert_eq!(
        (code, &report["clean"], &report["between"]["compared"]),
        (4, &false.into(), &true.into())
    );
    assert_eq!((&found["kind"], &found["servers"][1]), (&"NameWithoutInode".into(), &1.into()));
    // Repair leaves it as it is, and says so.
    let (code, said) = fsck(&local.dir(), &["--repair"]);
    assert!(code == 4 && said.contains("repair changes nothing in which"), "{said}");
}

#[test]
fn paths_lead_over_all_servers() {
    let mut local = Local::start(2);
    let (parent, child) = local.nested();
    fs::write(child.join("file"), "content").unwrap();
    fs::hard_link(child.join("file"), local.mount().join("near")).unwrap();
    success(redbud().args(["set-layout", "--mds", "0"]).arg(&child));
    fs::create_dir(child.join("back")).unwrap();
    fs::write(child.join("back/deep"), "content").unwrap();
    let number = |path: &str| fs::metadata(local.mount().join(path)).unwrap().ino().to_string();
    let inodes = ["parent/child/file", "parent/child/back/deep", "parent"].map(number);
    assert_eq!(server_of(&parent.join("child/back")), 0);
    local.stop();
    let path = |options: &[&str], inodes: &[String]| {
        run(redbud().arg("path").arg(local.dir()).args(options).args(inodes))
    };
    let (code, said) = path(&[], &inodes);
    for (inode, wanted) in inodes.iter().zip(["child/file", "child/back/deep", ""]) {
        let wanted = format!("{inode}\t/parent/{wanted}");
        assert!(code == 0 && said.contains(wanted.trim_end_matches('/')), "{wanted}: {said}");
    }
    let (code, said) = path(&["--all"], &inodes[..1]);
    assert!(
        code == 0 && said.contains("\t/near\n") && said.contains("\t/parent/child/file\n"),
        "{said}"
    );
    let (code, said) = path(&["--server", "1"], &inodes[..1]);
    assert!(code == 1 && said.contains("is at server 0: leave out `--server`"), "{said}");
    let (code, said) = path(&[], &["5044031582654955520".into()]);
    assert!(code == 1 && said.contains("there is no server 70"), "{said}");
    local.assert_clean();
}

/// Makes and removes directories of both servers until that fails, and counts them.
fn load(parent: &Path, rounds: &AtomicU64) {
    for round in 0.. {
        let path = parent.join(format!("dir{}", round % 7));
        let made = fs::create_dir(&path)
            .and_then(|()| fs::write(path.join("file"), "content"))
            .and_then(|()| fs::remove_file(path.join("file")))
            .and_then(|()| fs::remove_dir(&path));
        if made.is_err() {
            return;
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn servers_that_are_killed_in_joint_operations_agree_as_they_are() {
    let mut local = Local::start(2);
    let parent = local.parent("parent", "spread");
    let rounds = Arc::new(AtomicU64::new(0));
    let (place, counted) = (parent.clone(), rounds.clone());
    let load = std::thread::spawn(move || load(&place, &counted));
    eventually("it works", || rounds.load(Ordering::Relaxed) > 9);
    local.crash();
    load.join().unwrap();
    // Before any server has recovered.
    let said = local.assert_clean();
    assert!(said.contains("local: the servers agree: "), "{said}");
    local.begin(&[]);
    shell(&parent, "rm -rf dir*");
    eventually("what was open is complete", || {
        local.servers().iter().all(|server| server["joint"]["open"] == 0)
    });
    local.stop();
    let said = local.assert_clean();
    assert!(said.contains("agree: 0 names") && !said.contains("are open"), "{said}");
}
