//! Where a run is, in memory: E, the replica, and whom rounds have counted. It starts from a snapshot and goes on round by round, from
//! the log when a server comes back, and from what workers send afterwards.

use crate::error::{Error, Result};
use crate::frames::Place;
use crate::inputs::{self, make_again, replay};
use crate::kept::Kept;
use crate::log::{Record, Shelf, back_to};
use crate::replica::{From, Next, Replica};
use crate::run::Spec;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use thinwire::inside::exchange::Owner;

pub struct State {
    pub owner: Owner,
    pub replica: Replica,
    pub next: Next,
    /// One more than the last round that counted each slot.
    pub counted: BTreeMap<u32, u64>,
    /// Rounds so far.
    pub rounds: u64,
}

impl State {
    pub fn start(dir: &Path, spec: &Spec, kept: &Kept) -> Result<State> {
        let mut owner = spec.config.decide()?.owner(spec.parameters)?.of_workers(spec.workers);
        if kept.residue.len() != owner.residual().len() {
            return Err(Error::damaged(dir, "its residue has another length than its parameters"));
        }
        owner.residual().copy_from_slice(&kept.residue);
        let from = From::Snapshot(&kept.state);
        let mut replica = Replica::start(&spec.config, spec.parameters, from, spec.workers, spec.steps)?;
        let next = replica.what_next()?;
        Ok(State { owner, replica, next, counted: kept.counted.clone(), rounds: kept.rounds })
    }

    /// Goes on to `until` rounds by the log, with `files` of inputs.
    pub fn replay(&mut self, dir: &Path, log: &Shelf, files: &[(PathBuf, Vec<Place>)], until: u64) -> Result<()> {
        for round in self.rounds..until {
            let record =
                log.read(round)?.ok_or_else(|| Error::damaged(dir, format!("round {round} is not in the log")))?;
            let Next::Round(expected) = &self.next else {
                return Err(Error::damaged(dir, format!("round {round} comes after the end of the run")));
            };
            if self.owner.is_coarse(expected)? {
                let entry = inputs::entry(files, round)?.ok_or_else(|| inputs::missing(dir, round))?;
                let replayed = replay(&mut self.owner, expected, &record, &entry);
                replayed.map_err(|problem| Error::damaged(dir, back_to(&problem, round)))?;
            }
            self.hear(&record)?;
        }
        Ok(())
    }

    /// The next round, if the inputs have it: its record in the log was lost, or never written.
    pub fn make_again(&mut self, files: &[(PathBuf, Vec<Place>)]) -> Result<Option<Record>> {
        let Next::Round(expected) = &self.next else { return Ok(None) };
        if !self.owner.is_coarse(expected)? {
            return Ok(None);
        }
        let Some(entry) = inputs::entry(files, self.rounds)? else { return Ok(None) };
        let Some(record) = make_again(&mut self.owner, expected, self.rounds, &entry) else { return Ok(None) };
        self.owner.keep(expected)?;
        Ok(Some(record))
    }

    /// A round whose E is kept has happened.
    pub fn hear(&mut self, record: &Record) -> Result<()> {
        self.hear_and_take(record, false).map(|_| ())
    }

    /// The same; a snapshot, if one is wanted.
    pub fn hear_and_take(&mut self, record: &Record, wanted: bool) -> Result<Option<Vec<u8>>> {
        for worker in &record.counted {
            self.counted.insert(worker.slot, record.round + 1);
        }
        self.rounds += 1;
        let taken = self.replica.hear(record.message.to_vec(), wanted)?;
        self.next = self.replica.what_next()?;
        Ok(taken)
    }
}
