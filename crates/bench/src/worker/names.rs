//! Jobs on many small files.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::Path;

use super::sys::{self, Os};
use super::{Names, Order, Work};

/// Bytes that one getdents64 may return, as in the C library.
const LISTING: usize = 32 << 10;
/// Where the length and the name of an entry of a listing are.
const RECORD_LEN: usize = 16;
const RECORD_NAME: usize = 19;

/// Their directory, and all of them.
pub(super) fn all(names: &Names) -> Os<(OwnedFd, Vec<CString>)> {
    let dir = sys::open_dir(&names.dir)?;
    let one = |number| {
        let name = format!("{}{number:07}", names.prefix);
        CString::new(name).map_err(|error| error.to_string())
    };
    Ok((dir, (0..names.count).map(one).collect::<Os<_>>()?))
}

/// How a file is opened that is made.
pub(super) const MAKE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;

/// Makes empty files.
pub fn create(names: Names) -> Os<Work> {
    let (dir, names) = all(&names)?;
    Ok(Box::new(move || {
        for name in &names {
            sys::close(sys::open(Some(&dir), name, MAKE)?)?;
        }
        Ok((names.len() as u64, String::new()))
    }))
}

/// Unlinks files.
pub fn unlink(names: Names) -> Os<Work> {
    let (dir, names) = all(&names)?;
    Ok(Box::new(move || {
        for name in &names {
            sys::unlink(&dir, name)?;
        }
        Ok((names.len() as u64, String::new()))
    }))
}

/// Sets the times of files.
pub fn utime(names: Names) -> Os<Work> {
    let (dir, names) = all(&names)?;
    Ok(Box::new(move || {
        for name in &names {
            sys::utime(&dir, name)?;
        }
        Ok((names.len() as u64, String::new()))
    }))
}

/// Makes files with content.
pub fn small(names: Names, bytes: usize, fsync: bool) -> Os<Work> {
    let (dir, names) = all(&names)?;
    let content = vec![0xa5u8; bytes];
    Ok(Box::new(move || {
        for name in &names {
            make(&dir, name, &content, fsync)?;
        }
        Ok((names.len() as u64, String::new()))
    }))
}

/// Makes a file with content.
pub(super) fn make(dir: &OwnedFd, name: &CStr, content: &[u8], fsync: bool) -> Os<()> {
    let file = sys::open(Some(dir), name, MAKE)?;
    sys::write_at(&file, content, 0)?;
    if fsync {
        sys::fsync(&file)?;
    }
    sys::close(file)
}

/// Looks every name up.
pub fn stat(names: Names, order: Order) -> Os<Work> {
    let (dir, mut names) = all(&names)?;
    if order == Order::Random {
        shuffle(&mut names);
    }
    Ok(Box::new(move || {
        for name in &names {
            sys::stat(&dir, name)?;
        }
        Ok((names.len() as u64, String::new()))
    }))
}

fn shuffle<T>(items: &mut [T]) {
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last as u64 + 1) as usize);
    }
}

/// Reads a directory, with a stat of each entry as soon as it is read, if `stat`.
pub fn list(path: &Path, stat: bool) -> Os<Work> {
    let dir = sys::open_dir(path)?;
    Ok(Box::new(move || {
        let mut buffer = vec![0u64; LISTING / size_of::<u64>()];
        let mut found = 0;
        loop {
            let bytes = sys::getdents(&dir, &mut buffer)?;
            if bytes == 0 {
                return Ok((found, String::new()));
            }
            // SAFETY: the buffer is larger than what the kernel said that it wrote to it.
            let listed = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), bytes) };
            for name in Entries(listed) {
                if name != c"." && name != c".." {
                    if stat {
                        sys::stat(&dir, name)?;
                    }
                    found += 1;
                }
            }
        }
    }))
}

/// The names in what getdents64 wrote.
struct Entries<'a>(&'a [u8]);

impl<'a> Iterator for Entries<'a> {
    type Item = &'a CStr;

    fn next(&mut self) -> Option<&'a CStr> {
        let len = self.0.get(RECORD_LEN..RECORD_LEN + 2)?;
        let len = usize::from(u16::from_ne_bytes([len[0], len[1]]));
        let name = CStr::from_bytes_until_nul(self.0.get(RECORD_NAME..len)?).ok()?;
        self.0 = &self.0[len..];
        Some(name)
    }
}

/// The same numbers at each start.
pub struct Random(u64);

impl Random {
    /// Numbers of this seed, which is not 0.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffling_keeps_every_item() {
        let mut items: Vec<u32> = (0..1000).collect();
        shuffle(&mut items);
        assert_ne!(items, (0..1000).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn listing_is_read_to_its_end() {
        let dir = std::env::temp_dir().join(format!("redbud-bench-list-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let names = Names { dir: dir.clone(), prefix: "some-longer-name-".into(), count: 3000 };
        assert_eq!(create(names.clone()).unwrap()().unwrap().0, 3000);
        assert_eq!(list(&dir, true).unwrap()().unwrap().0, 3000);
        assert_eq!(utime(names.clone()).unwrap()().unwrap().0, 3000);
        assert_eq!(stat(names.clone(), Order::Random).unwrap()().unwrap().0, 3000);
        assert_eq!(unlink(names).unwrap()().unwrap().0, 3000);
        assert_eq!(list(&dir, false).unwrap()().unwrap().0, 0);
        std::fs::remove_dir(&dir).unwrap();
    }
}
