//! What the tests share.

pub mod device;
pub mod engine;
pub mod golden;
pub mod means;
pub mod optimizers;
pub mod oracle;
pub mod oracle_lamb;
pub mod oracle_local;
pub mod oracle_signs;
pub mod problems;
pub mod runs;
pub mod setting;
pub mod toy;
pub mod twin;
