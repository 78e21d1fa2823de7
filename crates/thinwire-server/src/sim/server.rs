//! The server of the simulation: the real run, hall and service, in front of which stands no network but the world's.

use super::life::Time;
use super::setup::Setup;
use crate::Result;
use crate::hall::{Closed, Hall};
use crate::run::Run;
use crate::service::{Following, Service};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A life, and which of its connections.
pub type Connection = (usize, u64);

/// Rounds on their way to one worker.
pub struct Stream {
    pub following: Following,
    pub next: u64,
    pub under_way: usize,
}

pub struct Server {
    pub streams: BTreeMap<Connection, Stream>,
    /// The round that is being made.
    pub making: Option<Closed>,
    pub service: Service,
    pub hall: Arc<Hall>,
    pub run: Run,
}

impl Server {
    /// Starts the run in `folder`, or comes back to it.
    pub fn boot(folder: &Path, setup: &Setup, time: &Time) -> Result<Server> {
        let run = match Run::exists(folder) {
            true => Run::open(folder, setup.retention)?,
            false => {
                let (initial, workers) = (setup.initial(), setup.rules.workers);
                let job = String::new();
                Run::create(folder, &setup.config, &initial, workers, setup.steps, job, setup.retention)?
            }
        };
        let time = time.clone();
        let hall = Arc::new(Hall::with_clock(&run, setup.rules, Arc::new(move || time.instant()))?);
        let service = Service::new(Arc::clone(&hall));
        Ok(Server { streams: BTreeMap::new(), making: None, service, hall, run })
    }
}
