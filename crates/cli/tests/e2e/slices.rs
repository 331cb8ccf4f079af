//! Devices with several data zones, labels in two copies, and zoning.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::harness::{Cluster, Spec, describe, pattern, redbud, success};

/// A device with three data zones.
fn three() -> Spec {
    Spec { data: vec![192 << 20], slices: 3, inline_data: false, ..Spec::default() }
}

fn fsck(cluster: &Cluster, more: &[&str]) -> (Option<i32>, String) {
    let output = redbud().arg("fsck").args(more).arg(&cluster.config).output().unwrap();
    (output.status.code(), describe(&output))
}

/// A file of `bytes` is as it was written.
fn assert_is(path: &Path, seed: u64, bytes: usize) {
    assert!(fs::read(path).unwrap() == pattern(seed, bytes), "{}", path.display());
}

#[test]
fn slices_of_one_device_are_written_read_and_checked_as_zones() {
    const BYTES: usize = 20 << 20;
    let mut cluster = Cluster::start(&three());
    cluster.mount();
    // Larger than two of the zones, so that all three are used.
    let path = |root: &Path, n: u64| root.join(format!("f{n}"));
    for n in 0..7 {
        fs::write(path(&cluster.root(), n), pattern(n, BYTES)).unwrap();
    }
    let df = success(redbud().args(["df", "--json"]).arg(cluster.root()));
    let report: serde_json::Value = serde_json::from_str(&df).unwrap();
    let zones = report["filesystems"][0]["zones"].as_array().unwrap_or_else(|| panic!("{df}"));
    let used = |zone: &serde_json::Value| {
        zone["bytes"].as_u64().unwrap() - zone["bytes_free"].as_u64().unwrap()
    };
    assert!(zones.len() == 3 && zones.iter().all(|zone| used(zone) > 0), "{df}");
    cluster.unmount(0);
    cluster.kill_server();
    cluster.start_server();
    cluster.remount(0, &[]);
    for n in 0..7 {
        assert_is(&path(&cluster.root(), n), n, BYTES);
    }
    fs::remove_file(path(&cluster.root(), 3)).unwrap();
    cluster.unmount(0);
    cluster.stop_server();
    cluster.assert_clean();

    // Both copies of the label are lost: fsck makes it from the table, with all slices.
    let device = OpenOptions::new().read(true).write(true).open(cluster.dir.join("data0.img"));
    let (device, end) = (device.unwrap(), (192 << 20) - 4096);
    let mut label = [0; 4096];
    device.read_exact_at(&mut label, 0).unwrap();
    for place in [0, end] {
        device.write_all_at(&[0xff; 8], place).unwrap();
    }
    assert_eq!(fsck(&cluster, &[]).0, Some(4));
    let (code, said) = fsck(&cluster, &["--repair"]);
    assert!(code == Some(1) && said.contains("written anew"), "{said}");
    for place in [0, end] {
        let mut now = [0; 4096];
        device.read_exact_at(&mut now, place).unwrap();
        assert!(now == label, "at {place}");
    }
    cluster.start_server();
    cluster.remount(0, &[]);
    assert_is(&path(&cluster.root(), 6), 6, BYTES);
    cluster.finish();
}

#[test]
fn overwritten_block_0_of_each_device_loses_nothing_and_is_repaired() {
    let mut cluster = Cluster::start(&three());
    cluster.mount();
    let file = cluster.root().join("file");
    fs::write(&file, pattern(1, 5 << 20)).unwrap();
    cluster.unmount(0);
    cluster.stop_server();
    for image in ["metadata.img", "data0.img"] {
        let device = OpenOptions::new().write(true).open(cluster.dir.join(image)).unwrap();
        device.write_all_at(&pattern(9, 4096), 0).unwrap();
    }
    cluster.start_server();
    cluster.remount(0, &[]);
    assert_is(&file, 1, 5 << 20);
    fs::write(cluster.root().join("more"), pattern(2, 5 << 20)).unwrap();
    cluster.unmount(0);
    assert!(cluster.client_log(0).contains("data0.img: the label in block 0 is damaged"));
    cluster.stop_server();
    let log = cluster.server_log();
    assert!(log.contains("metadata.img: the label in block 0 is damaged"), "{log}");
    let (code, said) = fsck(&cluster, &[]);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("DamagedLabel") && said.contains("DamagedDataLabelCopy"), "{said}");
    assert_eq!(fsck(&cluster, &["--repair"]).0, Some(1));
    assert_eq!(fsck(&cluster, &[]).0, Some(0));
    cluster.start_server();
    cluster.remount(0, &[]);
    assert_is(&cluster.root().join("more"), 2, 5 << 20);
    cluster.finish();
}

#[test]
fn device_for_metadata_and_data_is_refused() {
    let cluster = Cluster::formatted(&three());
    let mkfs = |text: &str| {
        fs::write(&cluster.config, text).unwrap();
        let output = redbud().args(["mkfs", "--force"]).arg(&cluster.config).output().unwrap();
        assert!(!output.status.success());
        describe(&output)
    };
    let zones = |data: &str| {
        format!(
            "name = \"test\"\n[metadata]\npath = \"metadata.img\"\n[[data]]\npath = \"{data}\"\n"
        )
    };
    let said = mkfs(&zones("metadata.img"));
    assert!(said.contains("metadata a device of their own"), "{said}");
    std::os::unix::fs::symlink("metadata.img", cluster.dir.join("other.img")).unwrap();
    let said = mkfs(&zones("other.img"));
    assert!(said.contains("metadata a device of their own"), "{said}");
    let said = mkfs(&(zones("data0.img") + "slices = 13\n"));
    assert!(said.contains("too small"), "{said}");
}

/// A loop device over a file, read only.
struct Loop(String);

impl Loop {
    fn over(file: &Path) -> Loop {
        let mut command = Command::new("losetup");
        Loop(success(command.args(["--read-only", "--find", "--show"]).arg(file)).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("-d").arg(&self.0).status();
        if !detached.is_ok_and(|status| status.success()) {
            eprintln!("{} was not detached", self.0);
        }
    }
}

#[test]
fn host_that_reaches_the_metadata_mounts_only_if_that_is_allowed() {
    let mut cluster = Cluster::start(&three());
    let device = Loop::over(&cluster.dir.join("metadata.img"));
    let other = cluster.dir.join("refused");
    fs::create_dir(&other).unwrap();
    let mount = |more: &[&str]| -> Output {
        let log = format!("log={}", cluster.dir.join("refused.log").display());
        let mut command = redbud();
        command.args(["mount", "-o", &log]).args(more).arg(&cluster.source).arg(&other);
        command.output().unwrap()
    };
    let output = mount(&[]);
    let said = describe(&output);
    assert_eq!(output.status.code(), Some(32), "{said}");
    assert!(said.contains(&device.0) && said.contains("--allow-unzoned"), "{said}");
    let output = mount(&["--allow-unzoned"]);
    assert!(output.status.success(), "{}", describe(&output));
    success(redbud().arg("umount").arg(&other));
    cluster.mount_with(&["allow_unzoned"]);
    fs::write(cluster.root().join("file"), b"works").unwrap();
    let log = cluster.client_log(0);
    assert!(log.contains(&device.0) && log.contains("allow_unzoned permits it"), "{log}");
    drop(device);
    cluster.mount();
    cluster.finish();
}

#[test]
fn host_of_a_server_on_a_block_device_mounts() {
    let scratch = crate::harness::Scratch::new();
    let image = scratch.path().join("metadata");
    fs::File::create(&image).unwrap().set_len(512 << 20).unwrap();
    let device = success(Command::new("losetup").args(["--find", "--show"]).arg(&image));
    let device = Loop(device.trim().to_owned());
    let spec = Spec { metadata_path: Some(device.0.clone().into()), ..three() };
    let mut cluster = Cluster::start(&spec);
    cluster.mount();
    fs::write(cluster.root().join("file"), b"works").unwrap();
    let log = cluster.client_log(0);
    assert!(log.contains(&device.0) && log.contains("its server runs on this host"), "{log}");
    cluster.finish();
}
