//! `redbud set-layout DIR`: where the blocks of new files go.

use std::path::Path;

use proto::placement::Layout;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::layout::failed;
use crate::args::{PolicyName, SetLayoutArgs, SpreadName};
use crate::exit::{Ended, Failure, Status};
use crate::output;

/// The extended attribute through which a mount takes the layout of a directory. Without `user.`,
/// so that other file systems refuse it.
pub const ATTRIBUTE: &str = "redbud.dir.layout";

/// Sets or removes the layouts of directories.
pub fn run(args: &SetLayoutArgs) -> Ended {
    let layout = layout(args)?;
    let mut failures = Vec::new();
    for directory in &args.directories {
        let done = match (&layout, is_directory(directory)) {
            (_, Err(failure)) => Err(failure),
            (Some(text), Ok(())) => set(directory, text),
            (None, Ok(())) => remove(directory),
        };
        failures.extend(done.err());
    }
    let all = failures.len() == args.directories.len();
    let Some(last) = failures.pop() else { return Ok(0) };
    for failure in failures {
        output::eprint_line(&format!("redbud: {failure}"));
    }
    Err(if all { last } else { last.with_code(Status::Partial as u8) })
}

/// The text of the layout that the options ask for; `None`: none.
fn layout(args: &SetLayoutArgs) -> Result<Option<String>, Failure> {
    if args.default {
        return Ok(None);
    }
    let mut words = vec![match args.policy {
        PolicyName::Fileround => "policy=fileround".to_owned(),
        PolicyName::Striping => "policy=striping".to_owned(),
        PolicyName::Objects => "policy=objects".to_owned(),
    }];
    words.extend(args.part.as_ref().map(|part| format!("part={part}")));
    words.extend(args.width.map(|width| format!("width={width}")));
    words.extend(args.zones.as_ref().map(|zones| format!("zones={zones}")));
    words.extend(args.spread.map(|spread| match spread {
        SpreadName::Auto => "spread=auto".to_owned(),
        SpreadName::On => "spread=on".to_owned(),
        SpreadName::Off => "spread=off".to_owned(),
    }));
    let layout = words.join(" ").parse::<Layout>();
    let text = layout.map_err(|error| Failure::usage(error.to_string()))?.to_string();
    let home = args.mds.map_or_else(String::new, |home| format!(" mds={home}"));
    Ok(Some(text + &home))
}

fn is_directory(path: &Path) -> Result<(), Failure> {
    let metadata = std::fs::metadata(path).map_err(|error| failed(path, &error.to_string()))?;
    if metadata.is_dir() {
        Ok(())
    } else {
        Err(failed(path, "only directories can be given a layout: files have it from there"))
    }
}

fn set(path: &Path, value: &str) -> Result<(), Failure> {
    let flags = XattrFlags::empty();
    rustix::fs::setxattr(path, ATTRIBUTE, value.as_bytes(), flags).map_err(|error| match error {
        Errno::INVAL => failed(
            path,
            &format!(
                "the server refuses `{value}`: `redbud df` shows the zones that exist, of which \
                 policy=objects takes targets and others devices; `redbud status` shows the \
                 metadata servers"
            ),
        ),
        error => refused(path, error),
    })
}

fn remove(path: &Path) -> Result<(), Failure> {
    match rustix::fs::removexattr(path, ATTRIBUTE) {
        Ok(()) | Err(Errno::NODATA) => Ok(()),
        Err(error) => Err(refused(path, error)),
    }
}

fn refused(path: &Path, error: Errno) -> Failure {
    match error {
        Errno::OPNOTSUPP => failed(path, "does not lie in a Redbud mount"),
        error => failed(path, &error.to_string()),
    }
}
