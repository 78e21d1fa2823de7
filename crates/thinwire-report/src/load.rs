//! Run folders, read.
//!
//! A run that goes on, or was interrupted, has `metrics.jsonl` and no `summary.json`: it is read as far as it got.

use std::fs;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;
use thinwire::inside::Optimizers;

use crate::error::{Error, Result};
use crate::record::{Eval, Metric, Step, Summary};
use crate::style::place;

/// What a run left behind.
#[derive(Clone, Debug)]
pub struct Run {
    /// The folder's name, with its parent's where that is needed to tell runs apart.
    pub name: String,
    /// As configured: `adam`, `zero-one-adam`…
    pub optimizer: String,
    /// None: the run goes on, or was interrupted.
    pub summary: Option<Summary>,
    /// Its steps, in order.
    pub steps: Vec<Step>,
    /// Its evaluations, in order.
    pub evals: Vec<Eval>,
    /// The text of `config.toml`.
    pub config: Option<String>,
    /// Where its lines are not whole: figures and plots are then of a part of the run.
    pub warnings: Vec<String>,
}

/// The runs in `dirs`: each is a run folder, or has run folders right below.
pub fn find(dirs: &[PathBuf]) -> Result<Vec<Run>> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for dir in dirs {
        folders.extend(run_folders(dir)?);
    }
    let mut seen = Vec::new();
    folders.retain(|folder| {
        let place = fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
        let new = !seen.contains(&place);
        seen.push(place);
        new
    });

    let mut runs = folders.iter().map(|folder| load(folder)).collect::<Result<Vec<_>>>()?;
    tell_apart(&mut runs, &folders);
    runs.sort_by_key(|run| place(&run.optimizer).unwrap_or(usize::MAX));
    Ok(runs)
}

/// One run folder.
pub fn load(dir: &Path) -> Result<Run> {
    let metrics = dir.join("metrics.jsonl");
    let text = fs::read_to_string(&metrics).map_err(Error::no_metrics(&metrics))?;
    let (steps, evals) = parse_metrics(&text)
        .map_err(|problem| Error::Malformed { path: metrics.clone(), problem: format!(": {problem}") })?;
    let summary = read_summary(&dir.join("summary.json"))?;
    let config = fs::read_to_string(dir.join("config.toml")).ok();
    let name = folder_name(dir);
    let optimizer = match &summary {
        Some(summary) => summary.optimizer.clone(),
        None => guess_optimizer(&name, config.as_deref()),
    };
    let mut warnings = missing(&metrics, &text, &steps, summary.as_ref());
    warnings.extend(summary.as_ref().and_then(Summary::jumps_warning).map(|warning| format!("{name}: {warning}")));
    Ok(Run { name, optimizer, summary, steps, evals, config, warnings })
}

/// What metrics lack: the end of a line, or lines. A worker of a server may have been away for some steps, and a run that has not
/// ended may be writing.
fn missing(path: &Path, text: &str, steps: &[Step], summary: Option<&Summary>) -> Vec<String> {
    let mut warnings = Vec::new();
    let shown = path.display();
    let torn = text.rsplit('\n').next().unwrap_or_default();
    if !torn.is_empty() && parse_metric(torn).is_err() {
        warnings.push(format!("{shown} is cut off in the middle of its last line, which is left out"));
    }
    let gap =
        steps.windows(2).find(|pair| pair[1].step > pair[0].step + 1).map(|pair| (pair[0].step + 1, pair[1].step));
    let first = steps.first().map_or(0, |step| step.step);
    match summary {
        Some(end) if end.transport == "server" => {}
        Some(end) if (steps.len() as u64) < end.steps => warnings.push(format!(
            "{shown} has {} of the run's {} steps: the plots show only those, the table all of them",
            steps.len(),
            end.steps
        )),
        None if first > 0 => warnings.push(format!("{shown} lacks the steps before step {first}")),
        None if gap.is_some() => {
            let (from, to) = gap.unwrap_or_default();
            warnings.push(format!("{shown} lacks the steps from {from} to {}", to - 1));
        }
        _ => {}
    }
    warnings
}

fn run_folders(dir: &Path) -> Result<Vec<PathBuf>> {
    let is_run = |dir: &Path| dir.join("metrics.jsonl").is_file();
    if is_run(dir) {
        return Ok(vec![dir.to_path_buf()]);
    }
    let entries = fs::read_dir(dir).map_err(Error::io("read the folder", dir))?;
    let mut below: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|p| is_run(p)).collect();
    if below.is_empty() {
        return Err(Error::NoRun { path: dir.to_path_buf() });
    }
    below.sort();
    Ok(below)
}

fn parse_metrics(text: &str) -> Result<(Vec<Step>, Vec<Eval>), String> {
    let (mut steps, mut evals) = (Vec::<Step>::new(), Vec::<Eval>::new());
    // What follows the last line break was torn off in the middle of being written, unless it is whole by chance.
    let (whole, torn) = text.split_at(text.rfind('\n').map_or(0, |end| end + 1));
    let lines = whole.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let metrics = lines.map(|(at, line)| {
        parse_metric(line).map_err(|error| format!("line {} is malformed: {error} ({})", at + 1, start_of(line)))
    });
    for metric in metrics.chain(parse_metric(torn).ok().map(Ok)) {
        // A resumed run repeats the steps after its checkpoint: the later lines are the ones that led on.
        match metric? {
            Metric::Step(step) => {
                steps.truncate(steps.partition_point(|earlier| earlier.step < step.step));
                steps.push(step);
            }
            Metric::Eval(eval) => {
                evals.truncate(evals.partition_point(|earlier| earlier.step < eval.step));
                evals.push(eval);
            }
        }
    }
    Ok((steps, evals))
}

fn start_of(line: &str) -> String {
    line.chars().take(60).collect()
}

fn parse_metric(line: &str) -> serde_json::Result<Metric> {
    let mut metric = parse(line, &["loss", "val_loss"])?;
    match &mut metric {
        Metric::Step(step) => nan_again(&mut step.loss),
        Metric::Eval(eval) => nan_again(&mut eval.val_loss),
    }
    Ok(metric)
}

fn read_summary(path: &Path) -> Result<Option<Summary>> {
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read_to_string(path).map_err(Error::io("read", path))?;
    let mut summary: Summary = parse(&text, &["train_loss", "val_loss"])
        .map_err(|error| Error::Malformed { path: path.to_path_buf(), problem: format!(" is malformed: {error}") })?;
    nan_again(&mut summary.train_loss);
    nan_again(&mut summary.val_loss);
    Ok(Some(summary))
}

/// Stands for NaN while JSON is read: JSON has none, and serde writes `null` for it but does not read it back.
const NAN_IN_JSON: f64 = f64::MAX;

fn parse<T: DeserializeOwned>(json: &str, losses: &[&str]) -> serde_json::Result<T> {
    let mut value: Value = serde_json::from_str(json)?;
    for loss in losses {
        if let Some(number @ Value::Null) = value.get_mut(*loss) {
            *number = Value::from(NAN_IN_JSON);
        }
    }
    serde_json::from_value(value)
}

fn nan_again(loss: &mut f64) {
    if *loss == NAN_IN_JSON {
        *loss = f64::NAN;
    }
}

fn guess_optimizer(name: &str, config: Option<&str>) -> String {
    let configured = |optimizer: &&str| config.is_some_and(|text| text.contains(&format!("\"{optimizer}\"")));
    let names = || Optimizers::all().into_iter().map(|row| row.name.as_str());
    let guess = names().find(|optimizer| name == *optimizer).or_else(|| names().find(configured));
    guess.unwrap_or(name).to_string()
}

fn folder_name(dir: &Path) -> String {
    let whole = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_path_buf());
    whole.file_name().map_or_else(|| "run".to_string(), |name| name.to_string_lossy().into_owned())
}

/// Gives runs of the same name their parent's as well: `seed-1/adam`, `seed-2/adam`.
fn tell_apart(runs: &mut [Run], folders: &[PathBuf]) {
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    for (run, folder) in runs.iter_mut().zip(folders) {
        if names.iter().filter(|name| **name == run.name).count() > 1 {
            run.name = format!("{}/{}", folder_name(&folder.join("..")), run.name);
        }
    }
}
