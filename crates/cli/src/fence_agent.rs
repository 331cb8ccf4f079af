//! Fences by an external program that follows the convention of `fence-agents`.
//!
//! The program gets its options as lines `name=value` at its standard input, with `action=off`,
//! `action=on` or `action=status` and `nodename=HOST` among them. Its exit status is 0 when an
//! action is done; `status` exits with 0 for on, with 2 for off and with anything else when it
//! cannot know.
//!
//! Invariants:
//! - an agent runs in a process group of its own. It is killed with all of that group when the one
//!   who asked does not wait any longer;
//! - nobody waits for an agent but the one who asked, for as long as that one does: not for it to
//!   read its options, nor for a killed one to end, which the kernel may put off;
//! - nothing of a client's but the name of its host gets to an agent, and that is a plain name.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio};

use env::Env;
use mds::fence::{Acting, Answer, Fence, FenceAction, FenceTarget, matches_host};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process_group};
use types::Duration;

use crate::config::FenceConfig;

/// Pause between two looks whether an agent has ended.
const LOOK: Duration = Duration::from_millis(10);
/// The same for one that has been killed.
const LOOK_KILLED: Duration = Duration::from_millis(100);
/// How much of what an agent says is kept.
const SAID_MAX: usize = 400;
/// The exit status of `status` for a host that is off.
const OFF: i32 = 2;

/// See the module.
pub struct Agent {
    env: Env,
    config: FenceConfig,
}

impl Agent {
    /// The agent of a table `[[fence]]`.
    pub fn new(env: Env, config: FenceConfig) -> Agent {
        Agent { env, config }
    }

    /// What the agent reads: the options, the action and the host.
    fn input(&self, action: &str, host: &str) -> String {
        let mut text = format!("action={action}\nnodename={host}\n");
        for (name, value) in &self.config.options {
            text += &format!("{name}={}\n", value.replace("{host}", host));
        }
        text
    }

    async fn run(&self, action: FenceAction, host: &str) -> Answer {
        let word = match action {
            FenceAction::Cut => "off",
            FenceAction::Check => "status",
            FenceAction::Restore => "on",
        };
        let (status, said) = match self.ended(&self.input(word, host)).await {
            Ok(ended) => ended,
            Err(error) => {
                return Answer::No(format!("{}: {error}", self.config.agent.display()));
            }
        };
        judge(action, status, &said)
    }

    /// Runs the program to its end.
    async fn ended(&self, input: &str) -> std::io::Result<(ExitStatus, String)> {
        let mut running = Running::start(&self.env, &self.config.agent, input)?;
        loop {
            running.tell()?;
            running.listen()?;
            if let Some(status) = running.try_wait()? {
                running.listen()?;
                return Ok((status, running.said()));
            }
            self.env.sleep(LOOK).await;
        }
    }
}

impl Fence for Agent {
    fn name(&self) -> String {
        let name = self.config.agent.file_name();
        name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    fn covers(&self, target: &FenceTarget) -> bool {
        matches_host(&self.config.host, &target.host)
    }

    fn patience(&self) -> Duration {
        self.config.timeout
    }

    fn act<'a>(&'a self, action: FenceAction, target: &'a FenceTarget) -> Acting<'a> {
        Box::pin(self.run(action, &target.host))
    }
}

/// What an agent's exit status means.
fn judge(action: FenceAction, status: ExitStatus, said: &str) -> Answer {
    let no = |what: String| match said.is_empty() {
        true => Answer::No(what),
        false => Answer::No(format!("{what}: {said}")),
    };
    match (action, status.code()) {
        (FenceAction::Check, Some(OFF)) => Answer::Yes,
        (FenceAction::Check, Some(0)) => no("the host is on".into()),
        (FenceAction::Cut | FenceAction::Restore, Some(0)) => Answer::Yes,
        (_, Some(code)) => no(format!("exit status {code}")),
        (_, None) => no(format!("killed by signal {}", status.signal().unwrap_or(0))),
    }
}

/// An agent that runs. Dropping it kills it.
struct Running {
    env: Env,
    /// `None`: it has ended, and has been reaped.
    child: Option<Child>,
    /// Open while the agent has not got all of its input.
    stdin: Option<ChildStdin>,
    stderr: Option<ChildStderr>,
    /// Input that it has not got.
    input: Vec<u8>,
    said: Vec<u8>,
}

impl Running {
    fn start(env: &Env, agent: &Path, input: &str) -> std::io::Result<Running> {
        let mut command = Command::new(agent);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn()?;
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        let (env, input, said) = (env.clone(), input.as_bytes().to_vec(), Vec::new());
        let running = Running { env, child: Some(child), stdin, stderr, input, said };
        let (stdin, stderr) = (running.stdin.as_ref(), running.stderr.as_ref());
        let pipes = [stdin.map(AsFd::as_fd), stderr.map(AsFd::as_fd)];
        for pipe in pipes.into_iter().flatten() {
            fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?;
        }
        Ok(running)
    }

    /// Has it ended?
    fn try_wait(&mut self) -> std::io::Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else { return Ok(None) };
        let ended = child.try_wait()?;
        if ended.is_some() {
            self.child = None;
        }
        Ok(ended)
    }

    /// Gives the agent as much of its input as the pipe takes, and ends that with the last byte.
    fn tell(&mut self) -> std::io::Result<()> {
        while let Some(stdin) = &mut self.stdin {
            match stdin.write(&self.input) {
                Ok(length) => {
                    self.input.drain(..length);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // It need not read everything.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => self.input.clear(),
                Err(error) => return Err(error),
            }
            if self.input.is_empty() {
                self.stdin = None;
            }
        }
        Ok(())
    }

    /// Takes what the agent has said so far.
    fn listen(&mut self) -> std::io::Result<()> {
        let Some(stderr) = &mut self.stderr else { return Ok(()) };
        let mut bytes = [0; 1024];
        loop {
            match stderr.read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(length) => {
                    let room = SAID_MAX.saturating_sub(self.said.len());
                    self.said.extend(&bytes[..length.min(room)]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// What the agent has said, on one line.
    fn said(&self) -> String {
        let text = String::from_utf8_lossy(&self.said);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if let Ok(None) = child.try_wait() {
            // They may have ended just now.
            let group = Pid::from_child(&child);
            let _ = kill_process_group(group, Signal::KILL);
            let env = self.env.clone();
            self.env.spawn(async move {
                while let Ok(None) = child.try_wait() {
                    env.sleep(LOOK_KILLED).await;
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use env::DriverKind;
    use types::ClientId;

    use super::*;

    /// A program that is gone with its directory.
    struct Script(PathBuf);

    impl Script {
        fn new(name: &str, text: &str) -> Script {
            let dir =
                std::env::temp_dir().join(format!("redbud-agent-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            let program = dir.join("agent");
            std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
            Script(dir)
        }

        fn file(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Script {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    async fn asked(env: &Env, agent: &Path, patience: Duration, bytes: usize) -> Option<Answer> {
        let options = BTreeMap::from([("long".to_owned(), "x".repeat(bytes))]);
        let (host, agent) = ("*".to_owned(), agent.to_owned());
        let config = FenceConfig { host, agent, timeout: patience, options };
        let agent = Agent::new(env.clone(), config);
        let target = FenceTarget { client: ClientId(7), host: "node3".into() };
        env.timeout(patience, agent.act(FenceAction::Cut, &target)).await
    }

    fn ask(agent: &Path, action: FenceAction, patience: Duration) -> Option<Answer> {
        let options = BTreeMap::from([("ip".to_owned(), "{host}-bmc".to_owned())]);
        let (host, agent) = ("node*".to_owned(), agent.to_owned());
        let config = FenceConfig { host, agent, timeout: patience, options };
        env::run(DriverKind::Auto, |env| async move {
            let agent = Agent::new(env.clone(), config);
            let target = FenceTarget { client: ClientId(7), host: "node3".into() };
            assert!(agent.covers(&target));
            env.timeout(agent.patience(), agent.act(action, &target)).await
        })
        .unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn agent_reads_options_and_answers_by_its_exit_status() {
        let script = Script::new(
            "exit",
            "cat > \"$(dirname $0)/input\"; echo some words >&2; exit $(cat $(dirname $0)/code)",
        );
        let (agent, input) = (script.file("agent"), script.file("input"));
        let said = |code: &str| Answer::No(format!("{code}: some words"));
        let cases = [
            (FenceAction::Cut, 0, Answer::Yes),
            (FenceAction::Cut, 1, said("exit status 1")),
            (FenceAction::Cut, 2, said("exit status 2")),
            (FenceAction::Check, 0, said("the host is on")),
            (FenceAction::Check, 1, said("exit status 1")),
            (FenceAction::Check, 2, Answer::Yes),
            (FenceAction::Restore, 0, Answer::Yes),
            (FenceAction::Restore, 1, said("exit status 1")),
        ];
        for (action, code, expected) in cases {
            std::fs::write(script.file("code"), code.to_string()).unwrap();
            assert_eq!(ask(&agent, action, LONG), Some(expected), "{action:?} {code}");
        }
        let text = std::fs::read_to_string(input).unwrap();
        assert_eq!(text, "action=on\nnodename=node3\nip=node3-bmc\n");
    }

    #[test]
    fn late_agent_is_killed_with_what_it_started() {
        let script = Script::new("late", "sleep 1000 & echo $! > \"$(dirname $0)/pid\"; wait");
        let answer = ask(&script.file("agent"), FenceAction::Cut, Duration::from_millis(700));
        assert_eq!(answer, None);
        let pid = std::fs::read_to_string(script.file("pid")).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        // Gone, or a zombie that nobody has waited for yet.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while state().is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(std::time::Instant::now() < until, "process {pid} lives");
            std::thread::yield_now();
        }
    }

    /// More than a pipe holds.
    const LOTS: usize = 1 << 20;

    #[test]
    fn agent_that_reads_slowly_gets_everything() {
        let text = "sleep 0.2; test $(wc -c) = $(cat $(dirname $0)/size)";
        let script = Script::new("slow", text);
        let size = "action=off\nnodename=node3\nlong=\n".len() + LOTS;
        std::fs::write(script.file("size"), size.to_string()).unwrap();
        let answer = env::run(DriverKind::Auto, |env| async move {
            asked(&env, &script.file("agent"), LONG, LOTS).await
        });
        assert_eq!(answer.unwrap(), Some(Answer::Yes));
    }

    #[test]
    fn agent_that_does_not_read_is_late_and_a_killed_one_is_reaped() {
        let script = Script::new("deaf", "echo $$ > \"$(dirname $0)/pid\"; exec sleep 1000");
        env::run(DriverKind::Auto, |env| async move {
            let answer = asked(&env, &script.file("agent"), Duration::from_millis(700), LOTS).await;
            assert_eq!(answer, None);
            let pid = std::fs::read_to_string(script.file("pid")).unwrap();
            let process = PathBuf::from(format!("/proc/{}", pid.trim()));
            let reaped = async {
                while process.exists() {
                    env.sleep(LOOK).await;
                }
            };
            assert!(env.timeout(LONG, reaped).await.is_some(), "process {pid} is there");
        })
        .unwrap();
    }

    #[test]
    fn agent_that_is_missing_or_dies_has_not_fenced() {
        let missing = ask(Path::new("/nonexistent/agent"), FenceAction::Cut, LONG);
        assert!(matches!(missing, Some(Answer::No(text)) if text.contains("/nonexistent/agent")));
        let script = Script::new("dies", "kill -9 $$");
        let died = ask(&script.file("agent"), FenceAction::Check, LONG);
        assert_eq!(died, Some(Answer::No("killed by signal 9".into())));
    }
}
