//! A DeepSpeed configuration: its optimizer, its schedule, and where its options do not mean what people take them for.

use crate::methods::{Method, Run};
use crate::question::Question;
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;
use std::path::Path;
use thinwire::inside::Optimizers;
use thinwire::options::Decay;
use thinwire::options::Warmup;
use thinwire::{CodecName, Config, Name, OneBitAdam, ZeroOneAdam};

const EXAMPLE: &str = r#"{"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 23000}}}"#;

/// DeepSpeed's defaults.
const FREEZE_STEP: u64 = 100_000;
const LOCAL_STEP_CLIPPER: u64 = 16;

pub struct Read {
    pub method: Method,
    /// The run, with what the file says of its schedule; and whether that is how long it is.
    pub run: Run,
    pub says_steps: bool,
    pub warnings: Vec<String>,
    /// The lines of a PyTorch program that take the place of the file's optimizer and schedule.
    pub program: String,
}

pub fn read(path: &Path, question: &Question, run: &Run) -> Result<Read> {
    let named = || format!("--deepspeed {}", path.display());
    let text = std::fs::read_to_string(path).with_context(named)?;
    let file: Value = serde_json::from_str(&without_comments(&text)).map_err(|error| {
        anyhow!("{}: expected a DeepSpeed configuration (for example {EXAMPLE}), found {error}", named())
    })?;
    parse(&file, question, run).with_context(named)
}

fn parse(file: &Value, question: &Question, run: &Run) -> Result<Read> {
    let mut reader = Reader { params: &file["optimizer"]["params"], assumed: "", warnings: Vec::new() };
    let kind = match (&file["optimizer"], &file["optimizer"]["type"]) {
        (_, Value::String(kind)) => kind.as_str(),
        // Whoever gives it in code has the rest in the file.
        (Value::Null, _) if file.as_object().is_some_and(|keys| !keys.is_empty()) => {
            reader.warn("optimizer is not in the file, as where a program gives it in code: planned as AdamW");
            "adamw"
        }
        _ => bail!(
            "optimizer.type: expected Adam, AdamW, OneBitAdam or ZeroOneAdam (for example {EXAMPLE}), found nothing"
        ),
    };
    let mut run = run.clone();
    let says_steps = scheduler(&file["scheduler"], question, &mut run, &mut reader)?;
    if question.steps.is_none() && !says_steps {
        reader.assumed = ", a number that is only assumed here (--steps)";
    }
    let exact_codec = Some(exact_codec(file, &mut reader)?);
    if let Some(clip) = file["gradient_clipping"].as_f64().filter(|clip| *clip > 0.0) {
        run.clip = Some(clip);
    }
    let config = match kind.to_lowercase().as_str() {
        "adam" | "adamw" => Config { exact_codec, ..Config::new(Name::ADAM) },
        "onebitadam" => one_bit(&mut reader, &run, exact_codec)?,
        "zerooneadam" => zero_one(&mut reader, &run, exact_codec)?,
        _ => bail!("invalid optimizer.type = {kind:?}: expected Adam, AdamW, OneBitAdam or ZeroOneAdam"),
    };
    match Optimizers::row(config.name).coarse {
        None => sharded(file, &mut reader),
        Some(_) => compressed(file, &mut reader),
    }
    accumulated(file, &mut reader)?;
    let program = program(file, kind, &config, &run, says_steps);
    let method = Method::new(&run.scheduled(config))?;
    Ok(Read { method, run, says_steps, warnings: reader.warnings, program })
}

/// What the file says, as a program says it here. Options keep their names; what the file leaves out is left out.
fn program(file: &Value, kind: &str, config: &Config, run: &Run, says_steps: bool) -> String {
    let params = &file["optimizer"]["params"];
    let class = match kind.to_lowercase().as_str() {
        "onebitadam" => "OneBitAdam",
        "zerooneadam" => "ZeroOneAdam",
        _ => "AdamW",
    };
    let mut given = vec!["model.parameters()".to_owned()];
    for key in ["lr", "betas", "eps", "weight_decay"] {
        match &params[key] {
            Value::Number(number) => given.push(format!("{key}={number}")),
            Value::Array(two) => given.push(format!("{key}=({}, {})", two[0], two.get(1).unwrap_or(&Value::Null))),
            _ => {}
        }
    }
    given.extend(config.preset.iter().map(|preset| format!("preset=\"{preset}\"")));
    for key in ["freeze_step", "var_freeze_step", "var_update_scaler", "local_step_scaler", "local_step_clipper"] {
        given.extend(params[key].as_u64().map(|steps| format!("{key}={steps}")));
    }
    given.extend(run.clip.map(|clip| format!("clip={clip:?}")));
    given.extend(
        config.exact_codec.filter(|codec| *codec != CodecName::F32).map(|codec| format!("exact_codec=\"{codec}\"")),
    );
    let mut lines = vec!["import thinwire".to_owned(), String::new(), "optimizer = thinwire.".to_owned() + class + "("];
    lines.extend(given.into_iter().map(|argument| format!("    {argument},")));
    lines.push(")".to_owned());
    if file["scheduler"]["type"].is_string() {
        let steps = if says_steps { run.steps.to_string() } else { "...".to_owned() };
        lines.push(format!(
            "optimizer.follow(scheduler, steps={steps})  # scheduler: any of PyTorch's, made with this optimizer"
        ));
    }
    if let Some(passes) = file["gradient_accumulation_steps"].as_u64().filter(|passes| *passes > 1) {
        lines.push(format!("# optimizer.step() and optimizer.zero_grad() after every {passes} calls of backward()"));
    }
    lines.join("\n")
}

/// The file without `// …`, `# …` and `/* … */`, which DeepSpeed's reader takes; not those inside of strings.
fn without_comments(text: &str) -> String {
    let (mut kept, mut rest, mut quoted) = (String::new(), text, false);
    while let Some(next) = rest.chars().next() {
        let comment = match () {
            () if quoted => None,
            () if rest.starts_with('#') || rest.starts_with("//") => Some("\n"),
            () if rest.starts_with("/*") => Some("*/"),
            () => None,
        };
        if let Some(end) = comment {
            let skipped = rest.find(end).map_or(rest.len(), |at| at + end.len());
            rest = &rest[skipped..];
            kept.push('\n');
            continue;
        }
        // A backslash takes the next character with it.
        let long =
            if quoted && next == '\\' { rest.chars().take(2).map(char::len_utf8).sum() } else { next.len_utf8() };
        quoted ^= next == '"';
        kept.push_str(&rest[..long]);
        rest = &rest[long..];
    }
    kept
}

/// What gradients are averaged in: what the file says of that, else 16 bits where it trains with them.
fn exact_codec(file: &Value, reader: &mut Reader) -> Result<CodecName> {
    match &file["communication_data_type"] {
        Value::Null => {}
        Value::String(kind) if kind == "fp32" => return Ok(CodecName::F32),
        Value::String(kind) if ["fp16", "bf16", "bfp16"].contains(&kind.as_str()) => return Ok(CodecName::Bf16),
        other => bail!("invalid communication_data_type = {other}: expected fp32, fp16 or bf16"),
    }
    let half = ["fp16", "bf16"].iter().any(|key| file[key]["enabled"].as_bool() == Some(true));
    if let (false, Some(key)) = (half, ["fp16", "bf16"].iter().find(|key| file[key]["enabled"] == "auto")) {
        reader.warn(format!(
            "{key}.enabled is \"auto\", which another program fills in: planned as false, with 32 bits a parameter; write true or \
             false"
        ));
    }
    Ok(if half { CodecName::Bf16 } else { CodecName::F32 })
}

/// What ZeRO does to Adam.
fn sharded(file: &Value, reader: &mut Reader) {
    match file["zero_optimization"]["stage"].as_u64().unwrap_or(0) {
        0 => {}
        stage @ (1 | 2) => reader.warn(format!(
            "zero_optimization.stage = {stage}: planned without it. It sends as many bytes, but cuts up what a worker holds: its \
             memory is less than here"
        )),
        stage => reader.warn(format!(
            "zero_optimization.stage = {stage}: planned without it. It sends the parameters once more, about 1.5 times the bytes, \
             and cuts up what a worker holds; and none of the compressing optimizers works with it"
        )),
    }
}

/// A step here is one of the optimizer, however many backward passes it has.
fn accumulated(file: &Value, reader: &mut Reader) -> Result<()> {
    let passes = steps(file, "configuration", "gradient_accumulation_steps", &mut reader.warnings)?;
    if let Some(passes) = passes.filter(|passes| *passes > 1) {
        reader.warn(format!(
            "gradient_accumulation_steps = {passes}: a step is one of the optimizer, so --compute must be the time of all {passes} \
             forward and backward passes"
        ));
    }
    Ok(())
}

struct Reader<'a> {
    params: &'a Value,
    /// Follows a number of steps that nobody gave.
    assumed: &'static str,
    warnings: Vec<String>,
}

impl Reader<'_> {
    fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    /// A number of steps, if the file has one.
    fn steps(&mut self, key: &str) -> Result<Option<u64>> {
        steps(self.params, "optimizer.params", key, &mut self.warnings)
    }
}

fn steps(table: &Value, place: &str, key: &str, warnings: &mut Vec<String>) -> Result<Option<u64>> {
    match &table[key] {
        Value::Null => Ok(None),
        Value::String(auto) if auto == "auto" => {
            warnings.push(format!(
                "{place}.{key} is \"auto\", which another program fills in: taken as if it were not there"
            ));
            Ok(None)
        }
        value => {
            let whole = value.as_f64().filter(|steps| steps.fract() == 0.0 && (1.0..=1e8).contains(steps));
            let steps = whole.ok_or_else(|| {
                anyhow!("invalid {place}.{key} = {value}: expected a number of steps (for example 1000)")
            })?;
            Ok(Some(steps as u64))
        }
    }
}

/// The learning rate, as far as flags do not say otherwise.
///
/// Whether it says how long the run is.
fn scheduler(scheduler: &Value, question: &Question, run: &mut Run, reader: &mut Reader) -> Result<bool> {
    let Some(kind) = scheduler["type"].as_str() else { return Ok(false) };
    let params = &scheduler["params"];
    let warmup = steps(params, "scheduler.params", "warmup_num_steps", &mut reader.warnings)?;
    let total = steps(params, "scheduler.params", "total_num_steps", &mut reader.warnings)?;
    let decay = match kind {
        "WarmupLR" => Decay::Constant,
        "WarmupDecayLR" => Decay::Linear,
        "WarmupCosineLR" => Decay::Cosine,
        other => {
            reader.warn(format!("scheduler.type = {other:?} is not known here: --warmup and --decay count"));
            return Ok(false);
        }
    };
    if question.steps.is_none()
        && let Some(total) = total
    {
        run.steps = total;
    }
    run.learning_rate.steps = run.steps;
    if question.decay.is_none() {
        run.learning_rate.decay = decay;
    }
    if question.warmup.is_none() {
        run.learning_rate.warmup = warmup.unwrap_or((run.steps / 10).max(1));
    }
    let warmup = run.learning_rate.warmup;
    ensure!(
        warmup < run.steps,
        "invalid scheduler.params.warmup_num_steps = {warmup}: expected fewer than the {} steps of the run (--steps)",
        run.steps
    );
    Ok(total.is_some())
}

fn one_bit(reader: &mut Reader, run: &Run, exact_codec: Option<CodecName>) -> Result<Config> {
    let given = reader.steps("freeze_step")?;
    let freeze = given.unwrap_or(FREEZE_STEP);
    let said = if given.is_some() { "" } else { ", DeepSpeed's default," };
    if freeze >= run.steps {
        reader.warn(format!(
            "freeze_step = {freeze}{said} is not reached in {} steps{}: every round is uncompressed, and nothing says so",
            run.steps, reader.assumed
        ));
    } else if freeze < run.learning_rate.warmup {
        reader.warn(format!(
            "freeze_step = {freeze} comes before the learning rate's warm-up ends ({}): the variance is frozen while it still moves",
            run.learning_rate.warmup
        ));
    }
    let own = OneBitAdam { warmup: Some(Warmup::Steps(freeze)), ..OneBitAdam::default() };
    Ok(Config { preset: Some("deepspeed".to_owned()), exact_codec, ..Config::of(own) })
}

fn zero_one(reader: &mut Reader, run: &Run, exact_codec: Option<CodecName>) -> Result<Config> {
    let own = ZeroOneAdam {
        var_freeze_step: reader.steps("var_freeze_step")?,
        var_update_scaler: reader.steps("var_update_scaler")?,
        local_step_scaler: reader.steps("local_step_scaler")?,
        local_step_clipper: reader.steps("local_step_clipper")?,
        ..ZeroOneAdam::default()
    };
    let freeze = own.var_freeze_step.unwrap_or(FREEZE_STEP);
    if freeze >= run.steps {
        let said = if own.var_freeze_step.is_some() { "" } else { ", DeepSpeed's default," };
        reader.warn(format!(
            "var_freeze_step = {freeze}{said} is not reached in {} steps{}: until then no round is skipped",
            run.steps, reader.assumed
        ));
    }
    let clipper = own.local_step_clipper.unwrap_or(LOCAL_STEP_CLIPPER);
    if !clipper.is_power_of_two() {
        let meant = 1_u64 << clipper.ilog2();
        reader.warn(format!(
            "local_step_clipper = {clipper}: DeepSpeed's gaps end at {clipper}, this engine's are powers of two and end at {meant}, \
             which is planned"
        ));
    }
    if let Some(scaler) = own.local_step_scaler
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
    Ok(Config { preset: Some("deepspeed".to_owned()), exact_codec, ..Config::of(own) })
}

/// What holds for both of its compressing optimizers.
fn compressed(file: &Value, reader: &mut Reader) {
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
    let half = |key: &str| file[key]["enabled"].as_bool() == Some(true);
    if !half("fp16") && !half("bf16") && file["communication_data_type"].is_null() {
        reader.warn("neither fp16 nor bf16 is enabled: exact rounds are planned with 32 bits a parameter");
    }
    reader
        .warn("DeepSpeed drops the residuals of compression when it loads a checkpoint: replicas differ from then on");
}
