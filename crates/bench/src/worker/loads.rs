//! xcdn and Filebench's personalities by system calls.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use super::Work;
use super::sys::{self, Os, c_path};
use crate::scripts::filebench::{Deed, FileSet, Personality, REQUEST, Thread};
use crate::scripts::xcdn::{self, Object, WIDTH};

/// Bytes of a request of xcdn: larger objects need several.
const PIECE: usize = 1 << 20;
/// A new file is written, and may be read.
const NEW: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;

fn make_dir(path: &Path) -> Os<()> {
    std::fs::create_dir(path).map_err(|error| format!("mkdir {}: {error}", path.display()))
}

fn write_all(file: &OwnedFd, content: &[u8], from: u64, bytes: u64) -> Os<()> {
    for at in (0..bytes).step_by(content.len()) {
        let len = (bytes - at).min(content.len() as u64);
        sys::write_at(file, &content[..len as usize], from + at)?;
    }
    Ok(())
}

fn read_all(file: &OwnedFd, buffer: &mut [u8], bytes: u64) -> Os<()> {
    for at in (0..bytes).step_by(buffer.len()) {
        let len = (bytes - at).min(buffer.len() as u64);
        sys::read_at(file, &mut buffer[..len as usize], at)?;
    }
    Ok(())
}

/// Makes the tree of xcdn in an existing directory.
pub fn xcdn_tree(top: &Path) -> Work {
    let top = top.to_owned();
    Box::new(move || {
        for outer in 0..WIDTH {
            let outer = top.join(xcdn::dir_name(outer));
            make_dir(&outer)?;
            for inner in 0..WIDTH {
                make_dir(&outer.join(xcdn::dir_name(inner)))?;
            }
        }
        Ok((WIDTH * WIDTH, String::new()))
    })
}

/// What a process of xcdn has at hand.
struct Objects {
    top: PathBuf,
    bytes: u64,
    content: Vec<u8>,
}

impl Objects {
    fn new(top: &Path, bytes: u64) -> Objects {
        Objects { top: top.to_owned(), bytes, content: vec![0x5a; PIECE.min(bytes as usize)] }
    }

    fn path(&self, object: Object) -> Os<CString> {
        let (outer, inner) = object.dir();
        let dir = self.top.join(xcdn::dir_name(outer)).join(xcdn::dir_name(inner));
        c_path(&dir.join(object.name()))
    }

    fn write(&self, object: Object) -> Os<()> {
        let file = sys::open(None, &self.path(object)?, NEW)?;
        write_all(&file, &self.content, 0, self.bytes)?;
        sys::close(file)
    }

    fn read(&mut self, object: Object) -> Os<()> {
        let file = sys::open(None, &self.path(object)?, libc::O_RDONLY)?;
        read_all(&file, &mut self.content, self.bytes)?;
        sys::close(file)
    }
}

/// Makes the objects of a process that are there before.
pub fn xcdn_stock(top: &Path, process: u64, bytes: u64) -> Work {
    let objects = Objects::new(top, bytes);
    Box::new(move || {
        xcdn::stock(process).try_for_each(|object| objects.write(object))?;
        Ok((xcdn::STOCK, String::new()))
    })
}

/// A process of xcdn.
pub fn xcdn(top: &Path, script: xcdn::Script, bytes: u64) -> Work {
    let mut objects = Objects::new(top, bytes);
    Box::new(move || {
        let mut ops = 0;
        for deed in script {
            match deed {
                xcdn::Deed::Write(object) => objects.write(object)?,
                xcdn::Deed::Read(object) => objects.read(object)?,
            }
            ops += 1;
        }
        Ok((ops, String::new()))
    })
}

/// An instance of Filebench.
struct Instance {
    set: Mutex<FileSet>,
    /// The path of each file.
    paths: Vec<CString>,
    content: Vec<u8>,
}

/// A personality in an existing directory, for a time: its files are made before the clock runs.
/// Who starts it makes them durable, which system calls cannot do on every file system.
pub fn filebench(top: &Path, personality: Personality, number: u64, millis: u64) -> Os<Work> {
    let set = FileSet::new(personality, number);
    let mut dirs = vec![top.to_owned()];
    for dir in &set.dirs()[1..] {
        dirs.push(dirs[dir.within].join(&dir.name));
        make_dir(&dirs[dirs.len() - 1])?;
    }
    let path = |within: usize, name: &str| c_path(&dirs[within].join(name));
    let paths = set.files().iter().map(|file| path(file.within, &file.name)).collect::<Os<_>>()?;
    let content = vec![0x5a; REQUEST as usize];
    let instance = Instance { set: Mutex::new(set), paths, content };
    instance.make_files()?;
    Ok(Box::new(move || Ok((instance.run(millis)?, String::new()))))
}

impl Instance {
    /// A thread that panicked leaves the set as it is: it is changed in whole steps.
    fn set(&self) -> MutexGuard<'_, FileSet> {
        self.set.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Makes the files that exist at the begin.
    fn make_files(&self) -> Os<()> {
        let set = self.set();
        for &number in set.first() {
            let file = sys::open(None, &self.paths[number], NEW)?;
            write_all(&file, &self.content, 0, set.files()[number].bytes)?;
            sys::close(file)?;
        }
        Ok(())
    }

    /// Lets all threads work for a time; the operations of all.
    fn run(&self, millis: u64) -> Os<u64> {
        let end = sys::monotonic() + millis * 1_000_000;
        let count = self.set().threads();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count).map(|_| scope.spawn(|| self.thread(end))).collect();
            let all = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err("a thread of the load panicked".into()))
            });
            all.sum()
        })
    }

    /// One thread until `end`.
    fn thread(&self, end: u64) -> Os<u64> {
        let (mut thread, mut open, mut ops) = (Thread::default(), None, 0);
        let mut buffer = vec![0; REQUEST as usize];
        while sys::monotonic() < end {
            let deed = self.set().next(&mut thread);
            self.act(deed, &mut open, &mut buffer)?;
            self.set().done(&mut thread);
            ops += u64::from(deed != Deed::Nothing);
        }
        Ok(ops)
    }

    fn act(&self, deed: Deed, open: &mut Option<OwnedFd>, buffer: &mut [u8]) -> Os<()> {
        let path = |file: usize| &self.paths[file];
        match (deed, open.take()) {
            (Deed::Create(file), _) => *open = Some(sys::open(None, path(file), NEW)?),
            (Deed::Open(file), _) => *open = Some(sys::open(None, path(file), libc::O_RDWR)?),
            (Deed::Delete(file), _) => sys::unlink_path(path(file))?,
            (Deed::Stat(file), _) => drop(sys::stat_path(path(file))?),
            (Deed::Close, Some(file)) => sys::close(file)?,
            (Deed::Write(bytes), Some(file)) => {
                write_all(&file, &self.content, 0, bytes)?;
                *open = Some(file);
            }
            (Deed::Append(bytes), Some(file)) => {
                write_all(&file, &self.content, sys::size(&file)?, bytes)?;
                *open = Some(file);
            }
            (Deed::Read, Some(file)) => {
                read_all(&file, buffer, sys::size(&file)?)?;
                *open = Some(file);
            }
            (Deed::Fsync, Some(file)) => {
                sys::fsync(&file)?;
                *open = Some(file);
            }
            (Deed::Nothing, still) => *open = still,
            (deed, None) => return Err(format!("{deed:?} without an open file")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("redbud-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn files(top: &Path) -> Vec<(PathBuf, u64)> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(top).unwrap().map(Result::unwrap) {
            match entry.metadata().unwrap() {
                metadata if metadata.is_dir() => found.extend(files(&entry.path())),
                metadata => found.push((entry.path(), metadata.len())),
            }
        }
        found
    }

    #[test]
    fn xcdn_reads_what_other_processes_have_stocked_and_writes_its_own() {
        let dir = scratch("xcdn");
        xcdn_tree(&dir)().unwrap();
        let script = |process| xcdn::Script::new(process, 2, 100);
        assert!(xcdn(&dir, script(0), 5000)().is_err(), "there is nothing to read");
        std::fs::remove_dir_all(&dir).unwrap();
        std::fs::create_dir(&dir).unwrap();
        xcdn_tree(&dir)().unwrap();
        for process in 0..2 {
            assert_eq!(xcdn_stock(&dir, process, 5000)().unwrap().0, xcdn::STOCK);
        }
        let mut writes = 2 * xcdn::STOCK;
        for process in 0..2 {
            assert_eq!(xcdn(&dir, script(process), 5000)().unwrap().0, 100);
            writes +=
                script(process).filter(|deed| matches!(deed, xcdn::Deed::Write(_))).count() as u64;
        }
        let found = files(&dir);
        assert_eq!(found.len() as u64, writes);
        assert!(found.iter().all(|&(_, bytes)| bytes == 5000));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn personality_works_on_its_files_with_all_its_threads() {
        let dir = scratch("varmail");
        let work = filebench(&dir, Personality::Varmail, 2, 200).unwrap();
        let set = FileSet::new(Personality::Varmail, 2);
        let before = files(&dir);
        assert_eq!(before.len(), set.first().len());
        let bytes = |found: &[(PathBuf, u64)]| found.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let due: u64 = set.first().iter().map(|&file| set.files()[file].bytes).sum();
        assert_eq!(bytes(&before), due);
        let ops = work().unwrap().0;
        assert!(ops > 16, "{ops}: every thread does something");
        assert_ne!(files(&dir), before, "files were appended to, made and deleted");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
