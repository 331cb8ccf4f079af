//! A server that stands by: it lets peers in as the serving one does, and refuses every greeting
//! with the reason, so that they try the next address.

use env::{Env, Stream};
use proto::frame::{Decoder, encode};
use proto::message::{Message, Peer};
use types::{Duration, Fault};

use super::{Door, refusal};

/// How long a peer may take to send its greeting, and to read the refusal.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of one read.
const READ: usize = 4 << 10;

/// Lets the peer in by `door`, and refuses its greeting as `Busy`, with `text`.
pub async fn turn_away<P: Peer>(env: &Env, door: &Door, stream: Stream, text: &str) {
    let Some((link, _)) = door.admit::<P>(stream).await else { return };
    let mut decoder = Decoder::<P>::new();
    let greeted = async {
        while let Ok(None) = decoder.next() {
            let (read, bytes) = link.read(decoder.lend(), READ).await;
            decoder.restore(bytes);
            if !matches!(read, Ok(1..)) {
                return;
            }
        }
        let mut bytes = Vec::new();
        encode::<P>(&Message::Refused { refused: refusal(Fault::Busy, text) }, &mut bytes);
        // A peer that has gone needs no reason.
        let _ = link.write_all(bytes).await;
    };
    env.timeout(PATIENCE, greeted).await;
    link.shutdown();
}
