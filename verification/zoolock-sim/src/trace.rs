//! The events of a run, as a hash, and as text on request.

/// The trace of one run.
#[derive(Debug)]
pub(crate) struct RunTrace {
    hash: u64,
    lines: Option<Vec<String>>,
}

impl RunTrace {
    pub(crate) fn new(verbose: bool) -> RunTrace {
        RunTrace { hash: 0xcbf2_9ce4_8422_2325, lines: verbose.then(Vec::new) }
    }

    /// Adds an event to the hash, and to the lines if they are wanted.
    pub(crate) fn note(&mut self, now: u64, what: &'static str, numbers: &[u64], text: &str) {
        self.add_to_hash(now);
        self.mix_text(what);
        numbers.iter().for_each(|&number| self.add_to_hash(number));
        self.mix_text(text);
        if let Some(lines) = &mut self.lines {
            let numbers: Vec<String> = numbers.iter().map(|number| format!("{number:x}")).collect();
            lines.push(format!("{now:>7} {what:<12} {:<14} {text}", numbers.join(" ")));
        }
    }

    /// Adds a run of a task to the hash.
    pub(crate) fn add_task_run(&mut self, task: u64) {
        self.add_to_hash(task);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        self.lines.take().unwrap_or_default()
    }

    fn add_to_hash(&mut self, number: u64) {
        self.hash = (self.hash.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn mix_text(&mut self, text: &str) {
        for part in text.as_bytes().chunks(8) {
            let mut bytes = [0; 8];
            bytes[..part.len()].copy_from_slice(part);
            self.add_to_hash(u64::from_le_bytes(bytes));
        }
    }
}
