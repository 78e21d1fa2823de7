//! Saving: every worker writes its part, all compare notes, and only then is the old checkpoint gone.

use super::Worker;
use super::agree::words;
use crate::checkpoint::{self, Manifest};
use crate::error::{Error, Result};
use crate::exchange::header::Operation;
use crate::kernel::reduce;
use crate::state::{Entry, Slot};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;

impl Worker {
    /// Saves this worker's part of a checkpoint to `dir`; all workers must save at the same step.
    ///
    /// When one cannot, all return its error, the checkpoint that was there stays, and the run may go on.
    pub fn save(&mut self, dir: &Path, params: &[f32]) -> Result<()> {
        self.check_length("the parameters", params.len())?;
        if self.stopped {
            return Err(Error::Stopped); // what it holds is half a step, and must replace nothing
        }
        self.arrive()?;
        let (rank, hosts, step) = (self.rank(), self.hosts.clone(), self.step);
        let starts_finite = self.starts_finite;
        // A device that fails here is told to the others with the rest.
        let mut write = || {
            let mut params = self.exchange.machine.copy_params(params)?;
            self.exchange.machine.close()?;
            let entries = self.entries(&mut params)?;
            check_finite(&entries, rank, step, starts_finite)?;
            checkpoint::write(dir, step, rank, &hosts, &entries)
        };
        let written = write();
        self.exchange.machine.was_only_read();
        let files = self.compare_notes(dir, written)?;
        let manifest = Manifest {
            format: checkpoint::FORMAT.to_owned(),
            version: checkpoint::VERSION,
            step,
            parameters: self.exchange.shape().values,
            config: words(&self.config),
            files,
        };
        let named = checkpoint::write_manifest(dir, rank, &manifest);
        self.compare_notes(dir, named)?; // nobody removes an old file before everybody's manifest names the new ones
        checkpoint::remove_older(dir, rank, &manifest)
    }

    /// What every worker made of its part of a save; the first that failed is everyone's error.
    fn compare_notes<T>(&mut self, dir: &Path, mine: Result<T>) -> Result<Vec<T>>
    where
        T: Serialize + DeserializeOwned,
    {
        let note = serde_json::to_vec(&mine.map_err(|error| error.to_string())).expect("plain data");
        let step = self.step;
        let notes = self.guarded(|worker| worker.exchange.gather(Operation::Saved, step, &note))?;
        let read = |(worker, note): (usize, &Vec<u8>)| {
            let failed = |problem: String| Error::checkpoint(dir, format!("worker {worker}: {problem}"));
            let note = serde_json::from_slice::<Result<T, String>>(note);
            note.map_err(|error| failed(error.to_string()))?.map_err(failed)
        };
        notes.iter().enumerate().map(read).collect()
    }
}

/// A state with infinite or NaN values replaces no checkpoint.
fn check_finite(entries: &[Entry<'_>], worker: usize, step: u64, starts_finite: bool) -> Result<()> {
    let bad = entries.iter().find(|entry| match &entry.slot {
        Slot::Floats(values) => (starts_finite || entry.name != "params") && !reduce::all_finite(values),
        _ => false,
    });
    bad.map_or(Ok(()), |entry| Err(Error::Diverged { worker, step, vector: entry.name }))
}
