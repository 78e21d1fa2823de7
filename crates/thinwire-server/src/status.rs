//! What a server tells people and their tools: a page, the same as JSON, metrics for Prometheus, and whether it is well.

use crate::hall::Hall;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub fn routes(hall: Arc<Hall>) -> Router {
    Router::new()
        .route("/", get(|| async { Html(include_str!("page.html")) }))
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
    pub seconds_waiting: f64,
    pub seconds_making: f64,
    pub seconds_up: f64,
    /// Why no rounds are made, if none are.
    pub trouble: Option<String>,
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
        });
        let members = members.collect();
        let (arrived, step) = (table.arrived(), table.step());
        drop(table);
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
            seconds_waiting: count(&stats.waiting) as f64 / 1e6,
            seconds_making: count(&stats.making) as f64 / 1e6,
            seconds_up: hall.began.elapsed().as_secs_f64(),
            trouble: hall.trouble(),
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
        put("healthy", "gauge", "1, or 0 while no rounds can be made.", f64::from(u8::from(self.trouble.is_none())));
        if let Some((_, loss)) = self.losses.last() {
            put("loss", "gauge", "Mean of the losses that workers reported last.", *loss);
        }
        put("rounds_total", "counter", "Rounds made since the server started.", self.rounds_served as f64);
        put("received_bytes_total", "counter", "Bytes of workers' messages.", self.bytes_received as f64);
        put("sent_bytes_total", "counter", "Bytes of rounds and snapshots to workers.", self.bytes_sent as f64);
        put("left_out_total", "counter", "Workers that a round did not wait for any longer.", self.left_out as f64);
        put("refused_total", "counter", "Connections, requests and messages that were refused.", self.refused as f64);
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

async fn json(State(hall): State<Arc<Hall>>) -> Response {
    let text = serde_json::to_string(&Status::of(&hall)).expect("plain data");
    ([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], text).into_response()
}

async fn metrics(State(hall): State<Arc<Hall>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], Status::of(&hall).metrics()).into_response()
}

async fn health(State(hall): State<Arc<Hall>>) -> Response {
    match hall.trouble() {
        None => "ok\n".into_response(),
        Some(trouble) => (StatusCode::SERVICE_UNAVAILABLE, format!("no rounds are made: {trouble}\n")).into_response(),
    }
}
