//! Writes the inputs that a corpus starts from: `seeds FOLDER`. They show what is read without error; what fails is found from there.

use std::fs;
use std::path::Path;
use thinwire_fuzz::state;

const CONFIGURATIONS: [&str; 10] = [
    "\0name = \"adam\"\nbetas = [0.9, 0.999]\neps = 1e-8\nweight_decay = 0.01\nbias_correction = true\nclip = 1.0\n",
    "\0name = \"one-bit-adam\"\nwarmup = 2\ncodec = \"sign\"\nresidual = \"bf16\"\nblock = 512\ntopology = \"central\"\n",
    "\0name = \"zero-one-adam\"\nsync = \"every\"\nsync_every = 3\nvariance_gap = 2\nthreads = 2\nbucket = 4096\n",
    "\0name = \"efficient-adam\"\ncodec_up = \"topk0.01\"\ncodec_down = \"power3\"\nhierarchy = \"hosts\"\nhost_codec = \"bf16\"\n",
    "\0name = \"adam\"\nexact_codec = \"bf16\"\nnon_finite = \"skip\"\n[learning_rate]\npeak = 1e-3\nwarmup = 10\ndecay = \"cosine\"\nsteps = 100\nfloor = 0.1\n",
    "\0name = \"adam\"\n[[groups]]\nlength = 30\nlr_scale = 0.5\nweight_decay = 0.0\n[[groups]]\nlength = 7\n",
    "\x01{\"name\": \"zero-one-adam\", \"learning_rate\": {\"peak\": 0.1, \"decay\": \"step\", \"drop_every\": 5, \"drop_to\": 0.5}}",
    "\x01{\"name\": \"efficient-adam\", \"codec\": \"uniform4\", \"residue\": \"f32\"}",
    "\0name = \"lion\"\npreset = \"lion-cub\"\nmomentum_every = 5\n",
    "\0name = \"birder\"\nbeta = 0.9\nseed = 3\ncodec_down = \"bf16\"\n",
];

const TABLES: [&str; 4] = [
    "sentence\tlabel\nit is good\t1\nit is bad\t0\n",
    "gj04\t1\t\tOur friends won't buy this.\ngj04\t0\t*\tThey drank the pub.\n",
    "question1\tquestion2\tis_duplicate\na\tb\t0\nc\td\t1\n",
    "yes\tfirst\nno\tsecond\nyes\tthird\n",
];

const RUN: &str = "{\n  \"format\": \"thinwire-run\",\n  \"version\": 2,\n  \"id\": \"a\",\n  \"config\": {\"name\": \"adam\"},\n  \
                   \"parameters\": 37,\n  \"workers\": 2,\n  \"steps\": 5,\n  \"job\": \"\"\n}";

fn main() {
    let folder = std::env::args_os().nth(1).expect("a folder is named");
    let each = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
    let residue = [&[0][..], &12u64.to_le_bytes(), br#"{"counted":{}}"#, &[0; 4 * 37]].concat();
    let small = vec![[&[2], RUN.as_bytes()].concat(), [&[1], RUN.as_bytes()].concat(), residue];
    let seeds = [
        ("config", each(&CONFIGURATIONS)),
        ("sentences", each(&TABLES)),
        ("small_files", small),
        ("snapshot", state::snapshots()),
        ("checkpoint", state::checkpoints()),
        ("gzip", vec![b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0".to_vec()]),
    ];
    for (target, inputs) in seeds {
        write(&Path::new(&folder).join(target), &inputs).expect("a folder that can be written to");
    }
}

fn write(folder: &Path, inputs: &[Vec<u8>]) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    inputs.iter().enumerate().try_for_each(|(i, input)| fs::write(folder.join(format!("{i:02}")), input))
}
