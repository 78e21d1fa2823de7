//! All replicas hold the same bits whenever they are synced, whatever the optimizer, the number of workers, the form of
//! the mean, or the number of threads; and the same run twice is the same bits twice.

use crate::common::runs;

use runs::{Bits, LEN, PLACES, Replica, STEPS, all_cases, cases, config, together, together_on, votes};
use thinwire::{CodecName, Config};

/// What a worker holds after each step, and after a last sync; none between two syncs.
fn course(config: &Config, workers: usize, len: usize, steps: u64) -> Vec<Vec<Option<Bits>>> {
    course_on(&vec![0; workers], config, len, steps)
}

fn course_on(hosts: &[usize], config: &Config, len: usize, steps: u64) -> Vec<Vec<Option<Bits>>> {
    together_on(hosts, |group| {
        let mut replica = Replica::new(config, len, group)?;
        let mut course = Vec::new();
        for _ in 0..steps {
            replica.step()?;
            course.push(replica.is_synced().then(|| replica.shared_bits()));
        }
        replica.sync()?;
        assert!(replica.is_synced());
        course.push(Some(replica.shared_bits()));
        Ok(course)
    })
}

#[test]
fn after_every_sync_all_replicas_are_the_same() {
    for (case, config) in all_cases() {
        (1..=5).for_each(|workers| assert_same_on(&vec![0; workers], &case, &config));
    }
}

fn assert_same_on(hosts: &[usize], case: &str, config: &Config) {
    let courses = course_on(hosts, config, LEN, STEPS);
    for (rank, other) in courses.iter().enumerate().skip(1) {
        for (step, (first, other)) in courses[0].iter().zip(other).enumerate() {
            let context = format!("{case}, rank {rank} on {hosts:?} after step {step}");
            assert_eq!(first.is_some(), other.is_some(), "{context}");
            first.iter().zip(other).for_each(|(first, other)| first.assert_same(other, &context));
        }
    }
}

/// Or the test above would pass on workers that all see the same, and never part.
#[test]
fn between_syncs_replicas_differ() {
    for words in cases().iter().filter(|words| words.contains("zero-one")) {
        let ends = together(2, |group| {
            let mut replica = Replica::new(&config(words), LEN, group)?;
            let mut apart = Vec::new();
            for _ in 0..STEPS {
                replica.step()?;
                apart.extend((!replica.is_synced()).then(|| replica.x.clone()));
            }
            Ok(apart)
        });
        assert!(ends[0].len() > 4 && ends[0].iter().zip(&ends[1]).all(|(first, second)| first != second), "{words}");
    }
}

/// Whoever owns the blocks: only the digest tells, for it is of the messages, in the order of their owners.
#[test]
fn sharded_and_central_are_the_same_bits() {
    for words in &cases() {
        // Local Adam keeps a residual of nothing in the central form alone, for a server.
        let usual = if words.contains("local-adam") && !words.contains("feedback") { "; feedback = 1" } else { "" };
        let words = &format!("{words}{usual}");
        for workers in 1..=5 {
            let [sharded, central] = ["sharded", "central"].map(|topology| {
                let config = config(&format!("{words}; topology = '{topology}'"));
                together(workers, |group| {
                    let mut replica = Replica::new(&config, LEN, group)?;
                    replica.train(STEPS)?;
                    Ok((
                        replica.bits().without("digest").without("mean_chain").without("down_residue"),
                        replica.numbers()["down_residue"].clone(),
                    ))
                })
            });
            for ((sharded, _), (central, _)) in sharded.iter().zip(&central) {
                sharded.assert_same(central, (words, workers));
            }
            let whole = |ends: Vec<(Bits, Vec<f64>)>| ends.into_iter().flat_map(|(_, part)| part).collect::<Vec<_>>();
            assert_eq!(whole(sharded), whole(central), "{words}, {workers}");
        }
    }
}

const OPTIMIZERS: [&str; 5] = [
    "name = 'adam'",
    "name = 'one-bit-adam'; warmup = 2; codec_down = 'uniform4'",
    "name = 'zero-one-adam'; kappa = 1; sync_every = 3",
    "name = 'efficient-adam'",
    "name = 'local-adam'; sync_every = 2; codec = 'sign'",
];

/// Long enough that two threads share every pass, and no whole number of blocks, tiles or halves.
const LONG: usize = 200_003;

#[test]
fn the_number_of_threads_changes_no_bit() {
    for words in OPTIMIZERS {
        for block in [512, 4096, 1000] {
            let config = |threads: usize| config(&format!("{words}; block = {block}; threads = {threads}"));
            let [one, two] = [1, 2].map(|threads| course(&config(threads), 2, LONG, 6));
            for (one, two) in one.iter().flatten().zip(two.iter().flatten()) {
                one.iter().zip(two).for_each(|(one, two)| one.assert_same(two, (words, block)));
            }
        }
    }
}

/// Packing and sending in other pieces changes no number.
#[test]
fn the_bucket_changes_no_bit_but_the_digest() {
    for words in OPTIMIZERS {
        let ends = |bucket: usize| {
            let config = config(&format!("{words}; bucket = {bucket}"));
            together(3, |group| {
                let mut replica = Replica::new(&config, LEN, group)?;
                replica.train(STEPS)?;
                Ok(replica.bits().without("digest").without("mean_chain"))
            })
        };
        let whole = ends(1 << 20);
        for bucket in [1, 10, 33] {
            whole.iter().zip(ends(bucket)).for_each(|(whole, cut)| whole.assert_same(&cut, (words, bucket)));
        }
    }
}

#[test]
fn the_same_run_twice_is_the_same_bits() {
    for (case, config) in all_cases() {
        let run = || course(&config, 3, LEN, STEPS);
        assert!(run() == run(), "{case}");
    }
}

#[test]
fn after_every_sync_all_replicas_on_hosts_are_the_same() {
    for (case, config) in all_cases() {
        PLACES.into_iter().for_each(|hosts| assert_same_on(hosts, &case, &config));
        let cast = Config { host_codec: Some(CodecName::Bf16), ..config };
        assert_same_on(PLACES[3], &format!("{case}, bf16 inside a host"), &cast);
    }
}

/// Everything but the digest, which is of messages, and so of how they are cut.
fn but_digest(courses: Vec<Vec<Option<Bits>>>) -> Vec<Vec<Option<Bits>>> {
    let without = |bits: Option<Bits>| bits.map(|bits| bits.without("digest").without("mean_chain"));
    courses.into_iter().map(|course| course.into_iter().map(without).collect()).collect()
}

#[test]
fn threads_buckets_and_topology_change_no_bit_on_hosts() {
    for words in &cases() {
        let run = |words: String| but_digest(course_on(PLACES[3], &config(&words), LEN, STEPS));
        let usual = run(words.to_string());
        for other in ["threads = 2", "bucket = 1", "bucket = 100", "topology = 'central'"] {
            assert!(usual == run(format!("{words}; {other}")), "{words}; {other}");
        }
    }
}

/// One host, or one worker on each, is the flat form: `auto` sees to it, to the digest.
#[test]
fn hosts_that_make_no_difference_make_none() {
    for words in &cases() {
        let flat = course_on(&[0, 0, 1, 1], &config(&format!("{words}; hierarchy = 'flat'")), LEN, STEPS);
        for hosts in [[0, 0, 0, 0], [0, 1, 2, 3]] {
            assert!(flat == course_on(&hosts, &config(words), LEN, STEPS), "{words} on {hosts:?}");
        }
        if votes(words) {
            assert!(flat == course_on(&[0, 0, 1, 1], &config(words), LEN, STEPS), "{words}: hosts never count");
            continue;
        }
        let apart = config(&format!("{words}; hierarchy = 'hosts'; host_codec = 'bf16'"));
        assert!(flat == course_on(&[0, 1, 2, 3], &apart, LEN, STEPS), "{words}");
        let shared = course_on(&[0, 0, 1, 1], &config(words), LEN, STEPS);
        assert!(flat != shared, "{words}: hosts made no difference where they should");
    }
}
