//! The built-in tasks: small networks, hand-written in the manner of llm.c, and the data they learn from.
//!
//! All parameters of a network are one flat vector, and so are its gradients: what an engine for data-parallel training wants.
//! Layers are plain functions `forward` and `backward` over slices, their matrix products by the crate `gemm`; activations
//! are allocated once; the same input gives the same bits every time. Small on purpose: this is not a framework.
//!
//! A [`Task`] is a network and its data, shared by the workers of a process. A [`Learner`] is one worker's part: its
//! activations and its share of the data. Which examples it sees is a pure function of the seed, the worker and the step,
//! so there is nothing to save when a run is interrupted, and every optimizer sees the same.

#![deny(unsafe_code)]

pub mod error;
pub mod random;
pub mod tensors;
pub mod layer;
pub mod transformer;
pub mod generate;
pub mod resnet;
pub mod file;
pub mod text;
pub mod tokenizer;
pub mod images;
pub mod sentences;
pub mod order;
pub mod task;

/// What the fuzz targets use of the inside: readers of bytes that are in memory already. It may change with every version.
#[doc(hidden)]
pub mod inside {
    pub use crate::images::cifar::parse as parse_cifar;
    pub use crate::images::idx::parse as parse_idx;
    #[cfg(feature = "gpt2")]
    pub use crate::tokenizer::bpe::{
        Bpe,
        files::{Vocabulary, parse_pair, parse_tokenizer_json},
    };
}

pub use error::{Error, Result};
pub use order::{CoordinatedOrder, OrderState, Sketch};
pub use task::{Learner, Score, Share, Task, Watch};
pub use tensors::Tensors;
