//! A DeepSpeed configuration: its optimizer, its schedule, and where its words do not mean what people take them for.

use super::arguments::Plan;
use super::methods::{Method, Run};
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;
use std::path::Path;
use thinwire::config::{Preset, Warmup};
use thinwire::schedule::Decay;
use thinwire::{CodecName, Config, Name};

/// What DeepSpeed takes if a word is missing.
const FREEZE_STEP: u64 = 100_000;
const LOCAL_STEP_CLIPPER: u64 = 16;

pub struct Read {
    pub method: Method,
    /// The run, with what the file says of its schedule.
    pub run: Run,
    pub warnings: Vec<String>,
}

pub fn read(path: &Path, arguments: &Plan, run: &Run) -> Result<Read> {
    let named = || format!("--deepspeed {}", path.display());
    let text = std::fs::read_to_string(path).with_context(named)?;
    let file: Value = serde_json::from_str(&text).with_context(named)?;
    parse(&file, arguments, run).with_context(named)
}

fn parse(file: &Value, arguments: &Plan, run: &Run) -> Result<Read> {
    let kind = &file["optimizer"]["type"];
    let kind = kind.as_str().ok_or_else(|| {
        anyhow!("optimizer.type is missing; accepted: Adam, AdamW, OneBitAdam, ZeroOneAdam, such as {{\"optimizer\": {{\"type\": \"OneBitAdam\", \"params\": {{\"freeze_step\": 23000}}}}}}")
    })?;
    let mut reader = Reader { params: &file["optimizer"]["params"], warnings: Vec::new() };
    let mut run = run.clone();
    scheduler(&file["scheduler"], arguments, &mut run, &mut reader)?;
    let half = ["fp16", "bf16"].iter().any(|word| file[word]["enabled"].as_bool() == Some(true));
    let exact_codec = Some(if half { CodecName::Bf16 } else { CodecName::F32 });
    if let Some(clip) = file["gradient_clipping"].as_f64().filter(|clip| *clip > 0.0) {
        run.clip = Some(clip);
    }
    let config = match kind.to_lowercase().as_str() {
        "adam" | "adamw" => Config { exact_codec, ..Config::new(Name::Adam) },
        "onebitadam" => one_bit(&mut reader, &run, exact_codec)?,
        "zerooneadam" => zero_one(&mut reader, &run, exact_codec)?,
        other => bail!("optimizer.type = {other:?}: accepted: Adam, AdamW, OneBitAdam, ZeroOneAdam"),
    };
    if config.name != Name::Adam {
        compressed(file, half, &mut reader);
    }
    let method = Method::new(&run.scheduled(config))?;
    Ok(Read { method, run, warnings: reader.warnings })
}

struct Reader<'a> {
    params: &'a Value,
    warnings: Vec<String>,
}

impl Reader<'_> {
    fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    /// A number of steps, if the file has one.
    fn steps(&mut self, word: &str) -> Result<Option<u64>> {
        steps(self.params, "optimizer.params", word, &mut self.warnings)
    }
}

fn steps(table: &Value, place: &str, word: &str, warnings: &mut Vec<String>) -> Result<Option<u64>> {
    match &table[word] {
        Value::Null => Ok(None),
        Value::String(auto) if auto == "auto" => {
            warnings
                .push(format!("{place}.{word} is \"auto\", which another program fills in: its default is taken here"));
            Ok(None)
        }
        value => {
            let whole = value.as_f64().filter(|steps| steps.fract() == 0.0 && (1.0..1e12).contains(steps));
            let steps =
                whole.ok_or_else(|| anyhow!("{place}.{word} = {value}: accepted: a number of steps, such as 1000"))?;
            Ok(Some(steps as u64))
        }
    }
}

/// The learning rate, as far as flags do not say otherwise.
fn scheduler(scheduler: &Value, arguments: &Plan, run: &mut Run, reader: &mut Reader) -> Result<()> {
    let Some(kind) = scheduler["type"].as_str() else { return Ok(()) };
    let params = &scheduler["params"];
    let warmup = steps(params, "scheduler.params", "warmup_num_steps", &mut reader.warnings)?;
    let total = steps(params, "scheduler.params", "total_num_steps", &mut reader.warnings)?;
    let decay = match kind {
        "WarmupLR" => Decay::Constant,
        "WarmupDecayLR" => Decay::Linear,
        "WarmupCosineLR" => Decay::Cosine,
        other => {
            reader.warn(format!("scheduler.type = {other:?} is not known here: --warmup and --decay count"));
            return Ok(());
        }
    };
    if arguments.steps.is_none()
        && let Some(total) = total
    {
        run.steps = total;
    }
    run.learning_rate.steps = run.steps;
    if arguments.decay.is_none() {
        run.learning_rate.decay = decay;
    }
    if arguments.warmup.is_none() {
        run.learning_rate.warmup = warmup.unwrap_or((run.steps / 10).max(1));
    }
    let warmup = run.learning_rate.warmup;
    ensure!(
        warmup < run.steps,
        "scheduler.params.warmup_num_steps = {warmup}: accepted: fewer than the {} steps of the run (--steps)",
        run.steps
    );
    Ok(())
}

fn one_bit(reader: &mut Reader, run: &Run, exact_codec: Option<CodecName>) -> Result<Config> {
    let given = reader.steps("freeze_step")?;
    let freeze = given.unwrap_or(FREEZE_STEP);
    let said = if given.is_some() { "" } else { ", DeepSpeed's default," };
    if freeze >= run.steps {
        reader.warn(format!(
            "freeze_step = {freeze}{said} is not reached in {} steps: every round is uncompressed, and nothing says so",
            run.steps
        ));
    } else if freeze < run.learning_rate.warmup {
        reader.warn(format!(
            "freeze_step = {freeze} comes before the learning rate's warm-up ends ({}): the variance is frozen while it still moves",
            run.learning_rate.warmup
        ));
    }
    let preset = Some(Preset::Deepspeed);
    Ok(Config { preset, exact_codec, warmup: Some(Warmup::Steps(freeze)), ..Config::new(Name::OneBitAdam) })
}

fn zero_one(reader: &mut Reader, run: &Run, exact_codec: Option<CodecName>) -> Result<Config> {
    let config = Config {
        preset: Some(Preset::Deepspeed),
        exact_codec,
        var_freeze_step: reader.steps("var_freeze_step")?,
        var_update_scaler: reader.steps("var_update_scaler")?,
        local_step_scaler: reader.steps("local_step_scaler")?,
        local_step_clipper: reader.steps("local_step_clipper")?,
        ..Config::new(Name::ZeroOneAdam)
    };
    let freeze = config.var_freeze_step.unwrap_or(FREEZE_STEP);
    if freeze >= run.steps {
        let said = if config.var_freeze_step.is_some() { "" } else { ", DeepSpeed's default," };
        reader.warn(format!(
            "var_freeze_step = {freeze}{said} is not reached in {} steps: until then no round is skipped",
            run.steps
        ));
    }
    let clipper = config.local_step_clipper.unwrap_or(LOCAL_STEP_CLIPPER);
    if !clipper.is_power_of_two() {
        let meant = 1_u64 << clipper.ilog2();
        reader.warn(format!("local_step_clipper = {clipper}: gaps double, so none between {meant} and {clipper} is reached; {meant} is planned"));
    }
    if let Some(scaler) = config.local_step_scaler
        && scaler * 4 < run.learning_rate.warmup
    {
        reader.warn(format!(
            "local_step_scaler = {scaler} counts steps, not halvings of the learning rate: gaps reach {clipper} after {} steps",
            freeze + scaler * u64::from(clipper.ilog2())
        ));
    }
    if reader.params["weight_decay"].as_f64().is_some_and(|decay| decay > 0.0) {
        reader.warn(
            "weight_decay: DeepSpeed's ZeroOneAdam lets it into the momentum that is averaged, which with β1 = 0.9 comes to up to 10 \
             times the decay; here it stays decoupled",
        );
    }
    Ok(config)
}

/// What holds for both of its compressing optimizers.
fn compressed(file: &Value, half: bool, reader: &mut Reader) {
    let stage = file["zero_optimization"]["stage"].as_u64().unwrap_or(0);
    if stage > 0 {
        reader.warn(format!(
            "zero_optimization.stage = {stage}: DeepSpeed's compressing optimizers are not among those that ZeRO supports; planned \
             without it"
        ));
    }
    if reader.params["bias_correction"].as_bool() == Some(true) {
        reader.warn("bias_correction = true: DeepSpeed's compressing optimizers ignore it, and apply none");
    }
    if !half {
        reader.warn("neither fp16 nor bf16 is enabled: exact rounds are planned with 32 bits a parameter");
    }
    reader.warn("DeepSpeed drops the residues of compression when it loads a checkpoint: replicas differ from then on");
}
