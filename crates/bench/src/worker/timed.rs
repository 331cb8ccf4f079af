//! Jobs of which each operation is timed. Their text is the microseconds of the operations, a list
//! as JSON.

use std::os::fd::OwnedFd;

use super::names::{self, MAKE};
use super::stream::{PIECE, Pages};
use super::sys::{self, Os};
use super::{Names, Work};

/// The times of operations.
struct Times {
    micros: Vec<u32>,
    /// When the work is to end, on the monotonic clock.
    until: u64,
}

impl Times {
    fn new(millis: Option<u64>) -> Times {
        let until = millis.map_or(u64::MAX, |millis| sys::monotonic() + millis * 1_000_000);
        Times { micros: Vec::new(), until }
    }

    /// Does an operation, unless the time is over. Returns whether it was done.
    fn add(&mut self, operation: impl FnOnce() -> Os<()>) -> Os<bool> {
        let begun = sys::monotonic();
        if begun >= self.until {
            return Ok(false);
        }
        operation()?;
        let micros = (sys::monotonic() - begun) / 1000;
        self.micros.push(u32::try_from(micros).unwrap_or(u32::MAX));
        Ok(true)
    }

    fn done(self) -> Os<(u64, String)> {
        let text = serde_json::to_string(&self.micros).map_err(|error| error.to_string())?;
        Ok((self.micros.len() as u64, text))
    }
}

/// Makes files with content until all are made, or for `millis`.
pub fn small(what: &Names, bytes: usize, fsync: bool, millis: Option<u64>) -> Os<Work> {
    let (dir, names) = names::all(what)?;
    let content = vec![0xa5u8; bytes];
    Ok(Box::new(move || {
        let mut times = Times::new(millis);
        for name in &names {
            if !times.add(|| names::make(&dir, name, &content, fsync))? {
                break;
            }
        }
        times.done()
    }))
}

/// Writes a file from its begin to its end, over and over for `millis`; an operation is a mebibyte.
pub fn stream(dir: &std::path::Path, bytes: u64, millis: u64) -> Os<Work> {
    let dir: OwnedFd = sys::open_dir(dir)?;
    let file = sys::open(Some(&dir), c"timed-stream", MAKE)?;
    let content = Pages::filled(PIECE)?;
    Ok(Box::new(move || {
        let mut times = Times::new(Some(millis));
        let mut at = 0;
        while times.add(|| sys::write_at(&file, content.bytes(), at))? {
            at += PIECE as u64;
            if at + PIECE as u64 > bytes {
                at = 0;
            }
        }
        sys::close(file)?;
        times.done()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_is_timed_until_the_time_is_over() {
        let dir = std::env::temp_dir().join(format!("redbud-bench-timed-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let names = Names { dir: dir.clone(), prefix: "a-".into(), count: 5 };
        let (ops, text) = small(&names, 100, true, None).unwrap()().unwrap();
        assert_eq!((ops, serde_json::from_str::<Vec<u32>>(&text).unwrap().len()), (5, 5));
        let none = Names { prefix: "b-".into(), ..names };
        assert_eq!(small(&none, 100, false, Some(0)).unwrap()().unwrap(), (0, "[]".into()));
        let (ops, text) = stream(&dir, 2 << 20, 20).unwrap()().unwrap();
        assert_eq!(serde_json::from_str::<Vec<u32>>(&text).unwrap().len() as u64, ops);
        assert_eq!(std::fs::metadata(dir.join("timed-stream")).unwrap().len(), ops.min(2) << 20);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
