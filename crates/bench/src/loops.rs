//! Loop devices, which may move a bounded number of bytes a second, or take a bounded number of
//! writes, as disks do.
//!
//! The bound is the kernel's (`blkio.throttle`, control groups version 1), so it holds for this
//! process and all that it starts. What a file system of the kernel writes back later is not
//! bounded: threads of the kernel write it. The devices go with the last process that has them
//! open.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{BenchError, Res, failed};

const CONTROLLER: &str = "/sys/fs/cgroup/blkio";
/// The file of a group that lists its processes, and takes new ones.
const MEMBERS: &str = "cgroup.procs";

/// The bound on a loop device's speed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Throttle {
    /// Bytes to it, and as many from it; `None`: as many as it can.
    pub bytes: Option<u64>,
    /// Writes; `None`: as many as it can.
    pub writes: Option<u64>,
}

impl Throttle {
    /// The kernel's files for it, and the number that each of them gets.
    fn files(self) -> impl Iterator<Item = (&'static str, u64)> {
        let bytes = |file| self.bytes.map(|bytes| (file, bytes));
        let files = [
            bytes("blkio.throttle.read_bps_device"),
            bytes("blkio.throttle.write_bps_device"),
            self.writes.map(|writes| ("blkio.throttle.write_iops_device", writes)),
        ];
        files.into_iter().flatten()
    }
}

/// Loop devices, while this value lives.
pub struct Loops {
    bound: Throttle,
    group: Option<Group>,
    open: Vec<File>,
}

/// The control group of this process.
struct Group {
    path: PathBuf,
    /// The group of this process before.
    before: PathBuf,
}

impl Loops {
    /// This process, and all that it starts from now on, are bounded so at each device that is
    /// attached.
    ///
    /// # Errors
    /// The kernel cannot bound devices, or not for this user.
    pub fn new(bound: Throttle) -> Res<Loops> {
        let group = (bound != Throttle::default()).then(Group::join).transpose()?;
        Ok(Loops { bound, group, open: Vec::new() })
    }

    /// A device that stands for `file`, bounded or not.
    ///
    /// # Errors
    /// There is no loop device left, or no `losetup`.
    pub fn attach(&mut self, file: &Path, bounded: bool) -> Res<PathBuf> {
        let step = format!("attaching {} to a loop device", file.display());
        let device = losetup(&step, &["--find", "--show", "--direct-io=on"], file)?;
        let device = PathBuf::from(device.trim());
        // It is detached as soon as nobody has it open.
        let opened = OpenOptions::new().read(true).write(true).open(&device);
        let detached = losetup(&step, &["--detach"], &device);
        let opened = opened.or_else(|error| failed(&step, error))?;
        detached?;
        let number = opened.metadata().or_else(|error| failed(&step, error))?.rdev();
        if let (Some(group), true) = (&self.group, bounded) {
            for (file, most) in self.bound.files() {
                let line = format!("{}:{} {most}", libc::major(number), libc::minor(number));
                std::fs::write(group.path.join(file), line)
                    .or_else(|error| failed(&step, error))?;
            }
        }
        self.open.push(opened);
        Ok(device)
    }
}

impl Group {
    /// This process goes into a new one.
    fn join() -> Res<Group> {
        let step = "bounding devices";
        let controller = Path::new(CONTROLLER);
        if !controller.join("blkio.throttle.read_bps_device").exists() {
            let why = "needs the controller blkio of control groups version 1 at";
            return failed(step, format!("{why} {CONTROLLER}"));
        }
        let path = controller.join(format!("redbud-bench-{}", std::process::id()));
        let at = |error: std::io::Error| BenchError(format!("{step}: {}: {error}", path.display()));
        let before = group_now().map_err(at)?;
        std::fs::create_dir(&path).map_err(at)?;
        let group = Group { path: path.clone(), before };
        join(&path).map_err(at)?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let left = join(&self.before).and_then(|()| std::fs::remove_dir(&self.path));
        if let Err(error) = left {
            crate::tell(&format!("redbud bench: {} is left: {error}", self.path.display()));
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
