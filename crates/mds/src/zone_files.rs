//! Names the files with blocks in a data zone, part by part: an administrator asks for one after
//! the other, and the server keeps nothing in between.

use std::ops::Range;

use mfs::{Cost, StoreError, ZoneWalk};
use types::json::Json;
use types::{DirNo, Duration, Ino, PagId};

use crate::server::Server;

/// For how long the server collects a part.
const PART_TIME: Duration = Duration::from_millis(100);
/// Files of a part, after which it ends.
const PART_FILES: usize = 500;
/// Second word of a place in the tree of segments; blocks of directory content have 32 bits.
const IN_TREE: u64 = 1 << 63;

/// A file with blocks in the zone.
pub struct ZoneFile {
    ino: Ino,
    /// A path of it; `None`: it has none, or its first name was removed.
    path: Option<String>,
    /// It has no name.
    orphan: bool,
}

/// Some of the files, and where to go on.
pub struct Part {
    files: Vec<ZoneFile>,
    next: Option<ZoneWalk>,
}

impl Part {
    /// Adds the fields of the answer.
    pub fn add_to(&self, out: &mut Json) {
        out.key("files");
        out.open('[');
        for file in &self.files {
            out.item();
            out.open('{');
            out.number("ino", file.ino.0);
            match &file.path {
                Some(path) => out.text("path", path),
                None => {
                    out.key("path");
                    out.raw("null");
                }
            }
            out.flag("orphan", file.orphan);
            out.close('}');
        }
        out.close(']');
        out.key("next");
        match self.next {
            Some(at) => {
                let (first, second) = words(at);
                // Numbers of 64 bits are texts in JSON, so that every reader keeps them.
                out.open('[');
                for word in [first, second] {
                    out.item();
                    out.string(&word.to_string());
                }
                out.close(']');
            }
            None => out.raw("null"),
        }
    }
}

fn words(at: ZoneWalk) -> (u64, u64) {
    match at {
        ZoneWalk::Content(chunk, block) => (chunk.0, u64::from(block)),
        ZoneWalk::Segments(ino, file) => (ino.0, file | IN_TREE),
    }
}

fn place((first, second): (u64, u64)) -> ZoneWalk {
    match second & IN_TREE {
        0 => ZoneWalk::Content(DirNo(first), second.min(u64::from(u32::MAX)) as u32),
        _ => ZoneWalk::Segments(Ino(first), second & !IN_TREE),
    }
}

/// Files with some of these blocks of the zone, from `at` on.
///
/// # Errors
/// There is no such zone; what of the metadata cannot be read.
pub async fn part(
    server: &Server,
    pag: PagId,
    blocks: Range<u64>,
    at: (u64, u64),
) -> Result<Part, String> {
    let runtime = &server.runtime;
    if server.space.zones().iter().all(|zone| zone.id != pag) {
        return Err(format!(
            "the file system has no data zone {pag}: `redbud pag list` shows them"
        ));
    }
    let failed = |error: StoreError| {
        runtime.note_failure(&error, "looking for the files of a data zone");
        format!("{error}: the list cannot be completed; `redbud scrub` says what is damaged")
    };
    let (mut files, mut next) = (Vec::new(), Some(place(at)));
    let begun = runtime.env.now();
    while let Some(at) = next {
        if files.len() >= PART_FILES || runtime.env.now().since(begun) >= PART_TIME {
            break;
        }
        let (found, then) = runtime.mfs.zone_files(pag, &blocks, at).await.map_err(failed)?;
        for ino in found {
            files.extend(file(server, ino).await.map_err(failed)?);
        }
        next = then;
        // Others go first.
        runtime.env.yield_now().await;
    }
    Ok(Part { files, next })
}

/// The file; `None`: it was removed meanwhile.
async fn file(server: &Server, ino: Ino) -> Result<Option<ZoneFile>, StoreError> {
    let look = server.runtime.mfs.run(Cost::READ, |txn| {
        let Some(attr) = txn.names().attr(ino)? else { return Ok(None) };
        let path = if attr.nlink == 0 { None } else { txn.names().path(ino)? };
        let path = path.map(|path| String::from_utf8_lossy(&path).into_owned());
        Ok(Some(ZoneFile { ino, path, orphan: attr.nlink == 0 }))
    });
    Ok(look.await?.0)
}
