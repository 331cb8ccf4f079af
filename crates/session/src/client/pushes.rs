//! What the server sends without being asked.
//!
//! Invariants:
//! - a push reaches the user of the session in the order of arrival, also one that came before the
//!   user said where pushes go: the server may send news right after its first greeting.

use std::rc::Weak;

use proto::message::{Message, Notice, Peer};

use super::{Events, Session};

/// Most pushes that are kept until the user says where they go. Nothing is recalled before that,
/// because nothing was granted: a server sends one or two.
const EARLY_MAX: usize = 64;

impl<P: Peer> Session<P> {
    /// Sets where replies and pushes go; called once. Before that, requests may be made whose
    /// replies change nothing here; pushes that came are handed over now.
    pub fn set_events(&self, events: Weak<dyn Events<P>>) {
        let first = self.events.set(events).is_ok();
        assert!(first, "set_events is called once");
        for push in self.early_pushes.take() {
            self.hand_over(push);
        }
    }

    pub(super) fn push_received(&self, push: P::Push) {
        match P::notice(push) {
            Notice::Committed(transno) => {
                let mut state = self.state.borrow_mut();
                self.note_committed(&mut state, transno);
                drop(state);
                self.announce_room();
            }
            Notice::Evicted(reason) => {
                self.log(&format!("the {} ended this client's session: {reason}", P::NAME));
                self.lose_session();
            }
            Notice::Other(push) if self.events.get().is_none() => {
                let mut early = self.early_pushes.borrow_mut();
                if early.len() < EARLY_MAX {
                    early.push(push);
                }
            }
            Notice::Other(push) => self.hand_over(push),
        }
    }

    /// Hands a push to the user of the session, and sends what that answers.
    fn hand_over(&self, push: P::Push) {
        let server = self.server();
        if let Some(reply) = self.events().and_then(|events| events.push(server, push)) {
            let mut state = self.state.borrow_mut();
            self.enqueue_message(&mut state, &Message::PushReply { reply });
        }
    }
}
