//! Whether a run is long enough for its optimizer to gain anything.
//!
//! A variance needs a hundred exact rounds and more, whatever the length of the run. 1-bit Adam and 0/1 Adam begin to save after them, so a
//! run of a few hundred steps saves little: better said before it than found out after it.

use thinwire::{Config, Plan};

/// From this part of exact rounds on a run is short.
const MUCH: f64 = 0.2;

/// With fewer syncs than this a run of local steps is short.
const FEW: u64 = 10;

/// What to say about the length of a run as planned, if anything.
pub fn short_run(config: &Config, plan: &Plan) -> Option<String> {
    let (steps, exact) = (plan.steps, plan.rounds.exact);
    let name = config.name;
    if plan.rounds.coarse + plan.rounds.skipped == 0 && plan.load(thinwire::Round::Coarse).is_none() {
        return None; // Adam, which has only exact rounds
    }
    // Rounds of which an outer step is made: with a handful of them the common model hardly moves.
    let few = plan.rounds.skipped > 0 && exact == 0 && plan.rounds.coarse < FEW;
    if few {
        let rounds = plan.rounds.coarse;
        let s = if rounds == 1 { "" } else { "s" };
        return Some(format!(
            "a short run for {name}: {rounds} sync{s} in {steps} steps; what is evaluated between two is the model of the last one \
             (a smaller sync_every syncs more often)"
        ));
    }
    if plan.second > 0 {
        return None; // its exact rounds are of momenta
    }
    match exact as f64 / steps.max(1) as f64 {
        part if part >= 1.0 => Some(format!(
            "{steps} steps are too few for {name} to gain anything: all of its rounds are exact, as Adam's are"
        )),
        part if part >= MUCH => Some(format!(
            "a short run for {name}: {exact} of {steps} rounds are exact, since a variance takes a hundred of them and more at any length; \
             it sends {:.1} bits a parameter a step, Adam 32",
            plan.bits_per_param_per_step()
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::short_run;
    use thinwire::LearningRate;
    use thinwire::options::Decay;
    use thinwire::{Config, Name, Plan};

    fn said(name: Name, steps: u64) -> Option<String> {
        let rate = LearningRate { decay: Decay::Cosine, steps, ..LearningRate::constant(1e-3) };
        let config = Config { learning_rate: Some(rate), ..Config::new(name) };
        short_run(&config, &Plan::new(&config, 1000, 4, steps).expect("a plan"))
    }

    #[test]
    fn short_runs_are_told_of_with_their_number_of_exact_rounds() {
        for name in [Name::ONE_BIT_ADAM, Name::ZERO_ONE_ADAM] {
            assert!(said(name, 200).is_some_and(|said| said.contains("too few")), "{name}");
            assert_eq!(said(name, 5000), None, "{name}");
        }
        let (one_bit, zero_one) = (said(Name::ONE_BIT_ADAM, 400), said(Name::ZERO_ONE_ADAM, 400));
        assert!(one_bit.is_some_and(|said| said.contains("100 of 400 rounds are exact")));
        assert!(zero_one.is_some_and(|said| said.contains("130 of 400 rounds are exact")));
        for name in [Name::ADAM, Name::EFFICIENT_ADAM] {
            assert_eq!(said(name, 80), None, "{name}");
        }
    }
}
