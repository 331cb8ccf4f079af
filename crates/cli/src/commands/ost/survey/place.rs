//! What a survey measures: how its arguments name it, and how it is opened.

use std::path::Path;
use std::rc::Rc;

use env::{Disk, Env};
use ost::store::{ObjectStore, Options};
use ost::survey::{Place, Plan, THREADS_PER_SESSION, Target, Targets};
use proto::capability::TargetKey;
use proto::ost::Ost;
use session::client::{Config, ReadClientKeys, Session};
use types::Duration;
use types::limits::BLOCK_U64;

use super::super::status::{keys_of, status_of};
use super::super::{DeviceSpec, failed, target_key, view};
use super::{PlaceReport, TargetReport};
use crate::address::{OST_PORT, check_address_or};
use crate::args::{OstSurveyArgs, SurveyMode};
use crate::commands::mkfs;
use crate::devices::{open_error, open_exclusive, open_journal, with_path};
use crate::exit::Failure;
use crate::log;

/// Cache of metadata blocks, and age at which groups are committed: as of `ost serve`.
const STORE: Options = Options { cache_bytes: 64 << 20, commit_interval: Duration::from_secs(1) };

/// What the arguments ask for.
pub enum Asked {
    /// `raw`
    Device(String),
    /// `store`
    Store(DeviceSpec),
    /// `messages` and `striped`
    Targets(Running),
}

/// Targets that are served.
pub struct Running {
    /// Name of the file system.
    name: String,
    key: [u8; 32],
    keys: Option<ReadClientKeys>,
    /// Blocks of a stripe unit.
    part: u64,
    all: Vec<Known>,
}

/// A target that has answered with its status.
struct Known {
    address: String,
    uuid: String,
}

/// What is measured, and how the report names it.
pub struct Opened {
    /// For the survey.
    pub place: Place,
    /// For the report.
    pub report: PlaceReport,
}

impl Asked {
    /// Reads the arguments, and asks running targets for their status.
    pub fn of(args: &OstSurveyArgs) -> Result<Asked, Failure> {
        let [first, more @ ..] = &args.targets[..] else {
            return Err(Failure::usage("what to measure?"));
        };
        match args.mode {
            SurveyMode::Striped => {}
            _ if more.is_empty() => {}
            _ => return Err(Failure::usage("several targets: with --mode striped")),
        }
        match args.mode {
            SurveyMode::Raw => Ok(Asked::Device(first.clone())),
            SurveyMode::Store => match DeviceSpec::parse(first)? {
                DeviceSpec { listen: Some(_), .. } => {
                    Err(Failure::usage("--mode store: it listens nowhere"))
                }
                spec => Ok(Asked::Store(spec)),
            },
            SurveyMode::Messages | SurveyMode::Striped => running(args).map(Asked::Targets),
        }
    }

    /// Opens it.
    pub async fn open(
        self,
        env: &Env,
        args: &OstSurveyArgs,
        plan: Plan,
    ) -> Result<Opened, Failure> {
        match self {
            Asked::Device(path) => open_device(env, path, args.force).await,
            Asked::Store(spec) => open_store(env, &spec).await,
            Asked::Targets(running) => running.open(env, args.mode, plan).await,
        }
    }
}

fn running(args: &OstSurveyArgs) -> Result<Running, Failure> {
    if args.config.is_none() && (args.fs.is_none() || args.key.is_none()) {
        return Err(Failure::usage("which file system? Give --config, or --fs and --key"));
    }
    if args.part == 0 || !args.part.is_multiple_of(BLOCK_U64) {
        return Err(Failure::usage("--part: write a multiple of 4K"));
    }
    let view = view(args.config.as_ref())?;
    let key = target_key(args.key.as_ref(), view.as_ref())?;
    let name = args.fs.clone().or(view.as_ref().map(|view| view.name.clone()));
    let name = name.unwrap_or_default();
    let keys = keys_of(view.as_ref());
    let mut all: Vec<Known> = Vec::new();
    for address in &args.targets {
        let address = check_address_or(address, OST_PORT).map_err(Failure::usage)?;
        let status = status_of(&address, &name, keys.as_ref())?;
        let uuid = status["target"].as_str().unwrap_or_default().to_owned();
        if all.iter().any(|known| known.uuid == uuid) {
            return Err(Failure::usage(format!("{address}: name each target once")));
        }
        all.push(Known { address, uuid });
    }
    Ok(Running { name, key, keys, part: args.part / BLOCK_U64, all })
}

async fn open_device(env: &Env, path: String, force: bool) -> Result<Opened, Failure> {
    let device = open(env, Path::new(&path)).await?;
    if !force && let Some(what) = mkfs::what_is_on(&device).await? {
        let text = format!("{path}: {what}; --force overwrites it, and its content is lost");
        return Err(failed(text));
    }
    Ok(Opened { place: Place::Device(device), report: PlaceReport::Raw { device: path } })
}

async fn open_store(env: &Env, spec: &DeviceSpec) -> Result<Opened, Failure> {
    let disk = open(env, &spec.device).await?;
    let journal = match &spec.journal {
        Some(journal) => {
            let opened = open_journal(env, &journal.display().to_string(), &disk).await;
            Some(opened.map_err(busy)?)
        }
        None => None,
    };
    let device = spec.device.display().to_string();
    let opened = ObjectStore::open(env, &disk, journal.as_ref(), STORE).await;
    let store = opened.map_err(|error| failed(with_path(&device, &error)))?;
    let target = store.info().uuid.to_string();
    Ok(Opened { place: Place::Store(store), report: PlaceReport::Store { device, target } })
}

async fn open(env: &Env, path: &Path) -> Result<Disk, Failure> {
    let opened = open_exclusive(env, &path.display().to_string(), true).await;
    opened.map_err(busy)
}

fn busy(error: std::io::Error) -> Failure {
    failed(open_error(&error, "stop what uses it before"))
}

impl Running {
    async fn open(self, env: &Env, mode: SurveyMode, plan: Plan) -> Result<Opened, Failure> {
        let (shared, mut targets) = (Rc::default(), Vec::new());
        for known in &self.all {
            let mut sessions = Vec::new();
            for _ in 0..plan.threads.div_ceil(THREADS_PER_SESSION) {
                let config = Config {
                    description: format!("survey, pid {}", std::process::id()),
                    keys: self.keys.clone(),
                    log: Rc::new(log::line),
                    ..Config::new::<Ost>(vec![known.address.clone()], &self.name)
                };
                let session = Session::<Ost>::open(env.clone(), config, Rc::clone(&shared)).await;
                sessions.push(session.map_err(|error| failed(error.text))?);
            }
            let key = TargetKey::new(self.key, sessions[0].offer().0);
            targets.push(Target { key, sessions });
        }
        let part = self.part * BLOCK_U64;
        let reports = self.all.into_iter();
        let mut reports =
            reports.map(|Known { address, uuid: target }| TargetReport { address, target });
        let report = match mode {
            SurveyMode::Striped => PlaceReport::Striped { part, targets: reports.collect() },
            _ => {
                let TargetReport { address, target } = reports.next().expect("there is one");
                PlaceReport::Messages { address, target }
            }
        };
        Ok(Opened { place: Place::Targets(Targets::new(targets, self.part)), report })
    }
}
