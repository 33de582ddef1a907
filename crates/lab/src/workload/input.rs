//! The files of tables: where they are, how they are compressed, and in which format they are, told
//! by their first bytes.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use flate2::read::MultiGzDecoder;

use crate::workload::read::ReadError;

/// A file, or what was read from a stream.
#[derive(Debug)]
pub struct Input {
    path: PathBuf,
    /// The contents of a stream, in a temporary file without a name.
    spooled: Option<File>,
}

impl Input {
    /// A file or a folder.
    pub fn path(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            spooled: None,
        }
    }

    /// What a stream, such as standard input, contains. It is copied to a temporary file, because
    /// tables are looked at before they are read. Messages call it by this name.
    ///
    /// # Errors
    /// If the stream cannot be read, or the file cannot be written.
    pub fn stream(
        name: &str,
        stream: &mut dyn Read,
        temporary: Option<&Path>,
    ) -> Result<Self, ReadError> {
        let path = PathBuf::from(name);
        let spooled = Some(spool(&path, stream, temporary)?);
        Ok(Self { path, spooled })
    }
}

/// The format of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Rows of fields with this delimiter.
    Delimited(u8),
    Json,
    Parquet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    Gzip,
    Zstd,
}

/// A file whose format is known.
#[derive(Debug)]
pub(crate) struct LogFile {
    pub(crate) path: PathBuf,
    spooled: Option<File>,
    pub(crate) format: Format,
    pub(crate) compression: Option<Compression>,
    pub(crate) bytes: u64,
}

/// The number of bytes at the beginning that decide the format.
const HEAD: usize = 1 << 16;

impl LogFile {
    fn new(path: PathBuf, spooled: Option<File>) -> Result<Self, ReadError> {
        let mut file = Self {
            path,
            spooled,
            format: Format::Parquet,
            compression: None,
            bytes: 0,
        };
        let error = |path: &Path, cause: &io::Error| ReadError::new(path, cause.to_string());
        if file.spooled.is_none() {
            let about = std::fs::metadata(&file.path);
            let about = about.map_err(|cause| error(&file.path, &cause))?;
            if !about.is_file() {
                // A pipe can be read only once.
                let opened = File::open(&file.path);
                let mut opened = opened.map_err(|cause| error(&file.path, &cause))?;
                file.spooled = Some(spool(&file.path, &mut opened, None)?);
            }
        }
        let raw = file.raw()?;
        let about = raw.metadata();
        file.bytes = about.map_err(|cause| error(&file.path, &cause))?.len();
        let magic = file.head(raw)?;
        file.compression = match magic.as_slice() {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Compression::Zstd),
            _ => None,
        };
        let head = match file.compression {
            None => magic,
            Some(_) => file.head(file.text(&Rc::default())?)?,
        };
        file.format = match head.as_slice() {
            [b'P', b'A', b'R', b'1', ..] if file.compression.is_none() => Format::Parquet,
            head => file.text_format(head)?,
        };
        Ok(file)
    }

    /// The format of text, or the reason why it is not text.
    fn text_format(&self, head: &[u8]) -> Result<Format, ReadError> {
        let what = match head {
            [b'P', b'A', b'R', b'1', ..] => "the Parquet file is compressed; decompress it first",
            [b'P', b'K', 3 | 5, 4 | 6, ..] => {
                "a zip archive or an Excel workbook; extract the table, or export it as CSV"
            }
            [b'B', b'Z', b'h', ..] | [0xfd, b'7', b'z', b'X', b'Z', ..] => {
                "compressed as bzip2 or xz; decompress the file, or compress it as gzip or zstd"
            }
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "the text is UTF-16; save it as UTF-8",
            [b'O', b'b', b'j', 1, ..] | [b'O', b'R', b'C', ..] => {
                "an Avro or ORC file; export the table as Parquet or CSV"
            }
            _ if extension(&self.path).is_some_and(|end| end == "parquet" || end == "pqt") => {
                "not a Parquet file: it does not begin with PAR1"
            }
            head => return Ok(sniff(head)),
        };
        Err(ReadError::new(&self.path, what))
    }

    /// The bytes as they are stored.
    pub(crate) fn raw(&self) -> Result<File, ReadError> {
        let opened = match &self.spooled {
            None => File::open(&self.path),
            Some(file) => file.try_clone().and_then(|mut file| {
                file.seek(SeekFrom::Start(0))?;
                Ok(file)
            }),
        };
        opened.map_err(|cause| ReadError::new(&self.path, cause.to_string()))
    }

    /// The bytes of the text, decompressed. `count` becomes the number of stored bytes that were
    /// read.
    pub(crate) fn text(&self, count: &Rc<Cell<u64>>) -> Result<Box<dyn Read>, ReadError> {
        let raw = Counted {
            file: self.raw()?,
            count: Rc::clone(count),
        };
        Ok(match self.compression {
            None => Box::new(raw),
            Some(Compression::Gzip) => {
                Box::new(Decompressed(MultiGzDecoder::new(io::BufReader::new(raw))))
            }
            Some(Compression::Zstd) => {
                let decoder = zstd::stream::read::Decoder::new(raw);
                let error = |cause: io::Error| ReadError::new(&self.path, cause.to_string());
                Box::new(Decompressed(decoder.map_err(error)?))
            }
        })
    }

    fn head(&self, from: impl Read) -> Result<Vec<u8>, ReadError> {
        let mut head = Vec::new();
        let read = from.take(HEAD as u64).read_to_end(&mut head);
        read.map_err(|cause| ReadError::new(&self.path, cause.to_string()))?;
        Ok(head)
    }

    /// The format and the compression in words.
    pub(crate) fn format_name(&self) -> String {
        let format = match self.format {
            Format::Delimited(b',') => "CSV".to_owned(),
            Format::Delimited(b'\t') => "TSV".to_owned(),
            Format::Delimited(delimiter) => format!("CSV with {}", char::from(delimiter)),
            Format::Json => "JSON".to_owned(),
            Format::Parquet => "Parquet".to_owned(),
        };
        match self.compression {
            None => format,
            Some(Compression::Gzip) => format!("{format} (gzip)"),
            Some(Compression::Zstd) => format!("{format} (zstd)"),
        }
    }
}

/// Copies a stream to a temporary file without a name, so that it can be read several times. Only
/// the owner may open it.
fn spool(path: &Path, stream: &mut dyn Read, temporary: Option<&Path>) -> Result<File, ReadError> {
    let folder = temporary.map_or_else(std::env::temp_dir, Path::to_owned);
    let in_folder = |cause: io::Error| {
        let what = format!("cannot create a temporary file in this folder: {cause}");
        ReadError::new(&folder, what)
    };
    let mut file = tempfile::tempfile_in(&folder).map_err(in_folder)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let only_owner = std::fs::Permissions::from_mode(0o600);
        file.set_permissions(only_owner).map_err(in_folder)?;
    }
    let copied = io::copy(stream, &mut file);
    copied.map_err(|cause| ReadError::new(path, format!("cannot be copied: {cause}")))?;
    Ok(file)
}

/// A file that counts the bytes that were read from it.
struct Counted {
    file: File,
    count: Rc<Cell<u64>>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.count.set(self.count.get() + read as u64);
        Ok(read)
    }
}

/// A decompressor, whose errors say that the file is damaged.
struct Decompressed<R>(R);

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|cause| {
            let what = format!("the file cannot be decompressed: {cause}");
            io::Error::new(cause.kind(), what)
        })
    }
}

/// JSON begins with a bracket. The delimiter of anything else is the one that its first line has
/// most often.
fn sniff(head: &[u8]) -> Format {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let blank = |byte: &&u8| byte.is_ascii_whitespace();
    let text = &head[head.iter().take_while(blank).count()..];
    if let [b'{' | b'[', ..] = text {
        return Format::Json;
    }
    let mut quoted = false;
    let mut counts = [0_usize; DELIMITERS.len()];
    for byte in text {
        match byte {
            b'"' => quoted = !quoted,
            b'\n' | b'\r' if !quoted => break,
            byte if !quoted => {
                if let Some(at) = DELIMITERS.iter().position(|known| known == byte) {
                    counts[at] += 1;
                }
            }
            _ => {}
        }
    }
    let most = (0..DELIMITERS.len()).rev().max_by_key(|at| counts[*at]);
    Format::Delimited(most.map_or(b',', |at| DELIMITERS[at]))
}

/// Of two that are equally frequent, the first is taken.
const DELIMITERS: [u8; 4] = [b',', b'\t', b';', b'|'];

fn extension(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_ascii_lowercase())
}

/// The files among these inputs, those of a folder and its folders in the order of their names.
pub(crate) fn files(inputs: Vec<Input>) -> Result<Vec<LogFile>, ReadError> {
    let mut files = Vec::new();
    for input in inputs {
        if input.spooled.is_some() || !input.path.is_dir() {
            files.push(LogFile::new(input.path, input.spooled)?);
            continue;
        }
        let mut found = Vec::new();
        walk(&input.path, 0, &mut found)?;
        if found.is_empty() {
            let what = "the folder has no .csv, .tsv, .json, .jsonl, .ndjson, .parquet or .pqt \
                        file, with or without .gz or .zst";
            return Err(ReadError::new(&input.path, what));
        }
        for path in found {
            files.push(LogFile::new(path, None)?);
        }
    }
    if files.is_empty() {
        return Err(ReadError::new(Path::new("tables"), "no file was given"));
    }
    Ok(files)
}

/// The most folders inside each other. It ends loops of links.
const DEPTH: usize = 16;

fn walk(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), ReadError> {
    for path in in_folder(folder)? {
        let name = path.file_name().and_then(std::ffi::OsStr::to_str);
        let hidden = name.is_none_or(|name| name.starts_with(['.', '_']));
        if hidden {
            continue;
        }
        if path.is_dir() {
            if depth < DEPTH {
                walk(&path, depth + 1, found)?;
            }
        } else if is_table(&path) && path.is_file() {
            found.push(path);
        }
    }
    Ok(())
}

/// True if a file in a folder is taken for a table.
fn is_table(path: &Path) -> bool {
    let plain = match extension(path).as_deref() {
        Some("gz" | "gzip" | "zst" | "zstd") => path.with_extension(""),
        _ => path.to_owned(),
    };
    matches!(
        extension(&plain).as_deref(),
        Some("csv" | "tsv" | "tab" | "psv" | "json" | "jsonl" | "ndjson" | "parquet" | "pqt")
    )
}

/// The paths in a folder, in the order of their names.
pub(crate) fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let error = |cause: io::Error| ReadError::new(folder, cause.to_string());
    let entries = std::fs::read_dir(folder).map_err(error)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = paths.collect::<Result<_, _>>().map_err(error)?;
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_decide() {
        assert_eq!(sniff(b"a,b;c\n;;;;"), Format::Delimited(b','));
        assert_eq!(sniff(b"a;b;c,d\n"), Format::Delimited(b';'));
        assert_eq!(sniff(b"\xef\xbb\xbfa\tb"), Format::Delimited(b'\t'));
        assert_eq!(sniff(b"\"a;;;\"|b|c"), Format::Delimited(b'|'));
        assert_eq!(sniff(b"one"), Format::Delimited(b','));
        assert_eq!(sniff(b""), Format::Delimited(b','));
        assert_eq!(sniff(b" \n{\"a\":1}"), Format::Json);
        assert_eq!(sniff(b"[]"), Format::Json);
    }
}
