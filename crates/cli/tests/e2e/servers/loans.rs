//! A server whose data zone is full gets space of another one.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

use serde_json::Value;

use super::{Local, run, server_of};
use crate::harness::{pattern, redbud};

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
    let (code, said) = run(redbud().args(["pag", "drain", "0"]).arg(local.dir()));
    assert!(code != 0 && said.contains("lent to another metadata server"), "{said}");
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
