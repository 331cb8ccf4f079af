//! Space that shards lend to each other, in the sweeps.

use std::fmt::Write;

use types::{PagBlock, PagId, ShardId, Uuid};

use crate::format::space::PagFormat;
use crate::space::Loan;
use crate::txn::Txn;
use engine::error::Stop;

/// Loans of each kind: more would leave too little for the other operations.
const MOST: u32 = 2;

/// Lends something to one shard, and takes something of another one, if that was not done before.
pub fn step(txn: &mut Txn<'_>) -> Result<(), Stop> {
    let next = txn.space().next_loan(ShardId(8))?;
    if next > MOST {
        return Ok(());
    }
    txn.space().lend(ShardId(9), next, 1)?;
    let zone = PagFormat::whole(PagId(60), Uuid([60; 16]), 200);
    let runs = vec![(PagBlock(u64::from(next) * 50), 30)];
    txn.space().borrow(ShardId(8), next, &Loan { zone, runs })
}

/// All runs; empty if there are none.
pub fn describe(txn: &mut Txn<'_>) -> Result<String, Stop> {
    let mut out = String::new();
    for (pag, start, lent) in txn.space().lent()? {
        writeln!(out, "lent {pag}:{start} {lent:?}").unwrap();
    }
    Ok(out)
}
