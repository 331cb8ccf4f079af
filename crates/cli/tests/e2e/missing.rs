//! Data devices that are missing or die: only the files that lie on them fail, no mount does, and
//! all goes on without a new mount when they are back.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::broken::Fragile;
use crate::harness::{Cluster, Spec, eventually, pattern, redbud, success, zones};

const EIO: i32 = 5;
const FILE: usize = 4 << 20;
const PIECE: usize = 64 << 10;

/// What the mount at `root` says of its data devices.
fn devices(root: &Path) -> String {
    let mut text = vec![0; 1 << 16];
    let len = rustix::fs::getxattr(root, "user.redbud.devices", &mut text[..]).unwrap();
    String::from_utf8(text[..len].to_vec()).unwrap()
}

fn status(cluster: &Cluster) -> String {
    success(redbud().arg("status").arg("--json").arg(&cluster.config))
}

fn write_synced(path: &Path, seed: u64) {
    let file = File::create(path).unwrap();
    file.write_all_at(&pattern(seed, FILE), 0).unwrap();
    file.sync_all().unwrap();
}

/// What a writer met.
#[derive(Default, Debug)]
struct Seen {
    calls: u64,
    errors: Vec<io::Error>,
    /// The longest call before and after the device died.
    longest: [Duration; 2],
}

/// Overwrites and syncs a file until `ended`.
fn load(path: PathBuf, dead: Arc<AtomicBool>, ended: Arc<AtomicBool>) -> Seen {
    let mut seen = Seen::default();
    let file = File::options().read(true).write(true).open(path).unwrap();
    let piece = pattern(7, PIECE);
    let mut round = 0usize;
    while !ended.load(Ordering::Relaxed) {
        round += 1;
        let begun = Instant::now();
        let phase = usize::from(dead.load(Ordering::Relaxed));
        let done = match round % 4 {
            0 => file.sync_all(),
            _ => file.write_all_at(&piece, ((round * 7) % (FILE / PIECE) * PIECE) as u64),
        };
        seen.calls += 1;
        seen.longest[phase] = seen.longest[phase].max(begun.elapsed());
        if let Err(error) = done {
            seen.errors.push(error);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    seen
}

/// SEMANTICS 3.12. The figure of docs/BENCHMARKS.md: this test prints it.
#[test]
fn one_of_four_devices_dies_under_load() {
    let dir = crate::harness::Scratch::new();
    let device = Fragile::new(dir.path(), 512 << 20, 96 << 20);
    let mut cluster = Cluster::start(&Spec {
        data: vec![512 << 20; 4],
        data_path: Some(device.device.clone()),
        ..Spec::default()
    });
    // Each mount's space comes from another zone.
    let mut files = BTreeMap::new();
    for mount in 0..4 {
        cluster.mount();
        let path = cluster.path(mount).join(format!("f{mount}"));
        write_synced(&path, mount as u64);
        let on = zones(&path);
        assert_eq!(on.len(), 1, "{on:?}");
        files.insert(on[0], format!("f{mount}"));
    }
    assert!(files.keys().eq(&[0, 1, 2, 3]), "{files:?}");
    let root = cluster.root();

    // One client works on all of them.
    let (dead, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let writers: BTreeMap<u16, _> = files
        .iter()
        .map(|(&zone, name)| {
            let (path, dead, ended) = (root.join(name), dead.clone(), ended.clone());
            (zone, std::thread::spawn(move || load(path, dead, ended)))
        })
        .collect();
    std::thread::sleep(Duration::from_secs(2));
    dead.store(true, Ordering::Relaxed);
    let killed = device.kill();
    eventually("the log names the device", || {
        cluster.client_log(0).contains("data zone 0 at /dev/loop")
    });
    std::thread::sleep(Duration::from_secs(4));
    assert!(devices(&root).contains(r#""state":"absent""#), "{}", devices(&root));
    ended.store(true, Ordering::Relaxed);
    for (zone, writer) in writers {
        let seen = writer.join().unwrap();
        println!(
            "zone {zone}: {} calls, {} errors, longest call {:?} before, {:?} after the death",
            seen.calls,
            seen.errors.len(),
            seen.longest[0],
            seen.longest[1]
        );
        if zone == 0 {
            let all = seen.errors.iter().all(|error| error.raw_os_error() == Some(EIO));
            assert!(!seen.errors.is_empty() && all, "{seen:?}");
        } else {
            assert!(seen.errors.is_empty(), "zone {zone}: {seen:?}");
            // On a machine that is busy with other things no pause means much.
            let bound = Duration::from_secs(1).max(2 * seen.longest[0]);
            assert!(seen.longest[1] <= bound, "zone {zone}: {seen:?}");
        }
    }
    // New files go elsewhere; the file on the dead device fails at once.
    write_synced(&root.join("new"), 9);
    assert!(!zones(&root.join("new")).contains(&0));
    let on_dead = File::options().read(true).write(true).open(root.join(&files[&0])).unwrap();
    let error = on_dead.write_all_at(&[1; 4096], 0).expect_err("its device is dead");
    assert_eq!(error.raw_os_error(), Some(EIO));
    eventually("the server says so, too", || status(&cluster).contains(r#""device":"absent""#));

    // It is back: the same mount, the same descriptor.
    killed.revive();
    eventually("the device is used again", || on_dead.write_all_at(&[1; 4096], 0).is_ok());
    on_dead.sync_all().unwrap();
    eventually("the server has it again", || !status(&cluster).contains(r#""device":"absent""#));
    drop(on_dead);
    cluster.finish();
}

#[test]
fn mount_works_without_a_device_and_goes_on_when_it_comes() {
    let mut cluster = Cluster::start(&Spec { data: vec![1 << 30; 2], ..Spec::default() });
    let mut files = BTreeMap::new();
    for mount in 0..2 {
        cluster.mount();
        let path = cluster.path(mount).join(format!("f{mount}"));
        write_synced(&path, mount as u64);
        files.insert(zones(&path)[0], (format!("f{mount}"), mount as u64));
    }
    assert_eq!(files.len(), 2);
    cluster.unmount(0);
    cluster.unmount(1);
    cluster.stop_server();
    let (here, away) = (cluster.dir.join("data0.img"), cluster.dir.join("away.img"));
    fs::rename(&here, &away).unwrap();

    cluster.start_server();
    assert!(cluster.server_log().contains("data zone 0 at"), "{}", cluster.server_log());
    cluster.remount(0, &[]);
    let root = cluster.root();
    let said = cluster.client_log(0);
    assert!(said.contains("data zone 0 at") && said.contains("is absent"), "{said}");
    assert!(status(&cluster).contains(r#""device":"absent""#), "{}", status(&cluster));
    assert!(devices(&root).contains(r#""state":"absent""#), "{}", devices(&root));
    let (on_missing, on_other) = (&files[&0], &files[&1]);
    assert!(fs::read(root.join(&on_other.0)).unwrap() == pattern(on_other.1, FILE));
    let begun = Instant::now();
    let error = fs::read(root.join(&on_missing.0)).expect_err("its device is missing");
    assert_eq!(error.raw_os_error(), Some(EIO));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // New files have places, whatever zone this client would begin with.
    for number in 0..4 {
        write_synced(&root.join(format!("new{number}")), number);
        assert_eq!(zones(&root.join(format!("new{number}"))), [1]);
    }

    // Another zone at that path is refused and named.
    success(
        Command::new("cp").arg("--sparse=always").arg(cluster.dir.join("data1.img")).arg(&here),
    );
    eventually("the client names the wrong device", || {
        let _ = fs::read(root.join(&on_missing.0));
        cluster.client_log(0).contains("it is data zone 1")
    });
    eventually("so does the server", || cluster.server_log().contains("it is data zone 1"));
    assert!(fs::read(root.join(&on_missing.0)).is_err());

    // The right one is taken without a new mount.
    fs::rename(&away, &here).unwrap();
    let expected = pattern(on_missing.1, FILE);
    eventually("the device is back", || {
        fs::read(root.join(&on_missing.0)).is_ok_and(|bytes| bytes == expected)
    });
    eventually("the server has it again", || !status(&cluster).contains(r#""device":"absent""#));

    // A second client lacks the device, the first one does not.
    let second = cluster.mount_with(&["data0=/nonexistent"]);
    let other = cluster.path(second);
    let error = fs::read(other.join(&on_missing.0)).expect_err("this host lacks the device");
    assert_eq!(error.raw_os_error(), Some(EIO));
    write_synced(&other.join("by-second"), 5);
    assert_eq!(zones(&other.join("by-second")), [1]);
    assert!(status(&cluster).contains(r#""unreachable":[0]"#), "{}", status(&cluster));
    assert!(fs::read(root.join("by-second")).unwrap() == pattern(5, FILE));
    assert!(fs::read(root.join(&on_missing.0)).unwrap() == expected);
    cluster.finish();
}
