use std::fmt;
use std::str::FromStr;

/// A four-letter word, which an operator sends on a connection without a session. The answer has the format of Apache
/// ZooKeeper 3.8.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are ZooKeeper's own")]
#[non_exhaustive]
pub enum Word {
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

impl Word {
    /// All supported words.
    pub const ALL: [Word; 15] = [
        Word::Conf,
        Word::Cons,
        Word::Crst,
        Word::Dirs,
        Word::Dump,
        Word::Envi,
        Word::Isro,
        Word::Mntr,
        Word::Ruok,
        Word::Srst,
        Word::Srvr,
        Word::Stat,
        Word::Wchc,
        Word::Wchp,
        Word::Wchs,
    ];

    /// The words that are answered by default. They show counts, and change nothing. The other words reset counts, show
    /// addresses, paths and session ids, or take longer the more there is to list.
    pub const DEFAULT: [Word; 6] = [Word::Envi, Word::Isro, Word::Mntr, Word::Ruok, Word::Srvr, Word::Wchs];

    /// Returns the word as text.
    pub fn name(self) -> &'static str {
        match self {
            Word::Conf => "conf",
            Word::Cons => "cons",
            Word::Crst => "crst",
            Word::Dirs => "dirs",
            Word::Dump => "dump",
            Word::Envi => "envi",
            Word::Isro => "isro",
            Word::Mntr => "mntr",
            Word::Ruok => "ruok",
            Word::Srst => "srst",
            Word::Srvr => "srvr",
            Word::Stat => "stat",
            Word::Wchc => "wchc",
            Word::Wchp => "wchp",
            Word::Wchs => "wchs",
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Word {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Word::ALL.into_iter().find(|word| word.name() == text).ok_or_else(|| {
            let known: Vec<_> = Word::ALL.into_iter().map(Word::name).collect();
            format!("unknown four-letter word {text:?}; use one of {}", known.join(", "))
        })
    }
}
