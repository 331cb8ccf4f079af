//! Records one after another, each with a checksum: the form of a dump, whatever its records mean.
//!
//! Invariants:
//! - the checksum has the record's number, so a record that is missing, doubled or moved is
//!   noticed;
//! - reading is total: any bytes give records, or an error.
//!
//! Integers are little-endian. A record: length of the body u32, kind u8, CRC32C u32 over the
//! record's number (u64, the first is 0), the kind and the body, then the body.

use std::io::{ErrorKind, Read, Write};

use crate::format::block::get_u32;

const PREFIX: usize = 9;

/// Writes records.
pub struct RecordWriter<'a> {
    out: &'a mut dyn Write,
    number: u64,
}

impl<'a> RecordWriter<'a> {
    /// Writes to `out`, which should be buffered.
    pub fn new(out: &'a mut dyn Write) -> RecordWriter<'a> {
        RecordWriter { out, number: 0 }
    }

    /// Writes the next record.
    ///
    /// # Errors
    /// Those of the output.
    pub fn put(&mut self, kind: u8, body: &[u8]) -> std::io::Result<()> {
        let mut prefix = [0; PREFIX];
        prefix[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        prefix[4] = kind;
        prefix[5..].copy_from_slice(&checksum(self.number, kind, body).to_le_bytes());
        self.number += 1;
        self.out.write_all(&prefix)?;
        self.out.write_all(body)
    }
}

/// Why a record cannot be read.
#[derive(Debug)]
pub enum RecordError {
    /// The stream ends before its end.
    Truncated,
    /// The input failed.
    Io(std::io::Error),
}

impl From<std::io::Error> for RecordError {
    fn from(error: std::io::Error) -> RecordError {
        match error.kind() {
            ErrorKind::UnexpectedEof => RecordError::Truncated,
            _ => RecordError::Io(error),
        }
    }
}

/// What precedes the body of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// The kind of the record.
    pub kind: u8,
    /// Bytes of its body.
    pub len: usize,
    checksum: u32,
}

/// Reads records.
pub struct RecordReader<'a> {
    input: &'a mut dyn Read,
    number: u64,
}

impl<'a> RecordReader<'a> {
    /// Reads from `input`, which should be buffered.
    pub fn new(input: &'a mut dyn Read) -> RecordReader<'a> {
        RecordReader { input, number: 0 }
    }

    /// Number of the next record.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Reads the beginning of the next record.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn prefix(&mut self) -> Result<Prefix, RecordError> {
        let mut bytes = [0; PREFIX];
        self.input.read_exact(&mut bytes)?;
        let (len, checksum) = (get_u32(&bytes, 0) as usize, get_u32(&bytes, 5));
        Ok(Prefix { kind: bytes[4], len, checksum })
    }

    /// Reads the body of the record with this prefix, whose length the caller has checked.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn body(&mut self, prefix: &Prefix) -> Result<Vec<u8>, RecordError> {
        let mut body = vec![0; prefix.len];
        self.input.read_exact(&mut body)?;
        Ok(body)
    }

    /// Is this the next record, and whole?
    pub fn is_whole(&self, prefix: &Prefix, body: &[u8]) -> bool {
        checksum(self.number, prefix.kind, body) == prefix.checksum
    }

    /// Goes to the next record.
    pub fn advance(&mut self) {
        self.number += 1;
    }

    /// Does nothing follow?
    ///
    /// # Errors
    /// Those of the input.
    pub fn is_at_end(&mut self) -> std::io::Result<bool> {
        let mut byte = [0];
        loop {
            match self.input.read(&mut byte) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return Ok(read? == 0),
            }
        }
    }
}

fn checksum(number: u64, kind: u8, body: &[u8]) -> u32 {
    let mut all = Vec::with_capacity(body.len() + PREFIX);
    all.extend_from_slice(&number.to_le_bytes());
    all.push(kind);
    all.extend_from_slice(body);
    types::crc32c(&all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = RecordWriter::new(&mut out);
        writer.put(1, b"first").unwrap();
        writer.put(2, b"").unwrap();
        out
    }

    fn read(mut bytes: &[u8]) -> Result<Vec<(u8, Vec<u8>, bool)>, RecordError> {
        let mut reader = RecordReader::new(&mut bytes);
        let mut out = Vec::new();
        for _ in 0..2 {
            let prefix = reader.prefix()?;
            let body = reader.body(&prefix)?;
            let whole = reader.is_whole(&prefix, &body);
            out.push((prefix.kind, body, whole));
            reader.advance();
        }
        assert!(reader.is_at_end().unwrap());
        Ok(out)
    }

    #[test]
    fn record_that_is_cut_changed_or_moved_is_noticed() {
        let bytes = two();
        let whole = [(1, b"first".to_vec(), true), (2, Vec::new(), true)];
        assert_eq!(read(&bytes).unwrap(), whole);
        for end in 0..bytes.len() {
            assert!(matches!(read(&bytes[..end]), Err(RecordError::Truncated)), "{end}");
        }
        let mut changed = bytes.clone();
        changed[PREFIX] ^= 1;
        assert!(!read(&changed).unwrap()[0].2);
        let moved = [&bytes[PREFIX + 5..], &bytes[..PREFIX + 5]].concat();
        assert!(read(&moved).unwrap().iter().all(|(_, _, whole)| !whole));
    }
}
