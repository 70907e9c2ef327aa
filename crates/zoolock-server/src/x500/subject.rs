//! Reads the subject of a certificate.

use std::fmt::Write as _;

use der::asn1::{AnyRef, ObjectIdentifier};
use der::{Decode as _, Encode as _, Reader as _, SliceReader, Tag, Tagged as _};

use super::RFC_2253;

/// Returns the subject of a certificate, or `None` if it cannot be read.
pub(crate) fn subject(certificate: &[u8]) -> Option<String> {
    let mut names = decode_subject(certificate).ok()?;
    // RFC 2253 begins with the most specific part, like a host name. A certificate begins with the
    // most general part.
    names.reverse();
    Some(names.join(","))
}

/// Returns the parts of a certificate's subject, in the order of the certificate.
fn decode_subject(certificate: &[u8]) -> der::Result<Vec<String>> {
    let mut certificate = SliceReader::new(AnyRef::from_der(certificate)?.value())?;
    let mut tbs = SliceReader::new(AnyRef::decode(&mut certificate)?.value())?;
    // A certificate of version 1 has no version field and begins with the serial number.
    if matches!(AnyRef::decode(&mut tbs)?.tag(), Tag::ContextSpecific { .. }) {
        AnyRef::decode(&mut tbs)?;
    }
    for _algorithm_issuer_validity in 0..3 {
        AnyRef::decode(&mut tbs)?;
    }
    let mut subject = SliceReader::new(AnyRef::decode(&mut tbs)?.value())?;
    let mut names = Vec::new();
    while !subject.is_finished() {
        let mut set = SliceReader::new(AnyRef::decode(&mut subject)?.value())?;
        let mut parts = Vec::new();
        while !set.is_finished() {
            let mut part = SliceReader::new(AnyRef::decode(&mut set)?.value())?;
            let oid: ObjectIdentifier = ObjectIdentifier::decode(&mut part)?;
            let oid = oid.to_string();
            parts.push(attribute_text(&oid, &AnyRef::decode(&mut part)?)?);
        }
        if parts.is_empty() {
            // RFC 5280 forbids an empty set. An empty set cannot be written as a valid name.
            return Err(Tag::Set.length_error().into());
        }
        names.push(parts.join("+"));
    }
    Ok(names)
}

fn attribute_text(oid: &str, value: &AnyRef<'_>) -> der::Result<String> {
    let keyword = RFC_2253.iter().find(|(known, _)| *known == oid).map(|(_, keyword)| keyword);
    let (Some(keyword), Some(text)) = (keyword, decode_text(value)) else {
        let mut out = format!("{}=#", keyword.unwrap_or(&oid));
        for byte in value.to_der()? {
            let _ = write!(out, "{byte:02x}");
        }
        return Ok(out);
    };
    Ok(format!("{keyword}={}", escape(&text)))
}

fn decode_text(value: &AnyRef<'_>) -> Option<String> {
    let is_text = matches!(
        value.tag(),
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::TeletexString | Tag::BmpString
    );
    // Java decodes all of these types as UTF-8, which is wrong for the last two. Java writes
    // different values that are not UTF-8 as the same text. So a value that is not UTF-8 does not
    // count as text here.
    std::str::from_utf8(value.value()).ok().filter(|_| is_text).map(str::to_owned)
}

fn escape(text: &str) -> String {
    let blank = |c: char| matches!(c, ' ' | '\r');
    let lead = text.len() - text.trim_start_matches(blank).len();
    let trail = text.trim_end_matches(blank).len();
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        match c {
            '\0' => out.push_str("\\00"),
            _ if ",=+<>#;\"\\".contains(c) || blank(c) && (at < lead || at >= trail) => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    out
}
