//! CriteoPrivateAd as it is published: one row per display, in folders by day.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

use super::bucket;
use crate::workload::cells::{Cell, Column, Holds, ParquetFile, quoted};
use crate::workload::csv::Csv;
use crate::workload::gather::{Field, Gather, GatherOptions, Refusal, Row, RowKind};
use crate::workload::hash::{FixedMap, FixedSet, wide_hash};
use crate::workload::read::{Progress, ReadError};
use crate::workload::table::{MEMORY_ROWS, in_folder};
use crate::workload::{DAY, Workload};

/// What is taken of the published files.
#[derive(Debug, Clone)]
pub struct RawOptions {
    /// The days, from 1 to 30: the paper has the last twenty.
    pub days: RangeInclusive<u8>,
    /// Whether users are resampled, so that as many as in the original data have one display, two
    /// displays, and so on up to ten. The published data has too few users with few displays.
    pub resample: bool,
    /// What the choice of users follows from.
    pub seed: u64,
    /// The folder on whose disk temporary files are, if not that of the system. They have no name.
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

/// The days that there are.
const LAST_DAY: u8 = 30;

/// One file of day 3 has all rows of the other files of that day once more.
const DUPLICATE: (u8, &str) = (
    3,
    "part-00000-d0cfd34a-794e-4f02-a177-a96d3f9483cf-c000.gz.parquet",
);

/// How many users have how many displays in the original data.
const CORRECTION: &str = "event_per_user_correction.csv";

/// Users with more displays are dropped when users are resampled.
const MAX_DISPLAYS: usize = 10;

/// Reads the published files: `day_int=N` folders of Parquet files, in this folder or in `data` below
/// it, or Parquet files there that have a column `day_int`.
///
/// A display is an impression at the first minute of its day, because its time is not known any
/// better. Every click, landed click and sale after it is a conversion, in this order. Rows without
/// campaign, user or publisher are dropped.
///
/// Users are resampled with `event_per_user_correction.csv`, which must be in the folder or in the one
/// above. Files are read twice: first to count the displays of users, then for the events of those who
/// are kept. In between, each user takes about 40 bytes of memory.
///
/// # Errors
/// If a file is missing or makes no sense; the file, the column and the row are named.
pub fn read_raw(
    folder: &Path,
    options: &RawOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Workload, ReadError> {
    let files = files(folder, &options.days)?;
    let passes = if options.resample { 2 } else { 1 };
    let bytes: u64 = files.iter().map(|file| file.bytes).sum();
    let mut raw = Raw {
        files,
        days: options.days.clone(),
        progress,
        now: Progress {
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
                let what = "no user has as many displays as it has shares for";
                return Err(ReadError::new(&path, what));
            }
            Some(kept)
        }
        false => None,
    };
    let workload = raw.events(kept.as_ref(), options.temporary.as_deref())?;
    if workload.is_empty() {
        let (first, last) = (options.days.start(), options.days.end());
        let what = format!("it has no displays of days {first} to {last}");
        return Err(ReadError::new(folder, what));
    }
    Ok(workload)
}

/// A file, and its day if its folder says it.
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
        let what = format!("it has no Parquet files of days {first} to {last}");
        return Err(ReadError::new(folder, what));
    }
    // The order of days, not that of their names; on one day, that of files.
    files.sort_by_key(|file| file.day);
    Ok(files)
}

fn is_parquet(path: &Path) -> bool {
    path.is_file()
        && path
            .extension()
            .is_some_and(|end| end.eq_ignore_ascii_case("parquet"))
}

/// The share of users that have so many displays in the original data, and which file says so.
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
            found.ok_or_else(|| ReadError::new(&path, format!("it has no column `{name}`")))?;
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
    share.ok_or_else(|| format!("it is {}, no share in percent", quoted(text)))
}

/// Chooses users so that the shares are those of the original data, and as many as possible.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts of users"
)]
fn sample(
    displays: FixedMap<u128, u8>,
    shares: &[Option<f64>; MAX_DISPLAYS + 1],
    seed: u64,
) -> FixedSet<u128> {
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
    let mut kept = FixedSet::default();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for (count, (mut users, share)) in users.into_iter().zip(shares).enumerate() {
        if users.is_empty() || share == 0.0 {
            continue;
        }
        // What is a whole number must not be rounded down to the one before.
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

/// Published files that are being read.
struct Raw<'a> {
    files: Vec<RawFile>,
    days: RangeInclusive<u8>,
    progress: &'a mut dyn FnMut(Progress),
    now: Progress,
    /// How many displays have been counted.
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
    /// How many displays each user has: no more than the first number that is too many.
    fn count(&mut self) -> Result<FixedMap<u128, u8>, ReadError> {
        let mut displays = FixedMap::default();
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
        kept: Option<&FixedSet<u128>>,
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
            let row = Row {
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
                    let conversion = Row {
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

    /// How many rows all files say they have.
    fn rows_said(&self) -> Result<u64, ReadError> {
        let rows = self
            .files
            .iter()
            .map(|file| Ok(ParquetFile::open(&file.path)?.rows()));
        rows.sum()
    }

    /// Gives every display of the days, and where wanted its feature and its delays.
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

/// How many events a display stands for, roughly, and not too few.
const EVENTS_OF_DISPLAY: u64 = 3;

/// A row.
struct Display<'a> {
    day: u8,
    user: &'a str,
    campaign: &'a str,
    publisher: &'a str,
    /// Its place in the batch.
    at: usize,
}

/// What is wrong with a row.
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
    known.ok_or_else(|| format!("it is {day}: days go from 1 to {LAST_DAY}"))
}

/// The minute and the epoch of something that happens so long after a display; none if nothing does.
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
    // Clocks differ: what comes before the display came right after it.
    let minute = u32::try_from(delay.max(0))
        .ok()
        .and_then(|delay| morning.checked_add(delay));
    let place = minute.and_then(|minute| Some((minute, u16::try_from(minute / DAY + 1).ok()?)));
    match place {
        Some(place) => Ok(Some(place)),
        None => Err(format!("it has {delay}, which is too many minutes")),
    }
}
