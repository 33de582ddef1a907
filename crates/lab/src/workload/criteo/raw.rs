//! The CriteoPrivateAd files as they are published: one row per display, in one folder per day.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

use super::bucket;
use crate::workload::cells::{Cell, Column, Holds, ParquetFile, quoted};
use crate::workload::csv::Csv;
use crate::workload::gather::{Field, Gather, GatherOptions, Refusal, RowKind, TableRow};
use crate::workload::hash::{FastMap, FastSet, wide_hash};
use crate::workload::read::{ReadError, ReadProgress};
use crate::workload::table::{MEMORY_ROWS, in_folder};
use crate::workload::{DAY, Workload};

/// Options for reading the published files.
#[derive(Debug, Clone)]
pub struct RawOptions {
    /// The days to read, from 1 to 30. The paper uses the last twenty.
    pub days: RangeInclusive<u8>,
    /// True if users are resampled, so that the shares of users with one display, two displays and
    /// so on up to ten are those of the original data. The published data has too few users with
    /// few displays.
    pub resample: bool,
    /// The seed for the choice of users.
    pub seed: u64,
    /// The folder on whose disk temporary files are created. The default is the system's folder for
    /// such files. The files have no name.
    pub temporary: Option<PathBuf>,
}

impl Default for RawOptions {
    fn default() -> Self {
        Self {
            days: 11..=30,
            resample: true,
            seed: 0,
            temporary: None,
        }
    }
}

/// The last day of the published data.
const LAST_DAY: u8 = 30;

/// A file of day 3 that repeats all rows of the other files of that day.
const DUPLICATE: (u8, &str) = (
    3,
    "part-00000-d0cfd34a-794e-4f02-a177-a96d3f9483cf-c000.gz.parquet",
);

/// The file with the shares of users that have one display, two displays and so on in the original
/// data.
const CORRECTION: &str = "event_per_user_correction.csv";

/// The most displays of a user. Resampling drops users with more.
const MAX_DISPLAYS: usize = 10;

/// Reads the published files: folders `day_int=N` of Parquet files, or Parquet files with a column
/// `day_int`. Both are looked for in this folder and in the folder `data` below it.
///
/// A display becomes an impression at the first minute of its day, because only its day is known.
/// Every click, landed click and sale after it becomes a conversion, in this order. Rows without a
/// campaign, a user or a publisher are dropped.
///
/// Users are resampled with `event_per_user_correction.csv`, which must be in the folder or in the
/// one above it. The files are then read twice: first to count the displays of users, then to read
/// the events of the users that are kept. In between, each user takes about 40 bytes of memory.
///
/// # Errors
/// If a file is missing or has a wrong value. The error names the file, the column and the row.
pub fn read_raw(
    folder: &Path,
    options: &RawOptions,
    progress: &mut dyn FnMut(ReadProgress),
) -> Result<Workload, ReadError> {
    let files = files(folder, &options.days)?;
    let passes = if options.resample { 2 } else { 1 };
    let bytes: u64 = files.iter().map(|file| file.bytes).sum();
    let mut raw = Raw {
        files,
        days: options.days.clone(),
        progress,
        now: ReadProgress {
            bytes_done: 0,
            bytes_total: passes * bytes,
            rows: 0,
        },
        displays: 0,
    };
    let kept = match options.resample {
        true => {
            let (path, shares) = shares(folder)?;
            let kept = sample(raw.count()?, &shares, options.seed);
            if kept.is_empty() {
                let what = "the file gives no share for the number of displays of any user";
                return Err(ReadError::new(&path, what));
            }
            Some(kept)
        }
        false => None,
    };
    let workload = raw.events(kept.as_ref(), options.temporary.as_deref())?;
    if workload.is_empty() {
        let (first, last) = (options.days.start(), options.days.end());
        let what = format!("the folder has no displays on days {first} to {last}");
        return Err(ReadError::new(folder, what));
    }
    Ok(workload)
}

/// A file, and its day if the name of its folder contains it.
#[derive(Debug, Clone)]
struct RawFile {
    path: PathBuf,
    day: Option<u8>,
    bytes: u64,
}

fn files(folder: &Path, days: &RangeInclusive<u8>) -> Result<Vec<RawFile>, ReadError> {
    let below = folder.join("data");
    let folders = match below.is_dir() {
        true => vec![folder, &below],
        false => vec![folder],
    };
    let mut files = Vec::new();
    let mut push = |path: PathBuf, day| -> Result<(), ReadError> {
        let metadata = std::fs::metadata(&path);
        let bytes = metadata
            .map_err(|cause| ReadError::new(&path, cause.to_string()))?
            .len();
        files.push(RawFile { path, day, bytes });
        Ok(())
    };
    for folder in folders {
        for path in in_folder(folder)? {
            if is_parquet(&path) {
                push(path, None)?;
                continue;
            }
            let name = path.file_name().and_then(|name| name.to_str());
            let day = name.and_then(|name| name.strip_prefix("day_int="));
            let Some(day) = day.and_then(|day| day.parse().ok()) else {
                continue;
            };
            if !days.contains(&day) {
                continue;
            }
            for path in in_folder(&path)? {
                let is_duplicate = DUPLICATE.0 == day && path.ends_with(DUPLICATE.1);
                if is_parquet(&path) && !is_duplicate {
                    push(path, Some(day))?;
                }
            }
        }
    }
    if files.is_empty() {
        let (first, last) = (days.start(), days.end());
        let what = format!("the folder has no Parquet files for days {first} to {last}");
        return Err(ReadError::new(folder, what));
    }
    // Sorted by day, not by name. The sort is stable: files of one day stay in the order of names.
    files.sort_by_key(|file| file.day);
    Ok(files)
}

fn is_parquet(path: &Path) -> bool {
    path.is_file()
        && path
            .extension()
            .is_some_and(|end| end.eq_ignore_ascii_case("parquet"))
}

/// The path of the correction file, and the share of users in the original data by number of
/// displays.
fn shares(folder: &Path) -> Result<(PathBuf, [Option<f64>; MAX_DISPLAYS + 1]), ReadError> {
    let mut path = folder.join(CORRECTION);
    if !path.exists()
        && let Some(above) = folder.parent()
        && above.join(CORRECTION).exists()
    {
        path = above.join(CORRECTION);
    }
    let mut csv = Csv::open(&path, b';')?;
    let names = ["cnt_displays", "nb_users_original"];
    let mut places = [0; 2];
    for (place, name) in places.iter_mut().zip(names) {
        let found = csv.header().iter().position(|column| column == name);
        *place =
            found.ok_or_else(|| ReadError::new(&path, format!("there is no column `{name}`")))?;
    }
    let mut shares = [None; MAX_DISPLAYS + 1];
    while let Some(record) = csv.next()? {
        let cells = places.map(|place| record.cell(place).unwrap_or(Cell::Nothing));
        let displays = cells[0].number();
        let share = match cells[1] {
            Cell::Text(text) => percent(text),
            _ => percent(""),
        };
        let displays = displays.map_err(|what| csv.error(Some(names[0]), &what))?;
        let share = share.map_err(|what| csv.error(Some(names[1]), &what))?;
        let place = displays.and_then(|displays| usize::try_from(displays).ok());
        if let Some(place) = place.and_then(|place| shares.get_mut(place)) {
            *place = Some(share / 100.0);
        }
    }
    Ok((path, shares))
}

fn percent(text: &str) -> Result<f64, String> {
    let share = text.parse().ok();
    let share = share.filter(|share| (0.0..=100.0).contains(share));
    share.ok_or_else(|| format!("{} is not a percentage from 0 to 100", quoted(text)))
}

/// Chooses as many users as possible with the shares of the original data.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts of users"
)]
fn sample(
    displays: FastMap<u128, u8>,
    shares: &[Option<f64>; MAX_DISPLAYS + 1],
    seed: u64,
) -> FastSet<u128> {
    let mut users: [Vec<u128>; MAX_DISPLAYS + 1] = std::array::from_fn(|_| Vec::new());
    for (user, count) in displays {
        if let Some(users) = users.get_mut(usize::from(count)) {
            users.push(user);
        }
    }
    let shares = shares.map(|share| share.unwrap_or(0.0));
    let sizes = users.iter().zip(shares);
    let sizes = sizes.filter(|(users, share)| !users.is_empty() && *share > 0.0);
    let size = sizes
        .map(|(users, share)| users.len() as f64 / share)
        .fold(f64::INFINITY, f64::min);
    let mut kept = FastSet::default();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for (count, (mut users, share)) in users.into_iter().zip(shares).enumerate() {
        if users.is_empty() || share == 0.0 {
            continue;
        }
        // The small addition keeps an inexact whole number from being rounded down to the one
        // below.
        let target = (size * share + 1e-6) as usize;
        users.sort_unstable();
        rng.set_stream(count as u64);
        rng.set_word_pos(0);
        for at in 0..target.min(users.len()) {
            let left = (users.len() - at) as u64;
            let other = at + ((u128::from(rng.next_u64()) * u128::from(left)) >> 64) as usize;
            users.swap(at, other);
            kept.insert(users[at]);
        }
    }
    kept
}

/// A reader of the published files.
struct Raw<'a> {
    files: Vec<RawFile>,
    days: RangeInclusive<u8>,
    progress: &'a mut dyn FnMut(ReadProgress),
    now: ReadProgress,
    /// The number of displays that have been counted.
    displays: u64,
}

const DAY_INT: &str = "day_int";
const USER: &str = "user_id";
const CAMPAIGN: &str = "campaign_id";
const PUBLISHER: &str = "publisher_id";
const FEATURE: &str = "features_ctx_not_constrained_0";
const DELAYS: [&str; 3] = [
    "click_delay_after_display_array",
    "landed_click_delay_after_display_array",
    "sale_delay_after_display_array",
];

impl Raw<'_> {
    /// The number of displays of each user, at most 255.
    fn count(&mut self) -> Result<FastMap<u128, u8>, ReadError> {
        let mut displays = FastMap::default();
        let mut total = 0;
        self.each(false, |display, _| {
            let count = displays.entry(wide_hash(display.user)).or_insert(0_u8);
            *count = count.saturating_add(1);
            total += 1;
            Ok(())
        })?;
        self.displays = total;
        Ok(displays)
    }

    fn events(
        &mut self,
        kept: Option<&FastSet<u128>>,
        temporary: Option<&Path>,
    ) -> Result<Workload, ReadError> {
        let mut gather = Gather::new(GatherOptions {
            sorted: false,
            memory_rows: MEMORY_ROWS,
            temporary: temporary.map(Path::to_owned),
            least_rows: 0,
            expected_rows: EVENTS_OF_DISPLAY * self.displays.max(self.rows_said()?),
        });
        let mut site = String::new();
        self.each(true, |display, [feature, delays @ ..]| {
            if kept.is_some_and(|kept| !kept.contains(&wide_hash(display.user))) {
                return Ok(());
            }
            let morning = (u32::from(display.day) - 1) * DAY;
            site.clear();
            site.push_str(
                display
                    .publisher
                    .strip_prefix('-')
                    .unwrap_or(display.publisher),
            );
            let row = TableRow {
                device: display.user,
                minute: morning,
                epoch: u16::from(display.day),
                conversion_site: display.campaign,
                kind: RowKind::Impression {
                    site: &site,
                    bucket: bucket(
                        feature
                            .cell(display.at)
                            .number()
                            .ok()
                            .flatten()
                            .unwrap_or(0),
                    ),
                },
                order: None,
            };
            gather.push(&row).map_err(refused)?;
            for (column, name) in delays.iter().zip(DELAYS) {
                let Some(delays) = column.list(display.at) else {
                    continue;
                };
                for at in 0..delays.len() {
                    let Some(minute) =
                        after(morning, delays.cell(at)).map_err(|what| Wrong::Cell(name, what))?
                    else {
                        continue;
                    };
                    let (minute, epoch) = minute;
                    let conversion = TableRow {
                        minute,
                        epoch,
                        kind: RowKind::Conversion {
                            value: 1,
                            came_from: Some(&site),
                        },
                        ..row
                    };
                    gather.push(&conversion).map_err(refused)?;
                }
            }
            Ok(())
        })?;
        gather.finish()
    }

    /// The number of rows in all files, according to their metadata.
    fn rows_said(&self) -> Result<u64, ReadError> {
        let rows = self
            .files
            .iter()
            .map(|file| Ok(ParquetFile::open(&file.path)?.rows()));
        rows.sum()
    }

    /// Calls `each` with every display of the days, and with the columns of its feature and its
    /// delays, which are empty unless `with_delays` is true.
    fn each(
        &mut self,
        with_delays: bool,
        mut each: impl FnMut(&Display<'_>, [&Column; 4]) -> Result<(), Wrong>,
    ) -> Result<(), ReadError> {
        let mut names = [const { String::new() }; 3];
        for file in self.files.clone() {
            let day = file.day.is_none().then_some((DAY_INT, Holds::Numbers));
            let opened = ParquetFile::open(&file.path)?;
            let expected = opened.rows().max(1);
            let delays = |column| with_delays.then_some(column);
            let mut batches = opened.columns([
                day,
                Some((USER, Holds::Names)),
                Some((CAMPAIGN, Holds::Names)),
                Some((PUBLISHER, Holds::Names)),
                delays((FEATURE, Holds::Numbers)),
                delays((DELAYS[0], Holds::Lists)),
                delays((DELAYS[1], Holds::Lists)),
                delays((DELAYS[2], Holds::Lists)),
            ])?;
            let begin = self.now.bytes_done;
            let mut row = 0;
            while let Some((rows, columns)) = batches.next()? {
                let [days, users, campaigns, publishers, others @ ..] = &columns;
                for at in 0..rows {
                    row += 1;
                    let error = |column: &str, what: &str| {
                        ReadError::at(&file.path, Some(column), row, what)
                    };
                    let day = match file.day {
                        Some(day) => day,
                        None => day_of(days.cell(at)).map_err(|what| error(DAY_INT, &what))?,
                    };
                    let [user, campaign, publisher] = &mut names;
                    let user = users.cell(at).name(user);
                    let campaign = campaigns.cell(at).name(campaign);
                    let publisher = publishers.cell(at).name(publisher);
                    let (Some(user), Some(campaign), Some(publisher)) = (
                        user.map_err(|what| error(USER, &what))?,
                        campaign.map_err(|what| error(CAMPAIGN, &what))?,
                        publisher.map_err(|what| error(PUBLISHER, &what))?,
                    ) else {
                        continue;
                    };
                    if !self.days.contains(&day) {
                        continue;
                    }
                    let display = Display {
                        day,
                        user,
                        campaign,
                        publisher,
                        at,
                    };
                    each(&display, others.each_ref()).map_err(|wrong| match wrong {
                        Wrong::Cell(column, what) => error(column, &what),
                        Wrong::Row(what) => ReadError::at(&file.path, None, row, &what),
                        Wrong::Disk(error) => error,
                    })?;
                }
                self.now.rows += rows as u64;
                let share = u128::from(file.bytes) * u128::from(row) / u128::from(expected);
                let done = u64::try_from(share).unwrap_or(u64::MAX).min(file.bytes);
                self.now.bytes_done = begin + done;
                (self.progress)(self.now);
            }
            self.now.bytes_done = begin + file.bytes;
            (self.progress)(self.now);
        }
        Ok(())
    }
}

/// A generous estimate of the number of events per display.
const EVENTS_OF_DISPLAY: u64 = 3;

/// A row of a published file.
struct Display<'a> {
    day: u8,
    user: &'a str,
    campaign: &'a str,
    publisher: &'a str,
    /// Its index in the batch.
    at: usize,
}

/// An error in a row.
enum Wrong {
    Cell(&'static str, String),
    Row(String),
    Disk(ReadError),
}

fn refused(refusal: Refusal) -> Wrong {
    match refusal {
        Refusal::Column(Field::ImpressionSite, what) => Wrong::Cell(PUBLISHER, what),
        Refusal::Column(_, what) | Refusal::Row(what) => Wrong::Row(what),
        Refusal::Disk(error) => Wrong::Disk(error),
    }
}

fn day_of(cell: Cell<'_>) -> Result<u8, String> {
    let day = cell.number()?.unwrap_or(0);
    let known = u8::try_from(day)
        .ok()
        .filter(|day| (1..=LAST_DAY).contains(day));
    known.ok_or_else(|| format!("day {day} is out of range; use 1 to {LAST_DAY}"))
}

/// The minute and the epoch of an event that happens with this delay after a display. None if the
/// delay is empty.
fn after(morning: u32, delay: Cell<'_>) -> Result<Option<(u32, u16)>, String> {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "larger ones are out of range anyway"
    )]
    let delay = match delay {
        Cell::Nothing => return Ok(None),
        Cell::Fraction(delay) => delay.floor() as i128,
        delay => delay.number()?.unwrap_or(0),
    };
    // Clocks differ, so a delay can be negative. Such an event counts as right after the display.
    let minute = u32::try_from(delay.max(0))
        .ok()
        .and_then(|delay| morning.checked_add(delay));
    let place = minute.and_then(|minute| Some((minute, u16::try_from(minute / DAY + 1).ok()?)));
    match place {
        Some(place) => Ok(Some(place)),
        None => Err(format!("a delay of {delay} minutes is too long")),
    }
}
