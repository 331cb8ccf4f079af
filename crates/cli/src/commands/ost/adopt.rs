//! `redbud ost adopt`: makes a target one of the file system into which a dump was loaded.

use env::{DriverKind, Env};
use serde::Serialize;
use types::Uuid;

use super::{DeviceSpec, failed, format};
use crate::args::OstAdoptArgs;
use crate::devices::with_path;
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
    /// Name of the file system that the target belonged to.
    former_name: String,
    /// Its UUID.
    former_uuid: String,
}

/// Adopts the target.
pub fn run(args: &OstAdoptArgs) -> Ended {
    let spec = DeviceSpec::parse(&args.device)?;
    let (whose, from) = (format::file_system(&args.whose)?, args.from);
    let adopted =
        env::run(DriverKind::Auto, |env| async move { adopt(&env, &spec, whose, from).await });
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

async fn adopt(
    env: &Env,
    spec: &DeviceSpec,
    whose: (String, Uuid),
    from: Option<Uuid>,
) -> Result<Report, Failure> {
    let path = spec.device.display().to_string();
    let store = super::open_stopped(env, spec, CACHE).await?;
    let (former_uuid, former_name, _) = store.identity();
    let (fs_name, fs) = whose;
    let is_known = former_uuid == fs || from == Some(former_uuid);
    let adopted = if is_known { store.adopt(fs, &fs_name).await } else { Ok(()) };
    let closed = store.close().await;
    if !is_known {
        return Err(failed(format!(
            "{path}: it belongs to the file system `{former_name}` with UUID {former_uuid}. If a \
             dump of that was loaded into `{fs_name}`, add --from {former_uuid}"
        )));
    }
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
