//! The loop that connects keyboard, node and terminal, and the thread that polls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use admin::{Admin, AdminError, Target};
use anyhow::{Context, Result, bail};
use ratatui::crossterm::event::{self, Event};

use super::EVERY;
use super::draw::draw;
use super::poll::Poll;
use super::table::Sort;
use super::view::View;
use crate::screen::{FIRST_RESPONSE, Screen, TURN, wait_for_input};
use crate::{AGENT, now_ms};

/// Shows the nodes of a cluster until the user quits or `stop` is set.
///
/// # Errors
/// If the first poll fails, the node rejects the key later, or the terminal is closed.
pub fn run(target: &Target, sort: Sort, stop: &AtomicBool) -> Result<()> {
    let (sender, polls) = channel();
    let admin = Admin::new(target, AGENT);
    let thread = std::thread::Builder::new().name("nodes".into());
    let thread = thread.spawn(move || poll(admin, &sender)).context("a thread that polls")?;
    let mut view = View::new(target.name(), sort);
    await_first_response(&polls, &mut view, stop)?;
    let mut screen = Screen::open()?;
    let mut drawn_ms = 0;
    while !stop.load(Ordering::Relaxed) {
        let now_ms = now_ms();
        // The screen shows how long a node is away, so a new second is a reason to draw as well.
        let mut is_new = now_ms.abs_diff(drawn_ms) >= 1_000;
        while let Ok(poll) = polls.try_recv() {
            view.apply(poll, now_ms)?;
            is_new = true;
        }
        if thread.is_finished() {
            bail!("the thread that polls the node has ended: this is a bug of throng top");
        }
        if is_new {
            screen.draw(|frame| draw(frame, &view, now_ms))?;
            drawn_ms = now_ms;
        }
        wait_for_input()?;
        while event::poll(Duration::ZERO).context("reading the keyboard")? {
            // Any event may change the screen, a new size too.
            drawn_ms = 0;
            if let Event::Key(key) = event::read().context("reading the keyboard")?
                && view.key(key)
            {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Polls as long as the receiver exists.
fn poll(mut admin: Admin, polls: &Sender<Result<Poll, AdminError>>) {
    while polls.send(Poll::get(&mut admin)).is_ok() {
        std::thread::sleep(EVERY);
    }
}

/// Waits a moment for the first response, so that an error shows without a screen that appears and vanishes.
fn await_first_response(
    polls: &Receiver<Result<Poll, AdminError>>,
    view: &mut View,
    stop: &AtomicBool,
) -> Result<()> {
    let began = Instant::now();
    while view.polled_ms == 0 && began.elapsed() < FIRST_RESPONSE && !stop.load(Ordering::Relaxed) {
        if let Ok(poll) = polls.recv_timeout(TURN) {
            view.apply(poll, now_ms())?;
        }
    }
    Ok(())
}
