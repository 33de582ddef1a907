//! Parts of a workload on disk: Arrow files in a temporary folder that goes away with the workload.

use std::fs::File;
use std::io::{BufReader, IntoInnerError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{UInt16Type, UInt32Type};
use arrow_array::{ArrayRef, RecordBatch, UInt16Array, UInt32Array};
use arrow_ipc::reader::FileReader;
use arrow_ipc::writer::FileWriter;
use tempfile::TempDir;

use crate::workload::Part;
use crate::workload::read::ReadError;

/// A temporary folder.
#[derive(Debug)]
pub(crate) struct Disk {
    folder: TempDir,
    parts: usize,
}

impl Disk {
    /// A new folder in this one, or where the system has such folders.
    pub(crate) fn new(parent: Option<&Path>) -> Result<Self, ReadError> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let folder = tempfile::Builder::new()
            .prefix("bigbird-")
            .tempdir_in(&parent);
        let folder = folder.map_err(|cause| {
            ReadError::new(
                &parent,
                format!("no temporary folder can be made there: {cause}"),
            )
        })?;
        Ok(Self { folder, parts: 0 })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a part.
    pub(crate) fn write(&mut self, part: Part) -> Result<PathBuf, ReadError> {
        let path = self.path().join(format!("part-{}.arrow", self.parts));
        self.parts += 1;
        let of_device = (0..).zip(part.begins.windows(2));
        let devices: UInt32Array = of_device
            .flat_map(|(device, ends)| (ends[0]..ends[1]).map(move |_| device))
            .collect::<Vec<u32>>()
            .into();
        let numbers = |values| Arc::new(UInt32Array::from(values)) as ArrayRef;
        let written = RecordBatch::try_from_iter([
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
        .and_then(|batch| {
            let mut writer = FileWriter::try_new_buffered(File::create(&path)?, &batch.schema())?;
            writer.write(&batch)?;
            writer.finish()?;
            writer
                .into_inner()?
                .into_inner()
                .map_err(IntoInnerError::into_error)?;
            Ok(())
        });
        match written {
            Ok(()) => Ok(path),
            Err(cause) => Err(ReadError::new(
                &path,
                format!("it cannot be written: {cause}"),
            )),
        }
    }
}

/// Reads a part of so many devices.
pub(crate) fn read(path: &Path, devices: usize, events: usize) -> Result<Part, ReadError> {
    let damaged = || ReadError::new(path, "it is not what was written");
    let batch = File::open(path)
        .map_err(Into::into)
        .and_then(|file| FileReader::try_new(BufReader::new(file), None))
        .and_then(|mut reader| reader.next().transpose());
    let batch = batch.map_err(|cause| ReadError::new(path, cause.to_string()))?;
    let batch = batch
        .filter(|batch| batch.num_rows() == events)
        .ok_or_else(damaged)?;
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
