//! Sessions with keys: who gets one, what the door counts, and that encryption changes nothing.

use std::cell::RefCell;
use std::rc::Rc;

use channel::{Allowed, Entry, Initiator, Mode, Role, SecretKey, SecretKeys, Squash};
use env::Stream;
use redbud_session::client::{ClientKeys, Config};
use redbud_session::server::{DoorCounts, KeyFiles, KeyRing, ServerKeys};
use types::Duration;
use types::limits::{HALF_OPEN_MAX, HANDSHAKE_TIMEOUT};

use super::server::{Controls, Server};
use super::{Bed, add, run};

fn key(seed: u8) -> SecretKey {
    SecretKey::new([seed; 32])
}

fn entry(seed: u8, name: &str) -> Entry {
    let (role, squash) = (Role::Client, Squash::Off);
    Entry { key: key(seed).public(), name: name.into(), role, squash, revoked: false }
}

/// The keys of a server, which a test may change.
#[derive(Clone)]
struct Ring(Rc<RefCell<(bool, KeyRing)>>);

impl Ring {
    /// Key 200, and the list with these lines.
    fn new(entries: &[Entry]) -> Ring {
        let secrets = SecretKeys::only(key(200));
        let ring =
            Ring(Rc::new(RefCell::new((true, KeyRing { secrets, allowed: Allowed::default() }))));
        ring.allow(entries);
        ring
    }

    fn allow(&self, entries: &[Entry]) {
        let text: String = entries.iter().map(|entry| format!("{entry}\n")).collect();
        let mut state = self.0.borrow_mut();
        state.1.allowed = Allowed::parse(&text).unwrap();
        state.0 = true;
    }

    fn keys(&self, least: Mode) -> ServerKeys {
        let state = self.0.clone();
        let read = move || {
            let mut state = state.borrow_mut();
            std::mem::take(&mut state.0).then(|| state.1.clone().into())
        };
        ServerKeys { least, half_open_max: HALF_OPEN_MAX, read: Rc::new(read) }
    }
}

fn client(bed: &Bed, controls: &Controls, mode: Mode, own: u8, server: u8) -> Config {
    let keys = ClientKeys { mode, secret: key(own), servers: vec![key(server).public()] };
    let connect_timeout = Duration::from_secs(2);
    let keys: redbud_session::client::ReadClientKeys = Rc::new(move || Ok(keys.clone()));
    Config { keys: Some(keys), connect_timeout, ..bed.config(controls) }
}

/// A server that asks for keys, and has this list.
fn start(bed: &Bed, least: Mode, entries: &[Entry]) -> (Rc<Controls>, Rc<Server>, Ring) {
    let (controls, ring) = (Controls::new("a", 0), Ring::new(entries));
    *controls.keys.borrow_mut() = Some(ring.keys(least));
    let server = controls.start(&bed.world);
    (controls, server, ring)
}

#[test]
fn session_with_keys_survives_broken_connections_and_restarts() {
    for mode in [Mode::Encrypted, Mode::Greeting] {
        run(1, |bed| async move {
            let (controls, server, ring) = start(&bed, Mode::Greeting, &[entry(1, "alpha")]);
            let session = bed.try_open(client(&bed, &controls, mode, 1, 200)).await.unwrap();
            for number in 0..50 {
                add(&session, number).await.unwrap();
                if number == 20 {
                    bed.world.cut("client", "a");
                }
            }
            session.sync().await.unwrap();
            let who = server.sessions.all()[0].who();
            assert_eq!(who.to_string(), "node alpha (client)");
            let encrypted = server.sessions.all()[0].is_encrypted();
            assert_eq!(encrypted, mode == Mode::Encrypted);
            assert!(server.door.counts().by_key >= 2, "it connected again");
            bed.world.kill("a");
            // A server that starts has read nothing yet.
            ring.allow(&[entry(1, "alpha")]);
            controls.start(&bed.world);
            for number in 50..60 {
                add(&session, number).await.unwrap();
            }
            session.sync().await.unwrap();
            assert_eq!(controls.numbers(), (0..60).collect::<Vec<_>>());
        });
    }
}

/// A client's attempt, the words of the refusal, and what the door counts for it.
type Attempt = (Option<(Mode, u8, u8)>, &'static str, fn(&DoorCounts) -> u64);

#[test]
fn nobody_without_an_allowed_key_has_a_session() {
    let attempts: [Attempt; 5] = [
        (None, "wants a handshake with keys", |counts| counts.no_key),
        (Some((Mode::Encrypted, 9, 200)), "not in the server's list", |counts| counts.unknown_key),
        (Some((Mode::Encrypted, 2, 200)), "beta is revoked", |counts| counts.revoked_key),
        (Some((Mode::Encrypted, 1, 201)), "none of the public keys", |counts| counts.wrong_server),
        (Some((Mode::Greeting, 1, 200)), "wants encrypted frames", |counts| counts.wrong_mode),
    ];
    for (keys, words, count) in attempts {
        run(2, |bed| async move {
            let revoked = Entry { revoked: true, ..entry(2, "beta") };
            let (controls, server, _) = start(&bed, Mode::Encrypted, &[entry(1, "alpha"), revoked]);
            let config = match keys {
                None => Config { connect_timeout: Duration::from_secs(2), ..bed.config(&controls) },
                Some((mode, own, server)) => client(&bed, &controls, mode, own, server),
            };
            let error = bed.try_open(config).await.err().expect("no session");
            assert!(error.text.contains(words), "{}", error.text);
            assert_eq!(count(&server.door.counts()), 1, "{:?}", server.door.counts());
            assert!(server.sessions.is_empty());
            let logged = controls.log.borrow().iter().any(|line| line.contains("is refused"));
            assert!(logged, "{:?}", controls.log.borrow());
        });
    }
}

#[test]
fn server_without_keys_is_named_to_a_client_that_has_some() {
    run(3, |bed| async move {
        let controls = Controls::new("a", 0);
        controls.start(&bed.world);
        let config = client(&bed, &controls, Mode::Encrypted, 1, 200);
        let error = bed.try_open(config).await.err().expect("no session");
        assert!(error.text.contains("takes no keys"), "{}", error.text);
    });
}

#[test]
fn changed_list_is_read_at_the_next_handshake_and_a_wrong_one_changes_nothing() {
    run(4, |bed| async move {
        let (controls, server, ring) = start(&bed, Mode::Encrypted, &[]);
        let config = || client(&bed, &controls, Mode::Encrypted, 1, 200);
        assert!(bed.try_open(config()).await.is_err());
        ring.allow(&[entry(1, "alpha")]);
        let session = bed.try_open(config()).await.unwrap();
        add(&session, 1).await.unwrap();
        let who = server.sessions.all()[0].who();
        assert!(server.door.admits(&who) && server.door.admits_node(&who));
        // Another key of the node takes this one's place.
        let revoked = || Entry { revoked: true, ..entry(1, "alpha") };
        ring.allow(&[entry(3, "alpha"), revoked()]);
        server.door.refresh().unwrap();
        assert!(!server.door.admits(&who) && server.door.admits_node(&who));
        ring.allow(&[revoked()]);
        server.door.refresh().unwrap();
        assert!(!server.door.admits_node(&who));
    });
}

#[test]
fn list_without_a_key_ends_no_session_and_lets_nobody_in() {
    run(4, |bed| async move {
        let (controls, server, ring) = start(&bed, Mode::Encrypted, &[entry(1, "alpha")]);
        let config = || client(&bed, &controls, Mode::Encrypted, 1, 200);
        let session = bed.try_open(config()).await.unwrap();
        add(&session, 1).await.unwrap();
        let who = server.sessions.all()[0].who();
        for left in [vec![], vec![entry(3, "alpha")], vec![entry(3, "beta")]] {
            ring.allow(&left);
            server.door.refresh().unwrap();
            assert!(server.door.admits(&who) && server.door.admits_node(&who), "{left:?}");
            assert!(!server.door.lists(&who));
            assert!(bed.try_open(config()).await.is_err());
        }
    });
}

#[test]
fn list_is_in_force_whatever_becomes_of_the_servers_own_keys() {
    run(4, |bed| async move {
        let (controls, files) = (Controls::new("a", 0), Rc::new(RefCell::new(None)));
        let ring = |entry: Entry| KeyRing {
            secrets: SecretKeys::only(key(200)),
            allowed: Allowed::parse(&entry.to_string()).unwrap(),
        };
        *files.borrow_mut() = Some(KeyFiles::from(ring(entry(1, "alpha"))));
        let read = files.clone();
        let read = Rc::new(move || read.borrow_mut().take());
        *controls.keys.borrow_mut() =
            Some(ServerKeys { least: Mode::Encrypted, half_open_max: 10, read });
        let server = controls.start(&bed.world);
        let config = || client(&bed, &controls, Mode::Encrypted, 1, 200);
        let session = bed.try_open(config()).await.unwrap();
        add(&session, 1).await.unwrap();
        let who = server.sessions.all()[0].who();
        let revoked = ring(Entry { revoked: true, ..entry(1, "alpha") });
        let unreadable = Err("no such key".to_owned());
        let now = KeyFiles { secrets: unreadable, ..KeyFiles::from(revoked) };
        *files.borrow_mut() = Some(now);
        server.door.refresh().unwrap();
        assert!(!server.door.admits_node(&who));
        assert_eq!(server.door.problem().as_deref(), Some("no such key"));
        // The other way round, the list of before stays in force.
        let now = KeyFiles { allowed: Err("no list".into()), ..ring(entry(1, "alpha")).into() };
        *files.borrow_mut() = Some(now);
        server.door.refresh().unwrap();
        assert!(!server.door.admits_node(&who));
        assert_eq!(server.door.problem().as_deref(), Some("no list"));
        *files.borrow_mut() = Some(ring(entry(1, "alpha")).into());
        server.door.refresh().unwrap();
        assert!(server.door.admits_node(&who) && server.door.problem().is_none());
    });
}

async fn connect(bed: &Bed, controls: &Controls) -> Stream {
    bed.env.connect(&controls.address()).await.unwrap()
}

#[test]
fn strangers_are_bounded_in_number_and_time_and_others_come_in() {
    run(5, |bed| async move {
        let (controls, server, _) = start(&bed, Mode::Encrypted, &[entry(1, "alpha")]);
        let mut idle = Vec::new();
        for number in 0..200 {
            let stream = connect(&bed, &controls).await;
            // Some send the beginning of a handshake.
            let mut bytes = Vec::new();
            let keys = (&key(1), &key(200).public());
            let random = bed.env.random_bytes();
            Initiator::begin(Mode::Encrypted, keys, random, &mut bytes).unwrap();
            bytes.truncate(number % 60);
            if !bytes.is_empty() {
                stream.write_all(bytes).await.0.unwrap();
            }
            idle.push(stream);
        }
        bed.wait(100).await;
        assert_eq!(server.door.counts().half_open, 200);
        let session = bed.try_open(client(&bed, &controls, Mode::Encrypted, 1, 200)).await.unwrap();
        add(&session, 1).await.unwrap();
        bed.wait(HANDSHAKE_TIMEOUT.as_millis() as u64 + 1_000).await;
        let counts = server.door.counts();
        assert_eq!((counts.half_open, counts.unfinished), (0, 200));
        add(&session, 2).await.unwrap();
    });
}

#[test]
fn oldest_of_too_many_strangers_is_closed() {
    run(6, |bed| async move {
        let (controls, server, _) = start(&bed, Mode::Encrypted, &[entry(1, "alpha")]);
        let mut idle = Vec::new();
        for _ in 0..HALF_OPEN_MAX + 3 {
            idle.push(connect(&bed, &controls).await);
        }
        bed.wait(100).await;
        let counts = server.door.counts();
        assert_eq!(counts.half_open, HALF_OPEN_MAX as u64, "{counts:?}");
        assert_eq!((counts.crowded_out, counts.unfinished), (3, 0));
    });
}

/// Who is being refused holds a connection as long as who says nothing.
#[test]
fn strangers_that_are_being_refused_count_among_the_bounded() {
    run(6, |bed| async move {
        let (controls, server, _) = start(&bed, Mode::Encrypted, &[entry(1, "alpha")]);
        let mut idle = Vec::new();
        for _ in 0..20 {
            let stream = connect(&bed, &controls).await;
            // The beginning of a clear frame: the door waits for the rest of the hello.
            stream.write_all(proto::frame::MAGIC.to_le_bytes().to_vec()).await.0.unwrap();
            idle.push(stream);
        }
        bed.wait(100).await;
        let counts = server.door.counts();
        // One whose first bytes came singly counts as garbage, and is closed at once.
        assert!(counts.no_key > 10 && counts.half_open == counts.no_key, "{counts:?}");
        bed.wait(3_000).await;
        assert_eq!(server.door.counts().half_open, 0);
    });
}

/// Recorded and damaged bytes of a session, and garbage.
#[test]
fn recorded_sessions_and_garbage_are_refused_and_named_at_a_bounded_rate() {
    run(7, |bed| async move {
        let (controls, server, _) = start(&bed, Mode::Encrypted, &[entry(1, "alpha")]);
        let keys = (&key(1), &key(200).public());
        let (mut first, mut last) = (Vec::new(), Vec::new());
        let mut begun = Initiator::begin(Mode::Encrypted, keys, [5; 32], &mut first).unwrap();
        let stream = connect(&bed, &controls).await;
        stream.write_all(first.clone()).await.0.unwrap();
        let mut answer = Vec::new();
        while answer.len() < 56 {
            answer = stream.read(answer, 100).await.1;
        }
        assert!(begun.receive(&mut answer, &mut last).unwrap().is_some());
        drop(stream);
        for round in 0..100_u8 {
            let stream = connect(&bed, &controls).await;
            let mut bytes = [&first[..], &last[..]].concat();
            if round % 2 == 1 {
                let at = usize::from(round) % bytes.len();
                bytes[at] ^= 1;
            }
            stream.write_all(bytes).await.0.unwrap();
            let mut got = Vec::new();
            while let (Ok(1..), more) = stream.read(std::mem::take(&mut got), 100).await {
                got = more;
            }
        }
        let counts = server.door.counts();
        assert!(counts.wrong_proof >= 50 && counts.by_key == 0, "{counts:?}");
        let refused = counts.wrong_proof + counts.malformed + counts.wrong_server;
        assert!(refused + counts.wrong_mode >= 100, "{counts:?}");
        assert!(server.sessions.is_empty());
        let lines = || {
            let log = controls.log.borrow();
            log.iter().filter(|line| line.contains("refused")).count()
        };
        assert!((1..=11).contains(&lines()), "{:?}", controls.log.borrow());
        bed.wait(61_000).await;
        server.door.refresh().unwrap();
        let log = controls.log.borrow();
        assert!(log.iter().any(|line| line.contains("more connections were refused")), "{log:?}");
    });
}

#[test]
fn refusal_by_one_address_ends_no_session_that_another_one_lets_in() {
    run(8, |bed| async move {
        let (controls, _server, _) = start(&bed, Mode::Encrypted, &[entry(1, "alpha")]);
        let other = Controls::new("b", 0);
        *other.keys.borrow_mut() = Some(Ring::new(&[]).keys(Mode::Encrypted));
        let addresses = vec![other.address(), controls.address()];
        let config = Config { addresses, ..client(&bed, &controls, Mode::Encrypted, 1, 200) };
        let session = bed.try_open(config).await.unwrap();
        add(&session, 0).await.unwrap();
        other.start(&bed.world);
        bed.world.cut("client", "a");
        for number in 1..10 {
            add(&session, number).await.unwrap();
        }
        session.sync().await.unwrap();
        assert_eq!(controls.numbers(), (0..10).collect::<Vec<_>>());
        assert!(bed.has_logged(&["not in the server's list"]), "{:?}", bed.log.borrow());
    });
}
