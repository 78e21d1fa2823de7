//! Room for connections that have not been let in yet. There is always a place for the next one: somebody who opens many and says
//! nothing loses the oldest of them, and keeps nobody else out, neither workers nor whoever asks for `/healthz`.
//!
//! One address has at most [`PER_ADDRESS`] such places, all together [`STRANGERS`]. A connection that is let in needs no place here
//! any more.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Notify;

/// Connections that have not been let in yet.
pub const STRANGERS: usize = 64;

/// Of one address.
pub const PER_ADDRESS: usize = 16;

struct Stranger {
    number: u64,
    address: IpAddr,
    /// Told when its place is given to another.
    out: Arc<Notify>,
}

#[derive(Default)]
pub struct Places {
    /// The oldest first.
    strangers: Vec<Stranger>,
    last: u64,
}

impl Places {
    /// A place for one more; if there is none, the oldest of whoever has most loses its own.
    pub fn enter(&mut self, address: IpAddr) -> (u64, Arc<Notify>) {
        let of = |address: &IpAddr| self.strangers.iter().filter(|other| other.address == *address).count();
        let crowded = match (of(&address) >= PER_ADDRESS, self.strangers.len() >= STRANGERS) {
            (true, _) => Some(address),
            (false, true) => self.most(),
            (false, false) => None,
        };
        if let Some(at) = self.strangers.iter().position(|other| Some(other.address) == crowded) {
            self.strangers.remove(at).out.notify_one();
        }
        self.last += 1;
        let out = Arc::<Notify>::default();
        self.strangers.push(Stranger { number: self.last, address, out: Arc::clone(&out) });
        (self.last, out)
    }

    /// The address with the most places; of several the one that came first.
    fn most(&self) -> Option<IpAddr> {
        let mut counts = HashMap::<IpAddr, usize>::new();
        self.strangers.iter().for_each(|other| *counts.entry(other.address).or_default() += 1);
        self.strangers.iter().rev().map(|other| other.address).max_by_key(|address| counts[address])
    }

    /// It was let in, or is gone.
    pub fn leave(&mut self, number: u64) {
        self.strangers.retain(|other| other.number != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u8) -> IpAddr {
        [192, 0, 2, number].into()
    }

    fn here(places: &Places, number: u8) -> Vec<u64> {
        places.strangers.iter().filter(|other| other.address == address(number)).map(|other| other.number).collect()
    }

    #[tokio::test]
    async fn whoever_floods_loses_its_own() {
        let mut places = Places::default();
        let (first, out) = places.enter(address(1));
        let (worker, _) = places.enter(address(9));
        for _ in 0..100 {
            places.enter(address(1));
        }
        assert_eq!(here(&places, 1).len(), PER_ADDRESS);
        assert!(!here(&places, 1).contains(&first), "the oldest is out");
        out.notified().await;
        assert_eq!(here(&places, 9), [worker]);
    }

    #[test]
    fn many_addresses_leave_a_place_for_the_next() {
        let mut places = Places::default();
        for number in 10..20 {
            (0..PER_ADDRESS).for_each(|_| _ = places.enter(address(number)));
        }
        assert_eq!(places.strangers.len(), STRANGERS);
        let (worker, _) = places.enter(address(1));
        for number in 10..20 {
            places.enter(address(number));
        }
        assert_eq!(here(&places, 1), [worker], "who has many is asked first");
        assert_eq!(places.strangers.len(), STRANGERS);
        places.leave(worker);
        assert!(here(&places, 1).is_empty());
    }
}
