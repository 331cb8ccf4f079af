//! `redbud fence test`: cuts a host off by each of its fences, shows that a write fails, and gives
//! the host back.

use std::rc::Rc;

use env::{Disk, DiskOptions, DriverKind, Env, IoBuf};
use mds::fence::{Answer, Fence, FenceAction, FenceTarget, host_of};
use types::limits::{BLOCK, BLOCK_U64};
use types::{ClientId, Duration};

use crate::args::{FenceArgs, FenceCommand, FenceTestArgs};
use crate::config::{Cluster, ClusterFile};
use crate::exit::{Ended, Failure};
use crate::fence_agent::Agent;
use crate::output;

/// How long a write may take; a device that is cut off need not answer at all.
const WRITE_MAX: Duration = Duration::from_secs(30);

/// Runs the command.
pub fn run(args: &FenceArgs) -> Ended {
    let FenceCommand::Test(args) = &args.command;
    let file = ClusterFile::read(&args.config);
    let cluster = file.map_err(|error| Failure::usage(error.to_string()))?.any().clone();
    if host_of(&args.host) != Some(args.host.as_str()) {
        let text =
            format!("`{}` is not the name of a host: write it as in `redbud status`", args.host);
        return Err(Failure::usage(text));
    }
    env::run(DriverKind::Auto, |env| async move { test(env, &cluster, args).await })
        .map_err(|error| failed(format!("cannot start the I/O driver: {error}")))
        .flatten()
}

fn failed(text: impl Into<String>) -> Failure {
    Failure::failed("RB-FENCE", text)
}

async fn test(env: Env, cluster: &Cluster, args: &FenceTestArgs) -> Ended {
    let target = FenceTarget { client: ClientId(0), host: args.host.clone() };
    let agents = cluster.fences.iter().map(|config| Agent::new(env.clone(), config.clone()));
    let fences: Vec<Rc<Agent>> =
        agents.filter(|agent| agent.covers(&target)).map(Rc::new).collect();
    if fences.is_empty() {
        let text = format!(
            "{}: no table [[fence]] has a `host` that matches {}: add one",
            args.config.display(),
            args.host
        );
        return Err(Failure::usage(text));
    }
    let probe = match &args.device {
        Some(path) => Some(Probe::open(&env, &path.display().to_string(), cluster).await?),
        None => None,
    };
    let mut worst = 0;
    for fence in fences {
        let trial = Trial { env: &env, fence: &*fence, target: &target, probe: probe.as_ref() };
        worst = worst.max(u8::from(!trial.run().await?));
    }
    Ok(worst)
}

/// One fence that is tried.
struct Trial<'a> {
    env: &'a Env,
    fence: &'a dyn Fence,
    target: &'a FenceTarget,
    probe: Option<&'a Probe>,
}

impl Trial<'_> {
    /// Does the fence cut the host off, and give it back?
    async fn run(&self) -> Result<bool, Failure> {
        if let Some(probe) = self.probe
            && let Err(why) = probe.write(self.env).await
        {
            let path = &probe.path;
            return Err(failed(format!("{path}: a write fails before the host is cut off: {why}")));
        }
        let cut = self.cut().await;
        let shown = cut && self.write_fails().await;
        Ok(self.give_back().await && shown)
    }

    async fn cut(&self) -> bool {
        let begun = self.env.now();
        let done = self.act(FenceAction::Cut).await;
        if done != Answer::Yes {
            return self.say("off", &done);
        }
        let checked = self.act(FenceAction::Check).await;
        if checked != Answer::Yes {
            return self.say("off is done, but status", &checked);
        }
        let ms = self.env.now().since(begun).as_millis();
        self.line(&format!("{} is cut off, after {ms} ms", self.target.host));
        true
    }

    async fn write_fails(&self) -> bool {
        let Some(probe) = self.probe else {
            self.line("no write was tried: --device PATH on that host shows one fail");
            return true;
        };
        let written = probe.write(self.env).await;
        match &written {
            Ok(()) => self.line(&format!("a write to {} SUCCEEDS: nothing is cut off", probe.path)),
            Err(why) => self.line(&format!("a write to {} fails: {why}", probe.path)),
        }
        written.is_err()
    }

    async fn give_back(&self) -> bool {
        let done = self.act(FenceAction::Restore).await;
        if done != Answer::Yes {
            return self.say("on", &done);
        }
        if self.act(FenceAction::Check).await == Answer::Yes {
            self.line("on is done, but status says that the host is still off");
            return false;
        }
        if let Some(probe) = self.probe
            && let Err(why) = probe.write(self.env).await
        {
            self.line(&format!("on is done, but a write to {} still fails: {why}", probe.path));
            return false;
        }
        self.line(&format!("{} has its access back", self.target.host));
        true
    }

    async fn act(&self, action: FenceAction) -> Answer {
        let acting = self.fence.act(action, self.target);
        self.env.timeout(self.fence.patience(), acting).await.unwrap_or(Answer::Late)
    }

    /// Reports an action that failed; `false`.
    fn say(&self, action: &str, answer: &Answer) -> bool {
        let why = match answer {
            Answer::Yes => return true,
            Answer::No(why) => why.clone(),
            Answer::Late => format!("not done within {} ms", self.fence.patience().as_millis()),
        };
        self.line(&format!("{action}: {why}"));
        false
    }

    fn line(&self, text: &str) {
        // The host is given back even if nobody reads this.
        drop(output::print(&format!("{}: {text}\n", self.fence.name())));
    }
}

/// A block of a data device that is written as it is.
struct Probe {
    path: String,
    disk: Disk,
    block: u64,
    bytes: Vec<u8>,
}

impl Probe {
    async fn open(env: &Env, path: &str, cluster: &Cluster) -> Result<Probe, Failure> {
        let options = DiskOptions { write: true, exclusive: false };
        let disk = env.open_disk(path, options).await;
        let disk = disk.map_err(|error| failed(error.to_string()))?;
        let found = label::read(&disk).await;
        let found = found.map_err(|none| failed(format!("{path}: {none}")))?;
        if found.label.fs_name != cluster.name {
            let text = format!(
                "{path}: it belongs to the file system `{}`, not to `{}`",
                found.label.fs_name, cluster.name
            );
            return Err(failed(text));
        }
        let block = found.label.blocks - 1;
        let (read, buf) = disk.read(block * BLOCK_U64, IoBuf::unspecified(BLOCK)).await;
        read.map_err(|error| failed(format!("{path}: {error}")))?;
        Ok(Probe { path: path.to_owned(), disk, block, bytes: buf.to_vec() })
    }

    /// Writes the block as it is, and makes it stable.
    async fn write(&self, env: &Env) -> Result<(), String> {
        let mut buf = IoBuf::zeroed(BLOCK);
        buf.copy_from_slice(&self.bytes);
        let written = async {
            self.disk.write(self.block * BLOCK_U64, buf).await.0?;
            self.disk.flush().await
        };
        match env.timeout(WRITE_MAX, written).await {
            Some(result) => result.map_err(|error| error.to_string()),
            None => Err(format!("no answer within {} s", WRITE_MAX.as_secs())),
        }
    }
}
