//! Taking away what tests leave, also those of a run that was killed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Takes every mount at `path` away, dead or alive.
pub fn detach(path: &Path) {
    while is_mounted(path) {
        let status = Command::new("umount").arg("-l").arg(path).stdin(Stdio::null()).status();
        if !status.is_ok_and(|status| status.success()) {
            eprintln!("{}: cannot unmount", path.display());
            return;
        }
    }
}

/// Unmounts everything below `dir` and removes it.
pub fn remove(dir: &Path) {
    for path in mounts_below(dir).iter().rev() {
        detach(Path::new(path));
    }
    if let Err(error) = fs::remove_dir_all(dir) {
        eprintln!("{}: {error}", dir.display());
    }
}

/// Removes the directories of test runs whose process is gone.
pub fn sweep(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(prefix) else { continue };
        let pid = rest.split('-').next().unwrap_or_default();
        if !pid.is_empty() && !Path::new("/proc").join(pid).exists() {
            remove(&entry.path());
        }
    }
}

fn is_mounted(path: &Path) -> bool {
    mounts_below(path).iter().any(|mount| Path::new(mount) == path)
}

/// Mount points at and below `dir`, parents first. (Paths of tests hold no blanks.)
fn mounts_below(dir: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|point| Path::new(point).starts_with(dir)).map(str::to_owned).collect()
}
