//! Content behind its message.

use super::*;
use crate::ost::{Message, OpReply, Ost, Reply};

use super::tests::{content_request, next_random};

/// Bytes of the largest content.
const IO_MAX: usize = <Ost as Peer>::BEHIND_MAX;

type Found = Vec<Received<Ost>>;

fn stream(messages: &[Message]) -> Vec<u8> {
    let mut out = Vec::new();
    for message in messages {
        let behind = encode_apart(message, &mut out);
        out.extend_from_slice(behind.as_deref().unwrap_or_default());
    }
    out
}

/// A reply to a read, of so many blocks.
fn data_reply(blocks: usize) -> Message {
    let data = Content::from(vec![3; blocks * 4096]);
    let results = vec![Ok(OpReply::Data { runs: Vec::new(), data, sums: vec![5; blocks] })];
    let (transno, last_committed) = Default::default();
    let (slot, seq, waited, load) = (0, 1, 0, 0);
    Message::Reply { reply: Reply { slot, seq, transno, last_committed, waited, load, results } }
}

fn messages() -> Vec<Message> {
    let request = |blocks| content_request(blocks as u32, blocks);
    vec![request(16), request(1), data_reply(16), request(256), request(15), data_reply(40)]
}

/// What a decoder yields of `bytes` that arrive in parts of `step`. With `own` its user receives
/// content in a buffer of its own.
fn decode(bytes: &[u8], step: usize, own: bool) -> (Found, Result<(), Malformed>) {
    let mut decoder = Decoder::<Ost>::new();
    let (mut found, mut filled): (Found, Option<(Vec<u8>, usize)>) = Default::default();
    for part in bytes.chunks(step) {
        let mut lent = decoder.lend();
        lent.extend_from_slice(part);
        decoder.restore(lent);
        loop {
            if let Some((mut buffer, at)) = filled.take() {
                let at = at + decoder.take_arrived(&mut buffer[at..]);
                if at < buffer.len() {
                    filled = Some((buffer, at));
                    break;
                }
                match decoder.complete(buffer.into()) {
                    Ok(received) => found.push(received),
                    Err(malformed) => return (found, Err(malformed)),
                }
            }
            match decoder.next() {
                Ok(Some(received)) => found.push(received),
                Err(malformed) => return (found, Err(malformed)),
                Ok(None) => match decoder.awaited().filter(|_| own) {
                    Some(len) => filled = Some((vec![0; len], 0)),
                    None => break,
                },
            }
        }
    }
    (found, Ok(()))
}

fn received(messages: &[Message]) -> Found {
    messages.iter().cloned().map(Received::Message).collect()
}

#[test]
fn content_behind_arrives_however_the_stream_is_split() {
    let sent = messages();
    let bytes = stream(&sent);
    for own in [false, true] {
        for step in [bytes.len(), 1 << 20, 70_000, 4096, 999, 61] {
            let (found, end) = decode(&bytes, step, own);
            assert!(found == received(&sent) && end.is_ok(), "in steps of {step}, own {own}");
        }
    }
}

#[test]
fn small_content_stays_in_its_message_and_large_does_not() {
    for message in messages() {
        let mut out = Vec::new();
        let behind = encode_apart(&message, &mut out);
        assert!(behind.is_none_or(|content| content.len() >= 65_536 && out.len() < 5000));
        assert!(out.len() < 65_536, "large content was copied");
    }
}

#[test]
fn stream_that_ends_within_content_yields_no_message() {
    let bytes = stream(&[content_request(1, 16)]);
    for len in [bytes.len() - 1, bytes.len() - 65_536, 20, 15] {
        for own in [false, true] {
            assert_eq!(decode(&bytes[..len], 4096, own), (Vec::new(), Ok(())));
        }
    }
}

#[test]
fn flipped_bit_in_front_of_content_ends_the_stream() {
    let bytes = stream(&[content_request(1, 16)]);
    let head = bytes.len() - 65_536;
    for bit in 0..head * 8 {
        let mut flipped = bytes[..head + 4].to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let (found, end) = decode(&flipped, flipped.len(), true);
        // A longer frame may still arrive whole, and is refused then.
        let waits = bit / 8 < 8;
        assert!(found.is_empty() && (end.is_err() || waits), "bit {bit}");
    }
}

/// A frame of this payload with so many zeros behind it.
fn framed(payload: &[u8], content: usize) -> Vec<u8> {
    let mut out = MAGIC_BEHIND.to_le_bytes().to_vec();
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&(content as u32).to_le_bytes());
    out.extend_from_slice(payload);
    let crc = crc32c_append(crc32c(&out[4..8]), &out[12..]);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    out.resize(out.len() + content, 0);
    out
}

/// The payload of a write request whose content is named `times` times, as behind it.
fn naming(times: usize) -> Vec<u8> {
    let Message::Request { mut request } = content_request(1, 16) else { unreachable!() };
    request.ops = vec![request.ops[0].clone(); times.max(1)];
    let message = Message::Request { request: request.clone() };
    let Message::Request { request } = &message else { unreachable!() };
    let contents: Vec<&Content> = request.ops.iter().filter_map(Ost::content).collect();
    let mut payload = Vec::new();
    let mut put = || message.put(&mut payload);
    match contents[..] {
        [_] if times == 0 => put(),
        [one] => one.put_behind(put),
        [one, other] => one.put_behind(|| other.put_behind(put)),
        _ => unreachable!("at most two"),
    }
    payload
}

#[test]
fn content_that_its_message_does_not_name_once_is_refused() {
    let of = |times, content| decode(&framed(&naming(times), content), 1 << 20, false);
    assert_eq!(of(1, 65_536).0.len(), 1);
    for (times, content) in [(0, 65_536), (2, 65_536), (1, 65_535), (1, 4096), (1, 1 << 20)] {
        let (found, end) = of(times, content);
        let unknown = matches!(found[..], [] | [Received::Unknown { .. }]);
        assert!(unknown, "{times} times, {content} bytes");
        assert!(end.is_err() || found.len() == 1);
    }
    // In a frame without content behind it.
    let payload = naming(1);
    let mut out = MAGIC.to_le_bytes().to_vec();
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    let crc = crc32c_append(crc32c(&out[4..8]), &payload);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&payload);
    assert_eq!(decode(&out, 1 << 20, false).0, [Received::Unknown { slot: 1, seq: 1 }]);
}

#[test]
fn oversized_content_and_content_for_another_peer_end_the_stream() {
    for content in [0, IO_MAX + 1, 1 << 30] {
        let head = &framed(&naming(1), 0)[..16];
        let mut frame = head.to_vec();
        frame[12..16].copy_from_slice(&(content as u32).to_le_bytes());
        assert!(decode(&frame, 16, true).1.is_err(), "{content} bytes");
    }
    let mut decoder = Decoder::<Mds>::new();
    decoder.push(&framed(&naming(1), 65_536));
    assert!(decoder.next().is_err());
}

#[test]
fn stranger_makes_a_decoder_hold_little() {
    let of_stranger = |bytes: &[u8]| {
        let mut decoder = Decoder::<Ost>::of_stranger();
        decoder.push(bytes);
        let next = decoder.next();
        (next, decoder.lend().capacity())
    };
    let (next, capacity) = of_stranger(&framed(&naming(1), 65_536)[..16]);
    assert!(next.is_err() && capacity < 1000, "{capacity}");
    let mut large = Vec::new();
    encode(&content_request(1, 256), &mut large);
    let (next, capacity) = of_stranger(&large[..12]);
    assert!(next.is_err() && capacity < 1000, "{capacity}");
    let mut decoder = Decoder::<Ost>::of_stranger();
    decoder.greeted();
    decoder.push(&large);
    assert!(matches!(decoder.next(), Ok(Some(Received::Message(_)))));
}

#[test]
fn any_bytes_give_messages_or_an_error() {
    let mut state = 0x1234_5678_9abc_def1;
    let head = 16 + naming(1).len();
    for round in 0..4000 {
        let mut frame = framed(&naming(1), 65_536);
        for _ in 0..1 + next_random(&mut state) % 4 {
            let at = next_random(&mut state) as usize % head;
            match next_random(&mut state) % 3 {
                0 => frame[at] = next_random(&mut state) as u8,
                1 => frame[at] = 0xff,
                _ => frame.insert(at, next_random(&mut state) as u8),
            }
        }
        if round % 2 == 0 {
            let len = u32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]) as usize;
            let end = (16 + len.min(frame.len())).min(frame.len());
            let crc = crc32c_append(crc32c(&frame[4..8]), &frame[12..end]);
            frame[8..12].copy_from_slice(&crc.to_le_bytes());
        }
        let _ = decode(&frame, 10_000, round % 3 == 0);
    }
}
