//! A server and its workers, over loopback.

mod away;
mod campaign;
mod chromium;
mod helper;
mod lives;
mod old_files;
mod page;
mod process;
mod same_bits;
mod stranger_page;
#[path = "../../../thinwire/tests/it/common/toy.rs"]
mod toy;
mod trust;
mod wire;
