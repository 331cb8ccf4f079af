//! The null mount under a real kernel. Needs root and /dev/fuse.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test lies above the seam: it is the program that uses the mount"
)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use env::DriverKind;
use redbud_bench::null::null_mount;

/// Runs `test` on a null mount; aborts the mount if the test fails.
fn with_mount(name: &str, test: impl FnOnce(&PathBuf)) {
    let dir = std::env::temp_dir().join(format!("redbud-null-{}-{name}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let (ready, is_ready) = mpsc::channel();
    let server = thread::spawn({
        let dir = dir.clone();
        move || {
            null_mount(DriverKind::Auto, &dir, None, Default::default(), move || {
                ready.send(()).unwrap()
            })
            .unwrap()
        }
    });
    let stands = is_ready.recv_timeout(Duration::from_secs(60));
    stands.expect("the mount stands: it needs root and /dev/fuse");
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&dir)));
    fuse::unmount(&dir, outcome.is_err()).unwrap();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
    server.join().unwrap();
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn names_and_attributes_are_kept_and_data_is_not() {
    with_mount("names", |dir| {
        for i in 0..300 {
            let mut file = File::create(dir.join(format!("f{i}"))).unwrap();
            file.write_all(&vec![0u8; i * 100]).unwrap();
        }
        let mut sizes: Vec<u64> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .collect();
        sizes.sort_unstable();
        assert_eq!(sizes, (0..300).map(|i| i * 100).collect::<Vec<_>>());
        assert_eq!(fs::read(dir.join("f299")).unwrap().len(), 29_900);
        fs::create_dir(dir.join("d")).unwrap();
        fs::rename(dir.join("f1"), dir.join("d/g")).unwrap();
        fs::rename(dir.join("f2"), dir.join("d/g")).unwrap();
        assert_eq!(fs::metadata(dir.join("d/g")).unwrap().len(), 200);
        assert_eq!(fs::metadata(dir).unwrap().nlink(), 3);
        fs::remove_file(dir.join("d/g")).unwrap();
        fs::remove_dir(dir.join("d")).unwrap();
        assert_eq!(fs::metadata(dir).unwrap().nlink(), 2);
        assert_eq!(fs::read_dir(dir).unwrap().count(), 298);
    });
}
