//! PostMark (002 §6.3, 004 §V.D.3): a pool of small files, then transactions on it, then all of it goes.
//!
//! Invariant: a transaction reads or appends to one file, and makes or deletes one, each with even odds, as
//! Katcher's program does by default; sizes are even between its default bounds.

use std::future::Future;

use env::sim::SimRng;
use store::StoreError;
use types::Ino;

use super::Shape;
use crate::layouts::bed::dir_name;
use crate::layouts::{Caller, Workload};

/// Sizes of files, in bytes.
const SIZES: std::ops::Range<u64> = 500..10_000;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct PostMark {
    clients: u64,
    files: u64,
    transactions: u64,
}

impl PostMark {
    /// Of each client's shape.
    pub fn new(shape: &Shape) -> PostMark {
        let Shape { clients, files, transactions, .. } = *shape;
        PostMark { clients, files, transactions }
    }
}

impl Workload for PostMark {
    type Stage = ();

    fn processes(&self) -> u64 {
        self.clients
    }

    fn work(
        &self,
        (): (),
        caller: Caller,
    ) -> impl Future<Output = Result<u64, StoreError>> + 'static {
        let plan = *self;
        async move {
            let dir = caller.lookup(Ino::ROOT, &dir_name(caller.number)).await?;
            let rng = SimRng::new(caller.number);
            Client { caller, dir, rng, live: Vec::new(), made: 0 }.run(plan).await
        }
    }
}

/// One client.
struct Client {
    caller: Caller,
    dir: Ino,
    rng: SimRng,
    /// Numbers of the files that there are.
    live: Vec<u64>,
    made: u64,
}

fn file(number: u64) -> String {
    number.to_string()
}

impl Client {
    async fn run(mut self, plan: PostMark) -> Result<u64, StoreError> {
        for _ in 0..plan.files {
            self.make().await?;
        }
        for _ in 0..plan.transactions {
            self.touch().await?;
            if self.rng.below(2) == 0 {
                self.make().await?;
            } else {
                self.delete().await?;
            }
        }
        while !self.live.is_empty() {
            self.delete().await?;
        }
        Ok(plan.files + plan.transactions)
    }

    fn size(&mut self) -> u64 {
        SIZES.start + self.rng.below(SIZES.end - SIZES.start)
    }

    async fn make(&mut self) -> Result<(), StoreError> {
        let (number, bytes) = (self.made, self.size());
        self.made += 1;
        self.caller.message().await;
        self.caller.create(self.dir, &file(number)).await?;
        self.caller.append(self.dir, &file(number), bytes).await?;
        self.live.push(number);
        Ok(())
    }

    /// Reads one or appends to it.
    async fn touch(&mut self) -> Result<(), StoreError> {
        if self.live.is_empty() {
            return Ok(());
        }
        let number = self.live[self.rng.below(self.live.len() as u64) as usize];
        self.caller.message().await;
        if self.rng.below(2) == 0 {
            return self.caller.read(self.dir, &file(number)).await.map(drop);
        }
        let bytes = self.size();
        self.caller.append(self.dir, &file(number), bytes).await
    }

    async fn delete(&mut self) -> Result<(), StoreError> {
        if self.live.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.live.len() as u64) as usize;
        let number = self.live.swap_remove(at);
        self.caller.message().await;
        self.caller.delete(self.dir, &file(number)).await
    }
}
