//! Means that go wrong, through a bare `Exchange`: workers that do not believe the same, and messages that are none, end in an
//! error that names the worker, never in a panic or a wait.

use crate::common::means;
use crate::common::setting;

use means::{Tampered, input, mean};
use setting::{ONE_BUCKET, PATIENCE, Setting};
use std::time::Instant;
use thinwire::CodecName;
use thinwire::Round;
use thinwire::inside::exchange::header::{HEADER_LEN, Operation};
use thinwire::inside::exchange::layout::{Shape, Topology};
use thinwire::options::Precision;
use thinwire::threads;
use thinwire::{Collective, Error, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

// Workers that disagree.

/// What a worker takes for granted.
#[derive(Clone, Copy)]
struct Belief {
    setting: Setting,
    round: Round,
    step: u64,
    shared: u8,
}

impl Belief {
    fn act(&self, end: impl Collective + 'static) -> Result<Vec<f32>> {
        let x = input(self.setting.shape.values, end.rank(), 0);
        let mut exchange = self.setting.exchange(end);
        exchange.agree_on(&[self.shared]);
        mean(&mut exchange, self.round, self.step, &x)
    }
}

const COMMON: Belief = Belief {
    setting: Setting {
        shape: Shape { values: 100, block: 4, workers: 3, topology: Topology::Sharded },
        exact: CodecName::F32,
        up: CodecName::Sign,
        down: CodecName::Sign,
        residue: Precision::F32,
        feedback: [1.0; 2],
        bucket: 64,
        threads: 1,
    },
    round: Round::Coarse,
    step: 5,
    shared: 1,
};

/// A field that an error names, and how to believe otherwise.
type Heresy = (&'static str, fn(&mut Belief));

/// What owners notice in what comes up.
const HERESIES: &[Heresy] = &[
    ("the step", |belief| belief.step += 1),
    ("the vector's length", |belief| belief.setting.shape.values += 1),
    ("the block size", |belief| belief.setting.shape.block = 5),
    ("the codec", |belief| belief.setting.up = CodecName::Power2(2)),
    ("the operation", |belief| belief.round = Round::Exact),
    ("the digest of the shared state", |belief| belief.shared = 2),
];

/// What all notice in what comes down.
const HERESY_OF_OWNERS: Heresy = ("the codec", |belief| belief.setting.down = CodecName::Power2(2));

/// What the workers of a group get when `odd` believes otherwise.
fn with_heretic(common: Belief, odd: usize, heresy: fn(&mut Belief)) -> Vec<Result<Vec<f32>>> {
    threads::run_within(common.setting.shape.workers, PATIENCE, |end| {
        let mut belief = common;
        if end.rank() == odd {
            heresy(&mut belief);
        }
        belief.act(end)
    })
}

#[test]
fn whoever_disagrees_is_named_by_all_others() {
    for (named, heresy) in HERESIES.iter().chain([&HERESY_OF_OWNERS]) {
        for odd in 0..3 {
            for (me, got) in with_heretic(COMMON, odd, *heresy).into_iter().enumerate() {
                match got {
                    Err(Error::Disagreement { worker, field, .. }) if me != odd => {
                        assert_eq!((worker, &*field), (odd, *named), "on worker {me}");
                    }
                    Err(_) if me == odd => {}
                    other => panic!("{named}, worker {odd}: worker {me} got {other:?}"),
                }
            }
        }
    }
}

#[test]
fn whoever_disagrees_is_named_by_the_server() {
    let common = Belief { setting: COMMON.setting.central(), ..COMMON };
    for (named, heresy) in HERESIES {
        let got = with_heretic(common, 2, *heresy);
        assert!(
            matches!(&got[0], Err(Error::Disagreement { worker: 2, field, .. }) if field == named),
            "{named}: {:?}",
            got[0]
        );
        assert!(got.iter().all(Result::is_err), "{named}: someone goes on");
    }
}

// Messages that are none.

/// What worker 0 makes of it; nobody panics, and nobody waits in vain.
fn tampered(
    belief: Belief,
    part: Operation,
    change: impl Fn(&mut Vec<u8>) + Copy + Send + Sync + 'static,
) -> Result<Vec<f32>> {
    let start = Instant::now();
    let mut got = threads::run_within(3, PATIENCE, |end| belief.act(Tampered { end, place: (1, 0, part), change }));
    assert!(start.elapsed() < PATIENCE, "someone waited in vain");
    got.swap_remove(0)
}

/// Whether the error says that worker 1 is to blame.
fn blames_the_sender(error: &Error) -> bool {
    use Error::{Aborted, Disagreement, Malformed, Payload};
    let (Malformed { worker, .. } | Payload { worker, .. } | Disagreement { worker, .. } | Aborted { worker, .. }) =
        error
    else {
        return false;
    };
    *worker == 1
}

fn refused(belief: Belief, part: Operation, what: &str, change: impl Fn(&mut Vec<u8>) + Copy + Send + Sync + 'static) {
    match tampered(belief, part, change) {
        Err(error) => assert!(blames_the_sender(&error), "{part}, {what}: {error}"),
        Ok(_) => panic!("{part}, {what}: taken for a message"),
    }
}

/// Both parts of a round of one bucket, so that a part is one message.
fn parts() -> [(Belief, Operation); 4] {
    let coarse = Belief { setting: Setting { bucket: ONE_BUCKET, ..COMMON.setting }, ..COMMON };
    let exact = Belief { round: Round::Exact, ..coarse };
    [
        (coarse, Operation::CoarseUp),
        (coarse, Operation::CoarseDown),
        (exact, Operation::ExactUp),
        (exact, Operation::ExactDown),
    ]
}

#[test]
fn a_message_of_another_length_is_refused() {
    for (belief, part) in parts() {
        for length in (0..80).chain([1000]) {
            refused(belief, part, &format!("{length} bytes"), move |message| {
                message.resize(length + usize::from(length == message.len()), 0);
            });
        }
    }
}

#[test]
fn a_header_with_any_bit_flipped_is_refused() {
    for (belief, part) in parts() {
        for bit in 0..8 * HEADER_LEN {
            refused(belief, part, &format!("byte {} of the header", bit / 8), move |message| {
                message[bit / 8] ^= 1 << (bit % 8);
            });
        }
    }
}

#[test]
fn a_payload_that_cannot_be_is_refused() {
    for (belief, part) in parts() {
        refused(belief, part, "no number", |message| message[HEADER_LEN..HEADER_LEN + 4].fill(0xff));
    }
}

/// The owner adds up four at a time, and then names one.
#[test]
fn one_of_many_payloads_is_named() {
    let codecs = [CodecName::Sign, CodecName::Uniform(3), CodecName::F16];
    for (codec, culprit) in codecs.into_iter().flat_map(|codec| [1, 3, 4, 7, 8].map(|culprit| (codec, culprit))) {
        let setting = Setting { up: codec, ..Setting::new(9, 100, 4) };
        let got = threads::run_within(9, PATIENCE, |end| {
            let (worker, place) = (end.rank(), (culprit, 0, Operation::CoarseUp));
            let change = |message: &mut Vec<u8>| message[HEADER_LEN..HEADER_LEN + 4].fill(0xff);
            let mut exchange = setting.exchange(Tampered { end, place, change });
            mean(&mut exchange, Round::Coarse, 0, &input(100, worker, 0))
        });
        let named = matches!(&got[0], Err(Error::Payload { worker, .. }) if *worker == culprit);
        assert!(named, "{codec}, {culprit}: {:?}", got[0]);
    }
}

#[test]
fn a_mean_that_was_changed_on_its_way_is_noticed_in_the_next_round() {
    let (belief, part) = parts()[1];
    let change = |message: &mut Vec<u8>| *message.last_mut().expect("signs") ^= 1;
    let got = threads::run_within(3, PATIENCE, |end| {
        let (x, mut exchange) =
            (input(100, end.rank(), 0), belief.setting.exchange(Tampered { end, place: (1, 0, part), change }));
        mean(&mut exchange, Round::Coarse, 0, &x).expect("nothing to see yet");
        mean(&mut exchange, Round::Coarse, 1, &x)
    });
    let digest = "the digest of the shared state";
    let named = |got: &_| matches!(got, Err(Error::Disagreement { worker: 0, field, .. }) if field == digest);
    assert!(got[1..].iter().all(named), "{got:?}");
}

#[test]
fn any_payload_gives_finite_values_or_an_error() {
    for (belief, part) in parts() {
        for codec in [CodecName::Sign, CodecName::Uniform(3), CodecName::TopK(100_000), CodecName::F16] {
            let belief = Belief { setting: Setting { up: codec, down: codec, ..belief.setting }, ..belief };
            for seed in 0..50 {
                let got = tampered(belief, part, move |message| {
                    let noise = (0..).map(|k: usize| xxh3_64_with_seed(&k.to_le_bytes(), seed) as u8);
                    message[HEADER_LEN..].iter_mut().zip(noise).for_each(|(byte, noise)| *byte = noise);
                });
                match got {
                    Ok(out) => assert!(out.iter().all(|value| value.is_finite()), "{part} in {codec}"),
                    Err(error) => assert!(blames_the_sender(&error), "{part} in {codec}: {error}"),
                }
            }
        }
    }
}
