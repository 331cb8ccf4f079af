//! The papers' figures beside what is measured here.
//!
//! Invariant: what a paper prints only as a bar is not read off its picture: the numbers beside
//! ours are those of its text, and the rest is a range.

mod chart;
mod curves;
mod f1;
mod f10;
mod f11;
mod f12;
mod f13;
mod f14;
mod f15;
mod f16;
mod f17;
mod f2;
mod f3;
mod f4;
mod f5;
mod f7;
mod f8;
mod f9;

pub use f1::{CLIENTS as F1_CLIENTS, F1};
pub use f2::{F2, PAGS as F2_PAGS};
pub use f3::{F3, Size as F3Size};
pub use f4::F4;
pub use f5::F5;
pub use f7::{Delegation as F7Delegation, F7, Size as F7Size};
pub use f8::F8;
pub use f9::F9;
pub use f10::{F10, Size as F10Size};
pub use f11::{F11, Size as F11Size};
pub use f12::{F12, Size as F12Size};
pub use f13::{F13, Size as F13Size};
pub use f14::{F14, Size as F14Size};
pub use f15::{F15, Size as F15Size};
pub use f16::F16;
pub use f17::{Creates, CreatesSize, F17, Size as F17Size};

use crate::layouts::Contender;

/// Names of the layouts, for legends.
fn layouts() -> [&'static str; 3] {
    Contender::STORES.map(Contender::text)
}
