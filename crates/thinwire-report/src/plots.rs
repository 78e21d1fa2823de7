//! The plots of a report: which there are, and what each shows.

use crate::bars::{self, Row};
use crate::baseline::{Baseline, adam_would_send, is_baseline};
use crate::chart::{Axis, Chart, Lines};
use crate::cumulative::{Spending, Spent};
use crate::load::Run;
use crate::numbers;
use crate::picture::Picture;
use crate::scale::{Scale, Unit};
use crate::series::{self, Losses};
use crate::strips;
use crate::style::{Look, looks};
use crate::totals::Totals;

/// Links for which projected times are shown, in bits a second.
pub const BANDWIDTHS: [f64; 3] = [1e8, 1e9, 1e10];

pub struct Plots {
    pub by_steps: Picture,
    pub by_bytes: Picture,
    /// One for each of [`bandwidths`].
    pub by_time: Vec<(f64, Picture)>,
    pub bytes_a_step: Picture,
    pub phases: Picture,
    pub bytes_sent: Picture,
}

impl Plots {
    pub fn pictures(&self) -> impl Iterator<Item = &Picture> {
        let times = self.by_time.iter().map(|(_, picture)| picture);
        let rest = [&self.bytes_a_step, &self.phases, &self.bytes_sent];
        [&self.by_steps, &self.by_bytes].into_iter().chain(times).chain(rest)
    }
}

/// [`BANDWIDTHS`], and `chosen` if it is another.
pub fn bandwidths(chosen: f64) -> Vec<f64> {
    let mut all = BANDWIDTHS.to_vec();
    if chosen.is_finite() && chosen > 0.0 && !all.contains(&chosen) {
        all.push(chosen);
        all.sort_by(f64::total_cmp);
    }
    all
}

pub fn all(runs: &[Run], bandwidth: f64) -> Plots {
    let looks = looks(runs);
    let losses = LossPlots::of(runs, &looks);
    Plots {
        by_steps: losses.by_steps(),
        by_bytes: losses.by_bytes(),
        by_time: bandwidths(bandwidth).into_iter().map(|links| (links, losses.by_time(links))).collect(),
        bytes_a_step: bytes_a_step(runs, &looks),
        phases: phases(runs, &looks),
        bytes_sent: bytes_sent(runs, &looks),
    }
}

/// The three plots of loss differ only in what lies along x.
struct LossPlots<'a> {
    runs: Vec<LossesOf<'a>>,
    loss: Option<Scale>,
    note: String,
}

struct LossesOf<'a> {
    look: &'a Look,
    spending: Spending,
    train: Losses,
    held_out: Losses,
}

impl<'a> LossPlots<'a> {
    fn of(runs: &[Run], looks: &'a [Look]) -> Self {
        let one = |(run, look)| LossesOf {
            look,
            spending: Spending::of(run),
            train: series::train(run),
            held_out: series::held_out(run),
        };
        let window = runs.iter().map(series::window).max().unwrap_or(1);
        let of_runs: Vec<LossesOf> = runs.iter().zip(looks).map(one).collect();
        let (loss, cut) = loss_scale(&of_runs);
        let thin = if window > 1 { format!(", the mean of {window} steps") } else { String::new() };
        let cut = if cut { " What lies far above the rest is cut off." } else { "" };
        let note = format!("Thick, with dots: held-out data. Thin: training data{thin}.{cut}");
        LossPlots { runs: of_runs, loss, note }
    }

    fn by_steps(&self) -> Picture {
        let ends = self.x_values(&|step, _| step as f64);
        let x = Scale::linear_from_zero(ends).map(|scale| (scale, Unit::Steps, "steps".to_string()));
        self.picture("loss-by-steps", "Loss by steps", x, &|step, _| step as f64)
    }

    fn by_bytes(&self) -> Picture {
        let sent = |_, spent: &Spent| spent.bytes;
        // A logarithm begins nowhere: the axis begins where a loss comes into view.
        let in_view =
            self.points(&sent).into_iter().filter(|(_, loss)| self.loss.is_none_or(|y| y.place(*loss) <= 1.0));
        let x = Scale::log(in_view.map(|(bytes, _)| bytes));
        let x = x.map(|scale| (scale, Unit::Bytes, "bytes that a worker has sent (log scale)".to_string()));
        self.picture("loss-by-bytes", "Loss by bytes sent", x, &sent)
    }

    fn by_time(&self, bandwidth: f64) -> Picture {
        let links = numbers::bandwidth(bandwidth);
        let seconds = |_, spent: &Spent| spent.seconds(bandwidth);
        let x = Scale::linear_from_zero(self.x_values(&seconds)).map(|scale| {
            let (_, unit) = Unit::of_time(scale.bounds().1);
            (scale, Unit::Seconds, format!("projected time ({unit}), links of {links}"))
        });
        let id = format!("loss-by-time-{}", links.to_lowercase().replace("b/s", "bps").replace(' ', "-"));
        self.picture(&id, &format!("Loss by projected time, links of {links}"), x, &seconds)
    }

    fn picture(
        &self,
        id: &str,
        title: &str,
        x: Option<(Scale, Unit, String)>,
        x_of: &dyn Fn(u64, &Spent) -> f64,
    ) -> Picture {
        let Some(loss) = self.loss else { return Picture::without_data(id, title, "no loss that is a number yet") };
        let Some((scale, unit, x_title)) = x else { return Picture::without_data(id, title, "nothing was sent") };
        let lines = self.runs.iter().map(|run| Lines {
            look: run.look,
            train: run.along(&run.train, x_of),
            held_out: run.along(&run.held_out, x_of),
        });
        let chart = Chart {
            id,
            x: Axis { title: x_title, scale, unit },
            y: Axis { title: "loss".to_string(), scale: loss, unit: Unit::Loss },
            lines: lines.collect(),
            marks: Vec::new(),
            here: None,
        };
        chart.picture(title, &self.note)
    }

    fn points(&self, x_of: &dyn Fn(u64, &Spent) -> f64) -> Vec<(f64, f64)> {
        let of_run = |run: &LossesOf| [run.along(&run.train, x_of), run.along(&run.held_out, x_of)].concat();
        self.runs.iter().flat_map(of_run).collect()
    }

    fn x_values(&self, x_of: &dyn Fn(u64, &Spent) -> f64) -> Vec<f64> {
        self.points(x_of).into_iter().map(|(x, _)| x).collect()
    }
}

impl LossesOf<'_> {
    fn along(&self, losses: &Losses, x_of: &dyn Fn(u64, &Spent) -> f64) -> Vec<(f64, f64)> {
        losses.iter().map(|(step, loss)| (x_of(*step, &self.spending.before(*step)), *loss)).collect()
    }
}

/// Room for what matters: where the first steps or a run that diverged lie far above the rest, the scale ends below them.
/// Also says whether it does.
fn loss_scale(runs: &[LossesOf]) -> (Option<Scale>, bool) {
    let all = || runs.iter().flat_map(|run| run.train.iter().chain(&run.held_out)).map(|(_, loss)| *loss);
    let Some(Scale::Linear { from, to }) = Scale::linear(all()) else { return (None, false) };
    // A loss above where training began says that a run diverged, and not how the others went.
    let began = runs.iter().filter_map(|run| run.train.iter().chain(&run.held_out).next());
    let began = began.map(|(_, loss)| *loss).filter(|loss| loss.is_finite()).fold(from, f64::max);
    let mut sound: Vec<f64> = all().filter(|loss| *loss <= began).collect();
    sound.sort_by(f64::total_cmp);
    let most = sound.get(sound.len().saturating_sub(1) * 90 / 100).map_or(to, |most| *most);
    let top = from + 1.3 * (most - from);
    let cut = most > from && top < to;
    let top = if cut { top } else { to };
    (Some(Scale::Linear { from: from - 0.1 * (top - from), to: top + 0.02 * (top - from) }), cut)
}

fn bytes_a_step(runs: &[Run], looks: &[Look]) -> Picture {
    let (id, title) = ("bytes-by-step", "Bytes sent in each step");
    let Some(body) = strips::draw(runs, looks) else { return Picture::without_data(id, title, "no steps yet") };
    Picture {
        id: id.to_string(),
        title: title.to_string(),
        note: "Tall dark marks: exact rounds. Short coloured marks: coarse rounds. Along the base: steps that sent nothing. \
               Fainter where only some of the neighbouring steps are of that kind. Bytes of one worker, log scale."
            .to_string(),
        height: strips::height(runs),
        body,
        data: String::new(),
    }
}

fn phases(runs: &[Run], looks: &[Look]) -> Picture {
    const PHASES: [(&str, &str); 5] =
        [("compute", "compute"), ("pack", "pack"), ("wire", "wire"), ("wait", "wait for others"), ("rest", "the rest")];
    let row = |(run, look): (&Run, &Look)| {
        let spent = Totals::of(run).seconds;
        let known = spent.compute + spent.pack + spent.wire + spent.wait;
        // What is less than a hundredth is the clock's own.
        let rest = if spent.total - known > 0.01 * spent.total { spent.total - known } else { 0.0 };
        let lengths = [spent.compute, spent.pack, spent.wire, spent.wait, rest];
        let parts = lengths.into_iter().zip(PHASES).map(|(length, (colour, _))| (length, colour)).collect();
        Row { name: look.name.clone(), parts, figure: numbers::seconds(spent.total), outline: false }
    };
    let rows: Vec<Row> = runs.iter().zip(looks).map(row).collect();
    let (id, title) = ("time-by-phase", "Time by phase, as measured");
    if rows.iter().all(|row| row.parts.iter().all(|(length, _)| *length <= 0.0)) {
        return Picture::without_data(id, title, "no time was measured");
    }
    let has_rest = rows.iter().any(|row| row.parts[4].0 > 0.0);
    Picture {
        id: id.to_string(),
        title: title.to_string(),
        note: "Wall-clock time of worker 0 on the machine of the run, where workers may share cores and links."
            .to_string(),
        height: bars::height(rows.len(), true),
        body: bars::draw(&rows, &PHASES[..if has_rest { 5 } else { 4 }]),
        data: String::new(),
    }
}

fn bytes_sent(runs: &[Run], looks: &[Look]) -> Picture {
    let (id, title) = ("bytes-sent", "Bytes that a worker sent");
    let row = |(run, look): (&Run, &Look)| {
        let sent = Totals::of(run).bytes;
        let fewer = Baseline::of(run, runs).and_then(|adam| adam.times_fewer(sent)).filter(|times| *times >= 1.05);
        let fewer = fewer.map(|times| format!(", {}× fewer", numbers::significant(times, 3))).unwrap_or_default();
        let figure = numbers::bytes(sent) + &fewer;
        Row { name: look.name.clone(), parts: vec![(sent, look.colour)], figure, outline: false }
    };
    let mut rows: Vec<Row> = runs.iter().zip(looks).map(row).collect();
    if rows.iter().all(|row| row.parts[0].0 <= 0.0) {
        return Picture::without_data(id, title, "nothing was sent");
    }
    let no_adam = runs.iter().all(|run| !is_baseline(&run.optimizer));
    let mut computed = "";
    if let Some(bytes) = runs.iter().find_map(adam_would_send).filter(|bytes| no_adam && *bytes > 0.0) {
        let (name, figure) = ("Adam, computed".to_string(), numbers::bytes(bytes));
        rows.insert(0, Row { name, parts: vec![(bytes, "rule")], figure, outline: true });
        computed = " Dashed: what Adam would have sent.";
    }
    Picture {
        id: id.to_string(),
        title: title.to_string(),
        note: format!("The mean over the workers, from the run's start to its end.{computed}"),
        height: bars::height(rows.len(), false),
        body: bars::draw(&rows, &[]),
        data: String::new(),
    }
}
