//! Files written to hurt: each is refused, quickly, with a diagnostic and without a panic.

use std::time::{Duration, Instant};

use delta_planner::{Diagnostics, MAX_DIAGNOSTICS, MAX_FILE_BYTES, parse};

/// Far above what the slowest case needs in an unoptimised build, far below "hangs".
const BOUND: Duration = Duration::from_secs(5);

fn refused(bytes: &[u8]) -> Diagnostics {
    let start = Instant::now();
    let found = parse("hostile.yaml", bytes).expect_err("must be refused");
    assert!(start.elapsed() < BOUND, "took {:?}", start.elapsed());
    assert!(!found.items.is_empty());
    assert!(found.to_string().len() < 100_000, "diagnostics stay short");
    found
}

#[test]
fn an_alias_bomb_stops_at_the_budget() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for n in 1..30 {
        let items = vec![format!("*a{}", n - 1); 10].join(", ");
        text.push_str(&format!("a{n}: &a{n} [{items}]\n"));
    }
    let found = refused(text.as_bytes());
    assert!(
        found.items[0].reason.contains("aliases expanded"),
        "{found}"
    );
}

#[test]
fn few_aliases_of_a_long_text_stop_at_the_budget() {
    let mut text = format!("a: &a \"{}\"\nb:\n", "x".repeat(900_000));
    for _ in 0..1_000 {
        text.push_str("  - *a\n");
    }
    let found = refused(text.as_bytes());
    assert!(found.items[0].reason.contains("bytes of text"), "{found}");
}

#[test]
fn deep_nesting_is_refused() {
    refused("[".repeat(500_000).as_bytes());
    refused("{a: ".repeat(200_000).as_bytes());
    refused("- ".repeat(500_000).as_bytes());
    let mut stairs = String::new();
    for n in 0..1_000 {
        stairs.push_str(&format!("{}a:\n", " ".repeat(n)));
    }
    refused(stairs.as_bytes());
}

#[test]
fn bytes_that_are_no_text_are_refused_with_their_place() {
    let found = refused(b"jobs:\n  a\xff: 1\n");
    assert_eq!((found.items[0].line, found.items[0].column), (2, 4));
    assert_eq!(found.items[0].reason, "byte 0xff is not UTF-8");
    let found = refused(b"jobs:\n\0");
    assert_eq!(found.items[0].reason, "the file contains a NUL character");
    refused(b"jobs: {a: {steps: [\"x\\0y\"]}}");
    refused(b"jobs: {a: {steps: [x], env: {A: \"x\\0y\"}}}");
    refused(&[0xff, 0xfe, 0, 0]);
}

#[test]
fn ten_megabytes_are_refused_unread() {
    let found = refused(&vec![b'a'; 10 * 1024 * 1024]);
    assert!(found.items[0].reason.contains("at most 1048576"), "{found}");
    refused(&vec![b' '; MAX_FILE_BYTES + 1]);
}

#[test]
fn a_full_size_file_of_any_one_character_is_answered_in_time() {
    for c in "a-:[]{},&*!|>'\"%@`#?\n\t ~<".chars() {
        let text = c.to_string().repeat(MAX_FILE_BYTES);
        refused(text.as_bytes());
    }
}

#[test]
fn many_faults_are_counted_not_listed() {
    let mut text = String::from("jobs:\n");
    for n in 0..900 {
        text.push_str(&format!("  j{n}: {{step: [x], needs: [k{n}]}}\n"));
    }
    let found = refused(text.as_bytes());
    assert_eq!(found.items.len(), MAX_DIAGNOSTICS);
    assert!(found.left_out > 900);
}

#[test]
fn a_dense_knot_of_needs_is_answered_in_time() {
    let mut text = String::from("jobs:\n");
    for n in 0..250 {
        let needs: Vec<_> = (0..250).map(|need| format!("j{need}")).collect();
        text.push_str(&format!(
            "  j{n}: {{steps: [x], needs: [{}]}}\n",
            needs.join(", ")
        ));
    }
    let found = refused(text.as_bytes());
    assert_eq!(found.items.len(), MAX_DIAGNOSTICS);
}

#[test]
fn a_long_line_and_escape_codes_stay_out_of_the_terminal() {
    let name = format!("\\e[31m{}", "x".repeat(100_000));
    let text = format!("jobs: {{? \"{name}\" : {{steps: [x]}}}}");
    let found = refused(text.as_bytes());
    assert!(!found.to_string().contains('\u{1b}'));
}

/// Found by mutation: an axis that is no list hid the product of the others from the count.
#[test]
fn an_axis_without_values_does_not_hide_the_product_of_the_others() {
    for empty in ["refuses", "[]", "[[]]", "{}"] {
        let mut text = String::from("jobs:\n  a:\n    steps: [x]\n    matrix:\n");
        for n in 0..9 {
            text.push_str(&format!("      a{n}: [0,1,2,3,4,5,6,7,8,9]\n"));
        }
        text.push_str(&format!("      last: {empty}\n"));
        let found = refused(text.as_bytes());
        assert!(
            found.to_string().contains("`last` of the matrix"),
            "{found}"
        );
    }
}

fn numbers(count: usize) -> String {
    let all: Vec<String> = (0..count).map(|n| n.to_string()).collect();
    all.join(", ")
}

#[test]
fn inputs_and_needs_of_cells_are_counted_before_they_are_written_out() {
    let cells = numbers(250);
    let inputs = vec!["a"; 200].join(", ");
    let text = format!(
        "jobs:\n  a: {{steps: [x], artifacts: [y], matrix: {{n: [{cells}]}}}}\n  \
         b: {{steps: [x], needs: [a], inputs: [{inputs}], matrix: {{n: [{cells}]}}}}\n"
    );
    let found = refused(text.as_bytes()).to_string();
    assert!(found.contains("needs 250 jobs, cells counted"), "{found}");
    let text = text.replace(&cells, &numbers(150));
    let found = refused(text.as_bytes()).to_string();
    assert!(
        found.contains("has 30000 inputs, cells counted; at most 200"),
        "{found}"
    );
}

#[test]
fn values_put_into_texts_stop_at_the_budget() {
    let value = "v".repeat(250);
    let text = "{matrix.long}".repeat(240);
    let env: Vec<String> = (0..5).map(|n| format!("A{n}: \"{text}\"")).collect();
    let text = format!(
        "jobs:\n  a:\n    steps: [x]\n    matrix: {{n: [{}], long: [{value}]}}\n    env: {{{}}}\n",
        numbers(250),
        env.join(", ")
    );
    let found = refused(text.as_bytes()).to_string();
    assert!(found.contains("becomes too large here"), "{found}");
}

#[test]
fn patterns_in_conditions_stop_at_the_budget() {
    let pattern = format!("{{a,b}}{{c,d}}{{e,f}}{{g,h}}{}", "x".repeat(80));
    let patterns = vec![format!("\"{pattern}\""); 30].join(", ");
    let text = format!(
        "jobs:\n  a:\n    steps: [x]\n    if: 'changed({patterns})'\n    matrix: {{n: [{}]}}\n",
        numbers(250)
    );
    let found = refused(text.as_bytes()).to_string();
    assert!(found.contains("becomes too large here"), "{found}");
}

/// What stands before each of them was looked through again, and what stands behind.
#[test]
fn a_script_full_of_values_of_a_matrix_is_read_in_time() {
    for (script, matrix) in [
        ("{{matrix.a}".repeat(90_000), ""),
        (format!("{}}}", "{matrix.".repeat(120_000)), ""),
        (
            format!("{}}}", "{matrix.".repeat(120_000)),
            ", matrix: {a: [b]}",
        ),
    ] {
        let text = format!("jobs: {{a: {{steps: [{{run: '{script}'}}]{matrix}}}}}\n");
        let found = refused(text.as_bytes()).to_string();
        assert!(found.contains("has more than 65536 bytes"), "{found}");
    }
}

// Within the bounds that docs/pipeline.md gives.
#[test]
fn a_thousand_cells_of_four_matrices_fit() {
    let values: Vec<String> = (0..248).map(|n| n.to_string()).collect();
    let job = |n: usize| {
        let values = values.join(", ");
        format!("  j{n}: {{ steps: [make], matrix: {{ v: [{values}] }} }}\n")
    };
    let text: String = (0..4).map(job).collect();
    let pipeline = delta_planner::parse("f", format!("jobs:\n{text}").as_bytes());
    assert_eq!(pipeline.map(|it| it.jobs.len()), Ok(992));
}
