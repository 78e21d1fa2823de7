//! `thinwire serve`: a parameter server for the tasks of `train`.
//!
//! The same command again, after a crash or a Ctrl-C, goes on with the run in its folder.

use crate::arguments::Serve;
use crate::defaults;
use crate::failure::{Failure, Outcome};
use crate::job::Job;
use crate::logging;
use crate::run_spec::RunSpec;
use crate::screen::{print, say};
use crate::settings::{Order, Settings};
use crate::signals::STOP;
use anyhow::{Context, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;
use thinwire_report as report;
use thinwire_report::numbers::{bytes, short};
use thinwire_server::run::read_spec;
use thinwire_server::{Retention, Rules, Run, Security, Server, Status, Tls};
use tracing_subscriber::filter::LevelFilter;

/// How long workers may take to fetch the end of a run before the server ends.
const GRACE: Duration = Duration::from_secs(60);

/// Seconds that a round waits for the others after its first message, if nobody says otherwise.
const DEADLINE: u64 = 30;

pub fn command(arguments: &Serve) -> Outcome {
    let (quiet, json) = (arguments.common.quiet, arguments.log == "json");
    let bar = bar(arguments);
    logging::around(&bar);
    let level = match (quiet, arguments.verbose) {
        (true, _) => LevelFilter::ERROR,
        (_, true) => LevelFilter::DEBUG,
        _ => LevelFilter::INFO,
    };
    logging::start(level, json);
    let (server, dir) = start(arguments, &bar).map_err(Failure::Usage)?;
    let finished = server.status().digest.is_some() && !arguments.exit_when_done;
    if finished {
        tracing::info!("the run has ended; workers that come now receive its result, until Ctrl-C");
    }
    let mut ended = None;
    while !server.has_failed() && !STOP.load(Ordering::Relaxed) {
        if !finished && server.has_ended(GRACE, &mut ended) {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        show(&bar, &server.status());
    }
    bar.finish_and_clear();
    let status = server.stop().map_err(Failure::run)?;
    let (rounds, shown) = (status.rounds, dir.display());
    match &status.digest {
        // Who stops a server wants it stopped: that is no failure.
        None if json => tracing::info!(rounds, folder = %shown, "stopped; the same command resumes it"),
        None if quiet => {}
        None => {
            say!(
                "stopped after {rounds} rounds; a snapshot and the log are in {shown}\nto resume: the same command again"
            )
        }
        Some(digest) if json => tracing::info!(rounds, digest, folder = %shown, "done"),
        Some(_) if quiet => {}
        Some(_) => conclude(&status, &dir),
    }
    if arguments.common.json {
        print(&status)?;
    }
    Ok(())
}

/// A new server, or the one that was here before.
fn start(arguments: &Serve, bar: &ProgressBar) -> anyhow::Result<(Server, PathBuf)> {
    let security = security(arguments)?;
    security.check(arguments.listen)?;
    let job = job(arguments)?;
    let dir = arguments.common.out.clone().unwrap_or_else(|| folder(&job));
    let rules = rules(arguments, &job)?;
    let told = job.written()?.common().to_toml()?;
    let retention = Retention {
        keep: arguments.keep,
        snapshot_every: arguments.snapshot_every,
        snapshots: arguments.keep_snapshots.into(),
    };
    // Before anything is written, or removed.
    std::net::TcpListener::bind(arguments.listen).with_context(|| format!("--listen {}", arguments.listen))?;
    if arguments.common.overwrite && (Run::exists(&dir) || Run::has_remains(&dir)?) {
        Run::remove_from(&dir)?;
    }
    let again = Run::exists(&dir);
    if !again {
        Run::check_folder(&dir)?;
        ensure!(arguments.back_to.is_none(), "--back-to: expected a run in {}, found none", dir.display());
    }
    if again {
        // Before anything is cut.
        let before = with_every_option(&read_spec(&dir)?.job, &job)?;
        ensure!(
            before == told,
            "{}: expected a run with these settings, found another ({}); take another folder by --out, or start over by --overwrite",
            dir.display(),
            difference(&before, &told)
        );
    }
    let run = match (again, arguments.back_to) {
        (true, Some(rounds)) => Run::open_back_to(&dir, retention, rounds)?,
        (true, None) => Run::open(&dir, retention)?,
        (false, _) => {
            let RunSpec { workers, steps, .. } = job.spec;
            Run::create(&dir, &job.config, &job.initial()?, workers, steps, told.clone(), retention)?
        }
    };
    let (rounds, parameters) = (run.rounds(), run.spec.parameters);
    let server = Server::start(run, arguments.listen, rules, security)?;
    tracing::info!(address = %server.address(), rounds, "listening");
    if !arguments.common.quiet && arguments.log == "text" {
        let scheme = if arguments.tls_cert.is_some() { "https" } else { "http" };
        let from = if again { format!(", going on after {rounds} rounds") } else { String::new() };
        bar.suspend(|| {
            say!(
                "{} of {} parameters, for {} workers, {} steps, {}{from} → {}",
                job.spec.task.name(),
                short(parameters as f64),
                rules.workers,
                job.spec.steps,
                report::shown(job.spec.called()),
                dir.display()
            );
            let (address, everywhere) = (server.address(), server.address().ip().is_unspecified());
            let host = if everywhere { format!("{}:{}", this_host(), address.port()) } else { address.to_string() };
            let password = server.token_file().map_or(String::new(), |file| {
                format!(" (any name, and the password in {})", quoted(&file.display().to_string()))
            });
            say!("page      {scheme}://{host}/{password}");
            say!("workers   thinwire join {host}{}", shown_flags(arguments, &job.spec));
            if let Some(elsewhere) = elsewhere(arguments, &job.spec) {
                say!("          {elsewhere}");
            }
        });
    }
    Ok((server, dir))
}

/// This machine's name, by which others may know it.
fn this_host() -> String {
    crate::join::host().unwrap_or_else(|| "THIS-HOST".to_owned())
}

/// What else a worker has to give: the files as they are called here.
fn shown_flags(arguments: &Serve, spec: &RunSpec) -> String {
    let mut flags = String::new();
    for (path, flag) in files(arguments, spec) {
        flags += &path.map_or(String::new(), |path| format!(" {flag} {}", quoted(&path.display().to_string())));
    }
    for (given, flag) in [
        (arguments.tls_cert.is_some(), " --ca CA.pem"),
        (arguments.client_ca.is_some(), " --cert CERT.pem --key KEY.pem"),
    ] {
        flags += if given { flag } else { "" };
    }
    flags
}

fn files<'a>(arguments: &'a Serve, spec: &'a RunSpec) -> [(Option<&'a Path>, &'static str); 5] {
    [
        (spec.data.as_deref(), "--data"),
        (spec.finetune(), "--finetune"),
        (spec.finetune_eval(), "--finetune-eval"),
        (spec.tokenizer_files.as_deref(), "--tokenizer-files"),
        (arguments.token_file.as_deref(), "--token-file"),
    ]
}

/// What is not the same on other machines, or not known here.
fn elsewhere(arguments: &Serve, spec: &RunSpec) -> Option<String> {
    let there =
        files(arguments, spec).iter().filter(|(path, _)| path.is_some()).map(|(_, flag)| *flag).collect::<Vec<_>>();
    let mut hints = Vec::new();
    if !there.is_empty() {
        hints.push(format!("on another machine {} with the path that the same file has there", there.join(" and ")));
    }
    if arguments.tls_cert.is_some() {
        hints.push("CA.pem is the certificate that has signed --tls-cert".to_owned());
    }
    (!hints.is_empty()).then(|| format!("({})", hints.join("; ")))
}

/// As a shell reads it.
pub fn quoted(text: &str) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || "-_./:=+,@%".contains(letter);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

fn job(arguments: &Serve) -> anyhow::Result<Job> {
    let flags = &arguments.common;
    for (given, flag) in [
        (flags.transport.is_some(), "--transport"),
        (flags.hosts.is_some(), "--hosts"),
        (flags.tensorboard.is_some(), "--tensorboard"),
        (flags.hierarchy.is_some(), "--hierarchy"),
        (flags.order.is_some(), "--order"),
    ] {
        ensure!(!given, "invalid {flag}: expected none, because workers of a server join it one by one");
    }
    let mut settings = Settings::of(flags)?;
    let name = match (&arguments.optimizer, settings.optimizer.contains_key("name")) {
        (Some(name), _) => name.clone(),
        (None, true) => settings.called()?,
        (None, false) => defaults::SERVED.to_string(),
    };
    settings.set_name(&name).context("--optimizer")?;
    settings.check_only(&[name])?;
    ensure!(
        settings.order.unwrap_or_default() == Order::Random,
        "invalid order = cd-grab: expected random, because workers of a server exchange no notes"
    );
    settings.optimizer.entry("topology").or_insert("central".into());
    Job::new(settings)
}

/// Where the run is kept, if nobody says.
fn folder(job: &Job) -> PathBuf {
    let tuned = if job.spec.finetune().is_some() { "-finetune" } else { "" };
    PathBuf::from("runs").join(format!("server-{}{tuned}-{}", job.spec.task.name(), job.spec.called()))
}

fn rules(arguments: &Serve, job: &Job) -> anyhow::Result<Rules> {
    let workers = job.spec.workers;
    let quorum = match arguments.quorum.as_str() {
        "all" => workers,
        number => number.parse().ok().filter(|number| (1..=4096).contains(number)).with_context(|| {
            format!(
                "invalid --quorum {number}: expected a number of workers from 1 to 4096, or all, which is --workers"
            )
        })?,
    };
    let deadline = Duration::from_secs(arguments.common.deadline.unwrap_or(DEADLINE));
    let max_members = arguments.max_members.map_or(workers.max(64), |most| most as usize);
    ensure!(
        max_members >= workers,
        "invalid --max-members {max_members}: expected at least {workers}, the number of --workers"
    );
    ensure!(
        quorum <= max_members,
        "invalid --quorum {quorum}: expected at most {max_members}, the number of --max-members"
    );
    let per_identity = arguments.max_per_address.map_or(max_members.div_ceil(2).max(workers), |most| most as usize);
    Ok(Rules { quorum, workers, deadline, max_members, per_identity })
}

fn security(arguments: &Serve) -> anyhow::Result<Security> {
    let token = arguments.token_file.as_deref().map(token).transpose()?;
    let tls = arguments.tls_cert.clone().zip(arguments.tls_key.clone());
    let tls = tls.map(|(certificate, key)| Tls { certificate, key, client_ca: arguments.client_ca.clone() });
    // Also on loopback: other users of this machine are there too, and so are the pages in its browsers.
    if token.is_none() && arguments.client_ca.is_none() && arguments.listen.ip().is_loopback() {
        return Ok(Security { tls, ..Security::local() });
    }
    Ok(Security { tls, token, announced: false })
}

/// The token in a file, without the white space around it.
pub fn token(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(text.trim().to_owned())
}

/// A run's settings as they would be written today: options of the optimizer that have come since take their defaults.
fn with_every_option(text: &str, job: &Job) -> anyhow::Result<String> {
    let mut settings: Settings = toml::from_str(text)?;
    settings.optimizer = job.spec.completed(&settings)?;
    settings.to_toml()
}

/// The first line that two settings do not share.
fn difference(before: &str, now: &str) -> String {
    let other = |text: &'static str| move |line: Option<&str>| line.unwrap_or(text).to_owned();
    let only =
        |one: &str, other: &str| one.lines().find(|line| !other.lines().any(|also| also == *line)).map(str::to_owned);
    let (then, now) = (only(before, now), only(now, before));
    format!("{} there, {} now", other("nothing")(then.as_deref()), other("nothing")(now.as_deref()))
}

fn bar(arguments: &Serve) -> ProgressBar {
    let shown = !arguments.common.quiet && arguments.log == "text" && std::io::stderr().is_terminal();
    if !shown {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4));
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("a valid template"));
    bar
}

fn show(bar: &ProgressBar, status: &Status) {
    if bar.is_hidden() {
        return;
    }
    let here = status.members.iter().filter(|member| member.connected).count();
    let loss = status.losses.last().map_or(String::new(), |(_, loss)| format!(" · loss {loss:.3}"));
    let trouble = status.trouble.as_ref().map_or(String::new(), |trouble| format!(" · NO ROUNDS: {trouble}"));
    bar.set_message(format!(
        "round {} · {here} of {} workers here{loss} · {} in, {} out · {} missed{trouble}",
        status.rounds,
        status.workers,
        bytes(status.bytes_received as f64),
        bytes(status.bytes_sent as f64),
        status.left_out,
    ));
    bar.tick();
}

fn conclude(status: &Status, dir: &Path) {
    let began = Duration::from_secs_f64(status.seconds_up);
    say!(
        "done      {} rounds, {} in, {} out; {} workers, who missed {} rounds; {:.1} s since the server started",
        status.rounds,
        bytes(status.bytes_received as f64),
        bytes(status.bytes_sent as f64),
        status.members.len(),
        status.left_out,
        began.as_secs_f64(),
    );
    say!("digest    {}", status.digest.as_deref().unwrap_or_default());
    say!("results   {}", dir.display());
}

#[cfg(test)]
mod tests {
    use super::{quoted, security};
    use crate::arguments::Serve;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        serve: Serve,
    }

    /// Other users of the machine reach a server on loopback, with TLS as without.
    #[test]
    fn a_server_on_loopback_has_a_token_unless_workers_have_certificates() {
        let tls = ["--tls-cert", "c.pem", "--tls-key", "k.pem"];
        for (flags, has_tls, has_token) in [
            (vec![], false, true),
            (tls.to_vec(), true, true),
            ([&tls[..], &["--client-ca", "ca.pem"]].concat(), true, false),
            ([&tls[..], &["--listen", "0.0.0.0:7070"]].concat(), true, false),
        ] {
            let line = Line::parse_from([&["serve"], &flags[..]].concat());
            let made = security(&line.serve).unwrap();
            let found = (made.tls.is_some(), made.token.is_some(), made.announced);
            assert_eq!(found, (has_tls, has_token, has_token), "{flags:?}");
        }
    }

    #[test]
    fn paths_are_quoted_for_a_shell() {
        assert_eq!(quoted("/data/book.txt"), "/data/book.txt");
        assert_eq!(quoted("/my data/it's.txt"), "'/my data/it'\\''s.txt'");
        assert_eq!(quoted(""), "''");
    }
}
