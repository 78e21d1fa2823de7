//! The problems themselves: their gradients are slopes, their noise is fair, their targets are far.

use crate::common::problems::*;

/// The start, a little shaken: zeros hide mistakes.
fn somewhere(problem: &Problem) -> Vec<f64> {
    let mut x = widen(&problem.start);
    let shake = Random::new(7).normals(x.len(), 0.1);
    add(&mut x, 1.0, &shake);
    x
}

#[test]
fn gradients_are_the_slopes_of_the_loss() {
    const H: f64 = 1e-5;
    for problem in all() {
        let mut x = somewhere(&problem);
        let (_, gradient) = (problem.value)(&x, None);
        for (k, g) in gradient.into_iter().enumerate() {
            x[k] += H;
            let (above, _) = (problem.value)(&x, None);
            x[k] -= 2.0 * H;
            let (below, _) = (problem.value)(&x, None);
            x[k] += H;
            let slope = (above - below) / (2.0 * H);
            let close = (slope - g).abs() < 1e-6 * (1.0 + slope.abs());
            assert!(close, "{}, {k}: {g}, not {slope}", problem.name);
        }
    }
}

/// ‖mean of N − truth‖² is about Σ ‖each − truth‖²/N² when the errors are independent.
#[test]
fn workers_see_the_true_gradient_in_the_mean() {
    fn check(problem: &Problem, workers: usize) {
        const STEPS: u64 = 1000;
        let x = somewhere(problem);
        let (_, truth) = (problem.value)(&x, None);
        let (mut sum, mut squares) = (vec![0.0; x.len()], 0.0);
        for call in 0..STEPS * workers as u64 {
            let view = View { worker: (call / STEPS) as usize, workers, step: call % STEPS };
            let (_, mut error) = (problem.value)(&x, Some(view));
            add(&mut error, -1.0, &truth);
            add(&mut sum, 1.0, &error);
            squares += dot(&error, &error);
        }
        assert!(squares > 0.0, "{} has no noise", problem.name);
        let biased = dot(&sum, &sum) > 2.0 * squares;
        assert!(!biased, "{}, {workers} workers", problem.name);
    }
    for problem in all() {
        check(&problem, 1);
        check(&problem, 3);
    }
}

#[test]
fn the_start_is_far_from_the_target() {
    for problem in all() {
        let loss = problem.loss(&problem.start);
        assert!(loss > 2.0 * problem.target, "{}: {loss}", problem.name);
    }
}

#[test]
fn splitmix64_is_splitmix64() {
    let mut random = Random::new(1234567);
    assert_eq!(random.bits(), 6457827717110365317);
    assert_eq!(random.bits(), 3203168211198807973);
}
