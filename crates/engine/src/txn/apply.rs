//! How a transaction takes effect.
//!
//! Invariants:
//! - a transaction takes effect as a whole: its record in the running group, its blocks in the
//!   cache and its counts, without an await in between;
//! - the store logs an image of a clean block that turns dirty. Of a dirty block it logs the change
//!   since its last record, which lies in a group not older than its entry in the dirty queue.

use std::cell::RefMut;

use types::{Lsn, Transno};

use crate::error::StoreError;
use crate::format::block::{self, Block, HEADER};
use crate::state::State;
use crate::txn::Txn;
use crate::txn::overlay::{Hook, Layer, Scratch};

/// What is left of a transaction that took effect.
pub(crate) struct Applied<'a> {
    /// Its number, `Transno::ZERO` if it changed nothing.
    pub(crate) number: Transno,
    /// The running group was empty before.
    pub(crate) idle: bool,
    pub(crate) state: RefMut<'a, State>,
    /// What waited for its success.
    pub(crate) hooks: Vec<Hook>,
}

impl<'a> Txn<'a> {
    /// Ends the transaction without any effect.
    pub fn abort(mut self) {
        self.give_back();
    }

    /// Applies the transaction.
    ///
    /// # Errors
    /// `ReadOnly`; then nothing has changed.
    pub(crate) fn apply(mut self) -> Result<Applied<'a>, StoreError> {
        if self.state.read_only && self.layers.iter().any(|layer| self.differs(layer)) {
            self.give_back();
            return Err(StoreError::ReadOnly);
        }
        let idle = self.state.log.group.is_empty();
        let mut number = Transno::ZERO;
        if let Some(lsn) = self.log_changes() {
            number = Transno { epoch: self.state.log.epoch, lsn };
            self.state.space.apply(&self.space_change);
            self.install(number);
        }
        let hooks = match self.hooks.is_empty() {
            true => Vec::new(),
            false => std::mem::take(&mut self.hooks),
        };
        self.give_back();
        Ok(Applied { number, idle, state: self.state, hooks })
    }

    /// Adds the record to the running group and marks the layers that changed; `None` if none did.
    fn log_changes(&mut self) -> Option<Lsn> {
        if self.state.log.in_memory {
            return self.count_changes();
        }
        let State { cache, log, .. } = &mut *self.state;
        log.group.begin();
        for layer in &mut self.layers {
            layer.changed = match cache.frame_mut(layer.block) {
                Some(frame) if !layer.fresh && frame.dirty => {
                    log.group.add(layer.block, Some(&frame.data), &layer.data)
                }
                Some(frame) if !layer.fresh && same_body(&frame.data, &layer.data) => false,
                _ => log.group.add(layer.block, None, &layer.data),
            };
        }
        log.group.finish().map(|end| Lsn(log.start.0 + end as u64))
    }

    fn count_changes(&mut self) -> Option<Lsn> {
        let mut layers = std::mem::take(&mut self.layers);
        for layer in &mut layers {
            layer.changed = self.differs(layer);
        }
        let any = layers.iter().any(|layer| layer.changed);
        self.layers = layers;
        let log = &mut self.state.log;
        any.then(|| {
            log.start.0 += RECORD_STEP;
            log.durable = log.start;
            log.start
        })
    }

    fn differs(&self, layer: &Layer) -> bool {
        layer.fresh
            || !self.state.cache.get(layer.block).is_some_and(|old| same_body(old, &layer.data))
    }

    /// Puts the changed layers into the cache.
    fn install(&mut self, number: Transno) {
        let since = self.state.log.start;
        let mut layers = std::mem::take(&mut self.layers);
        for mut layer in layers.drain(..) {
            debug_assert_eq!(
                block::get_u64(&layer.data[..], 8),
                layer.block.0,
                "header overwritten"
            );
            if layer.changed {
                block::stamp(&mut layer.data, number.lsn, number.epoch);
                self.state.install(layer, since);
            } else {
                self.state.cache.recycle(layer.data);
            }
        }
        self.layers = layers;
    }

    /// Keeps the allocated memory for the next transaction.
    fn give_back(&mut self) {
        let mut layers = std::mem::take(&mut self.layers);
        for layer in layers.drain(..) {
            self.state.cache.recycle(layer.data);
        }
        let mut index = std::mem::take(&mut self.index);
        index.clear();
        let mut space_change = std::mem::take(&mut self.space_change);
        space_change.clear();
        let mut hooks = std::mem::take(&mut self.hooks);
        hooks.clear();
        self.state.scratch = Scratch { layers, index, space_change, hooks };
    }
}

/// Bytes by which a transaction advances the position in a store without a log.
const RECORD_STEP: u64 = 64;

fn same_body(a: &Block, b: &Block) -> bool {
    a[HEADER..] == b[HEADER..]
}
