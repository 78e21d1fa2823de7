//! The oracle itself: quantizers and golden vectors by hand, its identities, textbook Adam where it must be that.

use crate::common::oracle::*;

const D: usize = 10;
const LR: f64 = 0.01;
const QUANTIZERS: [Quantizer; 7] = [
    Quantizer::F32,
    Quantizer::Bf16,
    Quantizer::F16,
    Quantizer::Sign,
    Quantizer::Uniform(4),
    Quantizer::Power2(3),
    Quantizer::TopK(0.3),
];

/// Numbers from −1 to 1.
fn row(worker: usize, step: u64) -> Vec<f64> {
    let phase = 5.3 * worker as f64 + 0.9 * step as f64 + 1.0;
    (0..D).map(|k| (1.7 * k as f64 + phase).sin()).collect()
}

fn rows(workers: usize, step: u64) -> Vec<Vec<f64>> {
    (0..workers).map(|i| row(i, step)).collect()
}

fn start() -> Vec<f64> {
    row(0, 99)
}

fn assert_close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    let off = zip(got, want, |g, w| (g - w).abs() / (1.0 + w.abs()));
    assert!(off.iter().all(|&off| off < 1e-12), "{got:?}, not {want:?}");
}

fn quantized(algorithm: Algorithm, workers: usize, c: Quantizer) -> Setup {
    Setup { block: 4, up: c, down: c, ..Setup::plain(algorithm, workers, D) }
}

#[test]
fn quantizers_by_hand() {
    use Quantizer::*;
    let check = |c: Quantizer, x: &[f64], want: &[f64]| assert_close(&c.apply(x), want);
    check(Sign, &[0.9, -0.0, -0.3, -1.2], &[0.6, 0.6, -0.6, -0.6]);
    check(Uniform(2), &[1.0, 0.5, 0.51, -0.5], &[1.0, 0.0, 1.0, 0.0]);
    check(Uniform(3), &[3.0, 2.5, -1.5, 0.5], &[3.0, 2.0, -2.0, 0.0]);
    check(Vote, &[0.9, -0.0, 0.0, -1e-300], &[1.0, 1.0, 1.0, -1.0]);
    check(Power2(2), &[2.0, -1.0, 0.99], &[2.0, -2.0, 0.0]);
    check(Power2(3), &[8.0, 6.0, 5.99, -3.0], &[8.0, 8.0, 4.0, -4.0]);
    check(Power2(3), &[8.0, 2.99, -1.0, 0.99], &[8.0, 2.0, -2.0, 0.0]);
    check(TopK(0.7), &[1.0, -2.0, 2.0, 1.0], &[1.0, -2.0, 2.0, 0.0]);
    check(TopK(0.01), &[1.0, -2.0, 2.0], &[0.0, -2.0, 0.0]);
    for c in QUANTIZERS {
        check(c, &[0.0, -0.0], &[0.0, 0.0]);
        check(c, &[], &[]);
    }
}

#[test]
fn casts_by_hand() {
    let f16 = |x: f64| Quantizer::F16.apply(&[x])[0];
    let half = 2f64.powi(-11); // of the way from 1 to the next
    assert_eq!(f16(1.0 + half), 1.0);
    assert_eq!(f16(1.0 + 3.0 * half), 1.0 + 4.0 * half);
    assert_eq!(f16(-0.1), -0.0999755859375);
    assert_eq!([f16(65519.0), f16(-1e9)], [65504.0, -65504.0]);
    let tiny = 2f64.powi(-24); // the smallest
    assert_eq!([f16(0.51 * tiny), f16(0.5 * tiny)], [tiny, 0.0]);
    let bf16 = |x: f64| Quantizer::Bf16.apply(&[x])[0];
    let half = 2f64.powi(-8);
    assert_eq!(bf16(1.0 + half), 1.0);
    assert_eq!(bf16(1.0 + 3.0 * half), 1.0 + 4.0 * half);
    assert_eq!(bf16(0.1), 0.10009765625);
    assert_eq!(bf16(f32::MAX as f64), f32::from_bits(0x7f7f_0000) as f64);
}

#[test]
fn golden_vector_g1() {
    let mut coarse = CoarseMean::new(2, 4, 4, Quantizer::Sign, Quantizer::Sign);
    coarse.down_blocks = blocks(4, 2); // one for each owner
    let x = [vec![0.3, -0.1, 0.05, -0.8], vec![0.2, 0.4, -0.6, -0.2]];
    assert_close(&coarse.mean(&x), &[0.175, 0.175, -0.175, -0.175]);
    assert_close(&coarse.e[0], &[-0.0125, 0.2125, -0.2625, -0.4875]);
    assert_close(&coarse.e[1], &[-0.15, 0.05, -0.25, 0.15]);
    assert_close(&coarse.owner_e, &[0.15625, -0.15625, 0.15625, -0.15625]);
    assert_close(&coarse.mean(&x), &[0.4125, 0.4125, -0.4125, -0.4125]);
}

/// out + (mean e + E)_after = mean x + (mean e + E)_before.
#[test]
fn the_coarse_mean_owes_what_it_did_not_say() {
    for c in QUANTIZERS {
        let mut coarse = CoarseMean::new(3, D, 4, c, c);
        for step in 0..20 {
            let x = rows(3, step);
            let want = zip(&mean_rows(&x), &coarse.residual(), |x, owed| x + owed);
            let out = coarse.mean(&x);
            assert_close(&zip(&out, &coarse.residual(), |x, owed| x + owed), &want);
        }
    }
}

/// Twenty steps of one worker's Adam as the textbooks have it, v renewed on some of them.
fn textbook(renews: impl Fn(u64) -> bool) -> Vec<f64> {
    let (mut x, mut m, mut v, mut j) = (start(), [0.0; D], [0.0; D], 0);
    for t in 0..20 {
        let (g, renews) = (row(0, t), renews(t));
        j += renews as i32;
        for k in 0..D {
            m[k] = 0.9 * m[k] + 0.1 * g[k];
            if renews {
                v[k] = 0.999 * v[k] + 0.001 * g[k] * g[k];
            }
            let m_hat = m[k] / (1.0 - 0.9f64.powi(t as i32 + 1));
            let v_hat = v[k] / (1.0 - 0.999f64.powi(j));
            x[k] -= LR * m_hat / (v_hat.sqrt() + 1e-8);
        }
    }
    x
}

#[test]
fn one_worker_is_textbook_adam() {
    let check = |algorithm: Algorithm, want: &[f64]| {
        let mut oracle = Oracle::new(Setup::plain(algorithm, 1, D), &start());
        (0..20).for_each(|t| oracle.step(LR, &rows(1, t)));
        assert_close(oracle.params(0), want);
    };
    let theta = Theta::Constant;
    let renews = |t: u64| [0, 1, 2, 4, 8, 16].contains(&t);
    check(Algorithm::Adam, &textbook(|_| true));
    check(Algorithm::OneBitAdam { warmup: 5 }, &textbook(|t| t < 5));
    check(Algorithm::zero_one(renews, |_| true), &textbook(renews));
    check(Algorithm::EfficientAdam { theta }, &textbook(|_| true));
}

#[test]
fn zero_one_adam_with_variance_everywhere_is_adam() {
    let grouped = |algorithm: Algorithm| {
        let mut setup = Setup::plain(algorithm, 3, D);
        setup.rate = row(0, 5).iter().map(|x| 1.0 + x).collect();
        setup.weight_decay = row(0, 6).iter().map(|x| 1.0 + x).collect();
        Oracle::new(setup, &start())
    };
    let mut adam = grouped(Algorithm::Adam);
    let mut zero_one = grouped(Algorithm::zero_one(|_| true, |_| true));
    for t in 0..20 {
        adam.step(LR, &rows(3, t));
        zero_one.step(LR, &rows(3, t));
        assert_eq!(zero_one.params(2), adam.params(0));
    }
}

/// y ← y − mean_i (update of worker i), for any quantizer and any schedule.
#[test]
fn efficient_adam_moves_its_virtual_iterate_by_the_mean_update() {
    let check = |c: Quantizer, theta: Theta| {
        let algorithm = || Algorithm::EfficientAdam { theta };
        let mut together = Oracle::new(quantized(algorithm(), 3, c), &start());
        let mut moved = Vec::new(); // −Σ updates, of each worker
        for i in 0..3 {
            let mut alone = Oracle::new(Setup::plain(algorithm(), 1, D), &[0.0; D]);
            (0..20).for_each(|t| alone.step(LR / (t + 1) as f64, &[row(i, t)]));
            moved.push(alone.params(0).to_vec());
        }
        (0..20).for_each(|t| together.step(LR / (t + 1) as f64, &rows(3, t)));
        let want = zip(&start(), &mean_rows(&moved), |x, moved| x + moved);
        assert_close(&together.virtual_iterate().unwrap(), &want);
    };
    for c in QUANTIZERS {
        check(c, Theta::Constant);
        check(c, Theta::Harmonic);
    }
}

/// y ← y − mean_i u/P; and a sync with nothing to say says nothing.
#[test]
fn zero_one_adam_agrees_at_a_sync_and_moves_its_virtual_iterate_by_the_mean_u() {
    for c in QUANTIZERS {
        let algorithm = Algorithm::zero_one(|t| t < 3, |t| (t + 1) % 4 == 0);
        let mut oracle = Oracle::new(quantized(algorithm, 3, c), &start());
        (0..8).for_each(|t| oracle.step(LR, &rows(3, t)));
        let y = oracle.virtual_iterate().unwrap();
        (8..11).for_each(|t| oracle.step(LR, &rows(3, t)));
        assert!(oracle.virtual_iterate().is_none());
        assert_ne!(oracle.params(0), oracle.params(1));

        let u: Vec<_> = (0..3).map(|i| oracle.u(i).to_vec()).collect();
        let p: Vec<f64> = (0..D).map(|k| oracle.p(0, k)).collect();
        let moved = zip(&mean_rows(&u), &p, |u, p| u / p);
        oracle.sync();
        let want = zip(&y, &moved, |y, moved| y - moved);
        assert_close(&oracle.virtual_iterate().unwrap(), &want);
        assert_eq!(oracle.params(0), oracle.params(1));
        assert_eq!(oracle.m(0), oracle.m(1));
        let x = oracle.params(0).to_vec();
        oracle.sync();
        assert_eq!(oracle.params(0), x);
    }
}

/// v is renewed at t = 0 and t = 3: between them two local steps, then a sync. The coordinates: one that decays,
/// one with no gradient when v is renewed, one whose γ is 0.
#[test]
fn zero_one_adam_by_hand() {
    let setup = Setup {
        betas: (0.5, 0.75),
        eps: 1e-15,
        limit: 3.0,
        bias_correction: false,
        rate: vec![1.0, 1.0, 0.0],
        weight_decay: vec![1.0, 0.0, 0.0],
        ..Setup::plain(Algorithm::zero_one(|t| t % 3 == 0, |_| false), 1, 3)
    };
    let mut oracle = Oracle::new(setup, &[3.0, 1.0, 1.0]);
    oracle.step(0.5, &[vec![2.0, 0.0, 2.0]]); // m = v = [1, 0, 1]
    assert_close(oracle.params(0), &[1.0, 1.0, 1.0]); // a
    oracle.step(0.5, &[vec![3.0, 4.0, 4.0]]); // m = [2, 2, 1], u = [1, 1, 0], Γ = D = ½
    assert_close(oracle.params(0), &[-0.5, 1.0 - 1.5, 1.0]); // where v = 0: by c·γ̂
    oracle.step(0.25, &[vec![2.0, 8.0, 2.0]]); // u = [3/2, 9/4, 0], Γ = ¾, D = ⅜
    assert_close(oracle.params(0), &[0.375 - 1.5, 1.0 - 2.25, 1.0]); // a·D − ū/P, or c·Γ
    assert_close(oracle.m(0), &[2.0, 3.0, 1.0]); // ū/Γ
    oracle.step(0.5, &[vec![0.0; 3]]); // m = [1, 3/2, ½], v = [¾, 0, ¾]; where v = 0, m is not trusted
    let x = -1.125 * 0.5 - 0.5 / 0.75f64.sqrt();
    assert_close(oracle.params(0), &[x, -1.25, 1.0]);
    assert_close(oracle.v(0), &[0.75, 0.0, 0.75]);
}

/// The warm-up's mean gradients are [2, 0]; then m = [1, 1] and P = [√v, ε].
#[test]
fn one_bit_adam_after_its_warm_up_moves_by_the_limit_at_most() {
    let mut setup = Setup::plain(Algorithm::OneBitAdam { warmup: 1 }, 2, 2);
    (setup.betas, setup.bias_correction, setup.limit) = ((0.5, 0.5), false, 3.0);
    let mut oracle = Oracle::new(setup, &[1.0, 1.0]);
    oracle.step(0.0, &[vec![1.0, 3.0], vec![3.0, -3.0]]); // m = [1, 0], v = [2, 0]
    oracle.step(0.1, &[vec![1.0, 1.0], vec![1.0, 3.0]]); // m = [1, 1]
    let want = [1.0 - 0.1 / (2f64.sqrt() + 1e-8), 1.0 - 0.1 * 3.0];
    assert_close(oracle.params(1), &want);
}
