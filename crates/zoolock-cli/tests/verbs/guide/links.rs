//! Where links lead. Those to other sites are not followed.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::guide::book::{Page, files_in, root};

#[test]
fn every_link_leads_to_a_page_and_a_heading() {
    let pages = ["README.md", "CHANGELOG.md"].map(str::to_owned).into_iter();
    let pages: Vec<String> = pages.chain(files_in("docs")).chain(files_in("guide/src")).collect();
    let mut dead = Vec::new();
    let mut followed = 0;
    for path in &pages {
        let page = Page::read(path);
        for link in page.links() {
            if ["http://", "https://", "mailto:"].iter().any(|site| link.target.starts_with(site)) {
                continue;
            }
            followed += 1;
            dead.extend(
                why_dead(path, &link.target).map(|why| format!("{}: ({}) {why}", link.place, link.target)),
            );
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
fn a_dead_link_is_found() {
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

/// crates.io shows a README alone, with nothing beside it.
#[test]
fn what_is_published_links_to_other_sites_alone() {
    let mut read = 0;
    for entry in std::fs::read_dir(root().join("crates")).expect("a directory") {
        let name = entry.expect("readable").file_name().into_string().expect("UTF-8");
        let manifest = root().join("crates").join(&name).join("Cargo.toml");
        if std::fs::read_to_string(manifest).expect("a crate").contains("\npublish = false\n") {
            continue;
        }
        let page = Page::read(&format!("crates/{name}/README.md"));
        assert_eq!(bound(&page), [""; 0]);
        read += 1;
    }
    assert_eq!(read, 4, "all that is published (zoolock-pack's tests list it)");
    let page = Page::of(
        "p.md",
        "[a](https://b) [c](d.md)\n![e][f]\n\n[f]: images/g.png\n\n<img src=\"h.png\">\n\n[i](#j)\n",
    );
    let links = ["p.md:1: d.md", "p.md:2: images/g.png", "p.md:8: #j", "p.md:6: <img src=\"h.png\">"];
    assert_eq!(bound(&page), links);
}

/// What is found beside the page alone, and HTML, of which nobody here knows what is in it.
fn bound(page: &Page) -> Vec<String> {
    let links = page.links().into_iter().filter(|link| !link.target.starts_with("https://"));
    let links = links.map(|link| format!("{}: {}", link.place, link.target));
    links.chain(page.html().into_iter().map(|(place, html)| format!("{place}: {html}"))).collect()
}

/// Every test that docs/SECURITY.md names is there.
#[test]
fn tests_that_are_named_exist() {
    let mut functions = BTreeSet::new();
    let mut directories = vec![root().join("crates")];
    while let Some(directory) = directories.pop() {
        for entry in
            std::fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("readable").path())
        {
            match entry.extension().and_then(|extension| extension.to_str()) {
                None if entry.is_dir() => directories.push(entry),
                Some("rs") => {
                    let text = std::fs::read_to_string(entry).expect("UTF-8");
                    let names = text.split("fn ").skip(1).filter_map(|rest| rest.split('(').next());
                    functions.extend(names.map(str::to_owned));
                    // One body, a test for each server.
                    let bodies =
                        text.split("on_both_arms!(").skip(1).filter_map(|rest| rest.split('|').next());
                    let bodies =
                        bodies.filter_map(|body| body.split([',', ' ', '\n']).rfind(|word| !word.is_empty()));
                    functions.extend(bodies.map(str::to_owned));
                }
                // In the browser.
                Some("py") => {
                    let text = std::fs::read_to_string(entry).expect("UTF-8");
                    let names = text.split("def ").skip(1).filter_map(|rest| rest.split('(').next());
                    functions.extend(names.map(str::to_owned));
                }
                _ => {}
            }
        }
    }
    let page = Page::read("docs/SECURITY.md");
    let is_test = |code: &str| {
        code.matches('_').count() > 1
            && code.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let named: Vec<_> = page.code().into_iter().filter(|(_, code)| is_test(code)).collect();
    assert!(named.len() > 20, "{named:?}");
    for (place, name) in named {
        assert!(functions.contains(&name), "{place}: there is no test {name}");
    }
}
