//! The binary under other names: mount(8) runs `mount.redbud` (or
//! `mount.fuse.redbud`) as `mount.TYPE SOURCE DIR [-sfnv] [-N NS] [-o OPTIONS]
//! [-t TYPE]`, umount(8) runs `umount.redbud DIR [-flnrv]`, fsck(8) runs
//! `fsck.redbud [-apny] FILE`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::args::{FsckArgs, MountArgs, Output, UmountArgs};
use crate::exit::{self, Failure, Status};

/// What a helper is asked to do.
#[derive(Debug)]
pub enum Run {
    /// A rehearsal: `-f`.
    Nothing,
    /// Mount.
    Mount(MountArgs),
    /// Unmount.
    Umount(UmountArgs),
    /// Check.
    Fsck(FsckArgs),
}

/// What `arguments` ask of a helper; `None` if the binary runs under its own name.
pub fn arguments(arguments: &[OsString]) -> Option<Result<Run, Failure>> {
    let (name, rest) = arguments.split_first()?;
    let name = Path::new(name).file_name()?.to_string_lossy().into_owned();
    let words: Vec<String> = rest.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    match name.as_str() {
        "mount.redbud" | "mount.fuse.redbud" => Some(mount(&words)),
        "umount.redbud" | "umount.fuse.redbud" => Some(umount(&words)),
        "fsck.redbud" => Some(fsck(&words)),
        _ => None,
    }
}

/// Options with a letter each, an argument for those in `with_value`, and the rest.
struct Words {
    flags: Vec<char>,
    values: Vec<(char, String)>,
    rest: Vec<String>,
}

fn split(words: &[String], with_value: &str) -> Option<Words> {
    let mut split = Words { flags: Vec::new(), values: Vec::new(), rest: Vec::new() };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            split.rest.push(word.clone());
            continue;
        };
        let mut letters = letters.chars();
        while let Some(letter) = letters.next() {
            if !with_value.contains(letter) {
                split.flags.push(letter);
                continue;
            }
            let attached = letters.as_str();
            let value =
                if attached.is_empty() { words.next()?.clone() } else { attached.to_owned() };
            split.values.push((letter, value));
            break;
        }
    }
    Some(split)
}

fn mount(words: &[String]) -> Result<Run, Failure> {
    let usage = || {
        let text =
            "usage: mount.redbud host[:port][,host[:port]]:/fsname[/subdir] DIR [-o OPTIONS]";
        Failure::usage(text).with_code(exit::mount::USAGE)
    };
    let words = split(words, "oNt").ok_or_else(usage)?;
    let [source, mount] = words.rest.as_slice() else { return Err(usage()) };
    if words.flags.contains(&'f') {
        return Ok(Run::Nothing);
    }
    let options = words.values.into_iter().filter(|(letter, _)| *letter == 'o');
    Ok(Run::Mount(MountArgs {
        source: source.clone(),
        mount: PathBuf::from(mount),
        options: options.map(|(_, value)| value).collect(),
        foreground: false,
        parent: None,
        daemon: false,
    }))
}

fn umount(words: &[String]) -> Result<Run, Failure> {
    let usage = || Failure::new(Status::Failed, "", "usage: umount.redbud DIR [-l]");
    let words = split(words, "Nt").ok_or_else(usage)?;
    let [mount] = words.rest.as_slice() else { return Err(usage()) };
    Ok(Run::Umount(UmountArgs { mount: PathBuf::from(mount), lazy: words.flags.contains(&'l') }))
}

fn fsck(words: &[String]) -> Result<Run, Failure> {
    let usage = || Failure::usage("usage: fsck.redbud [-y] FILE").with_code(exit::fsck::USAGE);
    let words = split(words, "C").ok_or_else(usage)?;
    let [target] = words.rest.as_slice() else { return Err(usage()) };
    let repair = words.flags.contains(&'y') && !words.flags.contains(&'n');
    Ok(Run::Fsck(FsckArgs {
        target: Some(target.into()),
        repair,
        relabel: Vec::new(),
        jobs: None,
        list: false,
        ignored: 0,
        output: Output::default(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Option<Result<Run, Failure>> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        arguments(&words)
    }

    #[test]
    fn mount_8_finds_its_helper() {
        let line =
            "/sbin/mount.redbud h:/fs /mnt -sv -N /proc/1/ns/mnt -o rw,noatime -ouser -t redbud";
        match run(line) {
            Some(Ok(Run::Mount(args))) => {
                assert_eq!(
                    (args.source.as_str(), args.mount.as_path()),
                    ("h:/fs", Path::new("/mnt"))
                );
                assert_eq!(args.options, ["rw,noatime", "user"]);
                assert!(!args.foreground);
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(run("mount.fuse.redbud h:/fs /mnt -f"), Some(Ok(Run::Nothing))));
        assert!(run("redbud mount h:/fs /mnt").is_none());
    }

    #[test]
    fn wrong_usage_has_the_exit_status_of_the_calling_program() {
        let code = |line: &str| run(line).unwrap().unwrap_err().code;
        assert_eq!(code("mount.redbud /mnt"), exit::mount::USAGE);
        assert_eq!(code("mount.redbud a b -o"), exit::mount::USAGE);
        assert_eq!(code("fsck.redbud"), exit::fsck::USAGE);
        assert_eq!(code("umount.redbud a b"), 1);
    }
}
