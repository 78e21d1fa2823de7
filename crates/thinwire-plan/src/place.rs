//! Where the workers are, and what joins them.

use crate::bench::{self, Benched};
use crate::needed;
use crate::network::{FRAMING, LATENCY, Links, Network};
use crate::presets::Preset;
use crate::question::{MOST_WORKERS, Question};
use anyhow::{Result, ensure};

/// The host of each worker.
pub fn hosts(question: &Question, measured: Option<&Links>) -> Result<Vec<usize>> {
    if let (Some(measured), None, None) = (measured, question.workers, question.hosts) {
        return Ok(measured.hosts.clone());
    }
    let usual = question.preset.map(Preset::workers);
    let probed = measured.map(|measured| measured.hosts.len());
    let workers = question.workers.or(probed).or(usual.map(|(workers, _)| workers));
    let workers = workers.ok_or_else(needed::workers)?;
    ensure!(
        (1..=MOST_WORKERS).contains(&(workers as u64)),
        "invalid --workers {workers}: expected 1 to {MOST_WORKERS}"
    );
    let paper = usual.filter(|(theirs, _)| *theirs == workers).map(|(_, hosts)| hosts);
    let hosts = match (question.hosts, measured) {
        (Some(hosts), _) => hosts,
        // As many on each as there are in the file.
        (None, Some(measured)) => {
            let (many, count) = (measured.hosts.len(), measured.hosts.iter().max().map_or(1, |last| last + 1));
            let each = many / count;
            let even = (0..count).all(|host| measured.hosts.iter().filter(|theirs| **theirs == host).count() == each);
            ensure!(
                even && workers.is_multiple_of(each),
                "invalid --workers {workers}: expected a multiple of {each}, because the file of --network has {many} workers on {count} \
                 hosts, or --hosts beside it"
            );
            workers / each
        }
        (None, None) => paper.unwrap_or(workers),
    };
    ensure!((1..=workers).contains(&hosts), "invalid --hosts {hosts}: expected 1 to {workers}, the number of workers");
    ensure!(
        workers.is_multiple_of(hosts),
        "invalid --hosts {hosts}: expected a number that divides the {workers} workers, because all hosts have equally many"
    );
    Ok((0..workers).map(|worker| worker * hosts / workers).collect())
}

/// The links between them; what is not given is measured or assumed, which the notes say.
pub fn links(
    question: &Question,
    measured: Option<Links>,
    benched: Option<&Benched>,
    hosts: usize,
    crowding: f64,
    notes: &mut Vec<String>,
) -> Result<Network> {
    let file = question.network.as_deref().map_or(String::new(), |path| path.display().to_string());
    let message = if question.without_packing { 0.0 } else { bench::message_seconds(benched)? };
    let origin = measured.as_ref().map_or("", Links::origin);
    let measured = measured.map(|measured| measured.network(crowding, benched)).transpose()?;
    let latency = question.latency.or(measured.map(|measured| measured.latency));
    let network = match (question.bandwidth, measured) {
        (Some(bandwidth), _) => {
            notes.push("94.1 % of a link's bits are payload of TCP, as on Ethernet".to_owned());
            Network { bandwidth, framing: FRAMING, latency: latency.unwrap_or(LATENCY), message }
        }
        (None, Some(measured)) => {
            notes.push(format!("the network: {origin} ({file})"));
            let message = if question.without_packing { 0.0 } else { measured.message };
            Network { latency: latency.unwrap_or(LATENCY), message, ..measured }
        }
        // With one host there is no link.
        (None, None) if hosts == 1 => Network { bandwidth: 1e12, framing: 1.0, latency: 0.0, message },
        (None, None) => return Err(needed::bandwidth()),
    };
    if latency.is_none() && hosts > 1 {
        notes.push("a latency of 50 µs, since --latency was not given".to_owned());
    }
    Ok(network)
}
