//! The tasks: a network, its data, and what one worker does with its share of them.

pub mod bert;
pub mod bert_classifier;
pub mod gpt;
pub mod images;

use crate::error::{Error, Result};
use crate::tensors::Tensors;
use crate::text::Corpus;
use std::ops::ControlFlow;

/// Which worker of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub rank: usize,
    pub workers: usize,
}

/// A network and its data; one for all workers of a process.
pub trait Task: Send + Sync {
    fn tensors(&self) -> &Tensors;

    /// The parameters that training starts from; the same for the same seed.
    fn initial(&self, seed: u64) -> Vec<f32> {
        self.tensors().initial(seed)
    }

    /// What throughput is counted in: "tokens", "images" or "sentences".
    fn unit(&self) -> &'static str;

    /// How many of them a micro-batch of `batch` examples holds.
    fn units(&self, batch: usize) -> usize;

    /// How many micro-batches of `batch` examples each of `workers` workers learns from when they go once through the data; at least 1.
    fn batches(&self, workers: usize, batch: usize) -> u64;

    /// One worker's part, for micro-batches of `batch` examples.
    fn learner(&self, share: Share, batch: usize, seed: u64) -> Box<dyn Learner + '_>;
}

/// One worker's part of a task: its activations, allocated once, and its share of the data.
pub trait Learner: Send {
    /// Adds `weight` times the gradient of the mean loss of micro-batch `index` to `grad`; returns that mean loss.
    ///
    /// Which examples those are is a pure function of the seed, the share and `index`.
    fn learn(&mut self, params: &[f32], index: u64, weight: f32, grad: &mut [f32]) -> f32;

    /// Scores `params` on this worker's part of the held-out data: of `examples` of them, evenly spread, or of all when
    /// there are no more. The parts of all workers together are all of it.
    ///
    /// `watch` is told after every few how many are done, and of how many; if it breaks, there is no score.
    fn evaluate_watched(&mut self, params: &[f32], examples: usize, watch: &mut Watch<'_>) -> Option<Score>;

    /// The same, watched by nobody.
    fn evaluate(&mut self, params: &[f32], examples: usize) -> Score {
        self.evaluate_watched(params, examples, &mut |_, _| ControlFlow::Continue(())).unwrap_or_default()
    }
}

/// Who watches an evaluation: takes how many examples are done, and of how many.
pub type Watch<'a> = dyn FnMut(usize, usize) -> ControlFlow<()> + 'a;

/// Micro-batches of each worker that `examples` make; at least one.
fn batches(examples: usize, workers: usize, batch: usize) -> u64 {
    (examples / workers / batch).max(1) as u64
}

/// This worker's part of `wanted` numbers spread evenly over 0..`there`.
fn spread(there: usize, wanted: usize, share: Share) -> impl Iterator<Item = usize> {
    let wanted = wanted.min(there);
    let Share { rank, workers } = share;
    (rank * wanted / workers..(rank + 1) * wanted / workers).map(move |i| i * there / wanted)
}

/// Whether both texts have the `needed` tokens of a window.
fn fits(corpus: &Corpus, context: usize, needed: usize) -> Result<()> {
    for (name, text) in [("training", &corpus.train), ("held-out", &corpus.held_out)] {
        if text.len() < needed {
            let problem = format!("the {name} text has {} tokens, and a window needs {needed}", text.len());
            return Err(Error::config("context", context, problem));
        }
    }
    Ok(())
}

/// What an evaluation found; parts add up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// Sum of the losses.
    pub loss: f64,
    /// Of how many predictions.
    pub count: u64,
    /// For classification: how often class `row` was taken for class `column`, row by row. Empty otherwise.
    pub confusion: Vec<u64>,
}

impl Score {
    pub fn add(&mut self, other: &Score) {
        self.loss += other.loss;
        self.count += other.count;
        if self.confusion.is_empty() {
            self.confusion = vec![0; other.confusion.len()];
        }
        for (mine, theirs) in self.confusion.iter_mut().zip(&other.confusion) {
            *mine += theirs;
        }
    }

    pub fn mean_loss(&self) -> f64 {
        self.loss / self.count as f64
    }

    fn classes(&self) -> usize {
        self.confusion.len().isqrt()
    }

    /// The part of right answers; None where there are no classes.
    pub fn accuracy(&self) -> Option<f64> {
        let right: u64 = (0..self.classes()).map(|class| self.confusion[class * (self.classes() + 1)]).sum();
        (!self.confusion.is_empty()).then(|| right as f64 / self.confusion.iter().sum::<u64>() as f64)
    }

    /// The part of right answers if every answer were the class that is most frequent: an accuracy says something beside it.
    pub fn majority(&self) -> Option<f64> {
        let largest = self.confusion.chunks(self.classes().max(1)).map(|row| row.iter().sum::<u64>()).max()?;
        Some(largest as f64 / self.confusion.iter().sum::<u64>() as f64)
    }

    /// Matthews correlation for two classes, as CoLA is scored; 0 where it is undefined, as scikit-learn has it.
    pub fn matthews(&self) -> Option<f64> {
        let &[true_neg, false_pos, false_neg, true_pos] = self.confusion.as_slice() else { return None };
        let [tn, fp, fn_, tp] = [true_neg, false_pos, false_neg, true_pos].map(|count| count as f64);
        let norm = ((tp + fp) * (tp + fn_) * (tn + fp) * (tn + fn_)).sqrt();
        Some(if norm == 0.0 { 0.0 } else { (tp * tn - fp * fn_) / norm })
    }
}
