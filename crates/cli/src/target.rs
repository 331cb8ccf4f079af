//! The target of an administrator's command: a path in a mount, a mount source, a cluster's file,
//! or the directory of `redbud local`.

use std::path::{Path, PathBuf};

use crate::commands::umount;
use crate::config::{Cluster, ClusterFile};
use crate::exit::Failure;
use crate::mountinfo::{self, Mounted};
use crate::registry::{self, Kind};
use crate::source::Source;

/// The cluster's file in the directory of `redbud local`.
pub const LOCAL_CONFIG: &str = "cluster.toml";

/// Finds the file system that `text` names.
pub fn source(text: &str) -> Result<Source, Failure> {
    let path = Path::new(text);
    // The mount table suffices; the server may be away.
    if let Ok(Some(mount)) = umount::resolve(path).and_then(|whole| mountinfo::mount_at(&whole)) {
        return mount_source(path, &mount.source);
    }
    // A mount whose client died exists, although system calls on it fail.
    let missing = path.symlink_metadata().is_err_and(|error| {
        matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
    });
    if !missing || text.starts_with('/') {
        if let Some(file) = config_file(path) {
            let file = read_cluster(&file)?;
            let cluster = file.any();
            return Ok(Source {
                servers: cluster.servers(),
                fs_name: cluster.name.clone(),
                dir: Vec::new(),
                cluster: Some(cluster.file.clone()),
                server: None,
            });
        }
        return mounted(path);
    }
    Source::parse(text).map(Source::whole).map_err(Failure::usage)
}

/// Redbud's mounts of this process's namespace.
pub fn mounts() -> Result<Vec<Mounted>, Failure> {
    mountinfo::redbud_mounts()
        .map_err(|error| Failure::failed("RB-MOUNTINFO", format!("/proc/self/mountinfo: {error}")))
}

/// Every file system mounted on this host, each once.
pub fn all_mounted() -> Result<Vec<Source>, Failure> {
    let mut sources: Vec<Source> = Vec::new();
    for source in mounts()?.iter().filter_map(|mount| Source::parse(&mount.source).ok()) {
        let source = source.whole();
        if !sources.contains(&source) {
            sources.push(source);
        }
    }
    Ok(sources)
}

/// Every file system that is mounted or served on this host, each once.
pub fn all_here() -> Result<Vec<Source>, Failure> {
    let mut sources = all_mounted()?;
    let running = registry::running().into_iter().map(|(_, one)| one);
    let servers = running.filter(|one| one.kind == Kind::Mds);
    for source in servers.filter_map(|one| Source::parse(&one.source).ok()) {
        if !sources.iter().any(|known| known.is_same_as(&source)) {
            sources.push(source);
        }
    }
    Ok(sources)
}

/// The file system that `target` names, or the only one that is mounted or served on this host.
pub fn source_or_only(target: Option<&String>) -> Result<Source, Failure> {
    if let Some(text) = target {
        return source(text);
    }
    let mut here = all_here()?;
    match (here.pop(), here.is_empty()) {
        (Some(only), true) => Ok(only),
        (None, _) => {
            Err(Failure::usage("no Redbud file system is mounted or served here: name a target"))
        }
        _ => Err(Failure::usage("there are several file systems on this host: name a target")),
    }
}

/// The cluster as each of its servers sees it, in the order of their numbers; with `server`, as
/// that one does.
pub fn chosen(file: ClusterFile, server: Option<u16>) -> Result<Vec<Cluster>, Failure> {
    match server {
        None => Ok(file.servers),
        chosen => Ok(vec![file.server(chosen).map_err(Failure::usage)?]),
    }
}

/// The cluster that `path`, a file or the directory of `redbud local`, describes.
pub fn cluster(path: &Path) -> Result<ClusterFile, Failure> {
    match config_file(path) {
        Some(file) => read_cluster(&file),
        None if path.is_dir() => {
            let text = format!(
                "{}: has no {LOCAL_CONFIG}: it is not a directory of `redbud local`",
                path.display()
            );
            Err(Failure::usage(text))
        }
        None => read_cluster(path),
    }
}

fn read_cluster(file: &Path) -> Result<ClusterFile, Failure> {
    ClusterFile::read(file).map_err(|error| Failure::usage(error.to_string()))
}

fn config_file(path: &Path) -> Option<PathBuf> {
    let inside = path.join(LOCAL_CONFIG);
    if inside.is_file() {
        return Some(inside);
    }
    let is_config = path.extension().is_some_and(|extension| extension == "toml") && path.is_file();
    // A file in a mount means its mount, whatever its name.
    (is_config && mounted(path).is_err()).then(|| path.to_owned())
}

fn mounted(path: &Path) -> Result<Source, Failure> {
    let wrong = |text: String| Failure::usage(format!("{}: {text}", path.display()));
    // A mount whose client died cannot be resolved; the directories above it can.
    let whole = path.canonicalize().or_else(|_| umount::resolve(path));
    let whole = whole.map_err(|error| wrong(error.to_string()))?;
    let mount = mountinfo::mount_of(&whole).map_err(|error| wrong(error.to_string()))?;
    let mount = mount.ok_or_else(|| {
        wrong(
            "neither in a Redbud mount, nor a cluster's file, nor a directory of `redbud local`"
                .into(),
        )
    })?;
    mount_source(path, &mount.source)
}

fn mount_source(path: &Path, source: &str) -> Result<Source, Failure> {
    let wrong = |text: String| Failure::usage(format!("{}: {text}", path.display()));
    Source::parse(source).map(Source::whole).map_err(wrong)
}
