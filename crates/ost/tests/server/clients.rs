//! Who is known, who is forgotten, and what clients hear without asking.

use types::{Duration, Fault};

use super::bed::{LEASE, run};

#[test]
fn quiet_client_hears_that_its_writes_are_durable() {
    run(1, |bed| async move {
        // So it renews nothing meanwhile: a renewal's answer would say the same.
        bed.lease.set(Duration::from_secs(60));
        bed.restart().await;
        let client = bed.client("a", 7).await;
        client.write(5, 0, 1, 1, false).await.unwrap();
        assert_eq!(client.session.unconfirmed(), 1);
        let requests = bed.status("requests").await;
        bed.wait(1500).await;
        assert_eq!(client.session.unconfirmed(), 0);
        // The question before was one.
        assert_eq!(bed.status("requests").await, requests + 1, "it did not ask");
    });
}

#[test]
fn goodbye_and_silence_are_forgotten_with_the_kept_replies() {
    run(2, |bed| async move {
        let (leaves, stays, dies) =
            (bed.client("a", 7).await, bed.client("b", 8).await, bed.client("c", 9).await);
        for client in [&leaves, &stays, &dies] {
            client.write(client.number.0, 0, 1, 1, false).await.unwrap();
        }
        leaves.session.close().await;
        bed.world.kill("c");
        bed.env.sleep(LEASE + Duration::from_secs(2)).await;
        assert!(bed.has_logged(&["client", "(a, pid 1) has left"]), "{:?}", bed.log.borrow());
        assert!(bed.has_logged(&["(c, pid 1) is forgotten"]), "{:?}", bed.log.borrow());
        // Who only renews its lease stays.
        assert!(stays.session.is_connected() && stays.reports.lost.borrow().is_empty());
        for number in [7, 8, 9] {
            assert!(stays.has(number, 0, 1, 1).await, "what they wrote stays");
        }
        bed.kill();
        bed.wait(100).await;
        assert_eq!(bed.known_clients().await, 1);
        bed.start().await;
    });
}

/// The target was up all the time, and everything of it is durable.
#[test]
fn client_that_was_cut_off_for_long_begins_anew_and_has_lost_nothing() {
    run(3, |bed| async move {
        let client = bed.client("a", 7).await;
        client.write(5, 0, 1, 1, false).await.unwrap();
        let number = client.session.client();
        bed.world.partition("a", "ost");
        let task = client.clone();
        let late = bed.env.spawn_join(async move { task.write(5, 1, 1, 1, true).await });
        bed.env.sleep(LEASE + Duration::from_secs(3)).await;
        bed.world.heal();
        late.await.unwrap();
        assert_ne!(client.session.client(), number);
        assert_eq!(client.reports.lost.borrow().iter().sum::<usize>(), 0);
        assert!(client.has(5, 0, 2, 1).await);
    });
}

#[test]
fn client_that_comes_back_too_late_after_a_restart_reports_its_loss() {
    run(4, |bed| async move {
        let client = bed.client("a", 7).await;
        client.write(5, 0, 1, 1, true).await.unwrap();
        client.write(5, 0, 1, 2, false).await.unwrap();
        bed.kill();
        bed.world.partition("a", "ost");
        bed.start().await;
        assert_eq!(bed.status("clients_absent").await, 1);
        bed.env.sleep(LEASE + Duration::from_secs(1)).await;
        assert_eq!(bed.status("clients_absent").await, 0);
        assert!(bed.has_logged(&["(a, pid 1) has not come back"]), "{:?}", bed.log.borrow());
        bed.world.heal();
        client.write(6, 0, 1, 1, true).await.unwrap();
        assert_eq!(*client.reports.lost.borrow(), [1]);
        assert!(client.has(5, 0, 1, 1).await);
    });
}

#[test]
fn another_process_does_not_take_a_number_over() {
    run(5, |bed| async move {
        use proto::frame::{Decoder, Received, encode};
        use proto::message::{CLIENT, Hello};
        use proto::ost::{Message, Ost};
        let client = bed.client("a", 7).await;
        let stranger = bed.world.node("b").connect(super::bed::ADDRESS).await.unwrap();
        let usual = Hello::new::<Ost>(CLIENT, "home", "a stranger");
        let hello = Hello { client: client.session.client(), nonce: 1, ..usual };
        let mut bytes = Vec::new();
        encode::<Ost>(&Message::Hello { hello }, &mut bytes);
        stranger.write_all(bytes).await.0.unwrap();
        let mut decoder: Decoder<Ost> = Decoder::new();
        let refused = loop {
            if let Some(received) = decoder.next().unwrap() {
                break received;
            }
            let (read, bytes) = stranger.read(decoder.lend(), 4096).await;
            decoder.restore(bytes);
            assert_ne!(read.unwrap(), 0);
        };
        let Received::Message(Message::Refused { refused }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(refused.fault, Fault::NotPermitted);
        client.write(5, 0, 1, 1, false).await.unwrap();
    });
}
