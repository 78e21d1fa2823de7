//! The guard: a vector that is far longer than those before it is an outlier, and one outlier can ruin a run.
//!
//! ```text
//! outlier:  ‖g‖₂ > F · median of the last 32 norms,    once there are 16 of them
//! ```
//!
//! F is the option `outlier_factor`, 100 if it is not given. That should be out of reach of training: warm-ups, restarts and networks
//! without `clip` move a norm by small factors from step to step, and norms that grow by a third at every step stay below. A number
//! that is wrong (a flipped bit, a scale of 1e10, a bad batch in half precision) is off by many powers of ten.
//!
//! Norms are noted as they come, those of outliers too, though they are clipped or left out. So norms that stay high become the
//! median after at most 17 of them, and nothing waits for ever. The median of an even number of norms is the lower one: as long as
//! half of them are sound, the median is.

/// Norms that are remembered.
pub const MEMORY: usize = 32;

/// Norms that a median needs: before, nothing is an outlier.
pub const ENOUGH: usize = 16;

/// The norms seen last, the newest at the end; 0 where there was none yet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Norms([f64; MEMORY]);

impl Norms {
    /// Remembers a norm, and forgets the oldest. A norm of 0 says nothing of the size of the others: a median of 0 would make all of
    /// them outliers.
    pub fn note(&mut self, norm: f64) {
        if norm.is_finite() && norm > 0.0 {
            self.0.rotate_left(1);
            self.0[MEMORY - 1] = norm;
        }
    }

    /// The longest that a vector may be; none as long as there are too few norms to tell.
    pub fn limit(&self, factor: f64) -> Option<f64> {
        Some(median(self.0.iter().copied().filter(|norm| *norm > 0.0), ENOUGH)? * factor)
    }

    /// For whoever saves and loads them.
    pub fn values(&mut self) -> &mut [f64] {
        &mut self.0
    }
}

/// The lower median of at most [`MEMORY`] numbers, if there are `enough`.
pub fn median(norms: impl Iterator<Item = f64>, enough: usize) -> Option<f64> {
    let (mut room, mut count) = ([0.0; MEMORY], 0);
    for (place, norm) in room.iter_mut().zip(norms) {
        (*place, count) = (norm, count + 1);
    }
    let found = &mut room[..count];
    found.sort_unstable_by(f64::total_cmp);
    if count < enough.max(1) { None } else { Some(found[(count - 1) / 2]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(norms: &[f64]) -> Norms {
        let mut all = Norms::default();
        norms.iter().for_each(|norm| all.note(*norm));
        all
    }

    #[test]
    fn a_median_needs_enough_norms_and_zeros_are_none() {
        assert_eq!(of(&[1.0; ENOUGH - 1]).limit(100.0), None);
        assert_eq!(of(&[[1.0; ENOUGH - 1], [0.0; ENOUGH - 1]].concat()).limit(100.0), None);
        assert_eq!(of(&[2.0; ENOUGH]).limit(100.0), Some(200.0));
        let mut both = [1.0; ENOUGH];
        both[ENOUGH / 2..].fill(1e30);
        assert_eq!(of(&both).limit(100.0), Some(100.0), "the lower one of two");
    }

    #[test]
    fn what_stays_high_is_the_median_after_seventeen() {
        let mut norms = of(&[1.0; 100]);
        for turn in 0..17 {
            assert_eq!(norms.limit(100.0), Some(100.0), "after {turn}");
            norms.note(1e6);
        }
        assert_eq!(norms.limit(100.0), Some(1e8));
    }

    #[test]
    fn norms_that_grow_by_a_half_at_each_step_are_no_outliers() {
        let mut norms = Norms::default();
        for turn in 0..200 {
            let norm = 1.5f64.powi(turn).min(1e30);
            assert!(norms.limit(1000.0).is_none_or(|limit| norm <= limit), "after {turn}");
            norms.note(norm);
        }
    }
}
