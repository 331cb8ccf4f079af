//! Places for tests: directories, ports, an ext4 to compare with.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{clean, success};

const PREFIX: &str = "redbud-e2e-";

static COUNT: AtomicU32 = AtomicU32::new(0);
static SWEEP: Once = Once::new();

/// A directory of its own.
pub fn directory() -> PathBuf {
    let parent = std::env::temp_dir();
    SWEEP.call_once(|| clean::sweep(&parent, PREFIX));
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    dir.canonicalize().unwrap()
}

/// A port of 127.0.0.1 that is free now and was given to nobody else in this run.
pub fn free_port() -> u16 {
    let start = std::process::id().wrapping_mul(797) % 20_000;
    loop {
        let step = COUNT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + ((start + step) % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A directory that is removed at the end.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        Scratch(directory())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        clean::remove(&self.0);
    }
}

/// A small ext4 in a file, mounted through a loop device.
pub struct Ext4 {
    scratch: Scratch,
}

impl Ext4 {
    pub fn mounted() -> Ext4 {
        let scratch = Scratch::new();
        let image = scratch.path().join("ext4.img");
        let mount = scratch.path().join("ext4");
        std::fs::create_dir(&mount).unwrap();
        std::fs::File::create(&image).and_then(|file| file.set_len(512 << 20)).unwrap();
        success(Command::new("mkfs.ext4").args(["-q", "-F", "-I", "256"]).arg(&image));
        // The loop device goes with the mount.
        success(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mount));
        std::fs::remove_dir(mount.join("lost+found")).unwrap();
        Ext4 { scratch }
    }

    pub fn root(&self) -> PathBuf {
        self.scratch.path().join("ext4")
    }
}
