//! The names of the invariants that a run can break. `docs/INVARIANTS.md` defines them: the names
//! here and the rows there are the same, in the same order.

use std::fmt;

/// The definitions.
const DEFINITIONS: &str = include_str!("../../../docs/INVARIANTS.md");

macro_rules! invariants {
    ($($variant:ident $name:literal,)*) => {
        /// An invariant that a run can break.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Invariant {
            $(
                #[doc = concat!("`", $name, "` of `docs/INVARIANTS.md`.")]
                $variant,
            )*
        }

        impl Invariant {
            /// Every invariant, in the order of the definitions.
            pub const ALL: &[Invariant] = &[$(Invariant::$variant,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Invariant::$variant => $name,)*
                }
            }
        }
    };
}

invariants! {
    Whole "WHOLE",
    Recovered "RECOVERED",
    PowerCut "POWER_CUT",
    Owner "OWNER",
    Stable "STABLE",
    Durable "DURABLE",
    OneName "ONE_NAME",
    Lease "LEASE",
    Writer "WRITER",
    Epoch "EPOCH",
    Once "ONCE",
    Linearizable "LINEARIZABLE",
    Damage "DAMAGE",
    Repair "REPAIR",
    Room "ROOM",
    Loss "LOSS",
    Zone "ZONE",
    Target "TARGET",
    Drained "DRAINED",
    Eviction "EVICTION",
    Noticed "NOTICED",
    Slow "SLOW",
    Server "SERVER",
    Mount "MOUNT",
    Ends "ENDS",
    Own "OWN",
    Fair "FAIR",
    NoPanic "NO_PANIC",
    SameRun "SAME_RUN",
}

impl Invariant {
    /// What it says, in one clause: the second column of its row among the definitions.
    pub fn statement(self) -> &'static str {
        let its = rows().find(|(name, _)| *name == self.name());
        its.map(|(_, statement)| statement).unwrap_or_default()
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), self.statement())
    }
}

/// The rows of the definitions: name and statement.
fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
    DEFINITIONS.lines().filter_map(|line| {
        let mut columns = line.strip_prefix("| `")?.split(" | ");
        Some((columns.next()?.strip_suffix('`')?, columns.next()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invariants_have_one_definition_each_in_the_same_order() {
        let defined: Vec<&str> = rows().map(|(name, _)| name).collect();
        let named: Vec<&str> = Invariant::ALL.iter().map(|invariant| invariant.name()).collect();
        assert_eq!(named, defined);
        assert!(Invariant::ALL.iter().all(|invariant| !invariant.statement().is_empty()));
    }

    #[test]
    fn invariant_shows_its_name_and_what_it_says() {
        let shown = Invariant::Ends.to_string();
        assert_eq!(shown, "ENDS: everything ends once faults have stopped");
    }
}
