//! Pages of Markdown: their blocks, headings and links.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository is there")
}

/// The pages in a directory, as paths below the root.
pub(crate) fn files_in(directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(directory)).expect("a directory");
    let names = entries.map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"));
    names.filter(|name| name.ends_with(".md")).map(|name| format!("{directory}/{name}")).collect()
}

/// One page.
#[derive(Debug)]
pub(crate) struct Page {
    /// Below the root.
    pub(crate) path: String,
    text: String,
}

/// A fenced block.
#[derive(Debug)]
pub(crate) struct Block {
    /// Page and line, for people.
    pub(crate) place: String,
    info: String,
    pub(crate) text: String,
}

impl Block {
    /// `rust` of `rust,no_run`.
    pub(crate) fn language(&self) -> &str {
        self.info.split(',').next().unwrap_or_default().trim()
    }
}

/// A link, as it is written.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) place: String,
    pub(crate) target: String,
}

impl Page {
    pub(crate) fn read(path: &str) -> Self {
        let text = std::fs::read_to_string(root().join(path));
        Self { path: path.to_owned(), text: text.unwrap_or_else(|error| panic!("{path}: {error}")) }
    }

    pub(crate) fn of(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut inside = false;
        for (event, range) in self.events() {
            match event {
                Event::Start(Tag::CodeBlock(kind)) => {
                    let info = match kind {
                        CodeBlockKind::Fenced(info) => info.into_string(),
                        // Somebody may have indented it by mistake; it has no language, and is refused.
                        CodeBlockKind::Indented => String::new(),
                    };
                    inside = true;
                    blocks.push(Block { place: self.place(range.start), info, text: String::new() });
                }
                Event::Text(text) if inside => blocks.last_mut().expect("it began").text.push_str(&text),
                Event::End(TagEnd::CodeBlock) => inside = false,
                _ => {}
            }
        }
        blocks
    }

    pub(crate) fn links(&self) -> Vec<Link> {
        let links = self.events().into_iter().filter_map(|(event, range)| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                Some(Link { place: self.place(range.start), target: dest_url.into_string() })
            }
            _ => None,
        });
        links.collect()
    }

    /// What stands between backticks.
    pub(crate) fn code(&self) -> Vec<(String, String)> {
        let spans = self.events().into_iter().filter_map(|(event, range)| match event {
            Event::Code(code) => Some((self.place(range.start), code.into_string())),
            _ => None,
        });
        spans.collect()
    }

    /// What stands there as HTML.
    pub(crate) fn html(&self) -> Vec<(String, String)> {
        let parts = self.events().into_iter().filter_map(|(event, range)| match event {
            Event::Html(html) | Event::InlineHtml(html) => {
                Some((self.place(range.start), html.trim().to_owned()))
            }
            _ => None,
        });
        parts.collect()
    }

    /// What a link may name behind `#`, as mdBook and the forges make it of headings.
    pub(crate) fn anchors(&self) -> Vec<String> {
        let mut anchors = Vec::new();
        let mut seen: HashMap<String, usize> = HashMap::new();
        let mut heading: Option<String> = None;
        for (event, _) in self.events() {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                Event::End(TagEnd::Heading(_)) => {
                    let slug = slug(&heading.take().expect("it began"));
                    let before = seen.entry(slug.clone()).or_default();
                    anchors.push(if *before == 0 { slug } else { format!("{slug}-{before}") });
                    *before += 1;
                }
                _ => {}
            }
        }
        anchors
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        self.text.lines()
    }

    fn events(&self) -> Vec<(Event<'_>, std::ops::Range<usize>)> {
        Parser::new_ext(&self.text, Options::ENABLE_TABLES).into_offset_iter().collect()
    }

    fn place(&self, offset: usize) -> String {
        let line = self.text[..offset].matches('\n').count() + 1;
        format!("{}:{line}", self.path)
    }
}

fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_lowercase().to_string()),
        c if c.is_whitespace() => Some("-".to_owned()),
        _ => None,
    });
    kept.collect()
}

#[test]
fn a_page_is_taken_apart() {
    let text = "# One `two`, three!\n\n[a](b.md#c) and `--code`\n\n```console\n$ true\n```\n\n    indented\n\n# One two three\n";
    let page = Page::of("p.md", text);
    let blocks = page.blocks();
    let found: Vec<_> =
        blocks.iter().map(|block| (block.place.as_str(), block.language(), &block.text[..])).collect();
    assert_eq!(found, [("p.md:5", "console", "$ true\n"), ("p.md:9", "", "indented\n")]);
    assert_eq!(page.anchors(), ["one-two-three", "one-two-three-1"]);
    assert_eq!(page.links()[0].target, "b.md#c");
    assert_eq!(page.code()[1], ("p.md:3".to_owned(), "--code".to_owned()));
}
