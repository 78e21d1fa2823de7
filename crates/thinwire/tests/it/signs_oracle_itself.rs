//! The slow twin of Lion and Birder itself: golden numbers, which another program gave, to eleven digits.

use crate::common::golden::{X, gradients};
use crate::common::oracle::Quantizer;
use crate::common::oracle_signs::{Oracle, Rule, Setup, chance};

const LION: Rule = Rule::Lion { betas: (0.9, 0.99), momentum_every: 0 };

fn run(setup: Setup, gamma: f64, steps: u64) -> Oracle {
    let mut oracle = Oracle::new(setup, &X);
    for _ in 0..steps {
        let g = gradients(&oracle.x);
        oracle.step(gamma, &g);
    }
    oracle
}

fn assert_golden(what: &str, got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() <= 5e-12 * want.abs().max(1e-3), "{what}: {got}, not {want}");
    }
}

#[test]
fn lion_by_vote_and_by_averaging() {
    let plain = Setup::plain(LION, 2, 4);
    assert_golden("majority", &run(plain.clone(), 0.1, 5).x, &[0.3, -0.9, -0.3, 0.0]);
    let averaging = Setup { down: Quantizer::F32, ..plain };
    assert_golden("averaging", &run(averaging, 0.1, 5).x, &[0.4, -0.9, 0.2, 0.5]);
}

#[test]
fn lion_cub() {
    let rule = Rule::Lion { betas: (0.9, 0.99), momentum_every: 2 };
    let setup = Setup { up: Quantizer::Sign, down: Quantizer::F32, ..Setup::plain(rule, 2, 4) };
    let end = run(setup, 0.1, 5);
    assert_golden("x", &end.x, &[0.3, -0.9, 0.5, 0.0]);
    assert_golden("m1", &end.m[0], &[0.0186846006505, -0.075020693816, 0.04438557385, 0.0508797248025]);
    assert_golden("m2", &end.m[1], &[0.0139846006505, -0.055020693816, 0.07838557385, 0.0307797248025]);
}

#[test]
fn birder_and_its_chance() {
    let u = [0, 1, 2, 3].map(|j| chance(7, 0, 0, j));
    assert_golden("chance", &u, &[0.609394524568, 0.100078886333, 0.292643330679, 0.258296490427]);
    let end = run(Setup::plain(Rule::Birder { beta: 0.95, seed: 7 }, 2, 4), 0.25, 5);
    assert_golden("x", &end.x, &[0.55, -0.15, -0.05, 0.75]);
    assert_golden("m2", &end.m[1], &[-0.018227278125, 0.03694218125, 0.490610125, -0.0447806875]);
    assert_golden("b2", &end.b[1], &[0.038332721875, 0.09601531875, 0.490610125, 0.0447806875]);
    assert_golden("r2", &end.ratio(1), &[-0.475501796727, 0.384752992866, 1.0, -1.0]);
}
