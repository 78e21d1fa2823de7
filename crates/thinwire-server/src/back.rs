//! Going back: a run goes on from an earlier round, and what came after it is dropped.
//!
//! What the run is to become is written first, with `going_back` in `run.json`; then files are cut. A server that dies between finds
//! that word when it comes back, and does the rest. The run gets another id, because workers that have seen the rounds that were
//! dropped are somewhere else: they are refused by name, and start over.

use crate::disk;
use crate::error::{Error, Result};
use crate::inputs::{self, Inputs};
use crate::kept;
use crate::log::{self, numbered, rounds_until};
use crate::roster::Roster;
use crate::run::{MEMBERS, Spec, new_id, read_spec, write_spec};
use crate::state::State;
use std::path::Path;

/// Takes the run in `dir`, which is locked, back to where it was after `rounds`.
pub fn go_back(dir: &Path, rounds: u64) -> Result<()> {
    let spec = finish(dir, read_spec(dir)?)?;
    if spec.back_to == Some(rounds) {
        let shown = dir.display();
        return Err(Error::Usage(format!(
            "--back-to {rounds}: the run in {shown} was taken back to this round already; leave the flag out to go on"
        )));
    }
    check(dir, &spec, rounds)?;
    let before = spec.before.iter().cloned().chain([spec.id.clone()]).collect();
    let next = Spec { id: new_id(), before, back_to: Some(rounds), going_back: true, ..spec };
    write_spec(dir, &next)?;
    finish(dir, next).map(|_| ())
}

/// Goes there without writing anything: a run must not be cut to what cannot be had.
fn check(dir: &Path, spec: &Spec, rounds: u64) -> Result<()> {
    let unreachable = |problem: &dyn std::fmt::Display| {
        let oldest = numbered(dir, "snapshot").ok().and_then(|found| found.first().map(|(oldest, _)| *oldest));
        let oldest = oldest.map_or(String::new(), |oldest| format!("; the oldest snapshot is of {oldest} rounds"));
        Error::Usage(format!("--back-to {rounds}: {problem}{oldest}"))
    };
    let shelf = rounds_until(dir, rounds).map_err(|error| unreachable(&error))?;
    let (kept, _) = kept::newest(dir, spec.parameters, shelf.oldest()..=rounds)?;
    let kept = kept.ok_or_else(|| unreachable(&"there is no snapshot before this round"))?;
    let files = Inputs::look(dir, kept.rounds, rounds)?;
    State::start(dir, spec, &kept)?.replay(dir, &shelf, &files, rounds).map_err(|error| unreachable(&error))
}

/// Does what is left of going back, if anything is.
pub fn finish(dir: &Path, spec: Spec) -> Result<Spec> {
    let (true, Some(rounds)) = (spec.going_back, spec.back_to) else { return Ok(spec) };
    tracing::warn!("the run goes back to round {rounds}; what came after it is dropped");
    log::cut(dir, rounds)?;
    inputs::cut(dir, rounds)?;
    for prefix in ["snapshot", "residue"] {
        for (_, path) in numbered(dir, prefix)?.iter().filter(|(number, _)| *number > rounds) {
            disk::remove(path).map_err(Error::io(path))?;
        }
    }
    let members = dir.join(MEMBERS);
    if disk::exists(&members).map_err(Error::io(&members))? {
        let mut roster = Roster::read(dir)?;
        roster.gone.retain(|_, counted| *counted <= rounds);
        roster.since.values_mut().for_each(|since| *since = rounds.min(*since));
        roster.write(dir)?;
    }
    let done = Spec { going_back: false, ..spec };
    write_spec(dir, &done)?;
    Ok(done)
}
