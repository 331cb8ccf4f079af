//! Documents that quote the code: between `<!-- from PATH -->` and `<!-- end -->`
//! stands the module documentation of the file at PATH, and nothing else.
//!
//! Invariant: the byte tables of the formats are written once, beside the code that
//! reads them; the gate fails if a document is behind.

use std::fs;
use std::path::Path;

const DOCUMENTS: [&str; 2] = ["FORMAT.md", "PROTOCOLS.md"];
const END: &str = "<!-- end -->";

/// Brings the documents up to date.
pub fn write(root: &Path) -> Result<(), String> {
    for document in DOCUMENTS {
        let path = root.join(document);
        let text = read(&path)?;
        let fresh = assemble(&text, |file| read(&root.join(file)))?;
        if fresh != text {
            fs::write(&path, fresh).map_err(|error| format!("{document}: {error}"))?;
        }
    }
    Ok(())
}

/// Says which documents are not up to date.
pub fn check(root: &Path) -> Result<(), String> {
    for document in DOCUMENTS {
        let text = read(&root.join(document))?;
        if assemble(&text, |file| read(&root.join(file)))? != text {
            return Err(format!(
                "{document} differs from the code it quotes: cargo xtask documents"
            ));
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// `text` with every quotation made anew.
fn assemble(text: &str, source: impl Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let mut out = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        out += line;
        out.push('\n');
        let Some(file) = line.strip_prefix("<!-- from ").and_then(|rest| rest.strip_suffix(" -->"))
        else {
            continue;
        };
        if !lines.by_ref().any(|line| line == END) {
            return Err(format!("the quotation of {file} has no end"));
        }
        let quoted = module_documentation(&source(file)?);
        if quoted.is_empty() {
            return Err(format!("{file} has no module documentation"));
        }
        out += &format!("\n{quoted}\n{END}\n");
    }
    Ok(out)
}

/// The `//!` lines at the start of a file; links into the code become plain code.
fn module_documentation(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    let mut text = String::new();
    for line in lines {
        text += line.strip_prefix(' ').unwrap_or(line);
        text.push('\n');
    }
    text.replace("[`", "`").replace("`]", "`")
}

#[cfg(test)]
mod tests {
    use super::assemble;

    #[test]
    fn only_quotations_are_replaced() {
        let source =
            |_: &str| Ok("//! The [`Label`].\n//!\n//! | a |\nuse x;\n//! not this\n".to_owned());
        let text = "# F\n<!-- from a.rs -->\nold\n<!-- end -->\nafter\n";
        let fresh = "# F\n<!-- from a.rs -->\n\nThe `Label`.\n\n| a |\n\n<!-- end -->\nafter\n";
        assert_eq!(assemble(text, source).as_deref(), Ok(fresh));
        assert_eq!(assemble(fresh, source).as_deref(), Ok(fresh));
        assert!(assemble("<!-- from a.rs -->\n", source).is_err());
    }
}
