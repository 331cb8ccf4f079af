//! What processes do with small files, step by step: PostMark (002 §6.3), web content, a source
//! tree. Workers carry a script out by system calls; a program may also do so on the store as a
//! library.

pub mod polygraph;
pub mod postmark;
pub mod source;
