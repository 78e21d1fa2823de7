//! A gradient in pieces gives the bits of the whole: every optimizer, alone and together, clipped or not, on several threads.

use crate::common::runs;

use runs::{Bits, LEN, Replica, STEPS, cases, config, failing, together};
use thinwire::{Config, Error, Gradient, Pieces};

/// Where the vector is cut: into nothing, single values, less than a block, and more than a tile where there is so much.
fn ends(len: usize) -> [usize; 8] {
    [0, 1, 1, len / 7, len / 3, len / 3 + 5, len - 1, len]
}

/// The piece that every gradient here has no values for.
const MISSING: usize = 4;

fn pieces(gradient: &[f32]) -> Pieces<'_> {
    let mut pieces = Pieces::default();
    let mut from = 0;
    for (i, to) in ends(gradient.len()).into_iter().enumerate() {
        match i {
            MISSING => pieces.push_zeros(to - from),
            _ => pieces.push(&gradient[from..to]),
        }
        from = to;
    }
    pieces
}

fn trained(config: &Config, len: usize, workers: usize, in_pieces: bool) -> Vec<Bits> {
    together(workers, |group| {
        let mut replica = Replica::new(config, len, group)?;
        let mut gradient = vec![0.0; len];
        for step in 0..STEPS {
            runs::gradient(&replica.x, replica.worker.rank(), step, &mut gradient);
            gradient[ends(len)[MISSING - 1]..ends(len)[MISSING]].fill(0.0);
            match in_pieces {
                true => replica.worker.step_on(&mut replica.x, Gradient::Pieces(&pieces(&gradient)), 0.05, None)?,
                false => replica.worker.step(&mut replica.x, &gradient, 0.05)?,
            };
        }
        Ok(replica.bits())
    })
}

fn assert_same(these: &[Bits], those: &[Bits], config: &Config) {
    these.iter().zip(those).for_each(|(this, that)| this.assert_same(that, config));
}

#[test]
fn pieces_give_the_bits_of_the_whole() {
    for words in &cases() {
        for (workers, clip) in [(1, ""), (1, "; clip = 0.5"), (3, ""), (2, "; clip = 0.5")] {
            let config = config(&format!("{words}{clip}"));
            assert_same(&trained(&config, LEN, workers, true), &trained(&config, LEN, workers, false), &config);
        }
    }
}

#[test]
fn and_so_do_pieces_longer_than_a_tile_on_several_threads() {
    const LONG: usize = 100_001;
    for words in [
        "name = 'adam'",
        "name = 'one-bit-adam'; warmup = 5",
        "name = 'zero-one-adam'; kappa = 2; sync = 'every'; sync_every = 3",
        "name = 'efficient-adam'",
        "name = 'local-adam'; sync_every = 2",
    ] {
        let config = config(&format!("{words}; block = 512; clip = 3.0"));
        let threaded = Config { threads: Some(2), ..config.clone() };
        assert_same(&trained(&threaded, LONG, 2, true), &trained(&config, LONG, 2, false), &config);
    }
}

#[test]
fn a_vector_of_another_length_is_refused() {
    let mut pieces = Pieces::default();
    pieces.push_zeros(LEN - 1);
    let errors = failing(1, |group| {
        let mut replica = Replica::new(&config("name = 'adam'"), LEN, group)?;
        replica.worker.step_on(&mut replica.x, Gradient::Pieces(&pieces), 0.05, None)
    });
    assert!(matches!(errors[0], Error::Length { got, .. } if got == LEN - 1), "{}", errors[0]);
}

/// Alone a worker believes who has looked at the gradient; among others it looks itself, and nothing has moved.
#[test]
fn a_gradient_that_was_vouched_for_is_looked_at_for_the_others_sake() {
    let bad = [f32::NAN; LEN];
    let mut pieces = Pieces::default();
    pieces.push(&bad);
    pieces.vouch();
    let config = config("name = 'adam'");
    together(1, |group| {
        let mut replica = Replica::new(&config, LEN, group)?;
        replica.worker.step_on(&mut replica.x, Gradient::Pieces(&pieces), 0.05, None)
    });
    let errors = failing(2, |group| {
        let mut replica = Replica::new(&config, LEN, group)?;
        replica.worker.step_on(&mut replica.x, Gradient::Pieces(&pieces), 0.05, None)
    });
    assert!(errors.iter().all(|error| matches!(error, Error::NotFinite { .. })), "{errors:?}");
}
