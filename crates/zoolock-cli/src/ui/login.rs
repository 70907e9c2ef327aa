//! Logins of operators: the token, the cookie, and the limit on wrong tokens.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq as _;

use super::plan::Token;

/// How the name of the cookie begins. A browser has one jar for all ports of a host, so the rest is another one for each
/// process: two of them on one host do not log each other's operators out.
const COOKIE: &str = "zoolock_ui_";
/// Without a word from it a login ends.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// And in any case.
const LONGEST: Duration = Duration::from_secs(12 * 60 * 60);
/// Operators, and few; the oldest goes.
const MOST: usize = 256;

/// How many wrong tokens one address, and how many all of them, may send within [`MEMORY`].
const WRONG: u32 = 10;
const WRONG_OF_ALL: u32 = 100;
const MEMORY: Duration = Duration::from_secs(60);

/// Who looks at a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Viewer {
    /// Nothing can be changed here.
    ReadOnly,
    /// He may log in.
    Stranger,
    /// He may revoke and break.
    Operator(Operator),
}

/// A viewer who is logged in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Operator {
    /// The token that each form of this login must carry.
    pub(super) csrf: String,
}

/// Why somebody was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Wrong,
    TooOften,
    NoTokens,
}

/// Knows the operators.
pub(super) struct Door {
    /// The token to log in with. `None`: read-only.
    token: Option<Token>,
    /// The name of the cookie.
    cookie: String,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    /// By cookie, which has 256 random bits: the time of a look-up reveals nothing.
    logins: HashMap<String, Login>,
    wrong: HashMap<IpAddr, (u32, Instant)>,
}

struct Login {
    csrf: String,
    begun: Instant,
    seen: Instant,
}

impl Door {
    pub(super) fn new(token: Option<Token>) -> Self {
        let cookie = format!("{COOKIE}{}", &random()[..8]);
        Self { token, cookie, inside: Mutex::default() }
    }

    /// Returns the viewer that sends these headers.
    pub(super) fn viewer(&self, headers: &HeaderMap) -> Viewer {
        if self.token.is_none() {
            return Viewer::ReadOnly;
        }
        let csrf = self.cookie(headers).and_then(|cookie| self.csrf(&cookie));
        csrf.map_or(Viewer::Stranger, |csrf| Viewer::Operator(Operator { csrf }))
    }

    /// Lets somebody in who has the token; returns the value of `Set-Cookie`.
    pub(super) fn enter(&self, token: &str, peer: IpAddr, headers: &HeaderMap) -> Result<String, Refused> {
        let Some(Token(expected)) = &self.token else { return Err(Refused::NoTokens) };
        let now = Instant::now();
        let mut inside = self.inside();
        inside.wrong.retain(|_, (_, since)| now.duration_since(*since) < MEMORY);
        let of_all: u32 = inside.wrong.values().map(|(count, _)| count).sum();
        let of_peer = inside.wrong.get(&peer).map_or(0, |(count, _)| *count);
        if of_peer >= WRONG || of_all >= WRONG_OF_ALL {
            return Err(Refused::TooOften);
        }
        // The length is told by the time it takes; it is that of every such token.
        if !bool::from(token.trim().as_bytes().ct_eq(expected)) {
            inside.wrong.entry(peer).or_insert((0, now)).0 += 1;
            return Err(Refused::Wrong);
        }
        let cookie = random();
        inside.admit(cookie.clone(), now);
        Ok(self.set(&cookie, LONGEST, headers))
    }

    /// Forgets a login; returns the value of `Set-Cookie`.
    pub(super) fn leave(&self, headers: &HeaderMap) -> String {
        if let Some(cookie) = self.cookie(headers) {
            self.inside().logins.remove(&cookie);
        }
        self.set("", Duration::ZERO, headers)
    }

    /// Where a proxy speaks TLS with the browser, the cookie never crosses the network without. Whoever says so falsely
    /// keeps his own cookie from himself.
    fn set(&self, value: &str, age: Duration, headers: &HeaderMap) -> String {
        let tls =
            headers.get("x-forwarded-proto").is_some_and(|by| by.as_bytes().eq_ignore_ascii_case(b"https"));
        let secure = if tls { "; Secure" } else { "" };
        let (name, age) = (&self.cookie, age.as_secs());
        format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}")
    }

    fn cookie(&self, headers: &HeaderMap) -> Option<String> {
        let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = all.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(name, _)| *name == self.cookie).map(|(_, value)| value.to_owned())
    }

    /// Returns the form token of a login, and records that the login was used.
    fn csrf(&self, cookie: &str) -> Option<String> {
        let now = Instant::now();
        let mut inside = self.inside();
        inside.forget(now);
        let login = inside.logins.get_mut(cookie)?;
        login.seen = now;
        Some(login.csrf.clone())
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inside {
    fn admit(&mut self, cookie: String, now: Instant) {
        self.forget(now);
        if self.logins.len() >= MOST
            && let Some(oldest) =
                self.logins.iter().min_by_key(|(_, login)| login.seen).map(|(cookie, _)| cookie.clone())
        {
            self.logins.remove(&oldest);
        }
        self.logins.insert(cookie, Login { csrf: random(), begun: now, seen: now });
    }

    fn forget(&mut self, now: Instant) {
        self.logins.retain(|_, login| {
            now.duration_since(login.seen) < IDLE && now.duration_since(login.begun) < LONGEST
        });
    }
}

/// Whether a form brings along what its page was given.
pub(super) fn is_same(operator: &Operator, csrf: &str) -> bool {
    operator.csrf.as_bytes().ct_eq(csrf.as_bytes()).into()
}

/// 256 random bits.
fn random() -> String {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).expect("the random source worked when the session was opened");
    bits.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const TOKEN: &str = "correct horse battery";
    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const ELSEWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

    fn by_token() -> Door {
        Door::new(Some(Token(TOKEN.as_bytes().to_vec().into())))
    }

    fn with_cookie(set: &str) -> HeaderMap {
        let pair = set.split(';').next().expect("the pair is first");
        let value = HeaderValue::from_str(&format!("theme=dark; {pair}")).expect("a value");
        HeaderMap::from_iter([(header::COOKIE, value)])
    }

    #[test]
    fn the_token_opens_and_the_cookie_is_kept_from_others() {
        let door = by_token();
        assert_eq!(door.viewer(&HeaderMap::new()), Viewer::Stranger);
        let set = door.enter(TOKEN, PEER, &HeaderMap::new()).expect("it is the token");
        for word in ["HttpOnly", "SameSite=Strict", "Max-Age=43200", "Path=/"] {
            assert!(set.contains(word), "{set}");
        }
        assert!(!set.contains("Secure"), "without TLS the browser would throw it away: {set}");
        let headers = with_cookie(&set);
        assert!(matches!(door.viewer(&headers), Viewer::Operator(_)));
        door.leave(&headers);
        assert_eq!(door.viewer(&headers), Viewer::Stranger);
    }

    #[test]
    fn every_login_has_forms_of_its_own() {
        let door = by_token();
        let of = |set: &str| match door.viewer(&with_cookie(set)) {
            Viewer::Operator(operator) => operator,
            other => panic!("{other:?}"),
        };
        let one = of(&door.enter(TOKEN, PEER, &HeaderMap::new()).expect("it is the token"));
        let other = of(&door.enter(TOKEN, PEER, &HeaderMap::new()).expect("it is the token"));
        assert!(is_same(&one, &one.csrf) && !is_same(&one, &other.csrf));
        assert!(!is_same(&one, "") && !is_same(&one, &one.csrf[1..]));
        assert_eq!(one.csrf.len(), 64);
    }

    #[test]
    fn behind_tls_the_cookie_stays_there() {
        let (door, https) = (
            by_token(),
            HeaderMap::from_iter([(
                "x-forwarded-proto".parse().expect("a name"),
                HeaderValue::from_static("https"),
            )]),
        );
        assert!(door.enter(TOKEN, PEER, &https).expect("it is the token").ends_with("; Secure"));
        assert!(door.leave(&https).ends_with("; Secure"));
    }

    #[test]
    fn two_on_one_host_have_cookies_of_their_own() {
        let (one, other) = (by_token(), by_token());
        let set = one.enter(TOKEN, PEER, &HeaderMap::new()).expect("it is the token");
        let name = |set: &str| set.split('=').next().map(str::to_owned);
        assert_ne!(name(&set), name(&other.enter(TOKEN, PEER, &HeaderMap::new()).expect("the same token")));
    }

    #[test]
    fn who_guesses_has_to_wait_and_others_do_not() {
        let door = by_token();
        for _ in 0..WRONG {
            assert_eq!(door.enter("correct horse", PEER, &HeaderMap::new()), Err(Refused::Wrong));
        }
        assert_eq!(door.enter(TOKEN, PEER, &HeaderMap::new()), Err(Refused::TooOften));
        assert!(door.enter(TOKEN, ELSEWHERE, &HeaderMap::new()).is_ok());
    }
}
