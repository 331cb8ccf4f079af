//! `redbud dump` and `redbud load` of several servers: names, links, content and places are as
//! before.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Local, links, run, server_of};
use crate::harness::{eventually, pattern, redbud, success};
use crate::objects::adopt;

/// Links, content and server of everything below a directory.
fn everything(top: &Path) -> BTreeMap<PathBuf, (u64, u64, Vec<u8>)> {
    let (mut all, mut dirs) = (BTreeMap::new(), vec![top.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let is_dir = path.is_dir();
            let content = if is_dir { Vec::new() } else { fs::read(&path).unwrap() };
            all.insert(path.clone(), (links(&path), server_of(&path), content));
            dirs.extend(is_dir.then_some(path));
        }
    }
    all
}

impl Local {
    /// Dumps all servers, formats them, and loads the dump.
    fn dump_and_load(&self) {
        let (dir, file) = (self.dir(), self.dir().join("cluster.toml"));
        let mut dump = redbud();
        let status = dump.arg("dump").arg(&file).stdout(File::create(dir.join("dump")).unwrap());
        assert!(status.status().unwrap().success());
        success(redbud().args(["mkfs", "--force"]).arg(&file));
        let mut load = redbud();
        success(load.arg("load").arg(&file).stdin(File::open(dir.join("dump")).unwrap()));
    }
}

#[test]
fn file_system_of_two_servers_is_dumped_and_loaded() {
    let sized = ["--disk-size", "64M"];
    let mut local = Local::start_with(&["--mds", "2", "--disk-size", "64M"]);
    let (parent, child) = local.nested();
    // More than its server has room for.
    fs::write(child.join("large"), pattern(1, 80 << 20)).unwrap();
    fs::write(child.join("small"), pattern(2, 100)).unwrap();
    fs::hard_link(child.join("small"), parent.join("linked")).unwrap();
    fs::rename(child.join("small"), parent.join("renamed")).unwrap();
    let top = local.mount().join("top");
    fs::create_dir_all(top.join("below")).unwrap();
    for n in 0..10 {
        fs::write(top.join(format!("file{n}")), pattern(n, 5000 * n as usize)).unwrap();
    }
    eventually("the files follow", || {
        let (code, said) = run(redbud().args(["migrate", "--mds", "1"]).arg(&top));
        assert!(code == 0 || said.contains("it is open"), "{said}");
        code == 0
    });
    let spread = local.mount().join("spread");
    fs::create_dir(&spread).unwrap();
    success(redbud().args(["set-layout", "--spread", "on"]).arg(&spread));
    (0..40).for_each(|n| fs::write(spread.join(format!("file{n}")), pattern(n, 300)).unwrap());
    let before = everything(&local.mount());
    let number = fs::metadata(&top).unwrap().ino();
    local.stop();
    local.assert_clean();
    local.dump_and_load();
    local.assert_clean();
    local.begin(&sized);
    let after = everything(&local.mount());
    for (path, (links, server, content)) in &before {
        let (links_now, server_now, content_now) = &after[path];
        assert!(links == links_now && content == content_now, "{}", path.display());
        // What has moved gets a number of the server where it is.
        let moved = path.starts_with(&top) && !path.ends_with("below");
        let server = if moved { 1 } else { *server };
        assert_eq!(*server_now, server, "{}", path.display());
    }
    assert_eq!(before.len(), after.len());
    assert_ne!(fs::metadata(&top).unwrap().ino(), number);
    // Everything is used there as before.
    fs::write(top.join("file3"), pattern(3, 70_000)).unwrap();
    fs::remove_file(parent.join("linked")).unwrap();
    assert_eq!(links(&parent.join("renamed")), 1);
    fs::remove_file(child.join("large")).unwrap();
    fs::write(child.join("large"), pattern(4, 70 << 20)).unwrap();
    assert!(fs::read(child.join("large")).unwrap() == pattern(4, 70 << 20));
    fs::remove_dir_all(&spread).unwrap();
    local.stop();
    local.assert_clean();
}

#[test]
fn files_of_two_servers_in_objects_are_dumped_and_loaded() {
    let mut local = Local::start_with(&["--mds", "2", "--osts", "2"]);
    let both = local.both();
    for (n, dir) in (1..).zip(&both) {
        fs::write(dir.join("file"), pattern(n, 3 << 20)).unwrap();
    }
    fs::hard_link(both[1].join("file"), both[0].join("linked")).unwrap();
    let before = everything(&local.mount());
    local.stop();
    local.dump_and_load();
    ["ost0.img", "ost1.img"].iter().for_each(|target| adopt(&local.dir(), target));
    local.begin(&[]);
    let after = everything(&local.mount());
    assert!(before == after, "{:?} {:?}", before.keys(), after.keys());
    fs::write(both[1].join("more"), pattern(9, 2 << 20)).unwrap();
    assert!(fs::read(both[1].join("more")).unwrap() == pattern(9, 2 << 20));
    assert!(everything(&local.mount())[&both[0].join("linked")] == before[&both[0].join("linked")]);
    local.stop();
    local.assert_clean();
}

#[test]
fn dump_of_one_server_says_what_it_leaves_out_and_load_which_servers_it_needs() {
    let mut local = Local::start(2);
    local.nested();
    local.stop();
    let (code, said) = run(redbud().args(["load", "--server", "1"]).arg(local.dir()));
    assert!(code == 2 && said.contains("only that of server 0"), "{said}");
    let (code, said) = run(redbud().args(["dump", "--server", "1"]).arg(local.dir()));
    assert!(code == 3 && said.contains("local, only server 1: "), "{said}");
    let (code, said) = run(redbud().args(["dump", "--server", "2"]).arg(local.dir()));
    assert!(code == 2 && said.contains("there is no server 2"), "{said}");
    let (dump, file) = (local.dir().join("dump"), local.dir().join("cluster.toml"));
    success(redbud().arg("dump").arg(&file).stdout(File::create(&dump).unwrap()));
    let mut load = redbud();
    load.args(["load", "--server", "0"]).arg(&file).stdin(File::open(&dump).unwrap());
    let (code, said) = run(&mut load);
    assert!(code != 0 && said.contains("the dump is of 2 metadata servers"), "{said}");
    // It was not touched.
    local.assert_clean();
}
