//! What the tests share.

pub mod device;
pub mod engine;
pub mod means;
pub mod optimizers;
pub mod oracle;
pub mod problems;
pub mod runs;
pub mod setting;
pub mod toy;
pub mod twin;
