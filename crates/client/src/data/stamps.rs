//! The devices that a commit waits for, and the completed writes that it makes stable.

use std::collections::BTreeMap;

use types::PagId;

/// The devices that have writes of a file, sorted.
pub(super) type Devices = Vec<PagId>;

/// Lowest and highest stamp of completed writes, by device.
pub(super) type Stamps = BTreeMap<PagId, (u64, u64)>;
