//! Ways to choose places, in messages. A decoded way is one that a mount can have.

use super::{Behind, FirstWindow, OdOptions, Part, Policy, SCALE_MAX, WINDOW_MAX, WhileOff};
use crate::wire::{Malformed, Reader, Wire};

const ON_DEMAND: u8 = 0;
const RESERVATION: u8 = 1;
const VANILLA: u8 = 2;
const STATIC: u8 = 3;

impl Wire for Policy {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Policy::OnDemand(options) => {
                ON_DEMAND.put(out);
                options.put(out);
            }
            Policy::Reservation => RESERVATION.put(out),
            Policy::Vanilla => VANILLA.put(out),
            Policy::Static => STATIC.put(out),
        }
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match u8::get(reader)? {
            ON_DEMAND => Policy::OnDemand(Wire::get(reader)?),
            RESERVATION => Policy::Reservation,
            VANILLA => Policy::Vanilla,
            STATIC => Policy::Static,
            _ => return Err(Malformed("unknown Policy")),
        })
    }
}

impl Wire for OdOptions {
    fn put(&self, out: &mut Vec<u8>) {
        self.scale.put(out);
        (self.first == FirstWindow::BehindWrite).put(out);
        self.window_max.put(out);
        self.misses_max.put(out);
        match self.while_off {
            WhileOff::NoWindow => None,
            WhileOff::Fixed(blocks) => Some(blocks),
        }
        .put(out);
        self.rearm.put(out);
        self.for_empty_files.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let options = OdOptions {
            scale: Wire::get(reader)?,
            first: if bool::get(reader)? { FirstWindow::BehindWrite } else { FirstWindow::AtWrite },
            window_max: Wire::get(reader)?,
            misses_max: Wire::get(reader)?,
            while_off: Option::get(reader)?.map_or(WhileOff::NoWindow, WhileOff::Fixed),
            rearm: Wire::get(reader)?,
            for_empty_files: Wire::get(reader)?,
        };
        let fixed = match options.while_off {
            WhileOff::NoWindow => 1,
            WhileOff::Fixed(blocks) => blocks,
        };
        let windows = 1..=WINDOW_MAX;
        let possible = (2..=SCALE_MAX).contains(&options.scale)
            && windows.contains(&options.window_max)
            && windows.contains(&fixed);
        if possible { Ok(options) } else { Err(Malformed("a window's size is out of range")) }
    }
}

impl Wire for Behind {
    fn put(&self, out: &mut Vec<u8>) {
        self.block.put(out);
        self.pag.put(out);
        self.addr.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (block, pag) = (Wire::get(reader)?, Wire::get(reader)?);
        Ok(Behind { block, pag, addr: Wire::get(reader)? })
    }
}

impl Wire for Part {
    fn put(&self, out: &mut Vec<u8>) {
        self.zone.put(out);
        self.end.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Part { zone: Wire::get(reader)?, end: Wire::get(reader)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_return_as_they_were_and_impossible_ones_are_refused() {
        let fixed = OdOptions {
            first: FirstWindow::BehindWrite,
            while_off: WhileOff::Fixed(16),
            for_empty_files: true,
            misses_max: 3,
            rearm: 5,
            ..OdOptions::default()
        };
        let od = Policy::OnDemand;
        let all = [od(OdOptions::default()), od(fixed), Policy::Reservation, Policy::Vanilla];
        for policy in all.into_iter().chain([Policy::Static]) {
            assert_eq!(Policy::get(&mut Reader::new(&policy.to_bytes())), Ok(policy));
        }
        for wrong in [
            OdOptions { scale: 1, ..fixed },
            OdOptions { scale: SCALE_MAX + 1, ..fixed },
            OdOptions { window_max: 0, ..fixed },
            OdOptions { window_max: WINDOW_MAX + 1, ..fixed },
            OdOptions { while_off: WhileOff::Fixed(u64::MAX), ..fixed },
        ] {
            let bytes = od(wrong).to_bytes();
            assert!(Policy::get(&mut Reader::new(&bytes)).is_err(), "{wrong:?}");
        }
        assert!(Policy::get(&mut Reader::new(&[4])).is_err());
    }
}
