//! The page: one file of HTML that loads nothing, reads without a script, and prints.

use crate::error::{Error, Result};
use crate::headline::headline;
use crate::load::Run;
use crate::markup::escape;
use crate::numbers;
use crate::picture::Picture;
use crate::plots::{self, Plots, bandwidths};
use crate::record::Summary;
use crate::style::{self, looks};
use crate::table;
use std::fs;
use std::path::{Path, PathBuf};

/// Writes the page to `out`, and each plot to `plots/` beside it. Times on other machines are shown for links of
/// `bandwidth` bits a second first. Returns the files written.
pub fn write(runs: &[Run], out: &Path, bandwidth: f64) -> Result<Vec<PathBuf>> {
    let plots = plots::all(runs, bandwidth);
    let folder = out.parent().unwrap_or(Path::new("")).join("plots");
    fs::create_dir_all(&folder).map_err(Error::io("make the folder", &folder))?;

    let page = (out.to_path_buf(), html(runs, &plots, bandwidth));
    let pictures = plots.pictures().map(|plot| (folder.join(format!("{}.svg", plot.id)), plot.standalone()));
    let mut written = Vec::new();
    for (path, text) in std::iter::once(page).chain(pictures) {
        fs::write(&path, text).map_err(Error::io("write", &path))?;
        written.push(path);
    }
    Ok(written)
}

fn html(runs: &[Run], plots: &Plots, bandwidth: f64) -> String {
    let looks = looks(runs);
    let statement = escape(&headline(runs, &looks));
    let body = [
        format!(
            "<header><p class=\"kicker\">Thinwire report</p>\n<h1>{statement}</h1>\n{}{}</header>\n",
            facts(runs),
            warnings(runs)
        ),
        "<main>\n".to_string(),
        table::results(runs, &looks),
        "<div class=\"plots\">\n".to_string(),
        figure(&plots.by_steps),
        figure(&plots.by_bytes),
        by_time(plots, bandwidth),
        format!("<div class=\"stack\">{}{}</div>\n", figure(&plots.bytes_sent), figure(&plots.phases)),
        figure(&plots.bytes_a_step),
        format!("<figure><h2>Time</h2>{}</figure>\n", table::times(runs, &looks, &bandwidths(bandwidth))),
        "</div>\n".to_string(),
        "</main>\n".to_string(),
        footer(runs),
    ];
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Thinwire report: {}</title>\n\
         <style>\n{}</style>\n</head>\n<body>\n{}<script>\n{}</script>\n</body>\n</html>\n",
        escape(&names(runs)),
        style(plots.by_time.len()),
        body.concat(),
        include_str!("page.js")
    )
}

fn names(runs: &[Run]) -> String {
    looks(runs).into_iter().map(|look| look.name).collect::<Vec<_>>().join(", ")
}

/// The page's style: the colours, twice, and which choice shows which plot.
fn style(choices: usize) -> String {
    let shown = (0..choices).map(|at| format!("#links-{at}:checked ~ .choice-{at} {{ display: block; }}\n"));
    format!(
        ":root {{ {} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {} }} }}\n{}{}{}",
        style::variables(false),
        style::variables(true),
        include_str!("page.css"),
        style::plot_style(),
        shown.collect::<String>()
    )
}

/// What all ended runs share, in a line.
fn facts(runs: &[Run]) -> String {
    let ended: Vec<&Summary> = runs.iter().filter_map(|run| run.summary.as_ref()).collect();
    let fact = |say: &dyn Fn(&Summary) -> String| {
        let first = say(ended.first()?);
        ended.iter().all(|end| say(end) == first).then_some(first)
    };
    let facts = [
        fact(&|end| end.task.clone()),
        fact(&|end| format!("{} parameters", numbers::count(end.params as u64))),
        fact(&|end| match end.workers {
            1 => "1 worker".to_string(),
            n => format!("{} workers over {}", numbers::count(n as u64), end.transport),
        }),
        fact(&|end| format!("{} steps", numbers::count(end.steps))),
        fact(&|end| format!("seed {}", end.seed)),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().map(|fact| escape(&fact)).collect();
    if facts.is_empty() { String::new() } else { format!("<p class=\"facts\">{}</p>\n", facts.join(" · ")) }
}

/// What lacks in the runs' metrics.
fn warnings(runs: &[Run]) -> String {
    let warning = |warning: &String| format!("<p class=\"facts\"><strong>Warning:</strong> {}</p>\n", escape(warning));
    runs.iter().flat_map(|run| &run.warnings).map(warning).collect()
}

fn figure(picture: &Picture) -> String {
    let note = if picture.note.is_empty() { String::new() } else { format!("<p>{}</p>", escape(&picture.note)) };
    format!("<figure id=\"{}\"><h2>{}</h2>{}{note}</figure>\n", picture.id, escape(&picture.title), picture.inline())
}

/// One plot for each bandwidth, of which the chosen one shows. Buttons and style do it, no script.
fn by_time(plots: &Plots, bandwidth: f64) -> String {
    let chosen = plots.by_time.iter().position(|(links, _)| *links == bandwidth).unwrap_or(0);
    let button = |(at, (links, _)): (usize, &(f64, Picture))| {
        let checked = if at == chosen { " checked" } else { "" };
        format!(
            "<input type=\"radio\" name=\"links\" id=\"links-{at}\"{checked}><label for=\"links-{at}\">{}</label>",
            numbers::bandwidth(*links)
        )
    };
    let choice = |(at, (_, picture)): (usize, &(f64, Picture))| {
        let note = escape(&picture.note);
        format!("<div class=\"choice choice-{at}\" id=\"{}\">{}<p>{note}</p></div>", picture.id, picture.inline())
    };
    let buttons: String = plots.by_time.iter().enumerate().map(button).collect();
    let choices: String = plots.by_time.iter().enumerate().map(choice).collect();
    format!(
        "<figure class=\"choices\"><h2>Loss by projected time</h2><span class=\"of\">links of</span>{buttons}{choices}</figure>\n"
    )
}

fn footer(runs: &[Run]) -> String {
    let config = |run: &Run| {
        let text = run.config.as_ref()?;
        let name = escape(&run.name);
        Some(format!("<details><summary>{name}/config.toml</summary><pre>{}</pre></details>\n", escape(text)))
    };
    let configs: String = runs.iter().filter_map(config).collect();
    format!("<footer>\n{}{configs}</footer>\n", include_str!("footer.html"))
}
