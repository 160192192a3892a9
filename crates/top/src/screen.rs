//! The loop between keyboard, node and terminal.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::admin::Target;
use crate::draw::draw;
use crate::state::{State, Wish};
use crate::watch::Watch;

/// How long a key is waited for before the node's news are looked at.
const TURN: Duration = Duration::from_millis(100);
/// How long the terminal is left alone before the node has answered.
const GREETING: Duration = Duration::from_secs(2);

/// The terminal, as it was again when this is dropped. A panic restores it, too.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> Result<Self> {
        match ratatui::try_init() {
            Ok(terminal) => Ok(Screen(terminal)),
            Err(error) => {
                ratatui::restore();
                Err(error).context("the terminal can't be drawn on: try --once")
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows the node until somebody quits or `stop` is set.
///
/// # Errors
/// If the node can't be asked in the beginning or refuses later on, or the terminal is gone.
pub fn run(target: &Target, stop: &AtomicBool) -> Result<()> {
    let watch = Watch::start(target).context("a thread to ask the node with")?;
    let mut state = State::new(target.name());
    greet(&watch, &mut state, stop)?;
    let mut screen = Screen::open()?;
    let mut drawn_ms = 0;
    while !stop.load(Ordering::Relaxed) {
        let now_ms = now_ms();
        // A clock that runs on while a node is away is news, too.
        let mut is_new = now_ms.abs_diff(drawn_ms) >= 1_000;
        while let Ok(news) = watch.news.try_recv() {
            state.take(news, now_ms)?;
            is_new = true;
        }
        if watch.is_broken() {
            bail!("what asks the node has ended: this is a bug of throng top");
        }
        if is_new {
            screen
                .0
                .draw(|frame| draw(frame, &state, now_ms))
                .context("drawing on the terminal")?;
            drawn_ms = now_ms;
        }
        wait_for_input()?;
        while event::poll(Duration::ZERO).context("reading the keyboard")? {
            // Whatever it is, a new size too, the picture is drawn anew.
            drawn_ms = 0;
            if let Event::Key(key) = event::read().context("reading the keyboard")? {
                match state.key(key) {
                    Wish::Nothing => {}
                    Wish::Quit => return Ok(()),
                    Wish::Look(subject) => watch.look_at(subject),
                }
            }
        }
    }
    Ok(())
}

/// Waits a turn for a key, or for a signal of a new size. Crossterm would do this, too, but reads a
/// terminal that hung up for ever.
fn wait_for_input() -> Result<()> {
    let keyboard = std::io::stdin();
    if !keyboard.is_terminal() {
        // Crossterm reads /dev/tty then, whose end is told by a signal.
        event::poll(TURN).context("reading the keyboard")?;
        return Ok(());
    }
    let mut waiting = [PollFd::new(&keyboard, PollFlags::IN)];
    let turn = Timespec { tv_sec: 0, tv_nsec: TURN.subsec_nanos().into() };
    match poll(&mut waiting, Some(&turn)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error).context("reading the keyboard"),
    }
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    ensure!(!waiting[0].revents().intersects(gone), "the terminal is gone");
    Ok(())
}

/// Waits a moment for the node's first answer, so that what is wrong from the beginning is told
/// without a picture that comes and goes.
fn greet(watch: &Watch, state: &mut State, stop: &AtomicBool) -> Result<()> {
    let began = Instant::now();
    while state.data().node.is_none() && began.elapsed() < GREETING && !stop.load(Ordering::Relaxed)
    {
        if let Ok(news) = watch.news.recv_timeout(TURN) {
            state.take(news, now_ms())?;
        }
    }
    Ok(())
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis().try_into().unwrap_or(u64::MAX))
}
