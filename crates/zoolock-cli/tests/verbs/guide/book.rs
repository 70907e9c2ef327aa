//! Markdown pages: their blocks, links and anchors.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use regex_lite::Regex;

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository exists")
}

/// Lists the pages in a directory, as paths below the root.
pub(crate) fn files_in(directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(directory)).expect("a directory");
    let names = entries.map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"));
    names.filter(|name| name.ends_with(".md")).map(|name| format!("{directory}/{name}")).collect()
}

pub(crate) fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a regular expression")
}

/// A page.
#[derive(Debug)]
pub(crate) struct Page {
    /// Path below the root.
    pub(crate) path: String,
    text: String,
}

/// A code block.
#[derive(Debug)]
pub(crate) struct Block {
    /// Page and line, for messages.
    pub(crate) place: String,
    /// `rust` of `rust,no_run`. Empty for an indented block, which no test accepts.
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
        self.parts().0
    }

    /// Returns the targets of links and images, with their places.
    pub(crate) fn links(&self) -> Vec<(String, String)> {
        self.find(r"`[^`]+`|\]\(([^)\s]+)\)|(?m:^\[[^\]]+\]: +(\S+))")
    }

    /// Returns the inline code, with its places.
    pub(crate) fn code(&self) -> Vec<(String, String)> {
        self.find("`([^`]+)`")
    }

    /// Returns the HTML, with its places.
    pub(crate) fn html(&self) -> Vec<(String, String)> {
        self.find(r"`[^`]+`|(<[a-zA-Z/!][^>]*>)")
    }

    /// Returns what a link may name after `#`, as mdBook and the forges derive it from headings.
    pub(crate) fn anchors(&self) -> Vec<String> {
        let mut seen: HashMap<String, usize> = HashMap::new();
        let prose = self.parts().1;
        let headings = prose.lines().filter(|line| line.starts_with('#'));
        let anchors = headings.map(|heading| {
            let kept = |c: &char| c.is_alphanumeric() || " _-".contains(*c);
            let heading = heading.trim_start_matches('#').trim();
            let slug: String =
                heading.chars().filter(kept).collect::<String>().replace(' ', "-").to_lowercase();
            let before = seen.entry(slug.clone()).or_default();
            *before += 1;
            if *before == 1 { slug } else { format!("{slug}-{}", *before - 1) }
        });
        anchors.collect()
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        self.text.lines()
    }

    /// Returns the first group of each match outside of blocks, with its place.
    fn find(&self, pattern: &str) -> Vec<(String, String)> {
        let prose = self.parts().1;
        let pattern = regex(pattern);
        let found = pattern.captures_iter(&prose).filter_map(|captures| {
            let group = captures.iter().skip(1).flatten().next()?;
            let line = prose[..group.start()].matches('\n').count() + 1;
            Some((format!("{}:{line}", self.path), group.as_str().replace('\n', " ")))
        });
        found.collect()
    }

    /// Splits the page into its blocks and the text around them, in which each line of a block is empty.
    fn parts(&self) -> (Vec<Block>, String) {
        let (mut blocks, mut prose) = (Vec::<Block>::new(), String::new());
        let (mut inside, mut after_blank) = (false, true);
        for (line, number) in self.text.lines().zip(1..) {
            let fence = line.strip_prefix("```");
            let indented = !inside && after_blank && line.starts_with("    ");
            if indented || (!inside && fence.is_some()) {
                let language =
                    fence.unwrap_or_default().split(',').next().unwrap_or_default().trim().to_owned();
                blocks.push(Block {
                    place: format!("{}:{number}", self.path),
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
    let found: Vec<_> =
        blocks.iter().map(|block| (block.place.as_str(), block.language.as_str(), &block.text[..])).collect();
    assert_eq!(found, [("p.md:5", "console", "$ true\n"), ("p.md:9", "", "    indented\n")]);
    assert_eq!(page.anchors(), ["one-two-three", "one-two-three-1"]);
    assert_eq!(page.links(), [("p.md:3".to_owned(), "b.md#c".to_owned())]);
    assert_eq!(page.code()[1], ("p.md:3".to_owned(), "--code".to_owned()));
}
