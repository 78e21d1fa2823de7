//! The report in a sentence, from its data.

use crate::baseline::Baseline;
use crate::load::Run;
use crate::numbers::{bytes, count, loss, significant};
use crate::style::Look;
use crate::totals::Totals;

/// A loss at most this much above Adam's, in parts of it, is as good.
const AS_GOOD: f64 = 0.02;

pub fn headline(runs: &[Run], looks: &[Look]) -> String {
    let compared = runs.iter().zip(looks).filter_map(|(run, look)| Compared::of(run, look, runs));
    // The fewest bytes among those that learnt as well as Adam, if there are such.
    let key = |run: &Compared| (!run.is_as_good(), run.sent);
    let best = compared.min_by(|a, b| key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal));
    match best {
        Some(best) => best.sentence(),
        None => runs.iter().zip(looks).map(|(run, look)| alone(run, look)).next().unwrap_or_default(),
    }
}

struct Compared<'a> {
    name: &'a str,
    loss: f64,
    sent: f64,
    times_fewer: f64,
    adam: Baseline,
}

impl<'a> Compared<'a> {
    fn of(run: &Run, look: &'a Look, runs: &[Run]) -> Option<Self> {
        let adam = Baseline::of(run, runs)?;
        let totals = Totals::of(run);
        let times_fewer = adam.times_fewer(totals.bytes)?;
        Some(Compared { name: &look.name, loss: totals.val_loss, sent: totals.bytes, times_fewer, adam })
    }

    fn is_as_good(&self) -> bool {
        match self.adam.loss {
            Some(adam) => self.loss <= adam + AS_GOOD * adam.abs() || (self.loss.is_finite() && !adam.is_finite()),
            None => self.loss.is_finite(),
        }
    }

    fn sentence(&self) -> String {
        let name = self.name;
        let reference = match self.adam.loss {
            Some(_) => "Adam".to_string(),
            None => format!("the {} that Adam would have sent", bytes(self.adam.bytes)),
        };
        let sent = match self.times_fewer {
            times if times >= 1.05 => format!("sent {} times fewer bytes than {reference}", significant(times, 3)),
            times if times > 0.95 => format!("sent as many bytes as {reference}"),
            times => format!("sent {} times more bytes than {reference}", significant(1.0 / times, 3)),
        };
        let adam = self.adam.loss.map(|adam| format!(" (Adam:\u{a0}{})", loss(adam))).unwrap_or_default();
        match self.is_as_good() {
            true => format!("{name} reached a held-out loss of {}{adam} and {sent}.", loss(self.loss)),
            false if self.loss.is_finite() => {
                format!("{name} {sent}, but ended at a held-out loss of {}{adam}.", loss(self.loss))
            }
            false => format!("{name} {sent}, but diverged."),
        }
    }
}

/// Of a run that there is nothing to compare with.
fn alone(run: &Run, look: &Look) -> String {
    let Totals { steps, val_loss, train_loss, bytes: sent, .. } = Totals::of(run);
    let steps = count(steps);
    let where_it_stands = match (run.evals.is_empty(), train_loss.is_finite()) {
        (false, _) if val_loss.is_finite() => format!("a held-out loss of {}", loss(val_loss)),
        (_, true) => format!("a training loss of {}", loss(train_loss)),
        _ if run.steps.is_empty() => return format!("{} has not taken a step yet.", look.name),
        _ => return format!("{} diverged within {steps} steps.", look.name),
    };
    let sent = if sent > 0.0 { format!("a worker sent {}", bytes(sent)) } else { "nothing was sent".to_string() };
    let verb = if run.summary.is_some() { "reached" } else { "is at" };
    format!("{} {verb} {where_it_stands} after {steps} steps; {sent}.", look.name)
}

#[cfg(test)]
mod tests {
    use super::super::style::looks;
    use super::*;
    use crate::fake::run;

    fn say(runs: &[Run]) -> String {
        headline(runs, &looks(runs))
    }

    #[test]
    fn the_sentence_follows_the_data() {
        let (adam, mut zero_one) = (run("adam", 200), run("zero-one-adam", 200));
        let good = say(&[adam.clone(), zero_one.clone()]);
        assert!(
            good.starts_with("0/1 Adam reached a held-out loss of") && good.contains("times fewer bytes than Adam."),
            "{good}"
        );
        let without = say(std::slice::from_ref(&zero_one));
        assert!(without.contains("that Adam would have sent"), "{without}");
        let single = say(std::slice::from_ref(&adam));
        assert!(single.starts_with("Adam reached") && single.contains("after 200 steps; a worker sent"), "{single}");

        zero_one.summary.as_mut().unwrap().val_loss = 9.0;
        assert!(say(&[adam.clone(), zero_one.clone()]).contains("but ended at a held-out loss of 9.000"));
        zero_one.summary.as_mut().unwrap().val_loss = f64::NAN;
        assert!(say(&[adam, zero_one.clone()]).contains("but diverged"));
        zero_one.summary = None;
        assert!(say(&[zero_one]).starts_with("0/1 Adam is at a"));
        assert_eq!(say(&[]), "");
    }
}
