//! Entries of FUSE over io_uring: the memory that the kernel puts requests into
//! and takes replies from.
//!
//! Invariants:
//! - the addresses of an entry's header and payload stay the same from its
//!   registration to its end;
//! - the code checks the lengths that the kernel reports before it uses them.
//!
//! The header page, as the kernel lays it out:
//!
//! | offset | size | content |
//! |---|---|---|
//! | 0 | 128 | fuse_in_header (40 bytes), or fuse_out_header (16 bytes) |
//! | 128 | 128 | the operation's fixed arguments |
//! | 256 | 8 | flags |
//! | 264 | 8 | commit id |
//! | 272 | 4 | bytes of payload |

use std::io;
use std::os::fd::RawFd;

use io_uring::{opcode, squeue, types::Fd};

use crate::buffer::IoBuf;
use crate::fuse::message::FuseRequest;

const OP_IN: usize = 128;
const COMMIT_ID: usize = 264;
const PAYLOAD_SIZE: usize = 272;
const HEADER_SIZE: usize = 288;
/// fuse_in_header.
const IN_HEADER: usize = 40;
/// fuse_out_header.
const OUT_HEADER: usize = 16;

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// The offset of `len` in a submission.
const SQE_LEN: usize = 24;

/// One entry of one queue; it carries one request at a time.
pub(crate) struct FuseEntry {
    header: IoBuf,
    payload: IoBuf,
    /// Header and payload, in the form that the registration passes to the kernel.
    parts: [libc::iovec; 2],
    queue: u16,
    /// The id of the request that a reply commits; `None` before the registration.
    commit: Option<u64>,
}

// SAFETY: the addresses in `parts` point to buffers that the entry owns.
unsafe impl Send for FuseEntry {}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn half_word(bytes: &[u8], at: usize) -> usize {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes")) as usize
}

impl FuseEntry {
    /// An entry of `queue` for requests and replies of up to `payload` bytes, 256 KiB or more.
    pub(crate) fn new(queue: u16, payload: usize) -> Box<FuseEntry> {
        let mut header = IoBuf::zeroed(HEADER_SIZE);
        let mut payload = IoBuf::sparse(payload);
        let part =
            |buf: &mut IoBuf| libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        let parts = [part(&mut header), part(&mut payload)];
        Box::new(FuseEntry { header, payload, parts, queue, commit: None })
    }

    /// The submission that registers the entry, or commits its reply, and fetches the next request.
    pub(crate) fn submission(&self, fd: RawFd) -> squeue::Entry128 {
        let mut command = [0; 80];
        command[8..16].copy_from_slice(&self.commit.unwrap_or(0).to_ne_bytes());
        command[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        if self.commit.is_some() {
            return opcode::UringCmd80::new(Fd(fd), COMMIT_AND_FETCH).cmd(command).build();
        }
        let parts = self.parts.as_ptr() as u64;
        let mut entry =
            opcode::UringCmd80::new(Fd(fd), REGISTER).cmd(command).addr(Some(parts)).build();
        // SAFETY: the entry is laid out as the kernel's submission, of which byte 24 begins the
        // 32-bit `len`.
        unsafe { (&raw mut entry).cast::<u8>().add(SQE_LEN).cast::<u32>().write(2) };
        entry
    }

    /// The request that the kernel has written to this entry, and its number.
    ///
    /// # Errors
    /// Its lengths contradict each other.
    pub(crate) fn request(&mut self) -> io::Result<(u64, FuseRequest)> {
        self.commit = Some(word(&self.header, COMMIT_ID));
        let unique = word(&self.header, 8);
        let total = half_word(&self.header, 0);
        let payload = half_word(&self.header, PAYLOAD_SIZE);
        let fixed = total
            .checked_sub(IN_HEADER + payload)
            .filter(|&fixed| fixed <= 128 && payload <= self.payload.len());
        let Some(fixed) = fixed else {
            let text = format!("a request of {total} bytes with {payload} bytes of payload");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        };
        let mut request =
            FuseRequest { head: [0; 80], head_len: total.min(80), body: IoBuf::zeroed(0) };
        request.head[..IN_HEADER].copy_from_slice(&self.header[..IN_HEADER]);
        // The arguments are one sequence in two places; so is the request: head and body.
        let in_header = fixed.min(80 - IN_HEADER);
        let in_payload = request.head_len - IN_HEADER - in_header;
        let (start, split) = (IN_HEADER, IN_HEADER + in_header);
        request.head[start..split].copy_from_slice(&self.header[OP_IN..OP_IN + in_header]);
        request.head[split..request.head_len].copy_from_slice(&self.payload[..in_payload]);
        // The payload belongs to the entry, and the request may outlive the reply: copy the bytes.
        request.body = IoBuf::unspecified(total - request.head_len);
        let (left, right) = request.body.split_at_mut(fixed - in_header);
        left.copy_from_slice(&self.header[OP_IN + in_header..OP_IN + fixed]);
        right.copy_from_slice(&self.payload[in_payload..payload]);
        Ok((unique, request))
    }

    /// Writes the reply to where the kernel reads it.
    ///
    /// # Errors
    /// It does not fit, or has no header.
    pub(crate) fn set_reply(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        let fits =
            head.len() >= OUT_HEADER && head.len() - OUT_HEADER + body.len() <= self.payload.len();
        if !fits {
            let text = format!("a reply of {} and {} bytes", head.len(), body.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let (out, fixed) = head.split_at(OUT_HEADER);
        self.header[..OUT_HEADER].copy_from_slice(out);
        self.payload[..fixed.len()].copy_from_slice(fixed);
        self.payload[fixed.len()..fixed.len() + body.len()].copy_from_slice(body);
        let size = (fixed.len() + body.len()) as u32;
        self.header[PAYLOAD_SIZE..PAYLOAD_SIZE + 4].copy_from_slice(&size.to_ne_bytes());
        Ok(())
    }
}

/// The number of kernel queues: one per possible CPU.
pub(crate) fn queues() -> io::Result<u16> {
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = possible.trim().rsplit([',', '-']).next().and_then(|cpu| cpu.parse::<u16>().ok());
    last.map(|last| last + 1)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no list of CPUs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAYLOAD: usize = 256 << 10;

    /// An entry that holds a request of these parts.
    fn entry(fixed: &[u8], payload: &[u8]) -> Box<FuseEntry> {
        let mut entry = FuseEntry::new(0, PAYLOAD);
        let total = (IN_HEADER + fixed.len() + payload.len()) as u32;
        entry.header[..4].copy_from_slice(&total.to_ne_bytes());
        entry.header[8..16].copy_from_slice(&77u64.to_ne_bytes());
        entry.header[OP_IN..OP_IN + fixed.len()].copy_from_slice(fixed);
        entry.header[PAYLOAD_SIZE..PAYLOAD_SIZE + 4]
            .copy_from_slice(&(payload.len() as u32).to_ne_bytes());
        entry.payload[..payload.len()].copy_from_slice(payload);
        entry
    }

    #[test]
    fn uring_request_is_assembled_as_the_device_delivers_it() {
        let bytes: Vec<u8> = (1..=250).collect();
        for fixed in [0, 8, 39, 40, 41, 104, 128] {
            for payload in [0, 1, 30, 40, 100] {
                let all = &bytes[..fixed + payload];
                let (unique, request) = entry(&all[..fixed], &all[fixed..]).request().unwrap();
                assert_eq!(unique, 77);
                assert_eq!(request.head_len, 40 + all.len().min(40));
                let arguments: Vec<u8> = request.head[40..request.head_len]
                    .iter()
                    .chain(request.body.iter())
                    .copied()
                    .collect();
                assert_eq!(arguments, all);
            }
        }
    }

    #[test]
    fn uring_entry_with_contradicting_lengths_is_an_error() {
        let mut bad = entry(&[1; 40], &[2; 10]);
        bad.header[PAYLOAD_SIZE..PAYLOAD_SIZE + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(bad.request().is_err());
        let mut bad = entry(&[1; 40], &[2; 10]);
        bad.header[..4].copy_from_slice(&3u32.to_ne_bytes());
        assert!(bad.request().is_err());
        assert!(entry(&[], &[]).set_reply(&[0; 15], &[]).is_err());
        assert!(entry(&[], &[]).set_reply(&[0; 16], &[0; PAYLOAD + 1]).is_err());
    }
}
