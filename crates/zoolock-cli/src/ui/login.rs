//! Logins of operators: the token, the cookie, and the limit on wrong tokens.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq as _;

use crate::plan::ui::Token;

/// Prefix of the cookie name. The rest of the name is random for each process. A browser shares
/// cookies between all ports of a host, and two processes on one host must not log out each other's
/// operators.
const COOKIE_PREFIX: &str = "zoolock_ui_";
/// Maximum time between two requests of a login.
const IDLE_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Maximum duration of a login.
const LOGIN_LIMIT: Duration = Duration::from_secs(12 * 60 * 60);
/// Maximum number of logins. A new login replaces the login with the longest idle time.
const MAX_LOGINS: usize = 256;

/// Maximum number of wrong tokens from one network within [`WRONG_WINDOW`].
const MAX_WRONG: u32 = 10;
/// Time for which wrong tokens are counted.
const WRONG_WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of networks whose wrong tokens are counted. A new one replaces the one whose count began first.
const MAX_WRONG_NETWORKS: usize = 1024;

/// The viewer of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Viewer {
    /// Logins are disabled: the pages are read-only.
    ReadOnly,
    /// Logins are enabled, and the viewer is not logged in.
    LoggedOut,
    /// The viewer is logged in, and may revoke and break.
    Operator(Operator),
}

/// A viewer with a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Operator {
    /// CSRF token: every form of this login must contain it.
    pub(super) csrf: String,
}

/// Reason why a login failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoginError {
    WrongToken,
    /// The network has sent too many wrong tokens. It may try again after this time.
    TooManyAttempts(Duration),
    Disabled,
}

/// The logins of the operators.
pub(super) struct LoginManager {
    /// Token to log in with. `None` if logins are disabled.
    token: Option<Token>,
    /// Name of the cookie.
    cookie: String,
    state: Mutex<LoginState>,
}

#[derive(Default)]
struct LoginState {
    /// Logins by cookie. A cookie has 256 random bits, so the time of a lookup reveals nothing useful.
    logins: HashMap<String, LoginRecord>,
    /// Number of wrong tokens by network, and the time of the first one.
    wrong: HashMap<IpAddr, (u32, Instant)>,
}

struct LoginRecord {
    csrf: String,
    started: Instant,
    last_used: Instant,
}

impl LoginManager {
    pub(super) fn new(token: Option<Token>) -> Self {
        let cookie = format!("{COOKIE_PREFIX}{}", &random_hex()[..8]);
        Self { token, cookie, state: Mutex::default() }
    }

    /// Returns the viewer who sent a request with these headers.
    pub(super) fn viewer(&self, headers: &HeaderMap) -> Viewer {
        if self.token.is_none() {
            return Viewer::ReadOnly;
        }
        let csrf = self.cookie(headers).and_then(|cookie| self.renew_login(&cookie));
        csrf.map_or(Viewer::LoggedOut, |csrf| Viewer::Operator(Operator { csrf }))
    }

    /// Starts a login if the token is right. Returns the value of `Set-Cookie`.
    ///
    /// Wrong tokens of one network never refuse another network. Otherwise one client could lock out all operators.
    pub(super) fn log_in(
        &self,
        token: &str,
        network: IpAddr,
        headers: &HeaderMap,
    ) -> Result<String, LoginError> {
        let Some(Token(expected)) = &self.token else { return Err(LoginError::Disabled) };
        let now = Instant::now();
        let mut state = self.state();
        state.wrong.retain(|_, (_, since)| now.duration_since(*since) < WRONG_WINDOW);
        if let Some((MAX_WRONG.., since)) = state.wrong.get(&network) {
            return Err(LoginError::TooManyAttempts(WRONG_WINDOW.saturating_sub(now.duration_since(*since))));
        }
        // The comparison takes constant time for a given length. It can reveal only the length of the token.
        if !bool::from(token.trim().as_bytes().ct_eq(expected)) {
            state.count_wrong_token(network, now);
            return Err(LoginError::WrongToken);
        }
        let cookie = random_hex();
        state.add(cookie.clone(), now);
        Ok(self.cookie_header(&cookie, LOGIN_LIMIT, headers))
    }

    /// Ends the login. Returns the value of `Set-Cookie` that deletes the cookie.
    pub(super) fn log_out(&self, headers: &HeaderMap) -> String {
        if let Some(cookie) = self.cookie(headers) {
            self.state().logins.remove(&cookie);
        }
        self.cookie_header("", Duration::ZERO, headers)
    }

    /// Returns the value of `Set-Cookie`. If the proxy in front uses TLS, the cookie is marked `Secure`, so the browser
    /// sends it over TLS only. A client that forges `X-Forwarded-Proto` affects only its own cookie.
    fn cookie_header(&self, value: &str, age: Duration, headers: &HeaderMap) -> String {
        let tls =
            headers.get("x-forwarded-proto").is_some_and(|by| by.as_bytes().eq_ignore_ascii_case(b"https"));
        let secure = if tls { "; Secure" } else { "" };
        let (name, age) = (&self.cookie, age.as_secs());
        format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}")
    }

    /// Returns the cookie that a request contains.
    fn cookie(&self, headers: &HeaderMap) -> Option<String> {
        let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = all.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(name, _)| *name == self.cookie).map(|(_, value)| value.to_owned())
    }

    /// Returns the CSRF token of a login, and records that the login was used.
    fn renew_login(&self, cookie: &str) -> Option<String> {
        let now = Instant::now();
        let mut state = self.state();
        state.remove_expired(now);
        let login = state.logins.get_mut(cookie)?;
        login.last_used = now;
        Some(login.csrf.clone())
    }

    fn state(&self) -> MutexGuard<'_, LoginState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoginState {
    /// Counts a wrong token. If there are too many networks, forgets the one whose count began first.
    fn count_wrong_token(&mut self, network: IpAddr, now: Instant) {
        if self.wrong.len() >= MAX_WRONG_NETWORKS
            && !self.wrong.contains_key(&network)
            && let Some(oldest) =
                self.wrong.iter().min_by_key(|(_, (_, since))| *since).map(|(oldest, _)| *oldest)
        {
            self.wrong.remove(&oldest);
        }
        self.wrong.entry(network).or_insert((0, now)).0 += 1;
    }

    /// Adds a login. If there are too many, removes the login with the longest idle time.
    fn add(&mut self, cookie: String, now: Instant) {
        self.remove_expired(now);
        if self.logins.len() >= MAX_LOGINS
            && let Some(oldest) =
                self.logins.iter().min_by_key(|(_, login)| login.last_used).map(|(cookie, _)| cookie.clone())
        {
            self.logins.remove(&oldest);
        }
        self.logins.insert(cookie, LoginRecord { csrf: random_hex(), started: now, last_used: now });
    }

    fn remove_expired(&mut self, now: Instant) {
        self.logins.retain(|_, login| {
            now.duration_since(login.last_used) < IDLE_LIMIT
                && now.duration_since(login.started) < LOGIN_LIMIT
        });
    }
}

/// Returns whether a form contains the CSRF token of the login.
pub(super) fn has_csrf_token(operator: &Operator, csrf: &str) -> bool {
    operator.csrf.as_bytes().ct_eq(csrf.as_bytes()).into()
}

/// Returns 256 random bits in hexadecimal.
fn random_hex() -> String {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).expect("the random source works, as it did when the session was opened");
    bits.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const TOKEN: &str = "correct horse battery";
    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn logins_with_token() -> LoginManager {
        LoginManager::new(Some(Token(TOKEN.as_bytes().to_vec().into())))
    }

    fn with_cookie(set: &str) -> HeaderMap {
        let pair = set.split(';').next().expect("the pair comes first");
        let value = HeaderValue::from_str(&format!("theme=dark; {pair}")).expect("a valid header value");
        HeaderMap::from_iter([(header::COOKIE, value)])
    }

    #[test]
    fn token_logs_in_and_cookie_is_protected() {
        let logins = logins_with_token();
        assert_eq!(logins.viewer(&HeaderMap::new()), Viewer::LoggedOut);
        let set = logins.log_in(TOKEN, PEER, &HeaderMap::new()).expect("the token is right");
        for word in ["HttpOnly", "SameSite=Strict", "Max-Age=43200", "Path=/"] {
            assert!(set.contains(word), "{set}");
        }
        assert!(!set.contains("Secure"), "without TLS, the browser would drop a secure cookie: {set}");
        let headers = with_cookie(&set);
        assert!(matches!(logins.viewer(&headers), Viewer::Operator(_)));
        logins.log_out(&headers);
        assert_eq!(logins.viewer(&headers), Viewer::LoggedOut);
    }

    #[test]
    fn csrf_tokens_differ_between_logins() {
        let logins = logins_with_token();
        let operator = |set: &str| match logins.viewer(&with_cookie(set)) {
            Viewer::Operator(operator) => operator,
            other => panic!("{other:?}"),
        };
        let one = operator(&logins.log_in(TOKEN, PEER, &HeaderMap::new()).expect("the token is right"));
        let other = operator(&logins.log_in(TOKEN, PEER, &HeaderMap::new()).expect("the token is right"));
        assert!(has_csrf_token(&one, &one.csrf) && !has_csrf_token(&one, &other.csrf));
        assert!(!has_csrf_token(&one, "") && !has_csrf_token(&one, &one.csrf[1..]));
        assert_eq!(one.csrf.len(), 64);
    }

    #[test]
    fn cookie_is_secure_behind_tls() {
        let (logins, https) = (
            logins_with_token(),
            HeaderMap::from_iter([(
                "x-forwarded-proto".parse().expect("a valid header name"),
                HeaderValue::from_static("https"),
            )]),
        );
        assert!(logins.log_in(TOKEN, PEER, &https).expect("the token is right").ends_with("; Secure"));
        assert!(logins.log_out(&https).ends_with("; Secure"));
    }

    #[test]
    fn cookie_names_differ_between_processes() {
        let (one, other) = (logins_with_token(), logins_with_token());
        let set = one.log_in(TOKEN, PEER, &HeaderMap::new()).expect("the token is right");
        let name = |set: &str| set.split('=').next().map(str::to_owned);
        assert_ne!(
            name(&set),
            name(&other.log_in(TOKEN, PEER, &HeaderMap::new()).expect("the token is right"))
        );
    }

    #[test]
    fn wrong_tokens_block_only_their_network() {
        let logins = logins_with_token();
        let is_blocked = |network, token| {
            matches!(logins.log_in(token, network, &HeaderMap::new()), Err(LoginError::TooManyAttempts(_)))
        };
        // More networks than the table holds.
        for number in 0..=u32::try_from(MAX_WRONG_NETWORKS).expect("a small number") {
            let network = IpAddr::from(number.to_be_bytes());
            assert!((0..MAX_WRONG).all(|_| !is_blocked(network, "correct horse")));
            assert!(is_blocked(network, TOKEN));
        }
        assert_eq!(logins.state().wrong.len(), MAX_WRONG_NETWORKS);
        assert!(!is_blocked(PEER, TOKEN));
    }
}
