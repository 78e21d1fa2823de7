//! A late mean: it starts at the end of one step and is applied at the end of a later one, and nobody waits in between.
//!
//! ```text
//! start     at the end of step t:         z = x + e, coded and sent up
//! turn      when step t+1 is called:      owners add up, code, send down
//! finish    at the end of step t+τ:       everyone receives and applies
//! ```
//!
//! They are calls of the worker's own, so there is no thread and no clock: the transport carries messages while the caller computes.
//! A worker sends and receives the messages of one mean in the order of every other; a mean may start before the last one is
//! finished, but not before its turn. So between two workers messages are received in the order in which they are sent: up 1, down 1, up 2,
//! down 2. Nobody waits in a ring: a turn waits for starts of the call before, a finish for turns, and both come before anything
//! that a later call sends.
//!
//! Headers have the step and the digest of the start. The payloads down are chained from there, and the digest takes the chain at the
//! finish: so it is the same whenever messages were received.
//!
//! Before the state is saved, or anything else is sent, the mean [arrives](Exchange::arrive): turn and finish run at once, into a vector
//! of the optimizer's own, from which it is applied in its step. So no message is ever saved.

use super::Exchange;
use crate::error::Result;
use crate::machine::{Keep, OfGradient, Pass, Source, Step, Stripes, Vector};
use crate::schedule::Round;
use crate::state::Entry;

/// Of a late mean, what an optimizer has in its state.
#[derive(Debug, Default)]
pub struct Late {
    /// The step at whose end it is applied; 0 if there is none.
    pub due: u64,
    /// 1 if it has arrived before that, else 0.
    arrived: u64,
    /// Of a mean that has arrived: how many took part.
    contributions: u64,
    /// The chain of its payloads.
    chain: u64,
}

impl Late {
    /// Whether there is a mean that was not applied yet.
    pub fn is_under_way(&self) -> bool {
        self.due > 0
    }

    /// Whether it has arrived, and somebody took part in it: of a mean that is given up, whose vector is to be used elsewhere.
    pub fn give_up(&mut self) -> bool {
        let given_up = std::mem::take(self);
        given_up.arrived > 0 && given_up.contributions > 0
    }

    /// What to save.
    pub fn numbers(&mut self) -> [Entry<'_>; 4] {
        [
            Entry::word("mean_due", &mut self.due),
            Entry::word("mean_received", &mut self.arrived),
            Entry::word("mean_contributions", &mut self.contributions),
            Entry::word("mean_chain", &mut self.chain),
        ]
    }
}

/// The means that have begun and whose payloads were not all received, the oldest first. Two only inside of a call.
pub(super) struct Begun {
    means: [Option<Mean>; 2],
    /// What this worker, as an owner, tells itself: for each of the two a buffer for each bucket.
    kept: [Vec<Vec<u8>>; 2],
}

#[derive(Clone, Copy)]
struct Mean {
    t: u64,
    /// Before it started.
    digest: u64,
    /// The number of the part that it is of; 0 if it is of the whole vector.
    part: usize,
    /// Where [`Begun::kept`] has its messages.
    place: usize,
    had_its_turn: bool,
}

impl Begun {
    pub fn new(buckets: usize, longest: usize) -> Begun {
        let kept = || (0..buckets).map(|_| Vec::with_capacity(longest)).collect();
        Begun { means: [None; 2], kept: [kept(), kept()] }
    }
}

/// What a call does of a mean.
enum Stage {
    Start,
    Turn,
    Finish,
}

impl Exchange {
    /// Starts a late coarse mean of the source's vector. The one before must have had its [turn](Exchange::turn).
    pub fn start(&mut self, step: &mut Step<'_>, source: impl Source) -> Result<()> {
        let place = self.begun.means[0].map_or(0, |first| 1 - first.place);
        let mean = Mean { t: step.t, digest: self.digest, part: step.part, place, had_its_turn: false };
        let free = self.begun.means.iter_mut().find(|mean| mean.is_none());
        *free.expect("at most two means are under way") = Some(mean);
        self.run_stage(Stage::Start, mean, step, source, Keep)?;
        self.group.traffic.rounds.count(Round::Coarse);
        Ok(())
    }

    /// The owners' part of the mean that started in a call before this one, if there is one. It comes first in a call.
    pub fn turn(&mut self, step: &mut Step<'_>) -> Result<()> {
        let Some(mean) = self.begun.means[0].filter(|mean| !mean.had_its_turn) else { return Ok(()) };
        self.begun.means[0] = Some(Mean { had_its_turn: true, ..mean });
        self.run_stage(Stage::Turn, mean, step, OfGradient, Keep).map(drop)
    }

    /// Does with the oldest late mean what the pass does; returns how many took part. Nothing is done when nobody did. A mean that has
    /// arrived is in the part `stripes` of the vector `arrived`, which is 0 afterwards.
    pub fn finish(
        &mut self,
        late: &mut Late,
        step: &mut Step<'_>,
        pass: impl Pass,
        (stripes, arrived): (Stripes, Vector),
    ) -> Result<u32> {
        match (late.arrived, late.contributions) {
            (0, _) => (late.contributions, late.chain) = self.receive(step, pass)?,
            (_, 0) => {}
            _ => self.machine.spend(stripes, pass, step, arrived)?,
        }
        let Late { contributions, chain, .. } = std::mem::take(late);
        self.agree_on(&chain.to_le_bytes());
        Ok(contributions as u32)
    }

    /// Receives the mean under way, if there is one, with a pass that stores it. All workers do this in the same step.
    pub fn arrive(&mut self, late: &mut Late, step: &mut Step<'_>, store: impl Pass) -> Result<()> {
        if !late.is_under_way() || late.arrived > 0 {
            return Ok(());
        }
        self.turn(step)?;
        (late.contributions, late.chain) = self.receive(step, store)?;
        late.arrived = 1;
        Ok(())
    }

    fn receive(&mut self, step: &mut Step<'_>, pass: impl Pass) -> Result<(u64, u64)> {
        let [first, second] = self.begun.means;
        let first = first.expect("a mean is under way");
        let (contributions, chain) = self.run_stage(Stage::Finish, first, step, OfGradient, pass)?;
        self.begun.means = [second, None];
        Ok((contributions, chain))
    }

    fn run_stage(
        &mut self,
        stage: Stage,
        mean: Mean,
        step: &mut Step<'_>,
        source: impl Source,
        pass: impl Pass,
    ) -> Result<(u64, u64)> {
        let mut kept = std::mem::take(&mut self.begun.kept[mean.place]);
        let mut under_way = self.under_way(Round::Coarse, mean.part, (mean.t, mean.digest), step, source, pass);
        let done = match stage {
            Stage::Start => under_way.start(&mut kept).map(|()| (0, 0)),
            Stage::Turn => under_way.turn(&mut kept).map(|()| (0, 0)),
            Stage::Finish => {
                let outcome = under_way.finish(&mut kept);
                outcome.map(|outcome| (u64::from(outcome.contributions.unwrap_or(0)), outcome.digest))
            }
        };
        self.begun.kept[mean.place] = kept;
        done
    }
}
