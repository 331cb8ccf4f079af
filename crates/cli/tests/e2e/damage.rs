//! Damaged and foreign devices are refused by name; no damage makes anything panic.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Output};

use crate::harness::{Cluster, Spec, describe, redbud};

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let said = describe(&output);
    assert!(!said.contains("panicked"), "{said}");
    output
}

fn overwrite(cluster: &Cluster, file: &str, offset: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(cluster.dir.join(file)).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

/// The server refuses to start, and says `expected`.
fn assert_server_refuses(cluster: &Cluster, expected: &str) {
    let output = run(Command::new("timeout")
        .args(["60", env!("CARGO_BIN_EXE_redbud"), "mds"])
        .arg(&cluster.config));
    let said = describe(&output);
    assert!(!output.status.success() && output.status.code() != Some(124), "{said}");
    assert!(said.contains(expected), "expected `{expected}` in: {said}");
}

#[test]
fn superblock_needs_one_of_its_two_copies() {
    let mut cluster = Cluster::formatted(&Spec::default());
    // The last block of the device is the label's.
    let last = fs::metadata(cluster.dir.join("metadata.img")).unwrap().len() - 2 * 4096;
    for (round, damaged) in [4096, last].into_iter().enumerate() {
        overwrite(&cluster, "metadata.img", damaged, &[0xa5; 4096]);
        cluster.start_server();
        cluster.mount();
        fs::write(cluster.path(round).join("f"), b"works").unwrap();
        cluster.unmount(round);
        cluster.stop_server();
        cluster.assert_clean();
    }
    overwrite(&cluster, "metadata.img", 4096, &[0xa5; 4096]);
    overwrite(&cluster, "metadata.img", last, &[0xa5; 4096]);
    assert_server_refuses(&cluster, "metadata.img");
}

#[test]
fn scrub_rewrites_damaged_metadata_while_the_mount_is_used() {
    let mut cluster = Cluster::formatted(&Spec::default());
    cluster.start_server();
    cluster.mount();
    for n in 0..300 {
        fs::write(cluster.root().join(format!("f{n}")), b"works").unwrap();
    }
    cluster.unmount(0);
    cluster.stop_server();
    cluster.start_server();
    cluster.remount(0, &[]);
    // Cached, so that the server knows what should be there.
    assert_eq!(fs::read_dir(cluster.root()).unwrap().count(), 300);
    let scrub = |arguments: &[&str]| {
        let output = run(redbud().arg("scrub").arg(cluster.root()).args(arguments));
        (output.status.code(), describe(&output))
    };
    let (code, said) = scrub(&[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("0 damaged blocks rewritten, 0 findings"), "{said}");
    let image = fs::read(cluster.dir.join("metadata.img")).unwrap();
    // The log lies in front: the last place is the block's home.
    let name = image.windows(4).rposition(|bytes| bytes == b"f123").unwrap() as u64;
    overwrite(&cluster, "metadata.img", name, b"x");
    let (code, said) = scrub(&["--rate", "64M", "--json"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("\"written_anew\":1"), "{said}");
    assert_eq!(fs::read(cluster.root().join("f123")).unwrap(), b"works");
    // What reads the device itself says that it is served, and what there is instead.
    let checked = run(redbud().arg("fsck").arg(&cluster.config));
    assert_eq!(checked.status.code(), Some(8));
    assert!(describe(&checked).contains("redbud scrub"), "{}", describe(&checked));
    let dumped = run(redbud().arg("dump").arg(&cluster.config));
    assert!(describe(&dumped).contains("stop its server first"), "{}", describe(&dumped));
    let (code, said) = scrub(&["--rate", "1K", "--background"]);
    assert!(code == Some(0) && said.contains("a scrub runs"), "{said}");
    let (code, said) = scrub(&["--stop"]);
    assert!(code == Some(0) && said.contains("stopped before its end"), "{said}");
    cluster.unmount(0);
    cluster.stop_server();
    assert!(cluster.server_log().contains("has been rewritten"));
    cluster.assert_clean();
}

#[test]
fn metadata_device_without_label_is_refused_until_repaired() {
    let cluster = Cluster::formatted(&Spec::default());
    let image = cluster.dir.join("metadata.img");
    let whole = fs::read(&image).unwrap()[..4096].to_vec();
    let end = fs::metadata(&image).unwrap().len() - 4096;
    overwrite(&cluster, "metadata.img", 0, &[0; 4096]);
    overwrite(&cluster, "metadata.img", end, &[0; 4096]);
    assert_server_refuses(&cluster, "metadata.img");
    let text = fs::read_to_string(&cluster.config).unwrap();
    let name = text.lines().find(|line| line.starts_with("name")).unwrap();
    fs::write(&cluster.config, text.replace(name, "name = \"another\"")).unwrap();
    let output = run(redbud().args(["fsck", "--repair"]).arg(&cluster.config));
    let said = describe(&output);
    assert_eq!(output.status.code(), Some(8), "{said}");
    assert!(said.contains("name the right device"), "{said}");
    fs::write(&cluster.config, text).unwrap();
    let output = run(redbud().arg("fsck").arg(&cluster.config));
    assert_eq!(output.status.code(), Some(4), "{}", describe(&output));
    assert!(describe(&output).contains("DamagedLabel"), "{}", describe(&output));
    assert_eq!(fs::read(&image).unwrap()[..4096], [0; 4096]);
    let output = run(redbud().args(["fsck", "--repair"]).arg(&cluster.config));
    assert_eq!(output.status.code(), Some(1), "{}", describe(&output));
    assert_eq!(fs::read(&image).unwrap()[..4096], whole);
    cluster.assert_clean();
}

#[test]
fn one_damaged_bit_of_label_or_roots_loses_nothing() {
    let mut cluster = Cluster::formatted(&Spec::default());
    overwrite(&cluster, "metadata.img", 0, b"S");
    let output = run(redbud().arg("mkfs").arg(&cluster.config));
    let said = describe(&output);
    assert!(!output.status.success() && said.contains("formatted already"), "{said}");
    let output = run(redbud().arg("fsck").arg(&cluster.config));
    let said = describe(&output);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(
        said.contains("a copy of the label is damaged") && said.contains("no file is at risk"),
        "{said}"
    );
    cluster.start_server();
    cluster.mount();
    fs::write(cluster.root().join("f"), b"works").unwrap();
    cluster.unmount(0);
    cluster.stop_server();
    assert!(cluster.server_log().contains("the label in block 0 is damaged"));

    // The block begins with its checksum: any other byte there is wrong.
    let byte = fs::read(cluster.dir.join("metadata.img")).unwrap()[2 * 4096];
    overwrite(&cluster, "metadata.img", 2 * 4096, &[!byte]);
    let said = describe(&run(redbud().arg("fsck").arg(&cluster.config)));
    assert!(said.contains("--repair") && said.contains("DAMAGED"), "{said}");
    assert_eq!(said.matches("metadata block 2:").count(), 1, "{said}");
    cluster.start_server();
    cluster.remount(0, &[]);
    assert_eq!(fs::read(cluster.root().join("f")).unwrap(), b"works");
    cluster.unmount(0);
    cluster.stop_server();
    assert!(cluster.server_log().contains("metadata block 2 is damaged"));
    // The roots were written home again, and the server wrote its label anew.
    cluster.assert_clean();

    fs::write(cluster.dir.join("metadata.img"), b"nothing").unwrap();
    let output = run(redbud().args(["fsck", "--json"]).arg(&cluster.config));
    assert_eq!(output.status.code(), Some(8), "{}", describe(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["version"], &report["clean"]), (&1.into(), &false.into()));
    let text = report["error"]["text"].as_str().unwrap();
    assert!(text.contains("metadata.img"), "{text}");
}

#[test]
fn fsck_repairs_damage_with_exit_status_of_fsck_8_and_lists_losses() {
    let mut cluster = Cluster::mounted();
    let root = cluster.root();
    fs::create_dir(root.join("dir")).unwrap();
    for file in 0..50 {
        fs::write(root.join(format!("dir/f{file}")), b"content").unwrap();
    }
    let dir = fs::metadata(root.join("dir")).unwrap();
    cluster.unmount(0);
    cluster.stop_server();
    overwrite(&cluster, "metadata.img", 0, b"S");
    let output = run(redbud().args(["fsck", "--repair"]).arg(&cluster.config));
    let said = describe(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("repaired: the label"), "{said}");
    cluster.assert_clean();
    let output = run(redbud().args(["fsck", "-y", "--json"]).arg(&cluster.config));
    assert_eq!(output.status.code(), Some(0), "{}", describe(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["repair"]["found"], serde_json::json!([]));
    cluster.start_server();
    cluster.remount(0, &[]);
    assert_eq!(fs::read(cluster.root().join("dir/f49")).unwrap(), b"content");
    cluster.unmount(0);
    cluster.stop_server();

    // The block with that name, and the log, which has it, too.
    let log = 3 * 4096..3 * 4096 + (16 << 20);
    let image = fs::read(cluster.dir.join("metadata.img")).unwrap();
    let named = |block: &[u8]| block.windows(3).any(|bytes| bytes == b"f49");
    let at = image[log.end..].chunks_exact(4096).position(named).unwrap() * 4096 + log.end;
    overwrite(&cluster, "metadata.img", at as u64, &[0; 4096]);
    overwrite(&cluster, "metadata.img", log.start as u64, &vec![0; log.len()]);
    // A dump has all else.
    let output = run(redbud().arg("dump").arg(&cluster.config));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let block = format!("names of \"/dir\" (inode {}): metadata block {}", dir.ino(), at / 4096);
    assert!(said.contains(&block) && said.contains("RB-DUMP-PARTIAL"), "{said}");
    assert!(output.stdout.windows(3).any(|bytes| bytes == b"f12"));
    let output = run(redbud().args(["fsck", "--repair", "--json"]).arg(&cluster.config));
    assert_eq!(output.status.code(), Some(1 | 64), "{}", describe(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let lost = report["repair"]["lost"].as_array().unwrap();
    let said = |kind: &str, path: &str| {
        lost.iter().any(|lost| lost["kind"] == kind && (path.is_empty() || lost["path"] == path))
    };
    assert!(said("Slots", "/dir") && said("Inodes", ""), "{lost:?}");
    // Repair also reported it at once.
    let at_once = String::from_utf8(output.stderr).unwrap();
    assert!(at_once.contains("LOST so far: up to 8 names of directory inode"), "{at_once}");
    cluster.assert_clean();
}

#[test]
fn dump_and_load_rebuild_the_tree_and_path_finds_inodes() {
    let mut cluster = Cluster::mounted();
    let root = cluster.root();
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/b/file"), vec![7; 300_000]).unwrap();
    fs::hard_link(root.join("a/b/file"), root.join("hard")).unwrap();
    std::os::unix::fs::symlink("a/b/file", root.join("symlink")).unwrap();
    let number = fs::metadata(root.join("a/b/file")).unwrap().ino();
    cluster.unmount(0);
    cluster.stop_server();
    let said = describe(&run(redbud().arg("path").arg(&cluster.config).arg(number.to_string())));
    assert!(said.contains("\t/a/b/file"), "{said}");
    assert!(!said.contains("/hard"), "{said}");
    let all = run(redbud().args(["path", "--all"]).arg(&cluster.config).arg(number.to_string()));
    assert_eq!(all.status.code(), Some(0), "{}", describe(&all));
    let lines = String::from_utf8(all.stdout).unwrap();
    let paths: Vec<_> = lines.lines().map(|line| line.split_once('\t').unwrap().1).collect();
    assert_eq!(paths, ["/hard", "/a/b/file"]);
    let dump = |to: &str| {
        let path = cluster.dir.join(to);
        let out = fs::File::create(&path).unwrap();
        let output = redbud().arg("dump").arg(&cluster.config).stdout(out).output().unwrap();
        assert!(output.status.success(), "{}", describe(&output));
        fs::read(path).unwrap()
    };
    let first = dump("first");
    let load = || {
        let input = fs::File::open(cluster.dir.join("first")).unwrap();
        redbud().arg("load").arg(&cluster.config).stdin(input).output().unwrap()
    };
    let said = describe(&load());
    assert!(said.contains("was used already"), "{said}");
    let output = run(redbud().args(["mkfs", "--force"]).arg(&cluster.config));
    assert!(output.status.success(), "{}", describe(&output));
    let output = load();
    assert!(output.status.success(), "{}", describe(&output));
    // The head names the data zones by the UUIDs that mkfs gave them.
    let behind_head = |stream: &[u8]| {
        let head = u32::from_le_bytes(stream[..4].try_into().unwrap()) as usize;
        stream[9 + head..].to_vec()
    };
    let second = dump("second");
    assert!(second.len() == first.len() && behind_head(&second) == behind_head(&first));
    cluster.assert_clean();
    cluster.start_server();
    cluster.remount(0, &[]);
    let root = cluster.root();
    assert_eq!(fs::read(root.join("symlink")).unwrap(), vec![7; 300_000]);
    assert_eq!(fs::metadata(root.join("hard")).unwrap().nlink(), 2);
}

/// Zeros the log, whose place the superblock tells (FORMAT 3.2): it has nothing any more of what
/// lies at home.
fn forget_log(cluster: &Cluster) {
    let image = fs::File::open(cluster.dir.join("metadata.img")).unwrap();
    let word = |at: u64| {
        let mut bytes = [0; 8];
        image.read_exact_at(&mut bytes, 4096 + at).unwrap();
        u64::from_le_bytes(bytes)
    };
    let (first, blocks) = (word(80), word(88));
    overwrite(cluster, "metadata.img", first * 4096, &vec![0; blocks as usize * 4096]);
}

/// The one block of the table of data zones: a leaf with keys of 2 bytes and values of 48 (FORMAT
/// 5).
fn table_of_zones(cluster: &Cluster) -> u64 {
    let image = fs::read(cluster.dir.join("metadata.img")).unwrap();
    let is_it = |(at, block): &(usize, &[u8])| {
        block[8..16] == (*at as u64).to_le_bytes()
            && (block[4], block[32], block[33], block[34]) == (4, 0, 2, 64)
    };
    let found: Vec<_> = image.chunks(4096).enumerate().filter(is_it).collect();
    assert_eq!(found.len(), 1);
    found[0].0 as u64
}

#[test]
fn lost_data_zone_table_is_rebuilt_from_device_labels() {
    let mut cluster = Cluster::mounted();
    let root = cluster.root();
    fs::create_dir(root.join("dir")).unwrap();
    for file in 0..30u8 {
        fs::write(root.join(format!("dir/f{file}")), vec![file; 100_000]).unwrap();
    }
    cluster.unmount(0);
    cluster.stop_server();
    let dump = || {
        let output = redbud().arg("dump").arg(&cluster.config).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), output.stdout, said)
    };
    let whole = dump();
    assert_eq!(whole.0, Some(0), "{}", whole.2);
    forget_log(&cluster);
    cluster.assert_clean();
    let table = table_of_zones(&cluster);
    let (seek, of) =
        (format!("seek={table}"), format!("of={}/metadata.img", cluster.dir.display()));
    let dd = ["if=/dev/urandom", &of, "bs=4096", "count=1", &seek, "conv=notrunc"];
    assert!(run(Command::new("dd").args(dd)).status.success());
    assert_server_refuses(&cluster, &format!("metadata block {table} is damaged"));
    let output = run(redbud().arg("fsck").arg(&cluster.config));
    let said = describe(&output);
    assert!(output.status.code() == Some(4) && said.contains("fsck --repair"), "{said}");

    // One of the labels is not to be had.
    let (device, away) = (cluster.dir.join("data1.img"), cluster.dir.join("away"));
    fs::rename(&device, &away).unwrap();
    let (code, dumped, said) = dump();
    assert!(
        code == Some(3) && said.contains("data zone 1") && said.contains("data1.img"),
        "{said}"
    );
    assert!(dumped.len() > 1000 && dumped.len() < whole.1.len(), "{}", dumped.len());
    let output = run(redbud().args(["fsck", "--repair"]).arg(&cluster.config));
    let said = describe(&output);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("WANTED: data zone 1") && said.contains("data1.img"), "{said}");
    assert!(said.contains("[[data]]") && said.contains("left until then"), "{said}");
    assert!(!said.contains("backup") && !said.contains("cannot be repaired"), "{said}");
    let output = run(redbud().args(["fsck", "--repair", "--json"]).arg(&cluster.config));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["repair"]["wanted"][0].as_str().unwrap().contains("data1.img"), "{report}");

    fs::rename(&away, &device).unwrap();
    let (code, dumped, said) = dump();
    assert!(code == Some(0) && dumped == whole.1, "{said}");
    let output = run(redbud().args(["fsck", "--repair"]).arg(&cluster.config));
    let said = describe(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the table of data zones was built anew"), "{said}");
    assert!(!said.contains("LOST") && !said.contains("WANTED"), "{said}");
    cluster.assert_clean();
    assert!(dump().1 == whole.1);
    cluster.start_server();
    cluster.remount(0, &[]);
    for file in 0..30u8 {
        assert!(fs::read(root.join(format!("dir/f{file}"))).unwrap() == vec![file; 100_000]);
    }
    fs::write(root.join("more"), vec![7; 5_000_000]).unwrap();
    cluster.finish();
}

#[test]
fn wrong_size_in_the_data_zone_table_loses_nothing() {
    let mut cluster = Cluster::mounted();
    let root = cluster.root();
    for file in 0..30u8 {
        fs::write(root.join(format!("f{file}")), vec![file; 100_000]).unwrap();
    }
    cluster.unmount(0);
    cluster.stop_server();
    forget_log(&cluster);
    let at = table_of_zones(&cluster) * 4096;
    let image = fs::File::open(cluster.dir.join("metadata.img")).unwrap();
    let mut table = vec![0; 4096];
    image.read_exact_at(&mut table, at).unwrap();
    // The last entry of the leaf: ⟨zone 2, UUIDs 32, start 8, blocks 8, …⟩ (FORMAT 5, 10).
    let count = usize::from(u16::from_le_bytes([table[36], table[37]]));
    let blocks = 48 + (count - 1) * 66 + 42;
    let size = u64::from_le_bytes(table[blocks..blocks + 8].try_into().unwrap());
    for wrong in [20, size + 5000] {
        let mut block = table.clone();
        block[blocks..blocks + 8].copy_from_slice(&wrong.to_le_bytes());
        let crc = types::crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
        overwrite(&cluster, "metadata.img", at, &block);
        let output = run(redbud().args(["fsck", "--repair"]).arg(&cluster.config));
        let said = describe(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("WrongZone") && said.contains("as its label says"), "{said}");
        assert!(!said.contains("LOST"), "{said}");
        cluster.assert_clean();
        forget_log(&cluster);
    }
    cluster.start_server();
    cluster.remount(0, &[]);
    for file in 0..30u8 {
        assert!(fs::read(root.join(format!("f{file}"))).unwrap() == vec![file; 100_000]);
    }
    cluster.finish();
}

#[test]
fn lost_data_label_is_rewritten_if_its_zone_is_known_or_given() {
    let mut cluster = Cluster::mounted();
    let file = cluster.root().join("file");
    fs::write(&file, vec![9; 100_000]).unwrap();
    cluster.unmount(0);
    cluster.stop_server();
    let mut label = vec![0; 4096];
    let device = fs::File::open(cluster.dir.join("data1.img")).unwrap();
    device.read_exact_at(&mut label, 0).unwrap();
    let fsck = |more: &[&str], code: i32| {
        let output = run(redbud().arg("fsck").args(more).arg(&cluster.config));
        let said = describe(&output);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {said}");
        said
    };
    let is_whole = || {
        let mut now = vec![0; 4096];
        device.read_exact_at(&mut now, 0).unwrap();
        now == label
    };
    let end = device.metadata().unwrap().len() - 4096;
    overwrite(&cluster, "data1.img", 200, &[1]);
    overwrite(&cluster, "data1.img", end + 200, &[1]);
    let said = fsck(&[], 4);
    assert!(said.contains("DamagedDataLabel") && said.contains("data1.img"), "{said}");
    let said = fsck(&["--repair"], 1);
    assert!(is_whole() && said.contains("written anew"), "{said}");
    fsck(&[], 0);

    overwrite(&cluster, "data1.img", 0, &[0; 4096]);
    overwrite(&cluster, "data1.img", end, &[0; 4096]);
    assert_server_refuses(&cluster, "data1.img");
    let said = fsck(&["--repair"], 4);
    assert!(!is_whole() && said.contains("--relabel 1"), "{said}");
    assert!(!said.contains("backup"), "{said}");
    let said = fsck(&["--repair", "--relabel", "2"], 16);
    assert!(said.contains("no data zone 2"), "{said}");
    fsck(&["--relabel", "1"], 16);
    fsck(&["--repair", "--relabel", "1"], 1);
    assert!(is_whole());
    cluster.start_server();
    cluster.remount(0, &[]);
    assert!(fs::read(&file).unwrap() == vec![9; 100_000]);
    cluster.finish();
}

/// A zone that the cluster's file lacks may have been added while this server stood by.
#[test]
fn zones_of_the_file_system_and_of_its_file_are_compared() {
    let mut cluster = Cluster::formatted(&Spec::default());
    let whole = fs::read_to_string(&cluster.config).unwrap();
    let more = format!("{whole}[[data]]\npath = \"data2.img\"\n");
    fs::write(&cluster.config, more).unwrap();
    assert_server_refuses(&cluster, "has no data zone 2");
    let last = whole.rfind("[[data]]").unwrap();
    fs::write(&cluster.config, &whole[..last]).unwrap();
    cluster.start_server();
    let log = cluster.server_log();
    assert!(log.contains("has a data zone 1") && log.contains("does not name"), "{log}");
    cluster.stop_server();
}

#[test]
fn page_about_findings_equals_fsck_list() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/FSCK.md");
    let listed = describe(&run(redbud().args(["fsck", "--list"])));
    let table = listed.lines().filter(|line| line.starts_with('|')).collect::<Vec<_>>().join("\n");
    assert!(table.lines().count() > 30, "{listed}");
    assert!(fs::read_to_string(page).unwrap().contains(&table), "docs/FSCK.md is behind:\n{table}");
}

#[test]
fn data_device_of_another_file_system_is_refused() {
    let mut cluster = Cluster::formatted(&Spec::default());
    let mut own = vec![0; 4096];
    let data = fs::File::open(cluster.dir.join("data0.img")).unwrap();
    data.read_exact_at(&mut own, 0).unwrap();
    let foreign = cluster.dir.join("foreign.img");
    let mut label = own.clone();
    // Another file system's UUID, under a checksum that does not fit any more either way.
    label[16] ^= 1;
    fs::File::create(&foreign).unwrap().set_len(data.metadata().unwrap().len()).unwrap();
    let both = |file: &str, label: &[u8]| {
        let end = data.metadata().unwrap().len() - 4096;
        overwrite(&cluster, file, 0, label);
        overwrite(&cluster, file, end, label);
    };
    both("foreign.img", &label);
    both("data0.img", &label);
    assert_server_refuses(&cluster, "data0.img");
    // A whole label of another one: that is no damage of this one's metadata, and fsck warns of it.
    let other = Cluster::formatted(&Spec::default());
    let mut whole = vec![0; 4096];
    fs::File::open(other.dir.join("data0.img")).unwrap().read_exact_at(&mut whole, 0).unwrap();
    overwrite(&cluster, "data0.img", 0, &whole);
    assert_server_refuses(&cluster, "data0.img");
    both("data0.img", &whole);
    assert_server_refuses(&cluster, "belongs to the file system");
    for (json, expected) in
        [(false, "is not data zone 0 of this file"), (true, "\"data_foreign\":[\"")]
    {
        let output = run(redbud().arg("fsck").arg(&cluster.config).args(json.then_some("--json")));
        let said = describe(&output);
        assert!(output.status.success() && said.contains(expected), "{said}");
    }
    both("data0.img", &own);

    cluster.start_server();
    let mount = cluster.dir.join("mnt");
    fs::create_dir(&mount).unwrap();
    let metadata = cluster.dir.join("metadata.img");
    for (wrong, why) in [(&foreign, "foreign.img"), (&metadata, "metadata")] {
        let log = cluster.dir.join("refused.log");
        let option = format!("data0={},log={}", wrong.display(), log.display());
        let mut command = redbud();
        command.args(["mount", "-o", &option]).arg(&cluster.source).arg(&mount);
        let output = run(&mut command);
        assert_eq!(output.status.code(), Some(32), "{}", describe(&output));
        assert!(describe(&output).contains(why), "{}", describe(&output));
    }
}

#[test]
fn random_metadata_damage_is_found_and_never_crashes_fsck() {
    let mut cluster = Cluster::mounted();
    let root = cluster.root();
    for dir in 0..20 {
        fs::create_dir(root.join(format!("d{dir}"))).unwrap();
        for file in 0..50 {
            fs::write(root.join(format!("d{dir}/f{file}")), b"content").unwrap();
        }
    }
    cluster.unmount(0);
    cluster.stop_server();
    cluster.assert_clean();
    let path = cluster.dir.join("metadata.img");
    let image = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // Blocks behind the log that hold something: label, superblock and log come first.
    let mut block = vec![0u8; 4096];
    let mut used = Vec::new();
    for number in 4200..20_000u64 {
        image.read_exact_at(&mut block, number * 4096).unwrap();
        if block.iter().any(|&byte| byte != 0) {
            used.push(number);
        }
    }
    assert!(!used.is_empty(), "no metadata was written home");
    let mut found = 0;
    for (round, number) in used.iter().step_by(used.len().div_ceil(12)).enumerate() {
        image.read_exact_at(&mut block, number * 4096).unwrap();
        let mut damaged = block.clone();
        damaged[round * 331 % 4096] ^= 1 << (round % 8);
        image.write_all_at(&damaged, number * 4096).unwrap();
        let output = run(redbud().arg("fsck").arg(&cluster.config));
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 4 | 8)), "{}", describe(&output));
        found += u32::from(code != Some(0));
        image.write_all_at(&block, number * 4096).unwrap();
    }
    assert!(found > 0, "no flipped bit was noticed");
    cluster.assert_clean();
}
