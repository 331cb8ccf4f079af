//! The metadata server.
//!
//! Invariants:
//! - an operation is one transaction of the store and runs at one instant: it never sees another
//!   operation half done, and while it waits it holds nothing but gates;
//! - before the server changes anything that a client may cache, every other client that may cache
//!   it has given up the right or has been evicted;
//! - a reply that depends on another client's change leaves when that change is durable;
//! - every request of a session takes effect once.
//!
//! Each kind of state has one owner, which alone changes it, and a `validate`. An owner knows only
//! those above it in this list:
//!
//! | module | what |
//! |---|---|
//! | `runtime` | the environment, the store, the configuration, the log, the server's end |
//! | `sessions` | sessions and connections of clients; who has been silent for how long |
//! | `leases` | rights, gates, recalls, glimpses, contended files |
//! | `locks` | locks of applications |
//! | `orphans` | inodes without a name, and the reaper |
//! | `targets` | object targets: sessions with them, what they have still to do, numbers of objects |
//! | `space` | data zones and their devices, room for grants |
//! | `uncommitted` | changes that are not durable yet |
//! | `eviction` | the end of a session, quarantines, and fencing by the means of `fence` |
//! | `recovery` | greeting, grace, reclaim, replay |
//! | `scrub` | scrubs of the metadata device |
//! | `joint` | operations of several shards, and sessions with their servers |
//! | `server` | all of them together |
//!
//! Above the owners, `request` drives a request through its operations (`ops`, `context`), and
//! `dispatch` reads requests from connections. `upkeep` does the periodic work.

mod administration;
pub mod config;
mod context;
mod dispatch;
mod error;
mod eviction;
pub mod fence;
mod holders;
mod homes;
mod introspection;
mod joint;
mod leases;
mod locks;
mod observer;
mod ops;
mod orphans;
mod recovery;
mod request;
mod runtime;
mod scrub;
mod server;
mod sessions;
mod space;
pub mod standby;
mod start;
pub mod status;
mod targets;
mod uncommitted;
mod upkeep;
mod workers;
mod zone_files;

pub use administration::Control;
pub use config::{Config, Log, MembershipReport, PagPlace, SCRUB_RATE, SPREAD_AT};
pub use error::ServeError;
pub use introspection::{Introspection, Lease, SessionStanding};
pub use joint::{BATCH_MAX, JointStatus, changed_inodes};
pub use observer::{CommittedBlocks, Executed, Observer};
pub use space::check_epoch;
pub use start::{Mds, serve};
pub use status::Status;
