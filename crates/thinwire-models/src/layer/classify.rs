//! From features to classes: a linear layer, and the cross-entropy of the softmax of what it says.
//!
//! ```text
//! logits = W·features + b          loss = log Σ exp(logits) − logits[label]          d logits = softmax(logits) − [label]
//! ```

/// logits ← W·features + b; `weight` is classes × features.
pub fn forward(logits: &mut [f32], features: &[f32], weight: &[f32], bias: &[f32]) {
    for ((logit, row), bias) in logits.iter_mut().zip(weight.chunks_exact(features.len())).zip(bias) {
        *logit = bias + row.iter().zip(features).map(|(w, x)| w * x).sum::<f32>();
    }
}

/// d_features ← the gradient of the features; those of `weight` and `bias` are added.
pub fn backward(
    d_features: &mut [f32],
    grad: (&mut [f32], &mut [f32]),
    d_logits: &[f32],
    features: &[f32],
    weight: &[f32],
) {
    let (grad_weight, grad_bias) = grad;
    d_features.fill(0.0);
    let rows = weight.chunks_exact(features.len()).zip(grad_weight.chunks_exact_mut(features.len()));
    for ((d_logit, grad_bias), (row, grad_row)) in d_logits.iter().zip(grad_bias).zip(rows) {
        *grad_bias += d_logit;
        grad_row.iter_mut().zip(features).for_each(|(grad, x)| *grad += d_logit * x);
        d_features.iter_mut().zip(row).for_each(|(d, w)| *d += d_logit * w);
    }
}

/// The loss of one example.
pub fn loss(logits: &[f32], label: usize) -> f32 {
    let (largest, sum) = softmax_terms(logits);
    sum.ln() + largest - logits[label]
}

/// logits ← `weight` times the gradient of the loss by them.
pub fn backward_loss(logits: &mut [f32], label: usize, weight: f32) {
    let (largest, sum) = softmax_terms(logits);
    for (class, logit) in logits.iter_mut().enumerate() {
        let softmax = (*logit - largest).exp() / sum;
        *logit = weight * (softmax - if class == label { 1.0 } else { 0.0 });
    }
}

/// The class that is taken for the right one: the first of the largest.
pub fn prediction(logits: &[f32]) -> usize {
    (0..logits.len()).reduce(|best, class| if logits[class] > logits[best] { class } else { best }).unwrap_or(0)
}

/// The largest logit, and Σ exp(logit − largest), which cannot overflow.
fn softmax_terms(logits: &[f32]) -> (f32, f32) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    (largest, logits.iter().map(|logit| (logit - largest).exp()).sum())
}
