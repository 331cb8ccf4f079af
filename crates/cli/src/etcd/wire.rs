//! Requests to etcd's v3 JSON gateway, and what its answers mean. No I/O.
//!
//! Keys and values travel in base64, 64-bit numbers as texts, and a field that is zero is left
//! out. An answer that is cut off, or not etcd's, is an error with its beginning.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// How much of an unreadable answer an error shows.
const SHOWN: usize = 80;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The path of the call.
    pub path: &'static str,
    /// Its JSON text.
    pub body: String,
    /// It may be sent again when nobody knows whether it was done.
    pub repeatable: bool,
}

/// What a transaction requires of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unchanged<'a> {
    /// The key.
    pub key: &'a str,
    /// The revision of its last change; 0: it does not exist.
    pub revision: i64,
}

/// One step of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step<'a> {
    /// Reads a key.
    Read(&'a str),
    /// Reads all keys that begin with this text.
    ReadAll(&'a str),
    /// Writes a key, which goes with the lease unless that is 0.
    Put(&'a str, String, i64),
    /// Removes a key.
    Remove(&'a str),
}

impl Step<'_> {
    fn json(&self) -> Value {
        match self {
            Step::Read(key) => json!({ "request_range": { "key": encode(key) } }),
            Step::ReadAll(prefix) => {
                let range = json!({ "key": encode(prefix), "range_end": end_of(prefix) });
                json!({ "request_range": range })
            }
            Step::Put(key, value, lease) => json!({ "request_put": {
                "key": encode(key),
                "value": encode(value),
                "lease": lease.to_string(),
            } }),
            Step::Remove(key) => json!({ "request_delete_range": { "key": encode(key) } }),
        }
    }
}

/// Does all `steps` at once if all of `required` holds, else nothing. Without a writing step it is
/// a linearizable read.
pub fn transaction(required: &[Unchanged<'_>], steps: &[Step<'_>]) -> Request {
    let compare = |one: &Unchanged<'_>| {
        json!({
            "key": encode(one.key),
            "target": "MOD",
            "result": "EQUAL",
            "mod_revision": one.revision.to_string(),
        })
    };
    let compares: Vec<Value> = required.iter().map(compare).collect();
    let success: Vec<Value> = steps.iter().map(Step::json).collect();
    let repeatable = steps.iter().all(|step| matches!(step, Step::Read(_) | Step::ReadAll(_)));
    let body = json!({ "compare": compares, "success": success }).to_string();
    Request { path: "/v3/kv/txn", body, repeatable }
}

/// Makes a lease of so many seconds. A lease that nobody knows of ends by itself.
pub fn grant(seconds: u64) -> Request {
    let body = json!({ "TTL": seconds.to_string() }).to_string();
    Request { path: "/v3/lease/grant", body, repeatable: true }
}

/// Makes a lease last its whole time from now.
pub fn keep_alive(lease: i64) -> Request {
    of_lease("/v3/lease/keepalive", lease)
}

/// Ends a lease.
pub fn revoke(lease: i64) -> Request {
    of_lease("/v3/lease/revoke", lease)
}

/// Asks how long a lease lasts.
pub fn time_to_live(lease: i64) -> Request {
    of_lease("/v3/lease/timetolive", lease)
}

fn of_lease(path: &'static str, lease: i64) -> Request {
    let body = json!({ "ID": lease.to_string() }).to_string();
    Request { path, body, repeatable: true }
}

/// Asks for a token.
pub fn authenticate(user: &str, password: &str) -> Request {
    let body = json!({ "name": user, "password": password }).to_string();
    Request { path: "/v3/auth/authenticate", body, repeatable: true }
}

/// Why an answer is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// The token is missing, or not valid any more.
    Token(String),
    /// etcd refuses the request: nothing was done.
    Refused(String),
    /// etcd could not do it, or does not know whether it was done.
    Unable(String),
}

/// Reads an answer's text.
///
/// # Errors
/// It is an error of etcd's, or no answer of etcd.
pub fn interpret(status: u16, text: &str) -> Result<Value, Wrong> {
    let value: Value = serde_json::from_str(text.trim()).map_err(|_| Wrong::Unable(odd(text)))?;
    // A stream of answers has each of them in a field.
    let value = match value.get("result") {
        Some(result) => result.clone(),
        None => value,
    };
    if let Some(error) = value.get("error") {
        return Err(refusal(&value, error));
    }
    match status {
        200 if value.get("header").is_some() => Ok(value),
        _ => Err(Wrong::Unable(format!("status {status}: {}", odd(text)))),
    }
}

/// An error of etcd's, by the codes of gRPC.
fn refusal(value: &Value, error: &Value) -> Wrong {
    // Streams nest it.
    let (text, code) = match error {
        Value::Object(_) => (error.get("message"), error.get("grpc_code").or(error.get("code"))),
        _ => (Some(error), value.get("code")),
    };
    let text = text.and_then(Value::as_str).unwrap_or("an error without a text").to_owned();
    let stale = ["invalid auth token", "revision in header is old", "user name is empty"];
    if stale.iter().any(|one| text.contains(one)) {
        return Wrong::Token(text);
    }
    match code.and_then(Value::as_u64) {
        // Invalid argument, not found, permission denied, exhausted, precondition, out of range,
        // unauthenticated.
        Some(3 | 5 | 7 | 8 | 9 | 11 | 16) => Wrong::Refused(text),
        _ => Wrong::Unable(text),
    }
}

fn odd(text: &str) -> String {
    let shown: String = text.chars().take(SHOWN).collect();
    format!("not an answer of etcd's v3 gateway: {shown:?}")
}

/// A key and what it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kv {
    /// What it holds.
    pub value: String,
    /// The revision of its last change.
    pub revision: i64,
    /// The lease that it goes with; 0: none.
    pub lease: i64,
}

/// The answer to a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// All that was required held, and all steps are done.
    pub done: bool,
    /// The revision behind it: that of all keys that it wrote.
    pub revision: i64,
    /// What each step has read.
    pub read: Vec<Vec<Kv>>,
}

/// Reads the answer to a transaction.
///
/// # Errors
/// A text of what is odd about it.
pub fn outcome(answer: &Value) -> Result<Outcome, String> {
    let done = answer.get("succeeded").is_some_and(|done| done == true);
    let revision = number(&answer["header"], "revision")?;
    let steps = answer.get("responses").and_then(Value::as_array);
    let read = |step: &Value| {
        let kvs = step["response_range"].get("kvs").and_then(Value::as_array);
        kvs.into_iter().flatten().map(kv).collect::<Result<Vec<Kv>, String>>()
    };
    let read = steps.into_iter().flatten().map(read).collect::<Result<_, _>>()?;
    Ok(Outcome { done, revision, read })
}

fn kv(value: &Value) -> Result<Kv, String> {
    let revision = number(value, "mod_revision")?;
    if revision <= 0 {
        return Err("a key without a revision".into());
    }
    let text = value.get("value").and_then(Value::as_str).unwrap_or("");
    let bytes = STANDARD.decode(text).map_err(|_| "a value that is not base64".to_owned())?;
    let value_text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(Kv { value: value_text, revision, lease: number(value, "lease")? })
}

/// A lease as etcd answers about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Its number.
    pub id: i64,
    /// The seconds that it lasts from now; 0 or less: it is over.
    pub left: i64,
    /// The seconds that it was granted for, where the answer has them.
    pub granted: i64,
}

/// Reads the answer to a grant, a keepalive, or a question about a lease.
///
/// # Errors
/// A text of what is odd about it.
pub fn lease(answer: &Value) -> Result<Lease, String> {
    let id = number(answer, "ID")?;
    if id == 0 {
        return Err("a lease without a number".into());
    }
    let granted = number(answer, "grantedTTL")?;
    Ok(Lease { id, left: number(answer, "TTL")?, granted })
}

/// Reads the answer to [`authenticate`].
///
/// # Errors
/// It has no token.
pub fn token(answer: &Value) -> Result<String, String> {
    let token = answer.get("token").and_then(Value::as_str).filter(|token| !token.is_empty());
    token.map(str::to_owned).ok_or_else(|| "an authentication without a token".into())
}

/// A number, which is a text in answers; 0 if it is left out.
fn number(value: &Value, name: &str) -> Result<i64, String> {
    let number = match value.get(name) {
        None => Some(0),
        Some(Value::String(text)) => text.parse().ok(),
        Some(other) => other.as_i64(),
    };
    number.ok_or_else(|| format!("the field {name} is no number"))
}

fn encode(text: &str) -> String {
    STANDARD.encode(text)
}

/// The first key behind all that begin with `prefix`, which ends with a byte below 255.
fn end_of(prefix: &str) -> String {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    STANDARD.encode(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the form of etcd 3.4.
    const READ: &str = r#"{"header":{"cluster_id":"14841639068965178418","member_id":
        "10276657743932975437","revision":"9","raft_term":"2"},"succeeded":true,"responses":[
        {"response_range":{"header":{"revision":"9"},"kvs":[{"key":"L2Ev","create_revision":"4",
        "mod_revision":"7","version":"3","value":"aGVsbG8=","lease":"7587878451129262603"}],
        "count":"1"}},{"response_range":{"header":{"revision":"9"}}}]}"#;
    const KEPT: &str = r#"{"result":{"header":{"cluster_id":"1","member_id":"2","revision":"8",
        "raft_term":"2"},"ID":"7587878451129262603","TTL":"10"}}
        "#;
    const LEFT: &str = r#"{"header":{"revision":"8"},"ID":"7587878451129262603","TTL":"4",
        "grantedTTL":"10"}"#;

    #[test]
    fn requests_have_the_gateways_form() {
        let steps = [Step::Put("/a/o", "x".into(), 7), Step::Remove("/a/s"), Step::ReadAll("/a/")];
        let request = transaction(&[Unchanged { key: "/a/o", revision: 0 }], &steps);
        assert_eq!((request.path, request.repeatable), ("/v3/kv/txn", false));
        let body: Value = serde_json::from_str(&request.body).unwrap();
        let expected = json!({
            "compare": [{ "key": "L2Evbw==", "target": "MOD", "result": "EQUAL",
                "mod_revision": "0" }],
            "success": [
                { "request_put": { "key": "L2Evbw==", "value": "eA==", "lease": "7" } },
                { "request_delete_range": { "key": "L2Evcw==" } },
                { "request_range": { "key": "L2Ev", "range_end": "L2Ew" } },
            ],
        });
        assert_eq!(body, expected);
        assert!(transaction(&[], &[Step::Read("/a/o")]).repeatable);
        assert_eq!(grant(10).body, r#"{"TTL":"10"}"#);
        assert_eq!(keep_alive(-3).body, r#"{"ID":"-3"}"#);
    }

    #[test]
    fn answers_are_read() {
        let read = outcome(&interpret(200, READ).unwrap()).unwrap();
        let lease_id = 7587878451129262603;
        let kv = Kv { value: "hello".into(), revision: 7, lease: lease_id };
        assert_eq!(read, Outcome { done: true, revision: 9, read: vec![vec![kv], vec![]] });
        let failed = interpret(200, r#"{"header":{"revision":"9"}}"#).unwrap();
        assert_eq!(outcome(&failed), Ok(Outcome { done: false, revision: 9, read: vec![] }));
        let kept = lease(&interpret(200, KEPT).unwrap());
        assert_eq!(kept, Ok(Lease { id: lease_id, left: 10, granted: 0 }));
        let left = lease(&interpret(200, LEFT).unwrap());
        assert_eq!(left, Ok(Lease { id: lease_id, left: 4, granted: 10 }));
        // A lease that is over.
        let over = r#"{"result":{"header":{"revision":"8"},"ID":"7"}}"#;
        let over = lease(&interpret(200, over).unwrap());
        assert_eq!(over, Ok(Lease { id: 7, left: 0, granted: 0 }));
        let answer = interpret(200, r#"{"header":{},"token":"abc.7"}"#).unwrap();
        assert_eq!(token(&answer), Ok("abc.7".into()));
    }

    #[test]
    fn errors_say_whether_something_may_have_been_done() {
        let cases = [
            (503, r#"{"error":"etcdserver: request timed out","code":14}"#, "unable"),
            (503, r#"{"error":"etcdserver: leader changed","message":"x","code":14}"#, "unable"),
            (500, r#"{"error":"x","code":13}"#, "unable"),
            (404, r#"{"error":"etcdserver: requested lease not found","code":5}"#, "refused"),
            (403, r#"{"error":"etcdserver: permission denied","code":7}"#, "refused"),
            (401, r#"{"error":"etcdserver: invalid auth token","code":16}"#, "token"),
            (400, r#"{"error":"etcdserver: user name is empty","code":3}"#, "token"),
            (400, r#"{"error":"etcdserver: revision in header is old","code":3}"#, "token"),
            (200, r#"{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}"#, "unable"),
            (200, r#"{"error":{"grpc_code":7,"message":"denied"}}"#, "refused"),
            (404, "404 page not found\n", "unable"),
            (200, "", "unable"),
            (200, "[]", "unable"),
            (200, "{}", "unable"),
            (502, r#"{"header":{}}"#, "unable"),
        ];
        for (status, text, expected) in cases {
            let found = match interpret(status, text) {
                Err(Wrong::Token(_)) => "token",
                Err(Wrong::Refused(_)) => "refused",
                Err(Wrong::Unable(_)) => "unable",
                Ok(_) => "an answer",
            };
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn cut_off_or_malformed_answers_are_errors_at_every_byte() {
        for whole in [READ, KEPT, LEFT] {
            for end in 0..whole.trim_end().len() {
                let cut = interpret(200, &whole[..end]);
                assert!(matches!(cut, Err(Wrong::Unable(_))), "cut at {end}: {cut:?}");
            }
        }
        for (from, to) in [
            ("\"revision\":\"9\",\"raft", "\"revision\":\"x\",\"raft"),
            ("\"mod_revision\":\"7\"", "\"mod_revision\":{}"),
            ("\"mod_revision\":\"7\"", "\"mod\":\"7\""),
            ("aGVsbG8=", "aGVs*"),
            ("\"7587878451129262603\"", "\"99999999999999999999\""),
        ] {
            let changed = READ.replacen(from, to, 1);
            assert_ne!(changed, READ, "{from}");
            let wrong = interpret(200, &changed).map(|answer| outcome(&answer));
            assert!(matches!(wrong, Ok(Err(_))), "{to}: {wrong:?}");
        }
        assert!(lease(&json!({ "header": {} })).is_err());
        assert!(token(&json!({ "header": {}, "token": "" })).is_err());
        // Bytes of anything are no panic.
        for at in 0..READ.len() {
            let mut bytes = READ.as_bytes().to_vec();
            bytes[at] = b'9';
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if let Ok(answer) = interpret(200, &text) {
                drop((outcome(&answer), lease(&answer), token(&answer)));
            }
        }
    }
}
