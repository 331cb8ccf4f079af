//! Mount options that say how a client comes by blocks for growing files.

use proto::prealloc::{
    Allocation, FirstWindow, OdOptions, Policy, SCALE_MAX, WINDOW_MAX, When, WhileOff,
};
use types::limits::{BLOCK_U64, GRANT_BLOCKS};
use types::units::parse_size;

/// Largest chunk: what the server grants at a time.
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
    when: Option<When>,
    chunk: Option<u64>,
    /// The server chooses all places.
    undelegated: bool,
}

impl PlacingOptions {
    /// Takes the option `key=value`. `None`: it is another one.
    pub fn set(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        Some(match key {
            "prealloc" => self.set_how(value),
            "place" => self.set_when(value),
            "delegation" => self.set_delegation(value),
            "chunk" => blocks(value, CHUNK_MIN, CHUNK_MAX).map(|blocks| self.chunk = Some(blocks)),
            "od_scale" => number(value, 2, SCALE_MAX).map(|scale| self.od.scale = scale),
            "od_window" => blocks(value, 1, WINDOW_MAX).map(|blocks| self.od.window_max = blocks),
            "od_misses" => number(value, 0, 1 << 20).map(|most| self.od.misses_max = most as u32),
            "od_off" => blocks(value, 0, WINDOW_MAX).map(|blocks| {
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

    /// Can a mount have all of these at once?
    pub fn check(&self) -> Result<(), String> {
        if self.undelegated && self.when == Some(When::Launch) {
            let text = "option `delegation=off`: the server chooses a place when a write is \
                        accepted; leave `place=launch` out, or write `place=write`";
            return Err(text.into());
        }
        Ok(())
    }

    /// How the mount comes by blocks.
    pub fn chosen(&self) -> Allocation {
        let how = match self.how {
            How::OnDemand => Policy::OnDemand(self.od),
            How::Reservation => Policy::Reservation,
            How::Vanilla => Policy::Vanilla,
        };
        let usual = if self.undelegated { When::Write } else { When::default() };
        Allocation {
            how,
            when: self.when.unwrap_or(usual),
            chunk: self.chunk.unwrap_or(GRANT_BLOCKS),
            delegated: !self.undelegated,
        }
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
        self.when = Some(match value {
            "launch" => When::Launch,
            "write" => When::Write,
            _ => return Err("write launch or write".into()),
        });
        Ok(())
    }

    fn set_delegation(&mut self, value: &str) -> Result<(), String> {
        self.undelegated = match value {
            "on" => false,
            "off" => true,
            _ => return Err("write on or off".into()),
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
        placing.check()?;
        Ok(placing.chosen())
    }

    #[test]
    fn ways_and_times_are_named() {
        assert_eq!(chosen(&[]), Ok(Allocation::default()));
        assert_eq!(chosen(&[("prealloc", "od"), ("place", "launch")]), Ok(Allocation::default()));
        let last = chosen(&[("prealloc", "vanilla"), ("prealloc", "reservation")]).unwrap();
        assert_eq!(last.how, Policy::Reservation);
        let late = chosen(&[("place", "write"), ("prealloc", "vanilla"), ("chunk", "1M")]).unwrap();
        let expected =
            Allocation { how: Policy::Vanilla, when: When::Write, chunk: 256, delegated: true };
        assert_eq!(late, expected);
    }

    #[test]
    fn server_that_chooses_places_does_so_at_the_write() {
        let off = chosen(&[("delegation", "off")]).unwrap();
        assert_eq!((off.delegated, off.when), (false, When::Write));
        assert_eq!(chosen(&[("place", "write"), ("delegation", "off")]), Ok(off));
        assert_eq!(chosen(&[("delegation", "off"), ("delegation", "on")]), chosen(&[]));
        let late = chosen(&[("delegation", "off"), ("place", "launch")]).unwrap_err();
        assert!(late.contains("leave `place=launch` out"), "{late}");
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
            ("delegation", "no"),
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
