//! What can be known of the write-ahead log before SQLite reads it.
//!
//! SQLite reads its log up to the first frame that does not match its checksum, and ignores the
//! rest: after a power cut, that is the transaction that was being written. But if an older frame
//! is damaged, everything after it was flushed and answered, and ignoring it would give budgets
//! back. The two can be told apart: a transaction is written only after the one before it was
//! flushed. So frames that follow the end of a transaction which SQLite would not see prove that
//! it had been flushed.
//!
//! What cannot be told from a power cut is damage in the very last transaction or in the last two
//! frames of the one before, and a log that ends earlier. See `docs/store.md`.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::error::{Damage, Problem};
use crate::vfs::PAGE;

const HEADER: usize = 32;
const FRAME: usize = 24 + PAGE;
/// The last bit tells the byte order of checksums.
const MAGIC: u32 = 0x377f_0682;

/// The write-ahead log of a database file.
pub(crate) fn path_of(database: &Path) -> PathBuf {
    suffixed(database, "-wal")
}

/// The index of the log, which processes share.
pub(crate) fn index_of(database: &Path) -> PathBuf {
    suffixed(database, "-shm")
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Says whether there is a log, having found no damage that SQLite would pass over. An empty one is
/// none: SQLite creates it when it opens a store.
pub(crate) fn inspect(database: &Path) -> Result<bool, Problem> {
    let failed = |error| Problem::io("reading the write-ahead log")(error);
    let file = match File::open(path_of(database)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(error)),
    };
    let empty = file.metadata().map_err(failed)?.len() == 0;
    match is_damaged(&mut BufReader::with_capacity(1 << 20, file)) {
        Ok(false) => Ok(!empty),
        Ok(true) => Err(Damage::Log("is damaged before its last transaction").into()),
        Err(error) => Err(failed(error)),
    }
}

/// Whether a log has something in it that was flushed and that SQLite will not see.
fn is_damaged(log: &mut (impl Read + Seek)) -> io::Result<bool> {
    let mut header = [0; HEADER];
    if !fill(log, &mut header)? {
        return Ok(false);
    }
    let word = |at: usize| be_word(&header, at);
    let big_endian = word(0) & 1 == 1;
    let sum = (word(24), word(28));
    let sound = word(0) & !1 == MAGIC
        && word(8) as usize == PAGE
        && sum == checksum((0, 0), &header[..24], big_endian);
    if sound {
        let salts = (word(16), word(20));
        return passes_over(log, sum, Some(salts), big_endian);
    }
    // SQLite passes over all of it. In which byte order it was written is not known either.
    Ok(passes_over(log, sum, None, big_endian)? || {
        log.seek(SeekFrom::Start(HEADER as u64))?;
        passes_over(log, sum, None, !big_endian)?
    })
}

/// Whether SQLite will pass over a transaction that was flushed, among the frames that follow. Each
/// carries the salts of the header, which are new each time the log begins anew; if they are not
/// known, SQLite does not see any frame.
fn passes_over(
    log: &mut impl Read,
    sum: (u32, u32),
    salts: Option<(u32, u32)>,
    big_endian: bool,
) -> io::Result<bool> {
    let mut stopped = salts.is_none();
    let mut salts = salts;
    let mut before = sum;
    let mut frame = [0; FRAME];
    // From a frame on that SQLite stops at: whether a transaction has ended since. Only a frame
    // that is intact tells: a power cut may leave any mix of old and new in the others.
    let mut ended = false;
    while fill(log, &mut frame)? {
        let word = |at: usize| be_word(&frame, at);
        let own_salts = (word(8), word(12));
        let own = (word(16), word(20));
        let content = checksum(before, &frame[..8], big_endian);
        let content = checksum(content, &frame[24..], big_endian);
        let current = *salts.get_or_insert(own_salts) == own_salts;
        let follows = current && content == own;
        if follows && ended {
            return Ok(true);
        }
        stopped |= !follows;
        ended |= stopped && follows && word(4) != 0;
        before = own;
    }
    Ok(false)
}

fn be_word(bytes: &[u8], at: usize) -> u32 {
    match bytes[at..].first_chunk() {
        Some(word) => u32::from_be_bytes(*word),
        None => 0,
    }
}

/// SQLite's checksum of its log (its file format, section 4.2).
fn checksum(seed: (u32, u32), bytes: &[u8], big_endian: bool) -> (u32, u32) {
    let (pairs, _) = bytes.as_chunks::<8>();
    let (mut first, mut second) = seed;
    for &[a, b, c, d, e, f, g, h] in pairs {
        let (one, two) = match big_endian {
            true => (
                u32::from_be_bytes([a, b, c, d]),
                u32::from_be_bytes([e, f, g, h]),
            ),
            false => (
                u32::from_le_bytes([a, b, c, d]),
                u32::from_le_bytes([e, f, g, h]),
            ),
        };
        first = first.wrapping_add(one).wrapping_add(second);
        second = second.wrapping_add(two).wrapping_add(first);
    }
    (first, second)
}

/// Reads exactly so many bytes, or says that there are not as many.
fn fill(log: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match log.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
