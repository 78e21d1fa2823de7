//! What a question lacks, in the words of the command and in those of a program.

use crate::error::Spelled;
use crate::presets::Preset;
use crate::question::Question;
use anyhow::{Result, ensure};

/// Refuses at once what lacks several things, with a whole example.
pub fn whole(question: &Question, measures: bool) -> Result<()> {
    let (preset, network) = (question.preset, question.network.is_some());
    let has = [
        ("params", question.params.is_some() || question.model.is_some() || measures || preset.is_some()),
        ("workers", question.workers.is_some() || network || preset.is_some()),
        ("bandwidth", question.bandwidth.is_some() || network || question.hosts == Some(1)),
        ("compute", question.compute.is_some() || measures || preset.is_some()),
    ];
    let missing = has.iter().filter(|(_, has)| !has).map(|(key, _)| *key).collect::<Vec<_>>();
    ensure!(missing.len() < 2, several(&missing));
    Ok(())
}

fn several(missing: &[&str]) -> Spelled {
    let flags = missing.iter().map(|key| format!("--{key}")).collect::<Vec<_>>();
    Spelled {
        flags: format!(
            "expected {}, found none of them (for example thinwire plan --params 110M --workers 16 --bandwidth 1Gb/s --compute 300ms)",
            flags.join(" and ")
        ),
        words: format!(
            "expected {}, found none of them (for example params=\"110M\", workers=16, bandwidth=\"1Gb/s\", compute=\"300ms\")",
            missing.join(" and ")
        ),
    }
}

fn spelled(flags: &str, words: &str) -> anyhow::Error {
    Spelled { flags: format!("expected {flags}"), words: format!("expected {words}") }.into()
}

pub fn params() -> anyhow::Error {
    spelled(
        "the size of the model (for example --params 110M, --model FILE.safetensors or --measure), found none",
        "the size of the model (for example params=\"110M\" or model=\"FILE.safetensors\"), found none",
    )
}

pub fn workers() -> anyhow::Error {
    spelled(
        "--workers, how many train together (for example --workers 16), found none",
        "workers, how many train together (for example workers=16), found none",
    )
}

pub fn bandwidth() -> anyhow::Error {
    spelled(
        "--bandwidth, the rate of each host's link (for example --bandwidth 1Gb/s), or --network FILE with what `thinwire probe --json` \
         printed; found none",
        "bandwidth, the rate of each host's link (for example bandwidth=\"1Gb/s\"), or network, a file with what `thinwire probe --json` \
         printed; found none",
    )
}

/// Of this paper's model, if it is one.
pub fn compute(preset: Option<Preset>) -> anyhow::Error {
    match preset {
        Some(_) => spelled(
            "--compute, because the paper does not say how long a step computes (for example --compute 30ms), found none",
            "compute, because the paper does not say how long a step computes (for example compute=\"30ms\"), found none",
        ),
        None => spelled(
            "--compute, the time of forward and backward in one step (for example --compute 300ms), or --measure; found none",
            "compute, the time of forward and backward in one step (for example compute=\"300ms\"), found none",
        ),
    }
}
