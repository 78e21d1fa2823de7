//! GELU, with GPT-2's tanh: ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).

use super::simd::{exp, wide};

const ROOT: f32 = 0.797_884_6; // √(2/π)
const CUBE: f32 = 0.044_715;

#[inline(always)]
fn tanh(u: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * u) + 1.0)
}

pub fn forward(y: &mut [f32], x: &[f32]) {
    wide(|| {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = 0.5 * x * (1.0 + tanh(ROOT * (x + CUBE * x * x * x)));
        }
    });
}

/// Multiplies `d`, the gradient of y, by y' at x.
pub fn backward(d: &mut [f32], x: &[f32]) {
    wide(|| {
        for (d, &x) in d.iter_mut().zip(x) {
            let t = tanh(ROOT * (x + CUBE * x * x * x));
            let slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * ROOT * (1.0 + 3.0 * CUBE * x * x);
            *d *= slope;
        }
    });
}
