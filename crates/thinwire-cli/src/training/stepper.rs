//! What differs between workers of a group and workers of a server. The loop asks; it does not know who answers.

use anyhow::Result;
use thinwire::Traffic;
use thinwire_models::{Score, Share};
use thinwire_report::Step;

/// Who a worker takes its steps with.
pub trait Stepper {
    /// Steps taken.
    fn steps(&self) -> u64;

    fn is_done(&self) -> bool;

    /// The learning rate of the next step.
    fn lr(&self) -> f32;

    fn traffic(&self) -> Traffic;

    /// Gradients of this session that were far longer than those before them: of all workers, if it hears of theirs.
    fn outliers(&self) -> u64 {
        self.traffic().outliers
    }

    /// The optimizer's step; after the last one all replicas are equal. False: the user wants to stop, and no step was taken.
    fn step(&mut self, loss: f32, params: &mut [f32], grad: &[f32]) -> Result<bool>;

    /// Everyone's `note`, in rank order. All must call it at the same step.
    fn gather(&mut self, note: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Hands over a step. `meets`: an evaluation, a checkpoint or the end comes next, for which all need to know the same.
    fn share(&mut self, step: Step, meets: bool) -> Result<Shared>;

    /// Which part of the held-out data this worker scores.
    fn scores(&self) -> Share;

    /// The model that all workers have in common now, if it is not the parameters: what an evaluation looks at.
    fn common(&mut self) -> Result<Option<Vec<f32>>>;

    /// The score of all parts; None if somebody wants to stop, and has no part.
    fn sum(&mut self, part: Option<Score>) -> Result<Option<Score>>;

    fn save(&mut self, params: &[f32]) -> Result<()>;

    /// What to say when the user stops the run, if that was not said yet.
    fn stops(&self) -> Option<&'static str> {
        None
    }
}

/// What is known once a step was handed over.
#[derive(Default)]
pub struct Shared {
    /// Steps that can be written down now, this one or several.
    pub steps: Vec<Step>,
    /// Whether somebody wants to stop.
    pub stop: bool,
    /// What people should know.
    pub warnings: Vec<String>,
}
