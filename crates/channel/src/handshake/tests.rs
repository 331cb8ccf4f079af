//! Tests of handshakes.

use super::*;

fn secret(seed: u8) -> SecretKey {
    SecretKey::new([seed; 32])
}

/// Random bytes, as far as a handshake is concerned.
fn random(seed: u64) -> [u8; 32] {
    let mut state = seed.wrapping_mul(2) | 1;
    std::array::from_fn(|_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
}

struct Ended {
    client: Result<Option<Established>, Problem>,
    server: Result<Option<Established>, Problem>,
    /// Messages 1 and 3.
    sent: [Vec<u8>; 2],
}

/// A handshake from a client with key `client`, who expects `expected`, with a server that has
/// `servers`.
fn meet(mode: Mode, client: u8, expected: u8, servers: &[u8], least: Mode) -> Ended {
    let (mut one, mut two, mut three) = (Vec::new(), Vec::new(), Vec::new());
    let keys = (&secret(client), &secret(expected).public());
    let mut initiator = Initiator::begin(mode, keys, random(1), &mut one).unwrap();
    let mut responder = Responder::new(least);
    let secrets: Vec<SecretKey> = servers.iter().map(|seed| secret(*seed)).collect();
    let mut input = one.clone();
    let server = responder.receive(&secrets, || random(2), &mut input, &mut two);
    if let Err(problem) = server {
        refuse(problem, &mut two);
        let client = initiator.receive(&mut two, &mut three);
        return Ended { client, server: Err(problem), sent: [one, three] };
    }
    assert!(input.is_empty());
    let client = initiator.receive(&mut two, &mut three);
    let mut input = three.clone();
    input.extend_from_slice(b"hello");
    let server = responder.receive(&secrets, || random(3), &mut input, &mut two);
    if server.is_ok() {
        assert!(input == b"hello" && two.is_empty(), "{input:?} {two:?}");
    }
    Ended { client, server, sent: [one, three] }
}

/// Both ends of a stream.
pub(crate) fn pair() -> (Transport, Transport) {
    let ended = meet(Mode::Encrypted, 1, 2, &[2], Mode::Encrypted);
    let client = ended.client.unwrap().unwrap().transport.unwrap();
    (client, ended.server.unwrap().unwrap().transport.unwrap())
}

#[test]
fn both_prove_their_keys_and_understand_each_other() {
    let ended = meet(Mode::Encrypted, 1, 2, &[2], Mode::Encrypted);
    let (client, server) = (ended.client.unwrap().unwrap(), ended.server.unwrap().unwrap());
    assert_eq!((client.key, server.key), (secret(2).public(), secret(1).public()));
    let (mut a, mut b) = (client.transport.unwrap(), server.transport.unwrap());
    let (mut wire, mut got) = (Vec::new(), Vec::new());
    a.seal(b"hello", &mut wire).unwrap();
    b.open(&wire, &mut got).unwrap();
    assert_eq!(got, b"hello");
    // The client's key does not travel in the clear.
    let key = secret(1).public().0;
    for message in ended.sent {
        assert!(message.windows(32).all(|part| part != key));
    }
}

#[test]
fn server_takes_either_of_its_keys() {
    for expected in [3, 4] {
        let ended = meet(Mode::Encrypted, 1, expected, &[3, 4], Mode::Encrypted);
        assert_eq!(ended.client.unwrap().unwrap().key, secret(expected).public());
        assert!(ended.server.unwrap().is_some());
    }
}

#[test]
fn client_learns_why_it_is_refused() {
    let ended = meet(Mode::Encrypted, 1, 5, &[2, 3], Mode::Encrypted);
    assert_eq!(ended.server.err(), Some(Problem::WrongServer));
    assert_eq!(ended.client.err(), Some(Problem::WrongServer));
    let ended = meet(Mode::Greeting, 1, 2, &[2], Mode::Encrypted);
    assert_eq!(ended.server.err(), Some(Problem::WrongMode));
    assert_eq!(ended.client.err(), Some(Problem::WrongMode));
    for problem in [Problem::Malformed, Problem::WrongProof, Problem::Unknown] {
        let mut text = Vec::new();
        refuse(problem, &mut text);
        assert_eq!(next(&text, 2), Err(problem));
    }
}

#[test]
fn clear_frames_are_a_choice_of_both_and_no_third() {
    let ended = meet(Mode::Greeting, 1, 2, &[2], Mode::Greeting);
    assert!(ended.client.unwrap().unwrap().transport.is_none());
    assert!(ended.server.unwrap().unwrap().transport.is_none());
    // A server that allows clear frames takes encrypted ones.
    let ended = meet(Mode::Encrypted, 1, 2, &[2], Mode::Greeting);
    assert!(ended.server.unwrap().unwrap().transport.is_some());
    // Somebody in between asks for clear frames in the client's place.
    let mut one = Vec::new();
    let keys = (&secret(1), &secret(2).public());
    Initiator::begin(Mode::Encrypted, keys, random(1), &mut one).unwrap();
    one[5] = Mode::Greeting.byte();
    let mut responder = Responder::new(Mode::Greeting);
    let changed = responder.receive(&[secret(2)], || random(2), &mut one, &mut Vec::new());
    assert_eq!(changed.err(), Some(Problem::WrongServer));
}

#[test]
fn recorded_handshake_proves_nothing() {
    let [mut one, mut three] = meet(Mode::Encrypted, 1, 2, &[2], Mode::Encrypted).sent;
    let mut responder = Responder::new(Mode::Encrypted);
    let secrets = [secret(2)];
    let first = responder.receive(&secrets, || random(9), &mut one, &mut Vec::new());
    assert!(matches!(first, Ok(None)), "the first message alone proves nothing either");
    let second = responder.receive(&secrets, || random(9), &mut three, &mut Vec::new());
    assert_eq!(second.err(), Some(Problem::WrongProof));
}

#[test]
fn randomness_is_used_once_and_zeros_are_none() {
    let keys = (&secret(1), &secret(2).public());
    let zeros = Initiator::begin(Mode::Encrypted, keys, [0; 32], &mut Vec::new());
    assert!(zeros.is_err());
    let mut given = Given([7; 32]);
    let mut into = [0; 32];
    given.try_fill_bytes(&mut into).unwrap();
    assert!(into == [7; 32] && given.try_fill_bytes(&mut into).is_err());
}

/// 10^5 inputs without the key: flipped, cut and random ones. None of them makes a session, and
/// none leaves more than a message.
#[test]
fn flipped_and_random_handshakes_make_no_session() {
    let secrets = [secret(2)];
    let ended = meet(Mode::Encrypted, 1, 2, &[2], Mode::Encrypted);
    let [one, three] = ended.sent;
    let mut tried = 0;
    let mut judge = |input: &[u8], second: &[u8], seed: u64| {
        let mut responder = Responder::new(Mode::Encrypted);
        let (mut input, mut out) = (input.to_vec(), Vec::new());
        let mut result = responder.receive(&secrets, || random(seed), &mut input, &mut out);
        if let Ok(None) = result {
            input.extend_from_slice(second);
            result = responder.receive(&secrets, || random(seed), &mut input, &mut out);
        }
        tried += 1;
        assert!(!matches!(result, Ok(Some(_))), "a session without a key");
        assert!(out.len() <= MESSAGE_MAX);
        result.err()
    };
    // With the server's randomness of then, only what is flipped differs from a good handshake.
    for flip in 0..one.len() * 8 {
        let mut changed = one.clone();
        changed[flip / 8] ^= 1 << (flip % 8);
        assert!(judge(&changed, &three, 2).is_some(), "bit {flip} of the first message");
    }
    for flip in 0..three.len() * 8 {
        let mut changed = three.clone();
        changed[flip / 8] ^= 1 << (flip % 8);
        assert!(judge(&one, &changed, 2).is_some(), "bit {flip} of the last message");
    }
    for cut in 0..three.len() {
        assert_eq!(judge(&one, &three[..cut], 2), None);
    }
    for seed in 0..100_000_u64 {
        let noise: Vec<u8> = (0..4).flat_map(|part| random(seed * 4 + part)).collect();
        let mut input = one.clone();
        match seed % 8 {
            // Most with a good head, so that they come as far as they can; few as far as the
            // curve, which takes most of the time.
            0..7 => input = noise[..(seed % 128) as usize].to_vec(),
            _ => input[HEAD + 32..].copy_from_slice(&noise[..16]),
        }
        if seed % 8 > 3 {
            let head = (seed / 8 % HEAD as u64) as usize;
            input.resize(input.len().max(HEAD), 0);
            input[..head].copy_from_slice(&one[..head]);
        }
        judge(&input, &noise, seed);
    }
    assert!(tried >= 100_000, "{tried}");
}

#[test]
fn refusals_and_noise_do_not_disturb_a_client() {
    let keys = (&secret(1), &secret(2).public());
    for seed in 0..2_000_u64 {
        let mut out = Vec::new();
        let begun = Initiator::begin(Mode::Encrypted, keys, random(seed), &mut out);
        let mut initiator = begun.unwrap();
        let mut input: Vec<u8> = (0..3).flat_map(|part| random(seed * 3 + part)).collect();
        input[..4].copy_from_slice(&FIRST_BYTES);
        if seed % 2 == 0 {
            input[4..8].copy_from_slice(&[2, 1, 48, 0]);
        }
        assert!(initiator.receive(&mut input, &mut out).is_err());
    }
}
