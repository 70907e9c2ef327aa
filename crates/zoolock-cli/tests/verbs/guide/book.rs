//! Markdown pages: their blocks, links and anchors.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use regex_lite::Regex;

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository exists")
}

/// Returns the paths, relative to the root, of the Markdown pages in a directory and its subdirectories.
pub(crate) fn pages_in(directory: &str) -> Vec<String> {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(root().join(directory)).expect("the directory is readable") {
        let entry = entry.expect("readable entry");
        let path = format!("{directory}/{}", entry.file_name().into_string().expect("UTF-8 name"));
        if entry.file_type().expect("readable entry").is_dir() {
            pages.extend(pages_in(&path));
        } else if path.ends_with(".md") {
            pages.push(path);
        }
    }
    pages
}

pub(crate) fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("valid regular expression")
}

/// A Markdown page.
#[derive(Debug)]
pub(crate) struct Page {
    /// Path relative to the root.
    pub(crate) path: String,
    text: String,
}

/// A code block.
#[derive(Debug)]
pub(crate) struct Block {
    /// Page and line, for error messages.
    pub(crate) location: String,
    /// First word of the info string: `rust` in `rust,no_run`. Empty for an indented block, which no test accepts.
    pub(crate) language: String,
    pub(crate) text: String,
}

impl Page {
    pub(crate) fn read(path: &str) -> Self {
        let text = std::fs::read_to_string(root().join(path));
        Self::of(path, &text.unwrap_or_else(|error| panic!("{path}: {error}")))
    }

    pub(crate) fn of(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    pub(crate) fn blocks(&self) -> Vec<Block> {
        self.split().0
    }

    /// Returns the targets of links and images, with their locations.
    pub(crate) fn links(&self) -> Vec<(String, String)> {
        self.find(r"`[^`]+`|\]\(([^)\s]+)\)|(?m:^\[[^\]]+\]: +(\S+))")
    }

    /// Returns the inline code, with its locations.
    pub(crate) fn code(&self) -> Vec<(String, String)> {
        self.find("`([^`]+)`")
    }

    /// Returns the HTML tags, with their locations.
    pub(crate) fn html(&self) -> Vec<(String, String)> {
        self.find(r"`[^`]+`|(<[a-zA-Z/!][^>]*>)")
    }

    /// Returns the anchors that links may use after `#`. mdBook and code forges derive them from headings in this way.
    pub(crate) fn anchors(&self) -> Vec<String> {
        let mut counts: HashMap<String, usize> = HashMap::new();
        let prose = self.split().1;
        let headings = prose.lines().filter(|line| line.starts_with('#'));
        let anchors = headings.map(|heading| {
            let kept = |c: &char| c.is_alphanumeric() || " _-".contains(*c);
            let heading = heading.trim_start_matches('#').trim();
            let slug: String =
                heading.chars().filter(kept).collect::<String>().replace(' ', "-").to_lowercase();
            let count = counts.entry(slug.clone()).or_default();
            *count += 1;
            if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
        });
        anchors.collect()
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        self.text.lines()
    }

    /// Returns the first group of each match outside of blocks, with its location.
    fn find(&self, pattern: &str) -> Vec<(String, String)> {
        let prose = self.split().1;
        let pattern = regex(pattern);
        let found = pattern.captures_iter(&prose).filter_map(|captures| {
            let group = captures.iter().skip(1).flatten().next()?;
            let line = prose[..group.start()].matches('\n').count() + 1;
            Some((format!("{}:{line}", self.path), group.as_str().replace('\n', " ")))
        });
        found.collect()
    }

    /// Splits the page into its blocks and its prose. In the prose, the lines of blocks are empty,
    /// so that line numbers stay right.
    fn split(&self) -> (Vec<Block>, String) {
        let (mut blocks, mut prose) = (Vec::<Block>::new(), String::new());
        let (mut inside, mut after_blank) = (false, true);
        for (line, number) in self.text.lines().zip(1..) {
            let fence = line.strip_prefix("```");
            let indented = !inside && after_blank && line.starts_with("    ");
            if indented || (!inside && fence.is_some()) {
                let language =
                    fence.unwrap_or_default().split(',').next().unwrap_or_default().trim().to_owned();
                blocks.push(Block {
                    location: format!("{}:{number}", self.path),
                    language,
                    text: String::new(),
                });
            }
            match blocks.last_mut() {
                _ if fence.is_some() => inside = !inside,
                Some(block) if inside || indented => block.text += &format!("{line}\n"),
                _ => prose += line,
            }
            prose.push('\n');
            after_blank = line.is_empty();
        }
        (blocks, prose)
    }
}

#[test]
fn page_splits_into_blocks_links_and_anchors() {
    let text = "# One `two`, three!\n\n[a](b.md#c) and `--code`\n\n```console\n$ true\n```\n\n    indented\n\n# One two three\n";
    let page = Page::of("p.md", text);
    let blocks = page.blocks();
    let found: Vec<_> = blocks
        .iter()
        .map(|block| (block.location.as_str(), block.language.as_str(), &block.text[..]))
        .collect();
    assert_eq!(found, [("p.md:5", "console", "$ true\n"), ("p.md:9", "", "    indented\n")]);
    assert_eq!(page.anchors(), ["one-two-three", "one-two-three-1"]);
    assert_eq!(page.links(), [("p.md:3".to_owned(), "b.md#c".to_owned())]);
    assert_eq!(page.code()[1], ("p.md:3".to_owned(), "--code".to_owned()));
}
