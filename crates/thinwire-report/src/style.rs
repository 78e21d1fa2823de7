//! How a run looks on every plot and in every table: its name, its colour, its dashes.
//!
//! An optimizer has the same colour everywhere. The colours are Okabe and Ito's, which people who see colours differently
//! can tell apart; on a dark page they are lighter.

use crate::load::Run;
use thinwire::Name;
use thinwire::inside::Optimizers;

/// The place of an optimizer in the engine's table, which is the order in which reports show them: first what the others are compared
/// with.
pub fn place(optimizer: &str) -> Option<usize> {
    let (name, _) = Optimizers::chosen(optimizer).ok()?;
    Optimizers::all().iter().position(|row| row.name == name)
}

/// The colours of optimizers, by their places in the table.
const HUES: [&str; 4] = ["hue-1", "hue-2", "hue-3", "hue-4"];

/// Name, on a light page, on a dark page.
const COLOURS: [(&str, &str, &str); 16] = [
    ("paper", "#ffffff", "#15181c"),
    ("panel", "#f6f7f8", "#1d2126"),
    ("ink", "#1b1f24", "#e8eaed"),
    ("soft", "#5b6470", "#a3abb5"),
    ("grid", "#e4e7ea", "#2c3239"),
    ("rule", "#a9b0b8", "#59626d"),
    ("hue-1", "#4a4a4a", "#cfcfcf"),
    ("hue-2", "#d55e00", "#f0883e"),
    ("hue-3", "#0072b2", "#56b4e9"),
    ("hue-4", "#00805d", "#2fc79a"),
    ("other", "#a8508a", "#dd94bd"),
    ("compute", "#3f4f66", "#8da2c0"),
    ("pack", "#8fa6c4", "#566b88"),
    ("wire", "#e69f00", "#e69f00"),
    ("wait", "#d5d9de", "#3d444d"),
    ("rest", "#eceef0", "#2a2f36"),
];

const DASHES: [&str; 4] = ["none", "7 3", "2 3", "9 3 2 3"];

/// How a run or a method looks in every drawing: the colour is its optimizer's.
#[derive(Clone, Debug)]
pub struct Look {
    /// As it stands beside its line.
    pub name: String,
    /// The name of its colour.
    pub(crate) colour: &'static str,
    pub(crate) dashes: &'static str,
}

impl Look {
    /// The look of an optimizer under this name, after `before` others of the same optimizer.
    pub fn of_optimizer(optimizer: &str, name: &str, before: usize) -> Look {
        Look {
            name: name.to_owned(),
            colour: place(optimizer).and_then(|place| HUES.get(place)).copied().unwrap_or("other"),
            dashes: DASHES[before % DASHES.len()],
        }
    }
}

/// The looks of `runs`, in their order.
pub fn looks(runs: &[Run]) -> Vec<Look> {
    let alike = |run: &Run, among: &[Run]| among.iter().filter(|other| other.optimizer == run.optimizer).count();
    let look = |(at, run): (usize, &Run)| {
        let name = if alike(run, runs) == 1 { shown(&run.optimizer) } else { with_folder(run) };
        Look::of_optimizer(&run.optimizer, &name, alike(run, &runs[..at]))
    };
    runs.iter().enumerate().map(look).collect()
}

/// An optimizer's name as its authors write it: `zero-one-adam` is 0/1 Adam.
pub fn shown(optimizer: &str) -> String {
    optimizer.parse::<Name>().map_or(optimizer, |name| Optimizers::row(name).title).to_owned()
}

fn with_folder(run: &Run) -> String {
    let folder = run.name.strip_suffix(&format!("/{}", run.optimizer)).unwrap_or(&run.name);
    format!("{} · {folder}", shown(&run.optimizer))
}

/// `name` cut to what fits beside a line.
pub fn short(name: &str) -> String {
    const MOST: usize = 26;
    if name.chars().count() <= MOST { name.to_string() } else { name.chars().take(MOST - 1).chain(['…']).collect() }
}

/// The colours as variables of a style sheet.
pub fn variables(dark: bool) -> String {
    let colour =
        |(name, on_light, on_dark): &(&str, &str, &str)| format!("--{name}:{};", if dark { on_dark } else { on_light });
    COLOURS.iter().map(colour).collect()
}

/// The style of the plots; colours are variables, which the page sets.
pub fn plot_style() -> String {
    let classes = COLOURS.iter().map(|(name, ..)| {
        format!(".plot .stroke-{name}{{stroke:var(--{name})}}.plot .fill-{name}{{fill:var(--{name})}}\n")
    });
    include_str!("plot.css").to_string() + &classes.collect::<String>()
}

/// The same with the light page's colours put in, for programs that draw SVG and know no variables.
pub fn standalone_style() -> String {
    COLOURS.iter().fold(plot_style(), |style, (name, light, _)| style.replace(&format!("var(--{name})"), light))
}
