//! Names in certificates, in the format of Java's `X500Principal.getName()`. Access lists compare them as text.

#[cfg(feature = "tls")]
mod subject;

#[cfg(feature = "tls")]
pub(crate) use subject::subject;

/// Java's keywords of the attribute types that RFC 2253 names. Other types are written as object identifiers.
const RFC_2253: [(&str, &str); 9] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
];

/// Further keywords that Java accepts.
const OTHER_KEYWORDS: [&str; 12] = [
    "S",
    "T",
    "IP",
    "DNQ",
    "DNQUALIFIER",
    "SURNAME",
    "GIVENNAME",
    "INITIALS",
    "GENERATION",
    "EMAIL",
    "EMAILADDRESS",
    "SERIALNUMBER",
];

/// Returns whether Java accepts this text as a name. An access list entry of scheme `x509` must be a name.
pub(crate) fn is_name(text: &str) -> bool {
    text.is_empty()
        || split_unquoted(text, &[',', ';', '+']).is_some_and(|parts| parts.into_iter().all(is_attribute))
}

/// Splits the text at each character of `at` that is neither quoted nor escaped. Returns `None` if
/// a quote or an escape is left open.
fn split_unquoted<'a>(text: &'a str, at: &[char]) -> Option<Vec<&'a str>> {
    let (mut parts, mut begin, mut quoted, mut escape) = (Vec::new(), 0, false, false);
    for (index, c) in text.char_indices() {
        match c {
            _ if escape => escape = false,
            '\\' => escape = true,
            '"' => quoted = !quoted,
            _ if !quoted && at.contains(&c) => {
                parts.push(&text[begin..index]);
                begin = index + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    (!quoted && !escape).then_some(parts)
}

/// Returns whether Java accepts a text as one `keyword=value` pair of a name.
fn is_attribute(text: &str) -> bool {
    let Some((keyword, value)) = text.split_once('=') else { return false };
    let keyword = keyword.trim().to_ascii_uppercase();
    let number = keyword.strip_prefix("OID.").unwrap_or(&keyword);
    let known =
        RFC_2253.iter().any(|(_, word)| *word == keyword) || OTHER_KEYWORDS.contains(&keyword.as_str());
    (known || is_oid(number)) && is_value(trim_value(value))
}

/// Removes the blanks around a value, except an escaped blank at its end.
fn trim_value(value: &str) -> &str {
    let value = value.trim_start();
    let bare = value.trim_end();
    let backslashes = bare.len() - bare.trim_end_matches('\\').len();
    match value[bare.len()..].chars().next() {
        Some(blank) if backslashes % 2 == 1 => &value[..bare.len() + blank.len_utf8()],
        _ => bare,
    }
}

fn is_oid(text: &str) -> bool {
    text.contains('.')
        && text.split('.').all(|arc| !arc.is_empty() && arc.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_value(value: &str) -> bool {
    if let Some(hex) = value.strip_prefix('#') {
        return !hex.is_empty() && hex.len() % 2 == 0 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    }
    let mut rest = value.chars();
    let mut quoted = false;
    while let Some(c) = rest.next() {
        match c {
            '\\' => match rest.next() {
                Some(c) if ",=+<>#;\"\\ ".contains(c) => {}
                Some(c) if c.is_ascii_hexdigit() && rest.next().is_some_and(|c| c.is_ascii_hexdigit()) => {}
                _ => return false,
            },
            '"' if quoted => return rest.as_str().is_empty(),
            '"' if rest.as_str().len() + 1 == value.len() => quoted = true,
            '"' | '<' | '>' if !quoted => return false,
            _ => {}
        }
    }
    !quoted
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use rcgen::string::{BmpString, Ia5String, PrintableString, TeletexString};
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair};

    use super::*;

    fn of(names: impl IntoIterator<Item = (DnType, DnValue)>) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in names {
            params.distinguished_name.push(kind, value);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        subject(certificate.der()).expect("a name")
    }

    fn utf8(text: &str) -> DnValue {
        DnValue::Utf8String(text.to_owned())
    }

    #[test]
    fn subject_with_empty_set_is_refused() {
        // A certificate up to its subject, whose three parts are empty.
        let certificate = b"\x30\x1f\x30\x1d\xa0\x03\x02\x01\x02\x02\x01\x01\x30\x00\x30\x00\x30\x00\
            \x30\x06\x30\x00\x02\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00";
        assert_eq!(subject(certificate), None);
    }

    #[test]
    fn names_are_written_as_java_writes_them() {
        // Java 17 prints these names for the same certificates, except for values that are not UTF-8.
        let email = DnType::CustomDnType(vec![1, 2, 840, 113_549, 1, 9, 1]);
        let ia5 = DnValue::Ia5String(Ia5String::try_from("me@example.com").expect("ASCII"));
        assert_eq!(
            of([
                (DnType::CountryName, utf8("DE")),
                (DnType::StateOrProvinceName, utf8("Berlin")),
                (DnType::OrganizationName, utf8("Locks, Inc.")),
                (DnType::OrganizationalUnitName, utf8("a+b")),
                (DnType::CommonName, utf8("client 1"))
            ]),
            "CN=client 1,OU=a\\+b,O=Locks\\, Inc.,ST=Berlin,C=DE"
        );
        assert_eq!(
            of([(DnType::OrganizationName, utf8("o")), (email, ia5)]),
            "1.2.840.113549.1.9.1=#160e6d65406578616d706c652e636f6d,O=o"
        );
        assert_eq!(
            of([(DnType::CommonName, utf8("  #lead and trail  "))]),
            "CN=\\ \\ \\#lead and trail\\ \\ "
        );
        assert_eq!(
            of([(DnType::CommonName, utf8("#=<>;\"\\\u{e9}\u{1f512}\t"))]),
            "CN=\\#\\=\\<\\>\\;\\\"\\\\\u{e9}\u{1f512}\t"
        );
        let serial = DnType::CustomDnType(vec![2, 5, 4, 5]);
        let dc = DnType::CustomDnType(vec![0, 9, 2342, 19_200_300, 100, 1, 25]);
        let uid = DnType::CustomDnType(vec![0, 9, 2342, 19_200_300, 100, 1, 1]);
        let street = DnType::CustomDnType(vec![2, 5, 4, 9]);
        let printable =
            |text: &str| DnValue::PrintableString(PrintableString::try_from(text).expect("printable"));
        assert_eq!(
            of([
                (dc, DnValue::Ia5String(Ia5String::try_from("com").expect("ASCII"))),
                (uid, printable("u1")),
                (street, printable("1, A St")),
                (serial, printable("42")),
                (DnType::LocalityName, DnValue::BmpString(BmpString::try_from("K\u{f6}ln").expect("BMP"))),
                (DnType::CommonName, DnValue::TeletexString(TeletexString::try_from("t61").expect("T61"))),
            ]),
            "CN=t61,L=#1e08004b00f6006c006e,2.5.4.5=#13023432,STREET=1\\, A St,UID=u1,DC=com"
        );
    }

    #[test]
    fn names_are_accepted_as_by_java() {
        // `new X500Principal(text)` of Java 17 accepts the good names and refuses the bad ones.
        for good in [
            "CN=a",
            "cn=a,O=b",
            "CN=a, O=\"b, c\"",
            "CN=a\\,b",
            "1.2.3=#0c0161",
            "OID.1.2.3=x",
            "CN=a+OU=b",
            "",
            "CN=",
            "CN=a;O=b",
            "CN=a=b",
            "oid.1.2=x",
            "CN=a\\ ",
            "CN=\\ a\\  , O=b",
            "CN=a\\\\ ",
        ] {
            assert!(is_name(good), "{good}");
        }
        for bad in [
            "a",
            "FOO=a",
            "CN",
            "CN=a,",
            "CN=\"a",
            "CN=#xyz",
            "CN=a\\",
            " ",
            "CN=a<b",
            "CN=a,,O=b",
            "SN=x",
            "CN=#",
            "CN=\"a\"b",
            "1=x",
            "CN=a+",
            "+CN=a",
            "=a",
            "CN=\\xx",
            "CN=a \\",
        ] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
