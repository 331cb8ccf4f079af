//! The requests that the kernel sent, counted by opcode.

use std::cell::Cell;
use std::fmt::Write;

use crate::abi::Opcode;

/// The extended attribute of the root that shows the counters, as JSON.
pub const REQUESTS_XATTR: &[u8] = b"user.redbud.requests";

const SLOTS: usize = 64;
const _: () = assert!((Opcode::CopyFileRange64 as usize) < SLOTS);

/// The number of requests of each kind.
pub(crate) struct Counters {
    by_opcode: [Cell<u64>; SLOTS],
}

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters { by_opcode: [const { Cell::new(0) }; SLOTS] }
    }

    /// Counts a request; unknown opcodes count as number 0.
    pub(crate) fn count(&self, opcode: u32) {
        let known = Opcode::from_u32(opcode).map_or(0, |known| known as usize);
        let slot = &self.by_opcode[known];
        slot.set(slot.get() + 1);
    }

    /// `{"lookup":1,…}`: all counts above zero, in the order of the opcodes.
    pub(crate) fn json(&self) -> String {
        let mut out = String::from("{");
        let named = Opcode::ALL.iter().map(|&opcode| (opcode.text(), opcode as usize));
        for (text, slot) in named.chain([("unknown", 0)]) {
            let count = self.by_opcode[slot].get();
            if count > 0 {
                let comma = if out.len() > 1 { "," } else { "" };
                // Writing to a string cannot fail.
                let _ = write!(out, "{comma}\"{text}\":{count}");
            }
        }
        out.push('}');
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_counters_show_only_opcodes_that_came() {
        let counters = Counters::new();
        assert_eq!(counters.json(), "{}");
        counters.count(Opcode::Create as u32);
        counters.count(Opcode::Lookup as u32);
        counters.count(Opcode::Lookup as u32);
        counters.count(4_000_000_000);
        assert_eq!(counters.json(), r#"{"lookup":2,"create":1,"unknown":1}"#);
    }
}
