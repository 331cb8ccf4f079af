//! `redbud layout PATH`: the layout of a file, as its client reports it; of a directory, what new
//! files get, and how those below it lie.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bench::report::Columns;
use serde::{Deserialize, Serialize};
use types::Ino;

use crate::args::LayoutArgs;
use crate::exit::{Ended, Failure, Status};
use crate::output;

mod picture;
mod tree;

use tree::Tree;

/// The extended attribute through which a mount reports a file's layout.
const ATTRIBUTE: &str = "user.redbud.layout";
/// In the place of a reason.
const NOT_KNOWN: &str = "-";
/// Unit of `st_blocks`, in bytes.
const STAT_BLOCK: u64 = 512;

/// A file's layout.
#[derive(Serialize)]
struct FileLayout {
    path: String,
    /// The metadata server that the file lives on.
    mds: u8,
    size: u64,
    /// Bytes, from the beginning, that are inline data.
    inline: u64,
    segments: Vec<Segment>,
    /// Bytes of the blocks that `stat` counts: also those that are not committed yet.
    #[serde(skip)]
    allocated: u64,
}

impl FileLayout {
    fn new(
        (path, mds): (String, u8),
        size: u64,
        allocated: u64,
        segments: Vec<Segment>,
    ) -> FileLayout {
        let inline = segments.iter().filter(|segment| segment.address.is_none());
        let inline = inline.map(|segment| segment.length).sum();
        FileLayout { path, mds, size, inline, segments, allocated }
    }
}

/// A contiguous run, as the mount reports it, in bytes. Inline data has no address in a data zone.
#[derive(Serialize, Deserialize)]
struct Segment {
    offset: u64,
    length: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pag: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<u64>,
    state: String,
    /// Why it lies there, if the mount has chosen it since it opened the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

#[derive(Serialize)]
struct Report {
    version: u32,
    files: Vec<FileLayout>,
    directories: Vec<Tree>,
}

/// Prints the layouts of files and directories.
pub fn run(args: &LayoutArgs) -> Ended {
    if let Some(to) = &args.svg {
        return draw(args, to);
    }
    let (mut files, mut directories) = (Vec::new(), Vec::new());
    let mut failures = Vec::new();
    for path in &args.files {
        let read = if path.is_dir() {
            Tree::read(path).map(|tree| directories.push(tree))
        } else {
            read(path).map(|layout| files.push(layout))
        };
        failures.extend(read.err());
    }
    let none = files.is_empty() && directories.is_empty();
    let last = failures.pop();
    if let Some(failure) = last.clone().filter(|_| none && failures.is_empty()) {
        return Err(failure);
    }
    let status = if none { Status::Failed } else { Status::Partial };
    output::print_report(args.output, &Report { version: 1, files, directories }, |report| {
        let files = report.files.iter().map(describe);
        files.chain(report.directories.iter().map(Tree::describe)).collect()
    })?;
    for failure in failures {
        output::eprint_line(&format!("redbud: {failure}"));
    }
    last.map_or(Ok(0), |failure| Err(failure.with_code(status as u8)))
}

/// Draws one file.
fn draw(args: &LayoutArgs, to: &Path) -> Ended {
    let [path] = &args.files[..] else {
        return Err(Failure::usage("--svg draws one file"));
    };
    let picture = picture::svg(&read(path)?);
    std::fs::write(to, picture).map_err(|error| failed(to, &error.to_string()))?;
    Ok(0)
}

/// A failure that names the path.
pub fn failed(path: &Path, text: &str) -> Failure {
    Failure::failed("RB-LAYOUT", format!("{}: {text}", path.display()))
}

/// The segments of a file, as its mount reports them part by part.
fn segments(path: &Path) -> Result<Vec<Segment>, Failure> {
    let mut all: Vec<Segment> = Vec::new();
    loop {
        let from = all.last().map_or(0, |last| last.offset + last.length);
        let bytes =
            attribute(path, &format!("{ATTRIBUTE}@{from}")).map_err(|error| match error {
                rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP => {
                    failed(path, "does not lie in a Redbud mount")
                }
                error => failed(path, &error.to_string()),
            })?;
        let mut part: Vec<Segment> = serde_json::from_slice(&bytes).map_err(|error| {
            failed(path, &format!("the mount returned an invalid layout: {error}"))
        })?;
        // A segment may have grown since the part before was read.
        if let Some(first) = part.first_mut()
            && let Some(known) = from.checked_sub(first.offset)
        {
            first.offset = from;
            first.length = first.length.saturating_sub(known);
            first.address = first.address.map(|address| address + known);
        }
        if part.is_empty() {
            return Ok(all);
        }
        all.extend(part);
    }
}

/// The attribute with the metadata server of a file or directory.
const SERVER: &str = "user.redbud.mds";

/// The metadata server that a file or directory lives on: as its mount says, or that of its number.
fn server_of(path: &Path, metadata: &std::fs::Metadata) -> u8 {
    let said = attribute(path, SERVER).ok().and_then(|value| String::from_utf8(value).ok());
    let said = said.and_then(|text| text.parse().ok());
    said.unwrap_or_else(|| Ino(metadata.ino()).shard().0)
}

/// The end of a line about what lives on a metadata server; server 0, which may be the only one, is
/// not named.
fn on_server(server: u8) -> String {
    if server == 0 { String::new() } else { format!(", on server {server}") }
}

fn read(path: &Path) -> Result<FileLayout, Failure> {
    let metadata = std::fs::metadata(path).map_err(|error| failed(path, &error.to_string()))?;
    if !metadata.is_file() {
        return Err(failed(path, "only regular files and directories have a layout"));
    }
    let segments = segments(path)?;
    let allocated = metadata.blocks() * STAT_BLOCK;
    let place = (path.display().to_string(), server_of(path, &metadata));
    Ok(FileLayout::new(place, metadata.len(), allocated, segments))
}

/// Reads an attribute; its value may grow between the two calls.
pub fn attribute(path: &Path, name: &str) -> Result<Vec<u8>, rustix::io::Errno> {
    let mut room = 4096;
    loop {
        let mut value = vec![0u8; room];
        match rustix::fs::getxattr(path, name, &mut value[..]) {
            Ok(length) => {
                value.truncate(length);
                return Ok(value);
            }
            // Linux has no longer values than 64 KiB.
            Err(rustix::io::Errno::RANGE) if room < 64 << 10 => room *= 2,
            Err(error) => return Err(error),
        }
    }
}

fn describe(file: &FileLayout) -> String {
    let mut table = Columns::new(&["offset", "length", "pag", "address", "state", "why"]);
    let mut count = 0;
    for segment in &file.segments {
        let (Some(pag), Some(address)) = (segment.pag, segment.address) else { continue };
        count += 1;
        table.row(vec![
            segment.offset.to_string(),
            segment.length.to_string(),
            pag.to_string(),
            address.to_string(),
            segment.state.clone(),
            segment.why.clone().unwrap_or_else(|| NOT_KNOWN.to_owned()),
        ]);
    }
    let segments = if count == 1 { "1 segment".into() } else { format!("{count} segments") };
    let lies = match (file.inline, count, file.allocated) {
        (0, 0, 1..) => "not committed yet: its data has no place so far".into(),
        (0, ..) => segments,
        (_, 0, _) => "inline: the content lies with the inode".into(),
        (inline, ..) => format!("inline {inline} bytes, which lie with the inode, and {segments}"),
    };
    let on = on_server(file.mds);
    let head = format!("{}: {} bytes, {lies}{on}\n", file.path, file.size);
    let unknown = file.segments.iter().any(|one| one.pag.is_some() && one.why.is_none());
    let note = if unknown {
        format!(
            "{NOT_KNOWN}: another mount chose the place, or this one before it opened the file\n"
        )
    } else {
        String::new()
    };
    if count == 0 { head } else { head + &table.text() + &note }
}

#[cfg(test)]
mod tests {
    use types::limits::BLOCK_U64;

    use super::*;

    fn head(allocated: u64, segments: Vec<Segment>) -> String {
        let file = FileLayout::new(("f".into(), 0), 9000, allocated, segments);
        describe(&file).lines().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn inline_data_is_no_segment() {
        let inline = Segment {
            offset: 0,
            length: 700,
            pag: None,
            address: None,
            state: "inline".into(),
            why: None,
        };
        let mapped = Segment {
            offset: 4096,
            length: 8192,
            pag: Some(1),
            address: Some(65536),
            state: "written".into(),
            why: None,
        };
        let text = "f: 9000 bytes, inline: the content lies with the inode";
        assert_eq!(head(BLOCK_U64, vec![inline]), text);
        assert_eq!(head(8192, vec![mapped]), "f: 9000 bytes, 1 segment");
    }

    #[test]
    fn uncommitted_data_is_not_a_hole() {
        let text = "f: 9000 bytes, not committed yet: its data has no place so far";
        assert_eq!(head(3 * BLOCK_U64, Vec::new()), text);
        assert_eq!(head(0, Vec::new()), "f: 9000 bytes, 0 segments");
    }
}
