//! `redbud durable PATH`: what of a file or directory is not durable yet, how much, and how old.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;
use types::units::human_size;

use crate::args::DurableArgs;
use crate::commands::layout::attribute;
use crate::commands::status::problems::number;
use crate::commands::status::text::ago;
use crate::exit::{Ended, Failure, Status};
use crate::output;

/// The extended attribute through which a mount reports it.
const ATTRIBUTE: &str = "user.redbud.durable";

#[derive(Serialize)]
struct Report {
    version: u32,
    files: Vec<File>,
}

#[derive(Serialize)]
struct File {
    path: String,
    #[serde(flatten)]
    owed: Value,
}

/// Prints what is not durable.
pub fn run(args: &DurableArgs) -> Ended {
    let files: Vec<File> =
        args.paths.iter().map(|path| read(path)).collect::<Result<_, Failure>>()?;
    let all = files.iter().all(|file| file.owed["durable"] == true);
    output::print_report(args.output, &Report { version: 1, files }, |report| {
        report.files.iter().map(|file| format!("{}: {}\n", file.path, describe(file))).collect()
    })?;
    Ok(if all { 0 } else { Status::Partial as u8 })
}

fn read(path: &Path) -> Result<File, Failure> {
    let failed =
        |text: String| Failure::failed("RB-DURABLE", format!("{}: {text}", path.display()));
    let bytes = attribute(path, ATTRIBUTE).map_err(|error| match error {
        rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP => {
            failed("does not lie in a Redbud mount".into())
        }
        error => failed(error.to_string()),
    })?;
    let owed = serde_json::from_slice(&bytes)
        .map_err(|error| failed(format!("the mount returned an invalid answer: {error}")))?;
    Ok(File { path: path.display().to_string(), owed })
}

fn describe(file: &File) -> String {
    let owed = &file.owed;
    if owed["durable"] == true {
        return "durable".into();
    }
    let bytes = |key: &str, what: &str| {
        let bytes = number(&owed[key]);
        (bytes > 0).then(|| format!("{} {what}", human_size(bytes)))
    };
    let flag = |key: &str, what: &str| (owed[key] == true).then(|| what.to_owned());
    let count = |key: &str, what: &str| {
        let count = number(&owed[key]);
        (count > 0).then(|| format!("{count} {what}"))
    };
    let parts = [
        bytes("dirty_bytes", "in memory"),
        bytes("in_flight_bytes", "being written"),
        flag("unflushed", "written in place and not flushed"),
        count("edits", "changes of the layout not sent"),
        flag("committing", "a commit under way"),
        flag("attributes", "size or times not sent"),
        count("changes", "changes at the server, not in its flushed log"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let lost = match owed["lost"] == true {
        true => "lost: written content is gone, and no program has heard of it: write it again",
        false => "",
    };
    if parts.is_empty() && !lost.is_empty() {
        return lost.into();
    }
    let age = ago(number(&owed["age_ms"]));
    let owes = format!("not durable: {}; the oldest {age}", parts.join(", "));
    if lost.is_empty() { owes } else { format!("{lost}; {owes}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{File, describe};

    #[test]
    fn lost_content_is_named_first() {
        let text = |owed| describe(&File { path: "f".into(), owed });
        assert_eq!(text(json!({"durable": true, "lost": false})), "durable");
        let lost = text(json!({"durable": false, "lost": true}));
        assert!(lost.starts_with("lost: ") && !lost.contains("not durable"), "{lost}");
        let both = text(json!({"durable": false, "lost": true, "changes": 2}));
        assert!(both.starts_with("lost: ") && both.contains("not durable: 2 changes"), "{both}");
    }
}
