//! Sends requests to the members of an etcd cluster, one after another until one answers.
//!
//! Invariants:
//! - a request takes at most a quarter of the lease, with all attempts and a new token; one message
//!   takes at most a sixth;
//! - a request that may have been done is not sent again, unless it says that it may be.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use types::Instant;
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use super::wire::{self, Request, Wrong};
use crate::config::EtcdConfig;

/// Longest answer.
const ANSWER_MAX: u64 = 8 << 20;

/// An answer, and when its request was sent.
pub struct Sent {
    /// By CLOCK_BOOTTIME.
    pub at: Instant,
    /// The body of the answer.
    pub answer: Value,
}

/// Why a request has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failed {
    /// etcd refuses it, and nothing was done.
    Refused(String),
    /// No member answers, and nothing was done that matters.
    Away(String),
    /// Nobody knows whether it was done.
    Unknown(String),
}

impl Failed {
    /// The text for people.
    pub fn text(self) -> String {
        match self {
            Failed::Refused(text) | Failed::Away(text) | Failed::Unknown(text) => text,
        }
    }
}

/// Where requests go. Tests have another one.
pub trait Post {
    /// Sends a request, and waits for its answer.
    fn post(&mut self, request: &Request) -> Result<Sent, Failed>;

    /// CLOCK_BOOTTIME.
    fn now(&self) -> Instant;

    /// Waits.
    fn pause(&self, time: Duration);
}

/// How one attempt ended without an answer.
enum Attempt {
    NotSent(String),
    Maybe(String),
    Refused(String),
    Token(String),
}

/// See the module.
pub struct Link {
    config: EtcdConfig,
    agent: Agent,
    /// The member that answered last.
    first: usize,
    token: Option<String>,
}

impl Link {
    /// A link to the cluster that `config` names. It connects when it has something to send.
    ///
    /// # Errors
    /// The file with the certificates, or that with the password, cannot be read.
    pub fn new(config: &EtcdConfig) -> Result<Link, String> {
        let attempt = config.lease / 6;
        let mut settings = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .user_agent("redbud")
            .timeout_connect(Some(attempt * 2 / 3));
        if let Some(ca) = &config.ca {
            let wrong = |text: String| format!("{}: {text}", ca.display());
            let pem = std::fs::read(ca).map_err(|error| wrong(error.to_string()))?;
            let certificates = certificates(&pem).map_err(wrong)?;
            let roots = RootCerts::new_with_certs(&certificates);
            settings = settings.tls_config(TlsConfig::builder().root_certs(roots).build());
        }
        let agent = settings.build().new_agent();
        let link = Link { config: config.clone(), agent, first: 0, token: None };
        link.password()?;
        Ok(link)
    }

    /// The user and the password, which are read anew for each token.
    fn password(&self) -> Result<Option<(String, String)>, String> {
        let Some((user, file)) = &self.config.user else { return Ok(None) };
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("{}: {error}", file.display()))?;
        let password = text.strip_suffix('\n').unwrap_or(&text);
        match password.is_empty() || password.contains('\n') {
            true => Err(format!("{}: it must have one line, the password", file.display())),
            false => Ok(Some((user.clone(), password.to_owned()))),
        }
    }

    /// One attempt at one member, with a new token if the old one is not valid any more.
    fn attempt(
        &mut self,
        member: usize,
        request: &Request,
        until: Instant,
    ) -> Result<Sent, Attempt> {
        match self.with_token(member, request, until) {
            Err(Attempt::Token(text)) if self.config.user.is_none() => Err(Attempt::Refused(
                format!("{text}: write `user` and `password_file` to the table [membership]"),
            )),
            Err(Attempt::Token(_)) => {
                self.token = None;
                match self.with_token(member, request, until) {
                    Err(Attempt::Token(text)) => Err(Attempt::Refused(text)),
                    ended => ended,
                }
            }
            ended => ended,
        }
    }

    fn with_token(
        &mut self,
        member: usize,
        request: &Request,
        until: Instant,
    ) -> Result<Sent, Attempt> {
        if self.token.is_none()
            && let Some((user, password)) = self.password().map_err(Attempt::Refused)?
        {
            let asked = self.once(member, &wire::authenticate(&user, &password), until);
            let asked = asked.map_err(|ended| match ended {
                Attempt::Maybe(text) => Attempt::NotSent(text),
                Attempt::Refused(text) | Attempt::Token(text) => {
                    Attempt::Refused(format!("the user `{user}`: {text}"))
                }
                ended => ended,
            })?;
            self.token = Some(wire::token(&asked.answer).map_err(Attempt::NotSent)?);
        }
        self.once(member, request, until)
    }

    fn once(&self, member: usize, request: &Request, until: Instant) -> Result<Sent, Attempt> {
        let left = until.since(self.now()).min(self.config.lease / 6);
        if left == Duration::ZERO {
            return Err(Attempt::NotSent("no time is left".into()));
        }
        let url = format!("{}{}", self.config.members[member], request.path);
        let post = self.agent.post(url).header("content-type", "application/json");
        let mut post = post.config().timeout_global(Some(left)).build();
        if let Some(token) = &self.token {
            post = post.header("authorization", token);
        }
        let at = self.now();
        let answered = post.send(&request.body).and_then(|mut answer| {
            let status = answer.status().as_u16();
            let text = answer.body_mut().with_config().limit(ANSWER_MAX).read_to_string()?;
            Ok((status, text))
        });
        let (status, text) = answered.map_err(|error| {
            let text = error.to_string();
            match not_sent(&error) {
                true => Attempt::NotSent(text),
                false => Attempt::Maybe(text),
            }
        })?;
        match wire::interpret(status, &text) {
            Ok(answer) => Ok(Sent { at, answer }),
            Err(Wrong::Token(text)) => Err(Attempt::Token(text)),
            Err(Wrong::Refused(text)) => Err(Attempt::Refused(text)),
            Err(Wrong::Unable(text)) => Err(Attempt::Maybe(text)),
        }
    }
}

/// Is it certain that the request has not reached a member?
fn not_sent(error: &ureq::Error) -> bool {
    use ureq::{Error, Timeout};
    match error {
        Error::Io(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        Error::Timeout(when) => matches!(when, Timeout::Resolve | Timeout::Connect),
        Error::HostNotFound | Error::BadUri(_) => true,
        _ => false,
    }
}

/// The certificates in a file.
fn certificates(pem: &[u8]) -> Result<Vec<Certificate<'static>>, String> {
    let mut found = Vec::new();
    for item in parse_pem(pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => found.push(certificate),
            Ok(_) => {}
            Err(error) => return Err(format!("not a file of certificates (PEM): {error}")),
        }
    }
    match found.is_empty() {
        true => Err("it has no certificate (PEM)".into()),
        false => Ok(found),
    }
}

impl Post for Link {
    fn post(&mut self, request: &Request) -> Result<Sent, Failed> {
        let (until, count) = (self.now() + self.config.lease / 4, self.config.members.len());
        let mut said: Vec<String> = Vec::new();
        for turn in 0..count {
            if turn > 0 && self.now() >= until {
                break;
            }
            let member = (self.first + turn) % count;
            let name = self.config.members[member].clone();
            match self.attempt(member, request, until) {
                Ok(sent) => {
                    self.first = member;
                    return Ok(sent);
                }
                Err(Attempt::Refused(text) | Attempt::Token(text)) => {
                    return Err(Failed::Refused(format!("etcd at {name} refuses: {text}")));
                }
                Err(Attempt::Maybe(text)) if !request.repeatable => {
                    self.first = (member + 1) % count;
                    return Err(Failed::Unknown(format!("etcd at {name}: {text}")));
                }
                Err(Attempt::NotSent(text) | Attempt::Maybe(text)) => {
                    said.push(format!("{name}: {text}"));
                }
            }
        }
        // The next request begins with another member.
        self.first = (self.first + said.len()) % count;
        let said = said.join("; ");
        Err(Failed::Away(format!("etcd does not answer, or has no quorum ({said})")))
    }

    fn now(&self) -> Instant {
        let time = clock_gettime(ClockId::Boottime);
        Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}
