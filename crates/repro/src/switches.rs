//! What can be switched in the system, and how a setting reaches clients and the server: this is
//! the only place that knows.

use client::ClientConfig;
use proto::commit::{Choice, CommitPolicy};
use proto::prealloc::{Allocation, When};

/// A setting of the system that a figure compares with others.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Switches {
    /// How clients come by blocks for growing files.
    pub allocation: Allocation,
    /// How clients commit.
    pub commit: CommitPolicy,
    /// Requests that the server works on at once; `None`: all that there are.
    pub serve: Option<usize>,
}

impl Switches {
    /// The server has all space: clients ask it for every place when they write, as those of paper
    /// 000 do without space delegation.
    pub fn without_delegation() -> Switches {
        let allocation =
            Allocation { when: When::Write, delegated: false, ..Allocation::default() };
        allocation.into()
    }

    /// The same with the synchronous commit (`commit=sync`, 000 §III.A): a write returns when its
    /// data is stable and the server has its commit.
    pub fn synchronous(self) -> Switches {
        Switches { commit: CommitPolicy { sync: true, ..self.commit }, ..self }
    }

    /// The same with so many commits in a request.
    pub fn with_degree(self, degree: Choice) -> Switches {
        Switches { commit: CommitPolicy { degree, ..self.commit }, ..self }
    }

    /// A client's configuration with this setting.
    pub fn of_client(self, config: ClientConfig) -> ClientConfig {
        let Switches { allocation, commit, serve: _ } = self;
        ClientConfig { allocation, commit, ..config }
    }

    /// The server's configuration with this setting.
    pub fn of_server(self, config: mds::Config) -> mds::Config {
        let Switches { serve, allocation: _, commit: _ } = self;
        mds::Config { serve, ..config }
    }
}

impl From<Allocation> for Switches {
    fn from(allocation: Allocation) -> Switches {
        Switches { allocation, ..Switches::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_switch_reaches_its_end() {
        let set = Switches { serve: Some(8), ..Switches::without_delegation() }
            .synchronous()
            .with_degree(Choice::Fixed(3));
        let client = set.of_client(ClientConfig::default());
        assert!(client.commit.sync && !client.allocation.delegated);
        assert_eq!(client.commit.degree, Choice::Fixed(3));
        assert_eq!(client.commit.tasks, Choice::Auto, "what is not switched stays");
        assert_eq!(set.of_server(mds::Config::new("fs", "server:7000")).serve, Some(8));
    }
}
