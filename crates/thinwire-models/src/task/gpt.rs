//! `gpt`: a language model in GPT-2's manner, that learns to predict the next token of a text.
//!
//! Every worker has its own contiguous share of the training text, and draws random windows from it.

use super::{Learner, Score, Share, Task, Watch};
use crate::error::Result;
use crate::generate::{Choice, Writer};
use crate::random::Random;
use crate::tensors::Tensors;
use crate::text::Corpus;
use crate::tokenizer::Tokenizer;
use crate::transformer::{Activations, Shape, Transformer};

pub struct Gpt {
    corpus: Corpus,
    tokenizer: Tokenizer,
    network: Transformer,
}

impl Gpt {
    /// A causal network of `shape`, whose vocabulary is the tokenizer's.
    pub fn new(corpus: Corpus, tokenizer: Tokenizer, shape: Shape) -> Result<Gpt> {
        let shape = Shape { vocabulary: tokenizer.vocabulary(), causal: true, classes: 0, ..shape };
        super::fits(&corpus, shape.context, shape.context + 1)?; // a window, and the token after it
        Ok(Gpt { corpus, tokenizer, network: Transformer::new(shape)? })
    }

    /// Text of the model's own: `count` tokens after `prompt`, drawn at `temperature`; at 0, always the
    /// most likely.
    pub fn sample(&self, params: &[f32], prompt: &str, count: usize, temperature: f32, seed: u64) -> String {
        let mut text = self.tokenizer.encode(prompt.as_bytes());
        let choice = Choice { temperature, top_k: None };
        Writer::new(&self.network, params).extend(&mut text, count, choice, &mut Random::of(&[seed]));
        self.tokenizer.decode(&text)
    }
}

impl Task for Gpt {
    fn tensors(&self) -> &Tensors {
        self.network.tensors()
    }

    fn unit(&self) -> &'static str {
        "tokens"
    }

    fn units(&self, batch: usize) -> usize {
        batch * self.network.shape().context
    }

    fn batches(&self, workers: usize, batch: usize) -> u64 {
        super::batches(self.corpus.train.len() / self.network.shape().context, workers, batch)
    }

    fn learner(&self, share: Share, batch: usize, seed: u64) -> Box<dyn Learner + '_> {
        let rows = self.units(batch);
        Box::new(GptLearner {
            network: &self.network,
            train: self.corpus.share(share),
            held_out: &self.corpus.held_out,
            share,
            seed,
            lengths: vec![self.network.shape().context; batch],
            tokens: Vec::with_capacity(rows),
            targets: Vec::with_capacity(rows),
            chosen: (0..rows).collect(),
            memory: Activations::new(&self.network, batch, rows),
        })
    }
}

struct GptLearner<'a> {
    network: &'a Transformer,
    train: &'a [u32],
    held_out: &'a [u32],
    share: Share,
    seed: u64,
    lengths: Vec<usize>,
    tokens: Vec<u32>,
    targets: Vec<u32>,
    /// All rows: each has a token to predict.
    chosen: Vec<usize>,
    memory: Activations,
}

impl GptLearner<'_> {
    /// Takes the windows of `text` that start at `starts`.
    fn take(&mut self, text: &[u32], starts: impl Iterator<Item = usize>) {
        let context = self.network.shape().context;
        self.tokens.clear();
        self.targets.clear();
        for start in starts {
            self.tokens.extend_from_slice(&text[start..start + context]);
            self.targets.extend_from_slice(&text[start + 1..start + 1 + context]);
        }
    }

    /// The sum of the losses; leaves the gradient of the logits, times `weight`.
    fn forward(&mut self, params: &[f32], weight: f32) -> f64 {
        let Self { network, tokens, targets, chosen, lengths, memory, .. } = self;
        let examples = tokens.len() / network.shape().context;
        network.forward(params, tokens, &lengths[..examples], memory);
        network.losses(params, &chosen[..tokens.len()], targets, weight, memory, |_, _| {})
    }
}

impl Learner for GptLearner<'_> {
    fn learn(&mut self, params: &[f32], index: u64, weight: f32, grad: &mut [f32]) -> f32 {
        let mut random = Random::of(&[self.seed, self.share.rank as u64, index]);
        let (text, batch) = (self.train, self.lengths.len());
        let starts = text.len().saturating_sub(self.network.shape().context);
        assert!(starts > 0, "a worker's share of the text, {} tokens, is less than a window", text.len());
        self.take(text, (0..batch).map(|_| random.below(starts)));
        let rows = self.tokens.len();
        let loss = self.forward(params, weight / rows as f32);
        self.network.backward(params, grad, &self.tokens, &self.chosen[..rows], &mut self.memory);
        (loss / rows as f64) as f32
    }

    fn evaluate_watched(&mut self, params: &[f32], examples: usize, watch: &mut Watch<'_>) -> Option<Score> {
        let (text, context) = (self.held_out, self.network.shape().context);
        let windows = super::spread((text.len() - 1) / context, examples, self.share).collect::<Vec<_>>();
        let (mut score, mut done) = (Score::default(), 0);
        for batch in windows.chunks(self.lengths.len()) {
            self.take(text, batch.iter().map(|window| window * context));
            score.loss += self.forward(params, 0.0);
            score.count += self.tokens.len() as u64;
            done += batch.len();
            if watch(done, windows.len()).is_break() {
                return None;
            }
        }
        Some(score)
    }
}
