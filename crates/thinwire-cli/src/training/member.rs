//! A worker of a server: it asks nobody when it evaluates, saves or stops. The server makes the rounds, and others may go further
//! while this one is away.

use super::{Shared, Stepper};
use anyhow::Result;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use thinwire::Traffic;
use thinwire_models::{Score, Share};
use thinwire_report::Step;
use thinwire_server::Member;

pub struct Served<'a> {
    pub member: Member,
    /// Where its checkpoint goes.
    pub checkpoint: PathBuf,
    /// Set when the user wants to stop.
    pub stop: &'a AtomicBool,
}

impl Served<'_> {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Stepper for Served<'_> {
    fn steps(&self) -> u64 {
        self.member.steps()
    }

    fn is_done(&self) -> bool {
        self.member.is_done()
    }

    fn lr(&self) -> f32 {
        self.member.lr()
    }

    fn traffic(&self) -> Traffic {
        self.member.traffic()
    }

    /// A round may be waiting for others, who may not come: then the wait is interrupted, and that is no error.
    fn step(&mut self, loss: f32, params: &mut [f32], grad: &[f32]) -> Result<bool> {
        if self.is_stopped() {
            return Ok(false);
        }
        self.member.report_loss(f64::from(loss));
        match self.member.step(params, grad) {
            Ok(()) => Ok(true),
            Err(_) if self.is_stopped() && self.member.is_interrupted() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// A server has no such notes; `Batches::random` asks for none.
    fn gather(&mut self, _note: &[u8]) -> Result<Vec<Vec<u8>>> {
        anyhow::bail!("workers of a server exchange no notes")
    }

    /// All that a worker sends goes to another host.
    fn share(&mut self, step: Step, _meets: bool) -> Result<Shared> {
        let steps = vec![Step { bytes_between_hosts: step.bytes, ..step }];
        Ok(Shared { steps, stop: self.is_stopped(), ..Shared::default() })
    }

    /// All that is asked for, by this worker alone: nobody waits for another's evaluation.
    fn scores(&self) -> Share {
        Share { rank: 0, workers: 1 }
    }

    fn common(&mut self) -> Result<Option<Vec<f32>>> {
        Ok(self.member.worker().anchor()?)
    }

    fn sum(&mut self, part: Option<Score>) -> Result<Option<Score>> {
        Ok(part)
    }

    fn save(&mut self, params: &[f32]) -> Result<()> {
        Ok(self.member.save(&self.checkpoint, params)?)
    }
}
