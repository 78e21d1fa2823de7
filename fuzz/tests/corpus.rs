//! The kept corpus once more, without libFuzzer and without a sanitizer: for Miri, which `./check deep` runs over the codecs, and for
//! systems that have neither.

use std::fs;
use std::path::Path;

fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let inputs = fs::read_dir(folder).expect("a corpus").map(|entry| fs::read(entry.expect("a file").path()));
    let inputs = inputs.collect::<Result<Vec<_>, _>>().expect("files that can be read");
    assert!(!inputs.is_empty());
    inputs.iter().for_each(|input| run(input));
}

macro_rules! replay {
    ($($name:ident: $run:path)*) => {
        $(#[test] fn $name() { replay(stringify!($name), $run); })*
    };
}

replay! {
    codec_decode: thinwire_fuzz::codec::decode
    codec_encode: thinwire_fuzz::codec::encode
    header: thinwire_fuzz::message::header
    mean: thinwire_fuzz::message::mean
    config: thinwire_fuzz::settings::config
    checkpoint: thinwire_fuzz::state::checkpoint
    snapshot: thinwire_fuzz::state::snapshot
    frames: thinwire_fuzz::files::frames
    records: thinwire_fuzz::files::records
    small_files: thinwire_fuzz::files::small
    images: thinwire_fuzz::data::images
    sentences: thinwire_fuzz::data::sentences
    tokenizer: thinwire_fuzz::data::tokenizer
    gzip: thinwire_fuzz::data::gzip
}
