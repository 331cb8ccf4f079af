//! Seats at a model of etcd that answers in the gateway's form, loses answers and delays
//! transactions.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use membership::Proof;
use serde_json::json;
use types::Timestamp;

use super::*;
use crate::etcd::link::Sent;

const LEASE: Duration = Duration::from_secs(8);

/// A fault of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// Nothing.
    Fine,
    /// It does not arrive.
    Away,
    /// It is done, but the answer is lost.
    Lost,
    /// Nobody answers, and it is done at the next request that changes something.
    Late,
}

#[derive(Default)]
struct Model {
    now: Instant,
    revision: i64,
    /// Value, revision and lease by key, all as they travel.
    keys: BTreeMap<String, (String, i64, i64)>,
    /// When each lease ends.
    leases: BTreeMap<i64, Instant>,
    faults: VecDeque<Fault>,
    late: Option<Request>,
    /// The paths of all requests.
    asked: Vec<&'static str>,
}

impl Model {
    fn expire(&mut self) {
        let now = self.now;
        self.leases.retain(|_, ends| *ends > now);
        let leases = &self.leases;
        self.keys.retain(|_, (.., lease)| *lease == 0 || leases.contains_key(lease));
    }

    fn answer(&mut self, request: &Request) -> Result<Value, String> {
        let body: Value = serde_json::from_str(&request.body).unwrap();
        let id = || body["ID"].as_str().unwrap().parse::<i64>().unwrap();
        let header = json!({ "revision": self.revision.to_string() });
        let seconds = |left: Duration| left.as_secs().to_string();
        match request.path {
            "/v3/kv/txn" => self.transaction(&body),
            "/v3/lease/grant" => {
                let lease = 100 + self.asked.len() as i64;
                self.leases.insert(lease, self.now + LEASE);
                Ok(json!({ "header": header, "ID": lease.to_string(), "TTL": seconds(LEASE) }))
            }
            "/v3/lease/keepalive" => {
                let lasts = self.leases.get_mut(&id()).map(|ends| *ends = self.now + LEASE);
                let left = lasts.map_or(Duration::ZERO, |()| LEASE);
                Ok(json!({ "header": header, "ID": id().to_string(), "TTL": seconds(left) }))
            }
            "/v3/lease/timetolive" => {
                let left = self.leases.get(&id()).map(|ends| ends.since(self.now));
                Ok(json!({
                    "header": header,
                    "ID": id().to_string(),
                    "TTL": left.map_or("-1".into(), seconds),
                    "grantedTTL": seconds(LEASE),
                }))
            }
            "/v3/lease/revoke" => {
                let found = self.leases.remove(&id());
                found.map(|_| json!({ "header": header })).ok_or_else(|| "no lease".to_owned())
            }
            other => panic!("{other}"),
        }
    }

    fn transaction(&mut self, body: &Value) -> Result<Value, String> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let number = |value: &Value| value.as_str().unwrap().parse::<i64>().unwrap();
        let holds = body["compare"].as_array().unwrap().iter().all(|one| {
            let found = self.keys.get(&text(&one["key"])).map_or(0, |(_, revision, _)| *revision);
            found == number(&one["mod_revision"])
        });
        let steps = body["success"].as_array().unwrap();
        for put in steps.iter().map(|step| &step["request_put"]).filter(|put| put.is_object()) {
            let lease = number(&put["lease"]);
            if holds && lease != 0 && !self.leases.contains_key(&lease) {
                return Err("etcdserver: requested lease not found".into());
            }
        }
        let writes = steps.iter().any(|step| step.get("request_range").is_none());
        if holds && writes {
            self.revision += 1;
        }
        let mut responses = Vec::new();
        for step in steps.iter().filter(|_| holds) {
            responses.push(self.step(step));
        }
        Ok(json!({
            "header": { "revision": self.revision.to_string() },
            "succeeded": holds,
            "responses": responses,
        }))
    }

    fn step(&mut self, step: &Value) -> Value {
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        if let Some(put) = step.get("request_put") {
            let lease = put["lease"].as_str().unwrap().parse().unwrap();
            let value = (text(&put["value"]), self.revision, lease);
            self.keys.insert(text(&put["key"]), value);
        } else if let Some(removed) = step.get("request_delete_range") {
            self.keys.remove(&text(&removed["key"]));
        } else {
            let range = &step["request_range"];
            let (from, end) = (text(&range["key"]), text(&range["range_end"]));
            let is_in = |key: &String| *key == from || (*key > from && *key < end);
            let kvs: Vec<Value> = self
                .keys
                .iter()
                .filter(|(key, _)| is_in(key))
                .map(|(key, (value, revision, lease))| {
                    json!({
                        "key": key,
                        "value": value,
                        "mod_revision": revision.to_string(),
                        "lease": lease.to_string(),
                    })
                })
                .collect();
            return json!({ "response_range": { "kvs": kvs } });
        }
        json!({})
    }
}

#[derive(Clone, Default)]
struct Line(Rc<RefCell<Model>>);

impl Line {
    fn pass(&self, time: Duration) {
        let mut model = self.0.borrow_mut();
        model.now += time;
        model.expire();
    }

    fn faults(&self, faults: &[Fault]) {
        self.0.borrow_mut().faults = faults.iter().copied().collect();
    }
}

impl Post for Line {
    fn post(&mut self, request: &Request) -> Result<Sent, Failed> {
        let mut model = self.0.borrow_mut();
        model.asked.push(request.path);
        let at = model.now;
        let unknown = |text: &str| match request.repeatable {
            true => Failed::Away(text.into()),
            false => Failed::Unknown(text.into()),
        };
        match model.faults.pop_front().unwrap_or(Fault::Fine) {
            Fault::Fine => {
                let answer = model.answer(request).map_err(Failed::Refused)?;
                model.expire();
                let changes = !request.repeatable || request.path == "/v3/lease/revoke";
                if changes && let Some(late) = model.late.take() {
                    drop(model.answer(&late));
                }
                Ok(Sent { at, answer })
            }
            Fault::Away => Err(Failed::Away("refused".into())),
            Fault::Lost => {
                drop(model.answer(request));
                Err(unknown("timeout"))
            }
            Fault::Late => {
                model.late = Some(request.clone());
                Err(unknown("timeout"))
            }
        }
    }

    fn now(&self) -> Instant {
        self.0.borrow().now
    }

    fn pause(&self, time: Duration) {
        self.pass(time);
    }
}

fn seat(line: &Line) -> Seat<Line> {
    Seat::new(line.clone(), "home", LEASE, Holding::default())
}

fn member(pid: u32) -> Member {
    let address = format!("10.0.0.{pid}:10821");
    Member { host: format!("host{pid}"), pid, nonce: u64::from(pid), address }
}

fn claim(seen: u32, pid: u32, proof: Proof) -> Claim {
    let at = Timestamp::default();
    Claim { seen: Epoch(seen), above: Epoch(4), member: member(pid), proof, at }
}

#[test]
fn owner_is_replaced_when_its_lease_is_over() {
    let line = Line::default();
    let (mut one, mut two) = (seat(&line), seat(&line));
    assert_eq!(one.look().unwrap().life, Life::Free);
    two.stand_by(&member(2)).unwrap();
    assert_eq!(one.standbys().unwrap(), [member(2)]);
    let begun = line.now();
    let term = one.claim(&claim(0, 1, Proof::Free)).unwrap();
    assert_eq!(term, Term { epoch: Epoch(5), ends: Some(begun + LEASE * 7 / 8) });
    one.serving(term, Epoch(5), Duration::from_millis(7));
    let seen = two.look().unwrap();
    assert_eq!((seen.life, seen.record.history[0].took_ms), (Life::Alive { note: None }, 7));
    for proof in [Proof::Free, Proof::Lease, Proof::Lock] {
        let refused = two.claim(&claim(5, 2, proof));
        assert!(matches!(refused, Err(Refusal::Changed(_))), "{refused:?}");
    }
    // It renews, from the sending on.
    line.pass(Duration::from_secs(5));
    let sent = line.now();
    assert_eq!(one.renew(term), Renewal::Until(Some(sent + LEASE * 7 / 8)));
    assert_eq!(two.look().unwrap().life, Life::Alive { note: None });
    // It does not: first that is odd, then it is dead.
    line.pass(Duration::from_secs(5));
    let life = two.look().unwrap().life;
    assert!(matches!(&life, Life::Unproved { missing } if missing.contains("up to 4 s more")));
    assert!(two.claim(&claim(5, 2, Proof::Lease)).is_err(), "its lease lasts");
    line.pass(Duration::from_secs(3));
    assert_eq!(two.look().unwrap().life, Life::Dead(Proof::Lease));
    let next = two.claim(&claim(5, 2, Proof::Lease)).unwrap();
    assert_eq!((next.epoch, two.standbys().unwrap()), (Epoch(6), vec![]));
    assert!(matches!(one.renew(term), Renewal::Lost(_)));
    // What it does late changes nothing.
    one.serving(term, Epoch(5), Duration::from_millis(9));
    one.release(term, "late").unwrap();
    let seen = two.look().unwrap();
    assert_eq!((seen.record.epoch(), seen.record.history[0].took_ms), (Epoch(6), 7));
    assert!(seen.record.holder().is_some());
    // A planned end needs no proof.
    two.release(next, "planned").unwrap();
    assert_eq!(two.renew(next), Renewal::Until(None));
    assert_eq!(one.look().unwrap().life, Life::Free);
    assert_eq!(one.claim(&claim(6, 1, Proof::Free)).unwrap().epoch, Epoch(7));
}

#[test]
fn fenced_owner_loses_its_lease_with_the_claim() {
    let line = Line::default();
    let (mut one, mut two) = (seat(&line), seat(&line));
    let term = one.claim(&claim(0, 1, Proof::Free)).unwrap();
    let fence = || Proof::Fence("fence_x".into());
    let of_another = two.claim(&claim(4, 2, fence()));
    assert!(matches!(of_another, Err(Refusal::Changed(_))), "{of_another:?}");
    let next = two.claim(&claim(5, 2, fence())).unwrap();
    assert_eq!(next.epoch, Epoch(6));
    assert!(matches!(one.renew(term), Renewal::Lost(_)));
    assert!(matches!(two.renew(next), Renewal::Until(Some(_))));
}

#[test]
fn claim_of_unknown_outcome_is_read_again_and_never_succeeds_later() {
    use Fault::{Away, Fine, Late, Lost};
    // The requests of a claim: a read, a grant, the transaction, then reads.
    let cases: [(&[Fault], bool); 6] = [
        (&[Fine, Fine, Lost], true),
        (&[Fine, Fine, Lost, Away, Away], true),
        (&[Fine, Fine, Lost, Away, Away, Away, Away], false),
        (&[Fine, Fine, Late], false),
        (&[Fine, Lost], false),
        (&[Away], false),
    ];
    for (faults, succeeds) in cases {
        let line = Line::default();
        let (mut one, mut two) = (seat(&line), seat(&line));
        line.faults(faults);
        let claimed = one.claim(&claim(0, 1, Proof::Free));
        assert_eq!(claimed.is_ok(), succeeds, "{faults:?}: {claimed:?}");
        let refusal = match claimed {
            Err(refusal) => refusal,
            Ok(term) => {
                assert!(matches!(one.renew(term), Renewal::Until(Some(_))), "{faults:?}");
                continue;
            }
        };
        let unknown = matches!(refusal, Refusal::Unknown(_));
        assert_eq!(unknown, faults.len() > 2, "{faults:?}: {refusal:?}");
        // Nobody owns, and what is done later changes nothing.
        let seen = two.look().unwrap();
        assert_ne!(seen.life, Life::Alive { note: None }, "{faults:?}");
        let proof = match seen.life {
            Life::Dead(proof) => proof,
            _ => Proof::Free,
        };
        two.claim(&claim(seen.record.epoch().0, 2, proof)).unwrap();
        let owner = two.look().unwrap().record.owner.unwrap();
        assert_eq!(owner.member, member(2), "{faults:?}");
    }
}

#[test]
fn renewal_without_quorum_is_late_and_counts_from_its_sending() {
    let line = Line::default();
    let mut one = seat(&line);
    let term = one.claim(&claim(0, 1, Proof::Free)).unwrap();
    for faults in [&[Fault::Away][..], &[Fault::Lost], &[Fault::Fine, Fault::Away]] {
        line.faults(faults);
        assert!(matches!(one.renew(term), Renewal::Late(_)), "{faults:?}");
    }
    line.pass(LEASE);
    assert!(matches!(one.renew(term), Renewal::Lost(_)));
}

#[test]
fn release_is_tried_again_and_standbys_come_back() {
    use Fault::{Away, Fine, Lost};
    for faults in [&[Fine, Lost][..], &[Away, Fine, Away], &[Fine, Lost, Away, Fine]] {
        let line = Line::default();
        let (mut one, mut two) = (seat(&line), seat(&line));
        two.stand_by(&member(2)).unwrap();
        let term = one.claim(&claim(0, 1, Proof::Free)).unwrap();
        line.faults(faults);
        one.release(term, "planned").unwrap();
        assert_eq!(two.look().unwrap().life, Life::Free, "{faults:?}");
        // etcd was away for longer than a lease.
        line.pass(LEASE * 2);
        assert_eq!(one.standbys().unwrap(), []);
        two.look().unwrap();
        assert_eq!(one.standbys().unwrap(), [member(2)]);
        drop(two);
        assert_eq!(one.standbys().unwrap(), [], "it stands by no longer");
    }
    // Or when the server began.
    let line = Line::default();
    let mut two = seat(&line);
    line.faults(&[Away]);
    assert!(two.stand_by(&member(2)).is_err());
    line.pass(LEASE);
    two.look().unwrap();
    assert_eq!(two.standbys().unwrap(), [member(2)]);
}

#[test]
fn damaged_keys_keep_every_server_from_claiming() {
    for key in ["record", "owner"] {
        let line = Line::default();
        let (mut one, mut two) = (seat(&line), seat(&line));
        one.claim(&claim(0, 1, Proof::Free)).unwrap();
        let put = wire::transaction(&[], &[Step::Put(&one.key(key), "torn".into(), 0)]);
        one.post.post(&put).unwrap();
        let seen = two.look();
        assert!(matches!(&seen, Err(Trouble::Damaged(text)) if text.contains(key)), "{seen:?}");
        let refused = two.claim(&claim(5, 2, Proof::Lease));
        assert!(matches!(refused, Err(Refusal::Trouble(Trouble::Damaged(_)))), "{refused:?}");
    }
    // A record that is gone is no lower epoch while its owner lives.
    let line = Line::default();
    let mut one = seat(&line);
    one.claim(&claim(0, 1, Proof::Free)).unwrap();
    let removed = wire::transaction(&[], &[Step::Remove(&one.key("record"))]);
    one.post.post(&removed).unwrap();
    assert!(matches!(one.look(), Err(Trouble::Damaged(_))));
}
