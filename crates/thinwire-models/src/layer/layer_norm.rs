//! Layer normalisation (arXiv 1607.06450): each row to mean 0 and deviation 1, then a gain and a bias.

use super::simd::{sum, sum_of, wide};

const EPS: f32 = 1e-5;

/// Writes y, and what backward needs: each row's mean and 1/deviation, one after the other, to `statistics`.
pub fn forward(y: &mut [f32], statistics: &mut [f32], x: &[f32], gain: &[f32], bias: &[f32]) {
    let width = gain.len();
    let rows = x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(statistics.chunks_exact_mut(2));
    wide(|| {
        for ((x, y), statistics) in rows {
            let mean = sum(x) / width as f32;
            let variance = sum_of(x, x, |a, _| (a - mean) * (a - mean)) / width as f32;
            let scale = 1.0 / (variance + EPS).sqrt();
            statistics.copy_from_slice(&[mean, scale]);
            for (((y, x), gain), bias) in y.iter_mut().zip(x).zip(gain).zip(bias) {
                *y = (x - mean) * scale * gain + bias;
            }
        }
    });
}

/// Adds to the gradients of x, gain and bias. Leaves dy·gain in `dy`.
pub fn backward(
    dx: &mut [f32],
    (dgain, dbias): (&mut [f32], &mut [f32]),
    dy: &mut [f32],
    x: &[f32],
    gain: &[f32],
    statistics: &[f32],
) {
    let width = gain.len();
    let rows = x.chunks_exact(width).zip(dx.chunks_exact_mut(width)).zip(dy.chunks_exact_mut(width));
    wide(|| {
        for (((x, dx), dy), statistics) in rows.zip(statistics.chunks_exact(2)) {
            let (mean, scale) = (statistics[0], statistics[1]);
            let parameters = dgain.iter_mut().zip(dbias.iter_mut()).zip(gain);
            for ((dy, x), ((dgain, dbias), gain)) in dy.iter_mut().zip(x).zip(parameters) {
                *dgain += *dy * (x - mean) * scale;
                *dbias += *dy;
                *dy *= gain;
            }
            // x̂ is the normalised row; its gradient loses its part along 1 and along x̂.
            let along_one = sum(dy) / width as f32;
            let along_x = sum_of(dy, x, |dy, x| dy * (x - mean) * scale) / width as f32;
            for ((dx, dy), x) in dx.iter_mut().zip(dy.iter()).zip(x) {
                *dx += (dy - along_one - (x - mean) * scale * along_x) * scale;
            }
        }
    });
}
