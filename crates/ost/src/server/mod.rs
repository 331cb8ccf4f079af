//! The server of a target.
