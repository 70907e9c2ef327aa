//! Link targets, except those on other sites.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::guide::book::{Page, files_in, regex, root};

#[test]
fn every_link_leads_to_a_page_and_a_heading() {
    let pages = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(str::to_owned).into_iter();
    let mut dead = Vec::new();
    let mut followed = 0;
    for path in pages.chain(files_in("docs")).chain(files_in("guide/src")) {
        for (place, target) in Page::read(&path).links() {
            if ["http://", "https://", "mailto:"].iter().any(|site| target.starts_with(site)) {
                continue;
            }
            followed += 1;
            dead.extend(why_dead(&path, &target).map(|why| format!("{place}: ({target}) {why}")));
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
    assert!(followed > 50, "only {followed} links were found, so something is wrong with the search");
}

fn why_dead(from: &str, target: &str) -> Option<String> {
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { PathBuf::from(from) } else { resolved(Path::new(from).parent()?, file) };
    // The pages of the book are published alone.
    if from.starts_with("guide/src/") && !path.starts_with("guide/src") {
        return Some("leads out of the book".to_owned());
    }
    if !root().join(&path).exists() {
        return Some("there is no such file".to_owned());
    }
    let anchor = anchor?;
    let anchors = Page::read(path.to_str()?).anchors();
    (!anchors.iter().any(|known| known == anchor)).then(|| format!("no such heading; there are {anchors:?}"))
}

fn resolved(directory: &Path, target: &str) -> PathBuf {
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
    assert_eq!(why_dead("README.md", "docs/DESIGN.md"), None);
    assert_eq!(why_dead("docs/RELIABILITY.md", "DESIGN.md#which-limits-stay"), None);
    assert_eq!(why_dead("guide/src/jobs.md", "#exit-codes"), None);
    for (from, target) in [
        ("README.md", "docs/NO.md"),
        ("docs/RELIABILITY.md", "DESIGN.md#no-such-heading"),
        ("guide/src/jobs.md", "#no-such-heading"),
        ("guide/src/jobs.md", "../../docs/DESIGN.md"),
    ] {
        assert!(why_dead(from, target).is_some(), "{from}: {target}");
    }
}

/// crates.io shows a README alone, without the files beside it.
#[test]
fn published_readmes_have_only_external_links() {
    let mut read = 0;
    for entry in std::fs::read_dir(root().join("crates")).expect("a directory") {
        let directory = entry.expect("readable").path();
        let manifest = std::fs::read_to_string(directory.join("Cargo.toml")).expect("a crate");
        if !manifest.contains("\npublish = false\n") {
            let readme = directory.join("README.md");
            assert_eq!(bound(&Page::read(readme.to_str().expect("UTF-8"))), [""; 0]);
            read += 1;
        }
    }
    assert_eq!(read, 5, "the number of published crates");
    let page = Page::of(
        "p.md",
        "[a](https://b) [c](d.md)\n![e][f]\n\n[f]: images/g.png\n\n<img src=\"h.png\">\n\n[i](#j)\n",
    );
    let links = ["p.md:1: d.md", "p.md:4: images/g.png", "p.md:8: #j", "p.md:6: <img src=\"h.png\">"];
    assert_eq!(bound(&page), links);
}

/// Lists links to other files and to headings, and HTML, whose links this test does not read.
fn bound(page: &Page) -> Vec<String> {
    let links = page.links().into_iter().filter(|(_, target)| !target.starts_with("https://"));
    links.chain(page.html()).map(|(place, what)| format!("{place}: {what}")).collect()
}

/// Every test that docs/SECURITY.md names exists, in Rust or in the browser's Python.
#[test]
fn tests_named_in_security_docs_exist() {
    let names = regex(r"\b(?:fn|def) (\w+)\(");
    let on_both = regex(r"on_both_arms!\([^|]*?(\w+),\s*\|");
    let mut functions = BTreeSet::new();
    let mut todo = vec![root().join("crates")];
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(
                std::fs::read_dir(path).expect("readable").map(|entry| entry.expect("readable").path()),
            );
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "py") {
            let text = std::fs::read_to_string(path).expect("UTF-8");
            functions.extend(names.captures_iter(&text).map(|name| name[1].to_owned()));
            functions.extend(on_both.captures_iter(&text).map(|name| name[1].to_owned()));
        }
    }
    let is_test = regex(r"^[a-z0-9]+(_[a-z0-9]+){2,}$");
    let mut named = Page::read("docs/SECURITY.md").code();
    named.retain(|(_, code)| is_test.is_match(code));
    assert!(named.len() > 20, "{named:?}");
    for (place, name) in named {
        assert!(functions.contains(&name), "{place}: there is no test {name}");
    }
}
