//! DIGEST-MD5 (RFC 2831), in the form that Apache ZooKeeper uses: authentication alone, without
//! encryption.

use std::collections::HashMap;
use std::future::ready;

use bytes::Bytes;
use md5::{Digest, Md5};
use zeroize::Zeroizing;

use super::{SaslClient, SaslExchange, StepFuture};
use crate::SaslStep;

/// The digest URI of ZooKeeper's exchanges, which is the same for every host.
const DIGEST_URI: &str = "zookeeper/zk-sasl-md5";

/// The number of times that the client has used the server's nonce, in hexadecimal digits. It is always 1, because each
/// exchange has a new nonce.
const NONCE_COUNT: &str = "00000001";

/// The mechanism DIGEST-MD5 with a user and a password.
///
/// The password is not sent. The algorithm is old, and does not replace TLS.
pub struct DigestMd5 {
    user: String,
    password: Zeroizing<String>,
}

impl DigestMd5 {
    /// Returns the mechanism for this user and password.
    pub fn new(user: impl Into<String>, password: Zeroizing<String>) -> DigestMd5 {
        DigestMd5 { user: user.into(), password }
    }
}

impl std::fmt::Debug for DigestMd5 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DigestMd5").field("user", &self.user).finish_non_exhaustive()
    }
}

impl SaslClient for DigestMd5 {
    fn start_exchange(&self, _: &str) -> Box<dyn SaslExchange> {
        Box::new(DigestExchange {
            user: self.user.clone(),
            password: self.password.clone(),
            stage: DigestStage::Initial,
        })
    }
}

struct DigestExchange {
    user: String,
    password: Zeroizing<String>,
    stage: DigestStage,
}

enum DigestStage {
    /// Nothing was sent, or the exchange is over.
    Initial,
    /// An empty token was sent, which asks for the server's challenge.
    Asked,
    /// The challenge was answered. The server must now prove that it knows the password, too.
    Answered { expected: String },
}

impl SaslExchange for DigestExchange {
    fn step(&mut self, challenge: Option<Bytes>) -> StepFuture<'_> {
        let challenge = challenge.as_deref().map(parse_directives);
        let (stage, step) = match (&self.stage, challenge) {
            // The server sends its challenge first. An empty token asks for it.
            (DigestStage::Initial, _) => (DigestStage::Asked, SaslStep::Send(Bytes::new())),
            (DigestStage::Asked, Some(Some(challenge))) => {
                match self.answer(&challenge, DIGEST_URI, &random_hex()) {
                    Some((answer, expected)) => {
                        (DigestStage::Answered { expected }, SaslStep::Send(answer.into_bytes().into()))
                    }
                    None => (DigestStage::Initial, SaslStep::Failed),
                }
            }
            (DigestStage::Answered { expected }, Some(Some(proof)))
                if proof.get("rspauth") == Some(expected) =>
            {
                (DigestStage::Initial, SaslStep::Done)
            }
            _ => (DigestStage::Initial, SaslStep::Failed),
        };
        self.stage = stage;
        Box::pin(ready(step))
    }
}

impl DigestExchange {
    /// Returns the answer to a challenge, and the proof that the server must send. `None` if the challenge has no
    /// nonce, or does not offer `md5-sess` and `auth`.
    fn answer(
        &self,
        challenge: &HashMap<String, String>,
        digest_uri: &str,
        client_nonce: &str,
    ) -> Option<(String, String)> {
        let nonce = challenge.get("nonce")?;
        let offers = |directive: &str, wanted: &str, default: bool| {
            challenge.get(directive).map_or(default, |text| text.split(',').any(|part| part.trim() == wanted))
        };
        if !offers("algorithm", "md5-sess", false) || !offers("qop", "auth", true) {
            return None;
        }
        let realm = challenge.get("realm").map_or("", String::as_str);
        let user_hash = Md5::new()
            .chain_update(latin1_or_utf8(&self.user))
            .chain_update(":")
            .chain_update(latin1_or_utf8(realm))
            .chain_update(":")
            .chain_update(latin1_or_utf8(&self.password))
            .finalize();
        let session_key = hex(&Md5::new()
            .chain_update(user_hash)
            .chain_update(format!(":{nonce}:{client_nonce}"))
            .finalize());
        let proof = |method: &str| {
            let action = hex(&Md5::digest(format!("{method}:{digest_uri}")));
            hex(&Md5::digest(format!("{session_key}:{nonce}:{NONCE_COUNT}:{client_nonce}:auth:{action}")))
        };
        let charset = if offers("charset", "utf-8", false) { "charset=utf-8," } else { "" };
        let answer = format!(
            "{charset}username={},realm={},nonce={},nc={NONCE_COUNT},cnonce=\"{client_nonce}\",\
             digest-uri=\"{digest_uri}\",response={},qop=auth",
            quote(&self.user),
            quote(realm),
            quote(nonce),
            proof("AUTHENTICATE"),
        );
        Some((answer, proof("")))
    }
}

/// Parses `name=value,name="value"`. Returns `None` for other bytes. If a name repeats, its first value counts, such as
/// the first of several realms.
fn parse_directives(bytes: &[u8]) -> Option<HashMap<String, String>> {
    let mut directives = HashMap::new();
    let mut rest = std::str::from_utf8(bytes).ok()?.trim();
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = after.find(',').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        directives.entry(name.trim().to_ascii_lowercase()).or_insert(value);
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(next) => next.trim_start_matches([',', ' ', '\t', '\r', '\n']),
            None if after.is_empty() => after,
            None => return None,
        };
    }
    Some(directives)
}

/// Reads a value up to its closing quote. Returns the value, and the text behind the quote.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            c => value.push(c),
        }
    }
    None
}

fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Encodes a text for the hash of user, realm and password: in ISO 8859-1 if that has all
/// characters of the text, else in UTF-8.
fn latin1_or_utf8(text: &str) -> Zeroizing<Vec<u8>> {
    let latin1: Result<Vec<u8>, _> = text.chars().map(|c| u8::try_from(u32::from(c))).collect();
    Zeroizing::new(latin1.unwrap_or_else(|_| text.as_bytes().to_vec()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn random_hex() -> String {
    let mut bytes = [0; 16];
    // Without random bytes, the server's nonce still protects the exchange from replay.
    let _ = getrandom::fill(&mut bytes);
    hex(&bytes)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn exchange(user: &str, password: &str) -> DigestExchange {
        let password = Zeroizing::new(password.to_owned());
        DigestExchange { user: user.to_owned(), password, stage: DigestStage::Initial }
    }

    fn step(exchange: &mut DigestExchange, challenge: Option<&str>) -> SaslStep {
        let challenge = challenge.map(|text| Bytes::copy_from_slice(text.as_bytes()));
        exchange.step(challenge).now_or_never().expect("exchange does not wait")
    }

    /// The example of RFC 2831, section 4.
    #[test]
    fn answer_matches_the_example_of_the_rfc() {
        let challenge = parse_directives(
            b"realm=\"elwood.innosoft.com\",nonce=\"OA6MG9tEQGm2hh\",qop=\"auth\",algorithm=md5-sess,charset=utf-8",
        );
        let (answer, expected) = exchange("chris", "secret")
            .answer(&challenge.expect("challenge is parsed"), "imap/elwood.innosoft.com", "OA6MHXh6VqTrRk")
            .expect("challenge is answered");
        assert_eq!(
            answer,
            "charset=utf-8,username=\"chris\",realm=\"elwood.innosoft.com\",nonce=\"OA6MG9tEQGm2hh\",nc=00000001,\
             cnonce=\"OA6MHXh6VqTrRk\",digest-uri=\"imap/elwood.innosoft.com\",\
             response=d388dad90d4bbd760a152321f2143af7,qop=auth"
        );
        assert_eq!(expected, "ea40f60335c427b5527b84dbabcdfffd");
    }

    #[test]
    fn server_must_prove_that_it_knows_the_password() {
        const CHALLENGE: &str = "realm=\"r\",nonce=\"n\",qop=\"auth\",algorithm=md5-sess";
        for (proof, expected) in [(None, SaslStep::Failed), (Some("rspauth=00"), SaslStep::Failed)] {
            let mut exchange = exchange("u", "p");
            assert_eq!(step(&mut exchange, None), SaslStep::Send(Bytes::new()));
            assert!(matches!(step(&mut exchange, Some(CHALLENGE)), SaslStep::Send(_)));
            assert_eq!(step(&mut exchange, proof), expected);
        }
        let mut exchange = exchange("u", "p");
        step(&mut exchange, None);
        step(&mut exchange, Some(CHALLENGE));
        let DigestStage::Answered { expected } = &exchange.stage else { panic!("exchange has not answered") };
        let proof = format!("rspauth={expected}");
        assert_eq!(step(&mut exchange, Some(&proof)), SaslStep::Done);
    }

    #[test]
    fn incomplete_challenge_fails_the_exchange() {
        // A server without SASL answers with no token.
        for challenge in [
            None,
            Some(""),
            Some("nonce=\"n\""),
            Some("algorithm=md5-sess"),
            Some("nonce=\"n\",algorithm=md5-sess,qop=\"auth-conf\""),
            Some("nonce=\"n"),
            Some("nonce"),
            Some("nonce=\"n\"x"),
        ] {
            let mut exchange = exchange("u", "p");
            step(&mut exchange, None);
            assert_eq!(step(&mut exchange, challenge), SaslStep::Failed, "{challenge:?}");
        }
    }

    #[test]
    fn directives_are_read_as_rfc_2831_writes_them() {
        let read = |text: &str| parse_directives(text.as_bytes());
        let directives = read("a=1, b=\"x,\\\"y\\\\\" ,,C=\"\",a=2").expect("directives are parsed");
        assert_eq!(directives["a"], "1");
        assert_eq!(directives["b"], "x,\"y\\");
        assert_eq!(directives["c"], "");
        assert_eq!(quote("x,\"y\\"), "\"x,\\\"y\\\\\"");
        assert_eq!(read("a=\"\\"), None);
        assert_eq!(parse_directives(&[0xff]), None);
    }

    #[test]
    fn latin1_text_is_hashed_in_latin1() {
        assert_eq!(**latin1_or_utf8("ü"), [0xfc]);
        assert_eq!(**latin1_or_utf8("ü€"), *"ü€".as_bytes());
    }

    #[test]
    fn debug_output_shows_no_password() {
        let mechanism = DigestMd5::new("jobs", Zeroizing::new("hunter2".to_owned()));
        assert!(!format!("{mechanism:?}").contains("hunter2"));
    }
}
