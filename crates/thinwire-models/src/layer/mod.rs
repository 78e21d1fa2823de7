//! Layers as plain functions over slices: `forward` reads inputs and parameters and writes outputs, `backward` reads the
//! gradient of the outputs and *adds* to the gradients of the parameters.

pub mod attention;
pub mod classify;
pub mod conv;
pub mod cross_entropy;
pub mod embedding;
pub mod gelu;
pub mod group_norm;
pub mod layer_norm;
pub mod linear;
pub mod matmul;
pub mod plane;
pub mod pool;
pub mod simd;
