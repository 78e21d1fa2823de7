//! A message that is far too long does not ruin a run, and what `/healthz` says when no rounds are made.

use super::*;
use crate::run::tests::{RETENTION, STEPS, WORKERS, config, copied, workers};
use std::io::{Read, Write};
use std::net::TcpStream;

/// The round in which worker 1 sends an outlier, not the last before a snapshot, and by how much it is too long.
const AT: u64 = 22;
const TOO_LONG: f32 = 1e4;

const RULES: Rules =
    Rules { quorum: 1, workers: WORKERS, deadline: Duration::ZERO, max_members: WORKERS, per_identity: WORKERS };

/// What became of the outlier.
struct Outcome {
    /// Of the message as it was sent, and as the round counts it.
    sent: (f64, u64),
    counted: Option<f64>,
    /// The digest that the round tells.
    told: u64,
    limit: Option<f64>,
}

/// Runs to the end, with one outlier; `watch` sees the run after each round.
fn run_with_outlier(words: &str, mut watch: impl FnMut(&mut Run)) -> (Hall, Run, Outcome) {
    let (config, dir) = (config(words), tempfile::tempdir().unwrap());
    let mut run = Run::create(dir.path(), &config, &vec![1.0; 150], WORKERS, STEPS, String::new(), RETENTION).unwrap();
    let hall = Hall::new(&run, RULES).unwrap();
    let lines = workers(&config);
    let seats = ["a", "b", "c"].map(|name| hall.table().join(name, "here", Instant::now()).unwrap());
    let mut outcome = None;
    while let Next::Round(expected) = run.next().clone() {
        let round = run.rounds();
        for ((slot, session), (up, _)) in seats.iter().zip(&lines) {
            let mut message = up.recv().unwrap();
            if (round, *slot) == (AT, 1) {
                message = hall.checker.shortened(&expected, &message, TOO_LONG, 1).unwrap();
            }
            let mut checked = Checked::of(&hall, &expected, message, *slot).unwrap();
            let (table, message) = (&mut hall.table(), std::mem::take(&mut checked.message));
            if (round, *slot) == (AT, 1) {
                let counted = hall.checker.check(&expected, &message, 1).unwrap();
                let (norm, limit) = (checked.norm.unwrap(), checked.outlier.map(|found| found.limit));
                outcome = Some(Outcome { sent: (norm, checked.digest), counted, told: 0, limit });
            }
            table.arrive(*slot, *session, round, message, None, Instant::now()).unwrap();
            hall.came(table, *slot, &checked);
        }
        let closed = hall.close(&mut hall.table());
        let record = run.commit(&closed.messages, &closed.digests).unwrap();
        if round == AT {
            outcome.as_mut().unwrap().told = record.counted[1].digest;
        }
        lines.iter().for_each(|(_, down)| down.send(record.message.to_vec()).unwrap());
        hall.publish(record, &run);
        watch(&mut run);
    }
    (hall, run, outcome.unwrap())
}

const CASES: [&str; 3] =
    ["name = \"adam\"", "name = \"efficient-adam\"\ncodec = \"sign\"", "name = \"efficient-adam\""];

#[test]
fn an_outlier_is_clipped_and_its_worker_knows_that_it_was_counted() {
    for words in CASES {
        let (hall, _, outcome) = run_with_outlier(words, |_| {});
        let (limit, counted) = (outcome.limit.unwrap(), outcome.counted.unwrap());
        assert!(outcome.sent.0 > limit, "{words}");
        assert!((counted / limit - 1.0).abs() < 1e-2, "{words}: {counted} with the limit {limit}");
        assert_eq!(outcome.told, outcome.sent.1, "{words}: the digest is of what was sent");
        let status = crate::status::Status::of(&hall);
        let each = status.members.iter().map(|member| member.outliers).collect::<Vec<_>>();
        assert_eq!((status.outliers, each), (1, vec![0, 1, 0]), "{words}");
        assert!(status.metrics().contains("thinwire_outliers_total 1"));
    }
}

#[test]
fn an_outlier_is_left_out_by_skip_and_counts_by_off() {
    for words in CASES {
        let (hall, _, outcome) = run_with_outlier(&format!("{words}\noutlier = \"skip\""), |_| {});
        assert_eq!((outcome.counted, outcome.told), (None, outcome.sent.1), "{words}");
        assert_eq!(hall.stats.outliers.load(Ordering::Relaxed), 1);
        let (hall, _, outcome) = run_with_outlier(&format!("{words}\noutlier = \"off\""), |_| {});
        assert_eq!((outcome.counted, outcome.limit), (Some(outcome.sent.0), None), "{words}");
        assert_eq!(hall.stats.outliers.load(Ordering::Relaxed), 0);
    }
}

/// The issue's own scale: finite, and its square is not.
#[test]
fn a_value_whose_square_overflows_is_refused() {
    for words in CASES {
        let (config, dir) = (config(words), tempfile::tempdir().unwrap());
        let run = Run::create(dir.path(), &config, &vec![1.0; 150], WORKERS, STEPS, String::new(), RETENTION).unwrap();
        let (hall, lines) = (Hall::new(&run, RULES).unwrap(), workers(&config));
        let Next::Round(expected) = run.next() else { panic!("it has begun") };
        let message = lines[0].0.recv().unwrap();
        let ruinous = hall.checker.shortened(expected, &message, 3e32, 0).unwrap();
        let Err(error) = Checked::of(&hall, expected, ruinous, 0) else { panic!("{words}: it was taken") };
        assert!(error.to_string().contains("is the most"), "{words}: {error}");
    }
}

#[test]
fn a_server_that_dies_makes_the_round_of_an_outlier_again() {
    let mut again = 0;
    let (.., outcome) = run_with_outlier(CASES[1], |run| {
        if run.rounds() != AT + 1 {
            return;
        }
        let (copy, before) = (copied(run.dir()), run.shelf().read(AT).unwrap().unwrap());
        let segment = crate::log::numbered(copy.path(), "log").unwrap().pop().unwrap().1;
        let length = std::fs::metadata(&segment).unwrap().len();
        std::fs::OpenOptions::new().write(true).open(segment).unwrap().set_len(length - 1).unwrap();
        let back = Run::open(copy.path(), RETENTION).unwrap();
        assert_eq!((back.rounds(), back.next()), (run.rounds(), run.next()));
        assert_eq!(back.shelf().read(AT).unwrap().unwrap(), before, "with the digest of what was sent");
        again += 1;
    });
    assert_eq!((again, outcome.told), (1, outcome.sent.1));
}

#[test]
fn the_norms_come_back_with_the_snapshot() {
    let mut compared = 0;
    run_with_outlier(CASES[1], |run| {
        if run.rounds() < 18 {
            return;
        }
        run.snapshot_now().unwrap();
        let copy = copied(run.dir());
        let back = Run::open(copy.path(), RETENTION).unwrap();
        let memory = |run: &Run| lock(&run.judge()).memory();
        assert_eq!(memory(run), memory(&back), "after {} rounds", run.rounds());
        let limits = [run, &back].map(|run| lock(&run.judge()).look(1e30, true).map(|found| found.limit));
        assert!(limits[0].is_some() && limits[0] == limits[1]);
        compared += 1;
    });
    assert!(compared > 5);
}

fn health(hall: &Arc<Hall>) -> String {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let routes = crate::status::routes(Arc::clone(hall));
    runtime.spawn(async move { axum::serve(listener, routes).await });
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn healthz_answers_503_while_no_rounds_can_be_made_and_tells_when_nothing_moves() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::create(dir.path(), &config(CASES[0]), &[1.0; 10], WORKERS, STEPS, String::new(), RETENTION).unwrap();
    let hall = Arc::new(Hall::new(&run, RULES).unwrap());
    let text = health(&hall);
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("ok\n"), "{text}");
    *lock(&hall.moved) = Instant::now().checked_sub(Duration::from_secs(61)).unwrap();
    let text = health(&hall);
    assert!(
        text.starts_with("HTTP/1.1 200") && text.contains("ok, but no round for 61 s: no worker is here"),
        "{text}"
    );
    *lock(&hall.trouble) = Some("there is no room on the disk".to_owned());
    let text = health(&hall);
    assert!(text.starts_with("HTTP/1.1 503"), "{text}");
    assert!(text.ends_with("no rounds are made: there is no room on the disk\n"), "{text}");
    *lock(&hall.trouble) = None;
    *lock(&hall.moved) = Instant::now();
    assert!(health(&hall).starts_with("HTTP/1.1 200"), "it is well again");
}
