//! What the command makes of the launcher that started it, before there is any MPI.

use crate::helper::{Place, Ran};
use std::ffi::OsString;
use std::process::{Command, Stdio};

fn under(variables: &[(&str, &str)], line: &str) -> Ran {
    started(env!("CARGO_BIN_EXE_thinwire").into(), variables, line)
}

fn started(program: OsString, variables: &[(&str, &str)], line: &str) -> Ran {
    let place = Place::new();
    let mut command = Command::new(program);
    command.args(line.split_whitespace()).current_dir(place.path("")).stdin(Stdio::null());
    Ran::of(line, command.envs(variables.iter().copied()).output().expect("the binary runs"))
}

/// A build with MPI takes another one for this, if it is told where one is: `./check` has one.
#[test]
fn a_build_without_mpi_does_not_train_alone_beside_others() {
    let this = cfg!(not(feature = "mpi")).then(|| env!("CARGO_BIN_EXE_thinwire").into());
    let Some(program) = this.or_else(|| std::env::var_os("THINWIRE_WITHOUT_MPI")) else { return };
    let under = |variables: &[(&str, &str)]| started(program.clone(), variables, "train --steps 1");
    let mpirun = [("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "0")];
    under(&mpirun).refused(&["mpirun", "--features mpi"]);
    under(&[("PMI_RANK", "0"), ("SLURM_STEP_ID", "0")]).refused(&["srun", "--features mpi"]);
}

#[test]
fn srun_without_mpi_is_noticed() {
    under(&[("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "1")], "train --steps 1")
        .refused(&["4 tasks", "--mpi=pmix"]);
}

#[test]
fn threads_under_a_launcher_would_do_the_work_several_times() {
    let mpirun = |rank| [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", rank)];
    under(&mpirun("0"), "train --transport threads --steps 1").refused(&["--transport threads", "mpirun", "start one"]);
    let other = under(&mpirun("1"), "train --transport threads --steps 1");
    assert_eq!((other.code, other.stderr.as_str()), (Some(2), ""), "said once");
}

/// Started by another MPI's mpirun each process finds itself alone.
#[test]
#[cfg(feature = "mpi")]
fn processes_that_do_not_find_each_other_do_not_train_alone() {
    let mpich = [("PMI_RANK", "0"), ("PMI_SIZE", "4"), ("PMI_FD", "9")];
    under(&mpich, "train --steps 1").refused(&["4 processes", "finds 1", "--mpi=pmix"]);
}

#[test]
fn mpi_is_not_there_without_a_launcher() {
    under(&[], "train --transport mpi").refused(&["--transport mpi", "mpirun -np 4 thinwire"]);
    under(&[], "train --transport pigeon").refused(&["--transport", "pigeon"]);
}

#[test]
fn a_mistyped_flag_is_answered_once() {
    let other = under(&[("OMPI_COMM_WORLD_RANK", "3")], "train --setps 3");
    assert_eq!((other.code, other.stderr.as_str()), (Some(2), ""));
    under(&[("OMPI_COMM_WORLD_RANK", "0")], "train --setps 3").refused(&["--setps", "--steps"]);
}
