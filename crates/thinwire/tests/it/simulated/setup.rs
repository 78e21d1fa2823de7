//! What a seed decides: an optimizer with its options, groups that follow one another, what they do, and what goes wrong.

use super::chance::Chance;
use crate::common::runs;
use runs::{PLACES, TOPOLOGIES, cases, config, votes};
use std::collections::BTreeMap;
use std::time::Duration;
use thinwire::Config;

/// How long a worker waits for another.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// What a slow worker takes. A schedule has at most two, and as much may pass beside: together less than the deadline.
pub const PAUSE: Duration = Duration::from_millis(1250);

/// What a machine may be slow by, altogether.
pub const SLACK: Duration = Duration::from_millis(2500);

/// What all workers of a group do after a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    Save,
    Note,
    Sync,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum How {
    /// It panics in a call of the transport.
    Panics,
    /// A call of the transport fails.
    Fails,
    /// It is silent for twice the deadline.
    Stalls,
    /// It is told to stop while it waits.
    Interrupted,
    /// Its gradient is NaN.
    NotFinite,
    /// It ends before the others, without an error.
    Leaves,
    /// It is slow, and nothing else.
    Slow,
}

impl How {
    /// Whether the group may go on.
    pub fn is_harmless(self) -> bool {
        self == How::Slow
    }

    /// Whether it strikes in a call of the transport; otherwise before a step.
    pub fn is_in_a_call(self) -> bool {
        matches!(self, How::Panics | How::Fails | How::Stalls | How::Interrupted | How::Slow)
    }
}

/// What goes wrong with whom; `at` is a part of its calls, or of the group's steps, in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub rank: usize,
    pub how: How,
    pub at: u64,
}

/// A group, from the checkpoint of the one before.
#[derive(Debug)]
pub struct Generation {
    pub hosts: Vec<usize>,
    /// Its last step.
    pub until: u64,
    pub actions: BTreeMap<u64, Action>,
    pub faults: Vec<Fault>,
}

#[derive(Debug)]
pub struct Setup {
    pub words: String,
    pub config: Config,
    pub generations: Vec<Generation>,
}

const FAULTS: [How; 7] =
    [How::Panics, How::Fails, How::Stalls, How::Interrupted, How::NotFinite, How::Leaves, How::Slow];

impl Setup {
    pub fn of(chance: &mut Chance) -> Setup {
        let cases = cases();
        let case = &cases[chance.below(cases.len() as u64) as usize];
        let mut words = format!("{case}; topology = '{}'; threads = 1", chance.pick(&TOPOLOGIES));
        if chance.one_in(2) {
            words += "; bucket = 16";
        }
        let on_one_host = votes(&words) || chance.one_in(2);
        let mut from = 0;
        let generations = (0..1 + chance.below(3)).map(|_| {
            let generation = Generation::of(chance, from, on_one_host);
            from = generation.until;
            generation
        });
        let generations = generations.collect();
        Setup { config: config(&words), words, generations }
    }
}

impl Generation {
    fn of(chance: &mut Chance, from: u64, on_one_host: bool) -> Generation {
        let hosts = match on_one_host {
            true => vec![0; 1 + chance.below(5) as usize],
            false => chance.pick(&PLACES).to_vec(),
        };
        let until = from + 3 + chance.below(8);
        let planned = (from + 1..until).filter_map(|step| {
            let action = chance.pick(&[Action::Save, Action::Note, Action::Sync]);
            chance.one_in(5).then_some((step, action))
        });
        let mut actions = planned.collect::<BTreeMap<_, _>>();
        actions.insert(until, Action::Save);
        let fault = |chance: &mut Chance| Fault {
            rank: chance.below(hosts.len() as u64) as usize,
            how: chance.pick(&FAULTS),
            at: chance.below(1000),
        };
        let faults = (0..chance.pick(&[0, 0, 1, 1, 2])).map(|_| fault(chance)).collect();
        Generation { hosts, until, actions, faults }
    }
}
