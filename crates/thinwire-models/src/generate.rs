//! Text of a language model's own: the logits of the next token, a choice among them, again and again.
//!
//! p(token) ∝ exp(logit / temperature), over all tokens or over the `top_k` most likely. The network sees its last `context`
//! tokens and no more. The same parameters, prompt, choice and seed give the same tokens.

use crate::random::Random;
use crate::transformer::{Activations, Transformer};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// 0: always the most likely.
    pub temperature: f32,
    /// Only the most likely so many; all if it is `None`.
    pub top_k: Option<usize>,
}

/// A causal network that continues texts.
pub struct Writer<'a> {
    network: &'a Transformer,
    params: &'a [f32],
    memory: Activations,
    window: Vec<u32>,
    weights: Vec<f64>,
    order: Vec<usize>,
}

impl<'a> Writer<'a> {
    pub fn new(network: &'a Transformer, params: &'a [f32]) -> Writer<'a> {
        let shape = network.shape();
        Writer {
            network,
            params,
            memory: Activations::new(network, 1, shape.context),
            window: vec![0; shape.context],
            weights: vec![0.0; shape.vocabulary],
            order: Vec::new(),
        }
    }

    /// The logits of the token after each of the last tokens of `text`, as many as the network sees at once: a row for each.
    pub fn all_logits(&mut self, text: &[u32]) -> &[f32] {
        let rows = (0..self.see(text)).collect::<Vec<_>>();
        self.network.logits(self.params, &rows, &mut self.memory)
    }

    /// Adds `count` tokens to `text`.
    pub fn extend(&mut self, text: &mut Vec<u32>, count: usize, choice: Choice, random: &mut Random) {
        for _ in 0..count {
            let next = self.next(text, choice, random);
            text.push(next);
        }
    }

    /// Runs the network over the end of `text`; how much of it that is.
    fn see(&mut self, text: &[u32]) -> usize {
        let context = self.window.len();
        let seen = &text[text.len().saturating_sub(context)..];
        self.window[..seen.len()].copy_from_slice(seen); // what lies behind is not seen: the network is causal
        self.network.forward(self.params, &self.window, &[context], &mut self.memory);
        seen.len()
    }

    /// The token after `text`.
    fn next(&mut self, text: &[u32], choice: Choice, random: &mut Random) -> u32 {
        let last = self.see(text).saturating_sub(1);
        let logits = self.network.logits(self.params, &[last], &mut self.memory);
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for (weight, logit) in self.weights.iter_mut().zip(logits.iter()) {
            // At temperature 0 all others become e^−∞, and the most likely would be 0/0.
            *weight = if *logit == most { 1.0 } else { f64::from((logit - most) / choice.temperature).exp() };
        }
        if let Some(few) = choice.top_k {
            keep_likeliest(&mut self.weights, logits, few, &mut self.order);
        }
        draw(&self.weights, random) as u32
    }
}

/// Sets all weights to 0 but those of the `few` largest logits; of equal ones the first stay.
fn keep_likeliest(weights: &mut [f64], logits: &[f32], few: usize, order: &mut Vec<usize>) {
    order.clear();
    order.extend(0..logits.len());
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    order.iter().skip(few).for_each(|unlikely| weights[*unlikely] = 0.0);
}

/// An index, each as likely as its weight.
fn draw(weights: &[f64], random: &mut Random) -> usize {
    let mut left = random.unit() * weights.iter().sum::<f64>();
    let drawn = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    // Only rounding can leave something over.
    drawn.or_else(|| weights.iter().rposition(|weight| *weight > 0.0)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_likeliest_are_drawn() {
        let logits = [0.5, 3.0, 1.0, 3.0, -1.0];
        let mut weights = [0.2, 1.0, 0.3, 1.0, 0.1];
        keep_likeliest(&mut weights, &logits, 3, &mut Vec::new());
        assert_eq!(weights, [0.0, 1.0, 0.3, 1.0, 0.0]);
        let mut random = Random::of(&[1]);
        let drawn = (0..200).map(|_| draw(&weights, &mut random)).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
    }
}
