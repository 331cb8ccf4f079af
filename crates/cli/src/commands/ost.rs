//! `redbud ost`: object targets, from their formatting to their measurement.

mod adopt;
mod check;
mod format;
mod journals;
mod kept;
mod scrub;
mod serve;
mod status;
mod survey;

use std::path::{Path, PathBuf};
use std::rc::Rc;

use env::Env;
use ost::store::{ObjectStore, Options};
use types::Duration;

pub use format::make_files;

use super::pag;
use crate::args::{OstArgs, OstCommand, OstKeyArgs};
use crate::config::TargetsView;
use crate::devices::{open_error, open_exclusive, open_journal, with_path};
use crate::exit::{Ended, Failure};
use crate::{keys, output};

/// Runs the verb.
pub fn run(args: &OstArgs) -> Ended {
    match &args.verb {
        OstCommand::Format(args) => format::run(args),
        OstCommand::Serve(args) => serve::run(args),
        OstCommand::Status(args) => status::run(args),
        OstCommand::Scrub(args) => scrub::run(args),
        OstCommand::Lost(args) => pag::lost(args),
        OstCommand::Adopt(args) => adopt::run(args),
        OstCommand::Check(args) => check::run(args),
        OstCommand::Journals(args) => journals::run(args),
        OstCommand::Key(args) => key(args),
        OstCommand::Survey(args) => survey::run(args),
    }
}

fn failed(text: impl Into<String>) -> Failure {
    Failure::failed("RB-OST", text)
}

fn key(args: &OstKeyArgs) -> Ended {
    keys::make_target_key(&args.file).map_err(failed)?;
    output::print(&format!(
        "{}: copy it to the metadata server's host and to each host with targets, mode 0600\n",
        args.file.display()
    ))?;
    Ok(0)
}

/// What the cluster's file says of targets, if it is given.
fn view(file: Option<&PathBuf>) -> Result<Option<TargetsView>, Failure> {
    let read = file.map(|file| TargetsView::read(file));
    read.transpose().map_err(|error| Failure::usage(error.to_string()))
}

/// The key that metadata server and targets share: in the file `given`, or in that of the cluster's
/// file.
fn target_key(given: Option<&PathBuf>, view: Option<&TargetsView>) -> Result<[u8; 32], Failure> {
    let from_view = view.and_then(|view| view.target_key.as_ref());
    let file = given.or(from_view).ok_or_else(|| {
        let whose = view.map_or(Path::new("the cluster's file"), |view| view.file.as_path());
        Failure::usage(format!(
            "{}: no table [targets] with a key `key`: it names the file of the key that the \
             metadata server and the targets share (`redbud ost key FILE` makes one)",
            whose.display()
        ))
    })?;
    keys::read_target_key(file).map_err(failed)
}

/// A device as the command line has it: `DEVICE[,journal=DEVICE][,listen=ADDRESS]`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct DeviceSpec {
    device: PathBuf,
    journal: Option<PathBuf>,
    listen: Option<String>,
}

/// Opens the store of a target whose server is stopped.
async fn open_stopped(
    env: &Env,
    spec: &DeviceSpec,
    cache_bytes: usize,
) -> Result<Rc<ObjectStore>, Failure> {
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
    let options = Options { cache_bytes, commit_interval: Duration::from_secs(1) };
    let opened = ObjectStore::open(env, &disk, journal.as_ref(), options).await;
    opened.map_err(|error| failed(with_path(&path, &error)))
}

impl DeviceSpec {
    fn parse(text: &str) -> Result<DeviceSpec, Failure> {
        let mut parts = text.split(',');
        let device = parts.next().unwrap_or_default();
        let mut spec = DeviceSpec { device: device.into(), journal: None, listen: None };
        let known = parts.all(|part| match part.split_once('=') {
            Some(("journal", path)) if !path.is_empty() && spec.journal.is_none() => {
                spec.journal = Some(path.into());
                true
            }
            Some(("listen", address)) if spec.listen.is_none() => {
                spec.listen = Some(address.to_owned());
                true
            }
            _ => false,
        });
        match known && !device.is_empty() {
            true => Ok(spec),
            false => Err(Failure::usage(format!(
                "`{text}`: write DEVICE, DEVICE,journal=DEVICE or DEVICE,listen=ADDRESS, or all"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_may_have_a_journal_and_an_address() {
        let spec = DeviceSpec::parse("/dev/a,journal=/dev/b,listen=h:1").unwrap();
        let (journal, listen) = (Some("/dev/b".into()), Some("h:1".into()));
        assert_eq!(spec, DeviceSpec { device: "/dev/a".into(), journal, listen });
        assert_eq!(DeviceSpec::parse("x").unwrap().journal, None);
        for bad in ["", ",journal=b", "a,journal=", "a,jornal=b", "a,journal=b,journal=c", "a,"] {
            assert!(DeviceSpec::parse(bad).is_err(), "{bad}");
        }
    }
}
