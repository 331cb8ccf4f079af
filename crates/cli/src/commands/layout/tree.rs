//! What `redbud layout DIR` tells: the layout of the directory, and how the files below it lie.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use proto::placement::Layout;
use serde::Serialize;

use super::{attribute, failed, on_server, segments, server_of};
use crate::commands::set_layout;
use crate::exit::Failure;

/// The extended attribute through which a mount says whether a directory is spread.
const SPREAD: &str = "user.redbud.dir.spread";

/// A directory and the regular files below it, in the same mount.
#[derive(Serialize, Default, Debug)]
pub struct Tree {
    pub path: String,
    /// The metadata server that the directory lives on.
    pub mds: u8,
    /// What new files get, in the form of `redbud.dir.layout`.
    pub layout: String,
    /// It is the directory's own, or one that it has inherited.
    pub own: bool,
    /// New files in the directory go to the metadata servers that their names choose.
    pub spread: bool,
    pub files: u64,
    /// Files on each metadata server.
    pub servers: BTreeMap<u8, u64>,
    /// Files of which all blocks lie on one zone.
    pub whole: u64,
    /// Files that have blocks.
    pub mapped: u64,
    /// Segments of all files. One less for each file is the number of breaks.
    pub segments: u64,
    /// Bytes of inline data.
    pub inline: u64,
    /// Bytes in each zone.
    pub zones: BTreeMap<u16, u64>,
}

impl Tree {
    /// Reads the directory at `path`.
    ///
    /// # Errors
    /// Something cannot be read, or is not in a mount.
    pub fn read(path: &Path) -> Result<Tree, Failure> {
        let mut tree = Tree { path: path.display().to_string(), ..Tree::default() };
        match attribute(path, set_layout::ATTRIBUTE) {
            Ok(value) => {
                let layout = Layout::from_attribute(&value);
                tree.layout = layout.map_err(|error| failed(path, &error.to_string()))?.to_string();
                tree.own = true;
            }
            Err(rustix::io::Errno::NODATA) => tree.layout = Layout::default().to_string(),
            Err(error) => return Err(failed(path, &error.to_string())),
        }
        tree.spread = attribute(path, SPREAD).is_ok_and(|value| value == b"true");
        let metadata = path.metadata().map_err(|error| failed(path, &error.to_string()))?;
        tree.mds = server_of(path, &metadata);
        let mut directories = vec![path.to_owned()];
        while let Some(directory) = directories.pop() {
            let fails = |error: std::io::Error| failed(&directory, &error.to_string());
            for entry in directory.read_dir().map_err(fails)? {
                let path = entry.map_err(fails)?.path();
                // It may have been removed meanwhile.
                let Ok(found) = path.symlink_metadata() else { continue };
                if found.is_dir() && found.dev() == metadata.dev() {
                    directories.push(path);
                } else if found.is_file() {
                    match segments(&path) {
                        Ok(all) => tree.add(server_of(&path, &found), &all),
                        Err(_) if path.symlink_metadata().is_err() => {}
                        Err(failure) => return Err(failure),
                    }
                }
            }
        }
        Ok(tree)
    }

    fn add(&mut self, server: u8, segments: &[super::Segment]) {
        self.files += 1;
        *self.servers.entry(server).or_default() += 1;
        let (mut zones, mut count) = (BTreeMap::new(), 0);
        for segment in segments {
            match segment.pag {
                Some(pag) => {
                    *zones.entry(pag).or_insert(0) += segment.length;
                    count += 1;
                }
                None => self.inline += segment.length,
            }
        }
        self.mapped += u64::from(count > 0);
        self.whole += u64::from(zones.len() == 1);
        self.segments += count;
        for (zone, bytes) in zones {
            *self.zones.entry(zone).or_default() += bytes;
        }
    }

    /// For people.
    pub fn describe(&self) -> String {
        let origin = if self.own { "" } else { " (that of the file system)" };
        let on = on_server(self.mds);
        let spread = if self.spread { ", spread" } else { "" };
        let mut out = format!("{}: {}{origin}{on}{spread}\n", self.path, self.layout);
        out += &format!(
            "{} files, {} of them with blocks: {} segments, {} a file; {} files lie on one zone\n",
            self.files,
            self.mapped,
            self.segments,
            average(self.segments, self.mapped),
            self.whole,
        );
        if self.inline > 0 {
            out += &format!("{} bytes lie with the inodes\n", self.inline);
        }
        if self.servers.len() > 1 {
            let one = |(server, files): (&u8, &u64)| format!("{files} on server {server}");
            let each: Vec<String> = self.servers.iter().map(one).collect();
            out += &format!("files: {}\n", each.join(", "));
        }
        let all: u64 = self.zones.values().sum();
        for (zone, bytes) in &self.zones {
            out += &format!("zone {zone}: {bytes} bytes, {} %\n", average(bytes * 100, all));
        }
        out
    }
}

/// `sum / count` with one digit.
fn average(sum: u64, count: u64) -> String {
    if count == 0 { "0".to_owned() } else { format!("{:.1}", sum as f64 / count as f64) }
}

#[cfg(test)]
mod tests {
    use super::super::Segment;
    use super::*;

    fn segment(pag: Option<u16>, length: u64) -> Segment {
        Segment {
            offset: 0,
            length,
            pag,
            address: pag.map(|_| 0),
            state: "written".into(),
            why: None,
        }
    }

    #[test]
    fn tree_counts_files_segments_and_zones() {
        let mut tree =
            Tree { path: "d".into(), layout: "policy=fileround".into(), ..Tree::default() };
        tree.add(0, &[segment(Some(1), 3000), segment(Some(1), 1000)]);
        tree.add(0, &[segment(None, 70)]);
        tree.add(0, &[segment(Some(0), 4000), segment(Some(1), 2000)]);
        tree.add(0, &[]);
        assert_eq!(
            tree.describe(),
            "d: policy=fileround (that of the file system)\n\
             4 files, 2 of them with blocks: 4 segments, 2.0 a file; 1 files lie on one zone\n\
             70 bytes lie with the inodes\n\
             zone 0: 4000 bytes, 40.0 %\n\
             zone 1: 6000 bytes, 60.0 %\n"
        );
        let elsewhere = Tree { mds: 3, own: true, path: "d".into(), ..Tree::default() };
        assert!(elsewhere.describe().starts_with("d: , on server 3\n"));
        let mut spread = Tree { spread: true, own: true, path: "d".into(), ..Tree::default() };
        (0..3).for_each(|at| spread.add(at / 2, &[]));
        let text = spread.describe();
        assert!(text.starts_with("d: , spread\n"), "{text}");
        assert!(text.contains("\nfiles: 2 on server 0, 1 on server 1\n"), "{text}");
    }
}
