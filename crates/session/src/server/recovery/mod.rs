//! What a server does after its restart, and with clients that come back: two tables.
//!
//! | table | of |
//! |---|---|
//! | [`decision`] | a client |
//! | [`replay`] | a request |

pub mod decision;
pub mod replay;
