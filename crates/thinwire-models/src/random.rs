//! Seeded randomness that is the same on every machine and for ever: SplitMix64 (Steele, Lea, Flood 2014).
//!
//! A stream is made from any number of words (a seed, a worker, a step), so what is drawn at a step does not depend on the
//! steps before it.

#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream of these words, in this order.
    pub fn of(words: &[u64]) -> Random {
        let mut random = Random { state: 0x7468_696e_7769_7265 };
        for word in words {
            random.state = random.next_u64() ^ word;
        }
        random
    }

    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in 0..below (by multiplication; its bias is below `below`/2^64). `below` must not be 0.
    pub fn below(&mut self, below: usize) -> usize {
        ((u128::from(self.next_u64()) * below as u128) >> 64) as usize
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Normal, mean 0 and variance 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Fisher and Yates.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last + 1));
        }
    }
}
