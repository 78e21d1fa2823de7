//! `plan` and `bench`: what they answer, what feeds them, what they refuse. No test looks at a time that was measured.

use crate::helper::{NETWORK, Place, number, text};
use serde_json::Value;

/// Enough to answer, without measuring.
const SMALL: &str = "plan --params 1M --workers 4 --bandwidth 1Gb/s --compute 10ms --without-packing";

fn methods(answer: &Value) -> &Vec<Value> {
    answer["methods"].as_array().expect("a list")
}

fn rounds(method: &Value) -> [u64; 3] {
    ["exact", "coarse", "skipped"].map(|kind| method["rounds"][kind].as_u64().expect("a count"))
}

#[test]
fn every_method_is_answered_for() {
    let place = Place::new();
    let answer = place.thinwire(&format!("{SMALL} --json --quiet")).json();
    let names = methods(&answer).iter().map(|method| text(&method["name"])).collect::<Vec<_>>();
    assert_eq!(&names[..4], ["Adam f32", "Adam bf16", "1-bit Adam", "0/1 Adam"]);
    assert_eq!(&names[10..], ["DDP f32", "DDP bf16"], "after Efficient-Adam by six codecs: {names:?}");
    assert_eq!(text(&answer["held_to"]), "DDP f32");
    for method in methods(&answer) {
        assert!(number(&method["step_seconds"]) >= 0.01, "{method}");
        assert!((0.0..=1.0).contains(&number(&method["efficiency"])), "{method}");
        assert!(number(&method["bytes_sent_per_worker"]) > 0.0 && number(&method["memory_bytes_per_worker"]) > 16e6);
        // A run that ends between two syncs has one more.
        assert!((10_000..=10_001).contains(&rounds(method).iter().sum::<u64>()), "{method}");
    }
    // 32 bits up and down, but for its own quarter, at 94.1 % of 1 Gb/s: 51 ms, and latencies.
    let adam = number(&methods(&answer)[0]["step_seconds"]);
    assert!((0.061..0.0625).contains(&adam), "{adam}");
    assert!(!text(&answer["recommendation"]["reason"]).is_empty());
}

/// What was asked for is on standard output; what was assumed is beside it.
#[test]
fn tables_and_advice_are_on_standard_output() {
    let place = Place::new();
    let ran = place.thinwire(SMALL).succeeds();
    for words in ["0/1 Adam", "pays below", "because"] {
        assert!(ran.stdout.contains(words), "{}", ran.stdout);
    }
    assert!(ran.stderr.contains("10,000 steps, since") && !ran.stderr.contains("0/1 Adam"), "{}", ran.stderr);
    let ran = place.thinwire("bench --values 20k --codecs sign").succeeds();
    assert!(ran.stdout.contains("sign encode") && ran.stdout.contains("CPU ns a value"), "{}", ran.stdout);
    let ran = place.thinwire("probe --workers 2 --values 20k --codecs sign --repeats 1").succeeds();
    assert!(ran.stdout.contains("coarse mean, sign") && ran.stderr.contains("measuring"), "{}", ran.stdout);
    let ran = place.thinwire(&format!("{SMALL} --json")).succeeds();
    assert!(ran.stdout.starts_with('{') && ran.stderr.contains("0/1 Adam"), "with --json the table is beside it");
}

#[test]
fn what_has_no_room_in_memory_is_told_of() {
    let place = Place::new();
    let plan = "plan --params 1G --workers 16 --bandwidth 1Gb/s --compute 1s --without-packing --memory";
    let answer = place.thinwire(&format!("{plan} 22GB --json --quiet")).json();
    assert_eq!(number(&answer["device_memory_bytes"]), 22e9);
    for method in methods(&answer) {
        let fits = number(&method["memory_bytes_per_worker"]) <= 22e9;
        assert_eq!(method["fits"], fits, "{method}");
        let named = answer["warnings"].to_string().contains(&format!("{} (", text(&method["name"])));
        assert_eq!(named, !fits, "{}: {}", method["name"], answer["warnings"]);
    }
    let advised = text(&answer["recommendation"]["method"]);
    assert!(
        methods(&answer).iter().any(|method| method["name"] == advised.as_str() && method["fits"] == true),
        "{advised}"
    );
    let ran = place.thinwire(&format!("{plan} 22GB")).succeeds();
    assert!(
        ran.stdout.contains("!: more than --memory") && ran.stderr.contains("without activations"),
        "{}",
        ran.stdout
    );
    place.thinwire(&format!("{plan} 22")).refused(&["--memory", "24GB"]);
}

#[test]
fn the_answer_may_be_no() {
    let place = Place::new();
    let fast = place
        .thinwire("plan --params 1M --workers 2 --bandwidth 100Gb/s --compute 1s --without-packing --json --quiet");
    let fast = fast.json();
    assert_eq!(text(&fast["recommendation"]["optimizer"]), "adam");
    assert!(text(&fast["recommendation"]["reason"]).contains("stay with AdamW"));
    let thin = place.thinwire(
        "plan --params 100M --workers 8 --bandwidth 100Mb/s --compute 100ms --without-packing --json --quiet",
    );
    assert_eq!(text(&thin.json()["recommendation"]["optimizer"]), "zero-one-adam");
}

#[test]
fn packing_is_measured_here_if_nobody_says() {
    let place = Place::new();
    let answer = place
        .thinwire("plan --params 20k --workers 2 --bandwidth 1Gb/s --compute 1ms --steps 100 --json --quiet")
        .json();
    assert!(methods(&answer).iter().all(|method| number(&method["pack_seconds_per_step"]) > 0.0), "{answer}");
}

#[test]
fn a_bench_feeds_a_plan() {
    let place = Place::new();
    let benched = place.thinwire("bench --values 20k --codecs sign,uniform4,bf16,f32 --json --quiet");
    place.write("bench.json", &benched.stdout);
    let benched = benched.json();
    assert!(benched["kernels"].as_array().expect("a list").iter().all(|kernel| number(&kernel["values_per_s"]) > 0.0));
    assert!(number(&benched["copy_gb_per_s"]["1"]) > 0.0);
    let plan = "plan --params 1M --workers 4 --bandwidth 1Gb/s --compute 10ms --bench bench.json --json --quiet";
    let answer = place.thinwire(&format!("{plan} --codecs uniform4")).json();
    assert_eq!(methods(&answer).len(), 7);
    assert_eq!(answer["network"]["seconds_per_message"], benched["message_seconds"]);
    // What the papers and DeepSpeed take: exact rounds of 16 bits, and clipping.
    let preset = "plan --preset bert-large --bandwidth 4.1Gb/s --bench bench.json --codecs uniform4 --json --quiet";
    assert_eq!(methods(&place.thinwire(preset).json()).len(), 7);
    place.write(
        "ds.json",
        r#"{"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 100}}, "fp16": {"enabled": true}, "gradient_clipping": 1}"#,
    );
    assert_eq!(methods(&place.thinwire(&format!("{plan} --codecs uniform4 --deepspeed ds.json")).json()).len(), 8);
    let simulated = format!("{plan} --codecs uniform4 --simulate --spread 10% --jitter 1ms --seed 2");
    assert_eq!(place.thinwire(&simulated).json(), place.thinwire(&simulated).json(), "nothing is measured");
    place.thinwire(&format!("{plan} --codecs power5")).refused(&["power5", "bench"]);
    place.write("other.json", "{}");
    place
        .thinwire("plan --params 1M --workers 4 --bandwidth 1Gb/s --compute 1ms --bench other.json")
        .refused(&["thinwire bench --json"]);
}

/// A bench from before there was one clock, on a busy machine: codecs took far longer by the wall clock than whole steps by the CPU's.
#[test]
fn a_bench_of_a_busy_machine_leaves_packing_and_is_doubted() {
    let place = Place::new();
    let step = |optimizer: &str, round: &str, codec: &str, exact: &str, ns: f64| {
        serde_json::json!({"optimizer": optimizer, "round": round, "codec_up": codec, "codec_down": codec, "exact_codec": exact,
            "clip": false, "workers": 2, "workers_a_host": 1, "ns_per_value": ns})
    };
    let mut adam = [step("adam", "exact", "f32", "f32", 2.6), step("adam", "exact", "f32", "bf16", 1.8)];
    for step in &mut adam {
        step.as_object_mut().unwrap().retain(|key, _| !key.starts_with("codec_"));
    }
    let steps = [
        &adam[..],
        &[
            step("one-bit-adam", "exact", "sign", "f32", 2.7),
            step("one-bit-adam", "coarse", "sign", "f32", 1.7),
            step("zero-one-adam", "exact", "sign", "bf16", 2.0),
            step("zero-one-adam", "coarse", "sign", "bf16", 1.5),
            step("zero-one-adam", "skipped", "sign", "bf16", 0.9),
            step("efficient-adam", "coarse", "sign", "f32", 1.7),
            step("local-adam", "coarse", "sign", "f32", 1.7),
            step("local-adam", "skipped", "sign", "f32", 1.0),
        ],
    ]
    .concat();
    let codec = |name: &str, slow: f64| serde_json::json!({"codec": name, "encode": 0.3e-9 * slow, "decode_add": 0.3e-9 * slow});
    let bench = |slow: f64| {
        let codecs = ["f32", "bf16", "sign"].map(|name| codec(name, slow));
        serde_json::json!({"cores": 2, "values": 4_000_000, "copy_gb_per_s": {}, "kernels": [], "codecs": codecs, "steps": steps,
            "message_seconds": 1e-6})
    };
    let plan = |slow: f64, cores: usize| {
        place.write("bench.json", bench(slow).to_string());
        let line = format!(
            "plan --params 100M --workers 16 --bandwidth 1Gb/s --compute 100ms --codecs sign --sharing 8 --cores {cores} --bench bench.json"
        );
        place.thinwire(&format!("{line} --json --quiet")).json()
    };
    let packs = |answer: &Value, at: usize| number(&methods(answer)[at]["pack_seconds_per_step"]);
    let (quiet, busy) = (plan(1.0, 8), plan(40.0, 8));
    assert!(!quiet["warnings"].to_string().contains("not credible"), "{}", quiet["warnings"]);
    assert!(busy["warnings"].to_string().contains("not credible"), "{}", busy["warnings"]);
    let crowded = plan(40.0, 2);
    for at in 0..methods(&busy).len() {
        assert!(packs(&busy, at) > 0.3 * packs(&quiet, at), "method {at}: {} {}", packs(&busy, at), packs(&quiet, at));
        assert!((packs(&crowded, at) / packs(&busy, at) - 4.0).abs() < 1e-9, "four share a core: method {at}");
    }
}

#[test]
fn a_probe_feeds_a_plan() {
    let place = Place::new();
    let probed = r#"{"transport": "mpi", "workers": 4, "hosts": [0, 0, 1, 1], "latency_seconds": 1e-4, "bits_per_second": 1e9,
        "pairs": [{"from": 0, "to": 1, "latency_seconds": 1e-6, "bits_per_second": 5e10},
                  {"from": 0, "to": 2, "latency_seconds": 1e-4, "seconds_per_message": 3e-6, "bits_per_second": 1e9}],
        "bits_per_second_all_at_once": 8e8, "means": []}"#;
    place.write("probe.json", probed);
    let answer =
        place.thinwire("plan --params 1M --compute 10ms --network probe.json --without-packing --json --quiet").json();
    assert_eq!((number(&answer["workers"]), number(&answer["hosts"])), (4.0, 2.0));
    assert_eq!(
        (number(&answer["network"]["bits_per_second"]), number(&answer["network"]["latency_seconds"])),
        (8e8, 1e-4)
    );
    assert_eq!((number(&answer["network"]["framing"]), number(&answer["network"]["seconds_per_message"])), (1.0, 0.0));
    let packs =
        place.thinwire("plan --params 1k --compute 10ms --network probe.json --codecs sign --json --quiet").json();
    assert_eq!(number(&packs["network"]["seconds_per_message"]), 3e-6);
    let more = "plan --params 1M --compute 10ms --network probe.json --without-packing --workers";
    let answer = place.thinwire(&format!("{more} 8 --json --quiet")).json();
    assert_eq!((number(&answer["workers"]), number(&answer["hosts"])), (8.0, 4.0), "two on each, as in the file");
    assert!(answer["notes"].to_string().contains("while all send to the next"), "{answer}");
    place.thinwire(&format!("{more} 7")).refused(&["4 workers on 2 hosts", "--hosts"]);
    place.write("uneven.json", probed.replace("[0, 0, 1, 1]", "[0, 0, 1, 0]"));
    place
        .thinwire("plan --params 1M --compute 1ms --without-packing --network uneven.json --workers 8")
        .refused(&["--hosts"]);
    for (word, instead, says) in [
        ("3e-6", "-1", "seconds_per_message"),
        ("1e-4, \"sec", "1e9, \"sec", "latency_seconds"),
        ("8e8", "1e300", "bits_per_second_all_at_once"),
        ("[0, 0, 1, 1]", "[]", "found 0"),
        ("[0, 0, 1, 1]", "[3, 3, 3, 3]", "one host"),
        ("[0, 0, 1, 1]", "[3, 3, 3, 7]", "expected a pair of workers on two hosts"),
    ] {
        let (probed, empty) = (probed.replace(word, instead), instead == "[]");
        let probed = if empty {
            probed.split("\"pairs\"").next().expect("a head").to_owned()
                + r#""pairs": [],
            "bits_per_second_all_at_once": 8e8, "means": []}"#
        } else {
            probed
        };
        place.write("odd.json", &probed);
        place.thinwire("plan --params 1M --compute 10ms --without-packing --network odd.json").refused(&[says]);
    }
    place.write("named.json", probed.replace("[0, 0, 1, 1]", "[5, 5, 1000000, 1000000]"));
    let named = place.thinwire("plan --params 1M --compute 10ms --network named.json --without-packing --json --quiet");
    assert_eq!(number(&named.json()["hosts"]), 2.0);
    let on_threads = place.thinwire("probe --workers 2 --values 20k --codecs sign --repeats 1 --json --quiet");
    place.write("threads.json", &on_threads.stdout);
    place.thinwire("plan --params 1M --compute 10ms --network threads.json").refused(&["one host"]);
}

#[test]
fn computing_can_be_measured() {
    let place = Place::new();
    let flags = "--measure --task images --workers 2 --bandwidth 1Gb/s --steps 50 --without-packing --json --quiet";
    let answer = place.thinwire(&format!("plan {flags}")).json();
    assert!(number(&answer["compute_seconds"]) > 0.0 && number(&answer["params"]) > 70e3, "{answer}");
}

#[test]
fn parameters_are_counted_in_a_file() {
    let place = Place::new();
    let head = r#"{"a":{"dtype":"F32","shape":[10,30],"data_offsets":[0,1200]},"b":{"dtype":"F16","shape":[7],"data_offsets":[1200,1214]}}"#;
    let mut file = (head.len() as u64).to_le_bytes().to_vec();
    file.extend(head.as_bytes());
    file.extend([0; 1214]);
    place.write("model.safetensors", file);
    let rest = "--workers 2 --bandwidth 1Gb/s --compute 1ms --without-packing";
    let answer = place.thinwire(&format!("plan --model model.safetensors {rest} --json --quiet")).json();
    assert_eq!(number(&answer["params"]), 307.0);
    let head = r#"{"a":{"dtype":"F32","shape":[10],"data_offsets":[0,40]},"at":{"dtype":"I64","shape":[7],"data_offsets":[40,96]}}"#;
    let mut file = (head.len() as u64).to_le_bytes().to_vec();
    file.extend(head.as_bytes());
    place.write("short.safetensors", &file);
    place.thinwire(&format!("plan --model short.safetensors {rest}")).refused(&["cut off"]);
    file.extend([0; 96]);
    place.write("whole.safetensors", &file);
    let answer = place.thinwire(&format!("plan --model whole.safetensors {rest} --json --quiet")).json();
    assert_eq!(number(&answer["params"]), 10.0, "positions are not learned");
    place.write("model.safetensors.index.json", "{}");
    place.thinwire(&format!("plan --model model.safetensors.index.json {rest}")).refused(&["index", "--params"]);
    place.write("text.safetensors", "this is a text and no file of tensors");
    place
        .thinwire(&format!("plan --model text.safetensors {rest}"))
        .refused(&["text.safetensors", "expected a safetensors file"]);
    place.thinwire(&format!("plan --model nowhere.safetensors {rest}")).refused(&["nowhere.safetensors"]);
}

#[test]
fn presets_are_the_papers() {
    let place = Place::new();
    let answer = place.thinwire("plan --preset bert-large --bandwidth 2.7Gb/s --without-packing --json --quiet").json();
    assert_eq!((number(&answer["workers"]), number(&answer["hosts"])), (128.0, 32.0));
    assert_eq!(rounds(&methods(&answer)[2]), [23_000, 129_000, 0]);
    assert_eq!(rounds(&methods(&answer)[3]), [153, 74_168, 77_679]);
    place.thinwire("plan --preset resnet18-imagenet --bandwidth 1Gb/s").refused(&["--compute"]);
    place.thinwire("plan --preset bert-huge --bandwidth 1Gb/s").refused(&["bert-large"]);
}

#[test]
fn a_simulation_stands_beside_the_formula() {
    let place = Place::new();
    let flags = "--simulate --spread 20% --slow-host 1.5 --jitter 100us --seed 7 --json --quiet";
    let answer = place.thinwire(&format!("{SMALL} {flags}")).json();
    for method in methods(&answer) {
        let simulated = number(&method["simulated"]["step_seconds"]);
        assert!(simulated > number(&method["step_seconds"]), "{method}");
        let (run, part) = (number(&method["run_seconds"]), number(&method["efficiency"]));
        assert!((run / simulated / 10_000.0 - 1.0).abs() < 1e-9 && (part * simulated / 0.01 - 1.0).abs() < 1e-9);
    }
    assert!(answer["notes"].to_string().contains("from the simulation"), "{answer}");
    let again = place.thinwire(&format!("{SMALL} {flags}")).json();
    assert_eq!(methods(&answer)[3]["simulated"], methods(&again)[3]["simulated"], "the same seed");
    place.thinwire(&format!("{SMALL} --spread 20%")).refused(&["--simulate"]);
    place.thinwire(&format!("{SMALL} --simulate --spread 200%")).refused(&["10%"]);
}

#[test]
fn a_plot_is_drawn() {
    let place = Place::new();
    place.thinwire(&format!("{SMALL} --plot step.svg --quiet")).succeeds();
    let svg = place.read("step.svg");
    assert!(svg.starts_with("<svg") && svg.contains("0/1 Adam") && svg.contains("yours: 1 Gb/s"), "{svg}");
    assert!(svg.contains("Efficient-Adam topk0.01"), "every method has a line: {svg}");
    place.thinwire(&format!("{SMALL} --plot step.png --quiet")).refused(&["step.svg"]);
    place.thinwire(&format!("{SMALL} --plot no/such/folder.svg --quiet")).refused(&["no/such/folder.svg"]);
}

/// DeepSpeed's own tutorial, with what surprises in it.
#[test]
fn a_deepspeed_configuration_is_answered_for() {
    let place = Place::new();
    place.write(
        "ds.json",
        r#"{"optimizer": {"type": "ZeroOneAdam", "params": {"lr": 1e-3, "weight_decay": 0.01, "bias_correction": false,
            "var_freeze_step": 12500, "local_step_scaler": 32678, "local_step_clipper": 12, "comm_backend_name": "nccl"}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 12500}},
            "fp16": {"enabled": true}, "zero_optimization": {"stage": 2}}"#,
    );
    let flags = "--params 1M --workers 8 --bandwidth 1Gb/s --compute 10ms --without-packing";
    let answer = place.thinwire(&format!("plan --deepspeed ds.json --steps 152000 {flags} --json --quiet")).json();
    let yours = &methods(&answer)[1];
    assert!(text(&yours["name"]).starts_with("yours"), "{yours}");
    assert_eq!(rounds(yours)[0], 153);
    let warnings = answer["warnings"].as_array().expect("a list").iter().map(text).collect::<String>();
    for word in ["weight_decay", "local_step_clipper = 12", "zero_optimization", "residuals"] {
        assert!(warnings.contains(word), "{word}: {warnings}");
    }
    let of = |file: &str| {
        place.write("other.json", file);
        place.thinwire(&format!("plan --deepspeed other.json {flags} --json --quiet"))
    };
    let late = of(r#"{"optimizer": {"type": "OneBitAdam", "params": {}}}"#).json();
    assert!(
        late["warnings"].to_string().contains("freeze_step = 100000, DeepSpeed's default, is not reached"),
        "{late}"
    );
    assert!(late["warnings"].to_string().contains("only assumed here (--steps)"), "{late}");
    assert!(late["notes"].to_string().contains("10,000 steps, since --steps was not given"), "{late}");
    assert_eq!(rounds(&methods(&late)[1]), [10_000, 0, 0]);
    let plain = of(r#"{"optimizer": {"type": "AdamW"}, /* two levels */ "zero_optimization": {"stage": 3}, // and
        "gradient_accumulation_steps": 8, "bf16": {"enabled": "auto"} # or not
    }"#);
    let plain = plain.json();
    assert_eq!([text(&plain["held_to"]), text(&methods(&plain)[0]["pays"])], ["yours: Adam f32", "baseline"]);
    for word in ["zero_optimization.stage = 3", "all 8 forward and backward", "bf16.enabled is"] {
        assert!(plain["warnings"].to_string().contains(word), "{word}: {plain}");
    }
    let half = of(r#"{"bf16": {"enabled": true}, "fp16": {"enabled": "auto"}}"#).json();
    assert!(!half["warnings"].to_string().contains("auto"), "one of them is enough: {half}");
    assert_eq!(text(&half["held_to"]), "yours: Adam bf16");
    assert_eq!(methods(&half).len(), 12, "it is one of those that are compared");
    assert!(half["warnings"].to_string().contains("optimizer is not in the file"), "{half}");
    assert!(text(&half["recommendation"]["reason"]).contains("of yours, Adam bf16"), "{half}");
    of(r#"{"optimizer": {"type": "Lamb"}}"#).refused(&["Lamb", "OneBitAdam"]);
    of(r#"{"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": -3}}}"#).refused(&["freeze_step = -3"]);
    of("{}").refused(&["optimizer.type: expected"]);
    of("nonsense").refused(&["other.json", "for example {"]);
}

#[test]
fn what_makes_no_sense_is_refused_with_an_example() {
    let place = Place::new();
    let whole = "plan --params 1M --workers 4 --bandwidth 1Gb/s --compute 10ms --without-packing";
    for (instead, words) in [
        ("--bandwidth 1", &["the unit is missing", "1Gb/s"][..]),
        ("--bandwidth -1Gb/s", &["1Gb/s"]),
        ("--bandwidth 5furlong", &["furlong", "1Gb/s"]),
        ("--bandwidth 1b/s", &["slower or faster than any link"]),
        ("--latency 5", &["50us"]),
        ("--compute 0s", &["at least 1us", "300ms"]),
        ("--compute -1s", &["300ms"]),
        ("--params 0", &["25M"]),
        ("--params -5", &["25M"]),
        ("--workers 0", &["1 to 4096"]),
        ("--workers 5000", &["1 to 4096"]),
        ("--hosts 3", &["divides the 4 workers"]),
        ("--hosts 5", &["1 to 4"]),
        ("--warmup 10000", &["fewer than the 10000 steps"]),
        ("--decay never", &["cosine"]),
        ("--codecs morse", &["morse", "sign"]),
        ("--cores 0", &["1 to 4096"]),
        ("--cores -1", &["1 to 4096"]),
        ("--latency -1ms", &["50us"]),
        ("--latency 1h", &["0 to 10s"]),
        ("--params 1.5", &["1 to 10T"]),
        ("--params 1e15", &["1 to 10T"]),
        ("--workers -1", &["1 to 4096 (for example 16)"]),
        ("--workers 2.5", &["1 to 4096 (for example 16)"]),
        ("--steps 1e12", &["1 to 100M"]),
        ("--warmup -1", &["for example 1000"]),
        ("--bandwidth 25GbE", &["is 25Gb/s meant?"]),
    ] {
        let (flag, value) = instead.split_once(' ').expect("a flag and its value");
        let kept = whole.split(" --").filter(|part| !part.starts_with(&flag[2..])).collect::<Vec<_>>().join(" --");
        place.thinwire(&format!("{kept} {flag}={value}")).refused(words);
        place.thinwire(&format!("{kept} {flag} {value}")).refused(words);
    }
    place
        .thinwire("plan")
        .refused(&["expected --params and --workers and --bandwidth and --compute", "--bandwidth 1Gb/s"]);
    for missing in ["params", "workers", "bandwidth", "compute"] {
        let kept = whole.split(" --").filter(|part| !part.starts_with(missing)).collect::<Vec<_>>().join(" --");
        place.thinwire(&kept).refused(&[&format!("--{missing} "), "for example"]);
    }
}

#[test]
fn a_run_ends_with_what_was_planned() {
    let place = Place::new();
    for optimizer in ["adam", "one-bit-adam", "zero-one-adam", "efficient-adam", "local-adam"] {
        let line = format!("train {NETWORK} --steps 30 --workers 3 --optimizer {optimizer} --out {optimizer} --json");
        let ran = place.thinwire(&line);
        let said = ran.stderr.clone();
        assert!(said.contains("planned ") && said.contains("measured ") && said.contains(" a step"), "{said}");
        let summary = ran.json();
        let planned = &summary["planned"];
        assert_eq!(planned["bytes_sent_per_worker"], summary["bytes_sent_per_worker"], "{optimizer}");
        assert_eq!(planned["rounds"], summary["rounds"], "{optimizer}");
        assert!(number(&planned["step_seconds"]) > 0.0);
    }
    let auto = place.thinwire(&format!("train {NETWORK} --steps 5 --optimizer one-bit-adam --set warmup=auto --json"));
    assert!(auto.stderr.contains("planned   not available") && auto.stderr.contains("warmup"), "{}", auto.stderr);
    place.thinwire(&format!("train {NETWORK} --steps 5 --network nowhere.json")).refused(&["nowhere.json"]);
}

const ON_GPUS: &str = "plan --params 1G --workers 16 --hosts 4 --bandwidth 10Gb/s --compute 400ms --json --quiet";

fn zero_one(answer: &Value) -> &Value {
    methods(answer).iter().find(|method| method["name"] == "0/1 Adam").expect("it is always there")
}

/// By arithmetic: the same figures on every machine, and faster memory is faster.
#[test]
fn a_gpu_packs_by_arithmetic() {
    let place = Place::new();
    let pack = |device: &str| {
        let answer = place.thinwire(&format!("{ON_GPUS} --device {device}")).json();
        let (name, memory) = (text(&answer["device"]["name"]).to_owned(), number(&answer["device_memory_bytes"]));
        (number(&zero_one(&answer)["pack_seconds_per_step"]), name, memory)
    };
    let (a100, name, memory) = pack("a100");
    assert_eq!((name.as_str(), memory), ("a100", 80e9));
    assert_eq!(pack("a100").0, a100);
    let (h100, rtx) = (pack("h100").0, pack("rtx4090").0);
    assert!(h100 < a100 && a100 < rtx && rtx < 0.5, "{h100} {a100} {rtx}");
    // The copies beside the model's own parameters and gradients.
    let bytes = |flags: &str| {
        let answer = place.thinwire(&format!("{ON_GPUS} {flags}")).json();
        number(&zero_one(&answer)["memory_bytes_per_worker"])
    };
    assert_eq!(bytes("--device a100") - bytes("--without-packing"), 8e9);
    let said = place.thinwire(&ON_GPUS.replace(" --json --quiet", " --device a100")).succeeds();
    assert!(said.stderr.contains("packing by arithmetic for a100") && said.stderr.contains("no GPU has measured it"));
    place.thinwire(&format!("{ON_GPUS} --device a1000")).refused(&["a1000", "a100", "rtx4090", "FILE.json"]);
    place.thinwire(&format!("{ON_GPUS} --device a100 --bench bench.json")).refused(&["--device", "--bench"]);
}

/// What a user's own GPU said of itself.
#[test]
fn a_gpus_report_feeds_a_plan() {
    let place = Place::new();
    let report = |equal: bool, kernel: &str| {
        format!(
            r#"{{"device": "My GPU", "equal": {equal}, "bandwidth": [{{"kernel": "{kernel}", "gigabytes_per_second": 1700.0}}]}}"#
        )
    };
    place.write("gpu.json", report(true, "copy"));
    let answer = place.thinwire(&format!("{ON_GPUS} --device gpu.json")).json();
    assert_eq!(answer["device"]["name"], "My GPU");
    assert_eq!(answer["device"]["memory_bytes_per_second"], 1.7e12);
    place.write("wrong.json", report(false, "copy"));
    place.thinwire(&format!("{ON_GPUS} --device wrong.json")).refused(&["My GPU", "does not give the engine's bits"]);
    place.write("none.json", report(true, "encode sign"));
    place.thinwire(&format!("{ON_GPUS} --device none.json")).refused(&["none.json", "copy", "a GPU is needed"]);
    place.thinwire(&format!("{ON_GPUS} --device nowhere.json")).refused(&["nowhere.json"]);
}

/// A paper's GPUs are not charged for this machine's CPU, unless that is asked for.
#[test]
fn a_preset_packs_on_the_papers_gpu() {
    let place = Place::new();
    let answer = place.thinwire("plan --preset bert-large --bandwidth 4.1Gb/s --json --quiet").json();
    assert_eq!(answer["device"]["name"], "v100");
    let packing = number(&zero_one(&answer)["pack_seconds_per_step"]);
    assert!(packing < 0.25 * number(&answer["compute_seconds"]), "{packing}");
}

/// The lines that replace a configuration of DeepSpeed's.
#[test]
fn a_deepspeed_file_becomes_a_program() {
    let place = Place::new();
    place.write(
        "ds.json",
        r#"{"optimizer": {"type": "ZeroOneAdam", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1,
            "var_freeze_step": 1000, "local_step_clipper": 16, "comm_backend_name": "nccl"}},
            "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 500, "total_num_steps": 20000}},
            "gradient_clipping": 1.0, "fp16": {"enabled": true}, "gradient_accumulation_steps": 4}"#,
    );
    let plan = "plan --deepspeed ds.json --params 110M --workers 8 --bandwidth 1Gb/s --compute 100ms --without-packing";
    let program = "import thinwire\n\noptimizer = thinwire.ZeroOneAdam(\n    model.parameters(),\n    lr=0.001,\n    betas=(0.9, 0.95),\n    \
                   weight_decay=0.1,\n    preset=\"deepspeed\",\n    var_freeze_step=1000,\n    local_step_clipper=16,\n    clip=1.0,\n    \
                   exact_codec=\"bf16\",\n)\noptimizer.follow(scheduler, steps=20000)  # scheduler: any of PyTorch's, made with this \
                   optimizer\n# optimizer.step() and optimizer.zero_grad() after every 4 calls of backward()";
    assert_eq!(place.thinwire(&format!("{plan} --json --quiet")).json()["program"], program);
    let shown = place.thinwire(plan).succeeds().stdout;
    assert!(shown.contains(program), "{shown}");
}
