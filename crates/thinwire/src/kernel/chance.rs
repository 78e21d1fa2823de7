//! Chance without a state: a number for each step, worker and place, the same whenever asked.
//!
//! ```text
//! u = (mix(mix(mix(seed + step) + who) + place) >> 11)·2⁻⁵³       in [0, 1), mix is splitmix64
//! ξ = 1 − 2u                                                      in (−1, 1)
//! ```
//!
//! A coin for r in [−1, 1] is the sign of r + ξ: + with chance (1+r)/2, so it is r on average.

use super::multiversion;

/// The largest f32 below 1. Rounding would make ±1 of the outermost ξ, and the coin of r = ±1 must never fall on the other side.
const MOST: f32 = 1.0 - f32::EPSILON / 2.0;

/// splitmix64.
#[inline(always)]
fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What is common to all places of a step of one worker; an owner's number is that of the workers.
pub fn stream(seed: u64, step: u64, who: u64) -> u64 {
    mix(mix(seed.wrapping_add(step)).wrapping_add(who))
}

multiversion! {
    /// out ← ξ of the places from `from` on.
    pub fn fill(stream: u64, from: u64, out: &mut [f32]) {
        for (i, out) in out.iter_mut().enumerate() {
            let k = mix(stream.wrapping_add(from.wrapping_add(i as u64))) >> 11;
            // 1 − 2k·2⁻⁵³, exact in f64, rounded once.
            let xi = (((1_i64 << 52) - k as i64) as f64 * (1.0 / (1_u64 << 52) as f64)) as f32;
            *out = xi.clamp(-MOST, MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against four values of u that another program gave.
    #[test]
    fn chance_is_the_golden_one() {
        let mut xi = [0.0; 4];
        fill(stream(7, 0, 0), 0, &mut xi);
        let u = [0.609_394_524_568, 0.100_078_886_333, 0.292_643_330_679, 0.258_296_490_427];
        for (xi, u) in xi.iter().zip(u) {
            assert!((f64::from(*xi) - (1.0 - 2.0 * u)).abs() < 6e-8, "{xi}, of {u}");
        }
    }

    /// However the vector is cut into tiles.
    #[test]
    fn a_place_has_its_chance_wherever_one_starts() {
        let (mut whole, mut part, stream) = ([0.0; 100], [0.0; 41], stream(1, 2, 3));
        fill(stream, 0, &mut whole);
        fill(stream, 59, &mut part);
        assert_eq!(whole[59..], part);
        assert!(whole.iter().all(|xi| xi.abs() < 1.0));
    }

    /// (1+r)/2 of many are +, within five times the scatter; of r = ±1 all or none.
    #[test]
    fn a_coin_is_right_on_average() {
        const TOSSES: usize = 100_000;
        let mut xi = vec![0.0; TOSSES];
        for (step, r) in [0.0f32, 0.3, -0.75, 0.99, 1.0, -1.0].into_iter().enumerate() {
            fill(stream(5, step as u64, 0), 0, &mut xi);
            let heads = xi.iter().filter(|xi| r + **xi >= 0.0).count() as f64 / TOSSES as f64;
            let chance = f64::from(1.0 + r) / 2.0;
            let scatter = (chance * (1.0 - chance) / TOSSES as f64).sqrt();
            assert!((heads - chance).abs() <= 5.0 * scatter, "{heads} heads of r = {r}");
        }
    }
}
