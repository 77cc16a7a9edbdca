//! YAML text into a tree of located nodes. This is the only module that knows the YAML library.
//!
//! It keeps the text of every scalar as it was written (`8080` stays `8080`, `010` stays `010`)
//! together with its place, so that what reads the tree can point at the line. It refuses what such
//! a file never needs and an attacker likes: several documents, custom tags, deep nesting, aliases
//! that multiply.

use std::collections::HashMap;

use serde_saphyr::granit_parser::{self, Event, Parser, ScalarStyle, Span, StrInput};

/// Nested collections allowed. A pipeline file needs seven; the rest is room for formats to come,
/// and recursion this shallow fits any stack.
pub const MAX_DEPTH: usize = 32;

/// Nodes in one file after aliases are expanded. Ten thousand jobs of ten nodes each; an alias bomb
/// reaches it in a few steps and stops there.
pub const MAX_NODES: usize = 100_000;

/// Bytes of scalar text after aliases are expanded: eight full files. It stops few nodes with long
/// text from multiplying below [`MAX_NODES`].
pub const MAX_TEXT_BYTES: usize = 8 * 1024 * 1024;

/// A condition that begins with `!` is a tag to YAML.
const NO_TAG: &str = "write the value without a tag; a text that begins with `!` needs quotes";

/// A place in the file, both numbers counted from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub line: usize,
    pub column: usize,
    /// Characters to underline; at least 1.
    pub width: usize,
}

/// One value of the file and where it stands.
#[derive(Debug, Clone)]
pub struct Node {
    pub place: Place,
    pub value: Value,
}

#[derive(Debug, Clone)]
pub enum Value {
    /// Text as written. `quoted` tells `"10"` from `10`, and `""` from nothing at all.
    Scalar {
        text: String,
        quoted: bool,
    },
    List(Vec<Node>),
    /// Pairs in file order; duplicates are kept so that the reader can name both places.
    Map(Vec<(Node, Node)>),
}

impl Node {
    /// What a person would call this value in a sentence.
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Scalar { .. } if self.is_absent() => "nothing",
            Value::Scalar { .. } => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }

    pub fn cost(&self) -> Cost {
        let mut cost = Cost::of(1, 0);
        let mut add = |node: &Node| {
            let more = node.cost();
            cost.nodes += more.nodes;
            cost.text_bytes += more.text_bytes;
        };
        match &self.value {
            Value::Scalar { text, .. } => cost.text_bytes = text.len(),
            Value::List(items) => items.iter().for_each(add),
            Value::Map(pairs) => pairs.iter().for_each(|(key, value)| {
                add(key);
                add(value);
            }),
        }
        cost
    }

    /// `key:` with nothing behind it, `~` and `null` all mean that no value was given.
    pub fn is_absent(&self) -> bool {
        match &self.value {
            Value::Scalar { text, quoted } => !quoted && matches!(text.as_str(), "" | "~" | "null"),
            _ => false,
        }
    }
}

/// Why the text is no tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlError {
    pub place: Place,
    pub reason: String,
    pub suggestion: Option<String>,
}

/// Reads exactly one document.
pub fn read(text: &str) -> Result<Node, YamlError> {
    let mut options = granit_parser::options! {
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
        disallow_directives: true,
    };
    options.set_emit_comments(false);
    let mut reader = Reader {
        parser: Parser::new_from_str_with_options(text, options),
        anchors: HashMap::new(),
        nodes: 0,
        text_bytes: 0,
    };
    reader.document()
}

struct Anchored {
    node: Node,
    cost: Cost,
}

/// What a value takes: itself and everything in it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    pub nodes: usize,
    pub text_bytes: usize,
}

impl Cost {
    fn of(nodes: usize, text_bytes: usize) -> Cost {
        Cost { nodes, text_bytes }
    }
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, Anchored>,
    nodes: usize,
    text_bytes: usize,
}

impl<'a> Reader<'a> {
    fn document(&mut self) -> Result<Node, YamlError> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamStart | Event::DocumentEnd => {}
                Event::StreamEnd => break,
                Event::DocumentStart(..) if root.is_some() => {
                    return Err(error(
                        place(&span),
                        "a second document begins here",
                        Some("keep everything in one document: remove the `---`"),
                    ));
                }
                Event::DocumentStart(..) => {}
                event => root = Some(self.node(event, &span, 0)?),
            }
        }
        Ok(root.unwrap_or_else(|| Node {
            place: Place {
                line: 1,
                column: 1,
                width: 1,
            },
            value: Value::Scalar {
                text: String::new(),
                quoted: false,
            },
        }))
    }

    fn next(&mut self) -> Result<(Event<'a>, Span), YamlError> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(problem)) => {
                let mark = problem.marker();
                let at = Place {
                    line: mark.line().max(1),
                    column: mark.col() + 1,
                    width: 1,
                };
                let info = problem.info();
                let hint = match info.as_str() {
                    info if info.contains("scanning a tag") => Some(NO_TAG),
                    info if info.contains("tab") => Some("indent with blanks, not with tabs"),
                    _ => None,
                };
                Err(error(at, &format!("not valid YAML: {info}"), hint))
            }
            None => {
                let at = Place {
                    line: 1,
                    column: 1,
                    width: 1,
                };
                Err(error(at, "not valid YAML: the text ends too early", None))
            }
        }
    }

    fn node(&mut self, event: Event<'a>, span: &Span, depth: usize) -> Result<Node, YamlError> {
        let at = place(span);
        if depth > MAX_DEPTH {
            let reason = format!("nested deeper than {MAX_DEPTH} levels");
            return Err(error(at, &reason, None));
        }
        if let Some(tag) = event.tag().filter(|tag| !tag.is_yaml_core_schema()) {
            let reason = format!("the tag `{}` is not supported", tag.original());
            return Err(error(at, &reason, Some(NO_TAG)));
        }
        let before = Cost::of(self.nodes, self.text_bytes);
        let anchor = event.anchor_id();
        let value = match event {
            Event::Alias(id) => return self.alias(id, at),
            Event::Scalar(text, style, ..) => {
                self.charge(Cost::of(1, text.len()), at)?;
                let quoted = style != ScalarStyle::Plain;
                // The parser spells a missing value `~`; here it stays nothing.
                let written = quoted || !span.is_empty();
                let mut text = text.into_owned();
                if !written {
                    text.clear();
                }
                Value::Scalar { text, quoted }
            }
            Event::SequenceStart(..) => {
                self.charge(Cost::of(1, 0), at)?;
                self.list(depth)?
            }
            Event::MappingStart(..) => {
                self.charge(Cost::of(1, 0), at)?;
                self.map(depth)?
            }
            _ => return Err(error(at, "not valid YAML: a value is missing here", None)),
        };
        let node = Node { place: at, value };
        if let Some(id) = anchor {
            let nodes = self.nodes - before.nodes;
            let cost = Cost::of(nodes, self.text_bytes - before.text_bytes);
            let node = node.clone();
            self.anchors.insert(id, Anchored { node, cost });
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Value, YamlError> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::SequenceEnd) {
                return Ok(Value::List(items));
            }
            items.push(self.node(event, &span, depth + 1)?);
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, YamlError> {
        let mut pairs = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Ok(Value::Map(pairs));
            }
            let key = self.node(event, &span, depth + 1)?;
            let (event, span) = self.next()?;
            let value = self.node(event, &span, depth + 1)?;
            pairs.push((key, value));
        }
    }

    /// An alias is a copy of what its anchor names. The copy is paid for before it is made.
    fn alias(&mut self, id: usize, at: Place) -> Result<Node, YamlError> {
        let Some(anchored) = self.anchors.get(&id) else {
            return Err(error(
                at,
                "this alias stands inside the value it names",
                None,
            ));
        };
        let cost = anchored.cost;
        self.charge(cost, at)?;
        let mut node = self.anchors[&id].node.clone();
        node.place = at;
        Ok(node)
    }

    fn charge(&mut self, cost: Cost, at: Place) -> Result<(), YamlError> {
        self.nodes += cost.nodes;
        self.text_bytes += cost.text_bytes;
        if self.nodes > MAX_NODES {
            let reason = format!("the file has more than {MAX_NODES} values, aliases expanded");
            return Err(error(
                at,
                &reason,
                Some("split the work over fewer or larger jobs"),
            ));
        }
        if self.text_bytes > MAX_TEXT_BYTES {
            let reason = format!("the file has more than {MAX_TEXT_BYTES} bytes of text expanded");
            return Err(error(
                at,
                &reason,
                Some("move long scripts into files of their own"),
            ));
        }
        Ok(())
    }
}

fn place(span: &Span) -> Place {
    let width = if span.end.line() == span.start.line() {
        span.end.col().saturating_sub(span.start.col()).max(1)
    } else {
        1
    };
    Place {
        line: span.start.line().max(1),
        column: span.start.col() + 1,
        width,
    }
}

fn error(place: Place, reason: &str, suggestion: Option<&str>) -> YamlError {
    YamlError {
        place,
        reason: reason.to_owned(),
        suggestion: suggestion.map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(node: &Node) -> &str {
        match &node.value {
            Value::Scalar { text, .. } => text,
            other => panic!("expected a scalar, found {other:?}"),
        }
    }

    #[test]
    fn scalars_keep_their_text() {
        let node = read("[true, 010, 1_000, 'x', ~]").expect("valid");
        let Value::List(items) = node.value else {
            panic!("expected a list")
        };
        let texts: Vec<_> = items.iter().map(text_of).collect();
        assert_eq!(texts, ["true", "010", "1_000", "x", "~"]);
        assert!(items[4].is_absent());
        assert!(!items[3].is_absent());
    }

    #[test]
    fn places_count_from_one_in_characters() {
        let node = read("é: 1\nkey:  value\n").expect("valid");
        let Value::Map(pairs) = node.value else {
            panic!("expected a map")
        };
        assert_eq!(
            pairs[0].1.place,
            Place {
                line: 1,
                column: 4,
                width: 1
            }
        );
        assert_eq!(
            pairs[1].1.place,
            Place {
                line: 2,
                column: 7,
                width: 5
            }
        );
    }

    #[test]
    fn an_alias_is_a_copy_at_its_own_place() {
        let node = read("a: &x [1]\nb: *x\n").expect("valid");
        let Value::Map(pairs) = node.value else {
            panic!("expected a map")
        };
        assert_eq!(pairs[1].1.kind(), "a list");
        assert_eq!(pairs[1].1.place.line, 2);
    }

    #[test]
    fn an_alias_inside_its_own_value_is_refused() {
        let problem = read("a: &x [*x]\n").expect_err("recursive");
        assert_eq!(
            problem.reason,
            "this alias stands inside the value it names"
        );
    }

    #[test]
    fn a_second_document_and_a_custom_tag_are_refused() {
        assert_eq!(read("a: 1\n---\nb: 2\n").expect_err("two").place.line, 2);
        let problem = read("a: !include x\n").expect_err("tag");
        assert_eq!(problem.reason, "the tag `!include` is not supported");
    }
}
