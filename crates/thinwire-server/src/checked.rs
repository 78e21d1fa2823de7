//! A whole message, checked and judged before it waits for its round.

use crate::hall::Hall;
use crate::judge::TooLong;
use thinwire::Result;
use xxhash_rust::xxh3::xxh3_64;

pub struct Checked {
    /// As the round counts it: an outlier is clipped, or its header alone.
    pub message: Vec<u8>,
    /// Of what was sent, by which its worker knows that it was counted.
    pub digest: u64,
    /// Of what was sent; none if its worker is left out of the round.
    pub norm: Option<f64>,
    pub outlier: Option<TooLong>,
}

impl Checked {
    /// Refuses a message of the member in `slot` that does not fit `expected`.
    pub fn of(hall: &Hall, expected: &[u8], message: Vec<u8>, slot: u32) -> Result<Checked> {
        let (checker, worker, digest) = (&hall.checker, slot as usize, xxh3_64(&message));
        let norm = checker.check(expected, &message, worker)?;
        let coarse = checker.is_coarse(expected)?;
        let outlier = norm.and_then(|norm| hall.judge().look(norm, coarse));
        let message = match outlier {
            None => message,
            Some(TooLong { factor: Some(factor), .. }) => checker.shortened(expected, &message, factor, worker)?,
            Some(TooLong { factor: None, .. }) => checker.emptied(&message, worker)?,
        };
        Ok(Checked { message, digest, norm, outlier })
    }
}
