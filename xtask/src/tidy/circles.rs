//! Circles of imports: the modules of a crate that reach each other through `crate::` and
//! `super::` paths. A module is a file; what is compiled for tests alone does not count.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::ratchet::Counts;
use super::sizes::is_for_tests;
use super::sources::{Rust, Sources};

/// Modules of a circle that need no entry in the ratchet.
const CIRCLE: usize = 5;

type Module = Vec<String>;

/// Counts the modules of each crate's largest circle.
pub fn count(sources: &Sources, counts: &mut Counts) {
    let mut packages: BTreeMap<&str, Vec<&Rust>> = BTreeMap::new();
    for file in &sources.rust {
        if file.path[file.package().len()..].starts_with("/src/") && !file.is_test() {
            packages.entry(file.package()).or_default().push(file);
        }
    }
    for (package, files) in packages {
        let graph = graph(&files);
        let largest = circles(&graph).into_iter().max_by_key(Vec::len).unwrap_or_default();
        if largest.len() > CIRCLE {
            let names: Vec<String> = largest.iter().map(|module| module.join("::")).collect();
            let seen = format!("{CIRCLE} at most: {}", names.join(", "));
            counts.add("import-circle", package, largest.len(), seen);
        }
    }
}

/// The module that a file is.
fn module(file: &Rust) -> Module {
    let inside = &file.path[file.package().len() + "/src/".len()..];
    let mut names: Module = inside.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if matches!(names.last().map(String::as_str), Some("lib" | "main" | "mod")) {
        names.pop();
    }
    names
}

/// Which modules each module names.
fn graph(files: &[&Rust]) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut modules: BTreeSet<Module> = files.iter().map(|file| module(file)).collect();
    let mut for_tests = BTreeSet::new();
    for file in files {
        for item in &file.syntax.items {
            if let syn::Item::Mod(item) = item
                && is_for_tests(&item.attrs)
            {
                let mut child = module(file);
                child.push(item.ident.to_string());
                for_tests.insert(child);
            }
        }
    }
    modules.retain(|module| !for_tests.iter().any(|test| module.starts_with(test)));
    let mut graph = BTreeMap::new();
    for file in files {
        let here = module(file);
        if modules.contains(&here) {
            let mut names = Names { paths: Vec::new(), depth: 0 };
            names.visit_file(&file.syntax);
            let named = names.paths.into_iter().filter_map(|path| resolve(&modules, &here, &path));
            graph.insert(here.clone(), named.filter(|other| *other != here).collect());
        }
    }
    graph
}

/// The module that `path`, named in module `here`, leads to.
fn resolve(modules: &BTreeSet<Module>, here: &Module, path: &[String]) -> Option<Module> {
    let mut at = here.clone();
    let mut names = path;
    match names.first()?.as_str() {
        "crate" => at.clear(),
        "super" => {
            at.pop()?;
        }
        _ => return None,
    }
    names = &names[1..];
    while let Some(name) = names.first() {
        if name == "super" {
            at.pop()?;
        } else {
            let mut child = at.clone();
            child.push(name.clone());
            if !modules.contains(&child) {
                break;
            }
            at = child;
        }
        names = &names[1..];
    }
    modules.contains(&at).then_some(at)
}

/// Collects paths that begin with `crate` or `super`.
struct Names {
    paths: Vec<Vec<String>>,
    /// How many modules within the file lie around.
    depth: usize,
}

impl Names {
    fn add(&mut self, mut path: Vec<String>) {
        // `super` within a module of the file leads no further than to the file itself.
        for _ in 0..self.depth {
            if path.first().is_some_and(|name| name == "super") {
                path.remove(0);
            }
        }
        if path.first().is_some_and(|name| name == "crate" || name == "super") {
            self.paths.push(path);
        }
    }

    fn walk(&mut self, tree: &syn::UseTree, path: &[String]) {
        let with = |name: &syn::Ident| [path, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(next) => self.walk(&next.tree, &with(&next.ident)),
            syn::UseTree::Name(name) => self.add(with(&name.ident)),
            syn::UseTree::Rename(name) => self.add(with(&name.ident)),
            syn::UseTree::Glob(_) => self.add(path.to_vec()),
            syn::UseTree::Group(group) => group.items.iter().for_each(|t| self.walk(t, path)),
        }
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.walk(&item.tree, &[]);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            self.depth += 1;
            visit::visit_item_mod(self, item);
            self.depth -= 1;
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.add(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {
        // `pub(super)` imports nothing.
    }
}

/// The strongly connected components of more than one module (Kosaraju).
fn circles(graph: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Vec<Module>> {
    let mut back: BTreeMap<&Module, BTreeSet<&Module>> = BTreeMap::new();
    for (from, tos) in graph {
        for to in tos {
            back.entry(to).or_default().insert(from);
        }
    }
    let (mut order, mut seen) = (Vec::new(), BTreeSet::new());
    for module in graph.keys() {
        finish(module, &|m| graph.get(m).into_iter().flatten().collect(), &mut seen, &mut order);
    }
    let (mut circles, mut seen) = (Vec::new(), BTreeSet::new());
    for module in order.into_iter().rev() {
        let mut circle = Vec::new();
        finish(
            module,
            &|m| back.get(m).into_iter().flatten().copied().collect(),
            &mut seen,
            &mut circle,
        );
        if circle.len() > 1 {
            circles.push(circle.into_iter().cloned().collect());
        }
    }
    circles
}

/// Puts what is reached from `module` into `order`, each after what it leads to.
fn finish<'a>(
    module: &'a Module,
    next: &dyn Fn(&Module) -> Vec<&'a Module>,
    seen: &mut BTreeSet<&'a Module>,
    order: &mut Vec<&'a Module>,
) {
    if seen.insert(module) {
        for other in next(module) {
            finish(other, next, seen, order);
        }
        order.push(module);
    }
}

#[cfg(test)]
mod tests {
    use super::{circles, graph};
    use crate::tidy::sources::Rust;

    fn file(path: &str, text: &str) -> Rust {
        let syntax = syn::parse_file(text).expect("it is Rust");
        Rust { path: path.to_owned(), text: text.to_owned(), syntax }
    }

    #[test]
    fn mutually_reachable_modules_are_a_circle_without_tests() {
        let files = [
            file("crates/x/src/lib.rs", "mod a; mod b; mod c; #[cfg(test)] mod t;"),
            file(
                "crates/x/src/a.rs",
                "use crate::b::{self, B}; #[cfg(test)] mod tests { use crate::c; }",
            ),
            file("crates/x/src/b.rs", "fn f() { super::c::d::g() } pub(super) fn h() {}"),
            file("crates/x/src/c/mod.rs", "mod d; use crate::t::T;"),
            file("crates/x/src/c/d.rs", "mod inner { use super::super::super::a; }"),
            file("crates/x/src/t.rs", "use crate::c;"),
        ];
        let files: Vec<&Rust> = files.iter().collect();
        let mut found = circles(&graph(&files));
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].sort();
        let names: Vec<String> = found[0].iter().map(|module| module.join("::")).collect();
        assert_eq!(names, ["a", "b", "c::d"]);
    }
}
