//! Seeded chance for the simulation: SplitMix64 (Steele, Lea, Flood 2014), the same on every machine.
//!
//! The streams are those of `thinwire_models::random`, whose crate would bring the matrix products of the built-in tasks along.

pub struct Random {
    state: u64,
}

impl Random {
    /// The stream of these words, in this order.
    pub fn of(words: &[u64]) -> Random {
        let begin = Random { state: 0x7468_696e_7769_7265 };
        words.iter().fold(begin, |mut random, word| Random { state: random.draw() ^ word })
    }

    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Normal, mean 0 and variance 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    /// As `thinwire_models::random` has them: a simulation of an earlier version is repeated to the bit.
    #[test]
    fn streams_are_what_they_were() {
        assert_eq!(Random::of(&[1, 0, 7]).draw(), 16_427_501_237_234_420_636);
    }
}
