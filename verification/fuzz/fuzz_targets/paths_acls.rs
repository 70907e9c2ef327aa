//! Paths and access lists: accepted ones are valid, and checks give the permissions of the stored list.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use zoolock_fuzz::Input;
use zoolock_server::acl::{self, AclList};
use zoolock_server::{Access, Client, Secret, Users};
use zoolock_server::{fuzzing, sent_acl};
use zoolock_wire::{Acl, Identity, Reader, Writer, path, perms};

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    match input.byte() % 5 {
        0 => path(input.rest()),
        1 => {
            if let Ok(list) = Acl::decode_list(&mut Reader::new(input.rest())) {
                lists(list);
            }
        }
        2 => lists(list(&mut input)),
        3 if input.byte() < 32 => subject(input.rest()),
        3 => subject(&certificate(&mut input)),
        _ => accounts(&mut input),
    }
});

fn path(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = path::parent(text);
    if path::validate(text).is_ok() {
        assert!(text.starts_with('/') && (text == "/" || !text.ends_with('/')));
        assert!(text == "/" || text.split('/').skip(1).all(|part| !matches!(part, "" | "." | "..")));
        assert!(!text.contains(|c: char| c.is_control()));
        let parent = path::parent(text).expect("a valid path has a parent");
        assert!(path::validate(parent).is_ok(), "the parent of a valid path is invalid");
    }
}

fn list(input: &mut Input<'_>) -> Vec<Acl> {
    let entry = |input: &mut Input<'_>| {
        let scheme = input.choose(&["ip", "digest", "world", "auth", "x509", "x509", "super", ""]);
        let perms = i32::from(input.byte() as i8);
        let id = match input.byte() {
            0 => "anyone".to_owned(),
            1 => acl::digest_identity(b"me:secret").id,
            2 => format!(
                "{}.{}.{}.{}/{}",
                input.byte(),
                input.byte(),
                input.byte(),
                input.byte(),
                input.byte()
            ),
            3 => format!("{:x}::{:x}/{}", input.short(), input.short(), input.byte()),
            4 => "CN=me,O=us".to_owned(),
            _ => String::from_utf8_lossy(input.bytes()).into_owned(),
        };
        Acl { perms, identity: Identity::new(scheme, id) }
    };
    (0..input.byte() % 8).map(|_| entry(input)).collect()
}

fn check(identities: &[Identity], list: &AclList, perm: i32) -> bool {
    Client::new(identities.to_vec()).check_permission(list, perm).is_ok()
}

fn lists(list: Vec<Acl>) {
    let mut out = BytesMut::new();
    Acl::encode_list(&list, &mut Writer::new(&mut out));
    assert_eq!(Acl::decode_list(&mut Reader::new(&out)).as_ref(), Ok(&list));
    let me = [
        Identity::new("ip", "127.0.0.1"),
        acl::digest_identity(b"me:secret"),
        Identity::new("x509", "CN=me,O=us"),
    ];
    let client = Client::new(me.to_vec());
    let Ok(stored) = sent_acl::resolve(list, &client) else { return };
    assert!(!stored.is_empty() && stored.iter().all(|acl| acl.identity.scheme != "auth"));
    // As in ZooKeeper, `auth` may add an entry that the list already has.
    let mut once: Vec<Acl> = Vec::new();
    for acl in stored.iter() {
        if !once.contains(acl) {
            once.push(acl.clone());
        }
    }
    assert_eq!(
        sent_acl::resolve(stored.to_vec(), &client).as_deref(),
        Ok(&*once),
        "a stored list is refused"
    );
    let granted = stored.iter().fold(0, |all, acl| all | acl.perms);
    for perm in [perms::READ, perms::WRITE, perms::CREATE, perms::DELETE, perms::ADMIN] {
        let allowed = check(&me, &stored, perm);
        assert!(!allowed || granted & perm != 0, "a permission is allowed that no entry grants");
        for stranger in ["192.0.2.1", "::1", "2001:db8::1", "nonsense"] {
            let stranger = [Identity::new("ip", stranger)];
            assert!(!check(&stranger, &stored, perm) || granted & perm != 0);
        }
        // A client without identities has the permissions of `world`.
        let everybody = stored.iter().any(|acl| acl.identity.scheme == "world" && acl.perms & perm != 0);
        assert_eq!(check(&[], &stored, perm), everybody);
        assert!(check(&[Identity::new("super", "")], &stored, perm), "super may do anything");
    }
    assert_eq!(acl::mask_digests(&stored).len(), stored.len());
    for (acl, shown) in stored.iter().zip(acl::mask_digests(&stored)) {
        assert!(
            acl.identity.scheme != "digest" || shown.identity.id.ends_with(":x"),
            "a masked list shows a hash"
        );
    }
}

/// Returns the part of a certificate that the server reads.
fn certificate(input: &mut Input<'_>) -> Vec<u8> {
    let der = |tag: u8, contents: &[u8]| match contents.len() {
        len @ 0..128 => [&[tag, len as u8], contents].concat(),
        len => [&[tag, 0x82, (len >> 8) as u8, len as u8], contents].concat(),
    };
    let mut names = Vec::new();
    for _ in 0..1 + input.byte() % 4 {
        let mut set = Vec::new();
        for _ in 0..1 + input.byte() % 2 {
            let kind = match input.byte() {
                byte @ 0..128 => vec![0x55, 4, 3 + byte % 10],
                128..192 => vec![0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1 + input.byte() % 32],
                _ => input.take(4).to_vec(),
            };
            let tag = input.choose(&[0x0c, 0x0c, 0x0c, 0x13, 0x16, 0x14, 0x1e, 0x04, 0x30]);
            let value = input.bytes();
            set.extend(der(0x30, &[der(6, &kind), der(tag, value)].concat()));
        }
        names.extend(der(0x31, &set));
    }
    let head = b"\xa0\x03\x02\x01\x02\x02\x01\x01\x30\0\x30\0\x30\0";
    der(0x30, &der(0x30, &[head, &*der(0x30, &names)].concat()))
}

fn subject(certificate: &[u8]) {
    let Some(name) = fuzzing::subject(certificate) else { return };
    // Java escapes `\r`, but does not accept it escaped. This server does the same.
    if !name.contains('\r') {
        assert!(fuzzing::is_subject(&name), "{name:?} is refused in an access list");
    }
}

fn accounts(input: &mut Input<'_>) {
    let credentials = input.bytes();
    let who = acl::digest_identity(credentials);
    assert!(!who.shown_id().contains(':'));
    if let Ok(text) = std::str::from_utf8(input.rest())
        && let Ok(users) = Users::parse(text)
    {
        assert!(users.len() <= text.lines().count());
        let access = Access { users: Some(users), secret: Some(Secret::new(text)), ..Access::default() };
        assert!(text.len() < 4 || !format!("{access:?}").contains(text), "the debug output shows an account");
    }
}
