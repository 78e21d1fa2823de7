//! The whole transformer against PyTorch, and the laws that a gradient keeps.

use thinwire_models::transformer::{Activations, Shape, Transformer};

/// What tests/golden/transformer.py computed, and how to compute it again.
const GOLDEN: &str = include_str!("golden/transformer.txt");

/// A network whose parameters and tokens are the formulas of tests/golden/transformer.py.
struct Case {
    name: &'static str,
    network: Transformer,
    params: Vec<f32>,
    tokens: Vec<u32>,
    lengths: Vec<usize>,
    chosen: Vec<usize>,
    targets: Vec<u32>,
}

/// Values in [−½, ½) that look random.
fn sequence(range: std::ops::Range<usize>) -> impl Iterator<Item = f32> {
    range.map(|index| ((index as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32 - 0.5)
}

impl Case {
    fn new(name: &'static str, lengths: &[usize], chosen: &[usize], shape: Shape) -> Case {
        let network = Transformer::new(shape).unwrap();
        let mut params = sequence(0..network.tensors().len()).collect::<Vec<_>>();
        for tensor in network.tensors().iter() {
            if tensor.name.contains("norm") && tensor.name.ends_with("weight") {
                params[tensor.range.clone()].iter_mut().for_each(|gain| *gain += 1.0);
            }
        }
        let rows = lengths.len() * shape.context;
        let outputs = if shape.classes == 0 { shape.vocabulary } else { shape.classes };
        let tokens = (0..rows).map(|row| ((row * row * 3 + row / 5 + 1) % shape.vocabulary) as u32).collect();
        let targets = (0..chosen.len()).map(|index| (index * 7 % outputs) as u32).collect();
        Case { name, network, params, tokens, lengths: lengths.to_vec(), chosen: chosen.to_vec(), targets }
    }

    fn activations(&self) -> Activations {
        Activations::new(&self.network, self.lengths.len(), self.chosen.len())
    }

    /// Adds `weight` times the gradient of the mean loss to `grad`; returns that loss.
    fn learn(&self, weight: f32, grad: &mut [f32], memory: &mut Activations) -> f64 {
        let Case { network, params, tokens, lengths, chosen, targets, .. } = self;
        let rows = chosen.len() as f64;
        network.forward(params, tokens, lengths, memory);
        let loss = network.losses(params, chosen, targets, weight / rows as f32, memory, |_, _| {});
        network.backward(params, grad, tokens, chosen, memory);
        loss / rows
    }

    fn gradient(&self, weight: f32) -> Vec<f32> {
        let mut grad = vec![0.0; self.params.len()];
        self.learn(weight, &mut grad, &mut self.activations());
        grad
    }

    /// The golden values under `key`.
    fn golden(&self, key: &str) -> Vec<f64> {
        let start = format!("{} {key} ", self.name);
        let line = GOLDEN.lines().find_map(|line| line.strip_prefix(&start)).expect(&start);
        line.split(' ').map(|value| value.parse().unwrap()).collect()
    }
}

fn cases() -> [Case; 3] {
    let large = Shape { vocabulary: 11, context: 70, layers: 2, dim: 12, heads: 3, causal: true, classes: 0 };
    let small = Shape { vocabulary: 13, context: 66, layers: 2, dim: 8, heads: 2, causal: false, classes: 0 };
    [
        Case::new("causal", &[70, 70], &(0..140).collect::<Vec<_>>(), large),
        Case::new("masked", &[66, 9, 1], &[2, 3, 65, 66, 74, 132], small),
        Case::new("classifier", &[7, 66, 1], &[0, 66, 132], Shape { classes: 3, ..small }),
    ]
}

#[track_caller]
fn assert_close(what: &str, got: impl IntoIterator<Item = f64>, expected: &[f64], tolerance: f64) {
    let got = got.into_iter().collect::<Vec<_>>();
    assert_eq!(got.len(), expected.len(), "{what}");
    for (place, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() <= tolerance, "{what}[{place}]: {got} is not {expected}");
    }
}

#[test]
fn losses_and_logits_are_pytorchs() {
    for case in cases() {
        let mut memory = case.activations();
        case.network.forward(&case.params, &case.tokens, &case.lengths, &mut memory);
        let logits = case.network.logits(&case.params, &case.chosen, &mut memory);
        let outputs = logits.len() / case.chosen.len();
        let ends = logits[..outputs].iter().chain(&logits[logits.len() - outputs..]).map(|&logit| f64::from(logit));
        assert_close(&format!("{} logits", case.name), ends, &case.golden("logits"), 2e-5);

        let loss = case.learn(1.0, &mut vec![0.0; case.params.len()], &mut memory);
        assert_close(&format!("{} loss", case.name), [loss], &case.golden("loss"), 1e-5);
    }
}

#[test]
fn gradients_are_pytorchs() {
    for case in cases() {
        let grad = case.gradient(1.0);
        for tensor in case.network.tensors().iter() {
            let grad = grad[tensor.range.clone()].iter().map(|&value| f64::from(value)).collect::<Vec<_>>();
            let norm = grad.iter().map(|value| value * value).sum::<f64>().sqrt();
            let product = grad.iter().zip(sequence(0..grad.len())).map(|(value, other)| value * f64::from(other)).sum();
            let samples = grad.iter().copied().step_by(grad.len().div_ceil(24));
            let got = [grad.iter().sum(), norm, product].into_iter().chain(samples);
            let expected = case.golden(&format!("gradient {}", tensor.name));
            // Values that should cancel out leave the rounding of the others: so, relative to the whole tensor.
            assert_close(&format!("{} {}", case.name, tensor.name), got, &expected, 2e-5 * expected[1]);
        }
    }
}

#[test]
fn the_same_input_gives_the_same_bits() {
    for case in cases() {
        let (mut first, mut memory) = (vec![0.0; case.params.len()], case.activations());
        let loss = case.learn(1.0, &mut first, &mut memory);
        // In the same memory, and in new memory.
        for mut memory in [memory, case.activations()] {
            let mut again = vec![0.0; case.params.len()];
            assert_eq!(case.learn(1.0, &mut again, &mut memory), loss);
            assert!(first.iter().map(|v| v.to_bits()).eq(again.iter().map(|v| v.to_bits())), "{}", case.name);
        }
    }
}

/// Memory that held a larger batch gives what memory of the right size gives.
#[test]
fn a_smaller_batch_fits_in_the_same_memory() {
    let [large, ..] = cases();
    let small = Case::new("one", &[70], &[0, 3, 69], large.network.shape());
    let (mut memory, mut grad) = (large.activations(), vec![0.0; large.params.len()]);
    large.learn(1.0, &mut grad, &mut memory);
    grad.fill(0.0);
    small.learn(1.0, &mut grad, &mut memory);
    assert_eq!(grad, small.gradient(1.0));
}

/// `learn` adds: what was in the gradient stays, and two halves are a whole.
#[test]
fn halves_add_up_to_the_whole() {
    for case in cases() {
        let whole = case.gradient(1.0);
        let mut halves = vec![0.0; case.params.len()];
        let mut memory = case.activations();
        case.learn(0.5, &mut halves, &mut memory);
        case.learn(0.5, &mut halves, &mut memory);
        let most = whole.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        for (place, (whole, halves)) in whole.iter().zip(&halves).enumerate() {
            assert!((whole - halves).abs() <= 1e-6 * most, "{}[{place}]: {halves} is not {whole}", case.name);
        }
    }
}
