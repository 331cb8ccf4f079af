//! The files that `tidy` looks at, read and parsed once.

use std::fs;
use std::path::Path;

/// Folders with files of the project, from its root.
const FOLDERS: [&str; 3] = ["crates", "docs", "xtask"];

/// A file of Rust.
pub struct Rust {
    /// From the project's root.
    pub path: String,
    pub text: String,
    pub syntax: syn::File,
}

impl Rust {
    /// The crate's folder, as `crates/mfs`.
    pub fn package(&self) -> &str {
        let depth = if self.path.starts_with("crates/") { 2 } else { 1 };
        let end = self.path.match_indices('/').nth(depth - 1).map_or(self.path.len(), |(at, _)| at);
        &self.path[..end]
    }

    /// Does the file hold tests alone?
    pub fn is_test(&self) -> bool {
        let inside = &self.path[self.package().len()..];
        let name = inside.rsplit('/').next().unwrap_or(inside);
        inside.contains("/tests/") || name == "tests.rs" || name.ends_with("_tests.rs")
    }
}

/// A document.
pub struct Document {
    /// From the project's root.
    pub path: String,
    pub text: String,
}

/// Everything that is looked at.
pub struct Sources {
    pub rust: Vec<Rust>,
    pub documents: Vec<Document>,
}

impl Sources {
    /// Reads what lies below `root`.
    pub fn read(root: &Path) -> Result<Sources, String> {
        let mut paths = Vec::new();
        for name in names(root)? {
            if name.ends_with(".md") {
                paths.push(name);
            } else if FOLDERS.contains(&name.as_str()) {
                collect(root, &name, &mut paths)?;
            }
        }
        paths.sort_unstable();
        let mut sources = Sources { rust: Vec::new(), documents: Vec::new() };
        for path in paths {
            let text = fs::read_to_string(root.join(&path)).map_err(|e| format!("{path}: {e}"))?;
            if path.ends_with(".md") {
                sources.documents.push(Document { path, text });
            } else {
                let syntax = syn::parse_file(&text)
                    .map_err(|error| format!("{path}:{}: {error}", error.span().start().line))?;
                sources.rust.push(Rust { path, text, syntax });
            }
        }
        Ok(sources)
    }
}

/// Adds the Rust files and documents below `folder`.
fn collect(root: &Path, folder: &str, paths: &mut Vec<String>) -> Result<(), String> {
    for name in names(&root.join(folder))? {
        let path = format!("{folder}/{name}");
        if root.join(&path).is_dir() {
            if name != "target" {
                collect(root, &path, paths)?;
            }
        } else if name.ends_with(".rs") || name.ends_with(".md") {
            paths.push(path);
        }
    }
    Ok(())
}

fn names(folder: &Path) -> Result<Vec<String>, String> {
    let failed = |error| format!("{}: {error}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}
