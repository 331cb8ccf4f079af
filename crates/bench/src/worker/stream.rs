//! Jobs on one large file. With several requests in flight each has a thread of its own.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::names::Random;
use super::sys::{self, Os};
use super::{Part, Stream, Work};

/// Bytes of a request of a stream.
pub(super) const PIECE: usize = 1 << 20;
/// Bytes of a request at a random place.
const BLOCK: usize = 4096;

/// Writes it from begin to end, then makes it stable.
pub fn write(what: Stream) -> Os<Work> {
    let flags = libc::O_CREAT | libc::O_WRONLY | direct(&what);
    let file = sys::open(None, &sys::c_path(&what.file)?, flags)?;
    let content = Pages::filled(PIECE)?;
    Ok(Box::new(move || {
        in_pieces(&what, |offset, len| sys::write_at(&file, &content.bytes()[..len], offset))?;
        sys::fsync(&file)?;
        sys::close(file)?;
        Ok((what.bytes, String::new()))
    }))
}

/// Writes a part of it, then makes that stable.
pub fn write_part(what: &Stream, part: Part) -> Os<Work> {
    let file = sys::open(None, &sys::c_path(&what.file)?, libc::O_CREAT | libc::O_RDWR)?;
    let content = Pages::filled(part.piece as usize)?;
    Ok(Box::new(move || {
        for number in 0..part.count {
            sys::write_at(&file, content.bytes(), part.first + number * part.step)?;
        }
        sys::fsync(&file)?;
        sys::close(file)?;
        Ok((part.count * part.piece, String::new()))
    }))
}

/// Reads it from begin to end.
pub fn read(what: Stream) -> Os<Work> {
    let file = sys::open(None, &sys::c_path(&what.file)?, libc::O_RDONLY | direct(&what))?;
    Ok(Box::new(move || {
        thread_local! {
            static PAGES: std::cell::RefCell<Option<Pages>> = const { std::cell::RefCell::new(None) };
        }
        in_pieces(&what, |offset, len| {
            PAGES.with_borrow_mut(|pages| {
                if pages.is_none() {
                    *pages = Some(Pages::filled(PIECE)?);
                }
                match pages {
                    Some(pages) => sys::read_at(&file, &mut pages.bytes_mut()[..len], offset),
                    None => Ok(()),
                }
            })
        })?;
        Ok((what.bytes, String::new()))
    }))
}

/// Calls `piece` with each offset and length, in order, `depth` at a time.
fn in_pieces(what: &Stream, piece: impl Fn(u64, usize) -> Os<()> + Sync) -> Os<()> {
    let next = AtomicU64::new(0);
    let work = || loop {
        let offset = next.fetch_add(PIECE as u64, Ordering::Relaxed);
        let Some(left) = what.bytes.checked_sub(offset).filter(|&left| left > 0) else {
            return Ok(());
        };
        piece(offset, left.min(PIECE as u64) as usize)?;
    };
    if what.depth == 1 {
        return work();
    }
    in_parallel(what.depth, |_| work())
}

fn in_parallel(depth: usize, work: impl Fn(u64) -> Os<()> + Sync) -> Os<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..depth as u64)
            .map(|number| {
                scope.spawn({
                    let work = &work;
                    move || work(number)
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err("a thread of the worker panicked".into()))
        })
    })
}

/// Reads blocks at random places for `millis`.
pub fn random(what: Stream, millis: u64) -> Os<Work> {
    let path = sys::c_path(&what.file)?;
    let files = (0..what.depth)
        .map(|_| sys::open(None, &path, libc::O_RDONLY | libc::O_DIRECT))
        .collect::<Os<Vec<OwnedFd>>>()?;
    Ok(Box::new(move || {
        let count = AtomicU64::new(0);
        let until = sys::monotonic() + millis * 1_000_000;
        in_parallel(what.depth, |number| {
            let mut random = Random::new((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut pages = Pages::filled(BLOCK)?;
            let mut reads = 0;
            while sys::monotonic() < until {
                let offset = random.below(what.bytes / BLOCK as u64) * BLOCK as u64;
                sys::read_at(&files[number as usize], pages.bytes_mut(), offset)?;
                reads += 1;
            }
            count.fetch_add(reads, Ordering::Relaxed);
            Ok(())
        })?;
        Ok((count.into_inner(), String::new()))
    }))
}

fn direct(what: &Stream) -> i32 {
    if what.direct { libc::O_DIRECT } else { 0 }
}

/// Memory at a page's border, which O_DIRECT wants, touched before it is used.
pub(super) struct Pages {
    address: *mut u8,
    len: usize,
}

// SAFETY: the memory belongs to this value alone; shared references only read it.
unsafe impl Sync for Pages {}

impl Pages {
    pub(super) fn filled(len: usize) -> Os<Pages> {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory at a place of the kernel's choice.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(format!("mmap: {}", std::io::Error::last_os_error()));
        }
        let mut pages = Pages { address: address.cast(), len };
        pages.bytes_mut().fill(0x6b);
        Ok(pages)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as `self`, and is written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping lives as long as `self`, which is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `filled` with this length.
        unsafe { libc::munmap(self.address.cast(), self.len) };
    }
}
