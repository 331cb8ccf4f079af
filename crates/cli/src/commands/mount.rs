//! `redbud mount`: with `--foreground` the client itself. Otherwise the command starts this program
//! again as the client's process, and waits until it has mounted.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use env::{DriverKind, Env};
use fuse::init::UringEntries;
use fuse::{ClientMount, Introspection, MountError};
use rustix::process::{Pid, Signal};
use types::limits::DIRTY_MAX;

use crate::args::MountArgs;
use crate::commands::local::{log_since, this_program};
use crate::commands::umount;
use crate::control::{self, of_mount};
use crate::exit::{Ended, Failure, Status, mount as code};
use crate::mount_options::{MountOptions, Transport};
use crate::notify::{self, Readiness, ReadyListener};
use crate::registry::{self, Kind, MadeSocket, Registration};
use crate::source::Source;
use crate::zoning::Scan;
use crate::{keys, log, mountinfo};

/// Time for everything else, added to the time that mounting waits for the server.
const SLACK: Duration = Duration::from_secs(300);

/// Mounts.
pub fn run(args: &MountArgs) -> Ended {
    let usage = |text: String| Failure::usage(text).with_code(code::USAGE);
    let source = Source::parse(&args.source).map_err(usage)?;
    let mut options =
        MountOptions::parse(args.options.iter().map(String::as_str)).map_err(usage)?;
    options.allow_unzoned |= args.allow_unzoned;
    let mount = check_mount_point(&args.mount)?;
    if args.foreground {
        follow_parent(args.parent)?;
        if args.daemon {
            // Fails only for a process group leader, which does not need it.
            let _ = rustix::process::setsid();
        }
        serve(&source, &mount, &options)
    } else {
        detach(args, &source, &mount, &options)
    }
}

fn failed(text: impl Into<String>) -> Failure {
    Failure::failed("RB-MOUNT", text).with_code(code::FAILED)
}

fn check_mount_point(path: &Path) -> Result<PathBuf, Failure> {
    let wrong = |text: String| failed(format!("{}: {text}", path.display()));
    let whole = umount::resolve(path).map_err(|error| wrong(error.to_string()))?;
    // The mount table first: a system call on the mount could block while its server is away.
    if let Ok(Some(mount)) = mountinfo::mount_at(&whole) {
        return Err(wrong(format!("{} is mounted there: redbud umount it first", mount.source)));
    }
    match std::fs::metadata(&whole) {
        Ok(metadata) if metadata.is_dir() => Ok(whole),
        Ok(_) => Err(wrong("not a directory".into())),
        Err(error) => Err(wrong(error.to_string())),
    }
}

/// Ends with the process that started this one.
fn follow_parent(parent: Option<i32>) -> Result<(), Failure> {
    let Some(parent) = parent else { return Ok(()) };
    let system = |text: String| failed(text).with_code(code::SYSTEM);
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|error| system(format!("cannot set the parent death signal: {error}")))?;
    // It may have ended before the call above.
    match rustix::process::getppid() == Pid::from_raw(parent) {
        true => Ok(()),
        false => Err(system("the parent process is gone".into())),
    }
}

/// The client itself, until it is unmounted.
fn serve(source: &Source, mount: &Path, options: &MountOptions) -> Ended {
    let pid = std::process::id();
    let usual = || registry::usual_socket(Kind::Mount, pid, 0);
    let socket = options.control.clone().unwrap_or_else(usual);
    let registration = Registration {
        kind: Kind::Mount,
        pid,
        station: 0,
        source: source.to_string(),
        server: None,
        mount: mount.to_owned(),
        socket: Some(std::path::absolute(&socket).unwrap_or(socket)),
        log: options.log.clone(),
        keys: options.keys.clone(),
        lost: None,
    };
    let registered =
        registry::register(&registration).map_err(|failure| failure.with_code(code::SYSTEM))?;
    let what = ClientMount {
        config: client_config(source, mount, options),
        target: mount.to_owned(),
        options: kernel_options(source, options),
        init: fuse::init::InitOptions {
            strict: options.strict,
            uring: (options.transport == Transport::Uring).then(|| entries(options)),
        },
        log: log::line,
    };
    let (about, made) = (registration.clone(), registered.made_socket());
    let ready = || notify::send("READY=1\nSTATUS=mounted\n");
    let executors = options.executors.unwrap_or_else(|| fuse::executors(&what.init));
    let served = env::run_group(DriverKind::Auto, executors, |env| async move {
        let handle = env.clone();
        let introspect = |mounted| listen(&handle, (&about, &made), mounted);
        fuse::mount_client(&env, what, introspect, ready).await
    });
    let lost = match &served {
        Ok(Err(MountError::Lost(text))) => Some(text.clone()),
        _ => None,
    };
    drop(registered.end(lost));
    match served {
        Ok(Err(MountError::Lost(text))) => {
            Err(Failure::failed("RB-CLIENT-LOST", text).with_code(code::SYSTEM))
        }
        Ok(Ok(())) => Ok(0),
        Ok(Err(MountError::Connect(error))) => {
            Err(Failure::failed("RB-MOUNT-CONNECT", error.text).with_code(code::FAILED))
        }
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(error) => {
            Err(failed(format!("cannot start the I/O driver: {error}")).with_code(code::SYSTEM))
        }
    }
}

/// Opens the control socket. Without it the mount works, and cannot be asked.
fn listen(env: &Env, (about, made): (&Registration, &MadeSocket), mounted: Introspection) {
    let Some(socket) = &about.socket else { return };
    let handler = of_mount::handler(about.clone(), mounted);
    match control::listen(env, socket, handler) {
        Ok(()) => made.note(socket),
        Err(error) => log::line(&format!("no control socket: {}: {error}", socket.display())),
    }
}

fn entries(options: &MountOptions) -> UringEntries {
    let default = UringEntries::default();
    UringEntries { first: options.entries.map_or(default.first, usize::from), ..default }
}

/// The name of this host; empty if it is unknown.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

fn client_config(source: &Source, mount: &Path, options: &MountOptions) -> client::ClientConfig {
    let host = host_name();
    client::ClientConfig {
        server: source.servers.clone(),
        fs_name: source.fs_name.clone(),
        dir: source.dir.clone(),
        description: format!("{host}, pid {}, {}", std::process::id(), mount.display()),
        lease: options.lease,
        target_ping: options.target_ping,
        devices: options
            .data
            .iter()
            .map(|(pag, path)| (*pag, path.display().to_string()))
            .collect(),
        keys: keys::of_client(&options.keys, &source.fs_name),
        dirty_max: options.dirty_max.map_or(DIRTY_MAX, |bytes| bytes as usize),
        allocation: options.allocation.chosen(),
        commit: options.commit,
        read_only: options.read_only,
        connect_timeout: options.mount_timeout,
        admit: Some(admit(options.allow_unzoned)),
        ..client::ClientConfig::default()
    }
}

/// Refuses to mount where the metadata can be reached. The labels are read while the client
/// connects.
fn admit(allowed: bool) -> client::Admit {
    let scan = Scan::begin();
    Rc::new(move |fs| {
        let lines = scan.check(fs, allowed)?;
        lines.iter().for_each(|line| log::line(line));
        Ok(())
    })
}

fn kernel_options(source: &Source, options: &MountOptions) -> fuse::MountOptions {
    let mut kernel = fuse::MountOptions::new(&source.to_string());
    let words = [
        (options.read_only, "ro"),
        (options.nosuid, "nosuid"),
        (options.nodev, "nodev"),
        (options.noexec, "noexec"),
        (options.noatime, "noatime"),
        (options.sync, "sync"),
        (options.dirsync, "dirsync"),
    ];
    for (_, word) in words.into_iter().filter(|(set, _)| *set) {
        assert!(kernel.apply(word), "the adapter knows the option {word}");
    }
    kernel.allow_other = options.allow_other.unwrap_or(kernel.allow_other);
    kernel
}

/// Starts the client as a separate process, and waits until it has mounted.
fn detach(args: &MountArgs, source: &Source, mount: &Path, options: &MountOptions) -> Ended {
    let system = |text: String| failed(text).with_code(code::SYSTEM);
    let log = options.log.clone().unwrap_or_else(|| default_log(source, mount));
    let log = std::path::absolute(&log).unwrap_or(log);
    let file = log
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| OpenOptions::new().create(true).append(true).open(&log))
        .map_err(|error| system(format!("{}: {error}", log.display())))?;
    let copy = file.try_clone().map_err(|error| system(error.to_string()))?;
    let begin = std::fs::metadata(&log).map_or(0, |metadata| metadata.len());
    let listener = ReadyListener::new().map_err(|error| system(error.to_string()))?;
    let (name, value) = listener.environment();
    let mut command = Command::new(this_program());
    command.args(["mount", "--foreground", "--daemon"]);
    for list in &args.options {
        command.args(["-o", list]);
    }
    if options.allow_unzoned {
        command.arg("--allow-unzoned");
    }
    // As absolute paths: the client starts in another directory.
    let files = [("cluster", &options.keys.cluster), ("key", &options.keys.key)];
    for (name, path) in files {
        command.args(path.iter().map(|path| format!("-o{name}={}", path.display())));
    }
    command.arg(format!("-olog={}", log.display())).arg("--").arg(source.to_string()).arg(mount);
    command.env(name, value).current_dir("/").stdin(Stdio::null()).stdout(file).stderr(copy);
    let mut child =
        command.spawn().map_err(|error| system(format!("cannot start the client: {error}")))?;
    match listener.wait(&mut child, options.mount_timeout + SLACK) {
        Ok(Readiness::Ready) => Ok(0),
        Ok(Readiness::Ended(status)) => {
            let ended = status.code().and_then(|code| u8::try_from(code).ok());
            let code = ended.filter(|code| *code != 0).unwrap_or(code::FAILED);
            Err(Failure { code, name: "", text: log_since(&log, begin) })
        }
        Ok(Readiness::Late) => {
            drop(child.kill());
            let text =
                format!("{} was not mounted in time; see {}", mount.display(), log.display());
            Err(Failure::new(Status::Timeout, "RB-MOUNT-LATE", text).with_code(code::FAILED))
        }
        Err(error) => Err(system(error.to_string())),
    }
}

/// The log file of a client in the background: one for each mount point.
fn default_log(source: &Source, mount: &Path) -> PathBuf {
    let flat = mount.display().to_string().trim_matches('/').replace('/', "-");
    let name = format!("{}-{flat}.log", source.fs_name);
    if rustix::process::geteuid().is_root() {
        return Path::new("/var/log/redbud").join(name);
    }
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    state.or_else(home).unwrap_or_else(std::env::temp_dir).join("redbud").join(name)
}
