//! Content behind its message, on connections that damage it, end in it, or are a stranger's.

use env::Stream;
use proto::capability::READ;
use proto::content::Content;
use proto::frame::{Decoder, MAGIC_BEHIND, Received, encode, encode_apart};
use proto::message::{CLIENT, Hello, Principal};
use proto::ost::{Message, Op, Ost, Request};
use redbud_ost::server::MEMORY_MIN;
use types::Fault;
use types::limits::BLOCK;

use super::bed::{ADDRESS, Bed, Client, run};

/// A connection without a session's care for it.
struct Raw {
    stream: Stream,
    decoder: Decoder<Ost>,
}

impl Raw {
    async fn connected(bed: &Bed) -> Raw {
        let stream = bed.world.node("raw").connect(ADDRESS).await.unwrap();
        Raw { stream, decoder: Decoder::new() }
    }

    /// The same, when it has been let in.
    async fn greeted(bed: &Bed) -> Raw {
        let mut raw = Raw::connected(bed).await;
        let hello = Hello { nonce: 5, ..Hello::new::<Ost>(CLIENT, "home", "raw, pid 1") };
        let mut bytes = Vec::new();
        encode::<Ost>(&Message::Hello { hello }, &mut bytes);
        raw.send(bytes).await;
        let welcome = raw.next().await;
        assert!(matches!(welcome, Some(Message::Welcome { .. })), "{welcome:?}");
        raw
    }

    async fn send(&self, bytes: Vec<u8>) {
        self.stream.write_all(bytes).await.0.unwrap();
    }

    /// The next message; `None`: the target has closed the connection.
    async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(received) = self.decoder.next().unwrap() {
                let Received::Message(message) = received else { panic!("{received:?}") };
                return Some(message);
            }
            let (read, bytes) = self.stream.read(self.decoder.lend(), 4096).await;
            self.decoder.restore(bytes);
            if !matches!(read, Ok(1..)) {
                return None;
            }
        }
    }

    /// The fault of the next answer.
    async fn answer(&mut self) -> Result<(), Fault> {
        match self.next().await {
            Some(Message::Reply { reply }) => reply.results[0].clone().map(drop),
            other => panic!("{other:?}"),
        }
    }
}

/// The bytes of a request that writes 32 blocks, and where in them the content begins.
fn write(client: &Client, seq: u32, version: u64) -> (Vec<u8>, usize) {
    let (mut bytes, content) = request(0, seq, client.write_op(5, 0, 32, version));
    let content = content.unwrap();
    assert_eq!(content.len(), 32 * BLOCK);
    let head = bytes.len();
    bytes.extend_from_slice(&content);
    (bytes, head)
}

/// The bytes of a request, and the content that belongs behind them.
fn request(slot: u16, seq: u32, op: Op) -> (Vec<u8>, Option<Content>) {
    let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
    let request = Request { slot, seq, principal, sync: false, replay: None, ops: vec![op] };
    let mut bytes = Vec::new();
    let content = encode_apart(&Message::Request { request }, &mut bytes);
    (bytes, content)
}

#[test]
fn bit_flipped_in_content_is_found_and_the_connection_goes_on() {
    run(11, |bed| async move {
        let client = bed.client("a", 7).await;
        client.write(5, 0, 32, 1, false).await.unwrap();
        let mut raw = Raw::greeted(&bed).await;
        let (bytes, head) = write(&client, 1, 2);
        let bits = (bytes.len() - head) * 8;
        let mut seq = 0;
        for bit in (0..bits).step_by(bits / 60).chain([bits - 1]) {
            seq += 1;
            let mut flipped = write(&client, seq, 2).0;
            flipped[head + bit / 8] ^= 1 << (bit % 8);
            raw.send(flipped).await;
            assert_eq!(raw.answer().await, Err(Fault::Corrupt), "bit {bit}");
            assert!(client.has(5, 0, 32, 1).await, "bit {bit}");
        }
        raw.send(write(&client, seq + 1, 2).0).await;
        raw.answer().await.unwrap();
        assert!(client.has(5, 0, 32, 2).await);
    });
}

#[test]
fn connection_that_ends_within_content_leaves_no_trace() {
    run(12, |bed| async move {
        bed.memory.set(MEMORY_MIN);
        bed.restart().await;
        let client = bed.client("a", 7).await;
        client.write(5, 0, 32, 1, false).await.unwrap();
        let (bytes, head) = write(&client, 1, 2);
        for len in [head, head + 1, head + BLOCK, bytes.len() - 1] {
            let raw = Raw::greeted(&bed).await;
            raw.send(bytes[..len].to_vec()).await;
            bed.wait(20).await;
            assert_eq!(bed.status("memory_free").await, (MEMORY_MIN - 32 * BLOCK) as u64);
            raw.stream.shutdown();
            bed.wait(20).await;
            assert_eq!(bed.status("memory_free").await, MEMORY_MIN as u64, "{len} bytes");
            assert!(client.has(5, 0, 32, 1).await, "{len} bytes");
        }
    });
}

/// What was read takes memory until it has left, or its connection has ended.
#[test]
fn answers_that_a_client_does_not_take_are_within_the_memory() {
    run(14, |bed| async move {
        bed.memory.set(MEMORY_MIN);
        bed.restart().await;
        let client = bed.client("a", 7).await;
        client.write(5, 0, 256, 1, false).await.unwrap();
        for takes in [true, false] {
            let mut raw = Raw::greeted(&bed).await;
            for slot in 0..3 {
                let op = Op::Read { may: client.may(5, READ), block: 0, len: 256 };
                raw.send(request(slot, 1, op).0).await;
            }
            bed.wait(500).await;
            let free = MEMORY_MIN - 256 * BLOCK;
            assert_eq!(bed.status("memory_free").await, free as u64, "one answer is on its way");
            if takes {
                for _ in 0..3 {
                    raw.answer().await.unwrap();
                }
            } else {
                bed.world.cut("raw", "ost");
            }
            bed.wait(500).await;
            assert_eq!(bed.status("memory_free").await, MEMORY_MIN as u64, "{takes}");
            assert!(client.has(5, 0, 256, 1).await);
        }
    });
}

#[test]
fn stranger_gets_no_memory_for_content() {
    run(13, |bed| async move {
        let client = bed.client("a", 7).await;
        let mut raw = Raw::connected(&bed).await;
        raw.send(write(&client, 1, 2).0).await;
        let refused = raw.next().await;
        assert!(matches!(refused, Some(Message::Refused { .. }) | None), "{refused:?}");
        assert!(raw.next().await.is_none());
        // Nor does a client for content that is longer than any operation takes.
        let mut raw = Raw::greeted(&bed).await;
        let mut head = MAGIC_BEHIND.to_le_bytes().to_vec();
        head.extend_from_slice(&[10, 0, 0, 0, 0, 0, 0, 0]);
        head.extend_from_slice(&(2u32 << 20).to_le_bytes());
        raw.send(head).await;
        assert!(raw.next().await.is_none());
        assert!(client.has(5, 0, 32, 0).await);
    });
}
