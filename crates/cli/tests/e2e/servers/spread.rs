//! Directories whose files are spread over the servers by their names.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Local, server_of};
use crate::harness::{redbud, shell, success};

/// Files that each of two mounts makes.
const EACH: usize = 150;

/// A second mount of the same file system.
struct Second(PathBuf);

impl Second {
    fn of(local: &Local) -> Second {
        let path = local.scratch.path().join("second");
        fs::create_dir(&path).unwrap();
        let source = shell(local.scratch.path(), "findmnt -n -o SOURCE mnt");
        success(redbud().arg("mount").arg(source.trim()).arg(&path));
        Second(path)
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = redbud().arg("umount").arg(&self.0).status();
    }
}

/// Does the directory's first report say that it is spread, and how many files has each server?
fn layout(path: &Path) -> (bool, BTreeMap<String, u64>) {
    let json = success(redbud().args(["layout", "--json"]).arg(path));
    let report: Value = serde_json::from_str(&json).unwrap();
    let tree = &report["directories"][0];
    let servers = serde_json::from_value(tree["servers"].clone()).unwrap();
    (tree["spread"].as_bool().unwrap(), servers)
}

fn make(dir: &Path, prefix: &str) {
    for at in 0..EACH {
        let path = dir.join(format!("{prefix}{at}"));
        fs::write(&path, format!("{prefix}{at}")).unwrap();
    }
}

#[test]
fn files_of_a_spread_directory_lie_at_all_servers_and_are_seen_by_all_mounts() {
    let mut local = Local::start(3);
    let dir = local.mount().join("huge");
    fs::create_dir(&dir).unwrap();
    assert_eq!(layout(&dir), (false, BTreeMap::new()));
    success(redbud().args(["set-layout", "--spread", "on"]).arg(&dir));
    let second = Second::of(&local);
    let other = second.0.join("huge");
    std::thread::scope(|scope| {
        scope.spawn(|| make(&dir, "a"));
        scope.spawn(|| make(&other, "b"));
    });
    let names: Vec<String> = ["a", "b"]
        .iter()
        .flat_map(|prefix| (0..EACH).map(move |at| format!("{prefix}{at}")))
        .collect();
    for seen in [&dir, &other] {
        assert_eq!(fs::read_dir(seen).unwrap().count(), names.len());
        for name in &names {
            assert_eq!(fs::read_to_string(seen.join(name)).unwrap(), *name);
        }
    }
    let (spread, servers) = layout(&dir);
    assert!(spread && servers.len() == 3, "{servers:?}");
    assert!(servers.values().all(|count| (70..130).contains(count)), "{servers:?}");
    let error = fs::File::create_new(other.join("a0")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    // An open file outlives its name, at whichever server it lies.
    let open: Vec<fs::File> =
        (0..9).map(|at| fs::File::open(dir.join(format!("a{at}"))).unwrap()).collect();
    for at in 0..9 {
        fs::remove_file(other.join(format!("a{at}"))).unwrap();
    }
    for (at, file) in (0..).zip(&open) {
        let text = std::io::read_to_string(file).unwrap();
        assert_eq!(text, format!("a{at}"));
    }
    drop(open);
    fs::rename(dir.join("b0"), dir.join("b1")).unwrap();
    assert_eq!(fs::read_to_string(other.join("b1")).unwrap(), "b0");
    assert_eq!(server_of(&dir), 0);
    drop(second);
    local.restart();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), names.len() - 10);
    shell(&local.mount(), "rm -r huge");
    local.stop();
    local.assert_clean();
}

#[test]
fn directory_is_spread_by_itself_when_it_has_many_names() {
    let mut local = Local::start(2);
    local.stop();
    let file = local.dir().join("cluster.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen("[server]\n", "[server]\nspread_at = 40\n", 1)).unwrap();
    local.begin(&[]);
    let dir = local.mount().join("huge");
    fs::create_dir(&dir).unwrap();
    let write = |range: std::ops::Range<u32>| {
        range.for_each(|at| fs::write(dir.join(at.to_string()), "x").unwrap());
    };
    write(0..40);
    assert_eq!(layout(&dir), (true, BTreeMap::from([("0".to_owned(), 40)])));
    write(40..80);
    assert!(layout(&dir).1["1"] > 8);
    (0..76).for_each(|at| fs::remove_file(dir.join(at.to_string())).unwrap());
    assert!(!layout(&dir).0);
    // What was spread stays where it is.
    let there = layout(&dir).1.get("1").copied().unwrap_or_default();
    write(80..100);
    assert_eq!(layout(&dir).1.get("1").copied().unwrap_or_default(), there);
    local.stop();
    local.assert_clean();
}
