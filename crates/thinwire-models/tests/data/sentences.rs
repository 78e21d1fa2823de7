//! Sentences and their classes.

use crate::{assert_error, folder, gzip, write};
use thinwire_models::sentences::{self, Example, Sentences};

fn read(content: impl AsRef<[u8]>) -> thinwire_models::Result<Sentences> {
    let folder = folder();
    sentences::read(&write(&folder, "train.tsv", content))
}

fn example(label: usize, text: &str) -> Example {
    Example { label, text: text.into(), pair: None }
}

#[track_caller]
fn assert_read(content: impl AsRef<[u8]>, classes: &[&str], examples: &[Example]) {
    let read = read(content).unwrap();
    assert_eq!(read.classes, classes);
    assert_eq!(read.examples, examples);
}

#[test]
fn sst_2() {
    let examples = [example(0, "a \"bad\" film "), example(1, "it 's good ")];
    let content = "sentence\tlabel\na \"bad\" film \t0\nit 's good \t1\n";
    assert_read(content, &["0", "1"], &examples);
    assert_read(gzip(content), &["0", "1"], &examples);
    assert_read(content.replace('\n', "\r\n"), &["0", "1"], &examples);
    assert_read(format!("\u{feff}{content}\n\n"), &["0", "1"], &examples);
}

#[test]
fn cola() {
    let content = "gj04\t1\t\tOur friends won't buy it.\ngj04\t0\t*\tThey drank the pub.\n";
    assert_read(content, &["0", "1"], &[example(1, "Our friends won't buy it."), example(0, "They drank the pub.")]);
}

#[test]
fn pairs() {
    let pair = |label, text: &str, pair: &str| Example { label, text: text.into(), pair: Some(pair.into()) };
    let rte = "index\tsentence1\tsentence2\tlabel\n0\tA b.\tC.\tnot_entailment\n1\tD.\tE.\tentailment\n";
    assert_read(rte, &["entailment", "not_entailment"], &[pair(1, "A b.", "C."), pair(0, "D.", "E.")]);
    let mrpc = "\u{feff}Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tA.\tB.\n0\t9\t10\tC.\tD.\n";
    assert_read(mrpc, &["0", "1"], &[pair(1, "A.", "B."), pair(0, "C.", "D.")]);
    let qnli = "index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tyes\n1\tWhat?\tIt.\tno\n";
    assert_read(qnli, &["no", "yes"], &[pair(1, "Who?", "He."), pair(0, "What?", "It.")]);
}

#[test]
fn two_columns_in_either_order() {
    let expected = [example(1, "so good"), example(0, "so bad"), example(1, "fine")];
    assert_read("pos\tso good\nneg\tso bad\npos\tfine\n", &["neg", "pos"], &expected);
    assert_read("so good\tpos\nso bad\tneg\nfine\tpos\n", &["neg", "pos"], &expected);
    assert_read("so good\t10\nso bad\t9\nfine\t10\n", &["9", "10"], &expected);
    assert_read("1\ta\n2\tb\n", &["1", "2"], &[example(0, "a"), example(1, "b")]);
}

#[test]
fn wrong_files_say_the_line_and_what_is_expected() {
    let long: String = (0..1001).map(|n| format!("{n}\ttext\n")).collect();
    let wrong: [(&[u8], &str); 14] = [
        (b"", "is empty"),
        (b"\n\r\n", "no lines: columns between tabs are expected: a header with `label` and `sentence`"),
        (b"just a line\n", "line 1: 1 columns without a known header; columns between tabs are expected"),
        (b"a\tb\tc\n", "line 1: 3 columns without a known header"),
        (b"index\tsentence\n0\tHello\n", "line 1: no column `label` among index, sentence; columns between tabs"),
        (b"sentence\tlabel\nfine\t1\n\nnot fine\n", "line 4: 1 columns, where the first line has 2"),
        (b"sentence\tlabel\nfine\t1\n \t0\n", "line 3: the text is empty"),
        (b"sentence\tlabel\nfine\t\n", "line 2: the label is empty"),
        (b"sentence\tlabel\nfine\t1\nfiner\t1\n", "1 different labels, where 2 to 1000 are expected"),
        (b"sentence\tlabel\n", "0 different labels, where 2 to 1000 are expected"),
        (
            b"a\tb\nc\td\n",
            "which of the two columns is the label cannot be told; a header line `label<TAB>text` tells it",
        ),
        (b"sentence\tlabel\nfine\t1\ncaf\xe9\t0\n", "line 3: not UTF-8"),
        (b"index\tsentence1\tsentence2\tscore\n0\ta\tb\t2.5\n", "line 1: a column `score`: regression, as of STS-B"),
        (b"sentence\tlabel\nfine\t3.8\nfiner\t5\n", "the label 3.8 is a measure and no class: regression"),
    ];
    for (content, problem) in wrong.into_iter().chain([(long.as_bytes(), "1001 different labels")]) {
        let folder = folder();
        let path = write(&folder, "dev.tsv", content);
        assert_error(sentences::read(&path), &path, problem);
    }
}
