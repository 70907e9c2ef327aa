use std::fmt;
use std::str::FromStr;

/// A four-letter word, which an operator sends on a connection without a session. The answer has the format of Apache
/// ZooKeeper 3.8.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are ZooKeeper's own")]
#[non_exhaustive]
pub enum FourLetterWord {
    Conf,
    Cons,
    Crst,
    Dirs,
    Dump,
    Envi,
    Isro,
    Mntr,
    Ruok,
    Srst,
    Srvr,
    Stat,
    Wchc,
    Wchp,
    Wchs,
}

impl FourLetterWord {
    /// All supported words.
    pub const ALL: [FourLetterWord; 15] = [
        FourLetterWord::Conf,
        FourLetterWord::Cons,
        FourLetterWord::Crst,
        FourLetterWord::Dirs,
        FourLetterWord::Dump,
        FourLetterWord::Envi,
        FourLetterWord::Isro,
        FourLetterWord::Mntr,
        FourLetterWord::Ruok,
        FourLetterWord::Srst,
        FourLetterWord::Srvr,
        FourLetterWord::Stat,
        FourLetterWord::Wchc,
        FourLetterWord::Wchp,
        FourLetterWord::Wchs,
    ];

    /// The words that are answered by default. They show counts and properties of the server, and change nothing. The
    /// other words reset counts, show addresses, paths or session ids, or take time in proportion to the data.
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
            FourLetterWord::Cons => "cons",
            FourLetterWord::Crst => "crst",
            FourLetterWord::Dirs => "dirs",
            FourLetterWord::Dump => "dump",
            FourLetterWord::Envi => "envi",
            FourLetterWord::Isro => "isro",
            FourLetterWord::Mntr => "mntr",
            FourLetterWord::Ruok => "ruok",
            FourLetterWord::Srst => "srst",
            FourLetterWord::Srvr => "srvr",
            FourLetterWord::Stat => "stat",
            FourLetterWord::Wchc => "wchc",
            FourLetterWord::Wchp => "wchp",
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
