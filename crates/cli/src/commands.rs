//! One file for each command.

pub mod bench;
pub mod client;
pub mod df;
pub mod documents;
pub mod drain;
pub mod dump;
pub mod durable;
pub mod fence;
pub mod fsck;
pub mod journal;
pub mod key;
pub mod layout;
pub mod local;
pub mod mds;
pub mod mkfs;
pub mod mount;
pub mod pag;
pub mod path;
pub mod rebalance;
pub mod scrub;
pub mod set_layout;
pub mod sim;
pub mod status;
pub mod sync;
pub mod umount;
pub mod why;
