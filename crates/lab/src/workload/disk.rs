//! Temporary files, for rows and parts of a workload that do not fit into memory.
//!
//! They have no name. Logs contain what people did, so nobody else may open these files, and
//! nothing may be left of them, however the process ends. The system frees a file without a name
//! when it is closed, even if a signal kills the process. No signal handler could promise that,
//! because SIGKILL cannot be handled.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{UInt16Type, UInt32Type};
use arrow_array::{ArrayRef, RecordBatch, UInt16Array, UInt32Array};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::ArrowError;

use crate::workload::Part;
use crate::workload::read::ReadError;

/// A temporary file to which batches are appended. The file is freed when this value and all of its
/// sections have been dropped.
#[derive(Debug)]
pub(crate) struct TempFile {
    nameless: Arc<Nameless>,
    end: u64,
}

/// A batch in a temporary file.
#[derive(Debug)]
pub(crate) struct Section {
    nameless: Arc<Nameless>,
    begin: u64,
    end: u64,
}

/// An open file without a name.
#[derive(Debug)]
struct Nameless {
    file: File,
    /// The folder on whose disk the file is. Errors name it.
    folder: PathBuf,
}

impl TempFile {
    /// An empty file on the disk of this folder. The default is the system's folder for temporary
    /// files.
    pub(crate) fn new(folder: Option<&Path>) -> Result<Self, ReadError> {
        let folder = folder.map_or_else(std::env::temp_dir, Path::to_owned);
        match nameless(&folder) {
            Ok(file) => Ok(Self {
                nameless: Arc::new(Nameless { file, folder }),
                end: 0,
            }),
            Err(cause) => {
                let what = format!("cannot create a temporary file in this folder: {cause}");
                Err(ReadError::new(&folder, what))
            }
        }
    }

    /// Appends a batch with these columns.
    pub(crate) fn append(
        &mut self,
        columns: [(&'static str, ArrayRef); 7],
    ) -> Result<Section, ReadError> {
        let begin = self.end;
        let written = RecordBatch::try_from_iter(columns).and_then(|batch| self.write(&batch));
        self.end = written.map_err(|cause| {
            let cause = plain(&cause);
            let what = format!("cannot write a temporary file in this folder: {cause}");
            ReadError::new(&self.nameless.folder, what)
        })?;
        Ok(Section {
            nameless: Arc::clone(&self.nameless),
            begin,
            end: self.end,
        })
    }

    /// Writes a batch to the end of the file, and returns the new end.
    fn write(&self, batch: &RecordBatch) -> Result<u64, ArrowError> {
        let mut file = BufWriter::new(&self.nameless.file);
        file.seek(SeekFrom::Start(self.end))?;
        let mut writer = StreamWriter::try_new(&mut file, &batch.schema())?;
        writer.write(batch)?;
        writer.finish()?;
        drop(writer);
        file.flush()?;
        Ok(file.stream_position()?)
    }

    /// Appends a part.
    pub(crate) fn append_part(&mut self, part: Part) -> Result<Section, ReadError> {
        let of_device = (0..).zip(part.begins.windows(2));
        let devices: UInt32Array = of_device
            .flat_map(|(device, ends)| (ends[0]..ends[1]).map(move |_| device))
            .collect::<Vec<u32>>()
            .into();
        let numbers = |values| Arc::new(UInt32Array::from(values)) as ArrayRef;
        self.append([
            ("device", Arc::new(devices) as ArrayRef),
            ("minute", numbers(part.minutes)),
            (
                "epoch",
                Arc::new(UInt16Array::from(part.epochs)) as ArrayRef,
            ),
            ("conversion_site", numbers(part.conversion_sites)),
            ("kind", numbers(part.kinds)),
            ("came_from", numbers(part.came_from)),
            ("row", numbers(part.rows)),
        ])
    }
}

impl Section {
    /// Reads the batch.
    pub(crate) fn read(&self) -> Result<RecordBatch, ReadError> {
        let reader = BufReader::new(SectionReader {
            file: &self.nameless.file,
            at: self.begin,
            end: self.end,
        });
        let batch = StreamReader::try_new(reader, None)
            .and_then(|mut batches| batches.next().transpose())
            .map_err(|cause| self.unreadable(&plain(&cause)))?;
        batch.ok_or_else(|| self.unreadable("the file ends early"))
    }

    /// Reads a part with this number of devices and events.
    pub(crate) fn read_part(&self, devices: usize, events: usize) -> Result<Part, ReadError> {
        let damaged = || self.unreadable("the file does not contain what was written");
        let batch = self.read()?;
        if batch.num_rows() != events {
            return Err(damaged());
        }
        let numbers = |name: &str| -> Result<Vec<u32>, ReadError> {
            let column = batch.column_by_name(name);
            let column = column.and_then(|column| column.as_primitive_opt::<UInt32Type>());
            Ok(column.ok_or_else(damaged)?.values().to_vec())
        };
        let epochs = batch.column_by_name("epoch");
        let epochs = epochs.and_then(|column| column.as_primitive_opt::<UInt16Type>());
        let mut begins = vec![0];
        for (at, device) in (0..).zip(numbers("device")?) {
            if device as usize >= devices || (device as usize) < begins.len() - 1 {
                return Err(damaged());
            }
            begins.resize(device as usize + 1, at);
        }
        begins.resize(devices + 1, u32::try_from(events).map_err(|_| damaged())?);
        Ok(Part {
            begins,
            minutes: numbers("minute")?,
            epochs: epochs.ok_or_else(damaged)?.values().to_vec(),
            conversion_sites: numbers("conversion_site")?,
            kinds: numbers("kind")?,
            came_from: numbers("came_from")?,
            rows: numbers("row")?,
        })
    }

    fn unreadable(&self, cause: &str) -> ReadError {
        let what = format!("cannot read a temporary file in this folder: {cause}");
        ReadError::new(&self.nameless.folder, what)
    }
}

/// The error message. For an error of the disk, the library's prefix is left out.
fn plain(cause: &ArrowError) -> String {
    match cause {
        ArrowError::IoError(what, _) => what.clone(),
        cause => cause.to_string(),
    }
}

/// Creates a file without a name, with mode 0600.
fn nameless(folder: &Path) -> io::Result<File> {
    let file = tempfile::tempfile_in(folder)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// A reader of one section. Several sections of a file can be read at the same time.
struct SectionReader<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for SectionReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let wanted = left.min(buffer.len());
        let count = read_at(self.file, &mut buffer[..wanted], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, at)
}

#[cfg(windows)]
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{EventKind, WorkloadEvent};

    fn part(minutes: &[u32]) -> Part {
        let mut part = Part::default();
        for minute in minutes {
            part.push_device(&mut [WorkloadEvent {
                minute: *minute,
                epoch: 1,
                conversion_site: 2,
                kind: EventKind::Conversion {
                    value: 3,
                    came_from: None,
                },
                row: 4,
            }]);
        }
        part
    }

    #[test]
    fn sections_are_read_in_any_order_and_outlive_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = TempFile::new(Some(folder.path())).unwrap();
        let parts = [part(&[1, 2, 3]), part(&[]), part(&[4])];
        let written = parts.clone().map(|part| file.append_part(part).unwrap());
        drop(file);
        for (part, section) in parts.iter().zip(&written).rev() {
            let again = section.read_part(part.devices(), part.len()).unwrap();
            assert_eq!(again, *part);
        }
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = TempFile::new(Some(folder.path())).unwrap();
        let section = file.append_part(part(&[1, 2, 3])).unwrap();
        assert!(section.read_part(3, 4).is_err());
        assert!(section.read_part(2, 3).is_err());
        for end in 0..section.end {
            file.nameless.file.set_len(end).unwrap();
            // Only the end marker, the last eight bytes, may be missing.
            if let Ok(again) = section.read_part(3, 3) {
                assert!(end + 8 >= section.end);
                assert_eq!(again, part(&[1, 2, 3]));
            }
        }
        file.nameless.file.set_len(0).unwrap();
        let error = section.read_part(3, 3).unwrap_err().to_string();
        let expected = format!(
            "{}: cannot read a temporary file in this folder: ",
            folder.path().display()
        );
        assert!(error.starts_with(&expected), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn files_have_no_name_and_belong_to_their_owner() {
        use std::os::unix::fs::MetadataExt as _;
        let folder = tempfile::tempdir().unwrap();
        let mut file = TempFile::new(Some(folder.path())).unwrap();
        file.append_part(part(&[1, 2, 3])).unwrap();
        let about = file.nameless.file.metadata().unwrap();
        assert_eq!((about.nlink(), about.mode() & 0o7777), (0, 0o600));
        assert!(about.len() > 0);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
