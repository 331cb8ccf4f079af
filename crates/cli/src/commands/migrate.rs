//! `redbud migrate`: moves files between blocks of data zones and objects at targets, and
//! directories between metadata servers ([`directories`]).

mod directories;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use env::asked_to_stop;
use proto::placement::{Layout, Policy};
use serde::Serialize;
use types::units::human_size;
use types::{Fault, Ino};

use crate::args::{MigrateArgs, PoolName};
use crate::exit::{Ended, Failure, Status};
use crate::mover::{self, Migrated, Mover, Order};
use crate::{output, target};

/// What became of the files.
#[derive(Serialize)]
struct Report {
    version: u32,
    source: String,
    /// The layout that was asked for.
    layout: String,
    files: Vec<FileReport>,
}

#[derive(Serialize)]
struct FileReport {
    path: String,
    /// "moved", "there" or "stayed".
    state: &'static str,
    /// Bytes that were copied: less than the size where there are holes.
    bytes_copied: u64,
    /// Why it stayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// A file to move.
#[derive(Clone)]
struct Wanted {
    path: PathBuf,
    ino: Ino,
}

/// Moves them.
pub fn run(args: &MigrateArgs) -> Ended {
    if let Some(mds) = args.mds {
        return directories::run(args, mds);
    }
    let layout = layout(args)?;
    let any = args.part.is_none() && args.width.is_none() && args.zones.is_none();
    let (mut wanted, mut refused) = (Vec::new(), Vec::new());
    for path in &args.files {
        match inode(path) {
            Ok(ino) => wanted.push(Wanted { path: path.clone(), ino }),
            Err(why) => refused.push(stayed(path, why)),
        }
    }
    let Some(first) = wanted.first() else {
        let all: Vec<String> = refused
            .iter()
            .map(|one| format!("{}: {}", one.path, one.why.as_deref().unwrap_or("")))
            .collect();
        return Err(Failure::failed("RB-MIGRATE", all.join("; ")));
    };
    let source = target::source(&first.path.to_string_lossy())?;
    for other in &wanted {
        if target::source(&other.path.to_string_lossy())? != source {
            let text = format!("{} lies in another file system", other.path.display());
            return Err(Failure::usage(text));
        }
    }
    // A file stays with its metadata server, whose zones it moves between.
    for shard in wanted.iter().map(|one| one.ino.shard()).collect::<BTreeSet<_>>() {
        let order = Order {
            source: &source,
            shard: Some(shard),
            command: format!("redbud migrate --to {layout}"),
            rate: args.rate,
            talks: !args.output.is_json(),
        };
        let of = wanted.iter().filter(|one| one.ino.shard() == shard);
        let (of, to): (Vec<Wanted>, _) = (of.cloned().collect(), layout.clone());
        refused.extend(mover::run(&order, async move |mover| migrate(mover, &of, &to, any).await)?);
    }
    let (name, to) = (source.to_string(), layout.to_string());
    let report = Report { version: 1, source: name, layout: to, files: refused };
    finish(args, &report)
}

fn finish(args: &MigrateArgs, report: &Report) -> Ended {
    output::print_report(args.output, report, |report| {
        let line = |file: &FileReport| match file.state {
            "moved" => format!("{}: moved, {} copied\n", file.path, human_size(file.bytes_copied)),
            _ => format!("{}: lies there already\n", file.path),
        };
        report.files.iter().filter(|file| file.why.is_none()).map(line).collect()
    })?;
    let mut stayed = 0;
    for file in &report.files {
        if let Some(why) = &file.why {
            stayed += 1;
            output::eprint_line(&format!("{}: {why}", file.path));
        }
    }
    if stayed == 0 {
        return Ok(0);
    }
    let status = if stayed == report.files.len() { Status::Failed } else { Status::Partial };
    let text = format!("{stayed} of {} files stay where they are", report.files.len());
    Err(Failure::new(status, "RB-MIGRATE", text))
}

/// The layout that the options ask for.
fn layout(args: &MigrateArgs) -> Result<Layout, Failure> {
    let striped = args.part.is_some() || args.width.is_some();
    let mut words = vec![
        match args.to {
            Some(PoolName::Objects) => "policy=objects",
            Some(PoolName::Blocks) if striped => "policy=striping",
            Some(PoolName::Blocks) => "policy=fileround",
            None => return Err(Failure::usage("--to or --mds says where they are to go")),
        }
        .to_owned(),
    ];
    words.extend(args.part.as_ref().map(|part| format!("part={part}")));
    words.extend(args.width.map(|width| format!("width={width}")));
    words.extend(args.zones.as_ref().map(|zones| format!("zones={zones}")));
    let layout = words.join(" ").parse::<Layout>();
    layout.map_err(|error| Failure::usage(error.to_string()))
}

/// The number of a regular file, or why it cannot move.
fn inode(path: &Path) -> Result<Ino, String> {
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if metadata.is_dir() {
        return Err(
            "it is a directory: name files, and set the layout of the directory for what is \
                    created there later (`redbud set-layout`); --mds moves directories"
                .into(),
        );
    }
    if !metadata.is_file() {
        return Err("only regular files lie in a pool".into());
    }
    match target::source(&path.to_string_lossy()) {
        Ok(_) => Ok(Ino(metadata.ino())),
        Err(_) => Err("does not lie in a Redbud mount".into()),
    }
}

fn stayed(path: &Path, why: String) -> FileReport {
    let path = path.display().to_string();
    FileReport { path, state: "stayed", bytes_copied: 0, why: Some(why) }
}

async fn migrate(
    mover: &mut Mover,
    wanted: &[Wanted],
    layout: &Layout,
    any: bool,
) -> Result<Vec<FileReport>, Failure> {
    mover.look().await?;
    check_zones(mover, layout)?;
    let mut files = Vec::with_capacity(wanted.len());
    for Wanted { path, ino } in wanted {
        let name = path.display().to_string();
        if asked_to_stop() {
            files.push(stayed(path, "the command was asked to end".into()));
            continue;
        }
        let done = |state, bytes_copied| {
            let path = name.clone();
            FileReport { path, state, bytes_copied, why: None }
        };
        files.push(match mover.migrate(*ino, &name, layout, any).await? {
            Migrated::Moved(bytes) => done("moved", bytes),
            Migrated::There => done("there", 0),
            Migrated::Stopped => stayed(path, "the command was asked to end".into()),
            Migrated::Stayed(fault) => stayed(path, reason(fault, layout)),
            Migrated::Silent(device) => stayed(
                path,
                format!(
                    "{device} has not answered for 10 s, and users of the file waited for it: run \
                     the same command again when it is back"
                ),
            ),
        });
    }
    Ok(files)
}

/// Are there zones of the pool, and those that are named?
fn check_zones(mover: &Mover, layout: &Layout) -> Result<(), Failure> {
    let objects = matches!(layout.policy, Policy::Objects { .. });
    let refuse = |text: String| Err(Failure::failed("RB-MIGRATE", text));
    for id in &layout.zones {
        match mover.zone(*id) {
            None => {
                return refuse(format!(
                    "the file system has no data zone {id}: `redbud pag list` shows them"
                ));
            }
            Some(zone) if zone.is_target && !objects => {
                return refuse(format!("data zone {id} is an object target: it has no blocks"));
            }
            Some(zone) if !zone.is_target && objects => {
                return refuse(format!("data zone {id} is no object target"));
            }
            Some(_) => {}
        }
    }
    if !mover.zones.iter().any(|zone| zone.is_target == objects) {
        let (what, add) = match objects {
            true => ("object target", "redbud pag add ost:HOST:PORT"),
            false => ("data zone with blocks", "redbud pag add DEVICE"),
        };
        return refuse(format!("the file system has no {what}: `{add}` makes one"));
    }
    Ok(())
}

/// Why a file stays.
fn reason(fault: Fault, layout: &Layout) -> String {
    match fault {
        Fault::NoSpace => format!(
            "there is no room under `{layout}`, or none of its zones is in service: `redbud pag \
             list` shows them"
        ),
        Fault::TooBig => "it lies in too many pieces to be exchanged at once, or its extended \
                          attributes leave no room for that of the layout: copy it instead"
            .into(),
        Fault::Unsupported => "the server is of a release that cannot do this".into(),
        Fault::Io => "a part of it cannot be read, or not be written there: the pool may be full, \
                      or a device away"
            .into(),
        Fault::Stale | Fault::NotFound => "it is gone".into(),
        fault => fault.text().into(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: MigrateArgs,
    }

    fn layout_of(options: &str) -> Result<String, String> {
        let line = format!("migrate file {options}");
        let args = Line::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?.args;
        layout(&args).map(|layout| layout.to_string()).map_err(|failure| failure.text)
    }

    #[test]
    fn pool_and_options_name_a_layout() {
        for (options, expected) in [
            ("--to blocks", "policy=fileround"),
            ("--to blocks --zones 0,2-3", "policy=fileround zones=0,2,3"),
            ("--to blocks --part 1M", "policy=striping part=1048576"),
            ("--to objects", "policy=objects part=1048576"),
            ("--to objects --width 2 --zones 5,6", "policy=objects part=1048576 width=2 zones=5,6"),
        ] {
            assert_eq!(layout_of(options).as_deref(), Ok(expected), "{options}");
        }
        assert!(layout_of("--to tape").unwrap_err().contains("blocks, objects"));
        assert!(layout_of("--to objects --part 3").unwrap_err().contains("part `3`"));
    }

    #[test]
    fn files_go_to_a_pool_or_directories_to_a_metadata_server() {
        let parsed = |options: &str| {
            let line = Line::try_parse_from(format!("migrate dir {options}").split(' '));
            line.map(|line| (line.args.mds, line.args.recursive)).map_err(|error| error.to_string())
        };
        assert_eq!(parsed("--mds 1"), Ok((Some(1), false)));
        assert_eq!(parsed("--mds 0 --recursive"), Ok((Some(0), true)));
        for (options, why) in [
            ("--output json", "--to <POOL>"),
            ("--mds 1 --to blocks", "cannot be used with"),
            ("--mds 1 --zones 0", "cannot be used with"),
            ("--to blocks --recursive", "cannot be used with"),
            ("--mds 300", "300"),
        ] {
            let text = parsed(options).unwrap_err();
            assert!(text.contains(why), "{options}: {text}");
        }
    }
}
