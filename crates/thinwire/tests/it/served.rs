//! A server takes the means: what the engine offers to one, without a network.
//!
//! With everybody in every round the bits are those of the central form. Who is left out keeps in its residue what it had sent;
//! with S the workers that a round counts, and u what each of them adds to what it owes,
//!
//! ```text
//! Efficient-Adam   x − E − mean_S e     moves by exactly mean_S u, in every round, whoever S is
//!                  e of everybody else  grows by exactly its u
//! local Adam       the same at every sync, with what a worker's steps since the last one come to for u (`average`, η = 1)
//! ```
//!
//! to the rounding of a few f32 of size 1: [`ROUNDING`].

use crate::common::engine::{apart, noisy, start, widen};
use crate::common::optimizers::cases;
use crate::common::runs;
use std::sync::mpsc::{Receiver, Sender, channel};
use thinwire::Round;
use thinwire::inside::exchange::header::HEADER_LEN;
use thinwire::inside::state::Slot;
use thinwire::options::Decay;
use thinwire::{Collective, Config, Error, LearningRate, Result, Worker, threads};
use xxhash_rust::xxh3::xxh3_64;

const STEPS: u64 = 40;
const ROUNDING: f64 = 5e-7;

/// One worker's line to the server.
struct Line {
    workers: usize,
    seat: usize,
    up: Sender<Vec<u8>>,
    down: Receiver<(Vec<u8>, bool)>,
    left_out: bool,
}

impl Collective for Line {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn served(&self) -> Option<usize> {
        Some(self.workers)
    }

    fn seat(&self) -> usize {
        self.seat
    }

    fn left_out(&self) -> bool {
        self.left_out
    }

    fn reserve(&mut self, _: usize, _: usize) {}

    fn send(&mut self, to: usize, message: &[u8], _: &'static str) -> Result<()> {
        assert_eq!(to, 1);
        self.up.send(message.to_vec()).unwrap();
        Ok(())
    }

    fn receive(&mut self, from: usize, message: &mut Vec<u8>, during: &'static str) -> Result<()> {
        assert_eq!(from, 1);
        let (mean, counted) = self.down.recv().map_err(|_| Error::Gone { worker: 1, during })?;
        (*message, self.left_out) = (mean, !counted);
        Ok(())
    }
}

/// The server's end of a line.
type Ends = (Receiver<Vec<u8>>, Sender<(Vec<u8>, bool)>);

/// What a server is told of a round, and E after it.
type Watch<'a> = &'a mut dyn FnMut(u64, &[f32]);

/// Serves `lines` until all are gone; `counts` says whether round r counts worker i.
fn serve(config: &Config, values: usize, lines: &[Ends], counts: impl Fn(u64, usize) -> bool, watch: Watch<'_>) {
    let mut owner = config.decide().unwrap().owner(values).unwrap().of_workers(lines.len());
    for round in 0.. {
        let messages = lines.iter().filter_map(|(up, _)| up.recv().ok()).collect::<Vec<_>>();
        if messages.is_empty() {
            return;
        }
        assert_eq!(messages.len(), lines.len());
        let expected = messages[0][..HEADER_LEN].to_vec();
        let counted = (0..lines.len()).filter(|worker| counts(round, *worker)).collect::<Vec<_>>();
        for (worker, message) in messages.iter().enumerate() {
            owner.check(&expected, message, worker).unwrap();
            assert!([owner.length(&expected).unwrap(), HEADER_LEN].contains(&message.len()));
        }
        let messages = counted.iter().map(|worker| messages[*worker].clone()).collect::<Vec<_>>();
        let unkept = owner.mean(&expected, &messages, |i| counted[i]).unwrap();
        let mean = owner.mean(&expected, &messages, |i| counted[i]).unwrap();
        assert!(unkept == mean, "a mean that was not kept has not happened");
        owner.keep(&expected).unwrap();
        watch(round, owner.residual());
        for (worker, (_, down)) in lines.iter().enumerate() {
            let _ = down.send((mean.clone(), counted.contains(&worker)));
        }
    }
}

/// Runs `work` for every worker, with its rank, beside a server.
fn served<T: Send>(
    config: &Config,
    values: usize,
    workers: usize,
    counts: impl Fn(u64, usize) -> bool + Send,
    watch: &mut (dyn FnMut(u64, &[f32]) + Send),
    work: impl Fn(usize, Line) -> T + Sync,
) -> Vec<T> {
    let (mut lines, mut ends) = (Vec::new(), Vec::new());
    for seat in 0..workers {
        let ((up, from_worker), (to_worker, down)) = (channel(), channel());
        lines.push(Line { workers, seat, up, down, left_out: false });
        ends.push((from_worker, to_worker));
    }
    std::thread::scope(|scope| {
        scope.spawn(move || serve(config, values, &ends, counts, watch));
        let work = &work;
        let threads = lines.into_iter().enumerate().map(|(rank, line)| scope.spawn(move || work(rank, line)));
        threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn rate() -> LearningRate {
    LearningRate { warmup: 4, decay: Decay::Cosine, steps: STEPS, ..LearningRate::constant(0.02) }
}

fn config(words: &str) -> Config {
    let config = runs::config(&format!("{words}; topology = 'central'; clip = 30.0"));
    Config { learning_rate: Some(rate()), ..config }.resolved().unwrap()
}

/// Those of the shared table that fit any length and whose means are not late, and two more.
fn served_cases() -> Vec<String> {
    let more = [
        "name = 'adam'; exact_codec = 'bf16'",
        "name = 'zero-one-adam'; sync = 'every'; sync_every = 3; variance_gap = 2",
    ];
    cases()
        .into_iter()
        .filter(|words| {
            !["groups", "momentum_every", "tensors", "delay", "co2", "parts", "streaming-diloco"]
                .iter()
                .any(|key| words.contains(key))
        })
        .chain(more.map(str::to_owned))
        .collect()
}

fn gradient(rank: usize, t: u64, x: &[f32]) -> Vec<f32> {
    noisy(3, rank, t, x.len()).iter().zip(x).map(|(noise, x)| noise + 0.5 * x).collect()
}

/// The parameters after each step.
fn course(config: &Config, rank: usize, values: usize, group: Box<dyn Collective>) -> Vec<u64> {
    let mut x = start(values);
    let mut worker = Worker::new(config, &x, group).unwrap();
    let mut seen = Vec::new();
    for t in 0..STEPS {
        let gradient = gradient(rank, t, &x);
        if config.weighted == Some(true) {
            worker.set_weight(1 + (t as u32 + rank as u32) % 3).unwrap();
        }
        worker.step(&mut x, &gradient, rate().at(t)).unwrap();
        seen.push(xxh3_64(bytemuck::cast_slice(&x)));
    }
    worker.sync(&mut x).unwrap();
    seen.push(xxh3_64(bytemuck::cast_slice(&x)));
    seen
}

#[test]
fn with_everybody_in_every_round_a_server_gives_the_bits_of_the_central_form() {
    for words in served_cases() {
        let config = config(&words);
        for (workers, values) in [(1, 37), (2, 37), (3, 0), (3, 1), (4, 37), (5, 8)] {
            let central = threads::run(workers, |group| {
                let rank = group.rank();
                course(&config, rank, values, Box::new(group))
            });
            let served = served(
                &config,
                values,
                workers,
                |_, _| true,
                &mut |_, _| {},
                |rank, line| course(&config, rank, values, Box::new(line)),
            );
            assert_eq!(central, served, "{words}: {workers} workers, {values} values");
        }
    }
}

/// Who has no gradient to give hears the others, and ends where they do.
#[test]
fn a_follower_has_the_state_of_those_it_follows() {
    for words in served_cases() {
        let config = config(&words);
        let ends = served(
            &config,
            37,
            3,
            |_, worker| worker != 1,
            &mut |_, _| {},
            |rank, line| {
                let mut x = start(37);
                let mut worker = Worker::new(&config, &x, Box::new(line)).unwrap();
                let mut rounds = 0;
                for t in 0..STEPS {
                    if rank == 1 {
                        rounds += u64::from(worker.follow(&mut x, rate().at(t)).unwrap() != Round::Skipped);
                    } else {
                        let gradient = gradient(rank, t, &x);
                        worker.step(&mut x, &gradient, rate().at(t)).unwrap();
                    }
                }
                worker.sync(&mut x).unwrap();
                (x, word(&mut worker, "digest"), rounds)
            },
        );
        assert!(ends[1].2 > 0);
        assert_eq!((&ends[0].0, ends[0].1), (&ends[1].0, ends[1].1), "{words}");
        assert_eq!((&ends[0].0, ends[0].1), (&ends[2].0, ends[2].1), "{words}");
    }
}

fn vector(worker: &mut Worker, name: &str) -> Vec<f64> {
    let found = worker.state().unwrap().into_iter().find(|entry| entry.name == name).unwrap();
    let Slot::Floats(values) = found.slot else { panic!("{name} is no vector") };
    widen(values)
}

fn word(worker: &mut Worker, name: &str) -> u64 {
    let found = worker.state().unwrap().into_iter().find(|entry| entry.name == name).unwrap();
    let Slot::Word(word) = found.slot else { panic!("{name} is no word") };
    *word
}

/// x, e, and the update that the worker makes of its own moments, after each step.
type Moment = (Vec<f64>, Vec<f64>, Vec<f64>);

#[test]
fn whoever_is_left_out_nothing_is_lost_and_nothing_counts_twice() {
    const D: usize = 37;
    const WORKERS: usize = 4;
    let counts = |round: u64, worker: usize| {
        // Everyone alone at times, nobody at others, and all kinds between.
        xxh3_64(&[round as u8, worker as u8]) % 5 < 3
    };
    let optimizers = [("efficient-adam", "", 1), ("local-adam", "outer = \"average\"\nsync_every = 4", 4)];
    let cases = optimizers.into_iter().flat_map(|of| ["sign", "uniform4", "topk0.2", "f32"].map(|codec| (of, codec)));
    for ((name, options, gap), codec) in cases {
        let config = Config::from_toml(&format!(
            "name = \"{name}\"\ntopology = \"central\"\nblock = 8\nweight_decay = 0.0\ncodec = \"{codec}\"\n{options}"
        ));
        let config = config.unwrap().resolved().unwrap();
        let mut residues = vec![vec![0.0; D]];
        let histories =
            served(&config, D, WORKERS, counts, &mut |_, residue| residues.push(widen(residue)), |rank, line| {
                let mut x = start(D);
                let mut worker = Worker::new(&config, &x, Box::new(line)).unwrap();
                let mut history: Vec<Moment> = vec![(widen(&x), vec![0.0; D], vec![0.0; D])];
                for t in 0..STEPS {
                    worker.step(&mut x, &noisy(9, rank, t, D), 0.01).unwrap();
                    let (m, v) = (vector(&mut worker, "m"), vector(&mut worker, "v"));
                    let updates = word(&mut worker, "variance_updates") as i32;
                    let (rate, correction) = (0.01 / (1.0 - 0.9_f64.powi(t as i32 + 1)), 1.0 - 0.999_f64.powi(updates));
                    let update = m.iter().zip(&v).map(|(m, v)| rate * m / ((v / correction).sqrt() + 1e-8)).collect();
                    history.push((widen(&x), vector(&mut worker, "up_residue"), update));
                }
                history
            });
        for round in 0..STEPS as usize / gap {
            let (before, after) = (round * gap, (round + 1) * gap);
            let counted = (0..WORKERS).filter(|worker| counts(round as u64, *worker)).collect::<Vec<_>>();
            let mean = |of: &dyn Fn(usize) -> f64| {
                counted.iter().map(|worker| of(*worker)).sum::<f64>() / counted.len().max(1) as f64
            };
            // Where the last step, of which only the round is seen, would have led from where the worker was before it.
            let moved = |worker: usize, k: usize| {
                let history = &histories[worker];
                history[before].0[k] - (history[after - 1].0[k] - history[after].2[k])
            };
            let virtual_iterate = |at: usize, k: usize| {
                histories[0][at].0[k] - residues[at / gap][k] - mean(&|worker| histories[worker][at].1[k])
            };
            let got = (0..D).map(|k| virtual_iterate(before, k) - virtual_iterate(after, k)).collect::<Vec<_>>();
            let want = (0..D).map(|k| mean(&|worker| moved(worker, k))).collect::<Vec<_>>();
            let off = apart(&got, &want);
            assert!(off < ROUNDING, "{name}, {codec}, round {round}: the virtual iterate is off by {off:e}");
            for worker in (0..WORKERS).filter(|worker| !counted.contains(worker)) {
                let history = &histories[worker];
                let got = (0..D).map(|k| history[after].1[k] - history[before].1[k]).collect::<Vec<_>>();
                let off = apart(&got, &(0..D).map(|k| moved(worker, k)).collect::<Vec<_>>());
                assert!(off < ROUNDING, "{name}, {codec}, round {round}: worker {worker} has lost {off:e}");
                assert_eq!(history[after].0, histories[0][after].0, "{name}, {codec}, round {round}");
            }
        }
    }
}

/// A momentum is a state of all: who is left out owes how far its own is from what the others made of it.
#[test]
fn of_a_state_who_is_left_out_owes_the_difference() {
    const D: usize = 37;
    let config = Config { clip: None, ..config("name = 'one-bit-adam'; warmup = 5") };
    let counts = |round: u64, worker: usize| round < 5 || worker != 1 || round.is_multiple_of(3);
    let histories = served(&config, D, 3, counts, &mut |_, _| {}, |rank, line| {
        let mut x = start(D);
        let mut worker = Worker::new(&config, &x, Box::new(line)).unwrap();
        let mut history = Vec::new();
        for t in 0..STEPS {
            let (m, e, gradient) = (vector(&mut worker, "m"), vector(&mut worker, "up_residue"), noisy(9, rank, t, D));
            worker.step(&mut x, &gradient, rate().at(t)).unwrap();
            let own = m.iter().zip(widen(&gradient)).map(|(m, g)| 0.9 * m + 0.1 * g).collect::<Vec<_>>();
            history.push((own, e, vector(&mut worker, "up_residue"), vector(&mut worker, "m")));
        }
        history
    });
    for (t, (own, before, after, mean)) in histories[1].iter().enumerate().skip(5).filter(|(t, _)| !t.is_multiple_of(3))
    {
        let got = (0..D).map(|k| after[k] - before[k]).collect::<Vec<_>>();
        let want = (0..D).map(|k| own[k] - mean[k]).collect::<Vec<_>>();
        let off = apart(&got, &want);
        assert!(off < 10.0 * ROUNDING, "step {t}: off by {off:e}");
    }
}

/// Of which the server's log would have to keep two for a step.
#[test]
fn a_mean_of_momenta_is_refused_with_a_server() {
    let config = config("name = 'lion'; momentum_every = 4");
    let line = Line { workers: 2, seat: 0, up: channel().0, down: channel().1, left_out: false };
    let Err(error) = Worker::new(&config, &start(9), Box::new(line)) else { panic!("it was taken") };
    let Err(same) = config.decide().unwrap().owner(9) else { panic!("it was taken") };
    assert_eq!(error.to_string(), same.to_string());
    assert!(
        error.to_string().contains("momentum_every = 4") && error.to_string().contains("one mean a step"),
        "{error}"
    );
}

/// What a server must not take from anybody.
#[test]
fn an_owner_refuses_what_is_not_of_its_round() {
    let config = config("name = 'efficient-adam'");
    let (up, sent) = channel();
    let (down, heard) = channel::<(Vec<u8>, bool)>();
    let line = Line { workers: 1, seat: 0, up, down: heard, left_out: false };
    let worker = std::thread::spawn(move || {
        let mut x = start(37);
        let mut worker = Worker::new(&self::config("name = 'efficient-adam'"), &x, Box::new(line)).unwrap();
        let gradient = gradient(0, 0, &x);
        worker.step(&mut x, &gradient, rate().at(0))
    });
    let message = sent.recv().unwrap();
    drop(down);
    assert!(worker.join().unwrap().is_err());
    let owner = config.decide().unwrap().owner(37).unwrap();
    let expected = &message[..HEADER_LEN];
    owner.check(expected, &message, 0).unwrap();
    let norm = owner.check(expected, &message, 0).unwrap().unwrap();
    let half = owner.shortened(expected, &message, 0.5, 0).unwrap();
    let shorter = owner.check(expected, &half, 0).unwrap().unwrap();
    assert!(norm > 0.0 && (shorter / norm - 0.5).abs() < 1e-6, "{shorter} of {norm}");
    let empty = owner.emptied(&message, 0).unwrap();
    assert_eq!((empty.len(), owner.check(expected, &empty, 0).unwrap()), (HEADER_LEN, None));
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut other = message.clone();
        change(&mut other);
        owner.check(expected, &other, 7).unwrap_err().to_string()
    };
    assert!(refused(&|m| m.truncate(20)).contains("worker 7"));
    assert!(refused(&|m| m[0] = b'X').contains("first bytes"));
    assert!(refused(&|m| m[8] ^= 1).contains("the step"));
    assert!(refused(&|m| m[16] ^= 1).contains("the vector's length"));
    assert!(refused(&|m| m[40] ^= 1).contains("digest"));
    assert!(refused(&|m| m[36] = 2).contains("found 2"));
    assert!(refused(&|m| _ = m.pop()).contains("payload: expected"));
    assert!(refused(&|m| m.push(0)).contains("payload: expected"));
    let scale = |scale: f32| move |m: &mut Vec<u8>| m[HEADER_LEN..HEADER_LEN + 4].copy_from_slice(&scale.to_le_bytes());
    assert!(refused(&scale(f32::NAN)).contains("scale"));
    assert!(refused(&scale(-1.0)).contains("scale"));
    assert!(refused(&scale(1e36)).contains("is the most"));
    assert!(owner.check(&message[..9], &message, 0).is_err());
}

#[test]
fn a_server_is_for_the_central_form() {
    let line = |workers| Line { workers, seat: 0, up: channel().0, down: channel().1, left_out: false };
    let sharded = Config { topology: None, ..config("name = \"adam\"") };
    let Err(error) = Worker::new(&sharded, &start(9), Box::new(line(2))) else { panic!("it was taken") };
    assert_eq!(error.to_string(), "invalid topology = sharded: expected central with a server");
}

/// Where a sync of 0/1 Adam counts nobody, the workers are back where they were, alike, and owe what they had to send: once.
#[test]
fn a_sync_that_counts_nobody_changes_nothing_and_loses_nothing() {
    const D: usize = 37;
    let words = "name = \"zero-one-adam\"\ntopology = \"central\"\nblock = 8\nvariance_steps = [0, 1, 2]\nsync = \"every\"\nsync_every = 3\n";
    for codec in ["sign", "uniform4", "f32"] {
        let config = Config::from_toml(&format!("{words}codec = \"{codec}\"")).unwrap().resolved().unwrap();
        let ends = served(
            &config,
            D,
            3,
            |round, _| round != 4, // three exact ones, a sync at step 5, and that at step 8
            &mut |_, _| {},
            |rank, line| {
                let mut x = start(D);
                let mut worker = Worker::new(&config, &x, Box::new(line)).unwrap();
                let mut seen = Vec::new();
                for t in 0..12 {
                    worker.step(&mut x, &noisy(9, rank, t, D), 0.01).unwrap();
                    let state = ["m", "u", "up_residue"].map(|name| vector(&mut worker, name));
                    seen.push((widen(&x), state));
                }
                seen
            },
        );
        for seen in &ends {
            let (x, [m, u, e]) = &seen[8];
            let ((before, [.., u_before, e_before]), (_, [_, _, _])) = (&seen[7], &seen[5]);
            assert_eq!(x, &seen[5].0, "{codec}");
            assert_eq!(x, &ends[0][8].0, "{codec}");
            assert!(m.iter().chain(u).all(|value| *value == 0.0), "{codec}");
            assert!(before != x, "{codec}: there were local steps");
            // u of the step before, and this step's part of it, which is about half as much again.
            let owes = |k: usize| (e[k] - e_before[k] - u_before[k]).abs() <= 3.0 * u_before[k].abs() + 0.1;
            assert!((0..D).all(owes), "{codec}");
            assert_eq!(seen[11].0, ends[0][11].0, "{codec}: they go on alike");
        }
    }
}
