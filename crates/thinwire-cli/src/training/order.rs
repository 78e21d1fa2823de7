//! Which batch a worker takes next: at random, or by CD-GraB ([`CoordinatedOrder`]).
//!
//! A random order is a function of the seed and the step, and there is nothing to save. A coordinated one comes from gradients: workers
//! exchange sketches of theirs after every second batch, and each keeps its order in a file beside the checkpoint. The file's name has
//! the step, and it is there before the checkpoint's manifest: so the two always fit, whenever the run is killed.

use super::stepper::Stepper;
use crate::files;
use crate::job::Job;
use crate::screen::say;
use crate::settings::Order;
use anyhow::{Context, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use thinwire_models::{CoordinatedOrder, OrderState, Share, Sketch};

/// Sums of a sketch: two kilobytes for two batches.
const SUMS: usize = 256;

/// A worker's batches.
pub struct Batches(Option<Coordinated>);

struct Coordinated {
    order: CoordinatedOrder,
    sketch: Sketch,
    /// Of the gradient of this step before its last batch.
    before: Vec<f64>,
    /// Where the files are, and their names without the step.
    folder: PathBuf,
    prefix: String,
}

impl Batches {
    /// A function of the seed and the step.
    #[cfg(feature = "server")]
    pub fn random() -> Batches {
        Batches(None)
    }

    /// As the job has it. A run that goes on says its step, and whether its workers are others than before.
    pub fn new(job: &Job, share: Share, folder: PathBuf, resumed: Option<(u64, bool)>) -> Result<Batches> {
        if job.spec.order == Order::Random {
            return Ok(Batches(None));
        }
        let batches = job.task.get().batches(share.workers, job.spec.batch);
        let prefix = format!("order-{}-", share.rank);
        let order = match resumed {
            None => CoordinatedOrder::new(batches, share, job.spec.seed),
            Some((step, regrouped)) => {
                let found = read(&path(&folder, &prefix, step), batches, share);
                match found {
                    Err(_) if regrouped => {
                        if share.rank == 0 {
                            say!("the order of the batches begins anew, because the workers have other batches now");
                        }
                        CoordinatedOrder::new(batches, share, job.spec.seed.wrapping_add(step))
                    }
                    found => found?,
                }
            }
        };
        let sketch = Sketch::new(job.spec.seed, SUMS);
        Ok(Batches(Some(Coordinated { order, sketch, before: vec![0.0; SUMS], folder, prefix })))
    }

    /// The batch to learn from; `turn` is how many there were before it.
    pub fn next(&self, turn: u64) -> u64 {
        self.0.as_ref().map_or(turn, |coordinated| coordinated.order.batch())
    }

    /// Takes note of that batch's gradient: what `gradient` holds, less what it held before, if the batch is not the first of its step.
    pub fn note(&mut self, first: bool, gradient: &[f32], stepper: &mut dyn Stepper) -> Result<()> {
        let Some(Coordinated { order, sketch, before, .. }) = &mut self.0 else { return Ok(()) };
        if first {
            before.fill(0.0);
        }
        let sum = sketch.of(gradient);
        let own = sum.iter().zip(&*before).map(|(sum, before)| sum - before).collect::<Vec<_>>();
        *before = sum;
        if let Some(difference) = order.note(&own) {
            let bytes = difference.iter().flat_map(|sum| sum.to_le_bytes()).collect::<Vec<_>>();
            let notes = stepper.gather(&bytes)?;
            let sums = |note: &Vec<u8>| note.as_chunks().0.iter().map(|sum| f64::from_le_bytes(*sum)).collect();
            order.place(&notes.iter().map(sums).collect::<Vec<Vec<f64>>>());
        }
        Ok(())
    }

    /// Writes the order as it is after `step` steps.
    pub fn write(&self, step: u64) -> Result<()> {
        let Some(Coordinated { order, folder, prefix, .. }) = &self.0 else { return Ok(()) };
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        files::write(&path(folder, prefix, step), &serde_json::to_string(&Saved::of(order.state()))?)
    }

    /// Removes what was written at other steps.
    pub fn forget_others(&self, step: u64) -> Result<()> {
        let Some(Coordinated { folder, prefix, .. }) = &self.0 else { return Ok(()) };
        let kept = path(folder, prefix, step);
        for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
            let found = entry?.path();
            let name = found.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(prefix) && found != kept {
                std::fs::remove_file(&found).with_context(|| found.display().to_string())?;
            }
        }
        Ok(())
    }
}

fn path(folder: &Path, prefix: &str, step: u64) -> PathBuf {
    folder.join(format!("{prefix}{step}.json"))
}

fn read(path: &Path, batches: u64, share: Share) -> Result<CoordinatedOrder> {
    let named = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(named)?;
    let saved = serde_json::from_str::<Saved>(&text).with_context(named)?;
    ensure!(
        [&saved.first, &saved.sum].iter().all(|sketch| sketch.is_empty() || sketch.len() == SUMS),
        "{}: expected sketches of {SUMS} sums",
        named()
    );
    CoordinatedOrder::resume(batches, share, saved.state())
        .ok_or_else(|| anyhow!("{}: expected an order of {batches} batches", named()))
}

/// An order in a file. Sums as their bits: they must come back as they were, whatever they are.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    epoch: u64,
    order: Vec<u64>,
    seen: usize,
    next: Vec<u64>,
    first: Vec<u64>,
    sum: Vec<u64>,
}

impl Saved {
    fn of(state: &OrderState) -> Saved {
        let bits = |sums: &[f64]| sums.iter().map(|sum| sum.to_bits()).collect();
        let OrderState { epoch, order, seen, next, first, sum } = state.clone();
        Saved { epoch, order, seen, next, first: bits(&first), sum: bits(&sum) }
    }

    fn state(self) -> OrderState {
        let sums = |bits: Vec<u64>| bits.into_iter().map(f64::from_bits).collect();
        let Saved { epoch, order, seen, next, first, sum } = self;
        OrderState { epoch, order, seen, next, first: sums(first), sum: sums(sum) }
    }
}
