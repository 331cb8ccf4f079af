//! The object record of a file that lies in objects at targets (paper 001, section 3.1), in the
//! file's slot (7.2).

use types::limits::{BLOCK_U64, FILE_SIZE_MAX};
use types::{ObjectId, PagId};

use engine::format::block::{get_u16, get_u64, put_u16, put_u64};

/// Targets of one file at most: their record always fits into a slot beside a name.
pub const OBJECT_TARGETS_MAX: usize = 32;

/// Bytes of a record without its targets.
const FIXED: usize = 17;

/// Where the content of a file lies: parts of `part` blocks in turns in its objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectRecord {
    /// Its object, which has the same number on each of its targets. It may be another shard's.
    pub object: ObjectId,
    /// Blocks of a stripe unit.
    pub part: u64,
    /// Its targets, in the order of the units.
    pub targets: Vec<PagId>,
}

impl ObjectRecord {
    /// Can a file have it? Its numbers make sense, and each target is named once.
    pub fn is_possible(&self) -> bool {
        let ObjectRecord { object, part, targets } = self;
        let once = (1..targets.len()).all(|at| !targets[..at].contains(&targets[at]));
        let parts = (1..=FILE_SIZE_MAX / BLOCK_U64).contains(part);
        object.0 != 0 && parts && (1..=OBJECT_TARGETS_MAX).contains(&targets.len()) && once
    }

    /// Its bytes in the tail of a slot.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; FIXED + 2 * self.targets.len()];
        put_u64(&mut out, 0, self.object.0);
        put_u64(&mut out, 8, self.part);
        out[16] = self.targets.len() as u8;
        for (nth, target) in self.targets.iter().enumerate() {
            put_u16(&mut out, FIXED + 2 * nth, target.0);
        }
        out
    }

    /// The record in these bytes; `None` if they are none.
    pub fn decode(bytes: &[u8]) -> Option<ObjectRecord> {
        if bytes.len() < FIXED || bytes.len() != FIXED + 2 * usize::from(bytes[16]) {
            return None;
        }
        let target = |nth: usize| PagId(get_u16(bytes, FIXED + 2 * nth));
        let record = ObjectRecord {
            object: ObjectId(get_u64(bytes, 0)),
            part: get_u64(bytes, 8),
            targets: (0..usize::from(bytes[16])).map(target).collect(),
        };
        record.is_possible().then_some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_record_round_trips_and_refuses_what_makes_no_sense() {
        let good = ObjectRecord {
            object: ObjectId(1 << 40),
            part: 256,
            targets: vec![PagId(5), PagId(2), PagId(1000)],
        };
        assert_eq!(ObjectRecord::decode(&good.encode()), Some(good.clone()));
        let most = (0..OBJECT_TARGETS_MAX as u16).map(PagId).collect::<Vec<_>>();
        let wide = ObjectRecord { targets: most.clone(), ..good.clone() };
        assert_eq!(ObjectRecord::decode(&wide.encode()), Some(wide));
        for bad in [
            ObjectRecord { object: ObjectId(0), ..good.clone() },
            ObjectRecord { part: 0, ..good.clone() },
            ObjectRecord { part: u64::MAX, ..good.clone() },
            ObjectRecord { targets: Vec::new(), ..good.clone() },
            ObjectRecord { targets: vec![PagId(3), PagId(4), PagId(3)], ..good.clone() },
            ObjectRecord { targets: [&most[..], &[PagId(99)]].concat(), ..good.clone() },
        ] {
            assert_eq!(ObjectRecord::decode(&bad.encode()), None, "{bad:?}");
        }
        let bytes = good.encode();
        for len in 0..bytes.len() {
            assert_eq!(ObjectRecord::decode(&bytes[..len]), None);
        }
        assert_eq!(ObjectRecord::decode(&[&bytes[..], &[0]].concat()), None);
    }
}
