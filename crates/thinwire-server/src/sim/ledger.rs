//! What must hold, whatever happens: the world writes down what anyone has seen, and this compares.
//!
//! - A round that was made stays, as it was, through every crash; so does E, and so does what comes next.
//! - A message counts once: what a worker believes of its message is what the round says, and a worker that comes back with a
//!   checkpoint owes nothing of what a round has counted since.
//! - Whoever has heard as many rounds has the same parameters.
//! - Error feedback loses nothing. For Efficient-Adam, with S whom a round counts and u what each added to its residual e,
//!
//! ```text
//! E at the end = Σ over rounds of mean_S (u + e before − e after)  −  (x at the start − x at the end)
//! ```

use super::life::Report;
use crate::log::Record;
use crate::replica::Next;
use crate::run::Run;
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_64;

/// Where a server is after so many rounds: the digest of E, what comes next, and who was counted when.
type Known = (u64, Next, Vec<u64>);

#[derive(Default)]
pub struct Ledger {
    /// Whether a server has said that the run is there.
    pub is_created: bool,
    records: BTreeMap<u64, Record>,
    known: BTreeMap<u64, Known>,
    /// Whose messages came: by round, seat and digest, the life that sent it.
    came: BTreeMap<(u64, u32, u64), usize>,
    /// The digest of what a life has sent for a round.
    sent: BTreeMap<(u64, usize), u64>,
    /// The names of lives.
    names: Vec<String>,
    digests: BTreeMap<u64, u64>,
    told: BTreeMap<(u64, usize), Vec<f64>>,
    /// Lives with a residual of which a round has counted some already: they must not speak.
    stale: BTreeSet<usize>,
}

impl Ledger {
    pub fn born(&mut self, name: &str) -> usize {
        self.names.push(name.to_owned());
        self.names.len() - 1
    }

    /// Rounds that were made.
    pub fn rounds(&self) -> u64 {
        self.records.len() as u64
    }

    /// A server has made a round, or has come back: all that was there is there.
    pub fn compare(&mut self, run: &mut Run, seats: u32) {
        let (rounds, shelf) = (run.rounds(), run.shelf());
        assert!(rounds >= self.rounds(), "it has {rounds} rounds, and {} were made: some are lost", self.rounds());
        for round in shelf.oldest()..rounds {
            let record = shelf.read(round).expect("it can be read").expect("it is there");
            let known = self.records.entry(round).or_insert_with(|| record.clone());
            assert!(*known == record, "round {round} is not as it was");
        }
        let residual = xxh3_64(bytemuck::cast_slice(run.residue()));
        let counted = (0..seats).map(|slot| run.counted(slot)).collect();
        let now = (residual, run.next().clone(), counted);
        let known = self.known.entry(rounds).or_insert_with(|| now.clone());
        assert!(*known == now, "after {rounds} rounds it was {known:?}, and is {now:?}");
    }

    /// The round that was made last, for a server that goes on.
    pub fn made(&mut self, record: &Record, run: &mut Run, seats: u32) {
        let known = self.records.insert(record.round, record.clone());
        assert!(known.is_none_or(|known| known == *record), "round {} was made twice", record.round);
        assert_eq!(self.rounds(), run.rounds(), "rounds are without a hole");
        let twice = self.lives(record.round).find(|life| self.stale.contains(life));
        assert!(twice.is_none(), "round {} counts twice what life {twice:?} owed", record.round);
        let residual = xxh3_64(bytemuck::cast_slice(run.residue()));
        let counted = (0..seats).map(|slot| run.counted(slot)).collect();
        self.known.insert(run.rounds(), (residual, run.next().clone(), counted));
    }

    /// Someone is given a round.
    pub fn seen(&self, record: &Record) {
        assert!(self.records.get(&record.round) == Some(record), "round {} is not as it was made", record.round);
    }

    pub fn sent(&mut self, round: u64, message: &[u8], life: usize) {
        self.sent.insert((round, life), xxh3_64(message));
    }

    pub fn came(&mut self, round: u64, slot: u32, message: &[u8], life: usize) {
        self.came.insert((round, slot, xxh3_64(message)), life);
    }

    /// Whom a round has counted.
    fn lives(&self, round: u64) -> impl Iterator<Item = usize> {
        let counted = self.records.get(&round).into_iter().flat_map(|record| &record.counted);
        counted.map(move |counted| {
            let found = self.came.get(&(round, counted.slot, counted.digest));
            *found.unwrap_or_else(|| panic!("round {round} counts a message that nobody sent: {counted:?}"))
        })
    }

    /// Whether a round counts what this life has sent. A life before it may have sent the same, to the bit: that is as good.
    fn counts(&self, round: u64, life: usize) -> bool {
        let Some(sent) = self.sent.get(&(round, life)) else { return false };
        let counted = self.records.get(&round).into_iter().flat_map(|record| &record.counted);
        let mut same = counted.filter(|counted| counted.digest == *sent);
        same.any(|counted| {
            let came = self.came.get(&(round, counted.slot, counted.digest));
            came.is_some_and(|other| self.names[*other] == self.names[life])
        })
    }

    /// A life has begun.
    pub fn begun(&mut self, life: usize, report: &Report) {
        let name = &self.names[life];
        let Some(saved) = report.saved else { return };
        let counted = (saved..self.rounds()).any(|round| self.lives(round).any(|life| self.names[life] == *name));
        if counted && !report.owes_nothing {
            self.stale.insert(life);
        }
    }

    /// A life is between two steps; `before` is where it was before the last one.
    pub fn compare_life(&mut self, life: usize, before: &Report, report: &Report) {
        if report.owes_nothing {
            self.stale.remove(&life);
        }
        let name = &self.names[life];
        if let Some(digest) = report.digest {
            let known = *self.digests.entry(report.rounds).or_insert(digest);
            assert_eq!(known, digest, "{name} differs after {} rounds, {} steps", report.rounds, report.steps);
        }
        if report.started_over > before.started_over {
            return;
        }
        let round = before.rounds;
        let counts = self.counts(round, life);
        let (counted, left_out) = (report.counted - before.counted, report.left_out - before.left_out);
        if counted + left_out > 0 {
            let believed = counted > 0;
            assert_eq!(believed, counts, "what {name} believes of its message for round {round}");
        }
        if let Some((round, told)) = &report.told {
            self.told.insert((*round, life), told.clone());
        }
    }

    /// The run is at its end, and `moved` is how far the parameters went: the most that E is off. None where a life died before it
    /// could say what it told.
    pub fn lost_feedback(&self, moved: &[f64], residual: &[f32]) -> Option<f64> {
        let mut owed = moved.to_vec();
        for round in self.records.keys() {
            let lives = self.lives(*round).collect::<Vec<_>>();
            for life in &lives {
                let told = self.told.get(&(*round, *life))?;
                owed.iter_mut().zip(told).for_each(|(owed, told)| *owed += told / lives.len() as f64);
            }
        }
        Some(residual.iter().zip(&owed).map(|(e, owed)| (f64::from(*e) - owed).abs()).fold(0.0, f64::max))
    }
}
