//! Multi-head self-attention, its projections left to [`linear`](super::linear).
//!
//! For each example and head, with Q, K and V views into one row-major buffer of 3·dim columns: P = softmax(Q·Kᵀ/√s), out =
//! P·V. Row t of P looks at the positions before and at t when causal, and never at padding.

use super::matmul::{View, matmul};
use super::simd::{exp, max, probabilities, sum, sum_of, wide};

/// The sizes of one call.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub context: usize,
    pub heads: usize,
    pub dim: usize,
    pub causal: bool,
}

/// Rows computed at once. A causal block needs no column beyond its last row, which saves up to half of the products.
const ROWS: usize = 64;

impl Sizes {
    fn head(&self) -> usize {
        self.dim / self.heads
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head() as f32).sqrt()
    }

    /// Blocks of rows, each with the number of columns it needs.
    fn blocks(self) -> impl DoubleEndedIterator<Item = (usize, usize, usize)> {
        (0..self.context.div_ceil(ROWS)).map(move |block| {
            let start = block * ROWS;
            let rows = ROWS.min(self.context - start);
            (start, rows, if self.causal { start + rows } else { self.context })
        })
    }

    /// Positions that row `row` of an example with `length` tokens looks at.
    fn visible(&self, row: usize, length: usize) -> usize {
        if self.causal { length.min(row + 1) } else { length }
    }
}

/// `qkv`: examples·context × 3·dim. `probs`: examples·heads × context × context, kept for backward. `lengths`: the tokens of
/// each example that are not padding.
pub fn forward(out: &mut [f32], probs: &mut [f32], qkv: &[f32], lengths: &[usize], sizes: Sizes) {
    let Sizes { context, heads, dim, .. } = sizes;
    let (size, width) = (sizes.head(), 3 * dim);
    for (example, &length) in lengths.iter().enumerate() {
        let qkv = &qkv[example * context * width..][..context * width];
        let out = &mut out[example * context * dim..][..context * dim];
        for head in 0..heads {
            let probs = &mut probs[(example * heads + head) * context * context..][..context * context];
            let (q, k, v) = (&qkv[head * size..], &qkv[dim + head * size..], &qkv[2 * dim + head * size..]);
            for (start, rows, columns) in sizes.blocks() {
                let probs = &mut probs[start * context..][..rows * context];
                let p = View::strided(rows, columns, context);
                let keys = View::strided(columns, size, width);
                let queries = (&q[start * width..], View::strided(rows, size, width));
                matmul((probs, p), 0.0, queries, (k, keys.transposed()), sizes.scale());
                wide(|| {
                    for (row, probs) in probs.chunks_exact_mut(context).enumerate() {
                        softmax(&mut probs[..columns], sizes.visible(start + row, length));
                    }
                });
                let out = (&mut out[start * dim + head * size..], View::strided(rows, size, dim));
                matmul(out, 0.0, (probs, p), (v, keys), 1.0);
            }
        }
    }
}

/// Softmax of the first `visible` values; the others become 0.
#[inline(always)]
fn softmax(row: &mut [f32], visible: usize) {
    let (row, hidden) = row.split_at_mut(visible);
    hidden.fill(0.0);
    let most = max(row);
    row.iter_mut().for_each(|value| *value = exp(*value - most));
    probabilities(row, sum(row), 1.0);
}

/// Writes the gradient of `qkv`. `scratch` holds context × context values.
pub fn backward(
    dqkv: &mut [f32],
    scratch: &mut [f32],
    dout: &[f32],
    probs: &[f32],
    qkv: &[f32],
    examples: usize,
    sizes: Sizes,
) {
    let Sizes { context, heads, dim, .. } = sizes;
    let (size, width) = (sizes.head(), 3 * dim);
    for example in 0..examples {
        let qkv = &qkv[example * context * width..][..context * width];
        let dqkv = &mut dqkv[example * context * width..][..context * width];
        let dout = &dout[example * context * dim..][..context * dim];
        for head in 0..heads {
            let probs = &probs[(example * heads + head) * context * context..][..context * context];
            let (q, k, v) = (head * size, dim + head * size, 2 * dim + head * size);
            // dV and dK gather from all blocks of rows; the last block sees all columns, so it comes first and starts them.
            for (start, rows, columns) in sizes.blocks().rev() {
                let alpha = if start + rows == context { 0.0 } else { 1.0 };
                let (probs, dprobs) = (&probs[start * context..][..rows * context], &mut scratch[..rows * context]);
                let (p, rows_view) = (View::strided(rows, columns, context), View::strided(rows, size, width));
                let keys = View::strided(columns, size, width);
                let dout = (&dout[start * dim + head * size..], View::strided(rows, size, dim));
                matmul((dprobs, p), 0.0, dout, (&qkv[v..], keys.transposed()), 1.0);
                matmul((&mut dqkv[v..], keys), alpha, (probs, p.transposed()), dout, 1.0);
                wide(|| {
                    for (probs, dprobs) in probs.chunks_exact(context).zip(dprobs.chunks_exact_mut(context)) {
                        let (probs, dprobs) = (&probs[..columns], &mut dprobs[..columns]);
                        let along = sum_of(probs, dprobs, |p, d| p * d);
                        for (d, p) in dprobs.iter_mut().zip(probs) {
                            *d = p * (*d - along);
                        }
                    }
                });
                matmul((&mut dqkv[start * width + q..], rows_view), 0.0, (dprobs, p), (&qkv[k..], keys), sizes.scale());
                let queries = (&qkv[start * width + q..], rows_view);
                matmul((&mut dqkv[k..], keys), alpha, (dprobs, p.transposed()), queries, sizes.scale());
            }
        }
    }
}
