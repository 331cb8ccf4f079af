//! What can be switched in the system, and how a setting reaches clients and the server: this is
//! the only place that knows.

use client::ClientConfig;
use proto::prealloc::{Allocation, When};

/// A setting of the system that a figure compares with others.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Switches {
    /// How clients come by blocks for growing files.
    pub allocation: Allocation,
}

impl Switches {
    /// The server has all space: clients ask it for every place when they write, as those of paper
    /// 000 do without space delegation.
    pub fn without_delegation() -> Switches {
        let allocation =
            Allocation { when: When::Write, delegated: false, ..Allocation::default() };
        Switches { allocation }
    }

    /// A client's configuration with this setting.
    pub fn of_client(self, config: ClientConfig) -> ClientConfig {
        let Switches { allocation } = self;
        ClientConfig { allocation, ..config }
    }
}

impl From<Allocation> for Switches {
    fn from(allocation: Allocation) -> Switches {
        Switches { allocation }
    }
}
