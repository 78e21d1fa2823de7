//! Takes the steps that other workers took, from their gradients, with MPI processes: mpirun -np 4 replay DIR LR
//!
//! DIR has `config.json`, the parameters to start from as `start`, and for each rank its gradients, one step after the other, as
//! `gradients-RANK`: plain little-endian f32. Where each rank ends goes to `end-RANK`. The tests of the Python package hold the
//! three transports to the same bits with it.

use std::path::Path;
use std::time::Duration;
use thinwire::mpi::World;
use thinwire::{Config, Worker};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn read(path: &Path) -> Result<Vec<f32>> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let (values, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty(), "{}: not a whole number of values", path.display());
    Ok(values.iter().map(|value| f32::from_le_bytes(*value)).collect())
}

fn replay(world: &World, dir: &Path, lr: f32) -> Result<()> {
    let config = Config::from_json(&std::fs::read_to_string(dir.join("config.json"))?)?;
    let mut params = read(&dir.join("start"))?;
    let gradients = read(&dir.join(format!("gradients-{}", world.rank())))?;
    let mut worker = Worker::new(&config, &params, Box::new(world.group(Duration::from_secs(60))?))?;
    for gradient in gradients.chunks(params.len()) {
        worker.step(&mut params, gradient, lr)?;
    }
    let end = params.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    Ok(std::fs::write(dir.join(format!("end-{}", world.rank())), end)?)
}

fn main() -> Result<()> {
    let arguments = std::env::args().skip(1).collect::<Vec<_>>();
    let [dir, lr] = &arguments[..] else { return Err("usage: mpirun -np N replay DIR LR".into()) };
    let world = World::start()?;
    replay(&world, Path::new(dir), lr.parse()?)?;
    world.end();
    Ok(())
}
