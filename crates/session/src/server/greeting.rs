//! What server and client agree on before the server looks at who the client is.
//!
//! Invariants:
//! - both speak the highest version that both know, and use the abilities that both have;
//! - what the server does not understand of a greeting (a role, a way to authenticate) it refuses:
//!   a later server can trust the field;
//! - a client that expects another server, or another file system, gets no session here, and
//!   nothing of it is remembered.

use std::rc::Rc;

use env::Env;
use proto::frame::{Decoder, Received};
use proto::message::{
    ADMINISTRATOR, AUTH_NONE, CLIENT, Hello, METADATA_SERVER, Message, OBJECT_TARGET, Peer,
    Refused, Versions,
};
use types::{Duration, Fault, ServerId, Uuid};

use super::{Connection, Who, receive};

/// How long a peer may take to send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Shortest lease that a client may request.
const LEASE_MIN: Duration = Duration::from_millis(100);
/// Longest description that a server keeps.
const DESCRIPTION_MAX: usize = 1024;

/// What a server is and can.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Versions that it speaks.
    pub versions: Versions,
    /// Abilities that it has, a bit each.
    pub features: u64,
    /// Its number.
    pub server: ServerId,
    /// Its role.
    pub role: u8,
    /// Version of the cluster map that it has; 0: none.
    pub map: u64,
    /// Name of its file system.
    pub fs_name: String,
    /// UUID of its file system.
    pub fs_uuid: Uuid,
}

/// What was agreed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// Version.
    pub version: u32,
    /// Abilities, a bit each.
    pub features: u64,
}

/// A refusal.
pub fn refusal(fault: Fault, text: impl Into<String>) -> Refused {
    Refused { fault, text: text.into() }
}

/// Waits for the peer's hello; `None`: the peer went away, or sends none.
///
/// # Errors
/// The peer sends something else.
pub async fn hello<P: Peer>(
    env: &Env,
    connection: &Rc<Connection>,
    decoder: &mut Decoder<P>,
    log: impl Fn(&str),
) -> Option<Result<Hello, Refused>> {
    match env.timeout(HELLO_TIMEOUT, receive(connection, decoder)).await {
        None => {
            let (peer, secs) = (connection.peer(), HELLO_TIMEOUT.as_secs());
            log(&format!("{peer} has sent no hello for {secs} s; connection closed"));
            None
        }
        Some(Ok(None)) => None,
        Some(Ok(Some(Received::Message(Message::Hello { hello })))) => Some(Ok(hello)),
        Some(Ok(Some(_))) => {
            Some(Err(refusal(Fault::Protocol, "the first message must be a hello")))
        }
        Some(Err(text)) => Some(Err(refusal(Fault::Protocol, text))),
    }
}

/// The lease that a client gets which asked as `hello` does, from a server that grants `longest` at
/// most.
pub fn granted_lease(hello: &Hello, longest: Duration) -> Duration {
    let asked = Duration::from_millis(u64::from(hello.lease_ms));
    match hello.lease_ms {
        0 => longest,
        _ => asked.clamp(LEASE_MIN.min(longest), longest),
    }
}

/// A client's description of itself. Its first part names the host, which a fence may cut off: of a
/// node with a key that is the key's name, whatever the client says.
pub fn described(hello: &Hello, who: &Who) -> String {
    let said = shortened(&hello.description);
    match (who.node(), said.find(',')) {
        ("", _) => said,
        (node, None) => node.to_owned(),
        (node, Some(comma)) => format!("{node}{}", &said[comma..]),
    }
}

fn shortened(text: &str) -> String {
    let mut end = text.len().min(DESCRIPTION_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Compares a greeting with what the server is.
///
/// # Errors
/// `Unsupported`: no common version, an unknown role or an unknown way to authenticate. `NotFound`:
/// the client looks for another file system or another server.
pub fn check(hello: &Hello, me: &Identity) -> Result<Agreed, Refused> {
    let version = me.versions.agree(hello.versions()).ok_or_else(|| {
        let (ours, theirs) = (me.versions, hello.versions());
        let text = format!(
            "this server speaks protocol {ours}, the client {theirs}: update the older one"
        );
        refusal(Fault::Unsupported, text)
    })?;
    let is_known = match hello.role {
        CLIENT | ADMINISTRATOR => true,
        METADATA_SERVER => matches!(me.role, OBJECT_TARGET | METADATA_SERVER),
        _ => false,
    };
    if !is_known {
        let text = format!("this server knows no role {} of a client", hello.role);
        return Err(refusal(Fault::Unsupported, text));
    }
    let (method, data) = hello.auth.0.split_first().unwrap_or((&AUTH_NONE, &[]));
    if *method != AUTH_NONE || !data.is_empty() {
        let text = format!(
            "this server knows no authentication method {method} with {} bytes of data; \
             it knows only {AUTH_NONE}: none",
            data.len()
        );
        return Err(refusal(Fault::Unsupported, text));
    }
    if hello.fs_name != me.fs_name {
        let text =
            format!("this server serves the file system {:?}, not {:?}", me.fs_name, hello.fs_name);
        return Err(refusal(Fault::NotFound, text));
    }
    let Some(expected) = &hello.expected.0 else {
        return Ok(Agreed { version, features: me.features & hello.features });
    };
    if expected.role != me.role {
        let text = format!("this server has the role {}, not {}", me.role, expected.role);
        return Err(refusal(Fault::NotFound, text));
    }
    if expected.server != ServerId::ANY && expected.server != me.server {
        let text = format!("this is server {}, not {}", me.server, expected.server);
        return Err(refusal(Fault::NotFound, text));
    }
    if expected.fs_uuid != Uuid::default() && expected.fs_uuid != me.fs_uuid {
        let text = format!(
            "this server serves the file system {:?} with UUID {}, the client has {} mounted; \
             unmount there, and mount again",
            me.fs_name, me.fs_uuid, expected.fs_uuid
        );
        return Err(refusal(Fault::NotFound, text));
    }
    Ok(Agreed { version, features: me.features & hello.features })
}

#[cfg(test)]
mod tests {
    use proto::mds::Mds;
    use proto::message::Expected;
    use proto::wire::{Appended, Bytes};

    use super::*;

    fn me(min: u32, max: u32) -> Identity {
        Identity {
            versions: Versions { min, max },
            features: 0b0110,
            server: ServerId(3),
            role: METADATA_SERVER,
            map: 1,
            fs_name: "home".into(),
            fs_uuid: Uuid([9; 16]),
        }
    }

    fn hello(min: u32, max: u32) -> Hello {
        let usual = Hello::new::<Mds>(CLIENT, "home", "test");
        Hello { version_min: min, version_max: max, features: 0b0011, ..usual }
    }

    fn expecting(server: u16, uuid: u8) -> Hello {
        let expected = Expected {
            server: ServerId(server),
            role: METADATA_SERVER,
            fs_uuid: Uuid([uuid; 16]),
            map: 0,
        };
        Hello { expected: Appended(Some(expected)), ..hello(5, 5) }
    }

    /// PROTOCOLS 1.2.
    #[test]
    fn highest_common_version_and_common_abilities_are_agreed() {
        for (ours, theirs, agreed) in [
            ((5, 5), (5, 5), Some(5)),
            ((5, 6), (4, 5), Some(5)),
            ((4, 5), (5, 6), Some(5)),
            ((4, 6), (4, 6), Some(6)),
            ((4, 6), (3, 4), Some(4)),
            ((5, 5), (4, 4), None),
            ((5, 5), (6, 7), None),
        ] {
            let result = check(&hello(theirs.0, theirs.1), &me(ours.0, ours.1));
            let version = result.as_ref().ok().map(|agreed| agreed.version);
            assert_eq!(version, agreed, "{ours:?} and {theirs:?}");
            match result {
                Ok(agreed) => assert_eq!(agreed.features, 0b0010),
                Err(refused) => {
                    assert_eq!(refused.fault, Fault::Unsupported);
                    let ranges =
                        [me(ours.0, ours.1).versions, hello(theirs.0, theirs.1).versions()];
                    for range in ranges {
                        assert!(refused.text.contains(&range.to_string()), "{}", refused.text);
                    }
                }
            }
        }
    }

    #[test]
    fn unknown_role_and_unknown_authentication_are_refused() {
        let refused = |hello: Hello| check(&hello, &me(5, 5)).unwrap_err();
        let text = refused(Hello { role: 9, ..hello(5, 5) }).text;
        assert!(text.contains("role 9"), "{text}");
        for auth in [vec![1], vec![1, 2, 3], vec![0, 7]] {
            let refused = refused(Hello { auth: Bytes(auth), ..hello(5, 5) });
            assert_eq!(refused.fault, Fault::Unsupported);
            assert!(refused.text.contains("authentication"), "{}", refused.text);
        }
        for auth in [vec![], vec![0]] {
            check(&Hello { auth: Bytes(auth), ..hello(5, 5) }, &me(5, 5)).unwrap();
        }
        check(&Hello { role: ADMINISTRATOR, ..hello(5, 5) }, &me(5, 5)).unwrap();
    }

    #[test]
    fn client_of_another_server_or_file_system_is_refused() {
        check(&expecting(3, 9), &me(5, 5)).unwrap();
        check(&expecting(u16::MAX, 0), &me(5, 5)).unwrap();
        let text = check(&expecting(4, 9), &me(5, 5)).unwrap_err().text;
        assert!(text.contains("server 3") && text.contains('4'), "{text}");
        let text = check(&expecting(3, 8), &me(5, 5)).unwrap_err().text;
        assert!(text.contains(&Uuid([9; 16]).to_string()), "{text}");
        assert!(text.contains(&Uuid([8; 16]).to_string()), "{text}");
        let older = Hello { expected: Appended(None), ..hello(5, 5) };
        check(&older, &me(5, 5)).unwrap();
    }
}
