//! What a server tells people and their tools: a page, the same as JSON, metrics for Prometheus, and whether it is well.

use crate::hall::Hall;
use crate::table::Rules;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// So long after three deadlines a run that makes no rounds is said to stand still.
const STILL: Duration = Duration::from_secs(60);

pub fn routes(hall: Arc<Hall>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/status.json", get(json))
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .with_state(hall)
}

/// A run as its server sees it.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub run: String,
    pub optimizer: String,
    pub parameters: usize,
    pub workers: usize,
    pub steps: u64,
    /// Rounds that have happened, since the run began.
    pub rounds: u64,
    /// The step of the open round.
    pub step: u64,
    /// Messages that wait for the open round to be closed.
    pub arrived: usize,
    pub members: Vec<Member>,
    /// Since this server started.
    pub rounds_served: u64,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    pub left_out: u64,
    pub refused: u64,
    /// Messages that were far longer than those before them, and were clipped or left out.
    pub outliers: u64,
    pub seconds_waiting: f64,
    pub seconds_making: f64,
    pub seconds_up: f64,
    /// Why no rounds are made, if none are.
    pub trouble: Option<String>,
    /// Since the last round, or the start of the server.
    pub seconds_idle: f64,
    /// Why nothing moves, if nothing has for a long time.
    pub stalled: Option<String>,
    /// Of the final parameters, when the run has come to its end.
    pub digest: Option<String>,
    /// Rounds, and the mean loss that the workers reported.
    pub losses: Vec<(u64, f64)>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Member {
    pub name: String,
    pub connected: bool,
    pub loss: Option<f64>,
    pub rounds: u64,
    pub left_out: u64,
    pub bytes_received: u64,
    pub outliers: u64,
}

impl Status {
    pub fn of(hall: &Hall) -> Status {
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (stats, spec, table) = (&hall.stats, &hall.spec, hall.table());
        let members = table.seats().iter().map(|seat| Member {
            name: seat.name.clone(),
            connected: seat.is_connected(),
            loss: seat.loss,
            rounds: seat.rounds,
            left_out: seat.left_out,
            bytes_received: seat.bytes_received,
            outliers: seat.outliers,
        });
        let members = members.collect::<Vec<_>>();
        let (arrived, step) = (table.arrived(), table.step());
        drop(table);
        let idle = hall.idle(Instant::now());
        let here = members.iter().filter(|member: &&Member| member.connected).count();
        Status {
            run: spec.id.clone(),
            optimizer: spec.config.name.to_string(),
            parameters: spec.parameters,
            workers: spec.workers,
            steps: spec.steps,
            rounds: *hall.rounds.borrow(),
            step: if hall.end().is_some() { spec.steps } else { step },
            arrived,
            members,
            rounds_served: count(&stats.rounds),
            bytes_received: count(&stats.bytes_received),
            bytes_sent: count(&stats.bytes_sent),
            left_out: count(&stats.left_out),
            refused: count(&stats.refused),
            outliers: count(&stats.outliers),
            seconds_waiting: count(&stats.waiting) as f64 / 1e6,
            seconds_making: count(&stats.making) as f64 / 1e6,
            seconds_up: hall.began.elapsed().as_secs_f64(),
            trouble: hall.trouble(),
            seconds_idle: idle.as_secs_f64(),
            stalled: stalled(idle, &hall.rules, here, arrived).filter(|_| hall.end().is_none()),
            digest: hall.end().map(|digest| format!("{digest:016x}")),
            losses: hall.curve(),
        }
    }

    /// The text that Prometheus reads.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        let mut put = |name: &str, kind: &str, help: &str, value: f64| {
            let _ =
                writeln!(text, "# HELP thinwire_{name} {help}\n# TYPE thinwire_{name} {kind}\nthinwire_{name} {value}");
        };
        let connected = self.members.iter().filter(|member| member.connected).count();
        put("round", "gauge", "Rounds of the run so far.", self.rounds as f64);
        put("step", "gauge", "Step of the open round.", self.step as f64);
        put("members", "gauge", "Workers that are connected.", connected as f64);
        put("members_known", "gauge", "Workers that have a seat.", self.members.len() as f64);
        put("messages_waiting", "gauge", "Messages of the open round.", self.arrived as f64);
        put("idle_seconds", "gauge", "Seconds since the last round.", self.seconds_idle);
        put("healthy", "gauge", "1, or 0 while no rounds can be made.", f64::from(u8::from(self.trouble.is_none())));
        if let Some((_, loss)) = self.losses.last() {
            put("loss", "gauge", "Mean of the losses that workers reported last.", *loss);
        }
        put("rounds_total", "counter", "Rounds made since the server started.", self.rounds_served as f64);
        put("received_bytes_total", "counter", "Bytes of workers' messages.", self.bytes_received as f64);
        put("sent_bytes_total", "counter", "Bytes of rounds and snapshots to workers.", self.bytes_sent as f64);
        put("left_out_total", "counter", "Workers that a round did not wait for any longer.", self.left_out as f64);
        put("refused_total", "counter", "Connections, requests and messages that were refused.", self.refused as f64);
        put("outliers_total", "counter", "Messages far longer than those before them.", self.outliers as f64);
        let phases = [("wait", self.seconds_waiting), ("make", self.seconds_making)];
        let _ = writeln!(
            text,
            "# HELP thinwire_seconds_total Seconds by phase: waiting from a round's first message to its close, making its mean and \
             writing it.\n# TYPE thinwire_seconds_total counter"
        );
        for (phase, seconds) in phases {
            let _ = writeln!(text, "thinwire_seconds_total{{phase=\"{phase}\"}} {seconds}");
        }
        text
    }
}

/// The page, whose script and style are the only ones that a browser runs.
async fn page() -> Response {
    let nonce = crate::local::new_token();
    let text = include_str!("page.html").replace("<script>", &format!("<script nonce=\"{nonce}\">"));
    let text = text.replace("<style>", &format!("<style nonce=\"{nonce}\">"));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(text)).into_response()
}

/// Why nothing moves, if nothing does: no round for as long as `idle`, in a run that has not ended.
fn stalled(idle: Duration, rules: &Rules, here: usize, arrived: usize) -> Option<String> {
    let seconds = idle.as_secs();
    if idle <= 3 * rules.deadline + STILL {
        return None;
    }
    let why = match (here, arrived < rules.quorum) {
        (0, _) => "no worker is here".to_owned(),
        (_, true) => format!("{here} workers are here, {arrived} have sent, and a round needs {}", rules.quorum),
        (_, false) => "a round is being made".to_owned(),
    };
    Some(format!("no round for {seconds} s: {why}"))
}

async fn json(State(hall): State<Arc<Hall>>) -> Response {
    let text = serde_json::to_string(&Status::of(&hall)).expect("plain data");
    ([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], text).into_response()
}

async fn metrics(State(hall): State<Arc<Hall>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], Status::of(&hall).metrics()).into_response()
}

async fn health(State(hall): State<Arc<Hall>>) -> Response {
    match hall.trouble() {
        // A server that waits for workers is well: starting it again would not bring them.
        None => match Status::of(&hall).stalled {
            Some(stalled) => format!("ok, but {stalled}\n").into_response(),
            None => "ok\n".into_response(),
        },
        Some(trouble) => (StatusCode::SERVICE_UNAVAILABLE, format!("no rounds are made: {trouble}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_stands_still_is_told_of() {
        let deadline = Duration::from_secs(30);
        let rules = Rules { quorum: 2, workers: 2, deadline, max_members: 2, per_identity: 2 };
        let after = |seconds, here, arrived| stalled(Duration::from_secs(seconds), &rules, here, arrived);
        assert_eq!(after(150, 1, 1), None);
        assert_eq!(
            after(151, 1, 1).unwrap(),
            "no round for 151 s: 1 workers are here, 1 have sent, and a round needs 2"
        );
        assert_eq!(after(500, 0, 0).unwrap(), "no round for 500 s: no worker is here");
    }
}
