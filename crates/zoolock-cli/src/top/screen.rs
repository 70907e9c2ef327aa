//! The terminal in full-screen mode. It is restored at the end, and after a panic.

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

use super::model::ScreenModel;
use super::view;

/// Set after a panic on any thread. The panic hook has then restored the terminal, and the message is on the screen.
static PANICKED: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();

/// The terminal in raw mode, with its alternate screen. Dropping this value restores the terminal.
pub(super) struct RawTerminal {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    color: bool,
}

impl RawTerminal {
    /// Switches the terminal to full-screen mode.
    pub(super) fn enter_full_screen(color: bool) -> io::Result<Self> {
        // Overrides crossterm, which reads NO_COLOR itself, because the flag --color takes precedence.
        style::force_color_output(color);
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                PANICKED.store(true, Ordering::Relaxed);
                restore();
                before(panic);
            }));
        });
        let mut screen = Self { terminal: terminal()?, color };
        screen.reenter_full_screen()?;
        Ok(screen)
    }

    /// Switches to full-screen mode again, after the terminal was restored or another process has used it.
    pub(super) fn reenter_full_screen(&mut self) -> io::Result<()> {
        // Without this call, crossterm may assume that the terminal is still raw, and `enable_raw_mode` does nothing.
        disable_raw_mode()?;
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        self.clear()
    }

    pub(super) fn draw(&mut self, model: &ScreenModel) -> io::Result<()> {
        self.terminal.draw(|frame| view::draw(frame, model, self.color)).map(drop)
    }

    /// Returns the number of columns and lines.
    pub(super) fn size(&self) -> io::Result<(u16, u16)> {
        self.terminal.size().map(|size| (size.width, size.height))
    }

    /// Clears the screen, so that the next frame is drawn completely.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        // ratatui's own `clear` asks the terminal for the position of the cursor, and the answer would be read as keys.
        execute!(io::stdout(), Clear(ClearType::All))?;
        self.terminal = terminal()?;
        Ok(())
    }

    /// Restores the terminal for other processes, until [`RawTerminal::reenter_full_screen`].
    pub(super) fn leave_full_screen(&mut self) {
        restore();
    }

    pub(super) fn panicked() -> bool {
        PANICKED.load(Ordering::Relaxed)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // After a panic the terminal is restored already, and shows the panic message.
        if !Self::panicked() {
            restore();
        }
    }
}

/// Creates a terminal with a buffer that is large enough to write each frame at once.
fn terminal() -> io::Result<Terminal<CrosstermBackend<BufWriter<Stdout>>>> {
    Terminal::new(CrosstermBackend::new(BufWriter::with_capacity(1 << 16, io::stdout())))
}

/// Restores the terminal. Ignores errors, because a closed terminal needs no restoring.
fn restore() {
    let mut stdout = io::stdout();
    let _ = execute!(stdout, LeaveAlternateScreen, Show);
    let _ = stdout.flush();
    let _ = disable_raw_mode();
}
