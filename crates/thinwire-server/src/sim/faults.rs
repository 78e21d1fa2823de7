//! What goes wrong in the world, as often as the setup says.

use super::life::Go;
use super::world::{Doing, Event, MILLI, World};
use crate::disk::memory::Fault;

impl World {
    pub fn perhaps_a_fault(&mut self) {
        if self.faults_left == 0 || !self.chance.one_in(self.setup.every) {
            return;
        }
        self.faults_left -= 1;
        self.outcome.faults += 1;
        let which = self.chance.below(10);
        self.say_aloud(|| format!("fault {which}"));
        match which {
            0..=2 => self.disk_fault(40),
            3 => {
                if self.server.is_some() {
                    self.die();
                }
            }
            4 => self.stop(),
            5 => self.someone(|world, life| world.cut(life)),
            6 | 7 => self.someone(|world, life| world.kill(life)),
            8 => self.someone(|world, life| world.interrupt(life)),
            _ => self.someone(|world, life| world.again(life)),
        }
        if self.faults_left == 0 {
            self.disk.no_fault();
        }
    }

    pub fn disk_fault(&mut self, within: u64) {
        let fault = self.chance.pick(&[Fault::Crash, Fault::Crash, Fault::Full, Fault::Broken]);
        let calls = 1 + self.chance.below(within);
        self.say_aloud(|| format!("the disk will do this in {calls} calls: {fault:?}"));
        self.disk.fault(calls, fault);
    }

    /// Does this to a life that goes on, if there is one.
    fn someone(&mut self, what: impl FnOnce(&mut World, usize)) {
        let here = (0..self.talks.len()).filter(|life| self.talks[*life].doing != Doing::Over).collect::<Vec<_>>();
        if !here.is_empty() {
            let life = self.chance.pick(&here);
            what(self, life);
        }
    }

    fn kill(&mut self, life: usize) {
        self.talks[life].life.kill();
        self.talks[life].asked += 1;
        self.talks[life].doing = Doing::Over;
        self.close(life);
        let birth = &self.talks[life].life.birth;
        let (name, worker) = (birth.name.clone(), birth.worker);
        self.come_back(life, name, worker);
    }

    /// Another life of the same name begins, and this one goes on.
    fn again(&mut self, life: usize) {
        let birth = &self.talks[life].life.birth;
        let (name, worker) = (birth.name.clone(), birth.worker);
        let pause = self.chance.below(150 * MILLI);
        self.at(pause, Event::Birth(name, worker));
    }

    /// The program stops waiting for a round.
    fn interrupt(&mut self, life: usize) {
        if self.talks[life].doing != Doing::News {
            return;
        }
        {
            let mut state = self.talks[life].life.shared.state();
            (state.interrupted, state.outgoing) = (true, None);
        }
        self.answer(life, Go::On);
    }
}
