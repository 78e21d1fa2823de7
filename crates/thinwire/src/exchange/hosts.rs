//! Which workers share a host, and who speaks for a host.
//!
//! A mean has two levels. Inside a host workers add up what they have, exactly; between hosts the sums are coded. So of all
//! that goes to owner r, and of all that comes from it, one worker of each host is the *relay*: on r's own host r itself, on
//! every other host one of its workers. The owners of other hosts are dealt out to a host's workers in turn, so that all carry
//! the same load however ranks are spread over hosts.
//!
//! The flat form is the case in which every worker has a host to itself: then everyone is its own relay.

use std::collections::HashMap;

/// The hosts of a group, numbered by the lowest rank on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// The host of each rank.
    of: Vec<usize>,
    /// The workers of each host, in rank order.
    members: Vec<Vec<usize>>,
    /// By host and owner; empty for a host of one worker, which speaks for it to all.
    relays: Vec<Vec<usize>>,
}

impl Hosts {
    /// `named` has a number for the host of every rank: any numbers, equal for workers that share one.
    pub fn new(named: &[usize]) -> Hosts {
        let mut numbers = HashMap::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        let place = |(rank, name): (usize, &usize)| {
            let host = *numbers.entry(*name).or_insert(members.len());
            if host == members.len() {
                members.push(Vec::new());
            }
            members[host].push(rank);
            host
        };
        let of = named.iter().enumerate().map(place).collect::<Vec<_>>();
        let relays = members.iter().enumerate().map(|(host, members)| relays(host, &of, members)).collect();
        Hosts { of, members, relays }
    }

    /// Every worker on a host of its own: the flat form.
    pub fn apart(workers: usize) -> Hosts {
        Hosts::new(&(0..workers).collect::<Vec<_>>())
    }

    /// How many hosts there are.
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// The host of worker `rank`.
    pub fn of(&self, rank: usize) -> usize {
        self.of[rank]
    }

    /// The host of every rank.
    pub fn of_all(&self) -> &[usize] {
        &self.of
    }

    /// The workers of `host`, in rank order.
    pub fn members(&self, host: usize) -> &[usize] {
        &self.members[host]
    }

    /// The others on worker `rank`'s host.
    pub fn mates(&self, rank: usize) -> impl Iterator<Item = usize> + '_ {
        self.members[self.of[rank]].iter().copied().filter(move |other| *other != rank)
    }

    /// Who on `host` hears from `owner`, and speaks to it.
    pub fn relay(&self, host: usize, owner: usize) -> usize {
        match self.members[host][..] {
            [alone] => alone,
            _ => self.relays[host][owner],
        }
    }

    /// Whether every worker has a host to itself.
    pub fn is_flat(&self) -> bool {
        self.count() == self.of.len()
    }

    /// The most owners that one worker is the relay of for others on its host.
    pub fn most_relayed(&self) -> usize {
        let shared = (0..self.count()).filter(|host| self.members[*host].len() > 1);
        let of = |host: usize, rank: usize| self.relays[host].iter().filter(|relay| **relay == rank).count();
        let most = shared.map(|host| self.members[host].iter().map(|rank| of(host, *rank)).max().unwrap_or(0)).max();
        most.unwrap_or(0)
    }
}

/// Who on `host` is the relay of each owner, if there is a choice.
fn relays(host: usize, of: &[usize], members: &[usize]) -> Vec<usize> {
    if members.len() == 1 {
        return Vec::new();
    }
    let mut turn = members.iter().cycle();
    let relay = |owner: usize| if of[owner] == host { owner } else { *turn.next().expect("a host has workers") };
    (0..of.len()).map(relay).collect()
}

#[cfg(test)]
mod tests {
    use super::Hosts;

    #[test]
    fn hosts_are_numbered_by_their_lowest_rank() {
        let hosts = Hosts::new(&[7, 2, 7, 9, 2]);
        assert_eq!(hosts.of_all(), [0, 1, 0, 2, 1]);
        assert_eq!((hosts.members(0), hosts.members(1), hosts.members(2)), (&[0, 2][..], &[1, 4][..], &[3][..]));
        assert_eq!(hosts.mates(4).collect::<Vec<_>>(), [1]);
        assert!(!hosts.is_flat() && Hosts::new(&[5, 3, 4]).is_flat());
        assert_eq!(Hosts::new(&[5, 3, 4]), Hosts::apart(3));
    }

    /// By turns, and not by rank mod size: with ranks dealt out over two hosts that would load every other worker alone.
    #[test]
    fn relays_share_the_load_however_ranks_are_placed() {
        for named in [&[0, 0, 1, 1, 2, 2][..], &[0, 1, 0, 1, 0, 1], &[0, 0, 0, 1, 2], &[0, 1, 1, 1, 1, 2, 2], &[0; 5]] {
            let hosts = Hosts::new(named);
            for host in 0..hosts.count() {
                let load = |rank: &usize| (0..named.len()).filter(|owner| hosts.relay(host, *owner) == *rank).count();
                let loads = hosts.members(host).iter().map(load).collect::<Vec<_>>();
                assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1, "{named:?}: {loads:?}");
                assert!(hosts.members(host).iter().all(|owner| hosts.relay(host, *owner) == *owner), "{named:?}");
            }
        }
    }

    #[test]
    fn nobody_relays_for_others_where_hosts_have_one_worker() {
        assert_eq!(Hosts::apart(4).most_relayed(), 0);
        assert_eq!(Hosts::new(&[0, 0, 1]).most_relayed(), 2); // itself, and worker 2
    }
}
