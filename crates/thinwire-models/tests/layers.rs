//! Every layer of the transformer: its gradient is the derivative of its own forward, and attention is its definition.
//!
//! Buffers that a layer must write are handed over full of NaN: whoever reads what was there before is found out.

use thinwire_models::layer::attention::{self, Sizes};
use thinwire_models::layer::{cross_entropy, embedding, gelu, layer_norm, linear};
use thinwire_models::random::Random;

fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut random = Random::of(&[seed]);
    (0..len).map(|_| random.normal() as f32).collect()
}

fn nan(len: usize) -> Vec<f32> {
    vec![f32::NAN; len]
}

/// Σ aᵢ·bᵢ: what is differentiated is a layer's output along random weights.
fn along(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// Compares `gradient` at up to 150 places of `x` with central differences of fourth order, whose error an f32 can bear.
fn assert_derivative(name: &str, x: &[f32], gradient: &[f32], mut function: impl FnMut(&[f32]) -> f64) {
    const H: f32 = 1.0 / 32.0;
    assert_eq!(x.len(), gradient.len(), "{name}");
    let mut places = (0..x.len()).collect::<Vec<_>>();
    Random::of(&[99]).shuffle(&mut places);
    let scale = gradient.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    let mut moved = x.to_vec();
    for &place in places.iter().take(150) {
        let mut at = |steps: f32| {
            moved[place] = x[place] + steps * H;
            let value = function(&moved);
            moved[place] = x[place];
            value
        };
        let slope = (8.0 * (at(1.0) - at(-1.0)) - (at(2.0) - at(-2.0))) / (12.0 * f64::from(H));
        let error = (slope - f64::from(gradient[place])).abs();
        assert!(error <= 2e-4 * f64::from(scale), "{name}[{place}]: {} is not {slope}", gradient[place]);
    }
}

#[test]
fn linear() {
    for (rows, inputs, outputs, biased) in [(1, 1, 1, true), (5, 3, 7, true), (17, 33, 9, false), (2, 64, 65, true)] {
        let (x, weight) = (random(1, rows * inputs), random(2, outputs * inputs));
        let bias = random(3, if biased { outputs } else { 0 });
        let dy = random(4, rows * outputs);
        let run = |x: &[f32], weight: &[f32], bias: &[f32]| {
            let mut y = nan(rows * outputs);
            linear::forward(&mut y, x, weight, bias, inputs, outputs);
            along(&y, &dy)
        };
        let (mut dx, mut dw, mut db) = (nan(x.len()), vec![0.0; weight.len()], vec![0.0; bias.len()]);
        linear::backward_input(&mut dx, &dy, &weight, inputs, outputs);
        linear::backward_weight(&mut dw, &mut db, &dy, &x, inputs, outputs);
        assert_derivative("x", &x, &dx, |x| run(x, &weight, &bias));
        assert_derivative("weight", &weight, &dw, |weight| run(&x, weight, &bias));
        assert_derivative("bias", &bias, &db, |bias| run(&x, &weight, bias));
    }
}

#[test]
fn layer_norm() {
    for (rows, width) in [(1, 2), (5, 3), (3, 16), (4, 37)] {
        let (x, gain, bias, dy) =
            (random(1, rows * width), random(2, width), random(3, width), random(4, rows * width));
        let run = |x: &[f32], gain: &[f32], bias: &[f32]| {
            let (mut y, mut statistics) = (nan(rows * width), nan(2 * rows));
            layer_norm::forward(&mut y, &mut statistics, x, gain, bias);
            (along(&y, &dy), statistics)
        };
        let (_, statistics) = run(&x, &gain, &bias);
        let (mut dx, mut dgain, mut dbias) = (vec![0.0; x.len()], vec![0.0; width], vec![0.0; width]);
        layer_norm::backward(&mut dx, (&mut dgain, &mut dbias), &mut dy.clone(), &x, &gain, &statistics);
        assert_derivative("gain", &gain, &dgain, |gain| run(&x, gain, &bias).0);
        assert_derivative("bias", &bias, &dbias, |bias| run(&x, &gain, bias).0);
        // Of two values only the sign of their difference is left, and a step may be too long for that.
        if width > 2 {
            assert_derivative("x", &x, &dx, |x| run(x, &gain, &bias).0);
        }
    }
}

#[test]
fn gelu() {
    let x = (-60..=60).map(|i| i as f32 / 10.0).collect::<Vec<_>>();
    let run = |x: &[f32], dy: &[f32]| {
        let mut y = nan(x.len());
        gelu::forward(&mut y, x);
        along(&y, dy)
    };
    let dy = random(1, x.len());
    let mut d = dy.clone();
    gelu::backward(&mut d, &x);
    assert_derivative("x", &x, &d, |x| run(x, &dy));
    // As PyTorch has it: gelu(1, approximate='tanh').
    assert!((run(&[1.0], &[1.0]) - 0.841_191_990_6).abs() < 1e-7);
    // Far out it is x, or nothing; and no NaN.
    assert_eq!((run(&[100.0], &[1.0]), run(&[-100.0], &[1.0])), (100.0, 0.0));
    let mut far = [1.0, 1.0];
    gelu::backward(&mut far, &[100.0, -100.0]);
    assert_eq!(far, [1.0, 0.0]);
}

#[test]
fn embedding() {
    let (width, context, vocabulary) = (3, 4, 5);
    let tokens = [0, 4, 4, 1, 2, 0, 4, 2]; // 3 is never seen, 4 is seen twice in an example
    let (token, position, dy) =
        (random(1, vocabulary * width), random(2, context * width), random(3, tokens.len() * width));
    let run = |token: &[f32], position: &[f32]| {
        let mut y = nan(tokens.len() * width);
        embedding::forward(&mut y, &tokens, token, position, width, context);
        along(&y, &dy)
    };
    let (mut dtoken, mut dposition) = (vec![0.0; token.len()], vec![0.0; position.len()]);
    embedding::backward(&mut dtoken, &mut dposition, &dy, &tokens, width, context);
    assert_eq!(dtoken[3 * width..4 * width], [0.0; 3]);
    assert_derivative("token", &token, &dtoken, |token| run(token, &position));
    assert_derivative("position", &position, &dposition, |position| run(&token, position));
}

#[test]
fn cross_entropy() {
    for (rows, classes) in [(1, 1), (1, 2), (6, 5), (3, 40)] {
        let logits = random(1, rows * classes);
        let targets = (0..rows).map(|row| (row * 3 % classes) as u32).collect::<Vec<_>>();
        let run = |logits: &[f32], weight| {
            let (mut gradient, mut answers) = (logits.to_vec(), Vec::new());
            let answered = |row, answer| answers.push((row, answer));
            let loss = cross_entropy::forward_backward(&mut gradient, &targets, weight, answered);
            (loss, gradient, answers)
        };
        let (loss, gradient, answers) = run(&logits, 0.5);
        let weighted = |logits: &[f32]| 0.5 * run(logits, 1.0).0;
        assert_derivative("logits", &logits, &gradient, weighted);
        let mut expected = 0.0;
        for (row, logits) in logits.chunks(classes).enumerate() {
            let total = logits.iter().map(|&logit| f64::from(logit).exp()).sum::<f64>();
            expected += total.ln() - f64::from(logits[targets[row] as usize]);
            let most = (0..classes).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
            assert_eq!(answers[row], (row, most));
        }
        assert!((loss - expected).abs() < 1e-5 * rows as f64);
    }
    // Large logits do not overflow.
    let mut logits = [1000.0, 0.0];
    assert_eq!(cross_entropy::forward_backward(&mut logits, &[0], 1.0, |_, _| {}), 0.0);
}

/// The cases of attention: contexts on both sides of its blocks of 64 rows, causal or not, and padded or not.
fn attention_cases() -> Vec<(Sizes, Vec<usize>)> {
    let mut cases = Vec::new();
    for (context, lengths) in [(1, [1, 1]), (7, [7, 3]), (64, [64, 1]), (65, [65, 64]), (130, [130, 66])] {
        for causal in [true, false] {
            let sizes = Sizes { context, heads: 2, dim: 6, causal };
            cases.extend([(sizes, vec![context; 2]), (sizes, lengths.to_vec())]);
        }
    }
    cases
}

fn attend(qkv: &[f32], lengths: &[usize], sizes: Sizes) -> (Vec<f32>, Vec<f32>) {
    let rows = lengths.len() * sizes.context;
    let (mut out, mut probs) = (nan(rows * sizes.dim), nan(rows * sizes.heads * sizes.context));
    attention::forward(&mut out, &mut probs, qkv, lengths, sizes);
    (out, probs)
}

/// P = softmax(Q·Kᵀ/√s), out = P·V, one value after the other.
fn attention_by_definition(qkv: &[f32], length: usize, sizes: Sizes) -> Vec<f64> {
    let Sizes { context, heads, dim, causal } = sizes;
    let size = dim / heads;
    let at = |row: usize, part: usize, column: usize| f64::from(qkv[row * 3 * dim + part * dim + column]);
    let mut out = vec![0.0; context * dim];
    for head in 0..heads {
        let columns = head * size..(head + 1) * size;
        for row in 0..context {
            let seen = if causal { length.min(row + 1) } else { length };
            let score = |key| columns.clone().map(|c| at(row, 0, c) * at(key, 1, c)).sum::<f64>();
            let weights = (0..seen).map(|key| (score(key) / (size as f64).sqrt()).exp()).collect::<Vec<_>>();
            for column in columns.clone() {
                let mixed = weights.iter().enumerate().map(|(key, weight)| weight * at(key, 2, column)).sum::<f64>();
                out[row * dim + column] = mixed / weights.iter().sum::<f64>();
            }
        }
    }
    out
}

#[test]
fn attention_is_its_definition() {
    for (sizes, lengths) in attention_cases() {
        let example = sizes.context * 3 * sizes.dim;
        let qkv = random(1, lengths.len() * example);
        let (out, _) = attend(&qkv, &lengths, sizes);
        let expected =
            qkv.chunks(example).zip(&lengths).flat_map(|(qkv, &len)| attention_by_definition(qkv, len, sizes));
        for (place, (got, expected)) in out.iter().zip(expected).enumerate() {
            let error = (f64::from(*got) - expected).abs();
            assert!(error < 1e-5, "{sizes:?}, {lengths:?}: {got} at {place} is not {expected}");
        }
    }
}

#[test]
fn attention() {
    for (sizes, lengths) in attention_cases() {
        let Sizes { context, dim, .. } = sizes;
        let rows = lengths.len() * context;
        let (qkv, dout) = (random(1, rows * 3 * dim), random(2, rows * dim));
        let (_, probs) = attend(&qkv, &lengths, sizes);
        let (mut dqkv, mut scratch) = (nan(qkv.len()), nan(context * context));
        attention::backward(&mut dqkv, &mut scratch, &dout, &probs, &qkv, lengths.len(), sizes);
        let name = format!("{sizes:?}, {lengths:?}: qkv");
        assert_derivative(&name, &qkv, &dqkv, |qkv| along(&attend(qkv, &lengths, sizes).0, &dout));
    }
}
