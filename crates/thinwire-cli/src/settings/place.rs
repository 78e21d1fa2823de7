//! Where the workers are, against what the settings say of it.

use super::{Settings, Transport};
use crate::defaults;
use crate::launch::Team;
use anyhow::{Result, bail, ensure};

impl Settings {
    /// Takes the number of workers from `team`, where that is not a choice.
    pub fn fit(&mut self, team: &Team) -> Result<()> {
        match team.size() {
            None => self.fit_threads()?,
            Some(size) => self.fit_processes(size)?,
        }
        let hosts = team.hosts().or(self.hosts).unwrap_or(1);
        let apart = self.optimizer.get("hierarchy").and_then(toml::Value::as_str) == Some("hosts");
        ensure!(
            hosts > 1 || !apart,
            "invalid hierarchy = hosts: expected auto or flat, because all workers are on one host (on threads, --hosts 2 acts \
             as if there were two)"
        );
        Ok(())
    }

    fn fit_threads(&self) -> Result<()> {
        let started = self.transport != Transport::Mpi;
        ensure!(started, "invalid transport = mpi: expected to be started by mpirun or srun");
        let (hosts, workers) = (self.hosts.unwrap_or(1), self.workers.unwrap_or(defaults::WORKERS));
        let fits = self.hosts.is_none() || (1..=workers).contains(&hosts);
        ensure!(fits, "invalid hosts = {hosts}: expected 1 to {workers}, the number of workers");
        Ok(())
    }

    fn fit_processes(&mut self, size: usize) -> Result<()> {
        let threads = self.transport == Transport::Threads;
        ensure!(
            !threads,
            "invalid transport = threads: expected mpi or auto under mpirun; give threads as a flag, or start without mpirun"
        );
        if let Some(hosts) = self.hosts {
            bail!(
                "invalid hosts = {hosts}: expected nothing, because the {size} processes know their hosts (THINWIRE_HOST names \
                 another); --hosts is for threads"
            );
        }
        let workers = *self.workers.get_or_insert(size);
        ensure!(
            workers == size,
            "invalid workers = {workers}: expected {size}, because each of the {size} processes is a worker"
        );
        Ok(())
    }

    /// Refuses options for an optimizer that is not among `names`.
    pub fn check_only(&self, names: &[String]) -> Result<()> {
        match self.only.keys().find(|name| !names.contains(name)) {
            Some(name) => bail!("invalid --set {name}.…: expected an optimizer that runs here ({})", names.join(", ")),
            None => Ok(()),
        }
    }
}
