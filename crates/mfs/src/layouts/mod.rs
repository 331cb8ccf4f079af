//! The layouts of files: which blocks of the data zones hold their content, or the content itself.
//!
//! Invariants:
//! - a layout takes blocks from a pool and gives them up as freed: it changes the state of a block
//!   only through [`crate::space`];
//! - a file has segments and content, or it lies in objects at targets;
//! - segments of a file are sorted by file block, do not overlap, and do not join.

mod inline_data;
mod layout;
mod layout_ahead;
mod near;
mod objects;
mod splice;
mod swap;
mod view;

pub(crate) use layout::EDIT_MAX;
#[cfg(test)]
pub(crate) use layout::UNMAP_STEP;
pub(crate) use layout_ahead::trim;
pub use swap::SWAP_SEGMENTS_MAX;
pub use view::Layouts;

pub use crate::volatile::layouts::{LayoutAhead, LayoutLimits};

#[cfg(test)]
mod fragment_tests;
#[cfg(test)]
mod inline_data_tests;
#[cfg(test)]
mod layout_tests;
#[cfg(test)]
mod object_tests;
#[cfg(test)]
mod swap_tests;
