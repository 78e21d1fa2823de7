//! Which module of the engine may use which: the table in ARCHITECTURE.md, held by reading the paths in the source.
//!
//! The table has no cycles, because each module may use only modules that stand above it. Everyone may use `error`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The table of ARCHITECTURE.md: a module, and those it may use beside `error`.
fn rules() -> Vec<(String, Vec<String>)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md");
    let page = fs::read_to_string(page).unwrap();
    let table = page.lines().skip_while(|line| *line != "| module | may use |").skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let mut names = line.split('`').skip(1).step_by(2).map(str::to_owned);
        (names.next().expect("a module"), names.collect())
    };
    rows.map(row).collect()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The modules that the code of a file names by `crate::`, comments and tests left out.
fn used(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let paths = lines.flat_map(|line| line.split("crate::").skip(1));
    let names = paths.map(|path| path.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>());
    names.collect()
}

#[test]
fn modules_use_what_the_table_allows() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (rules, mut seen) = (rules(), BTreeSet::new());
    for path in files(&src) {
        let place = path.strip_prefix(&src).unwrap().with_extension("");
        let module = place.components().next().unwrap().as_os_str().to_str().unwrap().to_owned();
        if module == "lib" {
            continue;
        }
        let (_, allowed) = rules
            .iter()
            .find(|(name, _)| *name == module)
            .unwrap_or_else(|| panic!("{module} is not in the table of ARCHITECTURE.md"));
        for other in used(&fs::read_to_string(&path).unwrap()) {
            assert!(
                !other.is_empty(),
                "{}: write one `use crate::module` a line, so that it can be read here",
                path.display()
            );
            let fits = other == module || other == "error" || allowed.contains(&other);
            assert!(fits, "{} uses {other}, which {module} may not: see ARCHITECTURE.md", path.display());
        }
        seen.insert(module);
    }
    assert_eq!(seen.len(), rules.len(), "every module of the table exists: {seen:?}");
}

#[test]
fn the_table_has_no_cycles() {
    let rules = rules();
    assert!(rules.len() > 10, "the table was found");
    for (at, (module, allowed)) in rules.iter().enumerate() {
        let above = &rules[..at];
        for other in allowed {
            assert!(above.iter().any(|(name, _)| name == other), "{module} uses {other}, which stands below it");
        }
    }
}
