//! What 0/1 Adam sends where its paper trained BERT-Large: cargo run -p thinwire --example bert_large

use thinwire::{Config, Plan, Result};

const PARAMETERS: usize = 340_000_000;
const WORKERS: usize = 128;
const STEPS: u64 = 152_000;

fn main() -> Result<()> {
    let zero_one = "name = 'zero-one-adam'\nexact_codec = 'bf16'\nvar_freeze_step = 12500\nlocal_step_scaler = 32678\n\
                    local_step_clipper = 16";
    let methods = [
        ("Adam, f32", "name = 'adam'"),
        ("Adam, bf16", "name = 'adam'\nexact_codec = 'bf16'"),
        ("1-bit Adam", "name = 'one-bit-adam'\nexact_codec = 'bf16'\nwarmup = 23000"),
        ("0/1 Adam", zero_one),
    ];
    println!(
        "{:<12} {:>8} {:>8} {:>8} {:>12} {:>16}",
        "", "exact", "coarse", "skipped", "GB a worker", "bits/param/step"
    );
    for (label, words) in methods {
        let plan = Plan::new(&Config::from_toml(words)?, PARAMETERS, WORKERS, STEPS)?;
        let (rounds, gigabytes) = (plan.rounds, plan.bytes_sent(0) as f64 / 1e9);
        let bits = plan.bits_per_param_per_step();
        println!(
            "{label:<12} {:>8} {:>8} {:>8} {gigabytes:>12.0} {bits:>16.2}",
            rounds.exact, rounds.coarse, rounds.skipped
        );
    }
    let plan = Plan::new(&Config::from_toml(zero_one)?, PARAMETERS, WORKERS, STEPS)?;
    assert_eq!((plan.rounds.exact, plan.rounds.coarse), (153, 74_168));
    Ok(())
}
