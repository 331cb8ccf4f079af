//! Checks the nodes of a tree.

use super::{Checker, Finding, claim, read};
use crate::btree::{NodeContent, Tree};
use crate::error::StoreError;

/// Calls `each` with every entry of a tree, in order, and checks and claims its nodes for `what`.
///
/// # Errors
/// `Io`, `Poisoned`; damage is a finding.
pub async fn walk<C: Checker, const K: usize, const V: usize>(
    check: &mut C,
    tree: Tree<K, V>,
    what: &str,
    mut each: impl FnMut(&mut C, &[u8; K], &[u8; V]),
) -> Result<(), StoreError> {
    let mut stack = Vec::new();
    stack.extend(read(check, |txn| tree.root_node(txn)).await?.flatten());
    while let Some(node) = stack.pop() {
        if !claim(check, node.block, 1, what) {
            check.note(Finding::BrokenTree(tree.location()));
            continue;
        }
        match read(check, |txn| tree.inspect(txn, &node)).await? {
            None => {
                let [low, high] = [node.low, node.high].map(|key| key.map(|key| key.to_vec()));
                check.note(Finding::LostNode { tree: tree.location(), low, high });
            }
            Some(NodeContent::Inner(_, children)) => stack.extend(children.into_iter().rev()),
            Some(NodeContent::Leaf(entries)) => {
                entries.iter().for_each(|(key, value)| each(check, key, value));
            }
        }
    }
    Ok(())
}
