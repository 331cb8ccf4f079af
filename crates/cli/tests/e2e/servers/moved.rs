//! Directories that an administrator moves to another server.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::{Local, links, run};
use crate::harness::{eventually, pattern, redbud, shell, success};

/// Numbers, links and content of everything below a directory.
fn everything(top: &Path) -> BTreeMap<PathBuf, (u64, u64, Vec<u8>)> {
    let (mut all, mut dirs) = (BTreeMap::new(), vec![top.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = match () {
                () if metadata.is_dir() => Vec::new(),
                () if metadata.is_symlink() => {
                    fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
                }
                () => fs::read(&path).unwrap(),
            };
            all.insert(path.clone(), (metadata.ino(), metadata.nlink(), content));
            if metadata.is_dir() {
                dirs.push(path);
            }
        }
    }
    all
}

/// The server that a directory is at, as `redbud layout` says.
pub fn server_of(path: &Path) -> u64 {
    let said = success(redbud().args(["layout", "--json"]).arg(path));
    let report: Value = serde_json::from_str(&said).unwrap();
    report["directories"][0]["mds"].as_u64().unwrap()
}

fn migrate(server: &str, path: &Path, more: &[&str]) -> (i32, String) {
    run(redbud().args(["migrate", "--mds", server]).args(more).arg(path))
}

/// The exit status if something stays.
const PARTIAL: i32 = 3;

/// The report among what the command has said.
fn line_of_json(said: &str) -> &str {
    said.lines().find(|line| line.starts_with('{')).expect("a report")
}

/// A tree with one of everything.
fn make(top: &Path) {
    fs::create_dir(top).unwrap();
    for n in 0..20 {
        fs::write(top.join(format!("file{n}")), pattern(n, 3000 * n as usize)).unwrap();
    }
    fs::create_dir_all(top.join("below/deep")).unwrap();
    fs::write(top.join("below/deep/file"), pattern(99, 1 << 20)).unwrap();
    fs::hard_link(top.join("file3"), top.join("below/linked")).unwrap();
    std::os::unix::fs::symlink("below/deep/file", top.join("symlink")).unwrap();
}

#[test]
fn tree_moves_to_another_server_and_back_with_its_numbers() {
    let mut local = Local::start(2);
    let (top, file) = (local.mount().join("top"), local.mount().join("top/file7"));
    make(&top);
    let (before, number) = (everything(&top), fs::metadata(&top).unwrap().ino());
    let open = File::open(&file).unwrap();
    let mut followed = 0;
    eventually("all files follow that can", || {
        let (code, said) = migrate("1", &top, &["--recursive", "--json"]);
        assert_eq!(code, PARTIAL, "{said}");
        let report: Value = serde_json::from_str(line_of_json(&said)).unwrap();
        let mut stayed = Vec::new();
        for dir in report["directories"].as_array().unwrap() {
            followed += dir["files"].as_u64().unwrap();
            stayed.extend(dir["files_stayed"].as_array().into_iter().flatten().cloned());
        }
        let why = |name| stayed.iter().find(|file| file["name"] == name).unwrap()["why"].as_str();
        assert!(why("file7").unwrap().contains("open"), "{said}");
        assert!(why("file3").unwrap().contains("other names"), "{said}");
        // The other name of that is in another directory.
        stayed.len() == 3
    });
    assert_eq!(followed, 20, "18 files and the link, and the one far below");
    for dir in ["", "below", "below/deep"] {
        assert_eq!(server_of(&top.join(dir)), 1, "{dir}");
    }
    let said = success(redbud().args(["layout", "--json"]).arg(top.join("file5")));
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(report["files"][0]["mds"], 1, "a file has moved, too");
    assert_eq!(everything(&top), before);
    assert_eq!((fs::metadata(&top).unwrap().ino(), links(&top)), (number, 3));
    assert_eq!(open.metadata().unwrap().len(), 21_000);
    // The blocks that came along are written, given up and replaced there.
    fs::write(top.join("file5"), pattern(5, 15_000)).unwrap();
    let deep = File::options().write(true).open(top.join("below/deep/file")).unwrap();
    deep.write_all_at(&pattern(99, 1 << 20)[300_000..700_000], 300_000).unwrap();
    deep.sync_all().unwrap();
    drop(deep);
    assert_eq!(everything(&top), before);
    // It follows when nobody uses it any more.
    drop(open);
    eventually("the file that was open follows", || {
        let (code, said) = migrate("1", &top, &["--json"]);
        assert!(code == PARTIAL && said.contains("\"there\""), "{said}");
        !said.contains("file7")
    });
    // All of it is used there.
    fs::write(top.join("new"), "new").unwrap();
    fs::rename(top.join("file1"), top.join("below/file1")).unwrap();
    fs::rename(top.join("below/file1"), local.mount().join("out")).unwrap();
    fs::rename(local.mount().join("out"), top.join("file1")).unwrap();
    fs::create_dir(top.join("below/more")).unwrap();
    fs::rename(&top, local.mount().join("renamed")).unwrap();
    fs::rename(local.mount().join("renamed"), &top).unwrap();
    assert_eq!(fs::read_to_string(top.join("new")).unwrap(), "new");
    fs::remove_file(top.join("new")).unwrap();
    fs::remove_dir(top.join("below/more")).unwrap();
    assert_eq!(everything(&top), before);
    local.restart();
    assert_eq!(everything(&top), before);
    assert_eq!(server_of(&top), 1);
    // Without its other name it follows, too, also back.
    fs::remove_file(top.join("below/linked")).unwrap();
    for server in ["1", "0"] {
        eventually("all files follow", || {
            let (code, said) = migrate(server, &top, &["--recursive"]);
            assert!(code == 0 || said.contains("it is open"), "{said}");
            code == 0
        });
    }
    let mut after = before;
    after.remove(&top.join("below/linked"));
    after.get_mut(&top.join("file3")).unwrap().1 = 1;
    assert_eq!((everything(&top), server_of(&top)), (after, 0));
    fs::remove_dir_all(&top).unwrap();
    local.stop();
    local.assert_clean();
}

#[test]
fn what_cannot_move_is_said() {
    let local = Local::start(2);
    let (mount, dir) = (local.mount(), local.mount().join("dir"));
    fs::create_dir(&dir).unwrap();
    fs::write(mount.join("file"), "").unwrap();
    for (server, path, text) in [
        ("1", mount.clone(), "root"),
        ("1", mount.join("file"), "directory"),
        ("7", dir.clone(), "server 7"),
        ("1", mount.join("none"), "No such file"),
    ] {
        let (code, said) = migrate(server, &path, &[]);
        assert!(code != 0 && said.contains(text), "{path:?}: {said}");
    }
    for n in 0..1001 {
        File::create(dir.join(format!("{n}"))).unwrap();
    }
    let (code, said) = migrate("1", &dir, &[]);
    assert!(code != 0 && said.contains("spread"), "{said}");
    fs::remove_file(dir.join("0")).unwrap();
    let (code, said) = migrate("1", &dir, &[]);
    assert_eq!((code, server_of(&dir)), (0, 1), "{said}");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1000);
}

#[test]
fn directory_is_used_while_it_moves_and_servers_are_killed() {
    let mut local = Local::start(2);
    let top = local.mount().join("top");
    fs::create_dir(&top).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for k in 0..3 {
            let (top, stop) = (&top, &stop);
            threads.spawn(move || {
                for n in 0.. {
                    let (path, to) = (top.join(format!("{k}.{n}")), top.join(format!("{k}-{n}")));
                    fs::write(&path, pattern(n, 100)).unwrap();
                    fs::rename(&path, &to).unwrap();
                    assert!(fs::read(&to).unwrap() == pattern(n, 100));
                    if n >= 20 {
                        fs::remove_file(top.join(format!("{k}-{}", n - 20))).unwrap();
                    }
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        for n in 1..=12_u16 {
            let (code, said) = migrate(&format!("{}", n % 2), &top, &[]);
            // Files that a writer has open stay.
            assert!(code == 0 || code == PARTIAL, "{said}");
            if n % 4 == 0 {
                local.kill(n / 4 % 2);
                eventually("all servers serve", || {
                    local.servers().iter().all(|server| server["state"] == "serving")
                });
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let count = fs::read_dir(&top).unwrap().count();
    assert!((3..=60).contains(&count), "{count}");
    shell(&local.mount(), "ls -l top > /dev/null && rm -r top");
    local.stop();
    local.assert_clean();
}
