//! Prints the public API of a crate, as the HTML pages of rustdoc show it: `public-api target/doc/zoolock`.
//!
//! `./check` compares the output for the crate zoolock with `docs/api.txt`. It reads the pages, and not rustdoc's JSON, because the
//! JSON needs a nightly compiler, and each version of the compiler another version of the reader. Methods of implemented
//! traits are left out, and so are the blanket implementations and the auto traits except `Send` and `Sync`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

/// The kinds of pages, by the beginning of their file names.
const KINDS: [&str; 8] = ["constant", "enum", "fn", "macro", "static", "struct", "trait", "type"];

fn main() -> ExitCode {
    let Some(root) = std::env::args_os().nth(1) else {
        eprintln!("usage: public-api DIRECTORY, such as target/doc/zoolock");
        return ExitCode::from(2);
    };
    let mut pages = BTreeMap::new();
    if let Err(error) = collect(Path::new(&root), "", &mut pages) {
        eprintln!("public-api: {}: {error}", Path::new(&root).display());
        return ExitCode::from(2);
    }
    for (name, page) in pages {
        println!("{name}");
        for line in describe(&page) {
            println!("    {line}");
        }
    }
    ExitCode::SUCCESS
}

/// Reads the pages of all public items below `directory`, by the names of the items.
fn collect(directory: &Path, module: &str, pages: &mut BTreeMap<String, String>) -> std::io::Result<()> {
    // Private modules have directories with pages that only redirect.
    let index = directory.join("index.html");
    if !index.exists() {
        return Ok(());
    }
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &format!("{module}{file}::"), pages)?;
        } else if let Some((kind, name)) = file.strip_suffix(".html").and_then(|name| name.split_once('.'))
            && KINDS.contains(&kind)
        {
            pages.insert(format!("{kind} {module}{name}"), std::fs::read_to_string(entry.path())?);
        }
    }
    Ok(())
}

/// Returns the declaration of an item, its own methods, and the traits that it implements.
fn describe(page: &str) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(declaration) = between(page, "<pre class=\"rust item-decl\">", "</pre>").first() {
        lines.extend(
            text(declaration)
                .replace("]pub ", "] pub ")
                .lines()
                .map(str::trim_end)
                .filter(|line| !line.is_empty())
                .map(str::to_owned),
        );
    }
    let page = page.split("id=\"blanket-implementations\"").next().unwrap_or_default();
    let (own, traits) = page.split_once("id=\"trait-implementations\"").unwrap_or((page, ""));
    // Methods of the target of `Deref` are on the page of that type.
    let own = own.split("id=\"deref-methods").next().unwrap_or_default();
    let in_one_line = |header: &str| {
        let words = text(header).split_whitespace().collect::<Vec<_>>().join(" ");
        words.replace("( ", "(").replace(", )", ")")
    };
    lines.extend(between(own, "<h4 class=\"code-header\">", "</h4>").into_iter().map(in_one_line));
    let is_listed = |line: &String| {
        let auto = ["Freeze", "RefUnwindSafe", "StructuralPartialEq", "Unpin", "UnsafeUnpin", "UnwindSafe"];
        !auto.iter().any(|name| line.contains(&format!("{name} for ")))
    };
    lines.extend(
        between(traits, "<h3 class=\"code-header\">", "</h3>").into_iter().map(in_one_line).filter(is_listed),
    );
    lines
}

/// Returns each part of the page between `begin` and the next `end`.
fn between<'a>(page: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    page.split(begin).skip(1).filter_map(|rest| rest.split_once(end)).map(|(part, _)| part).collect()
}

/// Returns the text of a part of a page.
fn text(html: &str) -> String {
    let mut text = String::new();
    for (at, part) in html.split('<').enumerate() {
        text.push_str(if at == 0 { part } else { part.split_once('>').map_or("", |(_, rest)| rest) });
    }
    for (name, character) in
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&nbsp;", " "), ("&amp;", "&")]
    {
        text = text.replace(name, character);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_read() {
        let page = "<pre class=\"rust item-decl\"><code>pub struct <a>S</a>;</code></pre>\
            <h4 class=\"code-header\">pub fn <a>f</a>(&amp;self) -&gt; <a>T</a></h4>\
            <h2 id=\"deref-methods-D\"></h2><h4 class=\"code-header\">pub fn g()</h4>\
            <h2 id=\"trait-implementations\"></h2><h3 class=\"code-header\">impl Send for S</h3>\
            <h3 class=\"code-header\">impl Unpin for S</h3><h4 class=\"code-header\">fn clone()</h4>\
            <h2 id=\"blanket-implementations\"></h2><h3 class=\"code-header\">impl Any for T</h3>";
        assert_eq!(describe(page), ["pub struct S;", "pub fn f(&self) -> T", "impl Send for S"]);
    }
}
