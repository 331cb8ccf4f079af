//! One command of the gate: run with its output shown and searched, bounded in time.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How a step ended.
pub struct Outcome {
    /// It did what it should.
    pub passed: bool,
    /// Why not, in a few lines for the end of the report.
    pub failures: Vec<String>,
    /// How long it took.
    pub time: Duration,
}

/// Runs `cargo` with `arguments`; each line of output is shown, and `watch`
/// picks out those that the report must repeat.
pub fn cargo(
    arguments: &[&str],
    environment: &[(&str, &str)],
    limit: Duration,
    mut watch: impl FnMut(&str) -> Option<String>,
) -> Outcome {
    run(&mut cargo_command(arguments, environment), limit, |line| {
        println!("{line}");
        watch(line)
    })
}

/// `cargo` with `arguments`.
pub fn cargo_command(arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).envs(environment.iter().copied());
    command
}

/// Runs a command; `watch` gets each line of its output, and returns what the report must repeat.
pub fn run(
    command: &mut Command,
    limit: Duration,
    mut watch: impl FnMut(&str) -> Option<String>,
) -> Outcome {
    let begin = Instant::now();
    // Its own group, so that reaching the limit ends the tests it started too.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            return Outcome {
                passed: false,
                failures: vec![format!("{}: {error}", words(command))],
                time: begin.elapsed(),
            };
        }
    };
    let lines = gather(&mut child);
    let mut failures = Vec::new();
    let mut late = false;
    loop {
        let left = limit.saturating_sub(begin.elapsed());
        match lines.recv_timeout(left) {
            Ok(line) => failures.extend(watch(&line)),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                late = true;
                break;
            }
        }
    }
    if late {
        failures.push(format!("not done after {} s: killed", limit.as_secs()));
        kill_group(&child);
    }
    let status = child.wait();
    let passed = !late && status.as_ref().is_ok_and(|status| status.success());
    // A program that a signal ended tells of no test that failed.
    let signalled = status.as_ref().is_ok_and(|status| status.code().is_none());
    if !passed && (failures.is_empty() || signalled && !late) {
        failures.push(match status {
            Ok(status) => format!("{}: {status}", words(command)),
            Err(error) => format!("{}: {error}", words(command)),
        });
    }
    Outcome { passed, failures, time: begin.elapsed() }
}

/// The command, for messages.
fn words(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words = std::iter::once(name).chain(command.get_args()).map(OsStr::to_string_lossy);
    words.collect::<Vec<_>>().join(" ")
}

/// The lines of both outputs, as they come. The channel closes when both end.
fn gather(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = channel();
    let outputs: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|out| Box::new(out) as Box<dyn Read + Send>),
        child.stderr.take().map(|err| Box::new(err) as Box<dyn Read + Send>),
    ];
    for output in outputs.into_iter().flatten() {
        let sender = sender.clone();
        std::thread::spawn(move || forward(output, &sender));
    }
    receiver
}

fn forward(output: Box<dyn Read + Send>, lines: &Sender<String>) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
        if lines.send(text).is_err() {
            return;
        }
        line.clear();
    }
}

fn kill_group(child: &Child) {
    // `kill` of coreutils' sibling util-linux understands a negative pid as a group.
    let killed = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status();
    if let Err(error) = killed {
        let _ = writeln!(std::io::stderr(), "cannot kill process group {}: {error}", child.id());
    }
}
