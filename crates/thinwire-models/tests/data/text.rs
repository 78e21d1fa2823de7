//! Text, and its shares.

use crate::{assert_error, folder, gzip, write};
use thinwire_models::random::Random;
use thinwire_models::text::{self, Corpus, HELD_OUT};
use thinwire_models::{Result, Share};

#[test]
fn without_a_path_it_is_shakespeare() {
    let text = text::read(None).unwrap();
    assert_eq!(text.len(), 1_115_390);
    assert!(text.starts_with(b"First Citizen:\nBefore we proceed any further"));
    assert!(text.ends_with(b"Whiles thou art waking.\n") || text.ends_with(b"Whiles thou art waking."));
    assert!(text.is_ascii());
}

#[test]
fn a_file_is_text_whatever_its_name_and_encoding() {
    let folder = folder();
    assert_eq!(text::read(Some(&write(&folder, "a.log", "plain"))).unwrap(), b"plain");
    assert_eq!(text::read(Some(&write(&folder, "b", gzip("packed")))).unwrap(), b"packed");
    assert_eq!(text::read(Some(&write(&folder, "c", b"caf\xe9"))).unwrap(), b"caf\xe9");
}

#[test]
fn a_folder_is_its_texts_in_the_order_of_their_paths() {
    let folder = folder();
    write(&folder, "c.TXT", "third");
    write(&folder, "b/a.md.gz", gzip("second\n"));
    write(&folder, "a.text", "first");
    write(&folder, "b/empty.txt", "");
    write(&folder, ".hidden.txt", "no");
    write(&folder, ".git/x.txt", "no");
    write(&folder, "picture.png", "no");
    write(&folder, "archive.gz", gzip("no"));
    assert_eq!(String::from_utf8(text::read(Some(folder.path())).unwrap()).unwrap(), "first\nsecond\nthird");
    let files = ["a.text", "b/a.md.gz", "b/empty.txt", "c.TXT"].map(|name| folder.path().join(name));
    assert_eq!(text::files(Some(folder.path())).unwrap(), files);
    assert_eq!(text::files(Some(&files[0])).unwrap(), files[..1]);
    assert!(text::files(None).unwrap().is_empty());
}

#[test]
fn what_is_no_text_says_why() {
    let folder = folder();
    let no_text = "no text in this folder: looked for files that end in .txt, .text or .md";
    assert_error(text::read(Some(folder.path())), folder.path(), no_text);
    write(&folder, "empty.txt", "");
    assert_error(text::read(Some(folder.path())), folder.path(), no_text);
    let binary = write(&folder, "b.txt", b"\x7fELF\0\0");
    let problem = "does not look like text: byte 4 is zero; plain text is expected, best in UTF-8, or gzip of it";
    assert_error(text::read(Some(&binary)), &binary, problem);
    assert_error(text::read(Some(folder.path())), &binary, problem);
    let missing = folder.path().join("missing.txt");
    assert_error(text::read(Some(&missing)), &missing, "there is no such file or folder");
}

fn corpus(length: u32) -> Corpus {
    Corpus::new((0..length).collect(), HELD_OUT).unwrap()
}

#[test]
fn the_end_of_the_text_is_held_out() {
    let corpus = corpus(105);
    assert_eq!(corpus.train, (0..94).collect::<Vec<_>>());
    assert_eq!(corpus.held_out, (94..105).collect::<Vec<_>>());
}

#[test]
fn shares_are_in_order_cover_all_and_differ_by_one() {
    for length in [0, 1, 7, 100, 101] {
        let corpus = corpus(length);
        for workers in 1..=5 {
            let of = |rank| Share { rank, workers };
            let shares: Vec<_> = (0..workers).map(|rank| corpus.share(of(rank))).collect();
            assert_eq!(shares.concat(), corpus.train);
            let lengths = shares.iter().map(|share| share.len());
            assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 1);
            let held_out: Vec<_> = (0..workers).map(|rank| corpus.held_out_share(of(rank))).collect();
            assert_eq!(held_out.concat(), corpus.held_out);
        }
    }
}

#[test]
fn windows_are_in_a_row_and_reach_both_ends() {
    let tokens: Vec<u32> = (0..10).collect();
    let random = &mut Random::of(&[7]);
    let mut starts = [0; 7];
    for _ in 0..7000 {
        let window = text::window(&tokens, 4, random);
        assert_eq!(window, &tokens[window[0] as usize..][..4]);
        starts[window[0] as usize] += 1;
    }
    assert!(starts.iter().all(|count| (850..1150).contains(count)), "{starts:?}");
    assert_eq!(text::window(&tokens, 10, random), tokens);
}

#[test]
fn too_little_text_says_how_much_is_needed() {
    let said = |result: Result<()>| result.unwrap_err().to_string();
    let corpus = corpus(100);
    corpus.check(2, 4).unwrap();
    assert_eq!(
        said(corpus.check(2, 5)),
        "context = 5: too little text: 10 tokens are held out, and 2 workers need 12, a context and one token each; a longer \
         text, a shorter context or fewer workers will do"
    );
    assert!(said(corpus.check(5, 18)).contains("90 tokens are to train on, and 5 workers need 95,"));
    assert!(said(corpus.check(3, usize::MAX)).contains("too little text"));
}

#[test]
fn the_held_out_part_is_a_part() {
    for part in [0.0, 1.0, -0.1, f64::NAN, f64::INFINITY] {
        let error = Corpus::new(vec![1, 2, 3], part).unwrap_err().to_string();
        assert!(error.ends_with("a part of the text between 0 and 1 is expected"), "{error}");
    }
}
