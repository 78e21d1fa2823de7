//! `export`: one file with all tensors by name. python/tests/test_export.py loads it in PyTorch.

use crate::helper::{NETWORK, Place};
use safetensors::SafeTensors;

#[test]
fn a_gpt_has_hugging_faces_names_and_layout() {
    let place = Place::new();
    place.train("--workers 1 --out run");
    place.thinwire("export run --out out/model.safetensors").succeeds();
    place.thinwire("export run --out plain.safetensors --names thinwire --quiet").succeeds();
    let [theirs, ours] =
        ["out/model.safetensors", "plain.safetensors"].map(|file| std::fs::read(place.path(file)).unwrap());
    let [theirs, ours] = [&theirs, &ours].map(|bytes| SafeTensors::deserialize(bytes).expect("a safetensors file"));
    assert_eq!(theirs.len(), ours.len());

    let [matrix, transposed] =
        [ours.tensor("layer.0.qkv.weight").unwrap(), theirs.tensor("transformer.h.0.attn.c_attn.weight").unwrap()];
    assert_eq!((matrix.shape(), transposed.shape()), (&[48, 16][..], &[16, 48][..]));
    let value = |data: &[u8], at: usize| data[4 * at..4 * at + 4].to_vec();
    for (row, column) in [(0, 0), (1, 0), (0, 1), (47, 15), (20, 7)] {
        assert_eq!(value(matrix.data(), row * 16 + column), value(transposed.data(), column * 48 + row));
    }
    let [embedding, same] = [ours.tensor("token.weight").unwrap(), theirs.tensor("transformer.wte.weight").unwrap()];
    assert_eq!((embedding.shape(), embedding.data()), (same.shape(), same.data()));

    let config: serde_json::Value = serde_json::from_str(&place.read("out/config.json")).unwrap();
    for (field, value) in [("vocab_size", 256), ("n_positions", 16), ("n_embd", 16), ("n_layer", 1), ("n_head", 2)] {
        assert_eq!(config[field], value, "{field}");
    }
    assert!(!place.path("config.json").exists(), "only model.safetensors has one");
}

#[test]
fn other_networks_keep_their_names() {
    let place = Place::new();
    let train = |task: &str| {
        place.thinwire(&format!("train {task} --steps 2 --workers 1 --out run --overwrite --quiet")).succeeds();
        place.thinwire("export run --out file.safetensors --overwrite").succeeds();
        let bytes = std::fs::read(place.path("file.safetensors")).unwrap();
        let exported = SafeTensors::deserialize(&bytes).unwrap();
        let shown = place.thinwire("inspect run --json").json();
        for layer in shown["network"].as_array().expect("a list") {
            let tensor = exported.tensor(layer["name"].as_str().unwrap()).expect("every name of inspect");
            assert_eq!(serde_json::json!(tensor.shape()), layer["shape"]);
        }
    };
    train(&format!("{NETWORK} --task bert"));
    train("--task images --dim 8 --batch 4 --eval-examples 8");
    place.thinwire("export run --out x.safetensors --names hugging-face").refused(&["expected a run of --task gpt"]);
}

#[test]
fn nothing_is_replaced_unasked() {
    let place = Place::new();
    place.train("--workers 1 --out run");
    place.write("config.json", "mine");
    place.thinwire("export run --out model.safetensors").refused(&["config.json", "--overwrite"]);
    assert!(!place.path("model.safetensors").exists());
    place.write("file.safetensors", "mine");
    place.thinwire("export run --out file.safetensors").refused(&["file.safetensors", "--overwrite"]);
    assert_eq!(place.read("file.safetensors"), "mine");
    place.thinwire("export run --out model.safetensors --overwrite --quiet").succeeds();
    assert!(place.read("config.json").contains("gpt2"));
    place.thinwire("export run --out file.bin").refused(&["file.bin", ".safetensors"]);
    place.thinwire("export missing --out a.safetensors").refused(&["missing"]);
    std::fs::remove_file(place.path("run/tensors.json")).unwrap();
    place.thinwire("export run --names thinwire --out a.safetensors").refused(&["tensors.json"]);
    let left = std::fs::read_dir(place.path("")).unwrap().count();
    assert_eq!(left, 4, "run, model.safetensors, file.safetensors, config.json and no drafts");
}
