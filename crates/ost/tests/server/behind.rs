//! Content behind its message, on connections that damage it, end in it, or are a stranger's.

use env::Stream;
use proto::frame::{Decoder, MAGIC_BEHIND, Received, encode, encode_apart};
use proto::message::{CLIENT, Hello, Principal};
use proto::ost::{Message, Ost, Request};
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
    let ops = vec![client.write_op(5, 0, 32, version)];
    let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
    let request = Request { slot: 0, seq, principal, sync: false, replay: None, ops };
    let mut bytes = Vec::new();
    let content = encode_apart(&Message::Request { request }, &mut bytes).unwrap();
    assert_eq!(content.len(), 32 * BLOCK);
    let head = bytes.len();
    bytes.extend_from_slice(&content);
    (bytes, head)
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
