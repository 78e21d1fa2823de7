//! Transports: how bytes get from one worker to another.
//!
//! Everything the engine needs of a network is in [`Collective`]: messages to a worker, messages from a worker, in order.
//! All-to-all, all-gather, gather and broadcast are loops over these two in [`exchange`](crate::exchange), so that the
//! algorithm exists once, the sums run in rank order on every transport, and packing one bucket overlaps sending another.

mod metered;
#[cfg(feature = "mpi")]
pub mod mpi;
mod shards;
mod solo;
mod sync;
pub mod threads;

pub use metered::{Jump, Metered, OutlierStep, Rounds, Seconds, Traffic};
pub use shards::{Sharded, Shards};
pub use solo::Solo;

use crate::error::Result;

/// A worker's place in a group, and its connection to the others.
///
/// Messages between two workers arrive whole and in the order sent. Nothing waits for ever: a worker that is gone, or
/// that stays silent past the transport's deadline, is an error that names it.
pub trait Collective: Send {
    /// The number of this worker, from 0.
    fn rank(&self) -> usize;

    /// How many workers there are.
    fn size(&self) -> usize;

    /// The host of every rank: any numbers, equal for workers that share one. The same on all workers.
    ///
    /// Inside a host workers may add up exactly, and only the sums cross the network ([`hosts`](crate::exchange::hosts)). Unless a
    /// transport knows better, all are on one.
    fn hosts(&self) -> Vec<usize> {
        vec![0; self.size()]
    }

    /// For how many workers a server takes the means, where one does. Then this worker is alone in its group, rank 0 of 1; rank 1
    /// is the server, which nobody but a round sends to. A round is one message up, and one down.
    fn served(&self) -> Option<usize> {
        None
    }

    /// The number of this worker among those that a server serves; without a server its rank. No two workers have the same one, and
    /// none has the number of workers, which is the server's own.
    fn seat(&self) -> usize {
        self.rank()
    }

    /// Whether the mean that came last, or that failed to come, was taken without this worker's message. A server that waits for
    /// nobody may do so; the worker then keeps in its residual what it had sent.
    fn left_out(&self) -> bool {
        false
    }

    /// The connection to the other shards of this worker's replica, where that is held in shards ([`Sharded`]). It is handed out once.
    fn inside(&mut self) -> Option<Box<dyn Collective>> {
        None
    }

    /// Makes room for `under_way` messages to each worker at once, of up to `longest` bytes, so that sending and receiving need
    /// not allocate.
    fn reserve(&mut self, longest: usize, under_way: usize);

    /// Sends `message` to worker `to`, another than this one. `during` is what an error says was going on.
    ///
    /// Does not wait for the receiver: a worker may send several messages before anyone receives one.
    fn send(&mut self, to: usize, message: &[u8], during: &'static str) -> Result<()>;

    /// Waits for the next message of worker `from`, another than this one, and puts it into `message`.
    ///
    /// On entry `message` is as long as the message is expected to be; on return it is the message, however long.
    fn receive(&mut self, from: usize, message: &mut Vec<u8>, during: &'static str) -> Result<()>;
}
