//! Tokens, and whose they are: the last part is held out, and of each part every worker has one stretch.
//!
//! Held out is the end of the text, and not lines here and there: neighbours know too much of each other.

use crate::random::Random;
use crate::{Error, Result, Share};
use std::ops::Range;

/// The part of a text that is held out when nobody says otherwise.
pub const HELD_OUT: f64 = 0.1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corpus {
    pub train: Vec<u32>,
    pub held_out: Vec<u32>,
}

impl Corpus {
    /// Holds out the last `held_out_part` of the tokens (see [`HELD_OUT`]).
    pub fn new(tokens: Vec<u32>, held_out_part: f64) -> Result<Corpus> {
        if !(held_out_part > 0.0 && held_out_part < 1.0) {
            return Err(Error::config("held out", held_out_part, "a part of the text between 0 and 1 is expected"));
        }
        let held_out = (tokens.len() as f64 * held_out_part).round() as usize;
        let mut train = tokens;
        let held_out = train.split_off(train.len() - held_out.min(train.len()));
        Ok(Corpus { train, held_out })
    }

    /// Whether every worker's share holds at least one window of `context` tokens and the token after them.
    pub fn check(&self, workers: usize, context: usize) -> Result<()> {
        let needed = context.checked_add(1).and_then(|window| window.checked_mul(workers)).unwrap_or(usize::MAX);
        for (what, tokens) in [("to train on", &self.train), ("held out", &self.held_out)] {
            if tokens.len() < needed {
                let found = tokens.len();
                let problem = format!(
                    "too little text: {found} tokens are {what}, and {workers} workers need {needed}, a context and one token \
                     each; a longer text, a shorter context or fewer workers will do"
                );
                return Err(Error::config("context", context, problem));
            }
        }
        Ok(())
    }

    /// A worker's stretch of the tokens to train on.
    pub fn share(&self, share: Share) -> &[u32] {
        &self.train[part(self.train.len(), share)]
    }

    /// A worker's stretch of the held-out tokens.
    pub fn held_out_share(&self, share: Share) -> &[u32] {
        &self.held_out[part(self.held_out.len(), share)]
    }
}

/// Which of `length` things in a row are this worker's: the parts touch, cover all, and differ by one at most.
pub fn part(length: usize, share: Share) -> Range<usize> {
    let start = |rank: usize| length / share.workers * rank + rank.min(length % share.workers);
    start(share.rank)..start(share.rank + 1)
}

/// `length` tokens in a row, from a place where every place is as likely. There must be so many.
pub fn window<'a>(tokens: &'a [u32], length: usize, random: &mut Random) -> &'a [u32] {
    let start = random.below(tokens.len() - length + 1);
    &tokens[start..start + length]
}
