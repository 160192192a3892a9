//! The loop that connects keyboard, node and terminal.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use admin::Target;
use anyhow::{Context, Result, bail, ensure};
use ratatui::crossterm::event::{self, Event};
use ratatui::{DefaultTerminal, Frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::draw::draw;
use crate::now_ms;
use crate::state::{Action, State};
use crate::watch::Watch;

/// How long the loop waits for a key before it checks for updates of the node.
pub(crate) const TURN: Duration = Duration::from_millis(100);
/// How long the loop waits for the node's first response before it draws on the terminal.
pub(crate) const FIRST_RESPONSE: Duration = Duration::from_secs(2);

/// The terminal. Dropping this restores it, and so does a panic.
pub(crate) struct Screen(DefaultTerminal);

impl Screen {
    pub fn open() -> Result<Self> {
        match ratatui::try_init() {
            Ok(terminal) => Ok(Screen(terminal)),
            Err(error) => {
                ratatui::restore();
                Err(error).context("the terminal can't be drawn on: try --once")
            }
        }
    }

    pub fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> Result<()> {
        self.0.draw(picture).map(drop).context("drawing on the terminal")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows the node until the user quits or `stop` is set.
///
/// # Errors
/// If the first request fails, the node rejects the key later, or the terminal is closed.
pub fn run(target: &Target, stop: &AtomicBool) -> Result<()> {
    let watch = Watch::start(target).context("a thread that calls the node")?;
    let mut state = State::new(target.name());
    await_first_response(&watch, &mut state, stop)?;
    let mut screen = Screen::open()?;
    let mut drawn_ms = 0;
    while !stop.load(Ordering::Relaxed) {
        let now_ms = now_ms();
        // The screen shows how long a node is away, so a new second is a reason to draw as well.
        let mut is_new = now_ms.abs_diff(drawn_ms) >= 1_000;
        while let Ok(update) = watch.updates.try_recv() {
            state.apply(update, now_ms)?;
            is_new = true;
        }
        if watch.has_ended() {
            bail!("the thread that calls the node has ended: this is a bug of throng top");
        }
        if is_new {
            screen.draw(|frame| draw(frame, &state, now_ms))?;
            drawn_ms = now_ms;
        }
        wait_for_input()?;
        while event::poll(Duration::ZERO).context("reading the keyboard")? {
            // Any event may change the screen, a new size too.
            drawn_ms = 0;
            if let Event::Key(key) = event::read().context("reading the keyboard")? {
                match state.key(key) {
                    Action::Nothing => {}
                    Action::Quit => return Ok(()),
                    Action::Inspect(subject) => watch.inspect(subject),
                }
            }
        }
    }
    Ok(())
}

/// Waits a turn for a key or for the signal of a new size. Crossterm's own wait would never return
/// from a terminal that hung up.
pub(crate) fn wait_for_input() -> Result<()> {
    let keyboard = std::io::stdin();
    if !keyboard.is_terminal() {
        // Crossterm reads /dev/tty then, and a signal reports its end.
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

/// Waits a moment for the node's first response, so that an error shows without a screen that
/// appears and vanishes.
fn await_first_response(watch: &Watch, state: &mut State, stop: &AtomicBool) -> Result<()> {
    let began = Instant::now();
    while state.data().node.is_none()
        && began.elapsed() < FIRST_RESPONSE
        && !stop.load(Ordering::Relaxed)
    {
        if let Ok(update) = watch.updates.recv_timeout(TURN) {
            state.apply(update, now_ms())?;
        }
    }
    Ok(())
}
