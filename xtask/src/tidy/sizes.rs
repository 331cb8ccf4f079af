//! Sizes: lines of files, and of functions that are not tests.

use syn::visit::{self, Visit};

use super::ratchet::Counts;
use super::sources::Sources;

/// Lines of a file of Rust.
const FILE_LINES: usize = 800;
/// Lines of a function.
const FUNCTION_LINES: usize = 70;

/// Counts what is longer than that.
pub fn count(sources: &Sources, counts: &mut Counts) {
    for file in &sources.rust {
        let lines = file.text.lines().count();
        if lines > FILE_LINES {
            counts.add("file-lines", &file.path, lines, format!("{FILE_LINES} at most"));
        }
        if !file.is_test() {
            let mut functions = Functions { found: Vec::new() };
            functions.visit_file(&file.syntax);
            for (name, lines, line) in functions.found {
                let place = format!("{}:{name}", file.path);
                let most = format!("line {line}; {FUNCTION_LINES} at most");
                counts.add("function-lines", &place, lines, most);
            }
        }
    }
}

/// Is an item compiled for tests alone?
pub fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        let cfg = path.is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| {
                let condition = list.tokens.to_string();
                condition == "test" || condition.starts_with("all (test")
            });
        cfg || path.is_ident("test")
    })
}

/// Functions that are too long: name, lines, and the line where each begins.
struct Functions {
    found: Vec<(String, usize, usize)>,
}

impl Functions {
    /// Measures from `fn` to the closing brace: attributes and documentation do not count.
    fn measure(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let from = signature.fn_token.span.start().line;
        let lines = block.brace_token.span.close().end().line + 1 - from;
        if lines > FUNCTION_LINES {
            self.found.push((signature.ident.to_string(), lines, from));
        }
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_for_tests(&item.attrs) {
            self.measure(&item.sig, &item.block);
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            self.measure(&item.sig, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }
}
