//! What a process has mapped.

use std::fs::File;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A shared mapping of the first page of a file.
pub struct Mapping(*mut u8);

impl Mapping {
    /// Bytes of it.
    pub const LEN: usize = 4096;

    /// Maps it.
    pub fn of(file: &File) -> Mapping {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping, unmapped when it is dropped.
        let map =
            unsafe { mmap(std::ptr::null_mut(), Mapping::LEN, access, MapFlags::SHARED, file, 0) };
        Mapping(map.expect("a file can be mapped").cast())
    }

    /// Stores a byte, which the kernel then has to write back.
    pub fn store(&self, offset: usize, byte: u8) {
        assert!(offset < Mapping::LEN);
        // SAFETY: within the mapping; nobody shortens the file.
        unsafe { self.0.add(offset).write_volatile(byte) }
    }

    /// Reads a byte.
    pub fn load(&self, offset: usize) -> u8 {
        assert!(offset < Mapping::LEN);
        // SAFETY: within the mapping; nobody shortens the file.
        unsafe { self.0.add(offset).read_volatile() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `of`, and is not used any more.
        unsafe { munmap(self.0.cast(), Mapping::LEN) }.expect("it is mapped");
    }
}
