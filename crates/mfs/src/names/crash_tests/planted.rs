//! The operations that each sweep begins with.

use std::collections::VecDeque;

use super::{DRAWN, Draw};
use crate::format::slot::SlotSize;

/// Operations that exercise small slots: a file with content, one with attributes that need blobs,
/// and one with more segments than a slot of this size holds.
pub fn planted(size: SlotSize) -> VecDeque<Draw> {
    /// Most segments of one operation.
    const EACH: u64 = 20;
    let draw = |kind, name, e, f| Draw { kind, numbers: [0, 0, name, 0, e, f] };
    let (content, fragments) = (4, 0);
    let mut out = VecDeque::from([
        draw(0, content, 0, 0),
        draw(24, content, 1, 0),
        draw(10, content, 0, 2),
        draw(0, fragments, 0, 0),
        draw(33, 0, 1, 5),
        draw(33, 0, 2, 0),
        draw(33, 0, 2, 0),
    ]);
    out.extend([(1, 0), (2, 900), (1, 2), (3, 40), (2, 0)].map(|(e, f)| draw(34, 0, e, f)));
    // Names that lead away; two directories and a symlink whose names are elsewhere, of which one
    // was here; a file with names on both sides. One directory comes home.
    let outside = [(8, 0, 1), (12, 0, 2), (16, 1, 1), (16, 1, 2), (16, 2, 7), (content, 4, 0)];
    out.push_back(draw(0, 16, 2, 0));
    out.extend(outside.map(|(name, e, f)| draw(35, name, e, f)));
    out.extend(
        [(content, 4, 0), (content, 5, 0), (16, 3, 0)].map(|(name, e, f)| draw(35, name, e, f)),
    );
    // A directory goes to another shard, and comes back; then it goes again. Another one comes.
    out.push_back(draw(0, 21, 2, 0));
    let moves = [(21, 0, 0), (21, 1, 0), (0, 3, 1)];
    out.extend(moves.map(|(name, e, f)| draw(36, name, e, f)));
    out.extend([draw(12, 0, 0, 0), draw(12, 0, 0, 0), draw(12, 0, 0, 0)]);
    out.extend([(21, 2, 0), (21, 1, 0)].map(|(name, e, f)| draw(36, name, e, f)));
    for n in 0..=size.segments_max() as u64 / EACH {
        // Even blocks of the file, then odd ones, then further on.
        let at = n / 2 * 2 * EACH + n % 2;
        out.extend([draw(14, 0, EACH - 1, 0), draw(31, fragments, 0, DRAWN + at)]);
    }
    out
}
