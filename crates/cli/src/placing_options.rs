//! Mount options that say how a client comes by blocks for growing files.

use proto::prealloc::{Allocation, FirstWindow, OdOptions, Policy, When, WhileOff};
use types::limits::{BLOCK_U64, GRANT_BLOCKS};
use types::units::parse_size;

/// Largest chunk and window: what the server grants at a time.
const CHUNK_MAX: u64 = 4 * GRANT_BLOCKS;
/// Smallest chunk: 1 MiB.
const CHUNK_MIN: u64 = (1 << 20) / BLOCK_U64;

/// The ways to choose a place that a mount can have.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum How {
    #[default]
    OnDemand,
    Reservation,
    Vanilla,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PlacingOptions {
    how: How,
    /// Used by [`How::OnDemand`].
    od: OdOptions,
    when: When,
    chunk: Option<u64>,
}

impl PlacingOptions {
    /// Takes the option `key=value`. `None`: it is another one.
    pub fn set(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        Some(match key {
            "prealloc" => self.set_how(value),
            "place" => self.set_when(value),
            "chunk" => blocks(value, CHUNK_MIN, CHUNK_MAX).map(|blocks| self.chunk = Some(blocks)),
            "od_scale" => number(value, 2, 64).map(|scale| self.od.scale = scale),
            "od_window" => blocks(value, 1, CHUNK_MAX).map(|blocks| self.od.window_max = blocks),
            "od_misses" => number(value, 0, 1 << 20).map(|most| self.od.misses_max = most as u32),
            "od_off" => blocks(value, 0, CHUNK_MAX).map(|blocks| {
                self.od.while_off = match blocks {
                    0 => WhileOff::NoWindow,
                    blocks => WhileOff::Fixed(blocks),
                };
            }),
            "od_rearm" => number(value, 1, 1 << 20).map(|count| self.od.rearm = count as u32),
            "od_first" => self.set_first(value),
            _ => return None,
        })
    }

    /// How the mount comes by blocks.
    pub fn chosen(&self) -> Allocation {
        let how = match self.how {
            How::OnDemand => Policy::OnDemand(self.od),
            How::Reservation => Policy::Reservation,
            How::Vanilla => Policy::Vanilla,
        };
        Allocation { how, when: self.when, chunk: self.chunk.unwrap_or(GRANT_BLOCKS) }
    }

    fn set_how(&mut self, value: &str) -> Result<(), String> {
        self.how = match value {
            "od" => How::OnDemand,
            "reservation" => How::Reservation,
            "vanilla" => How::Vanilla,
            _ => return Err("write od, reservation or vanilla".into()),
        };
        Ok(())
    }

    fn set_when(&mut self, value: &str) -> Result<(), String> {
        self.when = match value {
            "launch" => When::Launch,
            "write" => When::Write,
            _ => return Err("write launch or write".into()),
        };
        Ok(())
    }

    fn set_first(&mut self, value: &str) -> Result<(), String> {
        self.od.first = match value {
            "at" => FirstWindow::AtWrite,
            "behind" => FirstWindow::BehindWrite,
            _ => return Err("write at or behind".into()),
        };
        Ok(())
    }
}

/// A number from `min` to `max`.
fn number(value: &str, min: u64, max: u64) -> Result<u64, String> {
    let number = value.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("write a number from {min} to {max}"))
}

/// A size of `min` to `max` whole blocks, in blocks.
fn blocks(value: &str, min: u64, max: u64) -> Result<u64, String> {
    let bytes = parse_size(value)?;
    let blocks = bytes / BLOCK_U64;
    if bytes.is_multiple_of(BLOCK_U64) && (min..=max).contains(&blocks) {
        return Ok(blocks);
    }
    let (min, max) = (min * BLOCK_U64, max * BLOCK_U64);
    Err(format!("write a multiple of {BLOCK_U64} bytes from {min} to {max}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(options: &[(&str, &str)]) -> Result<Allocation, String> {
        let mut placing = PlacingOptions::default();
        for (key, value) in options {
            placing.set(key, value).expect("an option of this module")?;
        }
        Ok(placing.chosen())
    }

    #[test]
    fn ways_and_times_are_named() {
        assert_eq!(chosen(&[]), Ok(Allocation::default()));
        assert_eq!(chosen(&[("prealloc", "od"), ("place", "launch")]), Ok(Allocation::default()));
        let last = chosen(&[("prealloc", "vanilla"), ("prealloc", "reservation")]).unwrap();
        assert_eq!(last.how, Policy::Reservation);
        let late = chosen(&[("place", "write"), ("prealloc", "vanilla"), ("chunk", "1M")]).unwrap();
        assert_eq!(late, Allocation { how: Policy::Vanilla, when: When::Write, chunk: 256 });
    }

    #[test]
    fn parameters_of_windows_are_options_in_any_order() {
        let options = [
            ("od_scale", "8"),
            ("od_window", "4M"),
            ("prealloc", "od"),
            ("od_misses", "3"),
            ("od_off", "64K"),
            ("od_rearm", "2"),
            ("od_first", "behind"),
        ];
        let expected = OdOptions {
            scale: 8,
            first: FirstWindow::BehindWrite,
            window_max: 1024,
            misses_max: 3,
            while_off: WhileOff::Fixed(16),
            rearm: 2,
            ..OdOptions::default()
        };
        assert_eq!(chosen(&options).unwrap().how, Policy::OnDemand(expected));
        let none = chosen(&[("od_off", "64K"), ("od_off", "0")]).unwrap();
        assert_eq!(none, Allocation::default());
    }

    #[test]
    fn other_options_are_left_and_wrong_values_refused() {
        assert!(PlacingOptions::default().set("lease", "3s").is_none());
        for (key, value) in [
            ("prealloc", "static"),
            ("prealloc", ""),
            ("place", "close"),
            ("chunk", "4K"),
            ("chunk", "128M"),
            ("chunk", "1234567"),
            ("od_scale", "1"),
            ("od_window", "0"),
            ("od_misses", "-1"),
            ("od_rearm", "0"),
            ("od_first", "last"),
        ] {
            let reason = chosen(&[(key, value)]).unwrap_err();
            assert!(reason.contains("write "), "{key}={value}: {reason}");
        }
    }
}
