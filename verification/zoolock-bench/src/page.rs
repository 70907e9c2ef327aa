//! Tables between marks in docs/BENCHMARKS.md.

use std::fs;
use std::path::Path;

use crate::Outcome;

/// Replaces the table between the marks of `name` in a page.
pub(crate) fn replace_table(page: &Path, name: &str, table: &str) -> Outcome<()> {
    let (begin, end) = section_marks(name);
    let text = fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
    let parts = text.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let Some((before, after)) = parts else {
        return Err(format!("{} has no place for the table: {begin} … {end}", page.display()).into());
    };
    write_atomically(page, &format!("{before}{begin}\n{table}{end}{after}"))
}

/// Replaces a file atomically.
pub(crate) fn write_atomically(path: &Path, text: &str) -> Outcome<()> {
    let draft = path.with_extension("draft");
    fs::write(&draft, text)?;
    Ok(fs::rename(draft, path)?)
}

fn section_marks(name: &str) -> (String, String) {
    (format!("<!-- {name}: begin, written by zoolock-bench -->"), format!("<!-- {name}: end -->"))
}

#[cfg(test)]
mod tests {
    use super::replace_table;

    #[test]
    fn only_text_between_the_marks_changes() {
        let dir = tempfile::tempdir().expect("directory is created");
        let page = dir.path().join("page.md");
        let with = |table: &str| {
            format!("one\n<!-- a: begin, written by zoolock-bench -->\n{table}<!-- a: end -->\ntwo\n")
        };
        std::fs::write(&page, with("old\n")).expect("page is written");
        replace_table(&page, "a", "new\n").expect("page has the marks");
        assert_eq!(std::fs::read_to_string(&page).expect("page is read"), with("new\n"));
        assert!(replace_table(&page, "b", "new\n").is_err());
    }
}
