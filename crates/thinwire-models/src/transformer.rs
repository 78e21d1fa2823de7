//! The transformer that `gpt` and `bert` share: GPT-2's blocks, causal or looking both ways.
//!
//! ```text
//! x = token embedding + position embedding
//! each layer:  x += proj(attention(norm(x)));   x += contract(gelu(expand(norm(x))))
//! hidden = norm(x);   logits of chosen rows = hidden·Wᵀ (+ b)
//! ```
//!
//! W is the token embedding itself for language models, and a matrix of its own for classification.

use crate::error::{Error, Result};
use crate::layer::attention::{self, Sizes};
use crate::layer::{cross_entropy, embedding, gelu, layer_norm, linear};
use crate::tensors::{Init, Tensors};
use std::ops::Range;

/// The sizes of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub vocabulary: usize,
    /// Tokens it sees at once.
    pub context: usize,
    pub layers: usize,
    pub dim: usize,
    pub heads: usize,
    /// Whether a position sees only those before it.
    pub causal: bool,
    /// Classes of sentences to tell apart; 0 for a language model.
    pub classes: usize,
}

/// Where the tensors of a layer lie.
#[derive(Clone, Debug)]
struct Layer {
    norm1: (Range<usize>, Range<usize>),
    qkv: (Range<usize>, Range<usize>),
    proj: (Range<usize>, Range<usize>),
    norm2: (Range<usize>, Range<usize>),
    expand: (Range<usize>, Range<usize>),
    contract: (Range<usize>, Range<usize>),
}

#[derive(Clone, Debug)]
pub struct Transformer {
    shape: Shape,
    tensors: Tensors,
    token: Range<usize>,
    position: Range<usize>,
    layers: Vec<Layer>,
    norm: (Range<usize>, Range<usize>),
    /// The classifier's matrix and bias; empty for a language model.
    classifier: (Range<usize>, Range<usize>),
}

impl Transformer {
    pub fn new(shape: Shape) -> Result<Transformer> {
        let Shape { vocabulary, context, layers, dim, heads, classes, .. } = shape;
        for (word, value) in [("layers", layers), ("dim", dim), ("heads", heads), ("context", context)] {
            if value == 0 {
                return Err(Error::config(word, value, "accepted: a whole number of at least 1"));
            }
        }
        if dim % heads != 0 {
            let problem = format!("it must divide dim = {dim}: every head gets the same part of it");
            return Err(Error::config("heads", heads, problem));
        }
        let mut tensors = Tensors::default();
        let normal = Init::Normal(0.02);
        // As GPT-2 has it: what adds to the residual stream starts smaller, by the number of additions.
        let residual = Init::Normal(0.02 / ((2 * layers) as f64).sqrt());
        let token = tensors.add("token.weight", &[vocabulary, dim], normal);
        let position = tensors.add("position.weight", &[context, dim], normal);
        let norm = |tensors: &mut Tensors, name: &str| {
            let gain = tensors.add(format!("{name}.weight"), &[dim], Init::Ones);
            (gain, tensors.add(format!("{name}.bias"), &[dim], Init::Zeros))
        };
        let linear = |tensors: &mut Tensors, name: &str, outputs: usize, inputs: usize, init: Init| {
            let weight = tensors.add(format!("{name}.weight"), &[outputs, inputs], init);
            (weight, tensors.add(format!("{name}.bias"), &[outputs], Init::Zeros))
        };
        let layers = (0..layers)
            .map(|layer| {
                let name = |part: &str| format!("layer.{layer}.{part}");
                Layer {
                    norm1: norm(&mut tensors, &name("norm1")),
                    qkv: linear(&mut tensors, &name("qkv"), 3 * dim, dim, normal),
                    proj: linear(&mut tensors, &name("proj"), dim, dim, residual),
                    norm2: norm(&mut tensors, &name("norm2")),
                    expand: linear(&mut tensors, &name("expand"), 4 * dim, dim, normal),
                    contract: linear(&mut tensors, &name("contract"), dim, 4 * dim, residual),
                }
            })
            .collect();
        let norm = norm(&mut tensors, "norm");
        let classifier = match classes {
            0 => (0..0, 0..0),
            _ => linear(&mut tensors, "classifier", classes, dim, normal),
        };
        Ok(Transformer { shape, tensors, token, position, layers, norm, classifier })
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    fn sizes(&self) -> Sizes {
        let Shape { context, heads, dim, causal, .. } = self.shape;
        Sizes { context, heads, dim, causal }
    }

    /// The matrix and bias of the last layer, and its outputs.
    fn head(&self) -> (Range<usize>, Range<usize>, usize) {
        match self.shape.classes {
            0 => (self.token.clone(), 0..0, self.shape.vocabulary),
            classes => (self.classifier.0.clone(), self.classifier.1.clone(), classes),
        }
    }

    /// The hidden states of `tokens`: whole examples of `context` tokens, of which the first `lengths` are not padding.
    pub fn forward(&self, params: &[f32], tokens: &[u32], lengths: &[usize], memory: &mut Activations) {
        let Shape { context, dim, .. } = self.shape;
        assert_eq!(tokens.len(), lengths.len() * context, "whole examples");
        let rows = tokens.len();
        let Activations { layers, residual, statistics, hidden, .. } = memory;
        let at = |range: &Range<usize>| &params[range.clone()];
        embedding::forward(&mut residual[0][..rows * dim], tokens, at(&self.token), at(&self.position), dim, context);
        for (index, (layer, memory)) in self.layers.iter().zip(layers).enumerate() {
            let (before, after) = residual.split_at_mut(index + 1);
            let (x, y) = (&before[index][..rows * dim], &mut after[0][..rows * dim]);
            let LayerActivations { norm1, statistics1, qkv, probs, mixed, middle, norm2, statistics2, wide, active } =
                memory;
            let (norm1, norm2) = (&mut norm1[..rows * dim], &mut norm2[..rows * dim]);
            let (mixed, middle) = (&mut mixed[..rows * dim], &mut middle[..rows * dim]);
            let (qkv, wide, active) =
                (&mut qkv[..rows * 3 * dim], &mut wide[..rows * 4 * dim], &mut active[..rows * 4 * dim]);

            layer_norm::forward(norm1, statistics1, x, at(&layer.norm1.0), at(&layer.norm1.1));
            linear::forward(qkv, norm1, at(&layer.qkv.0), at(&layer.qkv.1), dim, 3 * dim);
            attention::forward(mixed, probs, qkv, lengths, self.sizes());
            linear::forward(middle, mixed, at(&layer.proj.0), at(&layer.proj.1), dim, dim);
            add(middle, x);

            layer_norm::forward(norm2, statistics2, middle, at(&layer.norm2.0), at(&layer.norm2.1));
            linear::forward(wide, norm2, at(&layer.expand.0), at(&layer.expand.1), dim, 4 * dim);
            gelu::forward(active, wide);
            linear::forward(y, active, at(&layer.contract.0), at(&layer.contract.1), 4 * dim, dim);
            add(y, middle);
        }
        let x = &residual[self.layers.len()][..rows * dim];
        layer_norm::forward(&mut hidden[..rows * dim], statistics, x, at(&self.norm.0), at(&self.norm.1));
    }

    /// The logits of the rows `chosen`, after [`Transformer::forward`].
    pub fn logits<'a>(&self, params: &[f32], chosen: &[usize], memory: &'a mut Activations) -> &'a mut [f32] {
        let dim = self.shape.dim;
        let (weight, bias, outputs) = self.head();
        let Activations { hidden, chosen_hidden, logits, .. } = memory;
        chosen_hidden.resize(chosen.len() * dim, 0.0);
        logits.resize(chosen.len() * outputs, 0.0);
        for (to, &row) in chosen_hidden.chunks_exact_mut(dim).zip(chosen) {
            to.copy_from_slice(&hidden[row * dim..][..dim]);
        }
        linear::forward(logits, chosen_hidden, &params[weight], &params[bias], dim, outputs);
        logits
    }

    /// The sum of the losses of the rows `chosen`, and what was answered there; leaves the logits' gradient, times `weight`.
    pub fn losses(
        &self,
        params: &[f32],
        chosen: &[usize],
        targets: &[u32],
        weight: f32,
        memory: &mut Activations,
        answered: impl FnMut(usize, usize),
    ) -> f64 {
        let logits = self.logits(params, chosen, memory);
        cross_entropy::forward_backward(logits, targets, weight, answered)
    }

    /// Adds the gradient to `grad`, after [`Transformer::losses`] of the same tokens and rows.
    pub fn backward(
        &self,
        params: &[f32],
        grad: &mut [f32],
        tokens: &[u32],
        chosen: &[usize],
        memory: &mut Activations,
    ) {
        let Shape { context, dim, .. } = self.shape;
        let rows = tokens.len();
        let at = |range: &Range<usize>| &params[range.clone()];
        let Activations { layers, residual, statistics, chosen_hidden, logits, gradient: d, .. } = memory;
        let (dhidden, dx) = (&mut d.normed[..rows * dim], &mut d.stream[..rows * dim]);

        let (weight, bias, outputs) = self.head();
        let (dweight, dbias) = pair(grad, &(weight.clone(), bias));
        linear::backward_weight(dweight, dbias, logits, chosen_hidden, dim, outputs);
        linear::backward_input(chosen_hidden, logits, &params[weight], dim, outputs);
        dhidden.fill(0.0);
        for (from, &row) in chosen_hidden.chunks_exact(dim).zip(chosen) {
            dhidden[row * dim..][..dim].copy_from_slice(from);
        }
        dx.fill(0.0);
        let x = &residual[self.layers.len()][..rows * dim];
        layer_norm::backward(dx, pair(grad, &self.norm), dhidden, x, at(&self.norm.0), statistics);

        let dnormed = dhidden;
        let (dqkv, dwide) = (&mut d.qkv[..rows * 3 * dim], &mut d.wide[..rows * 4 * dim]);
        for (index, (layer, memory)) in self.layers.iter().zip(layers).enumerate().rev() {
            let LayerActivations { norm1, statistics1, qkv, probs, mixed, middle, norm2, statistics2, wide, active } =
                memory;
            let (norm1, norm2) = (&norm1[..rows * dim], &norm2[..rows * dim]);
            let (mixed, middle) = (&mixed[..rows * dim], &middle[..rows * dim]);
            let (qkv, wide, active) = (&qkv[..rows * 3 * dim], &wide[..rows * 4 * dim], &active[..rows * 4 * dim]);

            // dx is the gradient of the residual stream; each branch adds to it on its way back.
            let (dw, db) = pair(grad, &layer.contract);
            linear::backward_weight(dw, db, dx, active, 4 * dim, dim);
            linear::backward_input(dwide, dx, at(&layer.contract.0), 4 * dim, dim);
            gelu::backward(dwide, wide);
            let (dw, db) = pair(grad, &layer.expand);
            linear::backward_weight(dw, db, dwide, norm2, dim, 4 * dim);
            linear::backward_input(dnormed, dwide, at(&layer.expand.0), dim, 4 * dim);
            layer_norm::backward(dx, pair(grad, &layer.norm2), dnormed, middle, at(&layer.norm2.0), statistics2);

            let (dw, db) = pair(grad, &layer.proj);
            linear::backward_weight(dw, db, dx, mixed, dim, dim);
            linear::backward_input(dnormed, dx, at(&layer.proj.0), dim, dim);
            attention::backward(dqkv, &mut d.probs, dnormed, probs, qkv, rows / context, self.sizes());
            let (dw, db) = pair(grad, &layer.qkv);
            linear::backward_weight(dw, db, dqkv, norm1, dim, 3 * dim);
            linear::backward_input(dnormed, dqkv, at(&layer.qkv.0), dim, 3 * dim);
            let x = &residual[index][..rows * dim];
            layer_norm::backward(dx, pair(grad, &layer.norm1), dnormed, x, at(&layer.norm1.0), statistics1);
        }
        let (dtoken, dposition) = pair(grad, &(self.token.clone(), self.position.clone()));
        embedding::backward(dtoken, dposition, dx, tokens, dim, context);
    }
}

/// Two neighbouring parts of the gradient; the second may be empty.
fn pair<'a>(grad: &'a mut [f32], (first, second): &(Range<usize>, Range<usize>)) -> (&'a mut [f32], &'a mut [f32]) {
    if second.is_empty() {
        return (&mut grad[first.clone()], &mut []);
    }
    assert_eq!(first.end, second.start, "tensors used together lie together");
    grad[first.start..second.end].split_at_mut(first.len())
}

fn add(to: &mut [f32], what: &[f32]) {
    for (to, what) in to.iter_mut().zip(what) {
        *to += what;
    }
}

/// What forward leaves for backward, and backward's own room: allocated once, for batches of up to so many examples.
#[derive(Debug)]
pub struct Activations {
    layers: Vec<LayerActivations>,
    /// The input of each layer, and the output of the last.
    residual: Vec<Vec<f32>>,
    statistics: Vec<f32>,
    hidden: Vec<f32>,
    chosen_hidden: Vec<f32>,
    logits: Vec<f32>,
    gradient: Gradients,
}

#[derive(Debug)]
struct LayerActivations {
    norm1: Vec<f32>,
    statistics1: Vec<f32>,
    qkv: Vec<f32>,
    probs: Vec<f32>,
    mixed: Vec<f32>,
    middle: Vec<f32>,
    norm2: Vec<f32>,
    statistics2: Vec<f32>,
    wide: Vec<f32>,
    active: Vec<f32>,
}

#[derive(Debug)]
struct Gradients {
    stream: Vec<f32>,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    probs: Vec<f32>,
    wide: Vec<f32>,
}

impl Activations {
    /// Room for `examples`, of whose rows at most `chosen` have a loss.
    pub fn new(network: &Transformer, examples: usize, chosen: usize) -> Activations {
        let Shape { context, dim, heads, layers, .. } = network.shape;
        let rows = examples * context;
        let zeros = |len: usize| vec![0.0; len];
        let layer = |_| LayerActivations {
            norm1: zeros(rows * dim),
            statistics1: zeros(rows * 2),
            qkv: zeros(rows * 3 * dim),
            probs: zeros(rows * heads * context),
            mixed: zeros(rows * dim),
            middle: zeros(rows * dim),
            norm2: zeros(rows * dim),
            statistics2: zeros(rows * 2),
            wide: zeros(rows * 4 * dim),
            active: zeros(rows * 4 * dim),
        };
        Activations {
            layers: (0..layers).map(layer).collect(),
            residual: (0..=layers).map(|_| zeros(rows * dim)).collect(),
            statistics: zeros(rows * 2),
            hidden: zeros(rows * dim),
            chosen_hidden: Vec::with_capacity(chosen * dim),
            logits: Vec::with_capacity(chosen * network.head().2),
            gradient: Gradients {
                stream: zeros(rows * dim),
                normed: zeros(rows * dim),
                qkv: zeros(rows * 3 * dim),
                probs: zeros(context * context),
                wide: zeros(rows * 4 * dim),
            },
        }
    }
}
