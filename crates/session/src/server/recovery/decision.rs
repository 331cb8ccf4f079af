//! The table of recovery: what a client shows × what the server knows of its number → what the
//! server does.
//!
//! | client ↓ server → | [`Unknown`] | [`Quarantined`] | [`Absent`] | [`Recovering`] | [`Live`] | [`Over`] |
//! |---|---|---|---|---|---|---|
//! | [`New`] | enroll | enroll | enroll | enroll | enroll | enroll |
//! | [`Returning`] | evicted | evicted | recover | recover | resume | evicted |
//! | [`OtherProcess`] | evicted | evicted | taken | taken | taken | taken |
//! | [`Expected`] | – | – | wait | wait | – | – |
//! | [`Silent`] | – | – | evict at the end | evict at the end | – | – |
//! | [`Dead`] | – | – | evict at once | wait | – | – |
//!
//! - *enroll*, *recover*, *resume*: the greeting succeeds, with a new number, for reclaim and
//!   replay, or as if nothing had happened. A client that is recovering and connects again recovers
//!   again: the server says once more what has survived;
//! - *evicted*, *taken*: the greeting is refused. The server forgets a number only when its client
//!   has left or its quarantine has ended, so an unknown number was evicted. The number of a
//!   session that is over still belongs to its process;
//! - *wait*: grace lasts as long as there is such a client. The server looks at the locks of dead
//!   processes only where no session is, so a dead client that is recovering falls silent first;
//! - *evict at the end*: when the server waits for nobody any more, it evicts all of these. So a
//!   client that comes back late still recovers while others do;
//! - *–*: recovery does nothing. What becomes of a live client that is silent, each server decides.
//!
//! [`Unknown`]: ServerKnowledge::Unknown
//! [`Quarantined`]: ServerKnowledge::Quarantined
//! [`Absent`]: ServerKnowledge::Absent
//! [`Recovering`]: ServerKnowledge::Recovering
//! [`Live`]: ServerKnowledge::Live
//! [`Over`]: ServerKnowledge::Over
//! [`New`]: ClientState::New
//! [`Returning`]: ClientState::Returning
//! [`OtherProcess`]: ClientState::OtherProcess
//! [`Expected`]: ClientState::Expected
//! [`Silent`]: ClientState::Silent
//! [`Dead`]: ClientState::Dead

/// What a client shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientState {
    /// It greets without a number.
    New,
    /// It greets with its number.
    Returning,
    /// It greets with a number that the server has given to another process.
    OtherProcess,
    /// It does not greet now. The server has heard of it, or has begun to listen, less than a lease
    /// ago.
    Expected,
    /// The server has not heard of it for a lease.
    Silent,
    /// Its process on this host has ended.
    Dead,
}

/// What the server knows of a client's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerKnowledge {
    /// Nothing.
    Unknown,
    /// The client is evicted, and its writes may still arrive.
    Quarantined,
    /// The client was there before the restart and has not come back.
    Absent,
    /// The client reclaims and replays.
    Recovering,
    /// The client has a session.
    Live,
    /// The client's session is over, what it held is not free yet.
    Over,
}

/// What the server does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Gives the client a number and begins a session.
    Enroll,
    /// Lets the client reclaim and replay.
    Recover,
    /// Goes on with the session.
    Resume,
    /// Refuses the greeting: the number belongs to another process.
    RefuseTaken,
    /// Refuses the greeting: the client was evicted.
    RefuseEvicted,
    /// Waits for the client.
    Wait,
    /// Evicts the client without waiting for others.
    EvictAtOnce,
    /// Evicts the client once it need not wait for any other.
    EvictAtEnd,
    /// Nothing.
    Nothing,
}

/// See the module.
pub fn decide(client: ClientState, server: ServerKnowledge) -> Decision {
    use ClientState as C;
    use ServerKnowledge as S;
    match (client, server) {
        (C::New, _) => Decision::Enroll,
        (C::Returning | C::OtherProcess, S::Unknown | S::Quarantined) => Decision::RefuseEvicted,
        (C::Returning, S::Absent | S::Recovering) => Decision::Recover,
        (C::Returning, S::Live) => Decision::Resume,
        (C::Returning, S::Over) => Decision::RefuseEvicted,
        (C::OtherProcess, S::Absent | S::Recovering | S::Live | S::Over) => Decision::RefuseTaken,
        (C::Expected, S::Absent | S::Recovering) => Decision::Wait,
        (C::Silent, S::Absent | S::Recovering) => Decision::EvictAtEnd,
        (C::Dead, S::Absent) => Decision::EvictAtOnce,
        (C::Dead, S::Recovering) => Decision::Wait,
        (C::Expected | C::Silent | C::Dead, S::Unknown | S::Quarantined | S::Live | S::Over) => {
            Decision::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENTS: [(&str, ClientState); 6] = [
        ("New", ClientState::New),
        ("Returning", ClientState::Returning),
        ("OtherProcess", ClientState::OtherProcess),
        ("Expected", ClientState::Expected),
        ("Silent", ClientState::Silent),
        ("Dead", ClientState::Dead),
    ];
    const SERVERS: [(&str, ServerKnowledge); 6] = [
        ("Unknown", ServerKnowledge::Unknown),
        ("Quarantined", ServerKnowledge::Quarantined),
        ("Absent", ServerKnowledge::Absent),
        ("Recovering", ServerKnowledge::Recovering),
        ("Live", ServerKnowledge::Live),
        ("Over", ServerKnowledge::Over),
    ];

    fn word(decision: Decision) -> &'static str {
        match decision {
            Decision::Enroll => "enroll",
            Decision::Recover => "recover",
            Decision::Resume => "resume",
            Decision::RefuseTaken => "taken",
            Decision::RefuseEvicted => "evicted",
            Decision::Wait => "wait",
            Decision::EvictAtOnce => "evict at once",
            Decision::EvictAtEnd => "evict at the end",
            Decision::Nothing => "–",
        }
    }

    /// PROTOCOLS 3.3, 3.5, 7.3.
    #[test]
    fn recovery_table_in_the_documentation_is_what_the_server_decides() {
        let cells = |names: &mut dyn Iterator<Item = String>| {
            let row: Vec<String> = names.collect();
            format!("//! | {} |", row.join(" | "))
        };
        let link = |name: &str| format!("[`{name}`]");
        let mut table = vec![
            cells(
                &mut std::iter::once("client ↓ server →".to_owned())
                    .chain(SERVERS.iter().map(|(name, _)| link(name))),
            ),
            format!("//! |{}", "---|".repeat(SERVERS.len() + 1)),
        ];
        for (name, client) in CLIENTS {
            let decided =
                SERVERS.iter().map(|(_, server)| word(decide(client, *server)).to_owned());
            table.push(cells(&mut std::iter::once(link(name)).chain(decided)));
        }
        let written: Vec<&str> =
            include_str!("decision.rs").lines().filter(|line| line.starts_with("//! |")).collect();
        assert_eq!(table, written, "the table of the module, as the server decides");
    }

    #[test]
    fn refused_clients_are_never_waited_for() {
        for (_, server) in SERVERS {
            let refused = decide(ClientState::Returning, server) == Decision::RefuseEvicted;
            let waits = decide(ClientState::Expected, server) == Decision::Wait;
            assert!(!(refused && waits), "grace waits for {server:?}, which cannot come back");
        }
    }

    #[test]
    fn every_client_for_which_grace_waits_is_evicted_in_the_end() {
        for (_, server) in SERVERS {
            let waits = decide(ClientState::Expected, server) == Decision::Wait;
            let evicted = decide(ClientState::Silent, server) == Decision::EvictAtEnd;
            assert_eq!(waits, evicted, "{server:?}");
        }
    }
}
