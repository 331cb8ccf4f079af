//! Versions, abilities, and the server that a client expects.

use proto::message::Versions;
use redbud_session::client::{Config, KeptLimits};
use types::{ServerId, Uuid};

use super::peer::COMMITTED_PUSHES;
use super::server::Controls;
use super::{add, run};

/// What a server and a client of these versions agree on, or the text of the refusal.
fn meet(server: Versions, client: Versions) -> Result<u32, String> {
    let result = std::rc::Rc::new(std::cell::RefCell::new(Err(String::new())));
    let found = result.clone();
    run(1, |bed| async move {
        let controls = Controls::new("a", 0);
        controls.identity.borrow_mut().versions = server;
        controls.start(&bed.world);
        let config = Config { versions: client, ..bed.config(&controls) };
        *found.borrow_mut() = match bed.try_open(config).await {
            Ok(session) => {
                add(&session, 1).await.unwrap();
                session.sync().await.unwrap();
                Ok(session.agreed().0)
            }
            Err(error) => Err(error.text),
        };
    });
    result.replace(Err(String::new()))
}

/// PROTOCOLS 1.2.
#[test]
fn peers_of_one_version_less_and_one_more_agree_or_are_refused_with_both_ranges() {
    let versions = |min, max| Versions { min, max };
    assert_eq!(meet(versions(5, 5), versions(4, 5)), Ok(5));
    assert_eq!(meet(versions(5, 5), versions(5, 6)), Ok(5));
    assert_eq!(meet(versions(4, 5), versions(4, 4)), Ok(4));
    assert_eq!(meet(versions(5, 6), versions(6, 6)), Ok(6));
    assert_eq!(meet(versions(5, 6), versions(5, 6)), Ok(6));
    for (server, client) in [(5, 4), (5, 6), (4, 5), (6, 5)] {
        let text = meet(Versions::only(server), Versions::only(client)).unwrap_err();
        for version in [server, client] {
            assert!(text.contains(&format!("version {version}")), "{text}");
        }
    }
    let text = meet(versions(5, 6), versions(7, 9)).unwrap_err();
    assert!(text.contains("5 to 6") && text.contains("7 to 9"), "{text}");
}

#[test]
fn pushes_of_an_optional_kind_go_only_to_those_who_asked() {
    for (server, client) in [(true, true), (true, false), (false, true), (false, false)] {
        run(2, |bed| async move {
            let controls = Controls::new("a", 0);
            let bit = |has: bool| if has { COMMITTED_PUSHES } else { 0 };
            // Bits that only one of them knows are no hindrance.
            controls.identity.borrow_mut().features = bit(server) | 1 << 40;
            let running = controls.start(&bed.world);
            let config = Config { features: bit(client) | 1 << 41, ..bed.config(&controls) };
            let session = bed.try_open(config).await.unwrap();
            assert_eq!(session.agreed().1, bit(server && client));
            add(&session, 1).await.unwrap();
            running.flush().await;
            bed.wait(50).await;
            let pushed = server && client;
            assert_eq!(controls.pushes.get(), u64::from(pushed));
            assert_eq!(session.unconfirmed(), usize::from(!pushed));
            // A client without pushes learns it from its next renewal.
            bed.wait(3000).await;
            assert_eq!(session.unconfirmed(), 0);
            assert!(controls.renewals.get() > 0);
        });
    }
}

#[test]
fn client_goes_on_only_with_the_server_that_it_knows() {
    for other_file_system in [true, false] {
        run(3, |bed| async move {
            let right = Controls::new("a", 0);
            right.start(&bed.world);
            let session = bed.open(&right).await;
            add(&session, 1).await.unwrap();
            let number = session.client();
            bed.world.kill("a");

            // A server of another file system, or of another number, has the address now.
            let wrong = Controls::new("a", if other_file_system { 0 } else { 4 });
            if other_file_system {
                wrong.identity.borrow_mut().fs_uuid = Uuid([8; 16]);
            }
            wrong.start(&bed.world);
            bed.wait(5000).await;
            assert!(!session.is_connected());
            assert_eq!((session.client(), session.server()), (number, ServerId(0)));
            match other_file_system {
                true => {
                    let (uuid, known) = (Uuid([8; 16]).to_string(), Uuid([7; 16]).to_string());
                    assert!(bed.has_logged(&[&uuid, &known]), "{:?}", bed.log.borrow());
                }
                false => assert!(bed.has_logged(&["server 4, not 0"]), "{:?}", bed.log.borrow()),
            }
            assert!(bed.reports.lost.borrow().is_empty(), "nothing is given up");

            bed.world.kill("a");
            right.start(&bed.world);
            assert_eq!(add(&session, 2).await, Ok(1));
            session.sync().await.unwrap();
            assert_eq!(right.numbers(), [1, 2]);
            assert_eq!(session.client(), number);
        });
    }
}

/// A server that does not look at what the client expects.
#[test]
fn client_refuses_by_itself_a_server_that_is_not_the_expected_one() {
    run(4, |bed| async move {
        let controls = Controls::new("a", 3);
        controls.start(&bed.world);
        for (server, role) in [(ServerId(2), 200), (ServerId(3), 201)] {
            let mut config = bed.config(&controls);
            config.expected.server = server;
            config.expected.role = role;
            controls.ignores_expected.set(true);
            let text = bed.try_open(config).await.map(|_| ()).unwrap_err().text;
            assert!(text.contains("wrong one"), "{text}");
            let named = if role == 200 { "server 3" } else { "role is 200" };
            assert!(text.contains(named), "{text}");
        }
        let kept = KeptLimits::default();
        bed.try_open(Config { kept, ..bed.config(&controls) }).await.unwrap();
    });
}
