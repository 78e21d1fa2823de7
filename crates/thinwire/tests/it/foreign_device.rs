//! A run whose vectors are on a device is the run on the host, bit for bit; what a device lacks is refused by its name.
//!
//! The device is [`Foreign`]: its own memory, its own walks. So this shows that nothing but names, scalars, payloads and single numbers
//! crosses the seam.

use crate::common::device::{Foreign, PASSES};
use crate::common::runs::{
    self, LEN, PLACES, Replica, STEPS, TOPOLOGIES, changed, config, gradient, scratch, together, together_on,
};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use thinwire::inside::state::{Entry, Kind};
use thinwire::options::Precision;
use thinwire::threads::Thread;
use thinwire::{Collective, Config, Error, Name, Result, Solo, Worker};

/// A worker on a device of its own.
struct Resident {
    worker: Worker,
    device: Foreign,
}

impl Resident {
    fn new(config: &Config, group: impl Collective + 'static) -> Result<Resident> {
        let device = Foreign::new(&runs::start(LEN));
        let worker = Worker::on_device(config, Box::new(device.clone()), Box::new(group))?;
        Ok(Resident { worker, device })
    }

    fn resume(config: &Config, dir: &Path, group: impl Collective + 'static) -> Result<Resident> {
        let device = Foreign::new(&[f32::NAN; LEN]);
        let worker = Worker::resume_on_device(config, dir, Box::new(device.clone()), Box::new(group))?;
        Ok(Resident { worker, device })
    }

    /// As [`Replica::step_with`], with a gradient that is put on the device.
    fn step_with(&mut self, change: impl FnOnce(&mut [f32])) -> Result<()> {
        let (step, mut seen) = (self.worker.steps(), vec![0.0; LEN]);
        gradient(&self.device.params(), self.worker.rank(), step, &mut seen);
        change(&mut seen);
        self.device.set_gradient(&seen);
        let lr = self.worker.config().learning_rate.as_ref().map_or(0.05, |schedule| schedule.at(step));
        self.worker.step(&mut [], &[], lr).map(|_| ())
    }

    fn train(&mut self, until: u64) -> Result<()> {
        while self.worker.steps() < until {
            self.step_with(|_| {})?;
        }
        Ok(())
    }

    /// Everything that makes the next step what it is, as [`Replica::bits`] has it.
    fn bits(&mut self) -> Result<runs::Bits> {
        let params = self.device.params();
        Ok(runs::Bits::of(&params, &self.worker.state()?))
    }
}

/// Every case whose passes the device has, which are those of the engine's own optimizers, in both topologies; some with clipping.
fn cases() -> impl Iterator<Item = (String, Config)> {
    let has_all = |words: &String| {
        let algorithm = config(words).decide().unwrap().algorithm;
        algorithm.parts() == 1
            && algorithm.passes().iter().all(|pass| PASSES.contains(pass))
            && remembers_all(&config(words))
    };
    runs::cases()
        .into_iter()
        .filter(has_all)
        .flat_map(|words| {
            TOPOLOGIES.into_iter().flat_map(move |topology| {
                ["", "; clip = 0.4"].map(|clip| format!("{words}; topology = '{topology}'{clip}"))
            })
        })
        .map(|words| (words.clone(), config(&words)))
}

/// Whether residuals are as a device keeps them.
fn remembers_all(config: &Config) -> bool {
    let config = config.resolved().unwrap();
    let all = |kappa: Option<f64>| kappa.is_none_or(|kappa| kappa == 0.0 || kappa == 1.0);
    let all = all(config.feedback_up) && all(config.feedback_down);
    all && config.residual != Some(Precision::I8) && config.weighted != Some(true)
}

#[test]
fn what_no_device_has_is_refused_by_name() {
    for (options, what) in [
        ("codec = 'sign'; feedback = 0.5", "`feedback` of 0.5"),
        ("codec = 'sign'; feedback_down = 0.25", "`feedback` of 0.25"),
        ("codec = 'sign'; residual = 'i8'", "residuals of `i8`"),
        ("weighted = true", "weighted means"),
        ("sync_every = 6; parts = 2", "means of `parts`"),
    ] {
        let name = if options.contains("parts") { "local-adam" } else { "efficient-adam" };
        let config = config(&format!("name = '{name}'; {options}"));
        let refused = Resident::new(&config, Solo).err().expect("it has none").to_string();
        assert!(refused.contains(what), "{refused}");
    }
}

/// Runs a case on the host and on devices, and compares the state of every worker.
fn compare(
    context: &str,
    hosts: &[usize],
    on_host: impl Fn(Thread) -> Result<runs::Bits> + Sync,
    on_device: impl Fn(Thread) -> Result<runs::Bits> + Sync,
) {
    let (host, device) = (together_on(hosts, on_host), together_on(hosts, on_device));
    for (rank, (host, device)) in host.iter().zip(&device).enumerate() {
        host.assert_same(device, (context, hosts, rank));
    }
}

#[test]
fn a_run_on_devices_is_the_run_on_the_host() {
    let called = Mutex::new(BTreeSet::new());
    for (case, config) in cases() {
        for hosts in [&[0][..], &[0, 0], &[0, 0, 0], PLACES[0], PLACES[1]] {
            let on_host = |group| {
                let mut replica = Replica::new(&config, LEN, group)?;
                replica.train(STEPS)?;
                replica.sync()?;
                Ok(replica.bits())
            };
            let on_device = |group| {
                let mut resident = Resident::new(&config, group)?;
                resident.train(STEPS)?;
                resident.worker.sync(&mut [])?;
                let names = resident.device.memory().called.clone();
                let listed = config.decide()?.algorithm.passes();
                let stranger = names.iter().find(|name| **name != "keep" && !listed.contains(name));
                assert_eq!(stranger, None, "{case}: not in the optimizer's list of passes");
                called.lock().unwrap().extend(names);
                resident.bits()
            };
            compare(&case, hosts, on_host, on_device);
        }
    }
    let of_regrouping = ["fold_in", "return"];
    let all_but_regrouping = PASSES.into_iter().filter(|name| !of_regrouping.contains(name)).collect::<BTreeSet<_>>();
    assert_eq!(called.into_inner().unwrap(), all_but_regrouping, "every pass was compared");
}

/// The device holds every vector: after some steps nothing of a mirror is left to be written back.
#[test]
fn looking_at_the_state_changes_nothing() {
    for (case, config) in cases() {
        let ends = |looks: bool| {
            together(2, |group| {
                let mut resident = Resident::new(&config, group)?;
                for _ in 0..STEPS {
                    resident.step_with(|_| {})?;
                    if looks {
                        resident.bits()?;
                    }
                }
                resident.bits()
            })
        };
        ends(true).iter().zip(ends(false)).for_each(|(one, other)| one.assert_same(&other, &case));
    }
}

#[test]
fn gradients_that_are_not_finite_are_left_out_alike() {
    let spoil = |rank: usize, step: u64| match (rank as u64 + step) % 5 {
        0 => |g: &mut [f32]| g[7] = f32::NAN,
        2 => |g: &mut [f32]| g[LEN - 1] = f32::INFINITY,
        _ => |_: &mut [f32]| {},
    };
    for (case, config) in cases() {
        let config = changed(&config, "non_finite", json!("skip"));
        for workers in 1..=3 {
            let on_host = |group: Thread| {
                let (rank, mut replica) = (group.rank(), Replica::new(&config, LEN, group)?);
                for step in 0..STEPS {
                    replica.step_with(spoil(rank, step))?;
                }
                Ok(replica.bits())
            };
            let on_device = |group: Thread| {
                let (rank, mut resident) = (group.rank(), Resident::new(&config, group)?);
                for step in 0..STEPS {
                    resident.step_with(spoil(rank, step))?;
                }
                resident.bits()
            };
            compare(&case, &vec![0; workers], on_host, on_device);
        }
    }
}

#[test]
fn outliers_are_clipped_and_left_out_alike() {
    let spoil = |rank: usize, step: u64| match (rank as u64 + step) % 19 {
        18 => |g: &mut [f32]| g.iter_mut().for_each(|g| *g *= 1e6),
        _ => |_: &mut [f32]| {},
    };
    for ((case, config), rule) in cases().flat_map(|case| ["clip", "skip"].map(|rule| (case.clone(), rule))) {
        let config = changed(&config, "outlier", json!(rule));
        let on_host = |group: Thread| {
            let (rank, mut replica) = (group.rank(), Replica::new(&config, LEN, group)?);
            for step in 0..STEPS {
                replica.step_with(spoil(rank, step))?;
            }
            assert!(replica.worker.traffic().outliers > 0, "{case}");
            Ok(replica.bits())
        };
        let on_device = |group: Thread| {
            let (rank, mut resident) = (group.rank(), Resident::new(&config, group)?);
            for step in 0..STEPS {
                resident.step_with(spoil(rank, step))?;
            }
            resident.bits()
        };
        compare(&format!("{case}, {rule}"), &[0, 0], on_host, on_device);
    }
}

/// Messages are the host's, so a group may have workers of both kinds.
#[test]
fn workers_on_devices_and_on_hosts_train_together() {
    for (case, config) in cases() {
        let on_host = |group| {
            let mut replica = Replica::new(&config, LEN, group)?;
            replica.train(STEPS)?;
            Ok(replica.bits())
        };
        let mixed = |group: Thread| {
            if group.rank() == 1 {
                return on_host(group);
            }
            let mut resident = Resident::new(&config, group)?;
            resident.train(STEPS)?;
            resident.bits()
        };
        compare(&case, &[0, 0, 0], on_host, mixed);
    }
}

/// A checkpoint does not say where the vectors were: it goes from a host to devices and back, with as many workers or with others.
#[test]
fn a_checkpoint_goes_on_anywhere() {
    for (case, config) in cases().filter(|(case, _)| !case.contains("clip")) {
        for at in [7, 19, 23] {
            let dir = scratch();
            let (by_host, by_device) = (dir.path().join("host"), dir.path().join("device"));
            together(3, |group| {
                let mut replica = Replica::new(&config, LEN, group)?;
                replica.train(at)?;
                replica.save(&by_host)
            });
            together(3, |group| {
                let mut resident = Resident::new(&config, group)?;
                resident.train(at)?;
                resident.worker.save(&by_device, &[])
            });
            for workers in [3, 2] {
                let on_host = |dir: &Path, group| {
                    let mut replica = Replica::resume(&config, dir, LEN, group)?;
                    replica.train(STEPS)?;
                    Ok(replica.bits())
                };
                let on_device = |dir: &Path, group| {
                    let mut resident = Resident::resume(&config, dir, group)?;
                    resident.train(STEPS)?;
                    resident.bits()
                };
                let (context, hosts) = (format!("{case}, saved at {at}"), vec![0; workers]);
                compare(&context, &hosts, |group| on_host(&by_host, group), |group| on_device(&by_host, group));
                compare(&context, &hosts, |group| on_host(&by_host, group), |group| on_device(&by_device, group));
                compare(&context, &hosts, |group| on_host(&by_host, group), |group| on_host(&by_device, group));
            }
        }
    }
}

/// The error of a worker that could not be made.
fn refusal(config: &Config, prepare: impl FnOnce(&Foreign)) -> String {
    let device = Foreign::new(&runs::start(LEN));
    prepare(&device);
    match Worker::on_device(config, Box::new(device), Box::new(Solo)) {
        Ok(_) => panic!("a device that lacks something was accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_pass_that_the_device_lacks_is_named_before_the_first_step() {
    for name in [Name::ADAM, Name::ONE_BIT_ADAM, Name::ZERO_ONE_ADAM, Name::EFFICIENT_ADAM, Name::LOCAL_ADAM] {
        let config = Config::new(name);
        for pass in config.decide().unwrap().algorithm.passes() {
            let said = refusal(&config, |device| device.memory().lacks_pass = Some(pass));
            assert_eq!(said, format!("device foreign: it has no pass `{pass}`"), "{name}");
        }
    }
    let clipped = Config { clip: Some(1.0), ..Config::new(Name::ADAM) };
    let said = refusal(&clipped, |device| device.memory().lacks_pass = Some("keep"));
    assert_eq!(said, "device foreign: it has no pass `keep`");
    let said = refusal(&config("name = 'toy-adam'"), |_| {});
    assert_eq!(said, "device foreign: it has no pass `toy_clipped`");
    let said = refusal(&config("name = 'lion'"), |_| {});
    assert_eq!(said, "device foreign: it has no pass `lion_direction`");
    let said = refusal(&config("name = 'birder'"), |_| {});
    assert_eq!(said, "device foreign: it has no pass `birder_ratio`");
    let said = refusal(&config("name = 'one-bit-lamb'"), |_| {});
    assert_eq!(said, "device foreign: it has no pass `lamb_warm_up`");
    // Who has the loops needs the coins too.
    let (passes, _) = config("name = 'birder'").decide().unwrap().needs(true);
    assert!(passes.contains(&"coin"), "{passes:?}");
    let (passes, _) = config("name = 'lion'").decide().unwrap().needs(true);
    assert!(passes.contains(&"turns"), "{passes:?}");
}

#[test]
fn a_codec_that_the_device_lacks_is_named_before_the_first_step() {
    for (words, codec) in [
        ("name = 'adam'", "f32"),
        ("name = 'zero-one-adam'", "bf16"),
        ("name = 'zero-one-adam'", "sign"),
        ("name = 'one-bit-adam'; codec_down = 'uniform4'", "uniform4"),
        ("name = 'efficient-adam'; codec_up = 'topk0.2'", "topk0.2"),
    ] {
        let said = refusal(&config(words), |device| device.memory().lacks_codec = Some(codec.parse().unwrap()));
        assert_eq!(said, format!("device foreign: it has no codec `{codec}`"), "{words}");
    }
}

/// A device that fails in a step ends the run on all workers, with its own words.
#[test]
fn a_device_that_fails_stops_the_run() {
    let config = config("name = 'one-bit-adam'; warmup = 3");
    for pass in ["adam", "blend", "descend"] {
        let errors = runs::failing(2, |group| {
            let mut resident = Resident::new(&config, group)?;
            if resident.worker.rank() == 1 {
                resident.device.memory().breaks_at = Some(pass);
            }
            resident.train(STEPS)
        });
        let words = format!("device foreign: `{pass}` was interrupted");
        assert!(matches!(&errors[1], Error::Device { .. }) && errors[1].to_string() == words, "{}", errors[1]);
        assert!(errors[0].to_string().contains(&words), "{}", errors[0]);
    }
}

/// A device whose memory is full fails before its worker has met anyone; the others hear of it all the same.
#[test]
fn a_device_that_fails_at_the_start_is_named_to_the_others() {
    let config = config("name = 'one-bit-adam'; warmup = 3");
    for call in ["reserve", "digest"] {
        let errors = runs::failing(2, |group| {
            let device = Foreign::new(&runs::start(LEN));
            device.memory().breaks_at = (group.rank() == 1).then_some(call);
            Worker::on_device(&config, Box::new(device), Box::new(group)).map(drop)
        });
        let words = format!("device foreign: `{call}` was interrupted");
        assert_eq!(errors[1].to_string(), words);
        assert!(errors[0].to_string().contains(&words), "{}", errors[0]);
    }
}

/// Looking at the state, or saving it, copies each value from the device once and none back; asking what there is copies none.
#[test]
fn what_is_only_read_is_not_written_back() {
    let config = config("name = 'zero-one-adam'; sync_every = 3; freeze = 4; variance_gap = 2");
    let mut resident = Resident::new(&config, Solo).unwrap();
    resident.train(6).unwrap();
    let device = resident.device.clone();
    let copied = || std::mem::take(&mut device.memory().copied);
    copied();
    let fields = resident.worker.fields();
    assert_eq!(copied(), [0, 0]);
    let lengths = |entries: &[Entry<'_>]| entries.iter().map(Entry::field).collect::<Vec<_>>();
    let seen = resident.worker.look(|entries| Ok(lengths(entries))).unwrap();
    assert_eq!(seen, fields);
    let values = fields.iter().filter(|field| field.kind == Kind::Floats).map(|field| field.len).sum();
    assert_eq!(copied(), [values, 0]);
    resident.worker.save(scratch().path(), &[]).unwrap();
    resident.train(8).unwrap();
    assert_eq!(copied(), [values + LEN, 0], "the parameters too");
}

/// What is on the device cannot be given as well.
#[test]
fn parameters_and_gradients_beside_a_device_are_refused() {
    let mut resident = Resident::new(&Config::new(Name::ADAM), Solo).unwrap();
    let (mut x, g) = (vec![0.0; LEN], vec![0.0; LEN]);
    let said = resident.worker.step(&mut x, &g, 0.1).unwrap_err().to_string();
    assert_eq!(said, format!("the parameters: expected 0 values, found {LEN}"));
    let said = resident.worker.step(&mut [], &g, 0.1).unwrap_err().to_string();
    assert_eq!(said, format!("the gradient: expected 0 values, found {LEN}"));
}
