//! The binary as a helper of other programs: mount(8) runs `mount.redbud` (or
//! `mount.fuse.redbud`) as `mount.TYPE SOURCE DIR [-sfnv] [-N NS] [-o OPTIONS]
//! [-t TYPE]`, umount(8) runs `umount.redbud DIR [-flnrv]`, fsck(8) runs
//! `fsck.redbud [-apny] FILE`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::args::{FsckArgs, MountArgs, Output, UmountArgs};
use crate::exit::{self, Failure, Status};

/// What the calling program asks the helper to do.
#[derive(Debug)]
pub enum HelperCommand {
    /// Nothing: `-f` is a dry run.
    Nothing,
    /// Mount.
    Mount(MountArgs),
    /// Unmount.
    Umount(UmountArgs),
    /// Check.
    Fsck(FsckArgs),
}

/// Parses the arguments of a helper; `None` if the binary runs under its own name.
pub fn arguments(arguments: &[OsString]) -> Option<Result<HelperCommand, Failure>> {
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

/// Parsed arguments: one-letter flags, one-letter options with a value, and operands.
struct Words {
    flags: Vec<char>,
    values: Vec<(char, String)>,
    operands: Vec<String>,
}

fn split(words: &[String], with_value: &str) -> Option<Words> {
    let mut split = Words { flags: Vec::new(), values: Vec::new(), operands: Vec::new() };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            split.operands.push(word.clone());
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

fn mount(words: &[String]) -> Result<HelperCommand, Failure> {
    let usage = || {
        let text =
            "usage: mount.redbud host[:port][,host[:port]]:/fsname[/subdir] DIR [-o OPTIONS]";
        Failure::usage(text).with_code(exit::mount::USAGE)
    };
    let words = split(words, "oNt").ok_or_else(usage)?;
    let [source, mount] = words.operands.as_slice() else { return Err(usage()) };
    if words.flags.contains(&'f') {
        return Ok(HelperCommand::Nothing);
    }
    let options = words.values.into_iter().filter(|(letter, _)| *letter == 'o');
    Ok(HelperCommand::Mount(MountArgs {
        source: source.clone(),
        mount: PathBuf::from(mount),
        options: options.map(|(_, value)| value).collect(),
        foreground: false,
        allow_unzoned: false,
        parent: None,
        daemon: false,
    }))
}

fn umount(words: &[String]) -> Result<HelperCommand, Failure> {
    let usage = || Failure::new(Status::Failed, "", "usage: umount.redbud DIR [-l]");
    let words = split(words, "Nt").ok_or_else(usage)?;
    let [mount] = words.operands.as_slice() else { return Err(usage()) };
    Ok(HelperCommand::Umount(UmountArgs {
        mount: PathBuf::from(mount),
        lazy: words.flags.contains(&'l'),
    }))
}

fn fsck(words: &[String]) -> Result<HelperCommand, Failure> {
    let usage = || Failure::usage("usage: fsck.redbud [-y] FILE").with_code(exit::fsck::USAGE);
    let words = split(words, "C").ok_or_else(usage)?;
    let [target] = words.operands.as_slice() else { return Err(usage()) };
    let repair = words.flags.contains(&'y') && !words.flags.contains(&'n');
    Ok(HelperCommand::Fsck(FsckArgs {
        target: Some(target.into()),
        repair,
        server: None,
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

    fn run(line: &str) -> Option<Result<HelperCommand, Failure>> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        arguments(&words)
    }

    #[test]
    fn mount_8_finds_its_helper() {
        let line =
            "/sbin/mount.redbud h:/fs /mnt -sv -N /proc/1/ns/mnt -o rw,noatime -ouser -t redbud";
        match run(line) {
            Some(Ok(HelperCommand::Mount(args))) => {
                assert_eq!(
                    (args.source.as_str(), args.mount.as_path()),
                    ("h:/fs", Path::new("/mnt"))
                );
                assert_eq!(args.options, ["rw,noatime", "user"]);
                assert!(!args.foreground);
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(run("mount.fuse.redbud h:/fs /mnt -f"), Some(Ok(HelperCommand::Nothing))));
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
