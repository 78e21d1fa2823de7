//! Where the workers of a run are: threads of this process, or processes that mpirun or srun has started.
//!
//! Of several processes the one with worker 0 speaks; the others keep quiet unless they fail. What could fail on one machine
//! alone, such as reading a file, is agreed on: all go on, or all end, and whoever failed says why.

use crate::failure::{Failure, Outcome};
use crate::screen::say;
use crate::settings::Transport;
use anyhow::{Result, anyhow};
use serde::{Deserialize, Serialize};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
#[cfg(feature = "mpi")]
use thinwire::mpi::World;
use thinwire::{Collective, threads};
#[cfg(not(feature = "mpi"))]
use without_mpi::World;

pub enum Team {
    Threads,
    Processes(Processes),
}

/// This process among the others.
pub struct Processes {
    /// For what is agreed on outside of a run.
    control: Mutex<Box<dyn Collective>>,
    rank: usize,
    hosts: Vec<usize>,
    world: World,
}

/// How long processes wait for each other outside of a run: one of them may read a large file, or empty a folder.
const SETTING_UP: Duration = Duration::from_secs(600);

/// What one process tells the others of its failure.
#[derive(Serialize, Deserialize)]
struct Told {
    text: String,
    code: u8,
}

impl Team {
    /// The team that `transport` asks for: MPI's when this process has siblings, if nothing else is said.
    pub fn of(transport: Option<&str>) -> Outcome<Team> {
        let transport = Transport::named(transport).map_err(Failure::Usage)?;
        match (transport, launcher()) {
            (Transport::Mpi, None) => Err(Failure::Usage(anyhow!(
                "invalid --transport mpi: expected to be started by mpirun or srun (for example mpirun -np 4 thinwire train …)"
            ))),
            (Transport::Mpi | Transport::Auto, Some(launcher)) if cfg!(not(feature = "mpi")) => {
                Err(Failure::Usage(anyhow!(
                    "{launcher} started this process, but it was built without MPI: build it with --features mpi, or \
                     start it by itself, and its workers are threads"
                )))
            }
            (Transport::Mpi | Transport::Auto, Some(launcher)) => {
                let processes = Processes::start().map_err(Failure::Run)?;
                let (started, met) = (started(), processes.hosts.len());
                match started {
                    Some(started) if started != met => Err(Failure::Usage(anyhow!(
                        "{launcher} started {started} processes, but the MPI that this one was built with finds {met}: it is not \
                         {launcher}'s. Build and start it by the same MPI (srun: --mpi=pmix)"
                    ))),
                    _ => Ok(Team::Processes(processes)),
                }
            }
            (Transport::Threads, Some(launcher)) if started().is_some_and(|started| started > 1) => {
                Err(Failure::Usage(anyhow!(
                    "invalid --transport threads: expected one process, found several that {launcher} started; each would do all of the \
                     work: start one"
                )))
            }
            _ => alone_in_slurm().map(|()| Team::Threads).map_err(Failure::Usage),
        }
    }

    fn processes(&self) -> Option<&Processes> {
        match self {
            Team::Threads => None,
            Team::Processes(processes) => Some(processes),
        }
    }

    /// How many workers there are, if that is not for the settings to say.
    pub fn size(&self) -> Option<usize> {
        self.processes().map(|processes| processes.hosts.len())
    }

    /// The worker of this process, where each has one of its own.
    pub fn rank(&self) -> Option<usize> {
        self.processes().map(|processes| processes.rank)
    }

    /// Whether this process speaks for all.
    pub fn leads(&self) -> bool {
        self.rank().unwrap_or(0) == 0
    }

    pub fn transport(&self) -> &'static str {
        if self.processes().is_some() { "mpi" } else { "threads" }
    }

    /// "threads", "MPI (4 hosts)".
    pub fn shown(&self) -> String {
        let Some(hosts) = self.hosts() else { return "threads".to_owned() };
        format!("MPI ({hosts} host{})", if hosts == 1 { "" } else { "s" })
    }

    /// How many hosts the workers are on, if that is not for the settings to say.
    pub fn hosts(&self) -> Option<usize> {
        self.processes().map(|processes| processes.hosts.iter().max().map_or(1, |last| last + 1))
    }

    /// The host of each of `workers`; threads act as if they were on `hosts` hosts.
    pub fn hosts_of(&self, workers: usize, hosts: usize) -> Vec<usize> {
        match self {
            Team::Threads => (0..workers).map(|worker| worker * hosts / workers).collect(),
            Team::Processes(processes) => processes.hosts.clone(),
        }
    }

    /// What to put before a command to start it as this one was started.
    pub fn launch(&self) -> String {
        match (self.size(), launcher()) {
            (Some(size), Some("srun")) => format!("srun -n {size} "),
            (Some(size), _) => format!("mpirun -np {size} "),
            (None, _) => String::new(),
        }
    }

    /// Runs `work` for each worker that this process has, and returns how they ended. Threads act as if they were on `hosts` hosts.
    pub fn run<T: Send>(
        &self,
        workers: usize,
        hosts: usize,
        deadline: Duration,
        work: impl Fn(Box<dyn Collective>) -> Result<T> + Sync,
    ) -> Vec<Result<T>> {
        match self {
            Team::Threads => {
                let hosts = self.hosts_of(workers, hosts);
                threads::run_group(threads::group_on(&hosts, deadline), |group| work(Box::new(group)))
            }
            Team::Processes(processes) => {
                let group = processes.world.group(deadline).map_err(anyhow::Error::from);
                vec![group.and_then(|group| work(Box::new(group)))]
            }
        }
    }

    /// What this process made of something, if all made something of it. If one did not, all fail; who says why is whoever
    /// failed, once if several failed alike.
    pub fn agree<T>(&self, mine: Outcome<T>) -> Outcome<T> {
        let Some(processes) = self.processes() else { return mine };
        let told = mine.as_ref().err().map(|failure| Told { text: failure.to_string(), code: failure.code() });
        let all = processes.gather(&told).map_err(Failure::Run)?;
        let Some(first) = all.iter().flatten().next() else { return mine };
        match mine {
            Ok(_) => Err(Failure::Told(first.code)),
            Err(failure) => {
                let same = |told: &Option<Told>| told.as_ref().is_some_and(|told| told.text == failure.to_string());
                Err(match () {
                    () if all[..processes.rank].iter().any(same) => Failure::Told(failure.code()),
                    () if all.iter().all(same) => failure,
                    () => failure.of_worker(processes.rank),
                })
            }
        }
    }

    /// Whether all processes have the same `mine`, which is `what`.
    pub fn same(&self, what: &str, mine: &str) -> Outcome {
        let Some(processes) = self.processes() else { return Ok(()) };
        let all = processes.gather(&mine.to_owned()).map_err(Failure::Run)?;
        match all.iter().position(|other| *other != all[0]) {
            Some(worker) => self.agree(Err(Failure::Usage(anyhow!(
                "worker {worker} has other {what} than worker 0; give all workers the same"
            )))),
            None => Ok(()),
        }
    }

    /// What worker 0 sees: on its machine is what the others may not have.
    pub fn as_worker_0_sees<T: Serialize + for<'a> Deserialize<'a>>(&self, mine: T) -> Outcome<T> {
        let Some(processes) = self.processes() else { return Ok(mine) };
        Ok(processes.gather(&mine).map_err(Failure::Run)?.swap_remove(0))
    }

    /// The sum of `x` over all processes, as MPI takes it.
    pub fn all_reduce(&self, x: &[f32], sum: &mut [f32]) {
        if let Some(processes) = self.processes() {
            processes.world.all_reduce(x, sum);
        }
    }

    /// The end, when all came to it together.
    pub fn end(self) {
        if let Team::Processes(Processes { world, control, .. }) = self {
            drop(control);
            world.end();
        }
    }

    /// Does `work` on a folder, whether the processes share it or each has its own: worker 0 first, then all others. So it must
    /// do no harm where it was done before, or is being done.
    pub fn everywhere(&self, work: impl Fn() -> Outcome) -> Outcome {
        if self.processes().is_none() {
            return work();
        }
        self.agree(if self.leads() { work() } else { Ok(()) })?;
        self.agree(if self.leads() { Ok(()) } else { work() })
    }
}

impl Processes {
    /// What all processes have to tell, in rank order.
    fn gather<T: Serialize + for<'a> Deserialize<'a>>(&self, told: &T) -> Result<Vec<T>> {
        let group = &mut **self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let all = gather(group, &serde_json::to_vec(told)?, "setting up")?;
        let read = |(worker, told): (usize, &Vec<u8>)| {
            let other = |_| {
                anyhow!("worker {worker} sent an unexpected message during setup; give all processes the same command")
            };
            serde_json::from_slice(told).map_err(other)
        };
        all.iter().enumerate().map(read).collect()
    }
}

/// Everyone's `told`, in rank order; nobody goes on before everybody came.
pub fn gather(group: &mut dyn Collective, told: &[u8], during: &'static str) -> thinwire::Result<Vec<Vec<u8>>> {
    let (rank, workers) = (group.rank(), group.size());
    let others = || (0..workers).filter(|other| *other != rank);
    for to in others() {
        group.send(to, told, during)?;
    }
    let mut all = vec![told.to_vec(); workers];
    for from in others() {
        group.receive(from, &mut all[from], during)?;
    }
    Ok(all)
}

impl Processes {
    fn start() -> Result<Processes> {
        let world = watched(World::start)?;
        let control = world.group(SETTING_UP)?;
        let (rank, hosts) = (control.rank(), control.hosts());
        Ok(Processes { control: Mutex::new(Box::new(control)), rank, hosts, world })
    }
}

/// Starting MPI is one call that waits for all processes and knows no deadline: another thread looks at the clock.
fn watched<T>(start: impl FnOnce() -> T) -> T {
    let (started, starts) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        if starts.recv_timeout(SETTING_UP) == Err(RecvTimeoutError::Timeout) {
            let (worker, seconds) = (rank_by_environment().unwrap_or(0), SETTING_UP.as_secs());
            say!(
                "worker {worker}: error: MPI did not start within {seconds} s: a process is missing or does not respond"
            );
            std::process::exit(1);
        }
    });
    let world = start();
    drop(started);
    world
}

/// What stands for MPI where there is none.
#[cfg(not(feature = "mpi"))]
mod without_mpi {
    use std::time::Duration;
    use thinwire::{Error, Result, Solo};

    pub enum World {}

    impl World {
        pub fn start() -> Result<World> {
            Err(Error::Transport { problem: "this build has no MPI".to_owned() })
        }

        pub fn group(&self, _: Duration) -> Result<Solo> {
            match *self {}
        }

        pub fn all_reduce(&self, _: &[f32], _: &mut [f32]) {
            match *self {}
        }

        pub fn end(self) {
            match self {}
        }
    }
}

/// What started this process beside others, as far as its environment tells.
pub fn launcher() -> Option<&'static str> {
    let set = |name: &str| std::env::var_os(name).is_some();
    match () {
        // Open MPI's mpirun sets the first, also when srun has started mpirun's own helpers.
        () if set("OMPI_COMM_WORLD_SIZE") => Some("mpirun"),
        () if set("SLURM_STEP_ID") && (set("PMI_RANK") || set("PMIX_RANK")) => Some("srun"),
        () if set("PMI_RANK") || set("PMIX_RANK") => Some("mpirun"),
        () => None,
    }
}

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

/// How many processes the launcher has started, if it says so.
fn started() -> Option<usize> {
    ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"].into_iter().find_map(number)
}

/// This process's rank, before MPI has started.
pub fn rank_by_environment() -> Option<usize> {
    ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"].into_iter().find_map(number)
}

/// Waits a while, and says whether this process, which found its arguments wrong and is not the first, is still there to say so. All
/// processes of a launcher have the same arguments, as a rule, and mpirun ends them all with the first: who outlives it has its own.
pub fn outlives_the_first() -> bool {
    let ends_all = launcher() == Some("mpirun");
    if ends_all {
        std::thread::sleep(Duration::from_secs(10));
    }
    ends_all
}

/// srun starts several tasks, and without MPI each of them would train alone.
fn alone_in_slurm() -> Result<()> {
    match (number("SLURM_STEP_NUM_TASKS"), number("SLURM_PROCID")) {
        (Some(tasks), Some(_)) if tasks > 1 && launcher().is_none() => Err(anyhow!(
            "srun started {tasks} tasks without MPI, and each would train alone: give srun --mpi=pmix, or --ntasks=1"
        )),
        _ => Ok(()),
    }
}

/// Called when this process is told to stop. mpirun tells so when another process was lost, kills this one soon after, and
/// may not pass on what it says at its very end: so whom it waits for is said now.
pub fn told_to_stop() {
    #[cfg(feature = "mpi")]
    if launcher() == Some("mpirun") {
        let set = std::env::var("OMPI_MCA_odls_base_sigkill_timeout").ok().and_then(|seconds| seconds.parse().ok());
        thinwire::mpi::hurry(Duration::from_secs(set.unwrap_or(1)));
        // Twice the same, a while apart: not one who was only slower.
        let look = || {
            std::thread::sleep(Duration::from_millis(120));
            thinwire::mpi::waits_for()
        };
        if let (Some(rank), Some(before), Some(after)) = (rank_by_environment(), look(), look())
            && before == after
        {
            say!("worker {rank}: told to stop while it waits for worker {after}, which is gone or busy");
        }
    }
}
