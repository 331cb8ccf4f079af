//! What a server does with a request that may have been executed before it started: the request ×
//! the results that are kept for its slot → what is executed.
//!
//! | request ↓ kept → | [`Nothing`] | [`Older`] | [`Part`] | [`Whole`] | [`Newer`] |
//! |---|---|---|---|---|---|
//! | [`Sent`] | execute | execute | go on | go on | refuse |
//! | [`Replayed`] | execute | execute | go on | answer as before | answer as before |
//!
//! - *go on*: operations with a kept result are not executed again; their replies are rebuilt from
//!   it. The others are executed;
//! - *answer as before*: everything that the request changed has survived. The client replays with
//!   the results that it had;
//! - *refuse*: the client has used the slot for a later request, so it has the answer to this one.
//!
//! [`Nothing`]: KeptResults::Nothing
//! [`Older`]: KeptResults::Older
//! [`Part`]: KeptResults::Part
//! [`Whole`]: KeptResults::Whole
//! [`Newer`]: KeptResults::Newer
//! [`Sent`]: Sending::Sent
//! [`Replayed`]: Sending::Replayed

/// How a request comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sending {
    /// The client has no answer to it.
    Sent,
    /// The client had the answer, and sends it with the request.
    Replayed,
}

/// What the store keeps for the slot of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeptResults {
    /// Nothing.
    Nothing,
    /// Results of an earlier request.
    Older,
    /// Results of this request, but not of all that it changed.
    Part,
    /// Results of all that this request changed.
    Whole,
    /// Results of a later request.
    Newer,
}

/// What the server does with the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayDecision {
    /// Executes it.
    Execute,
    /// Executes what has no kept result.
    GoOn,
    /// Answers with the results that came with it.
    AnswerAsBefore,
    /// Refuses it: it violates the protocol.
    Refuse,
}

impl KeptResults {
    /// Of a request with the sequence number `seq`, if `kept` is the number of the request whose
    /// results are kept. `whole`: all that this request changed is among them.
    pub fn of(seq: u32, kept: Option<u32>, whole: impl FnOnce() -> bool) -> KeptResults {
        let Some(kept) = kept else { return KeptResults::Nothing };
        match seq.wrapping_sub(kept).cast_signed() {
            1.. => KeptResults::Older,
            0 if whole() => KeptResults::Whole,
            0 => KeptResults::Part,
            _ => KeptResults::Newer,
        }
    }
}

/// See the module.
pub fn decide(sending: Sending, kept: KeptResults) -> ReplayDecision {
    match (sending, kept) {
        (_, KeptResults::Nothing | KeptResults::Older) => ReplayDecision::Execute,
        (Sending::Sent, KeptResults::Part | KeptResults::Whole)
        | (Sending::Replayed, KeptResults::Part) => ReplayDecision::GoOn,
        (Sending::Replayed, KeptResults::Whole | KeptResults::Newer) => {
            ReplayDecision::AnswerAsBefore
        }
        (Sending::Sent, KeptResults::Newer) => ReplayDecision::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PROTOCOLS 7.2.
    #[test]
    fn replay_table_in_the_documentation_is_what_the_server_decides() {
        use KeptResults::{Newer, Nothing, Older, Part, Whole};
        let mut table = Vec::new();
        for sending in [Sending::Sent, Sending::Replayed] {
            let words =
                [Nothing, Older, Part, Whole, Newer].map(|kept| match decide(sending, kept) {
                    ReplayDecision::Execute => "execute",
                    ReplayDecision::GoOn => "go on",
                    ReplayDecision::AnswerAsBefore => "answer as before",
                    ReplayDecision::Refuse => "refuse",
                });
            table.push(format!("//! | [`{sending:?}`] | {} |", words.join(" | ")));
        }
        let written = include_str!("replay.rs").lines().filter(|line| line.starts_with("//! | [`"));
        assert_eq!(table, written.collect::<Vec<_>>());
    }

    #[test]
    fn kept_results_are_compared_across_the_wrap_of_sequence_numbers() {
        let of = |seq, kept| KeptResults::of(seq, kept, || true);
        assert_eq!(of(5, None), KeptResults::Nothing);
        assert_eq!(of(5, Some(4)), KeptResults::Older);
        assert_eq!(of(5, Some(5)), KeptResults::Whole);
        assert_eq!(KeptResults::of(5, Some(5), || false), KeptResults::Part);
        assert_eq!(of(5, Some(6)), KeptResults::Newer);
        assert_eq!(of(0, Some(u32::MAX)), KeptResults::Older);
        assert_eq!(of(u32::MAX, Some(0)), KeptResults::Newer);
    }
}
