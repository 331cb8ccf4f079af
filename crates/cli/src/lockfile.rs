//! A lock file: one process holds it while it lives, and its text identifies the process.
//!
//! The lock is the kernel's (flock), so it ends with its holder in any case. The
//! text is for people and may be stale when no process holds the lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Attempts to take the lock: a process that only checks it (see [`holder`]) holds it for an
/// instant.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// A lock that this process holds until the value is dropped.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    path: PathBuf,
}

/// Why a lock was not taken.
#[derive(Debug)]
pub enum LockError {
    /// Another process holds it; the text that it wrote.
    Held(String),
    /// The file cannot be opened or written.
    Io(std::io::Error),
}

impl From<std::io::Error> for LockError {
    fn from(error: std::io::Error) -> LockError {
        LockError::Io(error)
    }
}

impl LockFile {
    /// Takes the lock at `path` and writes `text` there.
    pub fn take(path: &Path, text: &str) -> Result<LockFile, LockError> {
        let file = loop {
            let file = lock_at(path)?;
            // A process that saw it unlocked may have removed it meanwhile.
            if is_at(&file, path)? {
                break file;
            }
        };
        let mut lock = LockFile { file, path: path.to_owned() };
        lock.rewrite(text)?;
        Ok(lock)
    }

    /// Replaces the text.
    pub fn rewrite(&mut self, text: &str) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())
    }

    /// Removes the file and gives the lock up.
    pub fn remove(self) -> std::io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

fn lock_at(path: &Path) -> Result<File, LockError> {
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    for attempt in 1.. {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if attempt < TRIES => std::thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                file.read_to_string(&mut holder)?;
                return Err(LockError::Held(holder.trim().to_owned()));
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
    }
    Ok(file)
}

/// Is the open file the one that `path` names?
fn is_at(file: &File, path: &Path) -> std::io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(named) => {
            let own = file.metadata()?;
            Ok((own.dev(), own.ino()) == (named.dev(), named.ino()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the file at `path`, and what `also` removes, if no process holds its lock: it is locked
/// meanwhile. False if one does.
pub fn remove_stale(path: &Path, also: impl FnOnce()) -> std::io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    match file.try_lock() {
        // Another one is there by now.
        Ok(()) if !is_at(&file, path)? => Ok(false),
        Ok(()) => {
            also();
            std::fs::remove_file(path)?;
            Ok(true)
        }
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The text of the holder of the lock at `path`; `None` if no process holds it.
pub fn holder(path: &Path) -> std::io::Result<Option<String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            Ok(Some(text.trim().to_owned()))
        }
    }
}

/// Waits until no process holds the lock at `path`; false if `limit` passed first.
pub fn wait_released(path: &Path, limit: Duration) -> std::io::Result<bool> {
    let until = Instant::now() + limit;
    while holder(path)?.is_some() {
        if Instant::now() >= until {
            return Ok(false);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_file_names_its_holder_until_it_is_dropped() {
        let path = std::env::temp_dir().join(format!("redbud-lockfile-{}", std::process::id()));
        let mut lock = LockFile::take(&path, "pid 1").unwrap();
        lock.rewrite("pid 42, mounted at /mnt").unwrap();
        match LockFile::take(&path, "pid 2") {
            Err(LockError::Held(text)) => assert_eq!(text, "pid 42, mounted at /mnt"),
            other => panic!("{other:?}"),
        }
        assert_eq!(holder(&path).unwrap().as_deref(), Some("pid 42, mounted at /mnt"));
        assert!(!wait_released(&path, Duration::ZERO).unwrap());
        drop(lock);
        // A child that another test is starting has the descriptor until it runs its program.
        assert!(wait_released(&path, Duration::from_secs(10)).unwrap());
        assert_eq!(holder(&path).unwrap(), None);
        LockFile::take(&path, "pid 3").unwrap().remove().unwrap();
    }

    #[test]
    fn only_the_file_that_the_path_names_counts_and_only_a_stale_one_is_removed() {
        let path = std::env::temp_dir().join(format!("redbud-lockrace-{}", std::process::id()));
        let stale = File::create(&path).unwrap();
        assert!(is_at(&stale, &path).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(!is_at(&stale, &path).unwrap(), "it is gone");
        let lock = LockFile::take(&path, "new").unwrap();
        assert!(!is_at(&stale, &path).unwrap(), "it is another one");
        assert_eq!(holder(&path).unwrap().as_deref(), Some("new"));
        assert!(!remove_stale(&path, || panic!("it is held")).unwrap());
        drop(lock);
        assert!(wait_released(&path, Duration::from_secs(10)).unwrap());
        let mut also = false;
        assert!(remove_stale(&path, || also = true).unwrap() && also && !path.exists());
    }
}
