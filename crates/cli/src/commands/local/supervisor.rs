//! Starts the server and the client, watches both, and stops them in order.

use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use env::{DriverKind, Env};
use rustix::process::Signal;
use types::units::human_size;

use super::parts::{Parts, Plan, Server, signal_child, unable};
use super::stop;
use crate::exit::{Ended, Failure};
use crate::{log, output};

/// Interval between two checks of the children.
const TICK: Duration = Duration::from_millis(50);

/// Runs until a signal, the client's end, or the command's end.
pub fn run(plan: Plan) -> Ended {
    let (until, alive) = std::io::pipe()
        .map_err(|error| Failure::failed("RB-LOCAL", format!("cannot make a pipe: {error}")))?;
    let mut parts = Parts::start(&plan, until, alive)?;
    greet(&plan);
    let command =
        match plan.exec.as_deref().map(|command| start_command(&plan, command)).transpose() {
            Ok(command) => command,
            Err(failure) => {
                stop::stop(&mut parts, &plan.mount);
                return Err(failure);
            }
        };
    let ended = env::run(DriverKind::Fallback, |env| watch(env, &plan, &mut parts, command))
        .map_err(|error| Failure::failed("RB-LOCAL", format!("cannot wait for signals: {error}")))
        .flatten();
    let stopped = stop::stop(&mut parts, &plan.mount);
    match ended {
        Ok(code) if stopped || plan.exec.is_some() => Ok(code),
        Ok(_) => Err(Failure::failed("RB-LOCAL", "not every process stopped cleanly: see above")),
        Err(failure) => Err(failure),
    }
}

/// Prints the mount point, logs and commands to use; not with `--exec`, whose output stays alone.
fn greet(plan: &Plan) {
    if plan.exec.is_some() {
        return;
    }
    let space = rustix::fs::statvfs(&plan.mount).map_or_else(
        |_| "space unknown".to_owned(),
        |stat| {
            let size = |blocks: u64| human_size(blocks * stat.f_frsize);
            format!("{} free of {}", size(stat.f_bfree), size(stat.f_blocks))
        },
    );
    let log_of = |server: &Server| format!("{}/{}.log, ", plan.dir.display(), server.name);
    let logs: String = plan.servers.iter().map(log_of).collect();
    let text = format!(
        "mounted at {mount}\n  \
         stop:   Ctrl-C, or kill {pid}\n  \
         again:  redbud mount {source} OTHER-DIRECTORY\n  \
         logs:   {logs}{dir}/client.log\n  \
         status: up, {space}\n",
        mount = plan.mount.display(),
        pid = std::process::id(),
        source = plan.source,
        dir = plan.dir.display(),
        logs = logs,
    );
    // Standard output may be closed; the mount continues.
    drop(output::print(&text));
}

fn start_command(plan: &Plan, command: &str) -> Result<Child, Failure> {
    Command::new("/bin/sh")
        .args(["-c", command])
        .current_dir(&plan.mount)
        .env("REDBUD_MOUNT", &plan.mount)
        .env("REDBUD_SOURCE", plan.source.to_string())
        .spawn()
        .map_err(|error| unable("/bin/sh", &error))
}

/// Watches the children and signals; returns the exit status.
async fn watch(env: Env, plan: &Plan, parts: &mut Parts, mut command: Option<Child>) -> Ended {
    let mut interrupts = 0u32;
    loop {
        let mut signal = pin!(env.stop_signal());
        let arrived = loop {
            if let Some(signal) = env.timeout(TICK, signal.as_mut()).await {
                break signal;
            }
            if let Some(ended) = check_children(plan, parts, &mut command)? {
                return Ok(ended);
            }
        };
        let Some(command) = &command else { return Ok(0) };
        interrupts += 1;
        // The terminal has sent the first Ctrl-C to the command too.
        if arrived != Signal::INT.as_raw() || interrupts > 1 {
            signal_child(command, Signal::TERM);
        }
    }
}

/// Checks the children once; returns the exit status if it is time to end.
fn check_children(
    plan: &Plan,
    parts: &mut Parts,
    command: &mut Option<Child>,
) -> Result<Option<u8>, Failure> {
    if let Some(child) = command
        && let Some(status) = child.try_wait().map_err(|error| unable("wait", &error))?
    {
        return Ok(Some(exit_code(status)));
    }
    if let Ok(Some(status)) = parts.client.try_wait() {
        if let Some(child) = command {
            signal_child(child, Signal::TERM);
        }
        let log_path = plan.dir.join("client.log");
        let text = match status.success() {
            true => format!("another process unmounted {}", plan.mount.display()),
            false => format!("the client ended ({status}); see {}", log_path.display()),
        };
        return if status.success() && command.is_none() {
            log::line(&text);
            Ok(Some(0))
        } else {
            Err(Failure::failed("RB-CLIENT-DIED", text))
        };
    }
    if let Some(osts) = &mut parts.osts
        && let Ok(Some(status)) = osts.try_wait()
    {
        log::line(&format!("the object targets ended ({status}); restarting them"));
        parts.restart_osts(plan)?;
    }
    for index in 0..parts.servers.len() {
        if let Ok(Some(status)) = parts.servers[index].try_wait() {
            let which = &plan.servers[index].which;
            log::line(&format!("the metadata server{which} ended ({status}); restarting it"));
            parts.restart_server(plan, index)?;
        }
    }
    Ok(None)
}

/// The status that a shell gives for `status`.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
