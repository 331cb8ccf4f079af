//! PostMark and web content by system calls.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::Work;
use super::sys::{self, Os};
use crate::small::polygraph;
use crate::small::postmark::{Deed, Script, name};

/// Largest file of any script, and a page more.
const LARGEST: usize = 1 << 20;

fn c_name(text: String) -> Os<CString> {
    CString::new(text).map_err(|error| error.to_string())
}

/// Reads a file to its end.
fn read_all(dir: &OwnedFd, name: &CString, buffer: &mut [u8]) -> Os<()> {
    let bytes = sys::stat(dir, name)?.st_size as u64;
    let file = sys::open(Some(dir), name, libc::O_RDONLY)?;
    let mut at = 0;
    while at < bytes {
        let part = ((bytes - at) as usize).min(buffer.len());
        sys::read_at(&file, &mut buffer[..part], at)?;
        at += part as u64;
    }
    sys::close(file)
}

/// PostMark in an existing directory: a pool of files, transactions on it, and all of it goes.
pub fn postmark(dir: &Path, number: u64, files: u64, transactions: u64) -> Os<Work> {
    let dir = sys::open_dir(dir)?;
    Ok(Box::new(move || {
        let mut buffer = vec![0x5a_u8; LARGEST];
        let make = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
        for deed in Script::new(number, files, transactions) {
            match deed {
                Deed::Make { file, bytes } => {
                    let file = sys::open(Some(&dir), &c_name(name(file))?, make)?;
                    sys::write_at(&file, &buffer[..bytes as usize], 0)?;
                    sys::close(file)?;
                }
                Deed::Read { file } => read_all(&dir, &c_name(name(file))?, &mut buffer)?,
                Deed::Append { file, bytes } => {
                    let name = c_name(name(file))?;
                    let file = sys::open(Some(&dir), &name, libc::O_WRONLY | libc::O_APPEND)?;
                    sys::write_at(&file, &buffer[..bytes as usize], 0)?;
                    sys::close(file)?;
                }
                Deed::Delete { file } => sys::unlink(&dir, &c_name(name(file))?)?,
            }
        }
        Ok((files + transactions, String::new()))
    }))
}

/// Web content below an existing directory: it is made, or every file is read.
pub fn web(top: &Path, number: u64, webs: u64, files: u64, read: bool) -> Os<Work> {
    let top = top.to_owned();
    let deeds = polygraph::script(number, webs, files);
    Ok(Box::new(move || {
        let mut buffer = vec![0x3c_u8; LARGEST];
        let mut dirs: Vec<PathBuf> = vec![top];
        let mut ops = 0;
        for deed in &deeds {
            match deed {
                polygraph::Deed::Dir { within, name } => {
                    let path = dirs[*within].join(name);
                    if !read {
                        let wrong = |error| format!("mkdir {}: {error}", path.display());
                        std::fs::create_dir(&path).map_err(wrong)?;
                    }
                    dirs.push(path);
                }
                polygraph::Deed::File { within, name, bytes } => {
                    let dir = sys::open_dir(&dirs[*within])?;
                    let name = c_name(name.clone())?;
                    if read {
                        read_all(&dir, &name, &mut buffer)?;
                    } else {
                        let make = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
                        let file = sys::open(Some(&dir), &name, make)?;
                        sys::write_at(&file, &buffer[..*bytes as usize], 0)?;
                        sys::close(file)?;
                    }
                    ops += 1;
                }
            }
        }
        Ok((ops, String::new()))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postmark_leaves_nothing_and_a_web_is_read_as_it_was_made() {
        let dir = std::env::temp_dir().join(format!("redbud-bench-pool-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let left = || std::fs::read_dir(&dir).unwrap().count();
        assert_eq!(postmark(&dir, 3, 50, 200).unwrap()().unwrap().0, 250);
        assert_eq!(left(), 0);
        assert_eq!(web(&dir, 5, 1, 1, false).unwrap()().unwrap().0, 64);
        assert_eq!(left(), 1);
        assert_eq!(web(&dir, 5, 1, 1, true).unwrap()().unwrap().0, 64);
        assert!(web(&dir, 5, 2, 1, true).unwrap()().is_err(), "a second web was not made");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
