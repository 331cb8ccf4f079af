//! What the log lines of servers and clients say.

use types::{ClientId, Fault, Ino, PagId};

use crate::events::Eviction;

/// The evicted client and the zone in a log line of the server about writes that it could not
/// flush.
pub(crate) fn parse_unflushed(text: &str) -> Option<(ClientId, PagId)> {
    let (device, rest) = text.split_once("writes in place of the evicted client ")?;
    let client = rest.split(' ').next()?.parse().ok()?;
    let zone = device.strip_prefix("data device data")?.split(' ').next()?.parse().ok()?;
    Some((ClientId(client), PagId(zone)))
}

/// The client and stage in a log line of the server about an eviction.
pub(crate) fn parse_eviction(text: &str) -> Option<(ClientId, Eviction)> {
    if let Some((client, _)) = parse_unflushed(text) {
        let stands_still = text.contains("has not flushed within") || text.contains("still owes");
        return stands_still.then_some((client, Eviction::Unflushed));
    }
    let rest = text.strip_prefix("client ")?;
    let (number, rest) = rest.split_once(' ')?;
    let eviction = match rest {
        rest if rest.starts_with("has been evicted") => Eviction::Completed,
        rest if rest.contains("is being evicted") => Eviction::Begins,
        _ => return None,
    };
    Some((ClientId(number.parse().ok()?), eviction))
}

/// The file of a client's log line about lost writes, and whether a flush failed; `None` if no
/// device was at fault.
pub(crate) fn damaged(text: &str) -> Option<(Ino, bool)> {
    let (number, rest) = text.strip_prefix("inode ")?.split_once([' ', ':'])?;
    let (_, why) = rest.split_once("written data is lost: ")?;
    let flush = why.contains("could not make it stable");
    let of_a_device =
        flush || why.starts_with(Fault::Io.text()) || why.contains("data zone has failed");
    of_a_device.then(|| Some((Ino(number.parse().ok()?), flush)))?
}
