//! Whether a file grows, as far as anybody knows. Pure: time is an argument.

use types::{Duration, Instant};

/// A file that has accepted no write for so long does not grow. Also the pause between two looks
/// for idle devices.
pub(super) const STILL: Duration = Duration::from_millis(10);

/// See the module.
#[derive(Default)]
pub(super) struct Stillness {
    /// Time of the last write.
    written: Instant,
    /// The last handle was closed since.
    closed: bool,
}

impl Stillness {
    /// The file accepts a write.
    pub fn written(&mut self, now: Instant) {
        *self = Stillness { written: now, closed: false };
    }

    /// The last handle of the file was closed.
    pub fn closed(&mut self) {
        self.closed = true;
    }

    /// Was the file closed since its last write, or is that write old?
    pub fn is_still(&self, now: Instant) -> bool {
        self.closed || now.since(self.written) >= STILL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_grows_for_a_while_after_each_write_unless_it_is_closed() {
        let at = |millis: u64| Instant::default() + Duration::from_millis(1_000 + millis);
        let mut file = Stillness::default();
        file.written(at(0));
        assert!(!file.is_still(at(9)) && file.is_still(at(10)));
        file.written(at(9));
        assert!(!file.is_still(at(10)) && file.is_still(at(19)));
        file.written(at(20));
        file.closed();
        assert!(file.is_still(at(20)));
        file.written(at(21));
        assert!(!file.is_still(at(22)), "it was opened again");
    }
}
