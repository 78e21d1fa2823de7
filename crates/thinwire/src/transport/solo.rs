//! A group of one: nobody to send to.

use super::Collective;
use crate::error::Result;

/// A group of one worker, which needs no network.
#[derive(Clone, Copy, Debug, Default)]
pub struct Solo;

impl Collective for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn reserve(&mut self, _: usize, _: usize) {}

    fn send(&mut self, _: usize, _: &[u8], _: &'static str) -> Result<()> {
        unreachable!("a worker sends to others only")
    }

    fn receive(&mut self, _: usize, _: &mut Vec<u8>, _: &'static str) -> Result<()> {
        unreachable!("a worker receives from others only")
    }
}
