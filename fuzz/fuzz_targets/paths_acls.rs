//! Paths and access lists: what is accepted is sane, and what is checked is what was stored.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use zoolock_server::acl::{self, Acl, Identity, perms};
use zoolock_server::path;
use zoolock_server::wire::{Reader, Writer};

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = path::parent(text);
        if path::validate(text).is_ok() {
            assert!(text.starts_with('/') && (text == "/" || !text.ends_with('/')));
            assert!(text == "/" || text.split('/').skip(1).all(|part| !matches!(part, "" | "." | "..")));
            assert!(!text.contains('\0'));
            assert!(path::parent(text).is_ok());
        }
    }
    let mut reader = Reader::new(data);
    let Ok(list) = Acl::decode_list(&mut reader) else { return };
    let mut out = BytesMut::new();
    Acl::encode_list(&list, &mut Writer::new(&mut out));
    assert_eq!(Acl::decode_list(&mut Reader::new(&out)).as_ref(), Ok(&list));
    let me = [Identity::new("ip", "127.0.0.1"), Identity::digest(b"me:secret")];
    let Ok(stored) = acl::resolve(list, &me) else { return };
    assert!(!stored.is_empty() && stored.iter().all(|acl| acl.who.scheme != "auth"));
    let granted = stored.iter().fold(0, |all, acl| all | acl.perms);
    for perm in [perms::READ, perms::WRITE, perms::CREATE, perms::DELETE, perms::ADMIN] {
        let allowed = acl::check(&stored, perm, &me).is_ok();
        assert!(!allowed || granted & perm != 0, "allowed what nobody may");
        let stranger = [Identity::new("ip", "192.0.2.1")];
        assert!(acl::check(&stored, perm, &stranger).is_err() || granted & perm != 0);
        acl::check(&stored, perm, &[Identity::new("super", "")]).expect("super may do anything");
    }
    assert_eq!(acl::masked(&stored).len(), stored.len());
    for (acl, shown) in stored.iter().zip(acl::masked(&stored)) {
        assert!(acl.who.scheme != "digest" || shown.who.id.ends_with(":x"), "a hash is shown");
    }
});
