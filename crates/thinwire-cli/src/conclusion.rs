//! What a run came to, for people: the lines at the end of `train` and `join`.

use crate::job::{BuiltIn, Job};
use crate::screen::say;
use anyhow::Result;
use std::path::Path;
use thinwire::{Config, Plan};
use thinwire_report as report;
use thinwire_report::numbers::{self, bandwidth, bytes, short};
use thinwire_report::{Phases, Planned, Rounds, Summary};

/// Tokens of the sample that a language model prints at the end.
const SAMPLE: usize = 300;

/// Of a run whose workers were together from the first step to the last.
pub fn of_group(job: &Job, summary: &Summary, params: &[f32], dir: &Path, page: &Path) -> Result<()> {
    learned(job, summary, params);
    sent(job, summary)?;
    let rounds = summary.rounds;
    say!(
        "rounds    {} exact, {} coarse, {} skipped; {:.2} bits a parameter a step ({}: 32)",
        rounds.exact,
        rounds.coarse,
        rounds.skipped,
        summary.bits_per_param_per_step,
        report::shown(report::BASELINE.as_str())
    );
    say!("{}; {} {}/s", time(&summary.seconds), short(summary.units_per_second), summary.unit);
    if summary.workers > 1 {
        let time = |to: &thinwire_report::Projection| {
            format!("{} on {}", numbers::seconds(to.seconds), bandwidth(to.bandwidth))
        };
        say!("projected {}", summary.projected.iter().map(time).collect::<Vec<_>>().join(", "));
        say!(
            "          (a machine and a link for each worker: its bytes and rounds, its measured compute and packing)"
        );
    }
    if let Some(planned) = &summary.planned {
        say!("{}", planned_and_measured(planned, summary));
    }
    end(summary, dir, page);
    Ok(())
}

/// Of one worker of a server, over its own steps. Its bytes are not planned: who comes and goes is not known before.
#[cfg(feature = "server")]
pub fn of_member(job: &Job, summary: &Summary, params: &[f32], dir: &Path, page: &Path) {
    learned(job, summary, params);
    say!(
        "sent      {} by this worker, {:.2} bits a parameter a step",
        bytes(summary.bytes_sent_per_worker as f64),
        summary.bits_per_param_per_step
    );
    say!("{}", time(&summary.seconds));
    end(summary, dir, page);
}

/// A sample of what a gpt writes, and losses.
fn learned(job: &Job, summary: &Summary, params: &[f32]) {
    if let BuiltIn::Gpt(gpt) = &job.task {
        say!("\na sample of what it learned to write:\n");
        for line in gpt.sample(params, "\n", SAMPLE, 0.8, job.spec.seed).trim().lines() {
            // A network that knows little writes any byte, also those that move the cursor or ring the bell.
            say!("    {}", line.replace(char::is_control, "\u{fffd}"));
        }
        say!("");
    }
    let beside =
        summary.majority.map_or(String::new(), |part| format!(" ({:.2} % is the most frequent class)", 100.0 * part));
    let accuracy = summary.accuracy.map_or(String::new(), |part| format!(", accuracy {:.2} %{beside}", 100.0 * part));
    let matthews = summary.matthews.map_or(String::new(), |value| format!(", Matthews correlation {value:.3}"));
    say!("loss      {:.4} in training, {:.4} held out{accuracy}{matthews}", summary.train_loss, summary.val_loss);
}

/// Bytes, against what Adam would have sent.
fn sent(job: &Job, summary: &Summary) -> Result<()> {
    let sent = summary.bytes_sent_per_worker as f64;
    let baseline = Plan::new(&Config::new(report::BASELINE), summary.params, summary.workers, summary.steps)?;
    let against = baseline.bytes_sent(0) as f64;
    let less = if sent > 0.0 && job.config.codec_up.is_some() {
        let name = report::shown(report::BASELINE.as_str());
        format!("; {name} would have sent {}: {:.1} times as much", bytes(against), against / sent)
    } else {
        String::new()
    };
    let abroad = match summary.bytes_between_hosts_per_worker {
        0 => String::new(),
        between if between as f64 == sent => ", all to other hosts".to_owned(),
        between => format!(", {} of it to other hosts", bytes(between as f64)),
    };
    say!("sent      {} by each worker{abroad}{less}", bytes(sent));
    Ok(())
}

fn time(seconds: &Phases) -> String {
    let Phases { total, compute, pack, wire, wait } = seconds;
    let [total, compute, pack, wire, wait] = [total, compute, pack, wire, wait].map(|phase| numbers::seconds(*phase));
    format!("time      {total}: compute {compute}, pack {pack}, wire {wire}, wait {wait}")
}

fn end(summary: &Summary, dir: &Path, page: &Path) {
    if let Some(warning) = summary.jumps_warning() {
        say!("warning   {warning}");
    }
    if summary.outliers > 0 {
        say!("outliers  {} (gradients far longer than those before them; option outlier)", summary.outliers);
    }
    say!("digest    {}", summary.digest);
    say!("results   {} · report {}", dir.display(), page.display());
}

/// "planned …; measured …".
fn planned_and_measured(planned: &Planned, summary: &Summary) -> String {
    let (rounds, measured) = (planned.rounds, summary.rounds);
    let of = |rounds: Rounds| format!("{}, {}, {} rounds", rounds.exact, rounds.coarse, rounds.skipped);
    let step = summary.seconds.total / summary.steps.max(1) as f64;
    let (planned_step, error) = match planned.step_seconds {
        Some(seconds) => {
            (format!("{} a step", numbers::seconds(seconds)), format!(" ({:+.0} %)", 100.0 * (step / seconds - 1.0)))
        }
        None => ("the time not known without --network".to_owned(), String::new()),
    };
    let remark = match planned.bytes_sent_per_worker == summary.bytes_sent_per_worker {
        true => String::new(),
        false => format!(
            "\n          (the plan is of {} workers, all of them in every step from the first on)",
            summary.workers
        ),
    };
    format!(
        "planned   {}, {}, {planned_step}\nmeasured  {}, {}, {} a step{error}{remark}",
        bytes(planned.bytes_sent_per_worker as f64),
        of(rounds),
        bytes(summary.bytes_sent_per_worker as f64),
        of(measured),
        numbers::seconds(step),
    )
}
