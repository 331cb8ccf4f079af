//! Loop devices that move a bounded number of bytes a second, as disks do.
//!
//! The bound is the kernel's (`blkio.throttle`, control groups version 1), so it holds for this
//! process and all that it starts. The devices go with the last process that has them open.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{BenchError, Res, failed};

const CONTROLLER: &str = "/sys/fs/cgroup/blkio";
/// The file of a group that lists its processes, and takes new ones.
const MEMBERS: &str = "cgroup.procs";

/// Bounded devices, while this value lives.
pub struct Bounded {
    group: PathBuf,
    /// The group of this process before.
    before: PathBuf,
    rate: u64,
    open: Vec<File>,
}

impl Bounded {
    /// This process, and all that it starts from now on, move at most `rate` bytes a second to each
    /// device that is attached, and as many from it.
    ///
    /// # Errors
    /// The kernel cannot bound devices, or not for this user.
    pub fn new(rate: u64) -> Res<Bounded> {
        let step = "bounding devices";
        let controller = Path::new(CONTROLLER);
        if !controller.join("blkio.throttle.read_bps_device").exists() {
            let why = "needs the controller blkio of control groups version 1 at";
            return failed(step, format!("{why} {CONTROLLER}"));
        }
        let group = controller.join(format!("redbud-bench-{}", std::process::id()));
        let at =
            |error: std::io::Error| BenchError(format!("{step}: {}: {error}", group.display()));
        let before = group_now().map_err(at)?;
        std::fs::create_dir(&group).map_err(at)?;
        let bounded = Bounded { group: group.clone(), before, rate, open: Vec::new() };
        join(&group).map_err(at)?;
        Ok(bounded)
    }

    /// A bounded device that stands for `file`.
    ///
    /// # Errors
    /// There is no loop device left, or no `losetup`.
    pub fn attach(&mut self, file: &Path) -> Res<PathBuf> {
        let step = format!("attaching {} to a loop device", file.display());
        let device = losetup(&step, &["--find", "--show", "--direct-io=on"], file)?;
        let device = PathBuf::from(device.trim());
        // It is detached as soon as nobody has it open.
        let opened = OpenOptions::new().read(true).write(true).open(&device);
        let detached = losetup(&step, &["--detach"], &device);
        let opened = opened.or_else(|error| failed(&step, error))?;
        detached?;
        let number = opened.metadata().or_else(|error| failed(&step, error))?.rdev();
        let line = format!("{}:{} {}", libc::major(number), libc::minor(number), self.rate);
        for direction in ["read", "write"] {
            let bound = self.group.join(format!("blkio.throttle.{direction}_bps_device"));
            std::fs::write(bound, &line).or_else(|error| failed(&step, error))?;
        }
        self.open.push(opened);
        Ok(device)
    }
}

impl Drop for Bounded {
    fn drop(&mut self) {
        let left = join(&self.before).and_then(|()| std::fs::remove_dir(&self.group));
        if let Err(error) = left {
            crate::tell(&format!("redbud bench: {} is left: {error}", self.group.display()));
        }
    }
}

/// Where this process is in the controller.
fn group_now() -> std::io::Result<PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup")?;
    let mine = groups.lines().find_map(|line| line.split_once(":blkio:"));
    let path = mine.map_or("/", |(_, path)| path);
    Ok(Path::new(CONTROLLER).join(path.trim_start_matches('/')))
}

fn join(group: &Path) -> std::io::Result<()> {
    std::fs::write(group.join(MEMBERS), std::process::id().to_string())
}

/// What `losetup` prints.
fn losetup(step: &str, options: &[&str], file: &Path) -> Res<String> {
    let output = Command::new("losetup").args(options).arg(file).output();
    let output = output.or_else(|error| failed(step, format!("losetup: {error}")))?;
    if !output.status.success() {
        return failed(step, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
