//! Files and gzip.

use crate::{assert_error, cuts, folder, gzip, spoiled, write};
use thinwire_models::file;

#[test]
fn gzip_is_known_by_its_bytes_and_not_by_its_name() {
    let folder = folder();
    let packed = write(&folder, "packed.txt", gzip("content"));
    let plain = write(&folder, "plain.gz", "content");
    assert_eq!(file::read(&packed).unwrap(), b"content");
    assert_eq!(file::read(&plain).unwrap(), b"content");
}

#[test]
fn gzip_may_have_several_members() {
    let folder = folder();
    let path = write(&folder, "two.gz", [gzip("one "), gzip("two")].concat());
    assert_eq!(file::read(&path).unwrap(), b"one two");
}

#[test]
fn what_cannot_be_read_is_named() {
    let folder = folder();
    let missing = folder.path().join("missing");
    assert_error(file::read(&missing), &missing, "there is no such file or folder");
    assert_error(file::read(folder.path()), folder.path(), "is a folder, and a file is expected");
    let empty = write(&folder, "empty", "");
    assert_error(file::read(&empty), &empty, "is empty");
    let empty = write(&folder, "empty.gz", gzip(""));
    assert_error(file::read(&empty), &empty, "is empty");
}

#[cfg(unix)]
#[test]
fn a_device_is_not_read() {
    let zeros = std::path::Path::new("/dev/zero");
    assert_error(file::read(zeros), zeros, "is not a regular file");
}

#[test]
fn gzip_that_is_cut_short_says_so() {
    let folder = folder();
    for cut in cuts(&gzip("To be, or not to be")).skip(2) {
        let path = write(&folder, "cut.gz", cut);
        assert_error(file::read(&path), &path, "the gzip data is cut short");
    }
}

#[test]
fn spoiled_gzip_is_never_taken_for_something_else() {
    let folder = folder();
    let text = "Whether 'tis nobler in the mind to suffer. ".repeat(3);
    for bytes in spoiled(&gzip(&text)) {
        let is_gzip = bytes.starts_with(&[0x1f, 0x8b]);
        let path = write(&folder, "spoiled.gz", bytes);
        if let Ok(read) = file::read(&path) {
            assert!(!is_gzip || read == text.as_bytes(), "read {:?}", String::from_utf8_lossy(&read));
        }
    }
}

#[test]
fn a_small_gzip_of_much_is_refused_at_the_limit() {
    let folder = folder();
    let path = write(&folder, "bomb.gz", gzip(vec![b'x'; 1_000_000]));
    assert_error(
        file::read_at_most(&path, 999_999),
        &path,
        "holds more than 999999 bytes of data, the most that is read",
    );
    assert_eq!(file::read_at_most(&path, 1_000_000).unwrap().len(), 1_000_000);
}
