//! Softmax and cross-entropy: the loss −log p(target) of each row of logits.

use super::simd::{exp, max, probabilities, sum, wide};

/// Returns the sum of the losses, and turns each row of `logits` into `weight` times the loss's gradient there: p − 1 at
/// the target, p elsewhere. Calls `answered` with the row and its most likely class.
pub fn forward_backward(
    logits: &mut [f32],
    targets: &[u32],
    weight: f32,
    mut answered: impl FnMut(usize, usize),
) -> f64 {
    let classes = logits.len() / targets.len().max(1);
    let mut loss = 0.0;
    for (row, (logits, &target)) in logits.chunks_exact_mut(classes.max(1)).zip(targets).enumerate() {
        let target = target as usize;
        let most = max(logits);
        answered(row, logits.iter().position(|&logit| logit == most).unwrap_or(0));
        let at_target = logits[target] - most;
        let total = wide(|| {
            logits.iter_mut().for_each(|logit| *logit = exp(*logit - most));
            let total = sum(logits);
            probabilities(logits, total, weight);
            total
        });
        loss += f64::from(total.ln() - at_target);
        logits[target] -= weight;
    }
    loss
}
