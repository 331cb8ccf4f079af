//! Replies that the server keeps for clients, and what it knows of each client.
//!
//! A client has one block of *short* replies from its enrolment on, with room for every slot. A
//! reply that is longer lies in a block of *long* replies, which comes when it is needed.
//!
//! Invariants:
//! - a short record whose field `length` is 0 was never kept; one of length 255 says that the reply
//!   is the slot's long one, and has the same sequence;
//! - the three replies of a block of long replies belong to one client and to slots `3n`, `3n+1`,
//!   `3n+2`; a long reply counts only if the slot's short record says so;
//! - a client's number is shard << 40 | count: the shard that issued it, and a count from 1 on, of
//!   which root 15 has the next (5).
//!
//! A reply block, after the block header:
//!
//! | block | offset | size | field | meaning |
//! |---|---|---|---|---|
//! | short | 32 | 128 × 31 | reply | of slot n is the n-th: sequence 4 · length 1 (0, or 1 more than that of the bytes, or 255) · bytes 26 |
//! | short | 4000 | 96 | reserved | zero |
//! | long | 32 | 3 × 1352 | reply | sequence 4 · length 2 · set 2 (0 or 1) · bytes 1024 · reserved |
//!
//! | tree | key (big-endian) | value (little-endian) |
//! |---|---|---|
//! | clients | client 8 | first block of the blob with its description 8, 0: it is empty |
//! | replies | client 8 · number 4: 0 for short replies, slot / 3 + 1 for long ones | reply block 8 |
//! | settings | key 4 | length 2 · bytes 62 |

use types::ClientId;
use types::limits::{BLOCK, RESERVED_SLOTS, SLOTS};

use crate::format::block::{HEADER, get_u16, get_u32, put_u16, put_u32};

/// Slots of a client for which the store keeps replies.
pub const REPLY_SLOTS: u32 = SLOTS as u32 + RESERVED_SLOTS as u32;
/// Most bytes of a reply that is kept with those of all other slots.
pub const SHORT_REPLY_MAX: usize = 26;
/// Most bytes of a kept reply.
pub const REPLY_MAX: usize = 1024;
/// Most bytes of a setting.
pub const SETTING_MAX: usize = 62;
/// Bytes of a value of the settings tree.
pub const SETTING_VALUE: usize = 64;
/// Bytes of a key of the replies tree.
pub const REPLY_KEY: usize = 12;

/// Long replies of one block.
const LONG_PER_BLOCK: u32 = 3;
const LONG: usize = 1352;
const LONG_BYTES: usize = 8;
const SHORT: usize = 31;
const SHORT_BYTES: usize = 5;
/// The length of a short record whose reply is a long one.
const IS_LONG: u8 = 0xff;

const _: () = assert!(HEADER + LONG * LONG_PER_BLOCK as usize <= BLOCK);
const _: () = assert!(LONG_BYTES + REPLY_MAX <= LONG);
const _: () = assert!(HEADER + SHORT * REPLY_SLOTS as usize <= BLOCK);
const _: () = assert!(SHORT_BYTES + SHORT_REPLY_MAX == SHORT);

/// What a block of short replies says of a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ShortReply {
    /// No reply was ever kept.
    None,
    /// A reply with this sequence number and these bytes.
    Short(u32, Vec<u8>),
    /// The slot's long reply, with this sequence number.
    Long(u32),
}

/// Key of the block with the short replies of `client`.
pub fn short_key(client: ClientId) -> [u8; REPLY_KEY] {
    key(client, 0)
}

/// Key of the block that holds a long reply of `slot` of `client`.
pub fn long_key(client: ClientId, slot: u32) -> [u8; REPLY_KEY] {
    key(client, slot / LONG_PER_BLOCK + 1)
}

fn key(client: ClientId, number: u32) -> [u8; REPLY_KEY] {
    let mut out = [0; REPLY_KEY];
    out[..8].copy_from_slice(&client.0.to_be_bytes());
    out[8..].copy_from_slice(&number.to_be_bytes());
    out
}

/// The client in a key of the replies tree.
pub fn reply_owner(key: &[u8; REPLY_KEY]) -> ClientId {
    let mut out = [0; 8];
    out.copy_from_slice(&key[..8]);
    ClientId(u64::from_be_bytes(out))
}

/// Are all records valid in a block that has this key in the replies tree?
pub fn is_sound(key: &[u8; REPLY_KEY], block: &[u8; BLOCK]) -> bool {
    match key[8..] {
        [0, 0, 0, 0] => (0..REPLY_SLOTS).all(|slot| get_short(block, slot).is_ok()),
        _ => (0..LONG_PER_BLOCK).all(|slot| get_long(block, slot).is_ok()),
    }
}

/// The record of `slot`, which is below [`REPLY_SLOTS`], in a block of short replies.
///
/// # Errors
/// The record is invalid.
pub fn get_short(block: &[u8; BLOCK], slot: u32) -> Result<ShortReply, &'static str> {
    let record = &block[short_offset(slot)..][..SHORT];
    let seq = get_u32(record, 0);
    match record[4] {
        0 => Ok(ShortReply::None),
        IS_LONG => Ok(ShortReply::Long(seq)),
        len if usize::from(len) <= SHORT_REPLY_MAX + 1 => {
            let bytes = &record[SHORT_BYTES..][..usize::from(len) - 1];
            Ok(ShortReply::Short(seq, bytes.to_vec()))
        }
        _ => Err("a kept reply is invalid"),
    }
}

/// Keeps a reply of `slot` in a block of short replies; if `bytes` are more than
/// [`SHORT_REPLY_MAX`], says that it is the slot's long reply.
pub fn put_short(block: &mut [u8; BLOCK], slot: u32, seq: u32, bytes: &[u8]) {
    let record = &mut block[short_offset(slot)..][..SHORT];
    put_u32(record, 0, seq);
    if bytes.len() > SHORT_REPLY_MAX {
        record[4] = IS_LONG;
    } else {
        record[4] = bytes.len() as u8 + 1;
        record[SHORT_BYTES..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// The long reply kept for `slot`; `None` if none was ever kept.
///
/// # Errors
/// The record is invalid.
pub fn get_long(block: &[u8; BLOCK], slot: u32) -> Result<Option<(u32, Vec<u8>)>, &'static str> {
    let at = long_offset(slot);
    let (seq, len, set) = (get_u32(block, at), get_u16(block, at + 4), get_u16(block, at + 6));
    match set {
        0 => Ok(None),
        1 if usize::from(len) <= REPLY_MAX => {
            Ok(Some((seq, block[at + LONG_BYTES..][..usize::from(len)].to_vec())))
        }
        _ => Err("a kept reply is invalid"),
    }
}

/// Keeps `bytes` (at most [`REPLY_MAX`]) for `slot`. The end of an older, longer reply stays in the
/// block: clearing it would only make the log longer.
pub fn put_long(block: &mut [u8; BLOCK], slot: u32, seq: u32, bytes: &[u8]) {
    assert!(bytes.len() <= REPLY_MAX, "a reply of {} bytes cannot be kept", bytes.len());
    let at = long_offset(slot);
    put_u32(block, at, seq);
    put_u16(block, at + 4, bytes.len() as u16);
    put_u16(block, at + 6, 1);
    block[at + LONG_BYTES..at + LONG_BYTES + bytes.len()].copy_from_slice(bytes);
}

fn short_offset(slot: u32) -> usize {
    HEADER + SHORT * slot as usize
}

fn long_offset(slot: u32) -> usize {
    HEADER + LONG * (slot % LONG_PER_BLOCK) as usize
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
    fn long_replies_of_one_block_do_not_touch_each_other() {
        let mut block = [0; BLOCK];
        for slot in 3..6 {
            assert_eq!(get_long(&block, slot), Ok(None));
            put_long(&mut block, slot, slot + 100, &vec![slot as u8; REPLY_MAX - slot as usize]);
        }
        for slot in 3..6 {
            let (seq, bytes) = get_long(&block, slot).unwrap().unwrap();
            assert_eq!((seq, bytes), (slot + 100, vec![slot as u8; REPLY_MAX - slot as usize]));
        }
        assert!(block[..HEADER].iter().all(|&b| b == 0));
        let key = long_key(ClientId(1), 3);
        assert!(is_sound(&key, &block));
        block[HEADER + 6] = 9;
        assert!(get_long(&block, 3).is_err() && !is_sound(&key, &block));
    }

    #[test]
    fn short_replies_of_all_slots_do_not_touch_each_other() {
        let (mut block, key) = ([0; BLOCK], short_key(ClientId(1)));
        let bytes = |slot: u32| vec![slot as u8; slot as usize % (SHORT_REPLY_MAX + 2)];
        for slot in 0..REPLY_SLOTS {
            assert_eq!(get_short(&block, slot), Ok(ShortReply::None));
            put_short(&mut block, slot, slot + 100, &bytes(slot));
        }
        for slot in 0..REPLY_SLOTS {
            let expected = match bytes(slot) {
                bytes if bytes.len() > SHORT_REPLY_MAX => ShortReply::Long(slot + 100),
                bytes => ShortReply::Short(slot + 100, bytes),
            };
            assert_eq!(get_short(&block, slot), Ok(expected));
        }
        assert!(block[..HEADER].iter().chain(&block[4000..]).all(|&b| b == 0));
        assert!(is_sound(&key, &block));
        block[HEADER + 4] = SHORT_REPLY_MAX as u8 + 2;
        assert!(get_short(&block, 0).is_err() && !is_sound(&key, &block));
    }

    #[test]
    fn settings_round_trip_up_to_their_limit() {
        let bytes = vec![3; SETTING_MAX];
        assert_eq!(decode_setting(&encode_setting(&bytes)), Some(bytes));
        assert_eq!(decode_setting(&[0xff; SETTING_VALUE]), None);
    }
}
