//! A small residual network for images (He et al. 2015, arXiv:1512.03385), "ResNet-8" with one block to a stage.
//!
//! ```text
//! stem          3×3 convolution to c channels, norm, relu
//! three stages  of blocks with c, 2c and 4c channels; stages two and three halve height and width
//! a block       relu(norm(conv(relu(norm(conv(x))))) + shortcut(x))
//! the end       average over the image, a linear layer, softmax
//! ```
//!
//! The shortcut is x itself, or a 1×1 convolution and norm where the size changes. The norm is a
//! [group norm](crate::layer::group_norm): there are no running statistics, nothing that is not in the flat vector, nothing
//! that differs from worker to worker.
//!
//! As no layer looks at two images at once, a batch goes through the network one image at a time, forth and back, and an
//! image's activations are still in the cache when the way back wants them.

use crate::error::{Error, Result};
use crate::layer::conv::Conv;
use crate::layer::group_norm::{GROUPS, GroupNorm, Passed, Then};
use crate::layer::plane::Plane;
use crate::layer::{classify, pool};
use crate::tensors::{Init, Tensors};
use std::ops::Range;

const STAGES: usize = 3;

/// The sizes of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub channels_in: usize,
    pub height: usize,
    pub width: usize,
    pub classes: usize,
    /// Channels of the stem and the first stage: a multiple of 8, usually 16.
    pub channels: usize,
    /// Blocks to a stage.
    pub blocks: usize,
}

impl Shape {
    fn check(&self) -> Result<()> {
        let at_least = |word, value: usize, least: usize, why: &str| match value < least {
            true => Err(Error::config(word, value, format!("must be at least {least}{why}"))),
            false => Ok(()),
        };
        at_least("channels_in", self.channels_in, 1, "")?;
        at_least("height", self.height, 4, ": it is halved twice, and a norm of one pixel says nothing")?;
        at_least("width", self.width, 4, ": it is halved twice, and a norm of one pixel says nothing")?;
        at_least("classes", self.classes, 2, "")?;
        at_least("blocks", self.blocks, 1, " a stage")?;
        if self.channels == 0 || !self.channels.is_multiple_of(GROUPS) {
            let problem = format!("must be a multiple of {GROUPS}, the groups of the norm; 16 is usual");
            return Err(Error::config("channels", self.channels, problem));
        }
        Ok(())
    }
}

/// A convolution and its norm, and where their parameters lie in the flat vector.
#[derive(Clone, Debug)]
struct Unit {
    conv: Conv,
    norm: GroupNorm,
    weight: Range<usize>,
    gain: Range<usize>,
    bias: Range<usize>,
}

#[derive(Clone, Debug)]
struct Block {
    stage: usize,
    first: Unit,
    second: Unit,
    shortcut: Option<Unit>,
}

#[derive(Clone, Debug)]
pub struct ResNet {
    shape: Shape,
    tensors: Tensors,
    stem: Unit,
    blocks: Vec<Block>,
    weight: Range<usize>,
    bias: Range<usize>,
}

/// What one image leaves in a unit on its way.
#[derive(Debug)]
struct Trace {
    conv: Vec<f32>,
    moments: Vec<f32>,
    out: Vec<f32>,
}

#[derive(Debug)]
struct BlockTrace {
    first: Trace,
    second: Trace,
    shortcut: Option<Trace>,
}

/// Gradients of what flows through a stage: after a block, between its two units, and before a norm.
#[derive(Debug)]
struct Slopes {
    out: Vec<f32>,
    middle: Vec<f32>,
    conv: Vec<f32>,
}

/// Everything a network needs to run, allocated once: the activations of one image, and their gradients.
#[derive(Debug)]
pub struct Activations {
    input: Vec<f32>,
    stem: Trace,
    blocks: Vec<BlockTrace>,
    features: Vec<f32>,
    d_features: Vec<f32>,
    logits: Vec<f32>,
    slopes: Vec<Slopes>,
    /// The weights of the convolutions as their way back wants them; they lie as in the flat vector.
    flipped: Vec<f32>,
    scratch: Vec<f32>,
}

impl ResNet {
    pub fn new(shape: Shape) -> Result<ResNet> {
        shape.check()?;
        let mut tensors = Tensors::default();
        let plane = Plane::new(shape.height, shape.width);
        let stem = Unit::new(&mut tensors, ["stem", "norm"], conv(plane, shape.channels_in, shape.channels, 3, 1));
        let mut blocks: Vec<Block> = Vec::new();
        for index in 0..STAGES * shape.blocks {
            let before = blocks.last().map_or(&stem, |block| &block.second);
            let (plane, channels) = (before.conv.output(), before.conv.channels_out);
            blocks.push(Block::new(&mut tensors, index, plane, channels, &shape));
        }
        let features = shape.channels << (STAGES - 1);
        let deviation = (1.0 / features as f64).sqrt();
        let weight = tensors.add("classifier.weight", &[shape.classes, features], Init::Normal(deviation));
        let bias = tensors.add("classifier.bias", &[shape.classes], Init::Zeros);
        Ok(ResNet { shape, tensors, stem, blocks, weight, bias })
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Convolutions are height × width × channels in × channels out.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// The logits of the image that `run` holds.
    pub fn forward<'a>(&self, params: &[f32], run: &'a mut Activations) -> &'a [f32] {
        let Activations { input, stem, blocks, features, logits, scratch, .. } = run;
        self.stem.forward(params, input, stem, Then::Relu, scratch);
        let mut x = &stem.out;
        for (block, trace) in self.blocks.iter().zip(blocks) {
            block.forward(params, x, trace, scratch);
            x = &trace.second.out;
        }
        pool::forward(self.last_plane(), features, x);
        classify::forward(logits, features, &params[self.weight.clone()], &params[self.bias.clone()]);
        logits
    }

    /// To be called before `backward`, once for these parameters.
    pub fn prepare_backward(&self, params: &[f32], run: &mut Activations) {
        self.units()
            .for_each(|unit| unit.conv.flip(&params[unit.weight.clone()], &mut run.flipped[unit.weight.clone()]));
    }

    /// Adds `weight` times the gradient of the loss of the image that just went `forward` to `grad`; returns the loss.
    pub fn backward(&self, params: &[f32], label: usize, weight: f32, run: &mut Activations, grad: &mut [f32]) -> f32 {
        let Activations { input, stem, blocks, features, d_features, logits, slopes, flipped, scratch } = run;
        let loss = classify::loss(logits, label);
        classify::backward_loss(logits, label, weight);
        let of_classifier = pair(grad, &self.weight, &self.bias);
        classify::backward(d_features, of_classifier, logits, features, &params[self.weight.clone()]);
        pool::backward(self.last_plane(), &mut slopes[STAGES - 1].out, d_features);

        for (index, block) in self.blocks.iter().enumerate().rev() {
            let (before, here) = blocks.split_at_mut(index);
            let x = before.last().map_or(&stem.out, |trace| &trace.second.out);
            let mut way = Way { params, flipped, grad, scratch };
            block.backward(&mut way, x, &here[0], slopes);
        }
        let Slopes { out, conv, .. } = &mut slopes[0];
        let mut way = Way { params, flipped, grad, scratch };
        self.stem.backward(&mut way, input, stem, true, out, conv);
        loss
    }

    fn last_plane(&self) -> Plane {
        self.blocks[self.blocks.len() - 1].second.norm.plane
    }

    fn units(&self) -> impl Iterator<Item = &Unit> {
        std::iter::once(&self.stem).chain(self.blocks.iter().flat_map(Block::units))
    }
}

impl Block {
    fn new(tensors: &mut Tensors, index: usize, plane: Plane, channels_in: usize, shape: &Shape) -> Block {
        let stage = index / shape.blocks;
        let channels = shape.channels << stage;
        let stride = if stage > 0 && index.is_multiple_of(shape.blocks) { 2 } else { 1 };
        let mut unit =
            |names: [&str; 2], conv: Conv| Unit::new(tensors, names.map(|name| format!("blocks.{index}.{name}")), conv);
        let first = unit(["conv1", "norm1"], conv(plane, channels_in, channels, 3, stride));
        let second = unit(["conv2", "norm2"], conv(first.conv.output(), channels, channels, 3, 1));
        let shortcut =
            (stride > 1).then(|| unit(["shortcut.0", "shortcut.1"], conv(plane, channels_in, channels, 1, stride)));
        Block { stage, first, second, shortcut }
    }

    fn units(&self) -> impl Iterator<Item = &Unit> {
        [&self.first, &self.second].into_iter().chain(&self.shortcut)
    }

    fn forward(&self, params: &[f32], x: &[f32], trace: &mut BlockTrace, scratch: &mut [f32]) {
        self.first.forward(params, x, &mut trace.first, Then::Relu, scratch);
        let mut shortcut = x;
        if let (Some(unit), Some(trace)) = (&self.shortcut, &mut trace.shortcut) {
            unit.forward(params, x, trace, Then::Nothing, scratch);
            shortcut = &trace.out;
        }
        self.second.forward(params, &trace.first.out, &mut trace.second, Then::AddRelu(shortcut), scratch);
    }

    /// From the gradient of the block's output, `slopes[stage].out`, to that of its input: in the same place, or in the
    /// place of the stage before where the size changes.
    fn backward(&self, way: &mut Way, x: &[f32], trace: &BlockTrace, slopes: &mut [Slopes]) {
        let (before, here) = slopes.split_at_mut(self.stage);
        let Slopes { out, middle, conv } = &mut here[0];
        self.second.backward(way, &trace.first.out, &trace.second, true, out, conv);
        self.second.backward_input(way, middle, 0.0, conv);

        self.first.backward(way, x, &trace.first, true, middle, conv);
        match (&self.shortcut, &trace.shortcut, before.last_mut()) {
            (Some(shortcut), Some(trace), Some(before)) => {
                self.first.backward_input(way, &mut before.out, 0.0, conv);
                shortcut.backward(way, x, trace, false, out, conv);
                shortcut.backward_input(way, &mut before.out, 1.0, conv);
            }
            _ => self.first.backward_input(way, out, 1.0, conv), // the shortcut's gradient is already there
        }
    }
}

/// What all units share on the way back.
struct Way<'a> {
    params: &'a [f32],
    flipped: &'a [f32],
    grad: &'a mut [f32],
    scratch: &'a mut [f32],
}

impl Unit {
    fn new(tensors: &mut Tensors, names: [impl AsRef<str>; 2], conv: Conv) -> Unit {
        let [of_conv, of_norm] = names;
        let Conv { kernel, channels_in, channels_out, .. } = conv;
        let of_he = (2.0 / (kernel * kernel * channels_in) as f64).sqrt();
        let shape = [kernel, kernel, channels_in, channels_out];
        let weight = tensors.add(format!("{}.weight", of_conv.as_ref()), &shape, Init::Normal(of_he));
        let gain = tensors.add(format!("{}.weight", of_norm.as_ref()), &[channels_out], Init::Ones);
        let bias = tensors.add(format!("{}.bias", of_norm.as_ref()), &[channels_out], Init::Zeros);
        Unit { conv, norm: GroupNorm { plane: conv.output(), channels: channels_out }, weight, gain, bias }
    }

    fn forward(&self, params: &[f32], x: &[f32], trace: &mut Trace, then: Then, scratch: &mut [f32]) {
        self.conv.forward(&mut trace.conv, x, &params[self.weight.clone()], scratch);
        let (gain, bias) = (&params[self.gain.clone()], &params[self.bias.clone()]);
        self.norm.forward(&mut trace.out, &mut trace.moments, &trace.conv, gain, bias, then);
    }

    /// From the gradient of what came out, `d_out`, to that of what the norm got, `d_conv`; adds those of the parameters.
    fn backward(&self, way: &mut Way, x: &[f32], trace: &Trace, relu: bool, d_out: &mut [f32], d_conv: &mut [f32]) {
        let (gain, grad) = (&way.params[self.gain.clone()], pair(way.grad, &self.gain, &self.bias));
        let passed = Passed { x: &trace.conv, moments: &trace.moments, relu: relu.then_some(&trace.out) };
        self.norm.backward(d_conv, grad, d_out, passed, gain, way.scratch);
        self.conv.backward_weight(&mut way.grad[self.weight.clone()], x, d_conv, way.scratch);
    }

    fn backward_input(&self, way: &mut Way, dx: &mut [f32], keep: f32, d_conv: &[f32]) {
        self.conv.backward_input(dx, keep, d_conv, &way.flipped[self.weight.clone()], way.scratch);
    }

    /// Values of scratch that both the convolution and the norm want.
    fn scratch(&self) -> usize {
        self.conv.scratch().max(2 * self.conv.channels_out)
    }
}

impl Activations {
    pub fn new(net: &ResNet) -> Activations {
        let size = |unit: &Unit| unit.norm.plane.pixels() * unit.norm.channels;
        let trace = |unit: &Unit| Trace {
            conv: vec![0.0; size(unit)],
            moments: vec![0.0; unit.norm.moments()],
            out: vec![0.0; size(unit)],
        };
        let slopes = |stage: usize| {
            let size = size(&net.blocks[stage * net.shape.blocks].second);
            Slopes { out: vec![0.0; size], middle: vec![0.0; size], conv: vec![0.0; size] }
        };
        let of_block = |block: &Block| BlockTrace {
            first: trace(&block.first),
            second: trace(&block.second),
            shortcut: block.shortcut.as_ref().map(trace),
        };
        let features = net.shape.channels << (STAGES - 1);
        Activations {
            input: vec![0.0; net.stem.conv.plane.pixels() * net.shape.channels_in],
            stem: trace(&net.stem),
            blocks: net.blocks.iter().map(of_block).collect(),
            features: vec![0.0; features],
            d_features: vec![0.0; features],
            logits: vec![0.0; net.shape.classes],
            slopes: (0..STAGES).map(slopes).collect(),
            flipped: vec![0.0; net.tensors.len()],
            scratch: vec![0.0; net.units().map(Unit::scratch).max().unwrap_or(0)],
        }
    }

    /// Takes an image: `value(channel, pixel)` for every channel and pixel.
    pub fn set_image(&mut self, shape: &Shape, value: impl Fn(usize, usize) -> f32) {
        let plane = Plane::new(shape.height, shape.width);
        for y in 0..shape.height {
            let row = &mut self.input[plane.row(y) * shape.channels_in..][..shape.width * shape.channels_in];
            for (x, pixel) in row.chunks_exact_mut(shape.channels_in).enumerate() {
                for (channel, input) in pixel.iter_mut().enumerate() {
                    *input = value(channel, y * shape.width + x);
                }
            }
        }
    }
}

fn conv(plane: Plane, channels_in: usize, channels_out: usize, kernel: usize, stride: usize) -> Conv {
    Conv { plane, channels_in, channels_out, kernel, stride }
}

/// Two neighbours of the flat vector.
fn pair<'a>(flat: &'a mut [f32], first: &Range<usize>, second: &Range<usize>) -> (&'a mut [f32], &'a mut [f32]) {
    debug_assert_eq!(first.end, second.start);
    flat[first.start..second.end].split_at_mut(first.len())
}
