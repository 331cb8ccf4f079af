//! `redbud ost adopt`: makes a target one of the file system into which a dump was loaded.

use env::{DriverKind, Env};
use ost::store::{ObjectStore, Options};
use serde::Serialize;
use types::{Duration, Uuid};

use super::{DeviceSpec, failed, format};
use crate::args::OstAdoptArgs;
use crate::devices::{open_error, open_exclusive, open_journal, with_path};
use crate::exit::{Ended, Failure};
use crate::output;

/// Cache of metadata blocks.
const CACHE: usize = 64 << 20;

#[derive(Serialize)]
struct Report {
    version: u32,
    target: String,
    device: String,
    fs_name: String,
    fs_uuid: String,
    /// What it belonged to.
    former_name: String,
    former_uuid: String,
}

/// Adopts the target.
pub fn run(args: &OstAdoptArgs) -> Ended {
    let spec = DeviceSpec::parse(&args.device)?;
    let whose = format::file_system(&args.whose)?;
    let adopted = env::run(DriverKind::Auto, |env| async move { adopt(&env, &spec, whose).await });
    let report = adopted
        .map_err(|error| failed(format!("cannot start the I/O driver: {error}")))
        .flatten()?;
    output::print_report(args.output, &report, |report| {
        format!(
            "{}: target {} of `{}`, uuid {}; before of `{}`, uuid {}\n",
            report.device,
            report.target,
            report.fs_name,
            report.fs_uuid,
            report.former_name,
            report.former_uuid
        )
    })?;
    Ok(0)
}

async fn adopt(env: &Env, spec: &DeviceSpec, whose: (String, Uuid)) -> Result<Report, Failure> {
    let busy = |error| failed(open_error(&error, "stop its server before"));
    let path = spec.device.display().to_string();
    let disk = open_exclusive(env, &path, true).await.map_err(busy)?;
    let journal = match &spec.journal {
        Some(journal) => {
            let journal = journal.display().to_string();
            Some(open_journal(env, &journal, &disk).await.map_err(busy)?)
        }
        None => None,
    };
    let options = Options { cache_bytes: CACHE, commit_interval: Duration::from_secs(1) };
    let opened = ObjectStore::open(env, &disk, journal.as_ref(), options).await;
    let store = opened.map_err(|error| failed(with_path(&path, &error)))?;
    let (former_uuid, former_name, _) = store.identity();
    let (fs_name, fs) = whose;
    let adopted = store.adopt(fs, &fs_name).await;
    let closed = store.close().await;
    adopted.and(closed).map_err(|error| failed(with_path(&path, &error)))?;
    Ok(Report {
        version: 1,
        target: store.info().uuid.to_string(),
        device: path.clone(),
        fs_name,
        fs_uuid: fs.to_string(),
        former_name,
        former_uuid: former_uuid.to_string(),
    })
}
