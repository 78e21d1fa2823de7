//! `completions` and `man`: they know every command, and a shell accepts them.

use crate::helper::Place;
use std::process::Command;

/// The commands that `--help` lists.
fn commands(place: &Place) -> Vec<String> {
    let help = place.thinwire("--help").succeeds().stdout;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn every_shell_has_every_command() {
    let place = Place::new();
    let commands = commands(&place);
    assert!(commands.len() >= 10 && commands.contains(&"train".to_owned()), "{commands:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.thinwire(&format!("completions {shell}")).succeeds().stdout;
        for command in &commands {
            assert!(script.contains(command.as_str()), "{shell}: no {command}");
        }
        assert!(script.contains("checkpoint-every"), "{shell}: no flags");
    }
    place.thinwire("completions tcsh").refused(&["tcsh", "bash"]);
}

#[test]
fn bash_completes() {
    let place = Place::new();
    let script = place.thinwire("completions bash").succeeds().stdout;
    place.write("thinwire.bash", script);
    let complete = |words: &str, at: usize| {
        let ask = format!(
            "source thinwire.bash; COMP_WORDS=({words}); COMP_CWORD={at}; \
             _thinwire thinwire \"${{COMP_WORDS[{at}]}}\" \"${{COMP_WORDS[{}]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            at - 1
        );
        let output = Command::new("bash").args(["--norc", "-c", &ask]).current_dir(place.path("")).output();
        output.ok().map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Some(found) = complete("thinwire ins", 1) else { return }; // no bash on this machine
    assert_eq!(found.trim(), "inspect");
    let flags = complete("thinwire generate --t", 2).expect("bash was there a moment ago");
    assert_eq!(flags.split_whitespace().collect::<Vec<_>>(), ["--tokens", "--temperature", "--top-k"]);
}

#[test]
fn every_command_has_a_page() {
    let place = Place::new();
    let first = place.thinwire("man").succeeds().stdout;
    assert!(first.contains(".TH thinwire 1") && first.contains("thinwire\\-train(1)"), "{first}");
    place.thinwire("man pages/man1").succeeds();
    assert_eq!(place.read("pages/man1/thinwire.1"), first);
    for command in commands(&place) {
        let page = place.read(format!("pages/man1/thinwire-{command}.1"));
        assert!(page.contains(".SH OPTIONS"), "{command}: {page}");
    }
    assert!(place.read("pages/man1/thinwire-train.1").contains("\\-\\-checkpoint\\-every"));
    place.write("file", "");
    let ran = place.thinwire("man file");
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("error: file"), "{}", ran.stderr);
}
