//! `bert`: a network that looks both ways, and learns to guess tokens that were hidden from it (arXiv 1810.04805).
//!
//! A window is `[CLS] text [SEP]`. Of the positions of its text 15 % are chosen, and the loss is of these alone: 80 % of them
//! show `[MASK]`, 10 % a random token, and 10 % what is there. How many are chosen depends on the length only, so the mean over
//! workers of their mean losses is the mean over all chosen positions.
//!
//! Left out: the guess whether two sentences follow each other, which later work found useless, and with it the embedding
//! that tells the first from the second.

use super::{Learner, Score, Share, Task, Watch};
use crate::error::{Error, Result};
use crate::random::Random;
use crate::tensors::Tensors;
use crate::text::Corpus;
use crate::tokenizer::Tokenizer;
use crate::transformer::{Activations, Shape, Transformer};

/// Tokens that no text contains; their ids lie behind the tokenizer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Specials {
    /// Fills up what is shorter than the context.
    pub pad: u32,
    /// Comes first; what it becomes stands for the whole.
    pub cls: u32,
    /// Ends a text.
    pub sep: u32,
    /// Stands for a hidden token.
    pub mask: u32,
}

impl Specials {
    /// Behind a vocabulary of `tokens`.
    pub fn behind(tokens: usize) -> Specials {
        let first = tokens as u32;
        Specials { pad: first, cls: first + 1, sep: first + 2, mask: first + 3 }
    }

    /// The vocabulary with them.
    pub fn vocabulary(&self) -> usize {
        self.mask as usize + 1
    }

    /// The shape of a network that looks both ways over texts between specials.
    pub(super) fn shape(&self, shape: Shape) -> Result<Shape> {
        if shape.context < 3 {
            let problem = "accepted: at least 3, as [CLS] and [SEP] enclose the text";
            return Err(Error::config("context", shape.context, problem));
        }
        Ok(Shape { vocabulary: self.vocabulary(), causal: false, ..shape })
    }
}

pub struct Bert {
    corpus: Corpus,
    specials: Specials,
    network: Transformer,
}

impl Bert {
    /// A network of `shape` that looks both ways; its vocabulary is the tokenizer's and the specials.
    pub fn new(corpus: Corpus, tokenizer: &Tokenizer, shape: Shape) -> Result<Bert> {
        let specials = Specials::behind(tokenizer.vocabulary());
        let shape = specials.shape(Shape { classes: 0, ..shape })?;
        super::fits(&corpus, shape.context, shape.context - 2)?;
        Ok(Bert { corpus, specials, network: Transformer::new(shape)? })
    }
}

impl Task for Bert {
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
        let context = self.network.shape().context;
        let chosen = batch * Masking::chosen_of(context - 2);
        Box::new(BertLearner {
            network: &self.network,
            train: self.corpus.share(share),
            held_out: &self.corpus.held_out,
            share,
            seed,
            lengths: vec![context; batch],
            masking: Masking::new(self.specials, context, batch),
            memory: Activations::new(&self.network, batch, chosen),
        })
    }
}

/// Windows with hidden tokens, and what was hidden.
struct Masking {
    specials: Specials,
    context: usize,
    tokens: Vec<u32>,
    /// Rows of `tokens` that have a loss, and what was there.
    chosen: Vec<usize>,
    targets: Vec<u32>,
    /// Room to draw positions from.
    positions: Vec<usize>,
}

impl Masking {
    /// Room for `batch` windows.
    fn new(specials: Specials, context: usize, batch: usize) -> Masking {
        let chosen = batch * Masking::chosen_of(context - 2);
        Masking {
            specials,
            context,
            tokens: Vec::with_capacity(batch * context),
            chosen: Vec::with_capacity(chosen),
            targets: Vec::with_capacity(chosen),
            positions: Vec::with_capacity(context - 2),
        }
    }

    /// How many of so many positions are chosen: 15 %, but at least one.
    fn chosen_of(positions: usize) -> usize {
        ((positions * 15 + 50) / 100).max(1)
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.chosen.clear();
        self.targets.clear();
    }

    /// Adds the window of `text`, as long as a window can hold, and hides what `random` draws.
    fn push(&mut self, text: &[u32], random: &mut Random) {
        debug_assert_eq!(text.len() + 2, self.context);
        let first = self.tokens.len() + 1;
        self.tokens.push(self.specials.cls);
        self.tokens.extend_from_slice(text);
        self.tokens.push(self.specials.sep);
        self.positions.clear();
        self.positions.extend(0..text.len());
        // The start of a shuffle: as many different positions as are wanted.
        for drawn in 0..Masking::chosen_of(text.len()) {
            self.positions.swap(drawn, drawn + random.below(text.len() - drawn));
            let row = first + self.positions[drawn];
            self.chosen.push(row);
            self.targets.push(self.tokens[row]);
            self.tokens[row] = self.shown(self.tokens[row], random);
        }
    }

    /// What a chosen position shows in place of `token`.
    fn shown(&self, token: u32, random: &mut Random) -> u32 {
        let ordinary_tokens = self.specials.pad as usize; // the first special lies behind them
        match random.below(10) {
            0..8 => self.specials.mask,
            8 => random.below(ordinary_tokens) as u32,
            _ => token,
        }
    }
}

struct BertLearner<'a> {
    network: &'a Transformer,
    train: &'a [u32],
    held_out: &'a [u32],
    share: Share,
    seed: u64,
    lengths: Vec<usize>,
    masking: Masking,
    memory: Activations,
}

impl BertLearner<'_> {
    /// The sum of the losses of the windows taken; leaves the gradient of the logits, times `weight`.
    fn forward(&mut self, params: &[f32], weight: f32) -> f64 {
        let Self { network, masking: Masking { tokens, chosen, targets, .. }, lengths, memory, .. } = self;
        let examples = tokens.len() / network.shape().context;
        network.forward(params, tokens, &lengths[..examples], memory);
        network.losses(params, chosen, targets, weight, memory, |_, _| {})
    }
}

impl Learner for BertLearner<'_> {
    fn learn(&mut self, params: &[f32], index: u64, weight: f32, grad: &mut [f32]) -> f32 {
        let (text, window) = (self.train, self.network.shape().context - 2);
        assert!(text.len() >= window, "a worker's share of the text, {} tokens, is less than a window", text.len());
        self.masking.clear();
        for example in 0..self.lengths.len() {
            let mut random = Random::of(&[self.seed, self.share.rank as u64, index, example as u64]);
            let start = random.below(text.len() - window + 1);
            self.masking.push(&text[start..start + window], &mut random);
        }
        let chosen = self.masking.chosen.len();
        let loss = self.forward(params, weight / chosen as f32);
        self.network.backward(params, grad, &self.masking.tokens, &self.masking.chosen, &mut self.memory);
        (loss / chosen as f64) as f32
    }

    fn evaluate_watched(&mut self, params: &[f32], examples: usize, watch: &mut Watch<'_>) -> Option<Score> {
        let (text, window) = (self.held_out, self.network.shape().context - 2);
        let numbers = super::spread(text.len() / window, examples, self.share).collect::<Vec<_>>();
        let (mut score, mut done) = (Score::default(), 0);
        for batch in numbers.chunks(self.lengths.len()) {
            self.masking.clear();
            for &number in batch {
                // Of the window's number only: every optimizer and every number of workers is asked the same.
                self.masking.push(&text[number * window..][..window], &mut Random::of(&[number as u64]));
            }
            score.loss += self.forward(params, 0.0);
            score.count += self.masking.chosen.len() as u64;
            done += batch.len();
            if watch(done, numbers.len()).is_break() {
                return None;
            }
        }
        Some(score)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: usize = 1000;

    /// Many windows, each of the text 0, 1, 2, …
    fn windows(count: usize, len: usize) -> Masking {
        let text = (0..len as u32).collect::<Vec<_>>();
        let mut masking = Masking::new(Specials::behind(TOKENS), len + 2, count);
        (0..count).for_each(|window| masking.push(&text, &mut Random::of(&[window as u64])));
        masking
    }

    #[test]
    fn specials_lie_behind_the_tokens() {
        let specials = Specials::behind(256);
        assert_eq!((specials.pad, specials.cls, specials.sep, specials.mask), (256, 257, 258, 259));
        assert_eq!(specials.vocabulary(), 260);
    }

    #[test]
    fn fifteen_percent_but_at_least_one() {
        assert_eq!([1, 2, 6, 10, 20, 100, 126].map(Masking::chosen_of), [1, 1, 1, 2, 3, 15, 19]);
    }

    #[test]
    fn only_chosen_positions_change_and_none_is_chosen_twice() {
        let (len, count) = (40, 200);
        let masking = windows(count, len);
        let mut whole = masking.tokens.clone();
        masking.chosen.iter().zip(&masking.targets).for_each(|(&row, &target)| whole[row] = target);
        for window in whole.chunks(len + 2) {
            assert_eq!((window[0], window[len + 1]), (masking.specials.cls, masking.specials.sep));
            assert!(window[1..=len].iter().copied().eq(0..len as u32));
        }
        for chosen in masking.chosen.chunks(6) {
            let mut chosen = chosen.to_vec();
            chosen.sort_unstable();
            chosen.dedup();
            assert_eq!((chosen.len(), chosen[0] / (len + 2)), (6, chosen[5] / (len + 2)));
        }
    }

    #[test]
    fn eight_of_ten_are_hidden_and_every_position_is_chosen_as_often() {
        let (len, count) = (40, 10_000);
        let masking = windows(count, len);
        let (mut hidden, mut kept, mut random) = (0.0, 0.0, 0.0);
        let mut by_position = vec![0.0; len];
        for (&row, &target) in masking.chosen.iter().zip(&masking.targets) {
            by_position[target as usize] += 1.0;
            match masking.tokens[row] {
                shown if shown == masking.specials.mask => hidden += 1.0,
                shown if shown == target => kept += 1.0,
                shown => {
                    assert!((shown as usize) < TOKENS, "a special was drawn");
                    random += 1.0;
                }
            }
        }
        let all = (count * Masking::chosen_of(len)) as f64;
        assert_eq!(all, masking.chosen.len() as f64);
        // Five deviations of 60,000 draws.
        for (part, expected) in [(hidden, 0.8), (kept, 0.1 + 0.1 / TOKENS as f64), (random, 0.1)] {
            assert!((part / all - expected).abs() < 0.01, "{part} of {all} is not {expected}");
        }
        for often in by_position {
            assert!((often / count as f64 - 0.15).abs() < 0.02, "{often} of {count}");
        }
    }
}
