//! What processes do with small files, step by step: PostMark (002 §6.3), web content, a source
//! tree; objects of a content delivery network and Filebench's personalities (000 §V.B). Workers
//! carry a script out by system calls; a program may also do so on the store as a library, or on
//! clients in virtual time.

pub mod filebench;
pub mod gamma;
pub mod polygraph;
pub mod postmark;
pub mod source;
pub mod xcdn;
