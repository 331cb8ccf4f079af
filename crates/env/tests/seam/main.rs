//! The seam from outside, without root: programs on every driver, groups of executors, and what
//! tasks wait with. One test binary, because each links the whole crate.

mod executor_group;
mod one_program;
mod sync;
