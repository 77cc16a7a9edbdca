//! Which parameters a query may have: those that the document of the API names for its path, each
//! of them once. One place looks at them, as soon as it is known who asks, so that no handler can
//! forget to: a filter with a misspelled name would be answered as if it had not been there.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use axum::extract::MatchedPath;
use axum::http::Method;
use axum::http::request::Parts;
use delta_wire::Invalid;
use delta_wire::nearest::nearest;
use serde_json::Value;

use super::error::ApiError;
use super::{openapi, query_pairs};

/// Names by path and method, the latter in small letters.
type Table = HashMap<(String, String), Vec<String>>;

/// Refuses what is not known for the path of a request, and what is there twice: which one counts
/// would be anybody's guess.
pub fn check(request: &Parts) -> Result<(), ApiError> {
    let (Some(query), Some(path)) = (request.uri.query(), request.extensions.get::<MatchedPath>())
    else {
        return Ok(());
    };
    let known = known(&request.method, path.as_str());
    let mut seen = HashSet::new();
    for (name, _) in query_pairs(Some(query))? {
        if !known.contains(&name) {
            let words = unknown(&name, known);
            return Err(Invalid::field(name, words).into());
        }
        if seen.contains(&name) {
            return Err(Invalid::field(name, "is given twice").into());
        }
        seen.insert(name);
    }
    Ok(())
}

fn known(method: &Method, path: &str) -> &'static [String] {
    static TABLE: OnceLock<Table> = OnceLock::new();
    let table = TABLE.get_or_init(|| table(openapi::document()));
    let of = |method: &str| table.get(&(path.to_owned(), method.to_owned()));
    let own = of(&method.as_str().to_lowercase());
    // What answers a GET answers a HEAD, unless it says otherwise.
    let found = match *method == Method::HEAD {
        true => own.or_else(|| of("get")),
        false => own,
    };
    found.map_or(&[], Vec::as_slice)
}

fn table(document: &str) -> Table {
    let document: Value = serde_json::from_str(document).unwrap_or_default();
    let mut table = Table::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in item.as_object().into_iter().flatten() {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let names = parameters
                .filter(|it| it["in"] == "query")
                .filter_map(|it| it["name"].as_str().map(str::to_owned));
            table.insert((path.clone(), method.clone()), names.collect());
        }
    }
    table
}

fn unknown(name: &str, known: &[String]) -> String {
    match nearest(name, known.iter().map(String::as_str)) {
        Some(known) => format!("is not known; did you mean `{known}`?"),
        None if known.is_empty() => "is not known; there are no parameters here".to_owned(),
        None => format!("is not known; known here: {}", known.join(", ")),
    }
}
