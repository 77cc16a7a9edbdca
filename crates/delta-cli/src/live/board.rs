//! How all jobs of a run stand, as the lines of a screen: those that run first, those that are over
//! folded into a count, failures kept with their cause and their last lines.
//!
//! Pure: it is told what happens and what time it is, and knows neither a terminal nor a clock.
//! Never more lines than there is room for, and none longer than the screen is wide.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use delta_wire::api::JobSummary;
use delta_wire::states::JobState;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::short_names::short_names;
use crate::failed_job::ended;
use crate::sanitize::{self, Colours};
use crate::terminal::Tone;
use crate::{human_time, state_words};

/// Characters of a line that are kept: a job may print a megabyte without a line break.
const KEPT_CHARACTERS: usize = 400;

/// Last lines of a job that are kept: those under a failure while others still run.
const SHOWN_LINES: usize = 3;

/// Characters of a job's name in the live lines, of which it takes half at most. What is cut is in
/// the summary.
const NAME_COLUMN: usize = 32;

/// Columns of a step in front of the last line that it printed.
const STEP_COLUMN: usize = 18;

/// Room for lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub rows: usize,
    pub columns: usize,
}

impl Size {
    /// What a board may take of a terminal of so many rows and columns. A line that is full, or a
    /// row below the last, would make some terminals scroll.
    pub fn of_screen((rows, columns): (u16, u16)) -> Size {
        Size {
            rows: usize::from(rows).saturating_sub(1).max(1),
            columns: usize::from(columns).saturating_sub(1).max(1),
        }
    }
}

/// One line of the screen and what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub tone: Option<Tone>,
    pub text: String,
}

/// All jobs of one run.
pub struct Board {
    began: Instant,
    total: usize,
    /// Where in the plan a job is.
    places: HashMap<String, usize>,
    /// All jobs in that order, and behind them those that nobody knew of.
    names: Vec<String>,
    labels: Labels,
    /// In the order in which they began.
    running: Vec<Running>,
    /// Of jobs that run, or ran and failed.
    last_lines: HashMap<String, VecDeque<String>>,
    /// In the order in which they failed.
    failed: Vec<Failed>,
    ended: HashMap<String, JobState>,
}

/// What stands for each job's name: made from all names, so that it stays the job's own while
/// others come and go.
#[derive(Default)]
struct Labels {
    columns: usize,
    jobs: usize,
    of: HashMap<String, String>,
}

struct Running {
    name: String,
    attempt: u32,
    since: Instant,
    step: String,
}

/// A job that came to a bad end.
#[derive(Debug, Clone)]
pub struct Failed {
    pub name: String,
    pub tone: Tone,
    /// Its state, how long it took, and why.
    pub said: String,
}

impl Board {
    pub fn new(total: usize, now: Instant) -> Board {
        Board {
            began: now,
            total,
            places: HashMap::new(),
            names: Vec::new(),
            labels: Labels::default(),
            running: Vec::new(),
            last_lines: HashMap::new(),
            failed: Vec::new(),
            ended: HashMap::new(),
        }
    }

    /// The jobs by name, in the order in which they are shown.
    pub fn in_order<'a>(mut self, names: impl Iterator<Item = &'a str>) -> Board {
        self.names = names.map(sanitize::text).collect();
        self.places = self.names.iter().cloned().zip(0..).collect();
        self
    }

    pub fn started(&mut self, name: &str, attempt: u32, now: Instant) {
        self.running.retain(|it| it.name != name);
        self.last_lines.remove(name);
        if !self.places.contains_key(name) {
            self.places.insert(name.to_owned(), self.names.len());
            self.names.push(name.to_owned());
        }
        self.running.push(Running {
            name: name.to_owned(),
            attempt,
            since: now,
            step: String::new(),
        });
    }

    pub fn step(&mut self, name: &str, text: &str) {
        if let Some(it) = self.running.iter_mut().find(|it| it.name == name) {
            it.step = cut(text, KEPT_CHARACTERS);
        }
    }

    pub fn output(&mut self, name: &str, line: &[u8]) {
        let text = sanitize::log_line(line, Colours::Dropped);
        if text.trim().is_empty() {
            return;
        }
        let lines = self.last_lines.entry(name.to_owned()).or_default();
        if lines.len() >= SHOWN_LINES {
            lines.pop_front();
        }
        lines.push_back(cut(text.trim_end(), KEPT_CHARACTERS));
    }

    /// The work ended; what became of the job is told by [`Board::resolved`]. How long it took.
    pub fn stopped(&mut self, name: &str, now: Instant) -> Option<Duration> {
        let at = self.running.iter().position(|it| it.name == name)?;
        Some(now - self.running.remove(at).since)
    }

    /// The job is over.
    pub fn resolved(&mut self, job: &JobSummary) {
        let name = sanitize::text(&job.name);
        self.running.retain(|it| it.name != name);
        if self.ended.insert(name.clone(), job.state).is_some() {
            return;
        }
        match job.state {
            JobState::Succeeded => drop(self.last_lines.remove(&name)),
            // One that never began because of another has nothing to say but that it did not.
            _ if state_words::begun(job) == 0 && is_stopped(job) => {}
            _ => self.failed.push(Failed {
                tone: state_words::job_tone(job.state, job.required),
                said: ended(job),
                name,
            }),
        }
    }

    /// The screen. At most `size.rows` lines of at most `size.columns` characters.
    pub fn render(&mut self, size: Size, now: Instant) -> Vec<Line> {
        let room = size.rows.saturating_sub(1);
        let wanted = self.failed.len() * (1 + SHOWN_LINES);
        // Failures may take what those that run leave, and half of it in any case.
        let for_running = self
            .running
            .len()
            .min(room.saturating_sub(wanted.min(room / 2)));
        self.label(NAME_COLUMN.min(size.columns / 2));
        let mut lines = self.running_lines(for_running, now);
        lines.push(Line {
            tone: Some(Tone::Strong),
            text: self.counts(now),
        });
        let left = size.rows.saturating_sub(lines.len());
        lines.extend(self.failure_lines(left));
        lines.truncate(size.rows);
        for line in &mut lines {
            line.text = cut(&line.text, size.columns);
        }
        lines
    }

    /// Makes a label for each job of at most so many columns.
    fn label(&mut self, columns: usize) {
        let labels = &mut self.labels;
        if (labels.columns, labels.jobs) == (columns, self.names.len()) {
            return;
        }
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let short = short_names(&names, columns).into_iter();
        *labels = Labels {
            columns,
            jobs: names.len(),
            of: short.map(|(name, it)| (name.to_owned(), it)).collect(),
        };
    }

    fn running_lines(&self, room: usize, now: Instant) -> Vec<Line> {
        // Those that began first are the ones that somebody waits for.
        let shown = if self.running.len() > room {
            room.saturating_sub(1)
        } else {
            room
        };
        let mut first: Vec<&Running> = self.running.iter().take(shown).collect();
        // A line stays where it is while others come and go.
        first.sort_by_key(|it| self.places.get(&it.name));
        let label = |it: &Running| self.labels.of.get(&it.name).map_or("", String::as_str);
        let column = first.iter().map(|it| label(it).width()).max().unwrap_or(0);
        let line = |it: &&Running| self.running_line(it, label(it), column, now);
        let lines = first.iter().map(line);
        let mut lines: Vec<Line> = lines.collect();
        let more = self.running.len() - shown;
        if more > 0 && room > 0 {
            lines.push(Line {
                tone: Some(Tone::Quiet),
                text: format!("  … {more} more running"),
            });
        }
        lines
    }

    fn running_line(&self, job: &Running, name: &str, column: usize, now: Instant) -> Line {
        let blanks = " ".repeat(column.saturating_sub(name.width()));
        let took = human_time::short(now.saturating_duration_since(job.since));
        let mut text = format!("● {name}{blanks}  {took:>6}");
        if job.attempt > 1 {
            text.push_str(&format!("  attempt {}", job.attempt));
        }
        let last = self.last_lines.get(&job.name).and_then(VecDeque::back);
        if !job.step.is_empty() {
            // What it does now is in the last line; the step only has to be known again.
            let room = last.map_or(KEPT_CHARACTERS, |_| STEP_COLUMN);
            text.push_str(&format!("  $ {}", cut(&job.step, room)));
        }
        if let Some(last) = last {
            text.push_str(&format!("  | {last}"));
        }
        Line {
            tone: Some(Tone::Busy),
            text,
        }
    }

    /// `12 of 50 done: 10 succeeded, 2 failed; 4 running, 34 waiting; 14s`
    fn counts(&self, now: Instant) -> String {
        let of = |state| self.ended.values().filter(|it| **it == state).count();
        let ended = [
            (of(JobState::Succeeded), "succeeded"),
            (of(JobState::Failed), "failed"),
            (of(JobState::Canceled), "canceled"),
        ];
        let ended = ended.iter().filter(|(count, _)| *count > 0);
        let ended: Vec<String> = ended
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        let (done, running) = (self.ended.len(), self.running.len());
        let mut text = format!("{done} of {} done", self.total);
        if !ended.is_empty() {
            text.push_str(&format!(": {}", ended.join(", ")));
        }
        let waiting = self.total.saturating_sub(done + running);
        text.push_str(&format!("; {running} running, {waiting} waiting; "));
        text.push_str(&human_time::short(
            now.saturating_duration_since(self.began),
        ));
        text
    }

    /// The newest failures, as many as there is room for, each with as many last lines.
    fn failure_lines(&self, room: usize) -> Vec<Line> {
        if self.failed.is_empty() || room == 0 {
            return Vec::new();
        }
        let count = self.failed.len();
        let shown = if count > room { room - 1 } else { count };
        let below = (room - shown.max(1)).checked_div(shown).unwrap_or(0);
        let below = below.min(SHOWN_LINES);
        let mut lines = Vec::new();
        for failed in &self.failed[count - shown..] {
            lines.push(Line {
                tone: Some(failed.tone),
                text: format!("✗ {}  {}", failed.name, failed.said),
            });
            let kept = self.last_lines.get(&failed.name);
            let kept = kept.into_iter().flatten();
            let skip = kept.clone().count().saturating_sub(below);
            lines.extend(kept.skip(skip).map(|line| Line {
                tone: Some(Tone::Quiet),
                text: format!("    | {line}"),
            }));
        }
        if count > shown {
            let more = count - shown;
            lines.push(Line {
                tone: Some(Tone::Bad),
                text: format!("✗ {more} more failed; all of them are in the summary"),
            });
        }
        lines
    }
}

/// Something else kept it from running.
fn is_stopped(job: &JobSummary) -> bool {
    job.state == JobState::Canceled || job.cause.as_deref() == Some("dependency_failed")
}

/// A text of at most so many columns, shortened in its middle: cells of a matrix differ at their
/// end.
pub fn cut_inside(text: &str, most: usize) -> String {
    if text.width() <= most {
        return text.to_owned();
    }
    let mut tail = String::new();
    let mut taken = 0;
    for c in text.chars().rev() {
        taken += c.width().unwrap_or(0);
        if taken > most / 2 {
            break;
        }
        tail.insert(0, c);
    }
    format!("{}{tail}", cut(text, most.saturating_sub(tail.width())))
}

/// At most so many columns, the last of them an ellipsis where something is missing. Some letters
/// take two columns; counted as one, a line of them would be broken into two by the terminal.
pub fn cut(text: &str, most: usize) -> String {
    if text.width() <= most {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut taken = 1;
    for c in text.chars() {
        taken += c.width().unwrap_or(0);
        if taken > most {
            break;
        }
        kept.push(c);
    }
    if most > 0 {
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    use delta_wire::Millis;
    use delta_wire::api::FailureView;

    use super::*;

    const SCREEN: Size = Size {
        rows: 23,
        columns: 80,
    };

    fn name(n: usize) -> String {
        format!("unit (n={n}, profile=release, os=linux)")
    }

    fn over(n: usize, state: JobState) -> JobSummary {
        JobSummary {
            job_id: format!("job_{n}"),
            name: name(n),
            state,
            required: true,
            attempts: 1,
            cause: (state == JobState::Failed).then(|| "user_exit".to_owned()),
            failure: (state == JobState::Failed).then(|| {
                Box::new(FailureView {
                    message: "step 1 `make` ended with exit code 2".into(),
                    ..FailureView::default()
                })
            }),
            failed_needs: Vec::new(),
            log_dropped: None,
            why: None,
            summary: None,
            kept_from: None,
            started_at: Some(Millis(0)),
            ended_at: Some(Millis(2_100)),
        }
    }

    #[test]
    fn jobs_stand_in_the_order_of_the_plan_however_they_began() {
        let now = Instant::now();
        let mut board = Board::new(3, now).in_order(["a", "b", "c"].into_iter());
        for name in ["c", "a", "b"] {
            board.started(name, 1, now);
        }
        let lines = board.render(SCREEN, now);
        let names: Vec<char> = lines
            .iter()
            .filter_map(|it| it.text.chars().nth(2))
            .collect();
        assert_eq!(names[..3], ['a', 'b', 'c']);
        // Without room for all, those that began first, in that order, too.
        let lines = board.render(Size { rows: 4, ..SCREEN }, now);
        assert!(lines[0].text.starts_with("● a") && lines[1].text.starts_with("● b"));
        let lines = board.render(Size { rows: 3, ..SCREEN }, now);
        assert!(lines[0].text.starts_with("● c"), "{lines:?}");
    }

    /// As it is in front of what the job prints.
    #[test]
    fn a_job_keeps_its_number_while_others_come_and_go() {
        let now = Instant::now();
        let cell = |it: &str| format!("unit-{}{it}{}", "x".repeat(40), "y".repeat(40));
        let cells = [cell("a"), cell("b"), cell("c")];
        let names = || cells.iter().map(String::as_str);
        let mut board = Board::new(3, now).in_order(names());
        cells.iter().for_each(|it| board.started(it, 1, now));
        let label = |board: &mut Board, columns, at: usize| {
            let lines = board.render(Size { rows: 9, columns }, now);
            let mut words = lines[at].text.split_whitespace();
            words.nth(1).expect("a label").to_owned()
        };
        let second = label(&mut board, 20, 1);
        assert!(second.ends_with("#2"), "{second}");
        board.stopped(&cells[0], now);
        assert_eq!(label(&mut board, 20, 0), second);
        assert!(label(&mut board, 16, 0).ends_with("#2"));
        board.started("unknown", 1, now);
        assert_eq!(label(&mut board, 20, 0), second);
        assert_eq!(label(&mut board, 20, 2), "unknown");
    }

    #[test]
    fn a_long_name_keeps_its_end() {
        assert_eq!(cut_inside("unit (os=linux, n=14)", 12), "unit … n=14)");
        assert_eq!(cut_inside("unit", 12), "unit");
    }

    /// Fifty jobs, of which so many run, failed and succeeded, in this order.
    fn fifty(running: usize, failed: usize, succeeded: usize) -> (Board, Instant) {
        let now = Instant::now();
        let mut board = Board::new(50, now);
        for n in 0..running + failed + succeeded {
            board.started(&name(n), 1, now);
            board.step(
                &name(n),
                "cargo nextest run --all-features --profile ci --locked",
            );
            for line in 0..60 {
                board.output(
                    &name(n),
                    format!("line {line} of {n} {}", "x".repeat(200)).as_bytes(),
                );
            }
        }
        for n in running..running + failed {
            board.resolved(&over(n, JobState::Failed));
        }
        for n in running + failed..running + failed + succeeded {
            board.resolved(&over(n, JobState::Succeeded));
        }
        (board, now + Duration::from_secs(14))
    }

    fn shown((board, now): &mut (Board, Instant), size: Size) -> Vec<String> {
        let lines = board.render(size, *now);
        lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn fifty_jobs_fit_on_every_screen_however_they_stand() {
        for (running, failed, succeeded) in [
            (0, 0, 0),
            (4, 0, 30),
            (50, 0, 0),
            (0, 50, 0),
            (25, 25, 0),
            (16, 3, 31),
        ] {
            let mut board = fifty(running, failed, succeeded);
            for rows in [1, 2, 3, 5, 23, 60] {
                for columns in [10, 80, 200] {
                    let lines = shown(&mut board, Size { rows, columns });
                    assert!(!lines.is_empty() && lines.len() <= rows, "{lines:#?}");
                    assert!(lines.iter().all(|it| it.width() <= columns), "{lines:#?}");
                    assert!(lines.iter().any(|it| it.contains("of 50")), "{lines:#?}");
                }
            }
        }
    }

    #[test]
    fn those_that_run_come_first_then_the_count_then_failures() {
        let lines = shown(&mut fifty(4, 2, 10), SCREEN);
        assert!(
            lines[..4].iter().all(|it| it.starts_with("● ")),
            "{lines:#?}"
        );
        assert!(
            lines[0].contains("   14s  $ cargo nextest run…  | line 59"),
            "{lines:#?}"
        );
        assert_eq!(
            lines[4],
            "12 of 50 done: 10 succeeded, 2 failed; 4 running, 34 waiting; 14s"
        );
        assert!(lines[5].starts_with("✗ unit (n=4"), "{lines:#?}");
        assert!(lines[5].contains("  FAILED in 2.1s: step 1 "), "{lines:#?}");
        let below: Vec<&str> = lines[6..9].iter().map(|it| &it[..18]).collect();
        assert_eq!(
            below,
            [
                "    | line 57 of 4",
                "    | line 58 of 4",
                "    | line 59 of 4"
            ]
        );
        assert_eq!(lines.len(), 13, "{lines:#?}");
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let lines = shown(&mut fifty(40, 10, 0), SCREEN);
        assert!(
            lines.iter().any(|it| it == "  … 30 more running"),
            "{lines:#?}"
        );
        let lines = shown(&mut fifty(2, 48, 0), SCREEN);
        assert!(lines[0].starts_with("● ") && lines[1].starts_with("● "));
        assert!(
            lines.last().unwrap().starts_with("✗ 29 more failed"),
            "{lines:#?}"
        );
    }

    #[test]
    fn a_job_that_another_kept_from_running_is_only_counted() {
        let (mut board, now) = fifty(0, 1, 0);
        let dropped = JobSummary {
            attempts: 0,
            cause: Some("dependency_failed".to_owned()),
            ..over(7, JobState::Canceled)
        };
        board.resolved(&dropped);
        let lines = shown(&mut (board, now), SCREEN);
        assert_eq!(lines.len(), 5, "{lines:#?}");
        assert!(lines[0].contains("1 failed, 1 canceled"), "{lines:#?}");
    }

    #[test]
    fn what_a_job_prints_stays_bounded_and_cannot_steer() {
        let now = Instant::now();
        let mut board = Board::new(1, now);
        board.started("a", 2, now);
        for _ in 0..1_000 {
            board.output("a", &[b'y'; 16_000]);
        }
        board.output("a", "漢字\u{1b}[2J漢字漢字漢字".as_bytes());
        let kept = &board.last_lines["a"];
        assert_eq!(kept.len(), SHOWN_LINES);
        assert!(kept.iter().all(|it| it.chars().count() <= KEPT_CHARACTERS));
        let lines = shown(
            &mut (board, now),
            Size {
                rows: 5,
                columns: 30,
            },
        );
        assert!(lines[0].contains("attempt 2"), "{lines:#?}");
        assert!(!lines[0].contains('\u{1b}') && lines[0].width() <= 30);
    }
}
