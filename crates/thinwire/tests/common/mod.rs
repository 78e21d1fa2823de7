//! What the test programs share: the slow twin, the problems, and the engine under watch.

pub mod engine;
pub mod oracle;
pub mod problems;
pub mod twin;
