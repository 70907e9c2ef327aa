//! Checks links within the repository. Links to other sites are not followed.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::guide::book::{Page, pages_in, regex, root};

#[test]
fn every_link_leads_to_a_page_and_a_heading() {
    let mut pages = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "verification/fuzz/README.md"]
        .map(str::to_owned)
        .to_vec();
    pages.extend(["docs", "guide/src", "examples", "crates"].into_iter().flat_map(pages_in));
    for page in ["docs/design/pages.md", "docs/chaos/chaos.md", "examples/cron/README.md"] {
        assert!(pages.iter().any(|path| path == page), "{page} is not checked");
    }
    let mut dead = Vec::new();
    let mut checked = 0;
    for path in pages {
        for (location, target) in Page::read(&path).links() {
            if ["http://", "https://", "mailto:"].iter().any(|site| target.starts_with(site)) {
                continue;
            }
            checked += 1;
            dead.extend(dead_reason(&path, &target).map(|reason| format!("{location}: ({target}) {reason}")));
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
    assert!(checked > 150, "found only {checked} links: the search is broken");
}

/// Returns why a link is dead. Returns `None` if its target exists.
fn dead_reason(from: &str, target: &str) -> Option<String> {
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { PathBuf::from(from) } else { resolve(Path::new(from).parent()?, file) };
    // The book is published without the rest of the repository.
    if from.starts_with("guide/src/") && !path.starts_with("guide/src") {
        return Some("leads out of the book".to_owned());
    }
    if !root().join(&path).exists() {
        return Some("no such file".to_owned());
    }
    let anchor = anchor?;
    let anchors = Page::read(path.to_str()?).anchors();
    (!anchors.iter().any(|known| known == anchor)).then(|| format!("no such heading; there are {anchors:?}"))
}

/// Returns the path of `target`, which is relative to `directory`.
fn resolve(directory: &Path, target: &str) -> PathBuf {
    let mut path = directory.to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => _ = path.pop(),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

#[test]
fn dead_link_is_detected() {
    assert_eq!(dead_reason("README.md", "docs/design/README.md"), None);
    assert_eq!(dead_reason("docs/RELIABILITY.md", "design/protocol.md#why-is-a-grant-safe"), None);
    assert_eq!(dead_reason("guide/src/jobs.md", "#exit-codes"), None);
    for (from, target) in [
        ("README.md", "docs/NO.md"),
        ("docs/RELIABILITY.md", "design/protocol.md#no-such-heading"),
        ("docs/design/pages.md", "#live-views"),
        ("guide/src/jobs.md", "#no-such-heading"),
        ("guide/src/jobs.md", "../../docs/design/README.md"),
    ] {
        assert!(dead_reason(from, target).is_some(), "{from}: {target}");
    }
}

/// crates.io shows a README without the files beside it, so links to these files would be dead.
#[test]
fn published_readmes_have_only_external_links() {
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("crates")).expect("crates is readable") {
        let directory = entry.expect("readable entry").path();
        let manifest = std::fs::read_to_string(directory.join("Cargo.toml")).expect("a manifest");
        if !manifest.contains("\npublish = false\n") {
            let readme = directory.join("README.md");
            assert_eq!(internal_links_and_html(&Page::read(readme.to_str().expect("UTF-8"))), [""; 0]);
            count += 1;
        }
    }
    assert_eq!(count, 7, "the number of published crates");
    let page = Page::of(
        "p.md",
        "[a](https://b) [c](d.md)\n![e][f]\n\n[f]: images/g.png\n\n<img src=\"h.png\">\n\n[i](#j)\n",
    );
    let links = ["p.md:1: d.md", "p.md:4: images/g.png", "p.md:8: #j", "p.md:6: <img src=\"h.png\">"];
    assert_eq!(internal_links_and_html(&page), links);
}

/// Lists links to files and headings. Lists HTML too, because [`Page::links`] does not find the links in it.
fn internal_links_and_html(page: &Page) -> Vec<String> {
    let links = page.links().into_iter().filter(|(_, target)| !target.starts_with("https://"));
    links.chain(page.html()).map(|(location, text)| format!("{location}: {text}")).collect()
}

/// A test is a function in Rust, an `on_both_servers!` test, or a function in the Python of the browser tests.
#[test]
fn tests_named_in_security_docs_exist() {
    let function = regex(r"\b(?:fn|def) (\w+)\(");
    let on_both_servers = regex(r"on_both_servers!\([^|]*?(\w+),\s*\|");
    let mut functions = BTreeSet::new();
    let mut paths = vec![root().join("crates"), root().join("verification")];
    while let Some(path) = paths.pop() {
        if path.ends_with("fuzz/target") {
            continue;
        }
        if path.is_dir() {
            paths.extend(
                std::fs::read_dir(path).expect("readable").map(|entry| entry.expect("readable entry").path()),
            );
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "py") {
            let text = std::fs::read_to_string(path).expect("UTF-8");
            functions.extend(function.captures_iter(&text).map(|name| name[1].to_owned()));
            functions.extend(on_both_servers.captures_iter(&text).map(|name| name[1].to_owned()));
        }
    }
    let is_test = regex(r"^[a-z0-9]+(_[a-z0-9]+){2,}$");
    let mut named = Page::read("docs/SECURITY.md").code();
    named.retain(|(_, code)| is_test.is_match(code));
    assert!(named.len() > 20, "{named:?}");
    for (location, name) in named {
        assert!(functions.contains(&name), "{location}: no test is named {name}");
    }
}
