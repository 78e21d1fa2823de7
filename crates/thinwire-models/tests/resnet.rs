//! The network for images: each layer against an obvious twin in f64 and its finite differences, the whole against
//! PyTorch's numbers, and the order of the data against its laws.

use thinwire_models::images::{Images, Split};
use thinwire_models::layer::conv::Conv;
use thinwire_models::layer::group_norm::{GROUPS, GroupNorm, Passed, Then};
use thinwire_models::layer::plane::Plane;
use thinwire_models::layer::{classify, pool};
use thinwire_models::random::Random;
use thinwire_models::resnet::{Activations, ResNet, Shape};
use thinwire_models::task::images::{ImageLearner, ImageTask};
use thinwire_models::{Score, Share, Task};

// ------------------------------------------------------------------------------------------------ helpers

fn noise(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.normal() as f32).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The image with a border of `border`.
fn bordered(plane: Plane, channels: usize, inner: &[f32], border: f32) -> Vec<f32> {
    let mut out = vec![border; plane.pixels() * channels];
    for (y, row) in inner.chunks_exact(plane.width * channels).enumerate() {
        out[plane.row(y) * channels..][..row.len()].copy_from_slice(row);
    }
    out
}

/// The image without its border.
fn inner(plane: Plane, channels: usize, values: &[f32]) -> Vec<f32> {
    (0..plane.height).flat_map(|y| values[plane.row(y) * channels..][..plane.width * channels].to_vec()).collect()
}

/// The gradient of f at `at`, by central differences.
fn differences(at: &[f64], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let step = 1e-5;
    let mut moved = at.to_vec();
    let mut gradient = Vec::new();
    for index in 0..at.len() {
        moved[index] = at[index] + step;
        let up = f(&moved);
        moved[index] = at[index] - step;
        gradient.push((up - f(&moved)) / (2.0 * step));
        moved[index] = at[index];
    }
    gradient
}

#[track_caller]
fn assert_close(what: &str, got: &[f32], expected: &[f64]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let size = expected.iter().fold(1e-3, |size: f64, value| size.max(value.abs()));
    for (index, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let off = (f64::from(got) - expected).abs();
        assert!(off <= 1e-4 * size, "{what}[{index}]: {got}, expected {expected} (largest {size})");
    }
}

// ------------------------------------------------------------------------------------------------ layers

/// The definition of a convolution, over images without a border.
fn slow_conv(conv: &Conv, x: &[f64], weight: &[f64]) -> Vec<f64> {
    let (plane, output, half) = (conv.plane, conv.output(), conv.kernel as isize / 2);
    let mut out = vec![0.0; output.area() * conv.channels_out];
    for (at, pixel) in out.chunks_exact_mut(conv.channels_out).enumerate() {
        let (y, x_at) = (at / output.width * conv.stride, at % output.width * conv.stride);
        for tap in 0..conv.kernel * conv.kernel {
            let y = y as isize + (tap / conv.kernel) as isize - half;
            let x_at = x_at as isize + (tap % conv.kernel) as isize - half;
            if y < 0 || x_at < 0 || y >= plane.height as isize || x_at >= plane.width as isize {
                continue;
            }
            let from = (y as usize * plane.width + x_at as usize) * conv.channels_in;
            for channel in 0..conv.channels_in {
                let row = &weight[(tap * conv.channels_in + channel) * conv.channels_out..][..conv.channels_out];
                pixel.iter_mut().zip(row).for_each(|(out, w)| *out += x[from + channel] * w);
            }
        }
    }
    out
}

/// Shapes read in place and shapes that are copied out; odd sizes; strides 1 and 2.
#[test]
fn convolution_agrees_with_its_definition_and_finite_differences() {
    let cases =
        [(5, 7, 8, 16, 3, 1), (4, 4, 16, 8, 3, 1), (1, 1, 8, 8, 3, 1), (7, 5, 8, 16, 3, 2), (6, 8, 16, 8, 3, 2)]
            .into_iter()
            .chain([
                (8, 6, 8, 16, 1, 2),
                (5, 7, 8, 8, 1, 2),
                (3, 3, 8, 8, 1, 1),
                (5, 5, 1, 8, 3, 1),
                (6, 4, 3, 8, 3, 1),
            ]);
    for (height, width, channels_in, channels_out, kernel, stride) in cases {
        let conv = Conv { plane: Plane::new(height, width), channels_in, channels_out, kernel, stride };
        let (plane, output) = (conv.plane, conv.output());
        let random = &mut Random::of(&[height as u64, width as u64, kernel as u64, stride as u64]);
        let x = noise(random, plane.area() * channels_in);
        let weight = noise(random, conv.weights());
        let dy = noise(random, output.area() * channels_out);
        let loss = |x: &[f64], weight: &[f64]| dot(&slow_conv(&conv, x, weight), &wide(&dy));

        // What has no meaning starts as NaN: whoever reads it is found out.
        let nan = |plane: Plane, channels: usize| vec![f32::NAN; plane.pixels() * channels];
        let (x_in, dy_in) = (bordered(plane, channels_in, &x, 0.0), bordered(output, channels_out, &dy, 0.0));
        let mut scratch = vec![f32::NAN; conv.scratch()];
        let mut y = nan(output, channels_out);
        conv.forward(&mut y, &x_in, &weight, &mut scratch);
        let expected = slow_conv(&conv, &wide(&x), &wide(&weight));
        assert_close(&format!("{conv:?} y"), &inner(output, channels_out, &y), &expected);

        scratch.fill(f32::NAN);
        let mut grad = vec![1.0; weight.len()];
        conv.backward_weight(&mut grad, &x_in, &dy_in, &mut scratch);
        grad.iter_mut().for_each(|grad| *grad -= 1.0);
        let expected = differences(&wide(&weight), |weight| loss(&wide(&x), weight));
        assert_close(&format!("{conv:?} weight"), &grad, &expected);

        scratch.fill(f32::NAN);
        let (mut dx, mut flipped) = (nan(plane, channels_in), vec![f32::NAN; weight.len()]);
        conv.flip(&weight, &mut flipped);
        conv.backward_input(&mut dx, 0.0, &dy_in, &flipped, &mut scratch);
        let expected = differences(&wide(&x), |x| loss(x, &wide(&weight)));
        assert_close(&format!("{conv:?} dx"), &inner(plane, channels_in, &dx), &expected);

        let mut added = bordered(plane, channels_in, &x, 0.0);
        conv.backward_input(&mut added, 1.0, &dy_in, &flipped, &mut scratch);
        let expected: Vec<f64> = expected.iter().zip(&x).map(|(dx, &x)| dx + f64::from(x)).collect();
        assert_close(&format!("{conv:?} dx added"), &inner(plane, channels_in, &added), &expected);
    }
}

/// The definition of group norm and what follows it, over images without a border.
fn slow_norm(channels: usize, x: &[f64], gain: &[f64], bias: &[f64], shortcut: Option<&[f64]>, relu: bool) -> Vec<f64> {
    let group_of = |index: usize| index % channels / (channels / GROUPS);
    let mut out = vec![0.0; x.len()];
    for group in 0..GROUPS {
        let members: Vec<usize> = (0..x.len()).filter(|&index| group_of(index) == group).collect();
        let count = members.len() as f64;
        let mean = members.iter().map(|&index| x[index]).sum::<f64>() / count;
        let variance = members.iter().map(|&index| (x[index] - mean).powi(2)).sum::<f64>() / count;
        for index in members {
            let normed = (x[index] - mean) / (variance + 1e-5).sqrt();
            let y = gain[index % channels] * normed + bias[index % channels] + shortcut.map_or(0.0, |add| add[index]);
            out[index] = if relu { y.max(0.0) } else { y };
        }
    }
    out
}

#[test]
fn group_norm_agrees_with_its_definition_and_finite_differences() {
    for (height, width, channels) in [(3, 5, 8), (2, 2, 16), (4, 3, 24), (1, 3, 32)] {
        for (relu, with_shortcut) in [(false, false), (true, false), (true, true)] {
            let norm = GroupNorm { plane: Plane::new(height, width), channels };
            let random = &mut Random::of(&[height as u64, channels as u64]);
            let size = norm.plane.area() * channels;
            let [x, dy, shortcut] = [(); 3].map(|()| noise(random, size));
            let x: Vec<f32> = x.iter().map(|x| 2.0 * x + 3.0).collect();
            let [gain, bias] = [(); 2].map(|()| noise(random, channels));
            let what = format!("{norm:?}, relu {relu}, shortcut {with_shortcut}");
            let slow = |x: &[f64], gain: &[f64], bias: &[f64], add: &[f64]| {
                slow_norm(channels, x, gain, bias, with_shortcut.then_some(add), relu)
            };
            let loss = |x: &[f64], gain: &[f64], bias: &[f64], add: &[f64]| dot(&slow(x, gain, bias, add), &wide(&dy));
            let (wide_x, wide_gain, wide_bias, wide_add) = (wide(&x), wide(&gain), wide(&bias), wide(&shortcut));
            let inner = |values: &[f32]| inner(norm.plane, channels, values);
            let in_nan = |values: &[f32]| bordered(norm.plane, channels, values, f32::NAN);

            let (x_in, shortcut_in) = (in_nan(&x), in_nan(&shortcut));
            let then = match (relu, with_shortcut) {
                (true, true) => Then::AddRelu(&shortcut_in),
                (true, false) => Then::Relu,
                _ => Then::Nothing,
            };
            let mut y = vec![0.0; x_in.len()];
            let mut moments = vec![f32::NAN; norm.moments()];
            norm.forward(&mut y, &mut moments, &x_in, &gain, &bias, then);
            assert_close(&format!("{what}: y"), &inner(&y), &slow(&wide_x, &wide_gain, &wide_bias, &wide_add));
            assert_eq!(y, bordered(norm.plane, channels, &inner(&y), 0.0), "{what}: the border was written");

            let (mut dx, mut dy_in) = (vec![0.0; x_in.len()], in_nan(&dy));
            let (mut grad_gain, mut grad_bias) = (vec![0.0; channels], vec![0.0; channels]);
            let passed = Passed { x: &x_in, moments: &moments, relu: relu.then_some(&y) };
            let mut scratch = vec![f32::NAN; norm.moments()];
            norm.backward(&mut dx, (&mut grad_gain, &mut grad_bias), &mut dy_in, passed, &gain, &mut scratch);
            let expected = differences(&wide_x, |x| loss(x, &wide_gain, &wide_bias, &wide_add));
            assert_close(&format!("{what}: dx"), &inner(&dx), &expected);
            assert_eq!(dx, bordered(norm.plane, channels, &inner(&dx), 0.0), "{what}: the border was written");
            let expected = differences(&wide_gain, |gain| loss(&wide_x, gain, &wide_bias, &wide_add));
            assert_close(&format!("{what}: gain"), &grad_gain, &expected);
            let expected = differences(&wide_bias, |bias| loss(&wide_x, &wide_gain, bias, &wide_add));
            assert_close(&format!("{what}: bias"), &grad_bias, &expected);
            if with_shortcut {
                let expected = differences(&wide_add, |add| loss(&wide_x, &wide_gain, &wide_bias, add));
                assert_close(&format!("{what}: shortcut"), &inner(&dy_in), &expected);
            }
        }
    }
}

#[test]
fn group_norm_keeps_its_digits_far_from_zero() {
    let norm = GroupNorm { plane: Plane::new(28, 28), channels: 16 };
    let x: Vec<f32> = noise(&mut Random::of(&[1]), 28 * 28 * 16).iter().map(|x| x + 1000.0).collect();
    let (mut y, mut moments) = (vec![0.0; norm.plane.pixels() * 16], vec![0.0; norm.moments()]);
    let x_in = bordered(norm.plane, 16, &x, 0.0);
    norm.forward(&mut y, &mut moments, &x_in, &[1.0; 16], &[0.0; 16], Then::Nothing);
    let expected = slow_norm(16, &wide(&x), &[1.0; 16], &[0.0; 16], None, false);
    let off = inner(norm.plane, 16, &y).into_iter().zip(&expected).map(|(y, e)| (f64::from(y) - e).abs());
    assert!(off.fold(0.0, f64::max) < 2e-2, "the mean of 784 values around 1000 is right to five digits or more");
}

#[test]
fn pool_agrees_with_finite_differences() {
    let (plane, channels) = (Plane::new(3, 5), 8);
    let random = &mut Random::of(&[2]);
    let (x, d_mean) = (noise(random, plane.area() * channels), noise(random, channels));
    let slow = |x: &[f64]| -> Vec<f64> {
        let sum = |channel| x.iter().skip(channel).step_by(channels).sum::<f64>();
        (0..channels).map(|channel| sum(channel) / plane.area() as f64).collect()
    };
    let mut mean = vec![f32::NAN; channels];
    pool::forward(plane, &mut mean, &bordered(plane, channels, &x, f32::NAN));
    assert_close("mean", &mean, &slow(&wide(&x)));
    let mut dx = vec![f32::NAN; plane.pixels() * channels];
    pool::backward(plane, &mut dx, &d_mean);
    let expected = differences(&wide(&x), |x| dot(&slow(x), &wide(&d_mean)));
    assert_close("dx", &inner(plane, channels, &dx), &expected);
}

#[test]
fn classifier_agrees_with_finite_differences() {
    let (features, classes) = (12, 5);
    let random = &mut Random::of(&[3]);
    let [x, weight, bias] = [features, classes * features, classes].map(|count| noise(random, count));
    let slow = |x: &[f64], weight: &[f64], bias: &[f64]| {
        let logits: Vec<f64> = weight.chunks(features).zip(bias).map(|(row, bias)| dot(row, x) + bias).collect();
        logits.iter().map(|logit| logit.exp()).sum::<f64>().ln() - logits[2]
    };
    let mut logits = vec![f32::NAN; classes];
    classify::forward(&mut logits, &x, &weight, &bias);
    let (wide_x, wide_weight, wide_bias) = (wide(&x), wide(&weight), wide(&bias));
    assert_close("loss", &[classify::loss(&logits, 2)], &[slow(&wide_x, &wide_weight, &wide_bias)]);

    let (mut dx, mut grad_weight, mut grad_bias) =
        (vec![f32::NAN; features], vec![0.0; weight.len()], vec![0.0; classes]);
    classify::backward_loss(&mut logits, 2, 1.0);
    classify::backward(&mut dx, (&mut grad_weight, &mut grad_bias), &logits, &x, &weight);
    assert_close("dx", &dx, &differences(&wide_x, |x| slow(x, &wide_weight, &wide_bias)));
    assert_close("weight", &grad_weight, &differences(&wide_weight, |weight| slow(&wide_x, weight, &wide_bias)));
    assert_close("bias", &grad_bias, &differences(&wide_bias, |bias| slow(&wide_x, &wide_weight, bias)));
}

#[test]
fn large_logits_do_not_overflow() {
    assert_eq!(classify::loss(&[1000.0, -1000.0, 0.0], 0), 0.0);
    assert_eq!(classify::loss(&[1000.0, -1000.0, 0.0], 1), 2000.0);
    let mut logits = [1000.0, -1000.0, 0.0];
    classify::backward_loss(&mut logits, 1, 2.0);
    assert_eq!(logits, [2.0, -2.0, 0.0]);
}

// ------------------------------------------------------------------------------------------------ the network

/// The formula of `golden/resnet.py`.
fn wave(index: usize) -> f64 {
    (index as u64 * 2_654_435_761 % (1 << 32)) as f64 / (1u64 << 31) as f64 - 1.0
}

fn numbers(words: &[&str]) -> Vec<f64> {
    words.iter().map(|word| word.parse().expect("a number")).collect()
}

struct Golden<'a> {
    sizes: Vec<usize>,
    loss: f64,
    logits: Vec<f64>,
    /// Name and length; then base, spread, norm, product with `wave`, and samples.
    tensors: Vec<(&'a str, usize, Vec<f64>)>,
}

fn golden() -> Vec<Golden<'static>> {
    let mut cases: Vec<Golden> = Vec::new();
    for line in include_str!("golden/resnet.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if words[0] == "case" {
            let sizes = words[1..].iter().map(|word| word.parse().expect("a size")).collect();
            cases.push(Golden { sizes, loss: 0.0, logits: vec![], tensors: vec![] });
            continue;
        }
        let case = cases.last_mut().expect("a case first");
        match words[0] {
            "loss" => case.loss = numbers(&words[1..])[0],
            "logits" => case.logits = numbers(&words[1..]),
            "tensor" => case.tensors.push((words[1], words[2].parse().expect("a length"), numbers(&words[3..]))),
            other => panic!("{other}"),
        }
    }
    cases
}

#[test]
fn network_agrees_with_pytorch() {
    let cases = golden();
    assert_eq!(cases.len(), 4);
    for Golden { sizes, loss, logits, tensors } in cases {
        let &[channels_in, height, width, classes, channels, blocks, batch] = &sizes[..] else { panic!("{sizes:?}") };
        let shape = Shape { channels_in, height, width, classes, channels, blocks };
        let net = ResNet::new(shape).unwrap();
        let names = net.tensors().iter().map(|tensor| (tensor.name.as_str(), tensor.range.len()));
        assert!(names.eq(tensors.iter().map(|(name, len, _)| (*name, *len))), "{shape:?}");

        let mut params = vec![0.0; net.tensors().len()];
        for (tensor, (_, _, values)) in net.tensors().iter().zip(&tensors) {
            tensor.range.clone().for_each(|index| params[index] = (values[0] + values[1] * wave(index)) as f32);
        }
        let mut run = Activations::new(&net);
        let mut grad = vec![0.0; params.len()];
        let (mut got_loss, mut got_logits) = (0.0, Vec::new());
        net.prepare_backward(&params, &mut run);
        for image in 0..batch {
            let (area, start) = (height * width, 1000 + image * channels_in * height * width);
            run.set_image(&shape, |channel, pixel| wave(start + channel * area + pixel) as f32);
            got_logits.extend(net.forward(&params, &mut run));
            let weight = 1.0 / batch as f32;
            got_loss += net.backward(&params, image % classes, weight, &mut run, &mut grad) / batch as f32;
        }
        assert_close("loss", &[got_loss], &[loss]);
        assert_close("logits", &got_logits, &logits);
        for (tensor, (name, len, values)) in net.tensors().iter().zip(&tensors) {
            let grad = wide(&grad[tensor.range.clone()]);
            let norm = dot(&grad, &grad).sqrt();
            let product: f64 = grad.iter().enumerate().map(|(index, grad)| grad * wave(7 + index)).sum();
            let samples = (0..8).map(|sample| grad[sample * len / 8]);
            let got: Vec<f64> = [norm, product].into_iter().chain(samples).collect();
            for (got, expected) in got.iter().zip(&values[2..]) {
                assert!((got - expected).abs() <= 1e-4 * values[2], "{shape:?} {name}: {got:?}, expected {values:?}");
            }
        }
    }
}

#[test]
fn impossible_shapes_are_refused_by_name() {
    let good = Shape { channels_in: 1, height: 8, width: 8, classes: 3, channels: 16, blocks: 1 };
    let bad = [
        (Shape { channels_in: 0, ..good }, "channels_in = 0: must be at least 1"),
        (Shape { height: 3, ..good }, "height = 3: must be at least 4"),
        (Shape { width: 0, ..good }, "width = 0: must be at least 4"),
        (Shape { classes: 1, ..good }, "classes = 1: must be at least 2"),
        (Shape { channels: 12, ..good }, "channels = 12: must be a multiple of 8"),
        (Shape { channels: 0, ..good }, "channels = 0: must be a multiple of 8"),
        (Shape { blocks: 0, ..good }, "blocks = 0: must be at least 1"),
    ];
    assert!(ResNet::new(good).is_ok());
    for (shape, message) in bad {
        let error = ResNet::new(shape).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}

// ------------------------------------------------------------------------------------------------ the task

/// Images of class k are brighter in corner k; noise elsewhere.
fn split(seed: u64, count: usize) -> Split {
    let random = &mut Random::of(&[seed]);
    let labels: Vec<u8> = (0..count).map(|_| random.below(3) as u8).collect();
    let mut pixels = Vec::new();
    for label in &labels {
        for at in 0..64 {
            let corner = (at / 32) * 2 + at % 8 / 4;
            pixels.push((random.below(120) + if corner == usize::from(*label) { 130 } else { 0 }) as u8);
        }
    }
    Split { pixels, labels }
}

fn images(train: usize, held_out: usize) -> Images {
    Images { channels: 1, height: 8, width: 8, classes: 3, train: split(1, train), held_out: split(2, held_out) }
}

fn task(train: usize, held_out: usize) -> ImageTask {
    ImageTask::new(images(train, held_out), 8, 1).unwrap()
}

const ALONE: Share = Share { rank: 0, workers: 1 };

#[test]
fn the_same_input_gives_the_same_bits() {
    let task = task(20, 5);
    let params = task.initial(4);
    let gradient = |learner: &mut dyn thinwire_models::Learner| {
        let mut grad = vec![0.0; params.len()];
        let loss = learner.learn(&params, 3, 1.0, &mut grad);
        (loss.to_bits(), grad.iter().map(|value| value.to_bits()).collect::<Vec<u32>>())
    };
    let mut learner = task.learner(ALONE, 3, 1);
    let first = gradient(&mut *learner);
    assert_eq!(first, gradient(&mut *learner));

    // Not even NaN leaves a trace.
    let mut lost = vec![0.0; params.len()];
    assert!(learner.learn(&vec![f32::NAN; params.len()], 0, 1.0, &mut lost).is_nan());
    learner.evaluate(&params, usize::MAX);
    assert_eq!(first, gradient(&mut *learner));

    let mut travelled = task.learner(ALONE, 3, 1);
    for index in 0..3 {
        travelled.learn(&params, index, 1.0, &mut lost);
    }
    assert_eq!(first, gradient(&mut *travelled));
}

#[test]
fn gradients_are_added_by_weight() {
    let task = task(20, 5);
    let params = task.initial(4);
    let mut learner = task.learner(ALONE, 3, 1);
    let (mut whole, mut halves) = (vec![0.25; params.len()], vec![0.25; params.len()]);
    learner.learn(&params, 0, 1.0, &mut whole);
    learner.learn(&params, 0, 0.5, &mut halves);
    learner.learn(&params, 0, 0.5, &mut halves);
    assert_close("gradient", &halves, &wide(&whole));
    assert!(whole.iter().any(|value| (value - 0.25).abs() > 0.01));
}

#[test]
fn a_batch_has_the_mean_of_its_images_gradients() {
    let task = task(20, 5);
    let params = task.initial(4);
    let (mut batch, mut singles) = (vec![0.0; params.len()], vec![0.0; params.len()]);
    let loss = task.learner(ALONE, 3, 1).learn(&params, 2, 1.0, &mut batch);
    let mut single = task.learner(ALONE, 1, 1);
    let losses: f32 = (6..9).map(|index| single.learn(&params, index, 1.0 / 3.0, &mut singles)).sum();
    assert_close("loss", &[losses / 3.0], &[f64::from(loss)]);
    assert_close("gradient", &singles, &wide(&batch));
}

/// The first `count` images that each of `workers` workers takes.
fn taken(task: &ImageTask, workers: usize, seed: u64, count: u64) -> Vec<Vec<usize>> {
    let of_worker = |rank| {
        let mut learner = ImageLearner::new(task, Share { rank, workers }, 2, seed);
        (0..count).map(|example| learner.training_image(example)).collect()
    };
    (0..workers).map(of_worker).collect()
}

#[test]
fn each_epoch_holds_each_image_once_over_all_workers() {
    for images in [1, 2, 7, 13, 20] {
        let task = task(images, 1);
        for workers in 1..=5 {
            let epochs = 3;
            let count = (epochs * images).div_ceil(workers);
            let taken = taken(&task, workers, 9, count as u64);
            let in_turn: Vec<usize> =
                (0..epochs * images).map(|position| taken[position % workers][position / workers]).collect();
            let mut orders = Vec::new();
            for epoch in in_turn.chunks(images) {
                let mut sorted = epoch.to_vec();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..images), "{images} images, {workers} workers: {epoch:?}");
                orders.push(epoch);
            }
            assert!(images < 7 || (orders[0] != orders[1] && orders[1] != orders[2]), "every epoch has its own order");
        }
    }
}

#[test]
fn the_order_follows_the_seed_and_nothing_else() {
    let task = task(13, 1);
    assert_eq!(taken(&task, 3, 9, 30), taken(&task, 3, 9, 30));
    assert_ne!(taken(&task, 3, 9, 30), taken(&task, 3, 10, 30));
    let forth = taken(&task, 3, 9, 30);
    let mut learner = ImageLearner::new(&task, Share { rank: 1, workers: 3 }, 2, 9);
    for example in (0..30).rev() {
        assert_eq!(learner.training_image(example), forth[1][example as usize]);
    }
}

#[test]
fn parts_of_an_evaluation_add_up() {
    for held_out in [1, 3, 11] {
        let task = task(5, held_out);
        let params = task.initial(4);
        let whole = task.learner(ALONE, 4, 1).evaluate(&params, usize::MAX);
        assert_eq!((whole.count, whole.confusion.iter().sum::<u64>()), (held_out as u64, held_out as u64));
        for label in 0..3 {
            let expected = split(2, held_out).labels.iter().filter(|&&of| usize::from(of) == label).count();
            assert_eq!(whole.confusion[label * 3..][..3].iter().sum::<u64>(), expected as u64);
        }
        for workers in 2..=5 {
            let mut sum = Score::default();
            for rank in 0..workers {
                sum.add(&task.learner(Share { rank, workers }, 4, 1).evaluate(&params, usize::MAX));
            }
            assert_eq!((sum.count, &sum.confusion), (whole.count, &whole.confusion), "{workers} workers");
            assert!((sum.loss - whole.loss).abs() < 1e-9 * whole.loss);
        }
    }
}

#[test]
fn wrong_data_is_refused() {
    let refused = |change: fn(&mut Images)| {
        let mut images = images(4, 4);
        change(&mut images);
        ImageTask::new(images, 8, 1).err().expect("an error").to_string()
    };
    assert!(refused(|images| images.train = split(1, 0)).starts_with("training images = 0"));
    assert!(refused(|images| images.held_out = split(1, 0)).starts_with("held-out images = 0"));
    assert!(refused(|images| images.held_out.labels[1] = 3).contains("label 3 among 3 classes"));
    assert!(refused(|images| images.train.pixels.truncate(100)).contains("100 bytes of pixels, 256 were expected"));
}

#[test]
fn a_channel_without_contrast_is_no_trouble() {
    let mut images = images(4, 4);
    images.train.pixels.fill(7);
    let task = ImageTask::new(images, 8, 1).unwrap();
    let params = task.initial(1);
    let mut grad = vec![0.0; params.len()];
    assert!(task.learner(ALONE, 4, 1).learn(&params, 0, 1.0, &mut grad).is_finite());
    assert!(grad.iter().all(|value| value.is_finite()));
}

#[test]
fn it_learns() {
    let task = task(60, 60);
    let mut params = task.initial(1);
    let mut learner = task.learner(ALONE, 10, 1);
    let before = learner.evaluate(&params, usize::MAX).mean_loss();
    for index in 0..60 {
        let mut grad = vec![0.0; params.len()];
        learner.learn(&params, index, 1.0, &mut grad);
        params.iter_mut().zip(&grad).for_each(|(param, grad)| *param -= 0.1 * grad);
    }
    let after = learner.evaluate(&params, usize::MAX);
    assert!(after.mean_loss() < 0.3 * before, "{before} before, {} after", after.mean_loss());
    assert!(after.accuracy().unwrap() > 0.9, "{after:?}");
}
