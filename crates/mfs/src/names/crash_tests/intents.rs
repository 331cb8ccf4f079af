//! Operations of several shards in the sweeps.

use std::fmt::Write;

use commitment::{Entry, Kept, Part, Protocol, TxnId};
use types::{Epoch, ShardId};

use crate::txn::Txn;
use engine::error::Stop;

/// Takes the `nth` operation one step further: it begins with so many bytes, is prepared, and goes.
pub fn step(txn: &mut Txn<'_>, nth: u64, bytes: u64) -> Result<(), Stop> {
    let id = TxnId { coordinator: txn.shard(), epoch: Epoch(1), number: nth };
    let entry = |kept| {
        let part = Part::Coordinator(vec![ShardId(9)]);
        Entry { protocol: Protocol::PresumeNothing, part, kept }
    };
    match txn.intents().get(id)?.map(|(entry, _)| entry.kept) {
        None => {
            let operation = vec![nth as u8; bytes as usize];
            txn.intents().put(id, &entry(Kept::Started), Some(&operation))
        }
        Some(Kept::Started) => txn.intents().put(id, &entry(Kept::Prepared), None),
        Some(_) => txn.intents().remove(id).map(drop),
    }
}

/// All of them; empty if there are none.
pub fn describe(txn: &mut Txn<'_>) -> Result<String, Stop> {
    let mut out = String::new();
    for id in txn.intents().all()?.into_keys() {
        writeln!(out, "{id} {:?}", txn.intents().get(id)?).unwrap();
    }
    Ok(out)
}
