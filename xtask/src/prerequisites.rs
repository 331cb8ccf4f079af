//! The gate's needs beyond Rust, installed where that is possible, else named
//! together with the command that installs it.

use std::path::Path;
use std::process::{Command, Stdio};

/// Programs that the end-to-end tests run, with their Debian packages.
const PROGRAMS: [(&str, &str); 22] = [
    ("cc", "gcc"),
    ("etcd", "etcd-server"),
    ("etcdctl", "etcd-client"),
    ("fusermount3", "fuse3"),
    ("git", "git"),
    ("getfattr", "attr"),
    ("getfacl", "acl"),
    ("hostname", "hostname"),
    ("ip", "iproute2"),
    ("losetup", "mount"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mount", "mount"),
    ("nbdfuse", "libnbd-bin"),
    ("nbdkit", "nbdkit"),
    ("openssl", "openssl"),
    ("pg_ctlcluster", "postgresql"),
    ("python3", "python3"),
    ("rsync", "rsync"),
    ("setpriv", "util-linux"),
    ("sqlite3", "sqlite3"),
    ("tar", "tar"),
    ("unshare", "util-linux"),
];

/// Makes sure that everything is there, or says what is missing and how to get it.
pub fn ensure() -> Result<(), String> {
    components()?;
    programs()?;
    devices()
}

/// Makes sure that formatting and lints are there.
pub fn components() -> Result<(), String> {
    for (tool, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if succeeds("cargo", &[tool, "--version"]) {
            continue;
        }
        let added = succeeds("rustup", &["component", "add", component]);
        if !added {
            return Err(format!("cargo {tool} is missing: rustup component add {component}"));
        }
    }
    Ok(())
}

fn programs() -> Result<(), String> {
    let missing = || {
        let mut packages: Vec<&str> = PROGRAMS
            .iter()
            .filter(|(name, _)| !on_path(name))
            .map(|&(_, package)| package)
            .collect();
        packages.sort_unstable();
        packages.dedup();
        packages
    };
    let packages = missing();
    if packages.is_empty() {
        return Ok(());
    }
    let how = format!("apt-get install {}", packages.join(" "));
    if !is_root() || !on_path("apt-get") {
        return Err(format!("programs are missing; as root: {how}"));
    }
    println!("installing {}", packages.join(" "));
    // The lists may be stale or absent; the installation tells whether that mattered.
    succeeds("apt-get", &["update", "-q"]);
    let mut install = vec!["install", "-y", "-q", "--no-install-recommends"];
    install.extend(&packages);
    if !succeeds("apt-get", &install) || !missing().is_empty() {
        return Err(format!("`{how}` failed; still missing: {}", missing().join(" ")));
    }
    Ok(())
}

fn devices() -> Result<(), String> {
    if !is_root() {
        return Err(
            "the end-to-end tests mount file systems and use loop devices: run as root".into()
        );
    }
    for (device, module) in [("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")] {
        if !Path::new(device).exists() {
            succeeds("modprobe", &[module]);
        }
        if !Path::new(device).exists() {
            return Err(format!(
                "{device} is missing: modprobe {module}, or run on a kernel that has it"
            ));
        }
    }
    Ok(())
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|out| out.stdout.trim_ascii() == b"0")
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(Into::into);
    std::env::split_paths(&path).chain(usual).any(|dir| dir.join(program).is_file())
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
