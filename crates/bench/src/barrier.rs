//! A start barrier: workers prepare their jobs, then all begin at once.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use crate::process::{Deadline, Tools, ended_badly, kill, logs, tail};
use crate::worker::{Done, Job};
use crate::{Res, failed};

/// Workers that have prepared their jobs and wait for the start.
pub struct StartBarrier {
    workers: Vec<Worker>,
    deadline: Deadline,
}

/// The result of all workers together.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// Operations of all.
    pub ops: u64,
    /// Nanoseconds from the first start to the last end.
    pub nanos: u64,
    /// The first worker's text.
    pub text: String,
    /// What the other workers said.
    pub others: Vec<String>,
}

impl StartBarrier {
    /// Starts a worker for each job.
    pub fn ready(tools: &Tools, step: &str, jobs: Vec<Job>) -> Res<StartBarrier> {
        let deadline = Deadline::new(step, tools.limit);
        let mut workers = Vec::new();
        for job in &jobs {
            workers.push(Worker::start(tools, step, job)?);
        }
        for worker in &mut workers {
            let line = worker.line(&deadline)?;
            if line != "ready" {
                return failed(step, format!("a worker printed `{line}` instead of `ready`"));
            }
        }
        Ok(StartBarrier { workers, deadline })
    }

    /// Starts all workers and waits until the last one is done.
    pub fn start(mut self) -> Res<Finished> {
        let step = self.deadline.step().to_owned();
        for worker in &mut self.workers {
            worker.input.write_all(b"go\n").or_else(|error| failed(&step, error))?;
        }
        let mut all = Vec::new();
        for worker in &mut self.workers {
            let line = worker.line(&self.deadline)?;
            let done: Done = serde_json::from_str(&line).or_else(|error| {
                failed(&step, format!("a worker printed `{line}` instead of its result: {error}"))
            })?;
            all.push(done);
        }
        let begin = all.iter().map(|done| done.begin).min().unwrap_or_default();
        let end = all.iter().map(|done| done.end).max().unwrap_or_default();
        let ops = all.iter().map(|done| done.ops).sum();
        let mut texts = all.into_iter().map(|done| done.text);
        Ok(Finished {
            ops,
            nanos: (end - begin).max(1),
            text: texts.next().unwrap_or_default(),
            others: texts.collect(),
        })
    }
}

/// Runs one job alone.
pub fn once(tools: &Tools, step: &str, job: Job) -> Res<Finished> {
    StartBarrier::ready(tools, step, vec![job])?.start()
}

/// One load generator; dropping this value kills it.
struct Worker {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    log: PathBuf,
}

impl Worker {
    fn start(tools: &Tools, step: &str, job: &Job) -> Res<Worker> {
        let log = tools.logs.join("workers.log");
        let spec = serde_json::to_string(job).or_else(|error| failed(step, error))?;
        let (_, err) = logs(&log).or_else(|error| failed(step, error))?;
        let mut command = Command::new(&tools.program);
        command.args(["bench", "worker", &spec]).process_group(0).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(err);
        let mut child = command.spawn().or_else(|error| failed(step, error))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return failed(step, "a worker without pipes");
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Worker { child, input, lines, log })
    }

    fn line(&mut self, deadline: &Deadline) -> Res<String> {
        loop {
            match self.lines.recv_timeout(deadline.pause()) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) => deadline.check()?,
                Err(RecvTimeoutError::Disconnected) => {
                    deadline.check()?;
                    if let Ok(Some(status)) = self.child.try_wait() {
                        let why = ended_badly(status, &self.log);
                        return failed(deadline.step(), why.unwrap_or_else(|| tail(&self.log)));
                    }
                    std::thread::sleep(deadline.pause());
                }
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}
