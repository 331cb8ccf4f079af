//! A server whose data zone is full gets space of another one.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

use serde_json::Value;

use super::{Local, run, server_of};
use crate::harness::{pattern, redbud, success};

/// Bytes of each server's data zone.
const ZONE: u64 = 64 << 20;
/// Bytes of a file that no zone has room for.
const LARGE: usize = 96 << 20;

/// Writes until there is no room. Returns how many bytes that were.
fn fill(path: &Path) -> u64 {
    let (mut file, mut bytes, part) = (File::create(path).unwrap(), 0, vec![7; 1 << 20]);
    loop {
        match file.write_all(&part).and_then(|()| file.sync_data()) {
            Ok(()) => bytes += part.len() as u64,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
                return bytes;
            }
        }
    }
}

#[test]
fn file_larger_than_the_zone_of_its_server_is_written_and_kept() {
    let size = ZONE.to_string();
    let sized = ["--disk-size", &size];
    let mut local = Local::start_with(&["--mds", "2", "--disk-size", &size]);
    let (_, child) = local.nested();
    assert_eq!(server_of(&child), 1);
    let (large, content) = (child.join("large"), pattern(1, LARGE));
    fs::write(&large, &content).unwrap();
    File::open(&large).unwrap().sync_all().unwrap();
    assert!(fs::read(&large).unwrap() == content);
    let (code, said) = run(redbud().args(["pag", "list"]).arg(local.dir()));
    assert!(code == 0 && said.contains("lent by server 0") && said.contains("M lent"), "{said}");
    let (code, said) = run(redbud().args(["pag", "list", "--json"]).arg(local.dir()));
    let report: Value =
        serde_json::from_str(said.lines().find(|it| it.starts_with('{')).unwrap()).unwrap();
    let lent = report["pags"].as_array().unwrap().iter().filter_map(|it| it["bytes_lent"].as_u64());
    assert!(code == 0 && lent.sum::<u64>() >= LARGE as u64 - ZONE, "{said}");
    // Nobody has room for what lies there.
    let (code, said) = run(redbud().args(["pag", "drain", "0"]).arg(local.dir()));
    assert!(code == 3 && said.contains("no other data zone has room"), "{said}");
    success(redbud().args(["pag", "drain", "--undo", "0"]).arg(local.dir()));
    let (_, said) = run(redbud().args(["pag", "list"]).arg(local.dir()));
    assert!(!said.contains("draining") && !said.contains("paused"), "{said}");
    local.stop();
    local.assert_clean();
    let (code, said) = run(redbud().args(["dump", "--server", "1"]).arg(local.dir()));
    assert!(code != 0 && said.contains("lent data blocks"), "{said}");
    local.begin(&sized);
    assert!(fs::read(&large).unwrap() == content, "after all have started again");
    // Only when nobody has more to lend there is no room.
    let more = fill(&child.join("more"));
    assert!(LARGE as u64 + more > ZONE + ZONE / 2, "{more}");
    fs::write(local.mount().join("small"), pattern(2, 1 << 20)).unwrap();
    assert!(fs::read(&large).unwrap() == content);
    fs::remove_file(child.join("more")).unwrap();
    fs::write(child.join("again"), pattern(3, 1 << 20)).unwrap();
    local.crash();
    local.begin(&sized);
    assert!(fs::read(&large).unwrap() == content, "after all were killed");
    local.stop();
    local.assert_clean();
}

impl Local {
    /// Gives a server a new device, and names it in the cluster's file.
    fn add_device(&self, server: &str, size: u64) -> String {
        let path = self.dir().join(format!("more{server}.img"));
        File::create(&path).unwrap().set_len(size).unwrap();
        let mut add = redbud();
        add.args(["pag", "add", "--json", "--server", server]).arg(&path).arg(self.dir());
        let added: Value = serde_json::from_str(&success(&mut add)).unwrap();
        let file = self.dir().join("cluster.toml");
        let text = fs::read_to_string(&file).unwrap();
        // A table of the file ends where the next one begins.
        fs::write(&file, format!("{text}\n{}", added["next"].as_str().unwrap())).unwrap();
        added["pag"].to_string()
    }

    fn zones(&self) -> Vec<Value> {
        let list = success(redbud().args(["pag", "list", "--json"]).arg(self.dir()));
        let report: Value = serde_json::from_str(&list).unwrap();
        report["pags"].as_array().unwrap().clone()
    }
}

#[test]
fn zone_that_was_lent_is_emptied_and_what_is_free_goes_back() {
    let size = ZONE.to_string();
    let sized = ["--disk-size", &size];
    let mut local = Local::start_with(&["--mds", "2", "--disk-size", &size]);
    let (parent, child) = local.nested();
    let (large, content) = (child.join("large"), pattern(1, LARGE));
    fs::write(&large, &content).unwrap();
    fs::write(parent.join("own"), pattern(2, 5 << 20)).unwrap();
    let own = parent.join("own");
    success(redbud().arg("sync").arg(local.mount()));
    assert!(local.zones().iter().any(|zone| zone["lent_by"] == 0));

    let (code, said) = run(redbud().args(["pag", "add", "/nowhere"]).arg(local.dir()));
    assert!(code == 2 && said.contains("--server 0 to --server 1"), "{said}");
    let (code, said) =
        run(redbud().args(["pag", "add", "/nowhere", "--server", "2"]).arg(local.dir()));
    assert!(code == 2 && said.contains("there is no server 2"), "{said}");
    // The device of another server is none.
    let other = local.dir().join("data1.img");
    let (code, said) =
        run(redbud().args(["pag", "add", "--server", "0"]).arg(&other).arg(local.dir()));
    assert!(code != 0 && said.contains("which is another metadata server's"), "{said}");
    assert_eq!(
        (local.add_device("0", 4 * ZONE), local.add_device("1", 4 * ZONE)),
        ("2".into(), "3".into())
    );
    let (code, said) = run(redbud().args(["pag", "drain", "0"]).arg(local.dir()));
    assert!(code == 0 && said.contains("it is empty"), "{said}");
    let zones = local.zones();
    assert!(zones.iter().all(|zone| zone["lent_by"].is_null() && zone["bytes_lent"].is_null()));
    let of = |id: u64| zones.iter().find(|zone| zone["pag"] == id).unwrap().clone();
    assert_eq!(
        (of(0)["state"].as_str(), of(0)["bytes_free"].clone()),
        (Some("drained"), of(0)["bytes"].clone())
    );
    assert_eq!((of(2)["mds"].as_u64(), of(3)["mds"].as_u64()), (Some(0), Some(1)));
    assert!(fs::read(&large).unwrap() == content && fs::read(&own).unwrap() == pattern(2, 5 << 20));

    local.stop();
    local.assert_clean();
    local.begin(&sized);
    assert!(fs::read(&large).unwrap() == content && fs::read(&own).unwrap() == pattern(2, 5 << 20));
    // It is used and lent again.
    success(redbud().args(["pag", "drain", "--undo", "0"]).arg(local.dir()));
    let (code, said) = run(redbud().arg("rebalance").arg(local.dir()));
    assert!(code == 0 && said.contains("data zone 3"), "{said}");
    let much = pattern(3, 5 * ZONE as usize);
    fs::write(child.join("much"), &much).unwrap();
    assert!(local.zones().iter().any(|zone| zone["lent_by"] == 0));
    assert!(fs::read(child.join("much")).unwrap() == much && fs::read(&large).unwrap() == content);
    local.crash();
    local.begin(&sized);
    assert!(fs::read(&large).unwrap() == content);
    local.stop();
    local.assert_clean();
}
