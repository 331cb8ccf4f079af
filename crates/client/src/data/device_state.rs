//! What a client knows of one data device, and when it looks at the device again. Pure: time is an
//! argument, and nothing waits.
//!
//! | condition | requests | left by |
//! |---|---|---|
//! | present | go to the device | a request fails → doubtful |
//! | doubtful | go to the device | a look finds the label → present; it does not → absent |
//! | absent | fail at once | a look finds the label, and the client's byte is locked → present |
//!
//! A *look* opens the device if it is not open, and reads its label. A device is absent from the
//! mount on if that look fails.
//!
//! Invariants:
//! - at most one look of a device is in progress;
//! - a doubtful device is looked at at once; an absent one each [`LOOK_ASKED`] if a request was
//!   refused since the last look, else each [`LOOK_IDLE`];
//! - new blocks are placed elsewhere, if there is room, while the device is absent, has not
//!   answered for [`SILENT`], or has failed to write or flush within [`FAILING`].

use types::{Duration, Instant};

/// Pause between looks at an absent device for which somebody has asked.
pub(super) const LOOK_ASKED: Duration = Duration::from_secs(1);
/// Pause between looks at an absent device for which nobody has asked.
pub(super) const LOOK_IDLE: Duration = Duration::from_secs(10);
/// A device with pending requests that has answered none for so long counts as silent.
pub(super) const SILENT: Duration = Duration::from_millis(400);
/// For so long after a failed write or flush, new blocks are placed elsewhere.
pub(super) const FAILING: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Condition {
    /// Open, with the right label, and this client's byte is locked.
    Present,
    /// A request failed; a look shows whether the device has failed as a whole.
    Doubtful,
    /// Not there, dead, or another device.
    Absent {
        /// Since when.
        since: Instant,
        /// Why, as a message.
        why: String,
    },
}

/// What a look changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Nothing that others need to know.
    Nothing,
    /// The device is absent from now on.
    Lost,
    /// The device is present again.
    Back,
    /// It is still absent, for another reason than before.
    Reason,
}

/// The state of one device.
#[derive(Debug)]
pub(super) struct DeviceState {
    condition: Condition,
    /// A request was refused since the last look.
    asked: bool,
    looking: bool,
    /// When the last look ended.
    looked: Instant,
    failing_until: Instant,
}

impl DeviceState {
    /// A device at whose first look the result was `found`.
    pub fn new(now: Instant, found: Result<(), String>) -> DeviceState {
        let condition = match found {
            Ok(()) => Condition::Present,
            Err(why) => Condition::Absent { since: now, why },
        };
        let failing_until = Instant::default();
        DeviceState { condition, asked: false, looking: false, looked: now, failing_until }
    }

    /// See [`Condition`].
    pub fn condition(&self) -> &Condition {
        &self.condition
    }

    /// Is it absent?
    pub fn is_absent(&self) -> bool {
        matches!(self.condition, Condition::Absent { .. })
    }

    /// May a request go to the device? Notes one that may not.
    pub fn admits(&mut self) -> bool {
        self.asked |= self.is_absent();
        !self.is_absent()
    }

    /// A request failed; `placement`: a write or a flush.
    pub fn failed(&mut self, now: Instant, placement: bool) {
        if self.condition == Condition::Present {
            self.condition = Condition::Doubtful;
        }
        if placement {
            self.failing_until = now + FAILING;
        }
    }

    /// Has it failed to write or flush a short while ago?
    pub fn is_failing(&self, now: Instant) -> bool {
        now < self.failing_until
    }

    /// Is a look due?
    pub fn look_due(&self, now: Instant) -> bool {
        let pause = if self.asked { LOOK_ASKED } else { LOOK_IDLE };
        match self.condition {
            Condition::Present => false,
            Condition::Doubtful => !self.looking,
            Condition::Absent { .. } => !self.looking && now.since(self.looked) >= pause,
        }
    }

    /// Does anything about it need watching?
    pub fn is_settled(&self, now: Instant) -> bool {
        self.condition == Condition::Present && !self.is_failing(now)
    }

    /// A look begins.
    pub fn look_begun(&mut self) {
        debug_assert!(!self.looking, "two looks at once");
        self.looking = true;
        self.asked = false;
    }

    /// A look has ended: the device is as it should be, or why it is not.
    pub fn looked(&mut self, now: Instant, found: Result<(), String>) -> Change {
        self.looking = false;
        self.looked = now;
        let was = std::mem::replace(&mut self.condition, Condition::Present);
        match (was, found) {
            (Condition::Absent { .. }, Ok(())) => {
                self.failing_until = Instant::default();
                Change::Back
            }
            (_, Ok(())) => Change::Nothing,
            (Condition::Absent { since, why: before }, Err(why)) => {
                let same = before == why;
                self.condition = Condition::Absent { since, why };
                if same { Change::Nothing } else { Change::Reason }
            }
            (_, Err(why)) => {
                self.condition = Condition::Absent { since: now, why };
                Change::Lost
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::default() + Duration::from_millis(millis)
    }

    #[test]
    fn local_error_leaves_the_device_present_and_a_dead_one_becomes_absent() {
        let mut state = DeviceState::new(at(0), Ok(()));
        assert!(!state.look_due(at(60_000)), "a sound device is left alone");
        state.failed(at(10), true);
        assert!(state.admits() && state.look_due(at(10)));
        state.look_begun();
        assert!(!state.look_due(at(11)), "one look at a time");
        assert_eq!(state.looked(at(12), Ok(())), Change::Nothing);
        assert_eq!(*state.condition(), Condition::Present);
        assert!(state.is_failing(at(13)) && !state.is_failing(at(10) + FAILING));

        state.failed(at(20), false);
        state.look_begun();
        assert_eq!(state.looked(at(21), Err("gone".into())), Change::Lost);
        assert!(state.is_absent() && !state.admits());
    }

    #[test]
    fn absent_device_is_looked_at_often_while_somebody_asks_for_it() {
        let mut state = DeviceState::new(at(0), Err("gone".into()));
        assert!(!state.look_due(at(9_999)) && state.look_due(at(10_000)));
        state.look_begun();
        assert_eq!(state.looked(at(10_000), Err("gone".into())), Change::Nothing);
        assert!(!state.admits());
        assert!(!state.look_due(at(10_999)) && state.look_due(at(11_000)));
        state.look_begun();
        assert_eq!(state.looked(at(11_000), Err("another label".into())), Change::Reason);
        assert!(!state.look_due(at(12_500)), "nobody has asked since");
        let expected = Condition::Absent { since: at(0), why: "another label".into() };
        assert_eq!(*state.condition(), expected, "absent since the beginning");
        state.look_begun();
        assert_eq!(state.looked(at(30_000), Ok(())), Change::Back);
        assert!(state.admits() && state.is_settled(at(30_000)));
    }
}
