//! Tokenizers: bytes, and GPT-2's where it is built in.

use thinwire_models::tokenizer::Tokenizer;

#[test]
fn a_token_is_a_byte() {
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(Tokenizer::Bytes.vocabulary(), 256);
    assert_eq!(Tokenizer::Bytes.encode(&all), (0..256).collect::<Vec<u32>>());
    assert_eq!(Tokenizer::Bytes.decode(&Tokenizer::Bytes.encode("Où?".as_bytes())), "Où?");
    assert_eq!(Tokenizer::Bytes.decode(&[72, 0xe9, 300, 105]), "H��i");
}

#[cfg(not(feature = "gpt2"))]
#[test]
fn without_the_feature_gpt2_says_how_to_have_it() {
    let Err(error) = Tokenizer::gpt2(None) else { panic!("it is not built in") };
    let expected = "tokenizer = gpt2: this program was built without it: build with `--features gpt2`, or use the tokenizer `bytes`";
    assert_eq!(error.to_string(), expected);
}

#[cfg(feature = "gpt2")]
mod gpt2 {
    use serde_json::{Value, json};
    use std::path::Path;
    use tempfile::TempDir;
    use thinwire_models::tokenizer::Tokenizer;

    /// The letters that vocabularies write bytes with, made another way than the program makes them: those of the bytes that
    /// print, then those of the rest, each in their order, as OpenAI's `bytes_to_unicode` has it.
    fn letters() -> Vec<String> {
        let prints = |byte: &u32| (33..=126).contains(byte) || (161..=172).contains(byte) || (174..=255).contains(byte);
        let rest = (0..256).filter(|byte| !prints(byte)).zip(256..);
        let mut letters: Vec<_> = (0..256).filter(prints).map(|byte| (byte, byte)).chain(rest).collect();
        letters.sort();
        letters.into_iter().map(|(_, letter)| char::from_u32(letter).unwrap().to_string()).collect()
    }

    /// Ids run against the order of the merges, so that a rank taken for an id shows: byte b has the id 259 − b.
    fn tokens() -> Value {
        let bytes = letters().into_iter().zip((4..260).rev());
        let mut tokens: serde_json::Map<_, _> = bytes.map(|(letter, id)| (letter, json!(id))).collect();
        tokens.extend(
            [("Ġt", 3), ("he", 2), ("Ġthe", 1), ("<|endoftext|>", 0)].map(|(token, id)| (token.into(), json!(id))),
        );
        Value::Object(tokens)
    }

    const MERGES: &str = "#version: 0.2\nĠ t\nh e\nĠt he\n";

    fn tokenizer_json() -> Value {
        json!({
            "normalizer": null,
            "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false },
            "added_tokens": [{ "id": 0, "content": "<|endoftext|>" }],
            "model": { "type": "BPE", "vocab": tokens(), "merges": ["Ġ t", ["h", "e"], "Ġt he"] },
        })
    }

    fn write(folder: &TempDir, name: &str, content: impl ToString) {
        std::fs::write(folder.path().join(name), content.to_string()).unwrap();
    }

    fn assert_is_the_small_one(path: &Path) {
        let tokenizer = Tokenizer::gpt2(Some(path)).unwrap();
        assert_eq!(tokenizer.vocabulary(), 260);
        let tokens = tokenizer.encode(b"the the\xff");
        let byte = |byte: u8| 259 - u32::from(byte);
        assert_eq!(tokens, [byte(b't'), 2, 1, byte(0xff)]);
        assert_eq!(tokenizer.decode(&tokens), "the the�");
        assert_eq!(tokenizer.decode(&[0, 1, 9999]), "<|endoftext|> the�");
    }

    #[test]
    fn a_vocabulary_is_read_in_all_its_forms() {
        for names in [["vocab.json", "merges.txt"], ["encoder.json", "vocab.bpe"]] {
            let folder = tempfile::tempdir().unwrap();
            write(&folder, names[0], tokens());
            write(&folder, names[1], MERGES);
            assert_is_the_small_one(folder.path());
            assert_is_the_small_one(&folder.path().join(names[0]));
            assert_is_the_small_one(&folder.path().join(names[1]));
        }
        let folder = tempfile::tempdir().unwrap();
        write(&folder, "tokenizer.json", tokenizer_json());
        assert_is_the_small_one(folder.path());
        write(&folder, "mine.json", tokenizer_json());
        assert_is_the_small_one(&folder.path().join("mine.json"));
    }

    #[test]
    fn known_encodings_of_gpt2() {
        let gpt2 = Tokenizer::gpt2(None).unwrap();
        assert_eq!(gpt2.vocabulary(), 50_257);
        assert_eq!(gpt2.encode(b"Hello world"), [15496, 995]);
        assert_eq!(gpt2.encode(b"<|endoftext|>").len(), 7, "in a text it is a text");
        assert_eq!(gpt2.decode(&[15496, 995, 50256]), "Hello world<|endoftext|>");
        let text = "Où est-il?  \n\t「猫」 it's 1984…   \u{1f600}";
        assert_eq!(gpt2.decode(&gpt2.encode(text.as_bytes())), text);
    }

    #[test]
    fn endless_words_are_no_trouble() {
        let gpt2 = Tokenizer::gpt2(None).unwrap();
        for letter in ["a", " ", "\n", "!", "7", "é"] {
            let text = letter.repeat(200_000) + "b";
            assert_eq!(gpt2.decode(&gpt2.encode(text.as_bytes())), text);
        }
    }

    #[test]
    fn wrong_files_say_why() {
        let without = |token: &str| {
            let mut tokens = tokens();
            tokens.as_object_mut().unwrap().remove(token);
            tokens.to_string()
        };
        let with_id = |id: Value| {
            let mut tokens = tokens();
            tokens["he"] = id;
            tokens.to_string()
        };
        let all = tokens().to_string();
        let wrong = [
            ("{".into(), MERGES, "vocab.json: is not JSON"),
            ("[1]".into(), MERGES, "vocab.json: an object of tokens and their ids is expected"),
            (without("Ġ"), MERGES, "vocab.json: the token \"Ġ\" is missing"),
            (without("he"), MERGES, "vocab.json: the token \"he\" is missing"),
            (with_id(json!(-1)), MERGES, "the id of token \"he\" is -1, and a whole number is expected"),
            (
                with_id(json!(4_000_000_000_u32)),
                MERGES,
                "260 tokens, but token \"he\" has the id 4000000000: ids are 0, 1, 2 …, each once",
            ),
            (with_id(json!(3)), MERGES, "has the id 3: ids are 0, 1, 2 …, each once"),
            (all.clone(), "Ġ t h\n", "merges.txt: the merge \"Ġ t h\" is not two tokens with a space between them"),
            (all.clone(), "h e\nh e\n", "two merges make the token \"he\""),
            (all, "", "merges.txt: is empty"),
        ];
        for (tokens, merges, problem) in wrong {
            let folder = tempfile::tempdir().unwrap();
            write(&folder, "vocab.json", tokens);
            write(&folder, "merges.txt", merges);
            assert_says(folder.path(), problem);
        }
        let folder = tempfile::tempdir().unwrap();
        assert_says(
            folder.path(),
            "no tokenizer in this folder: looked for tokenizer.json, for vocab.json and merges.txt",
        );
        write(&folder, "vocab.json", tokens());
        assert_says(folder.path(), "merges.txt: there is no such file or folder");
        for (key, value) in
            [("normalizer", json!({})), ("pre_tokenizer", json!(null)), ("model", json!({ "type": "Unigram" }))]
        {
            let mut json = tokenizer_json();
            json[key] = value;
            write(&folder, "tokenizer.json", json);
            assert_says(folder.path(), "tokenizer.json: only GPT-2's kind of tokenizer is read");
        }
    }

    fn assert_says(path: &Path, problem: &str) {
        let Err(error) = Tokenizer::gpt2(Some(path)) else { panic!("should say {problem:?}") };
        assert!(error.to_string().contains(problem), "{error} should say {problem:?}");
    }
}
