//! A server that dies at any moment comes back with every round that anyone has seen, and keeps no more than it must.

use super::*;
use std::sync::mpsc::{Receiver, Sender, channel};
use thinwire::{Collective, LearningRate, Worker};

pub const WORKERS: usize = 3;
pub const D: usize = 150;
pub const STEPS: u64 = 26;
pub const RETENTION: Retention = Retention { keep: 5, snapshot_every: 7, snapshots: 2 };
pub const CASES: [&str; 4] = [
    "name = \"efficient-adam\"\ncodec = \"sign\"", // E by the messages
    "name = \"efficient-adam\"\ncodec_up = \"f32\"\ncodec_down = \"sign\"", // E itself is shorter
    "name = \"zero-one-adam\"\nsync = \"every\"\nsync_every = 2\nvariance_gap = 4",
    "name = \"adam\"",
];

/// A worker's line to the test.
struct Line(Sender<Vec<u8>>, Receiver<Vec<u8>>);

impl Collective for Line {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn served(&self) -> Option<usize> {
        Some(WORKERS)
    }
    fn reserve(&mut self, _: usize, _: usize) {}
    fn send(&mut self, _: usize, message: &[u8], _: &'static str) -> thinwire::Result<()> {
        self.0.send(message.to_vec()).map_err(|_| thinwire::Error::Stopped)
    }
    fn receive(&mut self, _: usize, message: &mut Vec<u8>, _: &'static str) -> thinwire::Result<()> {
        *message = self.1.recv().map_err(|_| thinwire::Error::Stopped)?;
        Ok(())
    }
}

/// The test's ends of a line: what the worker sends, and what it hears.
pub type Ends = (Receiver<Vec<u8>>, Sender<Vec<u8>>);

/// Workers that train for as long as they are answered.
pub fn workers(config: &Config) -> Vec<Ends> {
    let rate = config.learning_rate.clone().unwrap();
    let each = (0..WORKERS).map(|worker| {
        let ((up, from_worker), (to_worker, down)) = (channel(), channel());
        let (config, rate) = (config.clone(), rate.clone());
        std::thread::spawn(move || {
            let mut x = vec![1.0; D];
            let mut engine = Worker::new(&config, &x, Box::new(Line(up, down))).unwrap();
            for step in 0..STEPS {
                let gradient =
                    x.iter().enumerate().map(|(k, x)| x + ((k as u64 * 7 + step * 3 + worker as u64) as f32).sin());
                let gradient = gradient.collect::<Vec<_>>();
                if engine.step(&mut x, &gradient, rate.at(step)).is_err() {
                    return;
                }
            }
            let _ = engine.sync(&mut x);
        });
        (from_worker, to_worker)
    });
    each.collect()
}

pub fn config(words: &str) -> Config {
    let config = Config::from_toml(&format!("block = 8\n{words}")).unwrap();
    served(&Config { learning_rate: Some(LearningRate::constant(0.01)), ..config }).unwrap()
}

/// Whether the inputs of `round` are the messages it counts.
pub fn has_messages(dir: &Path, round: u64) -> bool {
    let files = Inputs::look(dir, 0, u64::MAX).unwrap();
    inputs::entry(&files, round).unwrap().is_some_and(|entry| entry[0] == 4)
}

pub fn copied(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

/// All that a server that comes back must have. The header of the next round has the digest of the shared state in it.
pub fn state(run: &mut Run) -> (u64, Next, Vec<u32>, BTreeMap<u32, u64>) {
    let residue = run.residue().iter().map(|e| e.to_bits()).collect();
    (run.rounds(), run.next().clone(), residue, run.state.counted.clone())
}

/// Calls `check` after every round, with the run and the messages that the round was made of.
pub fn watched(words: &str, mut check: impl FnMut(&mut Run, &BTreeMap<u32, Vec<u8>>)) {
    let (config, dir) = (config(words), tempfile::tempdir().unwrap());
    let initial = vec![1.0; D];
    let mut run = Run::create(dir.path(), &config, &initial, WORKERS, STEPS, String::new(), RETENTION).unwrap();
    let workers = workers(&config);
    while matches!(run.next(), Next::Round(_)) {
        let messages = workers.iter().enumerate().map(|(slot, (up, _))| (slot as u32, up.recv().unwrap()));
        let messages = messages.collect::<BTreeMap<_, _>>();
        let record = run.commit(&messages, &BTreeMap::new()).unwrap();
        check(&mut run, &messages);
        workers.iter().for_each(|(_, down)| down.send(record.message.to_vec()).unwrap());
    }
}

#[test]
fn a_server_that_dies_after_any_round_comes_back_with_it() {
    for words in CASES {
        watched(words, |run, _| {
            let copy = copied(run.dir());
            let mut again = Run::open(copy.path(), RETENTION).unwrap();
            assert_eq!(state(run), state(&mut again), "{words}, round {}", run.rounds());
            again.snapshot_now().unwrap();
            drop(again);
            let mut again = Run::open(copy.path(), RETENTION).unwrap();
            assert_eq!(state(run), state(&mut again), "{words}, from a snapshot, round {}", run.rounds());
        });
    }
}

/// Whichever byte of a round's record, or of its inputs, was the last that reached the disk.
#[test]
fn a_server_that_dies_while_it_writes_a_round_comes_back_before_it_or_after_it() {
    let mut made_again_once = false;
    for words in CASES {
        let mut before = None;
        watched(words, |run, messages| {
            let after = state(run);
            let Some(before) = before.replace(after.clone()) else { return };
            // Not right after a snapshot, where the round is in the segment before, and not for every round.
            let since = run.rounds() - run.snapshot;
            if since != 2 || run.rounds() > 10 {
                return;
            }
            let segment = numbered(run.dir(), "log").unwrap().pop().unwrap().1;
            let whole = std::fs::metadata(&segment).unwrap().len();
            let places = Frames::open(copied(run.dir()).path().join(segment.file_name().unwrap()), *b"TWLG", true);
            let torn_from = places.unwrap().1.last().unwrap().start();
            let made_again = has_messages(run.dir(), run.rounds() - 1);
            made_again_once |= made_again;
            for length in torn_from..=whole {
                let copy = copied(run.dir());
                let path = copy.path().join(segment.file_name().unwrap());
                let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
                file.set_len(length).unwrap();
                let mut again = Run::open(copy.path(), RETENTION).unwrap();
                let expected = if length == whole || made_again { &after } else { &before };
                assert!(state(&mut again) == *expected, "{words}: {length} of {whole} bytes");
                if again.rounds() < after.0 {
                    again.commit(messages, &BTreeMap::new()).unwrap();
                    assert!(state(&mut again) == after, "{words}: made again after {length} of {whole} bytes");
                }
            }
            let inputs = numbered(run.dir(), "inputs").unwrap().pop().unwrap().1;
            let whole_inputs = std::fs::metadata(&inputs).unwrap().len();
            for length in (whole_inputs.saturating_sub(40)..whole_inputs).chain([0]).filter(|_| whole_inputs > 0) {
                let copy = copied(run.dir());
                let file = |name: &Path| {
                    let path = copy.path().join(name.file_name().unwrap());
                    std::fs::OpenOptions::new().write(true).open(path).unwrap()
                };
                file(&inputs).set_len(length).unwrap();
                // The inputs come first: without them there is no record.
                file(&segment).set_len(torn_from).unwrap();
                match Run::open(copy.path(), RETENTION) {
                    Ok(mut again) => assert!(state(&mut again) == before),
                    // Of earlier rounds, whose records are there: that is no torn end.
                    Err(error) => assert!(length == 0 && error.to_string().contains("missing"), "{error}"),
                }
            }
        });
    }
    assert!(made_again_once, "no round was made again");
}

#[test]
fn without_room_on_the_disk_no_round_happens_and_nothing_is_lost() {
    for words in CASES {
        let mut before = None;
        watched(words, |run, messages| {
            let after = state(run);
            if let Some(before) = before.replace(after.clone())
                && run.rounds() - run.snapshot == 3
            {
                let copy = copied(run.dir());
                crate::log::cut(copy.path(), before.0).unwrap();
                inputs::cut(copy.path(), before.0).unwrap();
                let mut again = Run::open(copy.path(), RETENTION).unwrap();
                for (inputs, log) in
                    [(Some(0), None), (Some(33), None), (None, Some(0)), (None, Some(30)), (None, Some(60))]
                {
                    again.set_room(inputs, log);
                    match again.commit(messages, &BTreeMap::new()) {
                        Err(Error::NoRoom { .. }) => assert!(state(&mut again) == before, "{words}"),
                        // Exact rounds have no inputs.
                        made => {
                            assert!(made.is_ok() && inputs.is_some(), "{words}: {made:?}");
                            return;
                        }
                    }
                }
                again.set_room(None, None);
                again.commit(messages, &BTreeMap::new()).unwrap();
                assert!(state(&mut again) == after, "{words}");
            }
        });
    }
}

/// Snapshots that cannot be written, wholly or in part, stop nothing: they are tried again with every round, and the log goes on.
#[test]
fn without_room_for_snapshots_the_run_goes_on_and_comes_back() {
    for words in CASES {
        let began = std::cell::Cell::new(0);
        watched(words, |run, _| {
            let rounds = run.rounds();
            assert_eq!(
                run.snapshot,
                if rounds < 17 { 0 } else { 17 + (rounds - 17) / 7 * 7 },
                "{words}, round {rounds}"
            );
            let log = run.shelf();
            assert!(
                (0..rounds).all(|round| log.read(round).unwrap().is_some() || rounds > 17),
                "{words}, round {rounds}"
            );
            let copy = copied(run.dir());
            let mut again = Run::open(copy.path(), RETENTION).unwrap();
            assert_eq!(state(run), state(&mut again), "{words}, round {rounds}");
            // Round 7 would have the first. From then on there is room for less than all of it, each time for another part.
            let part = (rounds % 4) * 100;
            frames::WHOLE_ROOM.set((6..16).contains(&rounds).then_some(part));
            began.set(rounds);
            let left = numbered(run.dir(), "snapshot").unwrap().len() + numbered(run.dir(), "inputs").unwrap().len();
            let expected = if rounds < 17 { 2 } else { 4 };
            assert_eq!(left, expected, "{words}: nothing is left of those that failed");
            let drafts = std::fs::read_dir(run.dir()).unwrap().map(|entry| entry.unwrap().file_name());
            assert!(!drafts.into_iter().any(|name| name.to_string_lossy().ends_with(frames::UNFINISHED)), "{words}");
        });
        assert!(began.get() > 17, "{words}: it went on");
    }
}

/// What a server was writing when it died does not stay for ever.
#[test]
fn drafts_of_a_server_that_died_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    drop(Run::create(dir.path(), &config(CASES[0]), &[0.0; D], WORKERS, STEPS, String::new(), RETENTION).unwrap());
    let draft = dir.path().join(format!("snapshot-000000000007.00.safetensors{}", frames::UNFINISHED));
    std::fs::write(&draft, [0; 10]).unwrap();
    Run::open(dir.path(), RETENTION).unwrap();
    assert!(!draft.exists());
}

#[test]
fn what_is_kept_is_bounded() {
    watched(CASES[0], |run, _| {
        let (oldest, rounds) = (run.shelf().oldest(), run.rounds());
        let most = RETENTION.keep + 3 * RETENTION.snapshot_every;
        assert!(rounds - oldest <= most, "{rounds} rounds, and the log goes back to {oldest}");
        assert!(oldest <= rounds.saturating_sub(RETENTION.keep.min(rounds)) || rounds < RETENTION.snapshot_every);
        let files = std::fs::read_dir(run.dir()).unwrap().count();
        assert!(files <= 2 * 3 + 1 + 2 + 4, "{files} files");
    });
}

#[test]
fn two_servers_do_not_share_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let create = || Run::create(dir.path(), &config(CASES[0]), &[0.0; D], WORKERS, STEPS, String::new(), RETENTION);
    let run = create().unwrap();
    let error = Run::open(dir.path(), RETENTION).err().unwrap().to_string();
    assert!(error.contains("another server runs here"), "{error}");
    drop(run);
    assert!(create().err().unwrap().to_string().contains("holds a run already"));
    Run::open(dir.path(), RETENTION).unwrap();
}

#[test]
fn a_server_needs_the_schedule_of_the_learning_rate_and_the_central_form() {
    let plain = Config::new(thinwire::Name::ADAM);
    assert!(served(&plain).unwrap_err().to_string().contains("learning_rate"));
    let sharded = Config {
        learning_rate: Some(LearningRate::constant(0.1)),
        topology: Some(thinwire::options::Topology::Sharded),
        ..plain
    };
    assert!(served(&sharded).unwrap_err().to_string().contains("central"));
}
