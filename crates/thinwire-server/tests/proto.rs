//! `src/proto/thinwire.v1.rs` is what `proto/run.proto` gives.

const KEPT: &str = "src/proto/thinwire.v1.rs";

#[test]
fn the_generated_code_is_that_of_the_proto_file() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    let files = protox::compile(["run.proto"], [here.join("proto")]).unwrap();
    tonic_prost_build::configure().bytes(".").out_dir(dir.path()).compile_fds(files).unwrap();
    let generated = std::fs::read_to_string(dir.path().join("thinwire.v1.rs")).unwrap();
    let kept = std::fs::read_to_string(here.join(KEPT)).unwrap();
    if generated != kept {
        let draft = here.join(format!("{KEPT}.new"));
        std::fs::write(&draft, generated).unwrap();
        panic!("{KEPT} is not what proto/run.proto gives: {} is", draft.display());
    }
}
