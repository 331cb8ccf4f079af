//! Comments and documents: the width of their lines, the length of their sentences, and words
//! that have a better one.

use super::COLUMNS;
use super::ratchet::Counts;
use super::sources::Sources;

/// Words of a sentence.
const SENTENCE_WORDS: usize = 30;

/// Words that readers from other file systems have to guess, and what to write instead.
/// Counted as whole words, in code and in prose.
const WORDS: [(&str, &str); 20] = [
    ("attic", "orphan directory"),
    ("baton", "run token"),
    ("crew", "executor pool"),
    ("crowd", "lease pressure, barrier"),
    ("freer", "orphan reaper"),
    ("mended", "repaired, fixed"),
    ("mustered", "started"),
    ("nameless", "orphan"),
    ("onlooker", "observer"),
    ("rot", "media corruption"),
    ("shaky", "not durable"),
    ("spoil", "mutate"),
    ("spoiled", "mutated"),
    ("taint", "depend"),
    ("told", "reported, notified, answered"),
    ("unheard", "unacknowledged"),
    ("unnamed", "orphan"),
    ("untold", "unacknowledged"),
    ("whoever", "name the subject"),
    ("whom", "name the subject"),
];

/// Lines of comments and documents that are too wide. Tables, code blocks and links cannot break.
pub fn wide_lines(sources: &Sources) -> Vec<String> {
    let mut findings = Vec::new();
    let mut look = |path: &str, at: usize, line: &str| {
        let columns = line.chars().count();
        if columns > COLUMNS {
            findings.push(format!("{path}:{at}: {columns} columns, {COLUMNS} at most"));
        }
    };
    for file in &sources.rust {
        for (at, line) in file.text.lines().enumerate() {
            let text = line.trim_start();
            if text.starts_with("//") && !is_table(comment(text).unwrap_or("")) {
                look(&file.path, at + 1, line);
            }
        }
    }
    for document in &sources.documents {
        for (at, line) in prose_lines(&document.text) {
            if line.split_whitespace().count() > 1 {
                look(&document.path, at, line);
            }
        }
    }
    findings
}

/// Counts long sentences by crate and document, and words by word.
pub fn count(sources: &Sources, counts: &mut Counts) {
    for file in &sources.rust {
        for (at, sentence) in comment_sentences(&file.text) {
            count_sentence(counts, file.package(), &file.path, at, &sentence);
        }
        count_words(counts, &file.path, &file.text);
    }
    for document in &sources.documents {
        for (at, sentence) in document_sentences(&document.text) {
            count_sentence(counts, &document.path, &document.path, at, &sentence);
        }
        count_words(counts, &document.path, &document.text);
    }
}

fn count_sentence(counts: &mut Counts, place: &str, path: &str, at: usize, sentence: &str) {
    let words = sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric));
    let words = words.count();
    if words > SENTENCE_WORDS {
        let seen = format!("{path}:{at}: {words} words, {SENTENCE_WORDS} at most");
        counts.add("long-sentences", place, 1, seen);
    }
}

fn count_words(counts: &mut Counts, path: &str, text: &str) {
    // The list itself, and the table of old words.
    if path.ends_with("tidy/prose.rs") || path == "GLOSSARY.md" {
        return;
    }
    for (at, line) in text.lines().enumerate() {
        for word in line.split(|c: char| !c.is_ascii_alphabetic()).flat_map(humps) {
            let word = word.to_ascii_lowercase();
            if let Ok(found) = WORDS.binary_search_by(|(banned, _)| (*banned).cmp(&word)) {
                let (banned, better) = WORDS[found];
                counts.add("word", banned, 1, format!("{path}:{}: write {better}", at + 1));
            }
        }
    }
}

/// The words of a name in camel case.
fn humps(name: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut from = 0;
    let bytes = name.as_bytes();
    for at in 1..bytes.len() {
        if bytes[at].is_ascii_uppercase() && bytes[at - 1].is_ascii_lowercase() {
            words.push(&name[from..at]);
            from = at;
        }
    }
    words.push(&name[from..]);
    words
}

/// What a line of a comment says.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let markers = ["///", "//!", "//"];
    markers.iter().find_map(|marker| line.strip_prefix(marker))
}

fn is_table(line: &str) -> bool {
    line.trim_start().starts_with('|')
}

/// Begins a paragraph of its own: an item of a list, a heading, an empty line.
fn is_start(line: &str) -> bool {
    let line = line.trim_start();
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let item = ["- ", "* ", "#", ">"].iter().any(|mark| line.starts_with(mark));
    line.is_empty() || item || number.len() < line.len() && number.starts_with(". ")
}

/// Lines of a document that are neither tables nor code, by number.
fn prose_lines(text: &str) -> Vec<(usize, &str)> {
    let mut code = false;
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        if !fence && !code && !line.starts_with("    ") && !is_table(line) {
            lines.push((at + 1, line));
        }
    }
    lines
}

fn document_sentences(text: &str) -> Vec<(usize, String)> {
    sentences(prose_lines(text).into_iter())
}

fn comment_sentences(text: &str) -> Vec<(usize, String)> {
    let comments = text.lines().enumerate().map(|(at, line)| (at + 1, comment(line).unwrap_or("")));
    sentences(comments.filter(|(_, line)| !is_table(line)))
}

/// The sentences of paragraphs, each with the line where its paragraph begins.
fn sentences<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    let mut last = 0;
    for (at, line) in lines {
        let follows = at == last + 1 && !is_start(line) && !paragraphs.is_empty();
        match paragraphs.last_mut() {
            Some((_, paragraph)) if follows => {
                paragraph.push(' ');
                paragraph.push_str(line.trim());
            }
            _ => paragraphs.push((at, line.trim().to_owned())),
        }
        last = at;
    }
    let mut sentences = Vec::new();
    for (at, paragraph) in paragraphs {
        let ends = [". ", "? ", "! ", ": ", "; "];
        let mut rest = paragraph.as_str();
        while let Some(end) = ends.iter().filter_map(|end| rest.find(end)).min() {
            sentences.push((at, rest[..end].to_owned()));
            rest = &rest[end + 2..];
        }
        sentences.push((at, rest.to_owned()));
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::{WORDS, comment_sentences, document_sentences, humps};

    #[test]
    fn banned_words_are_sorted_for_the_search() {
        assert!(WORDS.is_sorted());
    }

    #[test]
    fn names_are_split_into_words() {
        assert_eq!(humps("OnLookerX"), ["On", "Looker", "X"]);
        assert_eq!(humps("told"), ["told"]);
    }

    #[test]
    fn sentence_spans_lines_and_ends_with_its_paragraph() {
        let text = "//! One sentence\n//! on two lines. Another one\n//!\n//! - an item\nuse x;\n";
        let found: Vec<String> = comment_sentences(text).into_iter().map(|(_, s)| s).collect();
        let found: Vec<&str> = found.iter().map(String::as_str).filter(|s| !s.is_empty()).collect();
        assert_eq!(found, ["One sentence on two lines", "Another one", "- an item"]);
    }

    #[test]
    fn tables_and_code_are_not_sentences() {
        let text = "| a b | c |\n```\nlet a = 1;\n```\n    indented code\nText.\n";
        let found = document_sentences(text);
        assert_eq!(found, [(6, "Text.".to_owned())]);
    }
}
