//! Operations that several shards agree on, as a running transaction sees and changes what this
//! shard keeps of them (003). The machine that decides is `commitment`'s, and the metadata
//! server drives it.
//!
//! Invariant: an entry has all bytes of its operation, or is not there.

use std::collections::BTreeMap;

use commitment::{Entry, Part, TxnId};
use types::Fault;

use crate::format::intent::{
    INTENT_KEY, INTENT_VALUE, OPERATION_MAX, WORKERS_MAX, decode_head, decode_intent_key,
    encode_head, intent_key, items_of,
};
use crate::handle::Mfs;
use crate::trees::{INTENTS, insert_zero_entries_of_shards};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};
use engine::format::features::Feature;

/// The intents of a running transaction.
pub struct Intents<'t, 'a> {
    txn: &'t mut Txn<'a>,
}

impl<'a> Txn<'a> {
    /// Operations that several shards agree on.
    pub fn intents<'t>(&'t mut self) -> Intents<'t, 'a> {
        Intents { txn: self }
    }
}

impl Intents<'_, '_> {
    /// Keeps this of a transaction. `operation`: with these bytes; `None`: with those that it has.
    ///
    /// # Errors
    /// `Invalid` without the feature `shards`, or for an entry that cannot be; `TooBig` for more
    /// than [`OPERATION_MAX`] bytes; `NotFound` if it is to keep its bytes and has none.
    pub fn put(&mut self, id: TxnId, entry: &Entry, operation: Option<&[u8]>) -> Result<(), Stop> {
        if !self.txn.has_feature(Feature::SHARDS) {
            return Err(Fault::Invalid.into());
        }
        let length = match operation {
            Some(bytes) if bytes.len() > OPERATION_MAX => return Err(Fault::TooBig.into()),
            Some(bytes) => bytes.len(),
            None => self.head(id)?.ok_or(Stop::Fault(Fault::NotFound))?.1,
        };
        if matches!(&entry.part, Part::Coordinator(workers) if workers.len() > WORKERS_MAX) {
            return Err(Fault::Invalid.into());
        }
        let head = encode_head(entry, length);
        if decode_head(id, &head).is_none() {
            return Err(Fault::Invalid.into());
        }
        if let Some(bytes) = operation {
            let had = self.head(id)?.map_or(0, |(_, length)| items_of(length));
            let pieces = bytes.chunks(INTENT_VALUE);
            let now = pieces.len();
            for (item, piece) in (1..).zip(pieces) {
                let mut value = [0; INTENT_VALUE];
                value[..piece.len()].copy_from_slice(piece);
                INTENTS.insert(self.txn, &intent_key(id, item), &value)?;
            }
            for item in now..had {
                INTENTS.remove(self.txn, &intent_key(id, item as u16 + 1))?;
            }
        }
        INTENTS.insert(self.txn, &intent_key(id, 0), &head)?;
        Ok(())
    }

    /// Keeps nothing of a transaction any more; `false`: nothing was kept.
    ///
    /// # Errors
    /// `Stop` of the blocks read; `Corrupt` if its head is none.
    pub fn remove(&mut self, id: TxnId) -> Result<bool, Stop> {
        let Some((_, length)) = self.head(id)? else { return Ok(false) };
        for item in 0..=items_of(length) {
            INTENTS.remove(self.txn, &intent_key(id, item as u16))?;
        }
        Ok(true)
    }

    /// What is kept of a transaction, with the bytes of its operation.
    ///
    /// # Errors
    /// `Stop` of the blocks read; `Corrupt` if it is damaged.
    pub fn get(&mut self, id: TxnId) -> Result<Option<(Entry, Vec<u8>)>, Stop> {
        let Some((entry, length)) = self.head(id)? else { return Ok(None) };
        let mut bytes = Vec::with_capacity(items_of(length) * INTENT_VALUE);
        for item in 1..=items_of(length) {
            let value = INTENTS.get(self.txn, &intent_key(id, item as u16))?;
            bytes.extend(value.ok_or(Stop::Fault(Fault::Corrupt))?);
        }
        bytes.truncate(length);
        Ok(Some((entry, bytes)))
    }

    /// Everything that is kept, without the operations: what a server recovers from.
    ///
    /// # Errors
    /// `Stop` of the blocks read; `Corrupt` if a head is none.
    pub fn all(&mut self) -> Result<BTreeMap<TxnId, Entry>, Stop> {
        let (mut all, mut damaged) = (BTreeMap::new(), false);
        INTENTS.for_each(self.txn, &FIRST, |key, value| {
            let (id, item) = decode_intent_key(key);
            match (item, decode_head(id, value)) {
                (0, Some((entry, _))) => drop(all.insert(id, entry)),
                (0, None) => damaged = true,
                _ => {}
            }
            !damaged
        })?;
        if damaged { Err(Fault::Corrupt.into()) } else { Ok(all) }
    }

    fn head(&mut self, id: TxnId) -> Result<Option<(Entry, usize)>, Stop> {
        match INTENTS.get(self.txn, &intent_key(id, 0))? {
            Some(value) => match decode_head(id, &value) {
                Some(head) => Ok(Some(head)),
                None => Err(Fault::Corrupt.into()),
            },
            None => Ok(None),
        }
    }
}

/// The key after that of the entry of zeros.
const FIRST: [u8; INTENT_KEY] = {
    let mut key = [0; INTENT_KEY];
    key[INTENT_KEY - 1] = 1;
    key
};

impl Mfs {
    /// Gives the file system the feature `shards`, if it does not have it, with its trees.
    ///
    /// # Errors
    /// As [`Mfs::run`].
    pub async fn add_shards(&self) -> Result<(), StoreError> {
        let features = self.superblock().features;
        if !features.has(Feature::SHARDS) {
            self.set_features(features.with(Feature::SHARDS));
            self.run(Cost::SMALL, insert_zero_entries_of_shards).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use commitment::{Kept, Protocol};
    use types::{Epoch, ShardId};

    use super::*;
    use crate::testing::{now, run};

    fn id(number: u64) -> TxnId {
        TxnId { coordinator: ShardId(0), epoch: Epoch(1), number }
    }

    fn entry(kept: Kept) -> Entry {
        let part = Part::Coordinator(vec![ShardId(4)]);
        Entry { protocol: Protocol::EarlyPrepare, part, kept }
    }

    fn mfs() -> Mfs {
        let mfs = Mfs::volatile(2000);
        now(mfs.add_shards()).unwrap();
        mfs
    }

    #[test]
    fn operation_is_kept_as_it_was_put_until_it_is_removed() {
        let mfs = mfs();
        for length in [0, 1, 111, 112, 113, 5000, OPERATION_MAX] {
            let bytes: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            run(&mfs, |txn| txn.intents().put(id(7), &entry(Kept::Started), Some(&bytes)));
            let got = run(&mfs, |txn| txn.intents().get(id(7)));
            assert_eq!(got, Some((entry(Kept::Started), bytes.clone())), "{length}");
            run(&mfs, |txn| txn.intents().put(id(7), &entry(Kept::Prepared), None));
            let got = run(&mfs, |txn| txn.intents().get(id(7)));
            assert_eq!(got, Some((entry(Kept::Prepared), bytes)), "{length}");
        }
        // A shorter operation leaves nothing of a longer one behind it.
        run(&mfs, |txn| txn.intents().put(id(7), &entry(Kept::Started), Some(b"short")));
        assert!(run(&mfs, |txn| txn.intents().remove(id(7))));
        let left = run(&mfs, |txn| INTENTS.range(txn, &FIRST, usize::MAX));
        assert_eq!(left, []);
        assert!(!run(&mfs, |txn| txn.intents().remove(id(7))));
    }

    #[test]
    fn all_are_listed_in_the_order_in_which_they_began() {
        let mfs = mfs();
        let later = TxnId { epoch: Epoch(2), ..id(1) };
        for id in [later, id(300), id(2)] {
            run(&mfs, |txn| txn.intents().put(id, &entry(Kept::Started), Some(&[1; 300])));
        }
        let all: Vec<TxnId> = run(&mfs, |txn| txn.intents().all()).into_keys().collect();
        assert_eq!(all, [id(2), id(300), later]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mfs = mfs();
        let fault = |id, entry: &Entry, bytes: Option<&[u8]>| {
            now(mfs.run(Cost::STEP, |txn| txn.intents().put(id, entry, bytes))).unwrap_err().fault()
        };
        let started = entry(Kept::Started);
        assert_eq!(fault(id(1), &started, None), Fault::NotFound);
        assert_eq!(fault(id(1), &started, Some(&[0; OPERATION_MAX + 1])), Fault::TooBig);
        let many = |shards: &[u8]| Entry {
            part: Part::Coordinator(shards.iter().map(|&shard| ShardId(shard)).collect()),
            ..started.clone()
        };
        for shards in [&[][..], &[1, 1], &[0], &[1, 2, 3, 4]] {
            assert_eq!(fault(id(1), &many(shards), Some(b"")), Fault::Invalid, "{shards:?}");
        }
        let without = Mfs::volatile(2000);
        let put = without.run(Cost::STEP, |txn| txn.intents().put(id(1), &started, Some(b"")));
        assert_eq!(now(put).unwrap_err().fault(), Fault::Invalid);
    }
}
