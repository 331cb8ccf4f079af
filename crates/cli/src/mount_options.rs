//! Options of a mount from `-o` and fstab.
//!
//! Invariant: an option that would change guarantees for applications is never accepted and then
//! ignored. Only options for mount(8), systemd or other helpers are ignored.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use proto::commit::{Choice, CommitPolicy, DEGREE_MAX, TASKS_MAX};
use types::limits::EXECUTORS_MAX;
use types::{Duration, PagId};

use crate::config::LEASE_RANGE;
use crate::keys::{KeyOptions, parse_security};
use crate::placing_options::PlacingOptions;
use types::units::{parse_duration, parse_size};

/// How requests come from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// Reads and writes of /dev/fuse.
    #[default]
    Device,
    /// FUSE over io_uring, where the kernel allows it.
    Uring,
}

/// All options of a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountOptions {
    /// Refuse changes.
    pub read_only: bool,
    /// Set-id bits have no effect.
    pub nosuid: bool,
    /// Device nodes have no effect.
    pub nodev: bool,
    /// Programs cannot be run.
    pub noexec: bool,
    /// Access times are not updated.
    pub noatime: bool,
    /// Changes of names wait until they are durable.
    pub dirsync: bool,
    /// Writes wait until they are durable.
    pub sync: bool,
    /// May other users than the mounting one enter? By default if root mounts.
    pub allow_other: Option<bool>,
    /// The kernel drops pages also when size or times change, besides at invalidations.
    pub strict: bool,
    /// Mount even if this host reaches a device with the metadata.
    pub allow_unzoned: bool,
    /// How long mounting waits for the server.
    pub mount_timeout: Duration,
    /// Lease that the client asks for; by default the server's.
    pub lease: Option<Duration>,
    /// How long after its last request the client asks a target what is durable; by default the
    /// target says so.
    pub target_ping: Option<Duration>,
    /// Dirty bytes held before writers wait.
    pub dirty_max: Option<u64>,
    /// How blocks for growing files are chosen.
    pub allocation: PlacingOptions,
    /// How files are committed.
    pub commit: CommitPolicy,
    /// Paths of data zones on this host that differ from the cluster's file.
    pub data: Vec<(PagId, PathBuf)>,
    /// Keys.
    pub keys: KeyOptions,
    /// Log file of a client in the background.
    pub log: Option<PathBuf>,
    /// Path of the control socket, if not the usual one.
    pub control: Option<PathBuf>,
    /// How requests come from the kernel.
    pub transport: Transport,
    /// With io_uring: entries of each queue at first; more are added while few are free.
    pub entries: Option<u16>,
    /// Threads that serve the mount; by default one for each processor.
    pub executors: Option<usize>,
}

/// Tenths of a second and number of tries, as `timeo` and `retrans` have them.
const MOUNT_TIMEOUT: (u64, u64) = (50, 3);

/// From a write to its commit: less would be `commit=sync`, with more much is lost by a crash.
const AGES: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

/// From the last request to a ping: with less, pings would be a load of their own.
const PINGS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);

/// Minimum of dirty data: with less, every write waits for the previous one.
const DIRTY_MIN: u64 = 1 << 20;

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            read_only: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            noatime: false,
            dirsync: false,
            sync: false,
            allow_other: None,
            strict: false,
            allow_unzoned: false,
            mount_timeout: Duration::from_millis(MOUNT_TIMEOUT.0 * 100 * MOUNT_TIMEOUT.1),
            lease: None,
            target_ping: None,
            dirty_max: None,
            allocation: PlacingOptions::default(),
            commit: CommitPolicy::default(),
            data: Vec::new(),
            keys: KeyOptions::default(),
            log: None,
            control: None,
            transport: Transport::Device,
            entries: None,
            executors: None,
        }
    }
}

/// A path that means the same in every directory.
fn absolute(path: &str) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

impl MountOptions {
    /// Reads option strings, each a list separated by commas; later ones win.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<MountOptions, String> {
        let mut options = MountOptions::default();
        let (mut timeo, mut retrans) = MOUNT_TIMEOUT;
        for option in lists.into_iter().flat_map(|list| list.split(',')).filter(|o| !o.is_empty()) {
            match option.split_once('=') {
                Some(("timeo", value)) => timeo = number(option, value)?,
                Some(("retrans", value)) => retrans = number(option, value)?,
                Some((key, value)) => options.set_value(option, key, value)?,
                None => options.set_flag(option)?,
            }
        }
        options.allocation.check()?;
        let millis = timeo.saturating_mul(100).saturating_mul(retrans.max(1));
        options.mount_timeout = Duration::from_millis(millis.clamp(1000, 600_000));
        Ok(options)
    }

    fn set_flag(&mut self, option: &str) -> Result<(), String> {
        match option {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "nosuid" => self.nosuid = true,
            "suid" => self.nosuid = false,
            "nodev" => self.nodev = true,
            "dev" => self.nodev = false,
            "noexec" => self.noexec = true,
            "exec" => self.noexec = false,
            "noatime" => self.noatime = true,
            "atime" | "relatime" => self.noatime = false,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "dirsync" => self.dirsync = true,
            "allow_other" => self.allow_other = Some(true),
            "noallow_other" => self.allow_other = Some(false),
            "strict" => self.strict = true,
            "allow_unzoned" => self.allow_unzoned = true,
            "user" | "users" => (self.nosuid, self.nodev, self.noexec) = (true, true, true),
            "owner" | "group" => (self.nosuid, self.nodev) = (true, true),
            // The client's fixed behaviour, or options for other programs.
            "defaults" | "default_permissions" | "hard" | "auto" | "noauto" | "nouser" | "nofail"
            | "_netdev" | "nodiratime" | "diratime" | "lazytime" | "nolazytime" | "norelatime"
            | "silent" | "loud" | "flock" | "lock" => {}
            "soft" => return Err(
                "option `soft` is not supported: requests wait for the server (`hard`) and can be killed".into(),
            ),
            "remount" => return Err(
                "option `remount` is not supported: unmount, and mount again with the new options".into(),
            ),
            "strictatime" | "mand" | "nolock" | "noflock" | "localflock" => return Err(format!("option `{option}` is not supported")),
            _ if option.starts_with("x-") => {}
            _ => return Err(unknown(option)),
        }
        Ok(())
    }

    fn set_value(&mut self, option: &str, key: &str, value: &str) -> Result<(), String> {
        let explain = |text: String| format!("option `{option}`: {text}");
        let set = self.allocation.set(key, value);
        if let Some(set) = set.or_else(|| set_commit(&mut self.commit, key, value)) {
            return set.map_err(explain);
        }
        match key {
            "lease" => {
                let lease = parse_duration(value).map_err(explain)?;
                let lease = Some(lease).filter(|lease| LEASE_RANGE.contains(lease));
                self.lease =
                    Some(lease.ok_or_else(|| explain("write a time from 1s to 1h".into()))?);
            }
            "target_ping" => {
                let ping = parse_duration(value).map_err(explain)?;
                let ping = Some(ping).filter(|ping| PINGS.contains(ping));
                let range = || explain("write a time from 100ms to 1h".into());
                self.target_ping = Some(ping.ok_or_else(range)?);
            }
            "dirty" => {
                let dirty = parse_size(value).map_err(explain)?;
                let dirty = Some(dirty).filter(|dirty| *dirty >= DIRTY_MIN);
                self.dirty_max = Some(dirty.ok_or_else(|| explain("write 1M or more".into()))?);
            }
            "log" => self.log = Some(value.into()),
            "cluster" => self.keys.cluster = Some(absolute(value)),
            "key" => self.keys.key = Some(absolute(value)),
            "security" => match parse_security(value).map_err(explain)? {
                None => self.keys.none = true,
                Some(_) => {
                    let text = "the cluster's file says so; only `none` is an option";
                    return Err(explain(text.into()));
                }
            },
            "control" => self.control = Some(absolute(value)),
            "transport" => {
                self.transport = match value {
                    "dev" => Transport::Device,
                    "uring" => Transport::Uring,
                    _ => return Err(explain("write `dev` or `uring`".into())),
                }
            }
            "entries" => {
                let entries = value.parse().ok().filter(|entries| (1..=64).contains(entries));
                self.entries = Some(entries.ok_or_else(|| explain("write 1 to 64".into()))?);
            }
            "executors" => {
                let executors = value.parse().ok();
                let executors = executors.filter(|n| (1..=EXECUTORS_MAX).contains(n));
                let range = || explain(format!("write 1 to {EXECUTORS_MAX}"));
                self.executors = Some(executors.ok_or_else(range)?);
            }
            "comment" => {}
            _ if key.starts_with("x-") || key.starts_with("X-") => {}
            _ => {
                let pag = key.strip_prefix("data").and_then(|id| id.parse().ok());
                let pag = PagId(pag.ok_or_else(|| unknown(option))?);
                if value.is_empty() {
                    return Err(explain("write the path of the device of this data zone".into()));
                }
                self.data.push((pag, value.into()));
            }
        }
        Ok(())
    }
}

/// Sets an option about commits; `None`: it is not one of them.
fn set_commit(commit: &mut CommitPolicy, key: &str, value: &str) -> Option<Result<(), String>> {
    let set = match key {
        "commit" => {
            commit.sync = value == "sync";
            let known = matches!(value, "sync" | "delayed");
            known.then_some(()).ok_or_else(|| "write `sync` or `delayed`".into())
        }
        "compound" => Choice::parse(value, DEGREE_MAX).map(|degree| commit.degree = degree),
        "commit_tasks" => Choice::parse(value, TASKS_MAX).map(|tasks| commit.tasks = tasks),
        "commit_max_age" => {
            let age = parse_duration(value).map(|age| Some(age).filter(|age| AGES.contains(age)));
            let age = age.and_then(|age| age.ok_or_else(|| "write a time from 10ms to 1m".into()));
            age.map(|age| commit.max_age = age)
        }
        _ => return None,
    };
    Some(set)
}

fn number(option: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("option `{option}`: write a whole number"))
}

fn unknown(option: &str) -> String {
    format!("unknown option `{option}`; `redbud help mount` lists all options")
}

#[cfg(test)]
mod tests {
    use proto::prealloc::{Allocation, Policy};

    use super::*;

    #[test]
    fn usual_fstab_options_are_accepted() {
        let list = "rw,noatime,_netdev,nofail,x-systemd.automount,x-systemd.requires=net,auto,hard,timeo=100,retrans=2";
        let options = MountOptions::parse([list]).unwrap();
        let expected = MountOptions {
            noatime: true,
            mount_timeout: Duration::from_secs(20),
            ..MountOptions::default()
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn later_options_win_and_user_implies_nosuid_nodev_noexec() {
        let options = MountOptions::parse([
            "ro,user",
            "rw,exec,data3=/dev/sdz,lease=2s,dirty=64M,target_ping=7s",
        ])
        .unwrap();
        assert!(!options.read_only && options.nosuid && options.nodev && !options.noexec);
        assert_eq!(options.data, [(PagId(3), PathBuf::from("/dev/sdz"))]);
        assert_eq!(
            (options.lease, options.dirty_max),
            (Some(Duration::from_secs(2)), Some(64 << 20))
        );
        assert_eq!(options.target_ping, Some(Duration::from_secs(7)));
    }

    #[test]
    fn ways_to_choose_a_place_are_options() {
        let options = MountOptions::parse(["prealloc=vanilla,chunk=1M"]).unwrap();
        let expected = Allocation { how: Policy::Vanilla, chunk: 256, ..Allocation::default() };
        assert_eq!(options.allocation.chosen(), expected);
    }

    #[test]
    fn ways_to_commit_are_options() {
        let list = "commit=sync,compound=3,commit_tasks=auto,commit_max_age=200ms";
        let expected = CommitPolicy {
            sync: true,
            degree: Choice::Fixed(3),
            tasks: Choice::Auto,
            max_age: Duration::from_millis(200),
        };
        assert_eq!(MountOptions::parse([list]).unwrap().commit, expected);
        let later = MountOptions::parse([list, "commit=delayed"]).unwrap();
        assert_eq!(later.commit, CommitPolicy { sync: false, ..expected });
    }

    #[test]
    fn options_without_their_usual_effect_are_refused() {
        for bad in [
            "soft",
            "frobnicate",
            "timeo=x",
            "datax=/dev/sda",
            "data0=",
            "data65536=/dev/sda",
            "transport=pigeon",
            "entries=0",
            "executors=0",
            "executors=1000",
            "lease=1d",
            "lease=0",
            "lease=999ms",
            "lease=1000h",
            "dirty=0",
            "dirty=4096",
            "prealloc=static",
            "od_scale=1",
            "commit=async",
            "compound=65",
            "compound=0",
            "commit_tasks=10",
            "target_ping=1ms",
            "target_ping=2h",
            "commit_max_age=1ms",
            "commit_max_age=2m",
        ] {
            assert!(MountOptions::parse([bad]).is_err(), "{bad}");
        }
    }
}
