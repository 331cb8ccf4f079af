//! Users of a mount: processes with a working directory, root or open file in it.

use std::fs;
use std::path::{Path, PathBuf};

/// " by pid 12 (bash), pid 40 (vim)" or nothing if none is found.
pub fn describe(mount: &Path) -> String {
    let users = users(mount);
    let named: Vec<String> =
        users.iter().take(3).map(|(pid, name)| format!("pid {pid} ({name})")).collect();
    match (named.is_empty(), users.len() - named.len()) {
        (true, _) => String::new(),
        (false, 0) => format!(" by {}", named.join(", ")),
        (false, more) => format!(" by {} and {more} more", named.join(", ")),
    }
}

/// Processes that use the mount. Reads only links, so a dead mount does not block.
fn users(mount: &Path) -> Vec<(u32, String)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let process = |entry: fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        uses(&entry.path(), mount).then(|| {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            (pid, name.trim().to_owned())
        })
    };
    entries.flatten().filter_map(process).collect()
}

fn uses(process: &Path, mount: &Path) -> bool {
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let mut links: Vec<PathBuf> = ["cwd", "root", "exe"].map(|name| process.join(name)).into();
    links.extend(files.map(|file| file.path()));
    links.iter().any(|link| fs::read_link(link).is_ok_and(|target| target.starts_with(mount)))
}
