//! Small files by system calls: PostMark, web content, a source tree.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::sys::{self, Os};
use super::{Work, names};
use crate::scripts::polygraph;
use crate::scripts::postmark::{self, name};
use crate::scripts::source::{self, COMPILE};

/// Largest file of any script, and a page more.
const LARGEST: usize = 1 << 20;
/// A new file is written.
const NEW: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;

fn c_name(text: String) -> Os<CString> {
    CString::new(text).map_err(|error| error.to_string())
}

/// What comes into files and out of them.
struct Contents {
    buffer: Vec<u8>,
    /// Are they written and read? Else only the space for them is got.
    real: bool,
}

impl Contents {
    fn new(real: bool) -> Contents {
        Contents { buffer: vec![0x5a; LARGEST], real }
    }

    /// Adds so many bytes to the end of a file.
    fn append(&self, dir: &OwnedFd, name: &CString, flags: i32, bytes: u64) -> Os<()> {
        let file = sys::open(Some(dir), name, flags | libc::O_WRONLY)?;
        if self.real {
            sys::write_at(&file, &self.buffer[..bytes as usize], 0)?;
        } else {
            let end = if flags == NEW { 0 } else { sys::stat(dir, name)?.st_size as u64 };
            sys::allocate(&file, end, bytes)?;
        }
        sys::close(file)
    }

    /// Reads a file to its end.
    fn read(&mut self, dir: &OwnedFd, name: &CString) -> Os<()> {
        let bytes = sys::stat(dir, name)?.st_size as u64;
        let file = sys::open(Some(dir), name, libc::O_RDONLY)?;
        let mut at = 0;
        while self.real && at < bytes {
            let part = ((bytes - at) as usize).min(self.buffer.len());
            sys::read_at(&file, &mut self.buffer[..part], at)?;
            at += part as u64;
        }
        sys::close(file)
    }
}

fn make_dir(path: &Path) -> Os<()> {
    std::fs::create_dir(path).map_err(|error| format!("mkdir {}: {error}", path.display()))
}

/// PostMark in an existing directory: a pool of files, transactions on it, and all of it goes.
pub fn postmark(dir: &Path, script: postmark::Script, content: bool) -> Os<Work> {
    use postmark::Deed;
    let dir = sys::open_dir(dir)?;
    let steps = script.steps();
    Ok(Box::new(move || {
        let mut contents = Contents::new(content);
        for deed in script {
            match deed {
                Deed::Make { file, bytes } => {
                    contents.append(&dir, &c_name(name(file))?, NEW, bytes)?;
                }
                Deed::Read { file } => contents.read(&dir, &c_name(name(file))?)?,
                Deed::Append { file, bytes } => {
                    contents.append(&dir, &c_name(name(file))?, libc::O_APPEND, bytes)?;
                }
                Deed::Delete { file } => sys::unlink(&dir, &c_name(name(file))?)?,
            }
        }
        Ok((steps, String::new()))
    }))
}

/// Web content below an existing directory: it is made, or every file is read.
pub fn web(top: &Path, deeds: Vec<polygraph::Deed>, read: bool, content: bool) -> Work {
    use polygraph::Deed;
    let mut dirs: Vec<PathBuf> = vec![top.to_owned()];
    Box::new(move || {
        let mut contents = Contents::new(content);
        let mut ops = 0;
        for deed in deeds {
            match deed {
                Deed::Dir { within, name } => {
                    let path = dirs[within].join(name);
                    if !read {
                        make_dir(&path)?;
                    }
                    dirs.push(path);
                }
                Deed::File { within, name, bytes } => {
                    let (dir, name) = (sys::open_dir(&dirs[within])?, c_name(name)?);
                    if read {
                        contents.read(&dir, &name)?;
                    } else {
                        contents.append(&dir, &name, NEW, bytes)?;
                    }
                    ops += 1;
                }
            }
        }
        Ok((ops, String::new()))
    })
}

/// A step with a source tree below an existing directory.
pub fn source(top: &Path, deeds: Vec<source::Deed>) -> Work {
    use source::Deed;
    let mut dirs: Vec<PathBuf> = vec![top.to_owned()];
    Box::new(move || {
        let mut contents = Contents::new(false);
        let mut ops = 0;
        for deed in deeds {
            ops += u64::from(deed.counts());
            match deed {
                Deed::NewDir { within, name } => {
                    dirs.push(dirs[within].join(name));
                    make_dir(&dirs[dirs.len() - 1])?;
                }
                Deed::Dir { within, name } => {
                    let (dir, path) = (sys::open_dir(&dirs[within])?, dirs[within].join(&name));
                    sys::stat(&dir, &c_name(name)?)?;
                    dirs.push(path);
                }
                Deed::Unpack { within, name, bytes } => {
                    let (dir, name) = (sys::open_dir(&dirs[within])?, c_name(name)?);
                    contents.append(&dir, &name, NEW, bytes)?;
                    sys::utime(&dir, &name)?;
                }
                Deed::Read { within, name } => {
                    contents.read(&sys::open_dir(&dirs[within])?, &c_name(name)?)?;
                }
                Deed::Compile => {
                    std::thread::sleep(std::time::Duration::from_nanos(COMPILE.as_nanos() as u64));
                }
                Deed::Object { within, name, bytes } => {
                    let dir = sys::open_dir(&dirs[within])?;
                    contents.append(&dir, &c_name(name)?, NEW, bytes)?;
                }
                Deed::List { within } => {
                    names::list(&dirs[within], false)?()?;
                }
                Deed::Delete { within, name } => {
                    sys::unlink(&sys::open_dir(&dirs[within])?, &c_name(name)?)?;
                }
            }
        }
        Ok((ops, String::new()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postmark_removes_its_files_and_web_reads_back_unchanged() {
        let dir = std::env::temp_dir().join(format!("redbud-bench-pool-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let left = || std::fs::read_dir(&dir).unwrap().count();
        for content in [true, false] {
            let script = postmark::Script::new(3, 50, 200);
            assert_eq!(super::postmark(&dir, script, content).unwrap()().unwrap().0, 250);
            assert_eq!(left(), 0);
            let deeds = |webs| polygraph::script(5, webs, 1);
            assert_eq!(web(&dir, deeds(1), false, content)().unwrap().0, 64);
            assert_eq!(left(), 1);
            assert_eq!(web(&dir, deeds(1), true, content)().unwrap().0, 64);
            assert!(web(&dir, deeds(2), true, content)().is_err(), "a second web was not made");
            std::fs::remove_dir_all(dir.join("web0000")).unwrap();
        }
        std::fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn source_tree_is_unpacked_compiled_and_cleaned() {
        let dir = std::env::temp_dir().join(format!("redbud-bench-tree-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let tree = source::Source::new(12);
        let did = |step| super::source(&dir, tree.script(4, step))().unwrap().0;
        let unpacked = did(source::Step::Unpack);
        assert!(unpacked >= 12);
        let compiled = did(source::Step::Compile);
        assert!(compiled >= unpacked / 2);
        assert_eq!(did(source::Step::Clean), compiled);
        let found = std::process::Command::new("find").arg(&dir).args(["-name", "*.[co]"]).output();
        let found = String::from_utf8(found.unwrap().stdout).unwrap();
        assert_eq!(found.lines().count() as u64, unpacked, "only the sources are left: {found}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
