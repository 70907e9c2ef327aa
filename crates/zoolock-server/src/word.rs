use std::fmt;
use std::str::FromStr;

/// A four-letter word, which an operator sends on a connection without a session. The answer has the format of Apache
/// ZooKeeper 3.8.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are ZooKeeper's own")]
#[non_exhaustive]
pub enum FourLetterWord {
    Conf,
    Envi,
    Isro,
    Mntr,
    Ruok,
    Srvr,
    Stat,
    Wchs,
}

impl FourLetterWord {
    /// All supported words.
    pub const ALL: [FourLetterWord; 8] = [
        FourLetterWord::Conf,
        FourLetterWord::Envi,
        FourLetterWord::Isro,
        FourLetterWord::Mntr,
        FourLetterWord::Ruok,
        FourLetterWord::Srvr,
        FourLetterWord::Stat,
        FourLetterWord::Wchs,
    ];

    /// The words that are answered by default. They show counts and properties of the server. The other words show the
    /// addresses of clients, and the path and the size of the data directory.
    pub const DEFAULT: [FourLetterWord; 6] = [
        FourLetterWord::Envi,
        FourLetterWord::Isro,
        FourLetterWord::Mntr,
        FourLetterWord::Ruok,
        FourLetterWord::Srvr,
        FourLetterWord::Wchs,
    ];

    /// Returns the word as text.
    pub fn name(self) -> &'static str {
        match self {
            FourLetterWord::Conf => "conf",
            FourLetterWord::Envi => "envi",
            FourLetterWord::Isro => "isro",
            FourLetterWord::Mntr => "mntr",
            FourLetterWord::Ruok => "ruok",
            FourLetterWord::Srvr => "srvr",
            FourLetterWord::Stat => "stat",
            FourLetterWord::Wchs => "wchs",
        }
    }
}

impl fmt::Display for FourLetterWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FourLetterWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        FourLetterWord::ALL.into_iter().find(|word| word.name() == text).ok_or_else(|| {
            let known: Vec<_> = FourLetterWord::ALL.into_iter().map(FourLetterWord::name).collect();
            format!("unknown four-letter word {text:?}; use one of {}", known.join(", "))
        })
    }
}
