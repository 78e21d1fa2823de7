//! A gpt as Hugging Face's `GPT2LMHeadModel` has it.
//!
//! The network is the same: tanh GELU, ε = 1e-5, norms before the parts, the head tied to the embedding. Two things differ.
//! Names; and matrices, which there are `Conv1D` layers: inputs × outputs, the transpose of ours. The tied head is left out, as
//! `save_pretrained` does.

use super::Tensor;
use crate::language::Language;
use serde_json::{Value, json};
use thinwire_models::tensors::Tensor as Ours;

/// Our names and theirs, without the layer.
const PARTS: [(&str, &str); 6] = [
    ("norm1", "ln_1"),
    ("qkv", "attn.c_attn"),
    ("proj", "attn.c_proj"),
    ("norm2", "ln_2"),
    ("expand", "mlp.c_fc"),
    ("contract", "mlp.c_proj"),
];

pub fn tensors(language: &Language) -> Vec<Tensor> {
    let tensor = |ours: &Ours| {
        let values = &language.params[ours.range.clone()];
        let name = name(&ours.name);
        match ours.shape[..] {
            [outputs, inputs] if ours.name.starts_with("layer.") => {
                Tensor { name, shape: vec![inputs, outputs], values: transposed(values, inputs) }
            }
            _ => Tensor { name, shape: ours.shape.clone(), values: values.to_vec() },
        }
    };
    language.network.tensors().iter().map(tensor).collect()
}

/// `layer.3.qkv.weight` → `transformer.h.3.attn.c_attn.weight`.
fn name(ours: &str) -> String {
    let theirs = match ours.split('.').collect::<Vec<_>>()[..] {
        ["token", kind] => format!("wte.{kind}"),
        ["position", kind] => format!("wpe.{kind}"),
        ["norm", kind] => format!("ln_f.{kind}"),
        ["layer", layer, part, kind] => {
            let found = PARTS.iter().find(|(ours, _)| *ours == part);
            format!("h.{layer}.{}.{kind}", found.map_or(part, |(_, theirs)| theirs))
        }
        _ => ours.to_owned(),
    };
    format!("transformer.{theirs}")
}

/// Rows of `width` values, as columns.
fn transposed(values: &[f32], width: usize) -> Vec<f32> {
    let columns = 0..width;
    columns.flat_map(|column| values.iter().skip(column).step_by(width).copied()).collect()
}

/// The size of GPT-2's own vocabulary.
const GPT2: usize = 50_257;

/// The config.json that transformers reads the sizes from.
pub fn config(language: &Language) -> Value {
    let shape = language.network.shape();
    let end = match shape.vocabulary {
        GPT2 => json!(GPT2 - 1), // <|endoftext|>
        _ => Value::Null,        // no byte ends a text
    };
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": shape.vocabulary,
        "n_positions": shape.context,
        "n_embd": shape.dim,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_inner": null,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "scale_attn_weights": true,
        "tie_word_embeddings": true,
        "bos_token_id": end,
        "eos_token_id": end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_layout_are_theirs() {
        for (ours, theirs) in [
            ("token.weight", "transformer.wte.weight"),
            ("position.weight", "transformer.wpe.weight"),
            ("layer.11.qkv.bias", "transformer.h.11.attn.c_attn.bias"),
            ("layer.0.contract.weight", "transformer.h.0.mlp.c_proj.weight"),
            ("norm.bias", "transformer.ln_f.bias"),
        ] {
            assert_eq!(name(ours), theirs);
        }
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
