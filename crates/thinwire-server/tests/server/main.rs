//! A server and its workers, over loopback.

mod away;
mod campaign;
mod chromium;
mod helper;
mod lives;
mod page;
mod process;
mod same_bits;
mod stranger_page;
mod trust;
mod wire;
