//! The terminal while it is ours, and given back as it was, however we leave.

use std::io::{self, BufWriter, Stdout, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{execute, style};

use super::model::Model;
use super::view;

/// Something of ours, on any thread, has panicked: the terminal was given back for its last words.
static PANICKED: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();

/// The terminal in raw mode, on its other screen; dropping it gives it back.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    color: bool,
}

impl Screen {
    /// Takes the terminal.
    pub(super) fn take(color: bool) -> io::Result<Self> {
        // It goes by NO_COLOR itself; the flag goes before.
        style::force_color_output(color);
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                PANICKED.store(true, Ordering::Relaxed);
                give_back();
                before(panic);
            }));
        });
        let mut screen = Self { terminal: terminal()?, color };
        screen.take_again()?;
        Ok(screen)
    }

    /// Takes it after it was given back, or after somebody else had it.
    pub(super) fn take_again(&mut self) -> io::Result<()> {
        // Else it is taken to be raw still.
        disable_raw_mode()?;
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        self.clear()
    }

    pub(super) fn draw(&mut self, model: &Model) -> io::Result<()> {
        self.terminal.draw(|frame| view::draw(frame, model, self.color)).map(drop)
    }

    /// How large it is: columns and lines.
    pub(super) fn size(&self) -> io::Result<(u16, u16)> {
        self.terminal.size().map(|size| (size.width, size.height))
    }

    /// Forgets what is on it.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        // Its own way to do this asks the terminal where the cursor is, and the answer would be read as keys.
        execute!(io::stdout(), Clear(ClearType::All))?;
        self.terminal = terminal()?;
        Ok(())
    }

    /// Gives it back, to take it again later.
    pub(super) fn lend(&mut self) {
        give_back();
    }

    pub(super) fn panicked() -> bool {
        PANICKED.load(Ordering::Relaxed)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // After a panic what stands there now is its last words.
        if !Self::panicked() {
            give_back();
        }
    }
}

/// What one draws goes out in one write.
fn terminal() -> io::Result<Terminal<CrosstermBackend<BufWriter<Stdout>>>> {
    Terminal::new(CrosstermBackend::new(BufWriter::with_capacity(1 << 16, io::stdout())))
}

/// A terminal that is gone needs nothing.
fn give_back() {
    let mut stdout = io::stdout();
    let _ = execute!(stdout, LeaveAlternateScreen, Show);
    let _ = stdout.flush();
    let _ = disable_raw_mode();
}
