//! Encrypted bytes: a byte stream as Noise messages.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 2 | length of the message, 17 to 65,535 |
//! | 2 | length | a Noise message: up to 65,519 bytes of the stream, and 16 that prove them |
//!
//! Frames know nothing of messages: a message carries several small frames that leave together, and
//! a large frame takes several messages.
//!
//! Invariants:
//! - what arrives is what was sent, in its order, or the stream ends: a message that was changed,
//!   left out, repeated or moved does not decrypt;
//! - after every 2^30 messages of a direction both sides replace its key;
//! - a reader keeps less than one message.

use snow::TransportState;

/// Longest message, with its length.
pub const RECORD_MAX: usize = HEADER + MESSAGE;
const HEADER: usize = 2;
const MESSAGE: usize = 65_535;
const TAG: usize = 16;
const CONTENT: usize = MESSAGE - TAG;
/// Messages of a direction under one key.
const REKEY_AFTER: u64 = 1 << 30;

/// The bytes are not what the other side sent: the stream ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken(pub &'static str);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Broken {}

/// Both directions of a stream after its handshake.
pub struct Transport {
    state: TransportState,
    sent: u64,
    received: u64,
    rekey_after: u64,
    broken: Option<Broken>,
}

impl Transport {
    pub(crate) fn new(state: TransportState) -> Transport {
        Transport { state, sent: 0, received: 0, rekey_after: REKEY_AFTER, broken: None }
    }

    /// Replaces the keys after so many messages, for tests; both sides must.
    #[cfg(test)]
    fn rekey_after(&mut self, messages: u64) {
        self.rekey_after = messages;
    }

    /// Appends `plain`, encrypted, to `wire`.
    ///
    /// # Errors
    /// The stream has ended before.
    pub fn seal(&mut self, plain: &[u8], wire: &mut Vec<u8>) -> Result<(), Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let messages = plain.len().div_ceil(CONTENT);
        wire.reserve(plain.len() + messages * (HEADER + TAG));
        for content in plain.chunks(CONTENT) {
            let len = content.len() + TAG;
            let at = wire.len() + HEADER;
            wire.extend_from_slice(&(len as u16).to_le_bytes());
            wire.resize(at + len, 0);
            if self.state.write_message(content, &mut wire[at..]).is_err() {
                return Err(self.end("the numbers of messages are used up"));
            }
            self.sent += 1;
            if self.sent.is_multiple_of(self.rekey_after) {
                self.state.rekey_outgoing();
            }
        }
        Ok(())
    }

    /// Appends what the whole messages at the beginning of `wire` hold to `plain`, and returns the
    /// number of bytes of these messages.
    ///
    /// # Errors
    /// A message is not what the other side sent next. What came before it is in `plain`.
    pub fn open(&mut self, wire: &[u8], plain: &mut Vec<u8>) -> Result<usize, Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let mut start = 0;
        while let [low, high, rest @ ..] = &wire[start..] {
            let len = usize::from(u16::from_le_bytes([*low, *high]));
            if len <= TAG {
                return Err(self.end("an encrypted message is too short"));
            }
            let Some(message) = rest.get(..len) else { break };
            let at = plain.len();
            plain.resize(at + len - TAG, 0);
            if self.state.read_message(message, &mut plain[at..]).is_err() {
                plain.truncate(at);
                return Err(self.end("an encrypted message was changed on its way"));
            }
            self.received += 1;
            if self.received.is_multiple_of(self.rekey_after) {
                self.state.rekey_incoming();
            }
            start += HEADER + len;
        }
        Ok(start)
    }

    fn end(&mut self, why: &'static str) -> Broken {
        *self.broken.insert(Broken(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::tests::pair;

    /// Bytes that differ from each other.
    fn bytes(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
            (state >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn frames_of_any_size_arrive_whole_and_messages_keep_their_bound() {
        let (mut a, mut b) = pair();
        for len in [0, 1, 47, CONTENT - 1, CONTENT, CONTENT + 1, 3 * CONTENT, 1 << 20] {
            let plain = bytes(len, len as u64);
            let mut wire = Vec::new();
            a.seal(&plain, &mut wire).unwrap();
            assert_eq!(wire.len(), len + len.div_ceil(CONTENT) * (HEADER + TAG));
            // It arrives in pieces.
            let (mut kept, mut got) = (Vec::new(), Vec::new());
            for piece in wire.chunks(7_001) {
                kept.extend_from_slice(piece);
                let used = b.open(&kept, &mut got).unwrap();
                kept.drain(..used);
                assert!(kept.len() < RECORD_MAX);
            }
            assert!(got == plain && kept.is_empty(), "{len} bytes");
        }
        let mut wire = Vec::new();
        b.seal(b"the other way", &mut wire).unwrap();
        let mut got = Vec::new();
        assert_eq!(a.open(&wire, &mut got), Ok(wire.len()));
        assert_eq!(got, b"the other way");
    }

    #[test]
    fn keys_are_replaced_in_step_and_the_old_one_does_not_serve() {
        let (mut a, mut b) = pair();
        a.rekey_after(5);
        b.rekey_after(5);
        for round in 0..23_u8 {
            let (mut wire, mut got) = (Vec::new(), Vec::new());
            a.seal(&[round; 40], &mut wire).unwrap();
            b.open(&wire, &mut got).unwrap();
            assert_eq!(got, [round; 40]);
        }
        // A side that does not replace its key is not understood after the fifth message.
        let (mut a, mut b) = pair();
        a.rekey_after(5);
        let sent: Vec<bool> = (0..6)
            .map(|_| {
                let mut wire = Vec::new();
                a.seal(b"text", &mut wire).unwrap();
                b.open(&wire, &mut Vec::new()).is_ok()
            })
            .collect();
        assert_eq!(sent, [true, true, true, true, true, false]);
    }

    #[test]
    fn changed_repeated_missing_and_reflected_messages_end_the_stream() {
        let sealed = |a: &mut Transport, text: &[u8]| {
            let mut wire = Vec::new();
            a.seal(text, &mut wire).unwrap();
            wire
        };
        let refused = |b: &mut Transport, wire: &[u8]| {
            let mut got = Vec::new();
            let first = b.open(wire, &mut got).unwrap_err();
            assert!(got.is_empty());
            // Nothing more is taken.
            assert_eq!(b.open(&[], &mut got), Err(first));
        };
        let (mut a, mut b) = pair();
        let one = sealed(&mut a, b"one");
        b.open(&one, &mut Vec::new()).unwrap();
        refused(&mut b, &one);
        let (mut a, mut b) = pair();
        sealed(&mut a, b"lost");
        refused(&mut b, &sealed(&mut a, b"next"));
        let (mut a, _) = pair();
        let mine = sealed(&mut a, b"mine");
        refused(&mut a, &mine);
        let (_, mut b) = pair();
        refused(&mut b, &[16, 0, 1, 2, 3]);
    }

    /// Lets the reader begin again with the first message.
    fn rewind(transport: &mut Transport) {
        transport.broken = None;
        transport.received = 0;
        transport.state.set_receiving_nonce(0);
    }

    /// 10^5 inputs: messages with a flipped bit, cut ones, and random bytes.
    #[test]
    fn flipped_cut_and_random_streams_give_nothing_but_a_prefix() {
        let mut tried = 0;
        for round in 1..=20_usize {
            let (mut a, mut b) = pair();
            let size = 3 * round;
            let plain = bytes(10 * size, round as u64);
            let mut wire = Vec::new();
            plain.chunks(size).for_each(|part| a.seal(part, &mut wire).unwrap());
            let record = HEADER + size + TAG;
            for flip in 0..wire.len() * 8 {
                let (byte, mut got) = (flip / 8, Vec::new());
                wire[byte] ^= 1 << (flip % 8);
                let result = b.open(&wire, &mut got);
                wire[byte] ^= 1 << (flip % 8);
                let before = byte / record * size;
                assert!(got == plain[..before] && result != Ok(wire.len()), "bit {flip}");
                rewind(&mut b);
                tried += 1;
            }
            for cut in 0..wire.len() {
                let mut got = Vec::new();
                assert_eq!(b.open(&wire[..cut], &mut got), Ok(cut / record * record));
                assert!(got == plain[..cut / record * size]);
                rewind(&mut b);
                tried += 1;
            }
            for seed in 0..1_000 {
                let mut got = Vec::new();
                // Usually the first two bytes ask for more than there is.
                let _ = b.open(&bytes(seed, (round * 1_000 + seed) as u64), &mut got);
                assert!(got.is_empty());
                rewind(&mut b);
                tried += 1;
            }
        }
        assert!(tried >= 100_000, "{tried}");
    }
}
