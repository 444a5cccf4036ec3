use std::collections::HashMap;

use super::*;

fn matches(filter: &str, attributes: &[(&str, &str)]) -> bool {
    let attributes: HashMap<&str, &str> = attributes.iter().copied().collect();
    Filter::parse(filter).unwrap().matches(|key| attributes.get(key).copied())
}

fn refused(filter: &str) -> String {
    Filter::parse(filter).map(|parsed| format!("{parsed:?}")).expect_err(filter)
}

#[test]
fn the_presence_the_value_and_the_prefix_of_an_attribute_can_be_asked_for() {
    let com = [("domain", "com"), ("lang", "en")];
    for (filter, expected) in [
        ("attributes:domain", true),
        ("attributes : domain", true),
        ("attributes:Domain", false),
        ("attributes:other", false),
        (r#"attributes.domain = "com""#, true),
        (r#"attributes.domain="com""#, true),
        (r#"attributes.domain = "co""#, false),
        (r#"attributes.domain = "COM""#, false),
        (r#"attributes.other = """#, false),
        (r#"attributes.domain != "com""#, false),
        (r#"attributes.domain != "org""#, true),
        (r#"hasPrefix(attributes.domain, "co")"#, true),
        (r#"hasPrefix(attributes.domain, "")"#, true),
        (r#"hasPrefix(attributes.domain, "om")"#, false),
        (r#"hasPrefix(attributes.other, "")"#, false),
    ] {
        assert_eq!(matches(filter, &com), expected, "{filter}");
    }
}

#[test]
fn a_missing_attribute_differs_from_every_value() {
    assert!(matches(r#"attributes.domain != "com""#, &[]));
    assert!(matches("NOT attributes:domain", &[]));
}

#[test]
fn not_binds_tightest_and_parentheses_group() {
    let a = [("a", "1")];
    for (filter, expected) in [
        ("NOT attributes:b AND attributes:a", true),
        ("NOT attributes:a OR attributes:a", true),
        ("NOT (attributes:a OR attributes:b)", false),
        ("NOT(attributes:a AND attributes:b)", true),
        ("-attributes:b", true),
        ("attributes:a AND -attributes:a", false),
        ("-(attributes:b)", true),
        ("attributes:a AND (attributes:b OR attributes:c)", false),
        ("(attributes:a AND attributes:b) OR attributes:a", true),
        ("attributes:b OR attributes:c OR attributes:a", true),
        ("attributes:a AND attributes:a AND attributes:b", false),
        ("((((attributes:a))))", true),
        (" \t\nattributes:a\n", true),
    ] {
        assert_eq!(matches(filter, &a), expected, "{filter}");
    }
}

#[test]
fn and_with_or_needs_parentheses() {
    let error = refused("attributes:a AND attributes:b OR attributes:c");
    assert_eq!(error, "at position 31: OR follows AND; put parentheses around one of them");
    refused("attributes:a OR attributes:b AND attributes:c");
    refused("(attributes:a OR attributes:b AND attributes:c)");
}

#[test]
fn names_take_hyphens_and_quotes_and_strings_take_escapes() {
    for (filter, key, value) in [
        (r#"attributes.ce-type = "x.y""#, "ce-type", "x.y"),
        (r#"attributes.a_1 = "NOT AND (""#, "a_1", "NOT AND ("),
        (r#"attributes.AND = "x""#, "AND", "x"),
        (r#"attributes."iana.org/tag" = "en""#, "iana.org/tag", "en"),
        (r#"attributes.k = "say \"hi\" \\ \n\t""#, "k", "say \"hi\" \\ \n\t"),
        (r#"attributes.k = "\x41\101\u00e9\U0001F600""#, "k", "AAé😀"),
        (r#"attributes.k = "\xc3\xa9 \303\251""#, "k", "é é"),
        (r#"attributes."みんな" = "é""#, "みんな", "é"),
    ] {
        assert!(matches(filter, &[(key, value)]), "{filter}");
        assert!(!matches(filter, &[(key, "another")]), "{filter}");
    }
    assert!(matches(r#"attributes:"iana.org/tag""#, &[("iana.org/tag", "")]));
    assert!(matches(r#"hasPrefix(attributes."a b", "x")"#, &[("a b", "xy")]));
}

#[test]
fn errors_say_where_and_what() {
    for (filter, error) in [
        ("", "at position 1: expected attributes, hasPrefix or (, found the end of the filter"),
        ("attribute:a", "at position 1: expected attributes, hasPrefix or (, found attribute"),
        ("attributes", "at position 11: expected \":\" or \".\" after attributes, found the end of the filter"),
        ("attributes.a", "at position 13: expected = or !=, found the end of the filter"),
        ("attributes.a = b", "at position 16: expected a string within double quotes, found b"),
        ("attributes.a = 'b'", "at position 16: '\\'' is no part of a filter"),
        ("attributes.a > \"b\"", "at position 14: '>' is no part of a filter"),
        ("attributes:a attributes:b", "at position 14: expected AND, OR or the end of the filter, found attributes"),
        ("attributes:a and attributes:b", "at position 14: expected AND, OR or the end of the filter, found and"),
        ("(attributes:a", "at position 14: expected \")\", found the end of the filter"),
        ("attributes:a)", "at position 13: expected AND, OR or the end of the filter, found \")\""),
        ("attributes.a = \"b", "at position 16: the string has no closing quote"),
        (r#"attributes.a = "\q""#, "at position 17: unknown or incomplete escape sequence in a string"),
        (r#"attributes.a = "\xff""#, "at position 16: the escapes of the string make no valid UTF-8"),
        (r#"hasSuffix(attributes.a, "x")"#, "at position 1: expected attributes, hasPrefix or (, found hasSuffix"),
        (r#"hasPrefix(a, "x")"#, "at position 11: expected attributes, found a"),
    ] {
        assert_eq!(refused(filter), error, "{filter}");
    }
    let name = refused("attributes:");
    assert!(name.starts_with("at position 12: expected the name of an attribute"), "{name}");
}

#[test]
fn what_the_grammar_does_not_have_is_refused() {
    for filter in [
        "NOT NOT attributes:a",
        "--attributes:a",
        "attributes.a = (\"b\" OR \"c\")",
        "attributes:a AND",
        "AND attributes:a",
        "NOT",
        "()",
        "attributes.a.b = \"c\"",
        "data = \"x\"",
        r#"attributes.a = "\u12""#,
        r#"attributes.a = "\ud800""#,
        r#"attributes.a = "\400""#,
        "attributes.a = \"\\",
        "attributes.é = \"x\"",
    ] {
        refused(filter);
    }
}

#[test]
fn a_filter_has_at_most_256_bytes() {
    let longest = format!("attributes.k = \"{}\"", "x".repeat(256 - 17));
    assert_eq!(longest.len(), 256);
    assert!(Filter::parse(&longest).is_ok());
    assert_eq!(refused(&format!("{longest} ")), "the filter has 257 bytes; at most 256 are allowed");
    let deepest = format!("{}attributes:a{}", "(".repeat(122), ")".repeat(122));
    assert!(matches(&deepest, &[("a", "")]));
}

#[test]
fn random_input_never_panics() {
    const PIECES: [&str; 24] = [
        "attributes",
        "hasPrefix",
        ":",
        ".",
        "=",
        "!=",
        "!",
        "(",
        ")",
        ",",
        "-",
        "AND",
        "OR",
        "NOT",
        " ",
        "\"",
        "\\",
        "u",
        "x4",
        "12",
        "é",
        "key",
        "\"value\"",
        "\u{0}",
    ];
    let mut random = fastrand::Rng::with_seed(7);
    let mut parsed = 0;
    for _ in 0..200_000 {
        let text: String = (0..random.usize(..12)).map(|_| PIECES[random.usize(..PIECES.len())]).collect();
        if let Ok(filter) = Filter::parse(&text) {
            parsed += 1;
            filter.matches(|key| (key == "key").then_some("value"));
        }
        let noise: String = (0..random.usize(..40)).map(|_| random.char(..)).collect();
        let _ = Filter::parse(&noise);
        let _ = Filter::parse(&format!("attributes.k = \"\\{noise}"));
    }
    assert!(parsed > 0, "the pieces never made a filter");
}
