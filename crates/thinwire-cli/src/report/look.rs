//! How a run looks on every plot and in every table: its name, its colour, its dashes.
//!
//! An optimizer has the same colour everywhere. The colours are Okabe and Ito's, which people who see colours differently
//! can tell apart; on a dark page they are lighter.

use super::load::Run;

pub struct Known {
    /// In configurations.
    pub name: &'static str,
    pub shown: &'static str,
}

/// In the order in which reports show them: first what the others are compared with.
pub const OPTIMIZERS: [Known; 4] = [
    Known { name: "adam", shown: "Adam" },
    Known { name: "one-bit-adam", shown: "1-bit Adam" },
    Known { name: "zero-one-adam", shown: "0/1 Adam" },
    Known { name: "efficient-adam", shown: "Efficient-Adam" },
];

/// Name, on a light page, on a dark page.
const COLOURS: [(&str, &str, &str); 16] = [
    ("paper", "#ffffff", "#15181c"),
    ("panel", "#f6f7f8", "#1d2126"),
    ("ink", "#1b1f24", "#e8eaed"),
    ("soft", "#5b6470", "#a3abb5"),
    ("grid", "#e4e7ea", "#2c3239"),
    ("rule", "#a9b0b8", "#59626d"),
    ("adam", "#4a4a4a", "#cfcfcf"),
    ("one-bit-adam", "#d55e00", "#f0883e"),
    ("zero-one-adam", "#0072b2", "#56b4e9"),
    ("efficient-adam", "#00805d", "#2fc79a"),
    ("other", "#a8508a", "#dd94bd"),
    ("compute", "#3f4f66", "#8da2c0"),
    ("pack", "#8fa6c4", "#566b88"),
    ("wire", "#e69f00", "#e69f00"),
    ("wait", "#d5d9de", "#3d444d"),
    ("rest", "#eceef0", "#2a2f36"),
];

const DASHES: [&str; 4] = ["none", "7 3", "2 3", "9 3 2 3"];

#[derive(Clone, Debug)]
pub struct Look {
    pub name: String,
    /// The name of its colour.
    pub colour: &'static str,
    pub dashes: &'static str,
}

/// The looks of `runs`, in their order.
pub fn looks(runs: &[Run]) -> Vec<Look> {
    let alike = |run: &Run, among: &[Run]| among.iter().filter(|other| other.optimizer == run.optimizer).count();
    let look = |(at, run): (usize, &Run)| {
        let name = if alike(run, runs) == 1 { shown(&run.optimizer) } else { with_folder(run) };
        of_optimizer(&run.optimizer, &name, alike(run, &runs[..at]))
    };
    runs.iter().enumerate().map(look).collect()
}

/// The look of an optimizer under this name, after `before` others of the same optimizer.
pub fn of_optimizer(optimizer: &str, name: &str, before: usize) -> Look {
    Look {
        name: name.to_owned(),
        colour: OPTIMIZERS.iter().find(|known| known.name == optimizer).map_or("other", |known| known.name),
        dashes: DASHES[before % DASHES.len()],
    }
}

/// An optimizer's name as its authors write it.
pub fn shown(optimizer: &str) -> String {
    OPTIMIZERS.iter().find(|known| known.name == optimizer).map_or(optimizer, |known| known.shown).to_string()
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
