//! Content that arrives behind its message, into a buffer of its own.

use std::io;

use env::IoBuf;
use env::sync::Permit;
use proto::frame::Decoder;
use proto::message::Peer;

use crate::Link;

/// Bytes of a read that awaits a frame behind such content: the next content begins soon, and what
/// comes of it with this read is copied.
pub(crate) const SHORT_READ: usize = 4 << 10;
/// Bytes that an encrypted link takes from the socket at once.
const READ: usize = 128 << 10;

/// Received content, and the memory of the server that it takes.
pub struct ArrivedContent {
    /// The bytes.
    pub bytes: IoBuf,
    /// What the server has set apart for them.
    pub room: Option<Permit>,
}

impl AsRef<[u8]> for ArrivedContent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Receives the `len` bytes of content that `decoder` awaits, in pieces of `piece` bytes; `None`:
/// the peer has closed the connection. `heard` is called whenever bytes came. If the future is
/// dropped, the connection is unusable.
///
/// # Errors
/// Those of the link.
pub(crate) async fn receive_content<P: Peer>(
    link: &Link,
    decoder: &mut Decoder<P>,
    (len, piece): (usize, usize),
    heard: impl Fn(),
) -> io::Result<Option<IoBuf>> {
    let mut buf = IoBuf::unspecified(len);
    let mut at = decoder.take_arrived(&mut buf);
    while at < len {
        let result;
        if link.is_plain() {
            (result, buf) = link.read_into(buf, at..len.min(at + piece)).await;
            at += *result.as_ref().unwrap_or(&0);
        } else {
            let bytes;
            (result, bytes) = link.read(decoder.lend(), READ).await;
            decoder.restore(bytes);
            at += decoder.take_arrived(&mut buf[at..]);
        }
        if result? == 0 {
            return Ok(None);
        }
        heard();
    }
    Ok(Some(buf))
}
