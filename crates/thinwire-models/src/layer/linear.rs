//! y = x·Wᵀ + b, with W as PyTorch keeps it: outputs × inputs.

use super::matmul::{View, matmul};
use super::simd::wide;

/// Rows of `x` are examples; `bias` may be empty.
pub fn forward(y: &mut [f32], x: &[f32], weight: &[f32], bias: &[f32], inputs: usize, outputs: usize) {
    let rows = x.len() / inputs;
    if !bias.is_empty() {
        y.chunks_exact_mut(outputs).for_each(|row| row.copy_from_slice(bias));
    }
    let alpha = if bias.is_empty() { 0.0 } else { 1.0 };
    let w = View::new(outputs, inputs);
    matmul((y, View::new(rows, outputs)), alpha, (x, View::new(rows, inputs)), (weight, w.transposed()), 1.0);
}

/// dx ← dy·W.
pub fn backward_input(dx: &mut [f32], dy: &[f32], weight: &[f32], inputs: usize, outputs: usize) {
    let rows = dy.len() / outputs;
    let w = View::new(outputs, inputs);
    matmul((dx, View::new(rows, inputs)), 0.0, (dy, View::new(rows, outputs)), (weight, w), 1.0);
}

/// dW += dyᵀ·x, db += Σ dy over the rows.
pub fn backward_weight(dw: &mut [f32], db: &mut [f32], dy: &[f32], x: &[f32], inputs: usize, outputs: usize) {
    let rows = dy.len() / outputs;
    let dy_view = View::new(rows, outputs).transposed();
    matmul((dw, View::new(outputs, inputs)), 1.0, (dy, dy_view), (x, View::new(rows, inputs)), 1.0);
    if !db.is_empty() {
        wide(|| {
            for row in dy.chunks_exact(outputs) {
                for (db, dy) in db.iter_mut().zip(row) {
                    *db += dy;
                }
            }
        });
    }
}
