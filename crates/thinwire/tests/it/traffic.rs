//! Bytes, rounds and memory are what the plan says, exactly: for every optimizer, codec, number of workers, topology,
//! block, bucket and length.

use crate::common::optimizers::short_cases;
use crate::common::runs;

use runs::{PLACES, Replica, TOPOLOGIES, config, together, together_on, votes};
use thinwire::Round;
use thinwire::counts::Rounds;
use thinwire::inside::state::Slot;
use thinwire::{Config, Plan};

/// Of each step a few: exact, coarse, skipped, and the last one skipped.
const SCHEDULED: &str =
    "name = 'zero-one-adam'; kappa = 1; learning_rate = {peak = 0.1, warmup = 2, decay = 'linear', steps = 8}";

/// Means that come late: a last sync finds one on its way, or what has happened since, or both.
const LATE: [&str; 5] = [
    "name = 'local-adam'; sync_every = 3; delay = 2",
    "name = 'local-adam'; sync_every = 5; delay = 2",
    "name = 'local-adam'; preset = 'co2'; sync_every = 3",
    "name = 'local-adam'; sync_every = 4; delay = 1; mix = 0.5",
    "name = 'zero-one-adam'; variance_steps = [0, 1]; sync_every = 4; delay = 3",
];

/// Every optimizer, and some that code or skip in another way.
fn optimizers() -> impl Iterator<Item = String> {
    short_cases().chain(["name = 'adam'; exact_codec = 'bf16'", SCHEDULED].into_iter().chain(LATE).map(str::to_owned))
}

const STEPS: u64 = 8;

const CODECS: [&str; 8] = [
    "codec = 'sign'",
    "codec = 'uniform3'",
    "codec = 'power3'",
    "codec = 'topk0.1'",
    "codec = 'bf16'",
    "codec = 'f32'",
    "codec_up = 'sign'; codec_down = 'uniform8'",
    "codec_up = 'f16'; codec_down = 'topk0.5'",
];

/// Nothing, one value, less than a block, a few blocks and a bit.
const LENGTHS: [usize; 6] = [0, 1, 2, 7, 64, 131];

/// Every optimizer with every codec it takes.
fn coded() -> impl Iterator<Item = String> {
    optimizers().flat_map(|words| {
        let codecs = if words.starts_with("name = 'adam'") { &[""][..] } else { &CODECS };
        codecs.iter().map(move |codec| format!("{words}; {codec}"))
    })
}

/// Bytes, those between hosts, and rounds.
type Counts = (u64, u64, Rounds);

/// What each worker counted, without a last sync and with one.
fn counted(config: &Config, hosts: &[usize], len: usize) -> Vec<[Counts; 2]> {
    together_on(hosts, |group| {
        let mut replica = Replica::new(config, len, group)?;
        let counted = |replica: &Replica| {
            let traffic = replica.worker.traffic();
            (traffic.bytes_sent, traffic.bytes_between_hosts, traffic.rounds)
        };
        replica.train(STEPS)?;
        replica.worker.state()?; // a mean on its way has only sent its first half
        let before = counted(&replica);
        replica.sync()?;
        Ok([before, counted(&replica)])
    })
}

fn planned(config: &Config, hosts: &[usize], len: usize, rank: usize) -> [Counts; 2] {
    let plan = || Plan::on_hosts(config, len, hosts, STEPS).unwrap();
    let counts = |plan: Plan| (plan.bytes_sent(rank), plan.bytes_between_hosts(rank), plan.rounds);
    [plan(), plan().with_final_sync()].map(counts)
}

fn check_on(words: &str, hosts: &[usize], len: usize) {
    let config = config(words);
    for (rank, counted) in counted(&config, hosts, len).into_iter().enumerate() {
        assert_eq!(counted, planned(&config, hosts, len, rank), "{words}: {len} values, rank {rank} on {hosts:?}");
    }
}

/// On one host, where nothing goes between hosts.
fn check(words: &str, workers: usize, len: usize) {
    check_on(words, &vec![0; workers], len);
    let plan = Plan::new(&config(words), len, workers, STEPS).unwrap();
    assert!((0..workers).all(|rank| plan.bytes_between_hosts(rank) == 0), "{words}");
}

/// Every codec, in every length.
#[test]
fn bytes_are_as_planned_for_every_codec() {
    for words in coded() {
        for (workers, topology) in (1..=5).flat_map(|workers| TOPOLOGIES.map(|topology| (workers, topology))) {
            for len in LENGTHS {
                check(&format!("{words}; topology = '{topology}'"), workers, len);
            }
        }
    }
}

/// Every way to cut: blocks and buckets of one, of a few, longer than the vector.
#[test]
fn bytes_are_as_planned_however_the_vector_is_cut() {
    for words in optimizers() {
        for (workers, topology) in (1..=5).flat_map(|workers| TOPOLOGIES.map(|topology| (workers, topology))) {
            for (block, bucket) in
                [1, 3, 8, 100, 4096].into_iter().flat_map(|block| [1, 50, 4000].map(|bucket| (block, bucket)))
            {
                let cut = format!("block = {block}; bucket = {bucket}; topology = '{topology}'");
                check(&format!("{words}; {cut}"), workers, 67);
            }
        }
    }
}

/// Exact inside a host, coded between hosts; and flat, where all that leaves a host is counted too.
#[test]
fn bytes_are_as_planned_on_hosts() {
    for (words, hosts) in optimizers().flat_map(|words| PLACES.map(|hosts| (words.clone(), hosts))) {
        for topology in TOPOLOGIES {
            for (hierarchy, cut) in [
                ("hierarchy = 'auto'", "block = 8"),
                ("hierarchy = 'hosts'; host_codec = 'bf16'", "block = 3; bucket = 50"),
                ("hierarchy = 'flat'", "block = 8; bucket = 1"),
            ] {
                if hierarchy.contains("'hosts'") && votes(&words) {
                    continue;
                }
                for len in [0, 2, 67] {
                    check_on(&format!("{words}; topology = '{topology}'; {hierarchy}; {cut}"), hosts, len);
                }
            }
        }
    }
}

/// What the form is for. Two hosts of four: flat, a worker sends 4/8 of each way to the other host; on two levels 1/4, that is
/// its host's sum for the four owners there, cut among its relays; and down as much.
#[test]
fn on_hosts_less_goes_between_them() {
    let between = |hierarchy: &str| {
        let config =
            config(&format!("name = 'efficient-adam'; codec = 'sign'; block = 512; hierarchy = '{hierarchy}'"));
        let plan = Plan::on_hosts(&config, 8 * 512, &[0, 0, 0, 0, 1, 1, 1, 1], 1).unwrap();
        (0..8).map(|rank| plan.bytes_between_hosts(rank)).collect::<Vec<_>>()
    };
    let message = 48 + 512 / 8 + 4;
    assert_eq!(between("flat"), [2 * 4 * message; 8]);
    assert_eq!(between("hosts"), [2 * message; 8]);
}

/// Of one owner, the busiest link is its own: all that goes up comes in by it. (Of several: the tests in `plan.rs`.)
#[test]
fn the_load_of_a_link_is_what_crosses_it() {
    let central = config("name = 'efficient-adam'; codec = 'sign'; block = 512; topology = 'central'");
    let load = Plan::on_hosts(&central, 512, &[0, 1, 2], 1).unwrap().load(Round::Coarse).unwrap();
    let message = 48 + 512 / 8 + 4;
    assert_eq!((load.up, load.down, load.buckets), (2 * message, 2 * message, 1));
    assert_eq!(Plan::new(&central, 512, 3, 1).unwrap().load(Round::Coarse).unwrap().up, 0, "nothing leaves one host");
}

/// Or 0 = 0 would pass.
#[test]
fn all_kinds_of_round_are_planned() {
    let rounds = |words: &str| Plan::new(&config(words), 100, 3, STEPS).unwrap().rounds;
    assert_eq!(rounds("name = 'adam'"), Rounds { exact: 8, coarse: 0, skipped: 0 });
    assert_eq!(rounds("name = 'one-bit-adam'; warmup = 3"), Rounds { exact: 3, coarse: 5, skipped: 0 });
    let zero_one = "name = 'zero-one-adam'; kappa = 2; sync = 'every'; sync_every = 3";
    // T_v = 0, 1, 2, 4, 6; syncs at 3 and 5, before a step of T_v; 7 is skipped.
    assert_eq!(rounds(zero_one), Rounds { exact: 5, coarse: 2, skipped: 1 });
    assert_eq!(rounds("name = 'efficient-adam'"), Rounds { exact: 0, coarse: 8, skipped: 0 });
    assert_eq!(rounds("name = 'birder'"), Rounds { exact: 0, coarse: 8, skipped: 0 });
    // After the steps 2 and 5.
    assert_eq!(rounds("name = 'lion'; momentum_every = 3"), Rounds { exact: 2, coarse: 8, skipped: 0 });
    let synced = Plan::new(&config(zero_one), 100, 3, STEPS).unwrap().with_final_sync();
    assert_eq!(synced.rounds, Rounds { exact: 5, coarse: 3, skipped: 1 });
}

/// A bit a value up and down, and no scale: by hand.
#[test]
fn a_vote_is_a_bit() {
    let plan = Plan::new(&config("name = 'lion'; block = 512"), 4 * 512, 4, 1).unwrap();
    assert_eq!(plan.bytes_sent(2), 2 * 3 * (48 + 512 / 8));
    assert_eq!(plan.bits_per_param_per_step(), 1.0);
}

/// A bit a value and a scale a block, up and down: by hand.
#[test]
fn one_coarse_round_is_what_the_page_says() {
    let config = config("name = 'efficient-adam'; codec = 'sign'; block = 512");
    let plan = Plan::new(&config, 4 * 512, 4, 1).unwrap();
    let message = 48 + 512 / 8 + 4;
    assert_eq!(plan.bytes_sent(2), 2 * 3 * message);
    assert_eq!(plan.bits_per_param_per_step(), 1.0 + 32.0 / 512.0);
}

/// A worker that is left out sends headers alone: never more than was planned.
#[test]
fn nobody_sends_more_than_planned_when_one_is_left_out() {
    for words in coded() {
        let config = config(&format!("{words}; non_finite = 'skip'"));
        let sent = together(3, |group| {
            let mut replica = Replica::new(&config, 64, group)?;
            let bad = replica.worker.rank() == 1;
            for _ in 0..STEPS {
                replica.step_with(|gradient| gradient[5] = if bad { f32::NAN } else { gradient[5] })?;
            }
            Ok(replica.worker.traffic().bytes_sent)
        });
        for (rank, sent) in sent.into_iter().enumerate() {
            assert!(sent <= planned(&config, &[0; 3], 64, rank)[0].0, "{words}, rank {rank}");
        }
    }
}

const LEN: usize = 1000;
const BLOCK: usize = 8;

/// The bytes of the vectors in a worker's state, but for its moments.
fn held_beyond_adam(replica: &mut Replica) -> u64 {
    let state = replica.worker.state().unwrap();
    let vectors = state.iter().filter(|entry| !["m", "v", "b"].contains(&entry.name));
    let bytes = vectors.map(|entry| if let Slot::Floats(values) = &entry.slot { 4 * values.len() } else { 0 });
    bytes.sum::<usize>() as u64
}

#[test]
fn memory_is_as_planned() {
    for words in coded() {
        for (workers, topology) in (1..=5).flat_map(|workers| TOPOLOGIES.map(|topology| (workers, topology))) {
            let config = config(&format!("{words}; topology = '{topology}'; block = {BLOCK}"));
            let held = together(workers, |group| Ok(held_beyond_adam(&mut Replica::new(&config, LEN, group)?)));
            let plan = Plan::new(&config, LEN, workers, STEPS).unwrap();
            for (rank, held) in held.into_iter().enumerate() {
                let memory = plan.memory(rank);
                assert_eq!(memory.beyond_adam, held, "{words}, {topology}, rank {rank} of {workers}");
                let moments = if words.contains("lion") { 4 } else { 8 };
                assert_eq!((memory.model, memory.moments), (8 * LEN as u64, moments * LEN as u64));
                assert!(memory.total() > memory.model + memory.moments + memory.beyond_adam);
            }
        }
    }
}

/// Half of the residues' words, and of nothing else.
#[test]
fn residues_of_sixteen_bits_take_half_the_memory() {
    let planned = |name: &str, residue: &str| {
        let words = format!("name = '{name}'; residue = '{residue}'; block = {BLOCK}");
        Plan::new(&config(&words), LEN, 3, STEPS).unwrap().memory(1).beyond_adam
    };
    let wide = planned("efficient-adam", "f32"); // nothing but residues
    assert_eq!(2 * planned("efficient-adam", "bf16"), wide);
    assert_eq!(2 * (planned("zero-one-adam", "f32") - planned("zero-one-adam", "bf16")), wide);
}

/// Two hosts of four workers need fewer buffers than eight of one, though messages inside a host are longer.
#[test]
fn buffers_are_planned_by_host() {
    let messages = |hierarchy: &str, codec: &str| {
        let words = format!("name = 'efficient-adam'; codec = '{codec}'; hierarchy = '{hierarchy}'; bucket = 1");
        let plan = Plan::on_hosts(&config(&words), LEN, &[0, 0, 0, 0, 1, 1, 1, 1], STEPS).unwrap();
        plan.memory(5).messages
    };
    let message = |bytes: u64| 48 + bytes;
    assert_eq!(messages("flat", "f32"), (2 * 8 + 3) * message(4 * 8));
    assert_eq!(messages("hosts", "f32"), (2 * 2 + 4 + 3) * message(4 * 8));
    assert_eq!(messages("flat", "sign"), (2 * 8 + 3) * message(4 + 1));
    assert_eq!(messages("hosts", "sign"), (2 * 2 + 4 + 3) * message(4 * 8));
}

/// In words a parameter, to one block: (1 + 1/n), and (3 + 1/n) for 0/1 Adam, whose u and anchor are two more, as are local Adam's
/// anchor and outer momentum, if its rule has one.
#[test]
fn memory_beyond_adam_is_a_word_or_three_and_a_share() {
    for (words, whole) in [
        ("one-bit-adam'; warmup = 3", 1),
        ("efficient-adam'", 1),
        ("zero-one-adam'", 3),
        ("local-adam'; codec = 'sign'", 3),
        ("local-adam'; codec = 'sign'; outer = 'average'", 2),
    ] {
        for workers in 1..=5 {
            let config = config(&format!("name = '{words}; block = {BLOCK}"));
            for rank in 0..workers {
                let planned = Plan::new(&config, LEN, workers, STEPS).unwrap().memory(rank).beyond_adam;
                let expected = 4.0 * LEN as f64 * (f64::from(whole) + 1.0 / workers as f64);
                assert!((planned as f64 - expected).abs() <= 4.0 * BLOCK as f64, "{words}: {planned}, not {expected}");
            }
        }
    }
    for words in ["name = 'lion'", "name = 'birder'", "name = 'lion'; clip = 1.0; momentum_every = 3"] {
        assert_eq!(Plan::new(&config(words), LEN, 4, STEPS).unwrap().memory(0).beyond_adam, 0, "{words}");
    }
    let adam = Plan::new(&config("name = 'adam'"), LEN, 4, STEPS).unwrap();
    assert_eq!(adam.memory(0).beyond_adam, 0);
}
