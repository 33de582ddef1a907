//! JSON files, read row by row: objects one after the other, with or without line ends, or in one
//! array.

use std::io::{BufReader, Read};
use std::path::Path;

use serde::de::{DeserializeSeed, Deserializer as _, Error as _, SeqAccess, Visitor};
use serde_json::{Deserializer, Map, Value};

use crate::workload::cells::Cell;
use crate::workload::read::ReadError;

/// A row.
pub(crate) type Object = Map<String, Value>;

/// Calls `each` with every object. If it returns an error, reading ends with this error.
pub(crate) fn each_object<E: From<ReadError>>(
    path: &Path,
    text: impl Read,
    mut each: impl FnMut(&Object) -> Result<(), E>,
) -> Result<(), E> {
    let mut stopped = None;
    let read = each_value(text, &mut |value| match value {
        Value::Object(object) => match each(object) {
            Ok(()) => Ok(()),
            Err(stop) => {
                stopped = Some(stop);
                Err("stopped")
            }
        },
        _ => Err("a row is not an object"),
    });
    match (stopped, read) {
        (Some(stop), _) => Err(stop),
        (None, Ok(())) => Ok(()),
        (None, Err(cause)) => {
            let what = match cause.io_error_kind() {
                Some(_) => format!("the file cannot be read: {cause}"),
                None => format!("not JSON as expected: {cause}"),
            };
            Err(ReadError::new(path, what).into())
        }
    }
}

type Each<'a> = &'a mut dyn FnMut(&Value) -> Result<(), &'static str>;

fn each_value(text: impl Read, each: Each<'_>) -> Result<(), serde_json::Error> {
    let mut text = BufReader::with_capacity(1 << 16, text);
    let first = first_byte(&mut text).map_err(serde_json::Error::io)?;
    if first == Some(b'[') {
        let mut values = Deserializer::from_reader(text);
        values.deserialize_seq(Elements(each))?;
        return values.end();
    }
    for value in Deserializer::from_reader(text).into_iter::<Value>() {
        each(&value?).map_err(serde_json::Error::custom)?;
    }
    Ok(())
}

/// The first byte that is not blank. What comes before it, with a byte-order mark, is skipped.
fn first_byte(text: &mut impl std::io::BufRead) -> std::io::Result<Option<u8>> {
    loop {
        let Some(byte) = text.fill_buf()?.first().copied() else {
            return Ok(None);
        };
        if !(byte.is_ascii_whitespace() || [0xef, 0xbb, 0xbf].contains(&byte)) {
            return Ok(Some(byte));
        }
        text.consume(1);
    }
}

/// The elements of an array, one by one.
struct Elements<'a>(Each<'a>);

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(value) = seq.next_element_seed(Element)? {
            (self.0)(&value).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

struct Element;

impl<'de> DeserializeSeed<'de> for Element {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        serde::Deserialize::deserialize(from)
    }
}

/// The names of the values in the first objects, in the order in which they occur, and those of the
/// given paths that lead somewhere.
pub(crate) fn names<'n>(
    path: &Path,
    text: impl Read,
    given: impl Iterator<Item = &'n str>,
    limit: u64,
) -> Result<Vec<String>, ReadError> {
    enum Stop {
        Enough,
        Error(ReadError),
    }
    impl From<ReadError> for Stop {
        fn from(error: ReadError) -> Self {
            Self::Error(error)
        }
    }
    let paths: Vec<&str> = given.filter(|name| name.contains('.')).collect();
    let mut names: Vec<String> = Vec::new();
    let mut known = std::collections::HashSet::new();
    let mut rows = 0;
    let read = each_object(path, text, |object| {
        if rows == limit {
            return Err(Stop::Enough);
        }
        rows += 1;
        let paths = paths.iter().filter(|path| at(object, path).is_some());
        for name in object.keys().map(String::as_str).chain(paths.copied()) {
            if !known.contains(name) {
                known.insert(name.to_owned());
                names.push(name.to_owned());
            }
        }
        Ok(())
    });
    match read {
        Err(Stop::Error(error)) => Err(error),
        Ok(()) if rows == 0 => Err(ReadError::new(path, "the file has no rows")),
        Ok(()) | Err(Stop::Enough) => Ok(names),
    }
}

/// The value at a name. A name with points is also a path through objects. Of a list, the first
/// value is taken.
pub(crate) fn at<'v>(object: &'v Object, name: &str) -> Option<&'v Value> {
    let found = match object.get(name) {
        Some(found) => found,
        None => {
            let (first, rest) = name.split_once('.')?;
            at(object.get(first)?.as_object()?, rest)?
        }
    };
    match found {
        Value::Array(values) => values.first(),
        found => Some(found),
    }
}

/// A value as a cell. Objects and lists are empty.
pub(crate) fn cell(value: &Value) -> Cell<'_> {
    match value {
        Value::Null | Value::Array(_) | Value::Object(_) => Cell::Nothing,
        Value::Bool(true) => Cell::Text("true"),
        Value::Bool(false) => Cell::Text("false"),
        Value::String(text) => Cell::of_text(text),
        Value::Number(number) => match (number.as_i128(), number.as_f64()) {
            (Some(number), _) => Cell::Number(number),
            (None, Some(number)) => Cell::of_float(number),
            (None, None) => Cell::Nothing,
        },
    }
}
