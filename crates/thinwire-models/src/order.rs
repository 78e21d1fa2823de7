//! An order of batches that gets better from epoch to epoch, chosen for all workers together: CD-GraB (arXiv 2302.00845).
//!
//! Batches whose gradients pull in opposite directions should come close together, so that the sums along the way stay small. Workers
//! walk through their orders in pairs of neighbours. For each pair, and for each worker in turn:
//!
//! ```text
//! z = g(first) − g(second)
//! ⟨s, z⟩ ≤ 0:   first goes to the next free place from the front, second to the next from the back;   s ← s + z
//! else:         the other way round;                                                                s ← s − z
//! ```
//!
//! The places make the next epoch's order, and s begins at 0 in every epoch. Only inner products with s count, so a [`Sketch`] of a few
//! hundred sums stands for a gradient: workers exchange kilobytes, where the paper's program exchanges whole gradients.

use crate::random::Random;
use crate::task::Share;

/// Keeps the streams of this file apart from those of others.
const FIRST_ORDER: u64 = u64::from_le_bytes(*b"cd-grab ");
const SIGNS: u64 = u64::from_le_bytes(*b"sketches");

/// The order of one worker's batches.
#[derive(Clone, Debug, PartialEq)]
pub struct CoordinatedOrder {
    rank: usize,
    state: OrderState,
}

/// All that an order is, for a checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OrderState {
    /// Epochs that are over.
    pub epoch: u64,
    /// This epoch's order.
    pub order: Vec<u64>,
    /// How much of it was seen.
    pub seen: usize,
    /// The next epoch's, as far as it has places.
    pub next: Vec<u64>,
    /// The sketch of the first batch of a pair whose second one comes next; else empty.
    pub first: Vec<f64>,
    /// s
    pub sum: Vec<f64>,
}

impl CoordinatedOrder {
    /// Of `batches` batches, numbers 0 to `batches` − 1: shuffled, on each worker in its own way.
    pub fn new(batches: u64, share: Share, seed: u64) -> CoordinatedOrder {
        let mut order = (0..batches).collect::<Vec<_>>();
        Random::of(&[seed, FIRST_ORDER, share.rank as u64]).shuffle(&mut order);
        let state = OrderState { next: vec![0; order.len()], order, ..OrderState::default() };
        CoordinatedOrder { rank: share.rank, state }
    }

    /// As saved. None if no order of `batches` batches can be in such a state.
    pub fn resume(batches: u64, share: Share, state: OrderState) -> Option<CoordinatedOrder> {
        let mut numbers = state.order.clone();
        numbers.sort_unstable();
        let whole = numbers.iter().copied().eq(0..batches) && state.next.len() == numbers.len();
        let fits = state.seen < numbers.len() && state.first.is_empty() == state.seen.is_multiple_of(2);
        (whole && fits).then_some(CoordinatedOrder { rank: share.rank, state })
    }

    pub fn state(&self) -> &OrderState {
        &self.state
    }

    /// The batch that is next.
    pub fn batch(&self) -> u64 {
        self.state.order[self.state.seen]
    }

    /// Takes the sketch of that batch's gradient. After the second of a pair: what all workers must hear of this one, for
    /// [`place`](CoordinatedOrder::place).
    pub fn note(&mut self, sketch: &[f64]) -> Option<Vec<f64>> {
        let state = &mut self.state;
        state.seen += 1;
        let is_second = state.seen.is_multiple_of(2);
        if is_second {
            let first = std::mem::take(&mut state.first);
            return Some(first.iter().zip(sketch).map(|(first, second)| first - second).collect());
        }
        if state.seen == state.order.len() {
            state.next[state.seen / 2] = state.order[state.seen - 1]; // the last of an odd number has the one free place
            self.turn();
        } else {
            state.first = sketch.to_vec();
        }
        None
    }

    /// Gives the last pair its places; `differences` is what every worker's `note` said, in rank order.
    pub fn place(&mut self, differences: &[Vec<f64>]) {
        let state = &mut self.state;
        let (pair, batches) = (state.seen / 2 - 1, state.order.len());
        for (rank, z) in differences.iter().enumerate() {
            state.sum.resize(z.len(), 0.0);
            let fits = state.sum.iter().zip(z).map(|(sum, z)| sum * z).sum::<f64>() <= 0.0;
            let sign = if fits { 1.0 } else { -1.0 };
            state.sum.iter_mut().zip(z).for_each(|(sum, z)| *sum += sign * z);
            if rank == self.rank {
                let (first, second) = (state.order[2 * pair], state.order[2 * pair + 1]);
                let (front, back) = if fits { (first, second) } else { (second, first) };
                (state.next[pair], state.next[batches - 1 - pair]) = (front, back);
            }
        }
        if state.seen == batches {
            self.turn();
        }
    }

    /// The next epoch begins.
    fn turn(&mut self) {
        let state = &mut self.state;
        std::mem::swap(&mut state.order, &mut state.next);
        (state.seen, state.epoch) = (0, state.epoch + 1);
        state.sum.clear();
    }
}

/// A few sums of a gradient's values with random signs: inner products of sketches are those of gradients, on average.
#[derive(Clone, Debug)]
pub struct Sketch {
    seed: u64,
    sums: usize,
}

impl Sketch {
    /// Workers that compare their sketches need the same seed and as many sums.
    pub fn new(seed: u64, sums: usize) -> Sketch {
        Sketch { seed, sums }
    }

    /// The sketch of `gradient`: value i counts in sum i modulo the number of sums.
    pub fn of(&self, gradient: &[f32]) -> Vec<f64> {
        let mut sums = vec![0.0_f64; self.sums];
        let mut signs = Random::of(&[self.seed, SIGNS]);
        for row in gradient.chunks(self.sums) {
            for (sums, values) in sums.chunks_mut(64).zip(row.chunks(64)) {
                let word = signs.next_u64();
                for (bit, (sum, value)) in sums.iter_mut().zip(values).enumerate() {
                    let sign = (word >> bit & 1) << 63; // of the f64: no branch
                    *sum += f64::from_bits(f64::from(*value).to_bits() ^ sign);
                }
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds each worker's gradients, by the batch's number, for an epoch.
    fn epoch(workers: &mut [CoordinatedOrder], gradient: impl Fn(usize, u64) -> Vec<f64>) {
        let before = workers[0].state.epoch;
        while workers[0].state.epoch == before {
            let all = workers.iter_mut().enumerate();
            let said = all.map(|(rank, worker)| worker.note(&gradient(rank, worker.batch()))).collect::<Vec<_>>();
            if let Some(differences) = said.into_iter().collect::<Option<Vec<_>>>() {
                workers.iter_mut().for_each(|worker| worker.place(&differences));
            }
        }
    }

    fn workers(count: usize, batches: u64) -> Vec<CoordinatedOrder> {
        (0..count).map(|rank| CoordinatedOrder::new(batches, Share { rank, workers: count }, 3)).collect()
    }

    /// An epoch of the authors' program, as a simulation in f64 has it.
    #[test]
    fn golden_orders() {
        let gradients = [
            [[1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0], [-0.75, 0.0, 0.0, 0.0]],
            [[0.0, 1.0, 0.0, 0.0], [0.25, -1.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.0], [0.25, -0.5, 0.0, 0.0]],
        ];
        let mut workers = workers(2, 4);
        workers.iter_mut().for_each(|worker| worker.state.order = vec![0, 1, 2, 3]);
        epoch(&mut workers, |rank, batch| gradients[rank][batch as usize].to_vec());
        assert_eq!(workers[0].state.order, [0, 2, 3, 1]);
        assert_eq!(workers[1].state.order, [0, 3, 2, 1]);
    }

    #[test]
    fn every_epoch_has_every_batch() {
        for batches in 1..8 {
            let mut workers = workers(3, batches);
            for number in 0..4 {
                for worker in &workers {
                    let mut order = worker.state.order.clone();
                    order.sort_unstable();
                    assert!(order.into_iter().eq(0..batches), "{batches} batches, epoch {number}");
                }
                epoch(&mut workers, |rank, batch| vec![batch as f64 * 1.7 - rank as f64, (batch * batch) as f64 - 5.0]);
            }
        }
    }

    /// What it is for: partial sums of centred gradients stay smaller than in the first, random order.
    #[test]
    fn sums_along_the_way_shrink() {
        let mut random = Random::of(&[9]);
        let gradients = (0..128).map(|_| [(); 4].map(|()| random.normal())).collect::<Vec<_>>();
        let mean = |k| gradients.iter().map(|g| g[k]).sum::<f64>() / 128.0;
        let means = [mean(0), mean(1), mean(2), mean(3)];
        let highest = |order: &[u64]| {
            let (mut sum, mut highest) = ([0.0_f64; 4], 0.0_f64);
            for &batch in order {
                for k in 0..4 {
                    sum[k] += gradients[batch as usize][k] - means[k];
                    highest = highest.max(sum[k].abs());
                }
            }
            highest
        };
        let mut workers = workers(1, 128);
        let before = highest(&workers[0].state.order);
        (0..6).for_each(|_| epoch(&mut workers, |_, batch| gradients[batch as usize].to_vec()));
        let after = highest(&workers[0].state.order);
        assert!(after < 0.6 * before, "{after} after, {before} before");
    }

    #[test]
    fn a_state_resumes_or_is_refused() {
        let share = Share { rank: 0, workers: 1 };
        let mut order = CoordinatedOrder::new(5, share, 1);
        for step in 0..23 {
            let state = order.state().clone();
            assert_eq!(CoordinatedOrder::resume(5, share, state.clone()).as_ref(), Some(&order), "step {step}");
            assert_eq!(CoordinatedOrder::resume(6, share, state.clone()), None);
            let broken = OrderState { seen: state.seen + 1, ..state };
            assert_eq!(CoordinatedOrder::resume(5, share, broken), None);
            if let Some(difference) = order.note(&[f64::from(step), 1.0]) {
                order.place(&[difference]);
            }
        }
    }

    #[test]
    fn sketches_keep_inner_products_on_average() {
        let mut random = Random::of(&[4]);
        let mut vector = || (0..5000).map(|_| random.normal() as f32).collect::<Vec<_>>();
        let (a, noise) = (vector(), vector());
        let b = a.iter().zip(&noise).map(|(a, noise)| a + noise).collect::<Vec<_>>();
        let exact = a.iter().zip(&b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        let sketch = Sketch::new(7, 256);
        let found = sketch.of(&a).iter().zip(sketch.of(&b)).map(|(a, b)| a * b).sum::<f64>();
        assert!((found / exact - 1.0).abs() < 0.4, "{found}, not {exact}");
        assert_eq!(sketch.of(&[]), vec![0.0; 256]);
    }
}
