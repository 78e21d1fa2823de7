//! The parameter server of **thinwire**: rounds that are on the disk before anyone sees them, for workers that come and go over
//! networks that do not always work.
//!
//! Workers send their coded vectors; the server averages those that came, codes the mean with its own residue, appends it to a log,
//! and sends it to all. The log is the run: whoever has a snapshot and the log since is where everybody is, also the server itself
//! after a crash. The algorithm is the engine's: [`thinwire::inside::exchange::Owner`] takes the mean, and a [`thinwire::Worker`] without
//! gradients, the [`replica`], knows what comes next. docs/parameter-server.md has the promises.
//!
//! | module | what it knows |
//! |---|---|
//! | `disk`, [`frames`], [`log`] | every call that touches a run's folder; files that only grow; the rounds in them |
//! | [`snapshot`], [`replica`] | the state that all share; a worker that follows |
//! | [`run`], `state`, `inputs`, `kept`, `back`, `sealed` | a run on disk: one round after the other, and coming back; where it is, in memory; what E is made again from; the snapshots; going back to an earlier round; small files with checksums |
//! | [`table`] | who is there, and when a round is closed |
//! | [`hall`], [`service`], [`door`], `origin`, [`local`], [`status`], [`server`] | the running server: its keeper, its gRPC service, its door, where requests come from, the token for workers on the same machine, its page |
//! | [`certificate`], `places`, `uploads` | whose a certificate is; room for connections that are not let in yet; room for messages on their way |
//! | [`connection`], `conversation`, `carrier`, [`link`], [`remote`] | the worker's side |

#![forbid(unsafe_code)]

mod back;
mod carrier;
pub mod certificate;
mod checked;
pub mod connection;
mod conversation;
mod disk;
pub mod door;
mod error;
pub mod frames;
pub mod hall;
mod inputs;
pub mod judge;
mod kept;
pub mod link;
pub mod local;
pub mod log;
mod origin;
mod places;
#[allow(clippy::all, missing_docs, rustdoc::all)]
pub mod proto;
pub mod remote;
pub mod replica;
pub mod roster;
pub mod run;
mod sealed;
pub mod server;
pub mod service;
#[cfg(test)]
mod sim;
pub mod snapshot;
mod state;
pub mod status;
pub mod table;
mod uploads;

/// What the fuzz targets use of the inside: readers of bytes that are in memory already. It may change with every version.
#[doc(hidden)]
pub mod inside {
    pub use crate::inputs::{Entry, make_again, messages, replay};
    pub use crate::kept::parse_residue;
    pub use crate::sealed::parse as parse_sealed;
}

pub use connection::JoinOptions;
pub use door::{Security, Tls};
pub use error::{Error, Result};
pub use remote::{Interrupter, Member, Membership, RemoteGroup};
pub use run::{Retention, Run};
pub use server::Server;
pub use status::Status;
pub use table::Rules;
