//! The problem of the golden numbers: two workers, four values, and what a program of another author made of it in f64.

/// Where both start.
pub const X: [f64; 4] = [0.8, -1.4, 0.2, 0.5];

const H: [[f64; 4]; 2] = [[1.0, 2.0, 0.5, 1.5], [0.7, 1.3, 2.0, 0.4]];
const C: [[f64; 4]; 2] = [[0.0, 0.0, 1.0, -1.0], [0.5, -1.0, -1.0, 1.0]];

/// h⊙(x − c), of a worker at its x.
pub fn gradient(worker: usize, x: &[f64]) -> Vec<f64> {
    (0..4).map(|k| H[worker][k] * (x[k] - C[worker][k])).collect()
}

/// The same of both, at one x.
pub fn gradients(x: &[f64]) -> Vec<Vec<f64>> {
    (0..2).map(|worker| gradient(worker, x)).collect()
}

/// As many digits as are given.
pub fn assert_digits(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() <= 1e-11 * want.abs(), "{got}, not {want}");
    }
}
