//! Manifests as tables: bounded reads, and lookups that take what is not there, or of another type,
//! as nothing.

use serde_json::Value as Json;

use crate::tree::Tree;

pub type Table = toml::Table;

/// Characters of a parser's complaint that are repeated.
const MAX_COMPLAINT: usize = 160;

/// A TOML file, or why not.
pub fn toml(tree: &Tree, path: &str) -> Result<Table, String> {
    let text = tree.text(path).map_err(|why| why.to_string())?;
    text.parse::<Table>().map_err(|error| said(error.message()))
}

/// A JSON file, or why not. serde_json ends at 128 levels by itself.
pub fn json(tree: &Tree, path: &str) -> Result<Json, String> {
    let text = tree.text(path).map_err(|why| why.to_string())?;
    let value: Json = serde_json::from_str(&text).map_err(|error| said(&error.to_string()))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err("it is no object".to_owned())
    }
}

fn said(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    let cut: String = first.chars().take(MAX_COMPLAINT).collect();
    crate::diagnostic::sentence(&cut)
}

pub fn sub<'t>(table: &'t Table, key: &str) -> Option<&'t Table> {
    table.get(key)?.as_table()
}

/// A table inside tables.
pub fn deep<'t>(table: &'t Table, keys: &[&str]) -> Option<&'t Table> {
    keys.iter().try_fold(table, |table, key| sub(table, key))
}

pub fn text<'t>(table: &'t Table, key: &str) -> Option<&'t str> {
    table.get(key)?.as_str()
}

/// The texts of a list; other items are left out.
pub fn strings(table: &Table, key: &str) -> Vec<String> {
    let items = table.get(key).and_then(|it| it.as_array());
    let texts = items.into_iter().flatten().filter_map(|it| it.as_str());
    texts.map(str::to_owned).collect()
}
