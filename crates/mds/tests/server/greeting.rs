//! What the server makes of greetings.

use proto::mds::*;
use proto::wire::{Appended, Bytes};
use types::{Duration, Fault, ServerId, Uuid};

use crate::bed::{Bed, Client, run};

fn hello() -> Hello {
    Hello { nonce: 5, ..Hello::new::<Mds>(CLIENT, "home", "a client") }
}

async fn greet(bed: &Bed, hello: Hello) -> Result<Welcome, Refused> {
    let client = Client::new(bed.world.node("stranger"));
    let answer = client.greet(hello).await.expect("the server is there");
    client.disconnect();
    answer
}

async fn refusal(bed: &Bed, hello: Hello) -> Refused {
    greet(bed, hello).await.expect_err("it is refused")
}

/// PROTOCOLS 1.2, 3.2.
#[test]
fn welcome_says_who_the_server_is_and_what_was_agreed() {
    run(|bed| async move {
        let newer = Hello { version_min: 4, version_max: VERSION + 1, features: !0, ..hello() };
        let welcome = greet(&bed, newer).await.unwrap();
        let features = COMMITTED_PUSHES | ZONE_PUSHES;
        assert_eq!((welcome.version, welcome.features), (VERSION, features));
        assert_eq!((welcome.server, welcome.role, welcome.map), (ServerId(0), METADATA_SERVER, 0));
        assert_eq!(welcome.fs_uuid, Uuid([9; 16]));
        let older = Hello { version_min: VERSION - 1, features: 0, ..hello() };
        let welcome = greet(&bed, older).await.unwrap();
        assert_eq!((welcome.version, welcome.features), (VERSION, 0));
    });
}

/// PROTOCOLS 1.2, 3.2, 3.3.
#[test]
fn greeting_that_the_server_cannot_serve_is_refused_and_leaves_no_client() {
    run(|bed| async move {
        for version in [VERSION_MIN - 1, VERSION + 1] {
            let other = Hello { version_min: version, version_max: version, ..hello() };
            // The server reads a greeting of a version that expects no server, too.
            let other = Hello { expected: Appended(None), ..other };
            let refused = refusal(&bed, other).await;
            assert_eq!(refused.fault, Fault::Unsupported);
            let ours = format!("{VERSION_MIN} to {VERSION}");
            for versions in [version.to_string(), ours] {
                assert!(refused.text.contains(&versions), "{}", refused.text);
            }
        }
        let refused = refusal(&bed, Hello { role: 2, ..hello() }).await;
        assert!(refused.text.contains("role 2"), "{}", refused.text);
        let refused = refusal(&bed, Hello { auth: Bytes(vec![1, 9, 9]), ..hello() }).await;
        assert!(refused.text.contains("authentication"), "{}", refused.text);
        let usual = hello().expected.0.unwrap();
        for (expected, words) in [
            (Expected { server: ServerId(3), ..usual.clone() }, "server 0, not 3"),
            (Expected { role: 3, ..usual.clone() }, "role 2, not 3"),
            (Expected { fs_uuid: Uuid([8; 16]), ..usual }, "08080808-0808"),
        ] {
            let refused = refusal(&bed, Hello { expected: Appended(Some(expected)), ..hello() });
            let refused = refused.await;
            assert_eq!(refused.fault, Fault::NotFound);
            assert!(refused.text.contains(words), "{}", refused.text);
        }
        assert!(!bed.logged("has connected"), "nobody was enrolled");
    });
}

/// PROTOCOLS 1.3.
#[test]
fn only_a_client_that_asked_for_it_is_told_what_has_become_durable() {
    run(|bed| async move {
        for features in [COMMITTED_PUSHES, 0] {
            let client = Client::new(bed.world.node("quiet"));
            client.greet(Hello { features, ..hello() }).await.unwrap().unwrap();
            client.dir(types::Ino::ROOT, &format!("d{features}")).await;
            bed.sleep(Duration::from_secs(3)).await;
            let pushed = client.pushes().iter().any(|push| matches!(push, Push::Committed { .. }));
            assert_eq!(pushed, features == COMMITTED_PUSHES);
            client.call(Op::Goodbye {}).await.unwrap();
        }
    });
}
