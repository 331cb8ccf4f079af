//! Replies that the server keeps for clients, and what it knows of each client.
//!
//! Invariants: the three replies of a block belong to one client and to slots `3n`, `3n+1`, `3n+2`;
//! a reply whose field `set` is 0 was never kept. A client's number is shard << 40 | count: the
//! shard that issued it, and a count from 1 on, of which root 15 has the next (5).
//!
//! A reply block, after the block header:
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 32 | 3 × 1352 | reply | sequence 4 · length 2 · set 2 (0 or 1) · bytes 1024 · reserved |
//!
//! | tree | key (big-endian) | value (little-endian) |
//! |---|---|---|
//! | clients | client 8 | first block of the blob with its description 8, 0: it is empty |
//! | replies | client 8 · slot / 3, 4 | reply block 8 |
//! | settings | key 4 | length 2 · bytes 62 |

use types::ClientId;
use types::limits::BLOCK;

use crate::format::block::{HEADER, get_u16, get_u32, put_u16, put_u32};

/// Replies of one block.
pub const REPLIES_PER_BLOCK: u32 = 3;
/// Most bytes of a kept reply.
pub const REPLY_MAX: usize = 1024;
/// Most bytes of a setting.
pub const SETTING_MAX: usize = 62;
/// Bytes of a value of the settings tree.
pub const SETTING_VALUE: usize = 64;
/// Bytes of a key of the replies tree.
pub const REPLY_KEY: usize = 12;

const RECORD: usize = 1352;
const BYTES: usize = 8;

const _: () = assert!(HEADER + RECORD * REPLIES_PER_BLOCK as usize <= BLOCK);
const _: () = assert!(BYTES + REPLY_MAX <= RECORD);

/// Key of the block that holds `slot` of `client`.
pub fn reply_key(client: ClientId, slot: u32) -> [u8; REPLY_KEY] {
    let mut out = [0; REPLY_KEY];
    out[..8].copy_from_slice(&client.0.to_be_bytes());
    out[8..].copy_from_slice(&(slot / REPLIES_PER_BLOCK).to_be_bytes());
    out
}

/// The client in a key of the replies tree.
pub fn reply_owner(key: &[u8; REPLY_KEY]) -> ClientId {
    let mut out = [0; 8];
    out.copy_from_slice(&key[..8]);
    ClientId(u64::from_be_bytes(out))
}

/// The reply kept for `slot`; `None` if none was ever kept.
///
/// # Errors
/// The record is invalid.
pub fn get_reply(block: &[u8; BLOCK], slot: u32) -> Result<Option<(u32, Vec<u8>)>, &'static str> {
    let at = record_offset(slot);
    let (seq, len, set) = (get_u32(block, at), get_u16(block, at + 4), get_u16(block, at + 6));
    match set {
        0 => Ok(None),
        1 if usize::from(len) <= REPLY_MAX => {
            Ok(Some((seq, block[at + BYTES..at + BYTES + usize::from(len)].to_vec())))
        }
        _ => Err("a kept reply is invalid"),
    }
}

/// Keeps `bytes` (at most [`REPLY_MAX`]) for `slot`. The end of an older, longer reply stays in the
/// block: clearing it would only make the log longer.
pub fn put_reply(block: &mut [u8; BLOCK], slot: u32, seq: u32, bytes: &[u8]) {
    assert!(bytes.len() <= REPLY_MAX, "a reply of {} bytes cannot be kept", bytes.len());
    let at = record_offset(slot);
    put_u32(block, at, seq);
    put_u16(block, at + 4, bytes.len() as u16);
    put_u16(block, at + 6, 1);
    block[at + BYTES..at + BYTES + bytes.len()].copy_from_slice(bytes);
}

fn record_offset(slot: u32) -> usize {
    HEADER + RECORD * (slot % REPLIES_PER_BLOCK) as usize
}

/// Value of a setting; `bytes` are at most [`SETTING_MAX`].
pub fn encode_setting(bytes: &[u8]) -> [u8; SETTING_VALUE] {
    let mut out = [0; SETTING_VALUE];
    put_u16(&mut out, 0, bytes.len() as u16);
    out[2..2 + bytes.len()].copy_from_slice(bytes);
    out
}

/// The inverse of [`encode_setting`].
pub fn decode_setting(value: &[u8; SETTING_VALUE]) -> Option<Vec<u8>> {
    value.get(2..2 + usize::from(get_u16(value, 0))).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_one_block_do_not_touch_each_other() {
        let mut block = [0; BLOCK];
        for slot in 3..6 {
            assert_eq!(get_reply(&block, slot), Ok(None));
            put_reply(&mut block, slot, slot + 100, &vec![slot as u8; REPLY_MAX - slot as usize]);
        }
        for slot in 3..6 {
            let (seq, bytes) = get_reply(&block, slot).unwrap().unwrap();
            assert_eq!((seq, bytes), (slot + 100, vec![slot as u8; REPLY_MAX - slot as usize]));
        }
        assert!(block[..HEADER].iter().all(|&b| b == 0));
        block[HEADER + 6] = 9;
        assert!(get_reply(&block, 3).is_err());
    }

    #[test]
    fn settings_round_trip_up_to_their_limit() {
        let bytes = vec![3; SETTING_MAX];
        assert_eq!(decode_setting(&encode_setting(&bytes)), Some(bytes));
        assert_eq!(decode_setting(&[0xff; SETTING_VALUE]), None);
    }
}
