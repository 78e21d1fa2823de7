//! Fine-tuning of `bert`: sentences, or pairs of them, are told apart by what `[CLS]` becomes.
//!
//! `[CLS] sentence [SEP]`, or `[CLS] sentence [SEP] other [SEP]`, is cut to the context or filled up with `[PAD]`, which no
//! position looks at. One matrix turns the hidden state of `[CLS]` into classes; the layer with a tanh that BERT has
//! before it is left out.
//!
//! Every epoch is a new order of all sentences, a function of the seed and its number, and the workers take turns.

use super::bert::Specials;
use super::{Learner, Score, Share, Task, Watch};
use crate::error::{Error, Result};
use crate::random::Random;
use crate::sentences::{Example, Sentences};
use crate::tensors::Tensors;
use crate::tokenizer::Tokenizer;
use crate::transformer::{Activations, Shape, Transformer};

/// The stream that splits off held-out sentences: always the same, so that runs with different seeds can be compared.
const SPLIT: u64 = 20;

pub struct BertClassifier {
    train: Vec<Encoded>,
    held_out: Vec<Encoded>,
    specials: Specials,
    network: Transformer,
    cut: Cut,
}

/// How many examples are longer than the context, and lose what is behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    pub examples: usize,
    /// Of so many, those held out too.
    pub of: usize,
    /// Tokens of the longest, with those that enclose it.
    pub longest: usize,
}

/// Tokens of each example, with those that enclose it.
pub fn lengths(sentences: &Sentences, tokenizer: &Tokenizer) -> Vec<usize> {
    sentences.examples.iter().map(|example| length(example, tokenizer)).collect()
}

fn length(example: &Example, tokenizer: &Tokenizer) -> usize {
    let tokens = |text: &str| tokenizer.encode(text.as_bytes()).len() + 1;
    1 + tokens(&example.text) + example.pair.as_deref().map_or(0, tokens)
}

struct Encoded {
    tokens: Vec<u32>,
    label: u32,
}

impl BertClassifier {
    /// A network of `shape`, with the tokenizer's vocabulary and the sentences' classes. Without `held_out`, a fifth of
    /// `sentences` is held out.
    pub fn new(
        mut sentences: Sentences,
        held_out: Option<Sentences>,
        tokenizer: &Tokenizer,
        shape: Shape,
    ) -> Result<BertClassifier> {
        let specials = Specials::behind(tokenizer.vocabulary());
        let shape = specials.shape(Shape { classes: sentences.classes.len(), ..shape })?;
        let held_out = match held_out {
            Some(held_out) => with_classes(held_out, &sentences.classes)?,
            None => split(&mut sentences.examples),
        };
        if shape.classes < 2 {
            return Err(Error::config("classes", shape.classes, "accepted: at least 2, to tell sentences apart"));
        }
        for (name, examples) in [("to learn from", &sentences.examples), ("held out", &held_out)] {
            if examples.is_empty() {
                return Err(Error::config("sentences", 0, format!("there are none {name}")));
            }
        }
        let encode = |example: &Example| encode(example, tokenizer, specials, shape.context);
        let mut cut = Cut::default();
        for length in sentences.examples.iter().chain(&held_out).map(|example| length(example, tokenizer)) {
            cut.of += 1;
            cut.examples += usize::from(length > shape.context);
            cut.longest = cut.longest.max(length);
        }
        Ok(BertClassifier {
            cut,
            train: sentences.examples.iter().map(encode).collect(),
            held_out: held_out.iter().map(encode).collect(),
            specials,
            network: Transformer::new(shape)?,
        })
    }

    /// What the context is too short for.
    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// The parameters to start from: those of a pre-trained [`Bert`](super::bert::Bert) of the same shape, and a new
    /// classifier.
    pub fn initial_from(&self, pretrained: &[f32], seed: u64) -> Result<Vec<f32>> {
        let mut params = self.initial(seed);
        let classifier = self.tensors().iter().find(|tensor| tensor.name == "classifier.weight");
        let body = classifier.map_or(params.len(), |tensor| tensor.range.start);
        if pretrained.len() != body {
            let Shape { vocabulary, context, layers, dim, .. } = self.network.shape();
            let problem = format!(
                "this network has {body} before its classifier; accepted: those of a bert with the same vocabulary \
                 ({vocabulary}), context ({context}), layers ({layers}) and dim ({dim})"
            );
            return Err(Error::config("pre-trained parameters", pretrained.len(), problem));
        }
        params[..body].copy_from_slice(pretrained);
        Ok(params)
    }
}

/// The examples of `sentences`, labelled by their place in `classes`: a file of its own may list them in another order.
fn with_classes(mut sentences: Sentences, classes: &[String]) -> Result<Vec<Example>> {
    for example in &mut sentences.examples {
        let class = &sentences.classes[example.label];
        example.label = classes.iter().position(|known| known == class).ok_or_else(|| {
            Error::config(
                "class",
                class,
                format!("held-out sentences have it, but not those to learn from: {classes:?}"),
            )
        })?;
    }
    Ok(sentences.examples)
}

/// Takes a random fifth away.
fn split(examples: &mut Vec<Example>) -> Vec<Example> {
    Random::of(&[SPLIT]).shuffle(examples);
    examples.split_off(examples.len() - examples.len() / 5)
}

fn encode(example: &Example, tokenizer: &Tokenizer, specials: Specials, context: usize) -> Encoded {
    let mut first = tokenizer.encode(example.text.as_bytes());
    let mut pair = example.pair.as_ref().map(|pair| tokenizer.encode(pair.as_bytes()));
    let others = if pair.is_some() { 3 } else { 2 }; // specials
    cut(&mut first, pair.as_mut(), context - others);
    let mut tokens = vec![specials.cls];
    tokens.extend(first);
    tokens.push(specials.sep);
    if let Some(pair) = pair {
        tokens.extend(pair);
        tokens.push(specials.sep);
    }
    Encoded { tokens, label: example.label as u32 }
}

/// Shortens the longer of the two, so that both are there, until they have room.
fn cut(first: &mut Vec<u32>, pair: Option<&mut Vec<u32>>, room: usize) {
    let Some(pair) = pair else { return first.truncate(room) };
    let half = room / 2;
    let (first_len, pair_len) = (first.len(), pair.len());
    first.truncate((room - half).max(room.saturating_sub(pair_len)));
    pair.truncate(half.max(room.saturating_sub(first_len)));
}

impl Task for BertClassifier {
    fn tensors(&self) -> &Tensors {
        self.network.tensors()
    }

    fn unit(&self) -> &'static str {
        "sentences"
    }

    fn units(&self, batch: usize) -> usize {
        batch
    }

    fn batches(&self, workers: usize, batch: usize) -> u64 {
        super::batches(self.train.len(), workers, batch)
    }

    fn learner(&self, share: Share, batch: usize, seed: u64) -> Box<dyn Learner + '_> {
        let context = self.network.shape().context;
        Box::new(ClassifierLearner {
            task: self,
            share,
            batch,
            epochs: Epochs::new(self.train.len(), seed),
            tokens: Vec::with_capacity(batch * context),
            lengths: Vec::with_capacity(batch),
            labels: Vec::with_capacity(batch),
            cls: (0..batch).map(|example| example * context).collect(),
            memory: Activations::new(&self.network, batch, batch),
        })
    }
}

/// An endless sequence of sentences: epoch after epoch, each in an order of its own.
struct Epochs {
    seed: u64,
    /// The epoch that `order` is of.
    epoch: u64,
    order: Vec<usize>,
}

impl Epochs {
    fn new(sentences: usize, seed: u64) -> Epochs {
        let mut epochs = Epochs { seed, epoch: 0, order: (0..sentences).collect() };
        epochs.go_to(0);
        epochs
    }

    fn go_to(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.order.iter_mut().enumerate().for_each(|(place, sentence)| *sentence = place);
        Random::of(&[self.seed, epoch]).shuffle(&mut self.order);
    }

    /// The sentence at `place` of the sequence: a function of the seed alone, whatever was asked before.
    fn sentence(&mut self, place: u64) -> usize {
        let sentences = self.order.len() as u64;
        let epoch = place / sentences;
        if epoch != self.epoch {
            self.go_to(epoch);
        }
        self.order[(place % sentences) as usize]
    }
}

struct ClassifierLearner<'a> {
    task: &'a BertClassifier,
    share: Share,
    batch: usize,
    epochs: Epochs,
    tokens: Vec<u32>,
    lengths: Vec<usize>,
    labels: Vec<u32>,
    /// The row of `[CLS]` of each example.
    cls: Vec<usize>,
    memory: Activations,
}

impl ClassifierLearner<'_> {
    fn clear(&mut self) {
        self.tokens.clear();
        self.lengths.clear();
        self.labels.clear();
    }

    fn push(&mut self, sentence: &Encoded) {
        self.tokens.extend_from_slice(&sentence.tokens);
        self.lengths.push(sentence.tokens.len());
        self.labels.push(sentence.label);
        self.tokens.resize(self.lengths.len() * self.task.network.shape().context, self.task.specials.pad);
    }

    /// The sum of the losses of the sentences taken; leaves the gradient of the logits, times `weight`.
    fn forward(&mut self, params: &[f32], weight: f32, answered: impl FnMut(usize, usize)) -> f64 {
        let Self { task: BertClassifier { network, .. }, tokens, lengths, labels, cls, memory, .. } = self;
        network.forward(params, tokens, lengths, memory);
        network.losses(params, &cls[..labels.len()], labels, weight, memory, answered)
    }
}

impl Learner for ClassifierLearner<'_> {
    fn learn(&mut self, params: &[f32], index: u64, weight: f32, grad: &mut [f32]) -> f32 {
        let (task, batch) = (self.task, self.batch);
        let Share { rank, workers } = self.share;
        self.clear();
        for example in 0..batch as u64 {
            let turn = index * batch as u64 + example;
            let sentence = self.epochs.sentence(turn * workers as u64 + rank as u64);
            self.push(&task.train[sentence]);
        }
        let loss = self.forward(params, weight / batch as f32, |_, _| {});
        task.network.backward(params, grad, &self.tokens, &self.cls, &mut self.memory);
        (loss / batch as f64) as f32
    }

    fn evaluate_watched(&mut self, params: &[f32], examples: usize, watch: &mut Watch<'_>) -> Option<Score> {
        let (task, classes) = (self.task, self.task.network.shape().classes);
        let mut confusion = vec![0; classes * classes];
        let mut score = Score::default();
        let sentences = super::spread(task.held_out.len(), examples, self.share).collect::<Vec<_>>();
        for batch in sentences.chunks(self.batch) {
            self.clear();
            batch.iter().for_each(|&sentence| self.push(&task.held_out[sentence]));
            score.loss += self.forward(params, 0.0, |row, answer| {
                confusion[task.held_out[batch[row]].label as usize * classes + answer] += 1;
            });
            score.count += batch.len() as u64;
            if watch(score.count as usize, sentences.len()).is_break() {
                return None;
            }
        }
        Some(Score { confusion, ..score })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(text: &str, pair: Option<&str>, context: usize) -> Vec<u32> {
        let example = Example { label: 0, text: text.into(), pair: pair.map(Into::into) };
        encode(&example, &Tokenizer::Bytes, Specials::behind(256), context).tokens
    }

    #[test]
    fn sentences_are_cut_so_that_both_are_there() {
        let [cls, sep] = [257, 258];
        let [a, b] = [97, 98];
        assert_eq!(encoded("aa", None, 9), [cls, a, a, sep]);
        assert_eq!(encoded("", None, 9), [cls, sep]);
        assert_eq!(encoded("aaaa", None, 4), [cls, a, a, sep]);
        assert_eq!(encoded("a", Some("bb"), 9), [cls, a, sep, b, b, sep]);
        assert_eq!(encoded("aaaaaa", Some("bbbbbb"), 7), [cls, a, a, sep, b, b, sep]);
        assert_eq!(encoded("aaaaaa", Some("b"), 7), [cls, a, a, a, sep, b, sep]);
        assert_eq!(encoded("a", Some("bbbbbb"), 7), [cls, a, sep, b, b, b, sep]);
        assert_eq!(encoded("aaaaaa", Some("bbbbbb"), 3), [cls, sep, sep]);
        for (first, pair) in (0..9).flat_map(|first| (0..9).map(move |pair| (first, pair))) {
            let len = encoded(&"a".repeat(first), Some(&"b".repeat(pair)), 10).len();
            assert_eq!(len, (first + pair + 3).min(10), "{first} and {pair}");
        }
    }

    #[test]
    fn an_epoch_has_every_sentence_once_and_an_order_of_its_own() {
        let mut epochs = Epochs::new(10, 3);
        let orders = (0..4u64).map(|epoch| (0..10).map(|i| epochs.sentence(epoch * 10 + i)).collect::<Vec<_>>());
        let orders = orders.collect::<Vec<_>>();
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..10));
        }
        assert!(orders[0] != orders[1] && orders[1] != orders[2] && orders[2] != orders[3]);
        assert_ne!(orders[0], Epochs::new(10, 4).order);
        // Back again: what was asked before does not matter.
        assert_eq!((0..10).map(|place| epochs.sentence(place)).collect::<Vec<_>>(), orders[0]);
    }
}
