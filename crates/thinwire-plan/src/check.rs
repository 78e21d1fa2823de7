//! Whether a question makes sense by itself: what cannot stand beside each other, and numbers out of range. The command's flags and
//! [`words`](crate::words) refuse most of it before, with the units that were written.

use crate::question::{MOST_STEPS, MOST_WORKERS, Question};
use anyhow::{Result, ensure};

/// Refuses a question that makes no sense.
pub fn check(question: &Question) -> Result<()> {
    conflicts(question)?;
    simulated(question)?;
    ranges(question)
}

fn conflicts(question: &Question) -> Result<()> {
    let Question { params, model, preset, deepspeed, bench, device, without_packing, .. } = question;
    for (one, has_one, other, has_other) in [
        ("--model", model.is_some(), "--params", params.is_some()),
        ("--deepspeed", deepspeed.is_some(), "--preset", preset.is_some()),
        ("--device", device.is_some(), "--bench", bench.is_some()),
        ("--without-packing", *without_packing, "--bench", bench.is_some()),
        ("--without-packing", *without_packing, "--device", device.is_some()),
    ] {
        ensure!(!(has_one && has_other), "expected {one} without {other}, found both");
    }
    Ok(())
}

/// What makes workers and links of a simulation differ needs one.
fn simulated(question: &Question) -> Result<()> {
    for (key, given) in [
        ("--spread", question.spread.is_some()),
        ("--slow-host", question.slow_host.is_some()),
        ("--slow-link", question.slow_link.is_some()),
        ("--jitter", question.jitter.is_some()),
        ("--seed", question.seed.is_some()),
    ] {
        ensure!(question.simulate || !given, "expected --simulate beside {key}, found none");
    }
    Ok(())
}

fn ranges(question: &Question) -> Result<()> {
    let count = |given: Option<usize>| given.map(|given| given as f64);
    let (workers, steps) = (MOST_WORKERS as f64, MOST_STEPS as f64);
    for (key, given, least, most, unit) in [
        ("--params", count(question.params), 1.0, 1e13, "parameters"),
        ("--compute", question.compute, 1e-6, 86_400.0, "seconds"),
        ("--sharing", count(question.sharing), 1.0, 1024.0, "workers"),
        ("--cores", count(question.cores), 1.0, 4096.0, "cores"),
        ("--memory", count(question.memory), 1e6, 1e16, "bytes"),
        ("--workers", count(question.workers), 1.0, workers, "workers"),
        ("--hosts", count(question.hosts), 1.0, workers, "hosts"),
        ("--bandwidth", question.bandwidth, 1e3, 1e14, "bits a second"),
        ("--latency", question.latency, 0.0, 10.0, "seconds"),
        ("--steps", count(question.steps), 1.0, steps, "steps"),
        ("--warmup", count(question.warmup), 0.0, steps, "steps"),
        ("--spread", question.spread, 0.0, 1.0, "of the time"),
        ("--slow-host", question.slow_host, 1.0, 1000.0, "times as long"),
        ("--slow-link", question.slow_link, 1.0, 1000.0, "times as long"),
        ("--jitter", question.jitter, 0.0, 10.0, "seconds"),
    ] {
        let fits = given.is_none_or(|given| (least..=most).contains(&given));
        let given = given.unwrap_or_default();
        ensure!(fits, "invalid {key} {given}: expected {least} to {most} {unit}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::Question;

    fn small() -> Question {
        Question {
            params: Some(1000),
            workers: Some(2),
            bandwidth: Some(1e9),
            compute: Some(0.1),
            without_packing: true,
            ..Question::default()
        }
    }

    #[test]
    fn what_a_program_may_not_ask_is_refused() {
        assert!(small().answer().is_ok());
        let refused = |question: Question, says: &str| {
            let error = question.answer().expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        };
        refused(Question { device: Some("a100".to_owned()), ..small() }, "expected without_packing without device");
        refused(Question { seed: Some(1), ..small() }, "expected simulate beside seed");
        refused(Question { cores: Some(0), ..small() }, "invalid cores = 0: expected 1 to 4096 cores");
        for bandwidth in [0.0, -1e9, f64::NAN, f64::INFINITY] {
            refused(
                Question { bandwidth: Some(bandwidth), ..small() },
                "expected 1000 to 100000000000000 bits a second",
            );
        }
    }
}
