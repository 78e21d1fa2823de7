//! `thinwire join`: a worker of a server, for the tasks of `train`.
//!
//! The server says what runs; this worker has the data, computes, and follows. It leaves what `train` leaves, of its own steps.

use crate::arguments::Join;
use crate::failure::{Failure, Outcome};
use crate::folder::{self, Content};
use crate::job::{BuiltIn, Job};
use crate::journal::Journal;
use crate::logging;
use crate::record::{Eval, Phases, Step, Summary};
use crate::report;
use crate::screen::{Screen, bytes, count, duration, say};
use crate::serve::{quoted, token};
use crate::session::{GLANCE, round};
use crate::settings::Settings;
use crate::signals::STOP;
use crate::train::{self, print, sample, task_name, write, write_report, write_settings};
use anyhow::{Context, ensure};
use cpu_time::ThreadTime;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use thinwire_models::{Learner, Score, Share};
use thinwire_server::certificate;
use thinwire_server::{Interrupter, JoinOptions, Member, Membership, RemoteGroup};
use tracing_subscriber::filter::LevelFilter;

/// How long a worker that is told to stop waits for the round that it is in, while the server is in reach.
const LAST_ROUND: Duration = Duration::from_secs(5);

pub fn command(arguments: &Join) -> Outcome {
    let there = arguments.out.as_deref().filter(|out| out.is_dir());
    let mut held = there.map(folder::lock).transpose().map_err(Failure::Usage)?;
    let saved = arguments.out.as_ref().filter(|_| !arguments.overwrite).map(|out| out.join("checkpoint"));
    let back = saved.as_deref().and_then(Membership::read);
    // Killed while it wrote its first checkpoint: there is nothing to go on from but its name.
    let begun = saved.as_deref().and_then(Membership::begun).map(|begun| begun.name);
    let options = options(arguments, back.as_ref(), begun).map_err(Failure::Usage)?;
    let name = options.name.clone();
    logging::start(if arguments.quiet { LevelFilter::ERROR } else { LevelFilter::INFO }, false);
    if !arguments.quiet {
        say!("joining {} as {name} …", arguments.server);
    }
    let group = RemoteGroup::join(options).map_err(|error| match error {
        error @ thinwire_server::Error::Unreachable { .. } => Failure::run(error),
        error => Failure::Usage(error.into()),
    })?;
    let job = job(arguments, &group).map_err(Failure::Usage)?;
    let named = || PathBuf::from("runs").join(format!("{}-{}-{name}", task_name(&job.settings), job.config.name));
    let dir = arguments.out.clone().unwrap_or_else(named);
    if held.is_none() {
        held = Some(folder::lock(&dir).map_err(Failure::Usage)?);
    }
    if back.is_none() {
        prepare(&dir, arguments.overwrite).map_err(Failure::Usage)?;
    }
    write_settings(&job, &dir).map_err(Failure::Run)?;
    let (slot, workers) = (group.slot(), group.workers());
    let checkpoint = dir.join("checkpoint");
    let (member, params) = match &back {
        Some(_) => group.resume(&checkpoint),
        None => group.start(),
    }
    .map_err(Failure::run)?;
    if !arguments.quiet {
        let again = if back.is_some() { "back again: " } else { "" };
        let here = member.steps();
        say!(
            "{again}{} of {} parameters, seat {slot} of a run for {workers}, from step {here} of {}, {} at learning rate {} → {}",
            task_name(&job.settings),
            count(params.len() as f64),
            member.group().steps(),
            report::shown(&job.config.name.to_string()),
            job.settings.lr.expect("resolved"),
            dir.display()
        );
        crate::data::announce(&job);
    }
    let first = member.steps();
    let journal = if back.is_some() { Journal::go_on(&dir, first) } else { Journal::create(&dir) };
    let journal = journal.map_err(Failure::Run)?;
    let every = arguments.checkpoint_every.or(job.settings.checkpoint_every).unwrap_or(0);
    // Whoever comes beyond the workers that the run is made for shares someone's data.
    let work =
        Work::new(&job, &dir, Share { rank: slot % workers, workers }, member, params, journal, every, arguments.quiet);
    let (summary, params) = work.run(arguments)?;
    let page = write_report(std::slice::from_ref(&dir), &dir)?;
    if !arguments.quiet {
        conclude(&job, &summary, &params, &dir, &page);
    }
    if arguments.json {
        print(&summary)?;
    }
    drop(held);
    Ok(())
}

fn options(arguments: &Join, back: Option<&Membership>, begun: Option<String>) -> anyhow::Result<JoinOptions> {
    let port = arguments.server.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    ensure!(port.is_some(), "{}: accepted: HOST:PORT, such as 192.0.2.7:7070", arguments.server);
    // A server with --client-ca knows a worker by the name in its certificate.
    let certified = arguments.cert.as_deref().map(certificate::name).transpose()?.flatten();
    let name = match (&arguments.name, back) {
        (Some(name), Some(back)) => {
            ensure!(*name == back.name, "--name {name}: the checkpoint in --out is of {}", back.name);
            name.clone()
        }
        (Some(name), None) => name.clone(),
        (None, Some(back)) => back.name.clone(),
        (None, None) => match begun.or(certified) {
            Some(name) => name,
            None => format!("{}-{}", host().unwrap_or("worker".to_owned()), std::process::id()),
        },
    };
    Ok(JoinOptions {
        run: back.map(|back| back.run.clone()),
        token: arguments.token_file.as_deref().map(token).transpose()?,
        ca: arguments.ca.clone(),
        identity: arguments.cert.clone().zip(arguments.key.clone()),
        server_name: arguments.server_name.clone(),
        patience: Duration::from_secs(arguments.patience),
        ..JoinOptions::new(&arguments.server, name)
    })
}

/// This machine's name, as far as a worker's name may have it.
pub fn host() -> Option<String> {
    let named = std::fs::read_to_string("/etc/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    let named = named.or_else(|| std::env::var("COMPUTERNAME").ok()).unwrap_or_default();
    let kept = named.trim().chars().filter(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(*letter)).take(40);
    let kept = kept.collect::<String>();
    (!kept.is_empty()).then_some(kept)
}

/// The job that the server has, with this machine's files.
fn job(arguments: &Join, group: &RemoteGroup) -> anyhow::Result<Job> {
    let foreign = "the server's job is none of this command; was it started by `thinwire serve` of the same version?";
    let mut settings = toml::from_str::<Settings>(group.job()).context(foreign)?;
    settings.data = arguments.data.clone();
    settings.finetune = arguments.finetune.clone();
    settings.finetune_eval = arguments.finetune_eval.clone();
    settings.tokenizer_files = arguments.tokenizer_files.clone();
    let expected = settings.data_digest.take();
    let job = Job::new(settings)?;
    ensure!(
        job.settings.data_digest == expected,
        "the data here is not what the server has; give the same by --data (or --finetune)"
    );
    ensure!(job.config == *group.config(), "this build makes another optimizer of the server's settings");
    let (here, there) = (job.task.get().tensors().len(), group.parameters());
    ensure!(here == there, "the network here has {here} parameters, the server's {there}");
    Ok(job)
}

fn prepare(dir: &Path, overwrite: bool) -> anyhow::Result<()> {
    let content = match Content::of(dir) {
        // A checkpoint that was never finished is nothing that anyone could go on from.
        Content::Unfinished if !Membership::is_complete(&dir.join("checkpoint")) => "no",
        Content::Nothing => "no",
        Content::Unfinished => "an unfinished",
        Content::Finished => "a finished",
    };
    ensure!(
        overwrite || content == "no",
        "{} holds {content} run; take another folder by --out, or start over by --overwrite",
        dir.display()
    );
    folder::empty(dir)
}

/// One worker's loop.
struct Work<'a> {
    job: &'a Job,
    dir: &'a Path,
    member: Member,
    learner: Box<dyn Learner + 'a>,
    params: Vec<f32>,
    grad: Vec<f32>,
    journal: Journal,
    screen: Screen,
    share: Share,
    checkpoint_every: u64,
    first: u64,
    began: Instant,
    /// Steps that this worker took part in.
    own: u64,
}

impl<'a> Work<'a> {
    #[allow(clippy::too_many_arguments)]
    fn new(
        job: &'a Job,
        dir: &'a Path,
        share: Share,
        member: Member,
        params: Vec<f32>,
        journal: Journal,
        checkpoint_every: u64,
        quiet: bool,
    ) -> Work<'a> {
        let (settings, task) = (&job.settings, job.task.get());
        let (batch, seed) = (settings.batch.expect("resolved"), settings.seed.expect("resolved"));
        let units = task.units(batch) * settings.accumulate.expect("resolved") as usize;
        let first = member.steps();
        let screen = Screen::new(quiet, first, member.group().steps(), units, task.unit());
        Work {
            job,
            dir,
            learner: task.learner(share, batch, seed),
            grad: vec![0.0; params.len()],
            member,
            params,
            journal,
            screen,
            share,
            checkpoint_every,
            first,
            began: Instant::now(),
            own: 0,
        }
    }

    fn run(mut self, arguments: &Join) -> Outcome<(Summary, Vec<f32>)> {
        end_with_signal(self.member.interrupter());
        let every = self.job.settings.eval_every.expect("resolved");
        let (mut evaluated, mut saved) = (self.first / every, self.first / self.checkpoint_every.max(1));
        while !self.member.is_done() {
            if STOP.load(Ordering::Relaxed) {
                return Err(self.interrupted(arguments));
            }
            if let Err(error) = self.step() {
                let told = STOP.load(Ordering::Relaxed) && self.member.is_interrupted();
                return Err(if told { self.interrupted(arguments) } else { Failure::Run(error) });
            }
            let done = self.member.steps();
            if done / every > evaluated && !self.member.is_done() {
                evaluated = done / every;
                self.evaluate(GLANCE, false).map_err(Failure::Run)?;
            }
            if self.checkpoint_every > 0 && done / self.checkpoint_every > saved {
                saved = done / self.checkpoint_every;
                self.save().map_err(Failure::Run)?;
            }
        }
        self.save().map_err(Failure::Run)?;
        let examples = self.job.settings.eval_examples.unwrap_or(usize::MAX);
        let Some(score) = self.evaluate(examples, true).map_err(Failure::Run)? else {
            return Err(self.interrupted(arguments));
        };
        self.screen.close();
        let summary = self.summary(&score);
        let text = serde_json::to_string_pretty(&summary).map_err(Failure::run)?;
        write(&self.dir.join("summary.json"), &(text + "\n")).map_err(Failure::Run)?;
        self.member.leave();
        Ok((summary, self.params))
    }

    /// Forward, backward, and the step with everybody who is there.
    fn step(&mut self) -> anyhow::Result<()> {
        let settings = &self.job.settings;
        let accumulate = settings.accumulate.expect("resolved");
        let (step, lr) = (self.member.steps(), self.member.lr());
        let (began, cpu) = (Instant::now(), ThreadTime::now());
        self.grad.fill(0.0);
        let (mut loss, weight) = (0.0, 1.0 / accumulate as f32);
        for part in 0..accumulate {
            loss += weight * self.learner.learn(&self.params, step * accumulate + part, weight, &mut self.grad);
        }
        let (compute, compute_cpu) = (began.elapsed().as_secs_f64(), cpu.elapsed().as_secs_f64());
        let (before, cpu) = (self.member.traffic(), ThreadTime::now());
        self.member.report_loss(f64::from(loss));
        self.member.step(&mut self.params, &self.grad)?;
        let after = self.member.traffic();
        let (pack, total) = (cpu.elapsed().as_secs_f64(), began.elapsed().as_secs_f64());
        let wire = (after.seconds.wire - before.seconds.wire).max(0.0);
        // A worker that started over counts anew.
        let bytes = after.bytes_sent.checked_sub(before.bytes_sent).unwrap_or(after.bytes_sent) as f64;
        let taken = Step {
            step,
            loss: f64::from(loss),
            lr: f64::from(lr),
            round: round(&before, &after).to_owned(),
            bytes,
            bytes_total: 0.0,
            bytes_between_hosts: bytes,
            seconds: Phases { total, compute, pack, wire, wait: (total - compute - pack - wire).max(0.0) },
            compute_cpu,
        };
        self.journal.step(taken.clone())?;
        self.journal.flush()?;
        self.own += 1;
        // Others may have gone further.
        self.screen.step(&Step { step: self.member.steps() - 1, ..taken }, &self.journal.totals);
        Ok(())
    }

    /// All that is asked for, by this worker alone: nobody waits for another's evaluation. The `last` one shows how far it is, and
    /// ends without a score when the user wants to stop.
    fn evaluate(&mut self, examples: usize, last: bool) -> anyhow::Result<Option<Score>> {
        let (task, settings) = (self.job.task.get(), &self.job.settings);
        let alone = Share { rank: 0, workers: 1 };
        let mut learner = task.learner(alone, settings.batch.expect("resolved"), settings.seed.expect("resolved"));
        let screen = &mut self.screen;
        let mut watch = |done, of| match last {
            false => ControlFlow::Continue(()),
            true => {
                screen.evaluating(done, of);
                if STOP.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }
        };
        let Some(score) = learner.evaluate_watched(&self.params, examples, &mut watch) else { return Ok(None) };
        self.screen.eval(score.mean_loss());
        self.journal.eval(Eval {
            step: self.member.steps(),
            val_loss: score.mean_loss(),
            accuracy: score.accuracy(),
            matthews: score.matthews(),
        })?;
        self.journal.flush()?;
        Ok(Some(score))
    }

    fn save(&mut self) -> anyhow::Result<()> {
        Ok(self.member.save(&self.dir.join("checkpoint"), &self.params)?)
    }

    /// Saves, leaves, and says how to come back.
    fn interrupted(mut self, arguments: &Join) -> Failure {
        self.screen.close();
        if let Err(error) = self.save() {
            return Failure::Run(error);
        }
        let (done, steps) = (self.member.steps(), self.member.group().steps());
        self.member.leave();
        Failure::Interrupted(format!(
            "interrupted after {done} of {steps} steps; the others go on. This worker's checkpoint is in {}\n\
             come back:  thinwire join {} --out {}{}",
            self.dir.join("checkpoint").display(),
            arguments.server,
            quoted(&self.dir.display().to_string()),
            files_again(arguments)
        ))
    }

    /// Not planned: who comes and goes is not known before.
    fn summary(&self, score: &Score) -> Summary {
        let (totals, values) = (&self.journal.totals, self.params.len() as f64);
        Summary {
            transport: "server".to_owned(),
            steps: self.member.steps(),
            bytes_between_hosts_per_worker: totals.bytes.round() as u64,
            // One way: what comes down from the server is as much again.
            bits_per_param_per_step: totals.bytes * 8.0 / (values * totals.steps.max(1) as f64),
            units_per_second: self.units_per_second(),
            ..train::results(self.job, self.share.workers, &self.params, totals, score)
        }
    }

    /// Tokens or images a second, of this worker.
    fn units_per_second(&self) -> f64 {
        let settings = &self.job.settings;
        let units = self.job.task.get().units(settings.batch.expect("resolved")) as u64
            * settings.accumulate.expect("resolved");
        (self.own * units) as f64 / self.began.elapsed().as_secs_f64().max(1e-9)
    }
}

/// The files that this worker was given, as flags.
fn files_again(arguments: &Join) -> String {
    let files = [
        ("--data", &arguments.data),
        ("--finetune", &arguments.finetune),
        ("--finetune-eval", &arguments.finetune_eval),
        ("--tokenizer-files", &arguments.tokenizer_files),
        ("--ca", &arguments.ca),
        ("--cert", &arguments.cert),
        ("--key", &arguments.key),
        ("--token-file", &arguments.token_file),
    ];
    let flag = |(flag, path): &(&str, &Option<PathBuf>)| {
        path.as_ref().map(|path| format!(" {flag} {}", quoted(&path.display().to_string())))
    };
    files.iter().filter_map(flag).collect()
}

/// After Ctrl-C ends a wait for a round that does not come.
fn end_with_signal(interrupter: Interrupter) {
    let watch = move || {
        let mut told = None;
        while told.is_none_or(|told: Instant| told.elapsed() < LAST_ROUND && !interrupter.is_away()) {
            std::thread::sleep(Duration::from_millis(50));
            if STOP.load(Ordering::Relaxed) {
                told.get_or_insert_with(Instant::now);
            }
        }
        interrupter.interrupt();
    };
    std::thread::spawn(watch);
}

/// What this worker's part came to, for people.
fn conclude(job: &Job, summary: &Summary, params: &[f32], dir: &Path, page: &Path) {
    if let BuiltIn::Gpt(gpt) = &job.task {
        say!("\na sample of what it learned to write:\n");
        for line in sample(gpt, params, job).trim().lines() {
            say!("    {}", line.replace(char::is_control, "\u{fffd}"));
        }
        say!("");
    }
    let accuracy = train::accuracy(summary);
    say!("loss      {:.4} in training, {:.4} held out{accuracy}", summary.train_loss, summary.val_loss);
    say!(
        "sent      {} by this worker, {:.2} bits a parameter a step",
        bytes(summary.bytes_sent_per_worker as f64),
        summary.bits_per_param_per_step
    );
    let seconds = summary.seconds;
    say!(
        "time      {}: compute {:.1} s, pack {:.1} s, wire {:.1} s, wait {:.1} s",
        duration(seconds.total),
        seconds.compute,
        seconds.pack,
        seconds.wire,
        seconds.wait
    );
    say!("digest    {}", summary.digest);
    say!("results   {} · report {}", dir.display(), page.display());
}
