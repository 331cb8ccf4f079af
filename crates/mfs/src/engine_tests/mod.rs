//! Tests of the engine under the load of a file system, and with its checker.

mod checkpoint;
mod commit;
mod open;
mod reservation;
mod roots;
