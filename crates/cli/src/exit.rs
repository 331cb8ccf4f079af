//! How a command ends: its exit status and the one line that says why.

use std::fmt;

/// Exit statuses of every command but `mount` and `fsck`, which follow mount(8) and fsck(8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Something failed.
    Failed = 1,
    /// The arguments or the cluster's file are invalid.
    Usage = 2,
    /// A part of the request failed.
    Partial = 3,
    /// The server cannot be reached.
    Unreachable = 4,
    /// The caller may not do this.
    NotPermitted = 5,
    /// The time limit passed.
    Timeout = 6,
    /// Another metadata server has taken over, or the metadata are an older copy.
    Superseded = 7,
}

/// Exit statuses of `mount`, as mount(8) has them.
pub mod mount {
    /// Wrong arguments, or not permitted.
    pub const USAGE: u8 = 1;
    /// The system refused something.
    pub const SYSTEM: u8 = 2;
    /// The mount failed.
    pub const FAILED: u8 = 32;
}

/// Exit statuses of `fsck`, as fsck(8) has them, and one bit that it leaves free.
pub mod fsck {
    /// fsck found problems and repaired all of them.
    pub const CORRECTED: u8 = 1;
    /// fsck found problems and left some of them.
    pub const UNCORRECTED: u8 = 4;
    /// The check itself failed.
    pub const OPERATION: u8 = 8;
    /// Wrong arguments.
    pub const USAGE: u8 = 16;
    /// Added to `CORRECTED` or `UNCORRECTED`: the repair lost user data.
    pub const LOST: u8 = 64;
}

/// A command's failure. The text names the object and says what to do; it is
/// empty if the command has already printed everything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The process's exit status.
    pub code: u8,
    /// Stable code, such as `RB-MOUNT-BUSY`; empty for usage errors.
    pub name: &'static str,
    /// One line for people.
    pub text: String,
}

impl Failure {
    /// Ends with `status` because of `text`.
    pub fn new(status: Status, name: &'static str, text: impl Into<String>) -> Failure {
        Failure { code: status as u8, name, text: text.into() }
    }

    /// Something failed.
    pub fn failed(name: &'static str, text: impl Into<String>) -> Failure {
        Failure::new(Status::Failed, name, text)
    }

    /// The arguments or the cluster's file are invalid.
    pub fn usage(text: impl Into<String>) -> Failure {
        Failure::new(Status::Usage, "", text)
    }

    /// The same with another exit status.
    pub fn with_code(mut self, code: u8) -> Failure {
        self.code = code;
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.is_empty() {
            f.write_str(&self.text)
        } else {
            write!(f, "{} [{}]", self.text, self.name)
        }
    }
}

/// The result of a command: its exit status, or why it failed.
pub type Ended = Result<u8, Failure>;
