//! A parsed JSON document, and how it is written again as text.

use std::cell::Cell;
use std::io::Write;

use simd_json::{Node, StaticNode};

use super::numbers;

/// A parsed document.
pub(super) struct Document<'a> {
    pub nodes: &'a [Node<'a>],
    pub source: &'a [u8],
    pub starts: Starts<'a>,
}

/// Where in the source a node starts.
pub(super) enum Starts<'a> {
    /// simd-json's list of the places where something starts or ends, and how far it was walked: nodes are asked for in
    /// ascending order.
    Structural(&'a [u32], Cell<(usize, usize)>),
    Nodes(&'a [u32]),
}

/// How many nodes a value takes.
#[inline]
pub(super) fn width(node: &Node<'_>) -> usize {
    match node {
        Node::Object { count, .. } | Node::Array { count, .. } => count + 1,
        _ => 1,
    }
}

impl Document<'_> {
    /// The text of the number at a node.
    pub fn number(&self, at: usize) -> Option<&str> {
        let start = match &self.starts {
            Starts::Nodes(starts) => *starts.get(at)? as usize,
            Starts::Structural(places, walked) => {
                let (mut node, mut index) = if at < walked.get().0 { (0, 0) } else { walked.get() };
                loop {
                    let place = *places.get(index)? as usize;
                    if matches!(self.source.get(place)?, b'}' | b']' | b',' | b':') {
                        index += 1;
                    } else if node == at {
                        walked.set((node, index));
                        break place;
                    } else {
                        (node, index) = (node + 1, index + 1);
                    }
                }
            }
        };
        let text = self.source.get(start..)?;
        let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
        let len = text.iter().position(|byte| !is_part(byte)).unwrap_or(text.len());
        std::str::from_utf8(&text[..len]).ok()
    }
}

/// A value as Spark writes it into a string column: without spaces, numbers as Java prints them.
pub(super) fn write_json(document: &Document<'_>, at: usize, into: &mut Vec<u8>) {
    // Containers that are open: what closes them, and the node after them.
    let mut open: Vec<(u8, usize)> = vec![];
    let (mut node, end) = (at, at + width(&document.nodes[at]));
    let mut is_name = false;
    let mut first = true;
    loop {
        while let Some((closing, _)) = open.pop_if(|(_, after)| *after == node) {
            into.push(closing);
            first = false;
            is_name = closes_into_object(&open);
        }
        if node >= end {
            return;
        }
        if !first && (is_name || open.last().is_some_and(|(closing, _)| *closing == b']')) {
            into.push(b',');
        }
        first = false;
        match document.nodes[node] {
            Node::String(text) => write_string(text, into),
            Node::Object { count, .. } => {
                into.push(b'{');
                open.push((b'}', node + 1 + count));
                (first, is_name) = (true, true);
                node += 1;
                continue;
            }
            Node::Array { count, .. } => {
                into.push(b'[');
                open.push((b']', node + 1 + count));
                (first, is_name) = (true, false);
                node += 1;
                continue;
            }
            Node::Static(StaticNode::Null) => into.extend_from_slice(b"null"),
            Node::Static(StaticNode::Bool(value)) => into.extend_from_slice(if value { b"true" } else { b"false" }),
            Node::Static(StaticNode::I64(number)) => write_integer(number, into),
            Node::Static(StaticNode::U64(number)) => write_integer(number, into),
            Node::Static(StaticNode::F64(number)) => write_number(document, node, number, into),
        }
        if is_name {
            into.push(b':');
            is_name = false;
            first = true;
        } else {
            is_name = closes_into_object(&open);
        }
        node += 1;
    }
}

/// Whether what follows in the innermost open container is a name.
fn closes_into_object(open: &[(u8, usize)]) -> bool {
    open.last().is_some_and(|(closing, _)| *closing == b'}')
}

fn write_integer(number: impl std::fmt::Display, into: &mut Vec<u8>) {
    let _ = write!(into, "{number}");
}

fn write_number(document: &Document<'_>, at: usize, number: f64, into: &mut Vec<u8>) {
    match document.number(at) {
        // A whole number that is too long for 64 bits.
        Some(text) if text.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit()) && text.len() > 1 => {
            into.extend_from_slice(text.as_bytes());
        }
        _ if number.is_finite() => numbers::write_double(number, into),
        _ => {
            into.push(b'"');
            numbers::write_double(number, into);
            into.push(b'"');
        }
    }
}

fn write_string(text: &str, into: &mut Vec<u8>) {
    into.push(b'"');
    for character in text.chars() {
        match character {
            '"' => into.extend_from_slice(b"\\\""),
            '\\' => into.extend_from_slice(b"\\\\"),
            '\n' => into.extend_from_slice(b"\\n"),
            '\r' => into.extend_from_slice(b"\\r"),
            '\t' => into.extend_from_slice(b"\\t"),
            '\x08' => into.extend_from_slice(b"\\b"),
            '\x0c' => into.extend_from_slice(b"\\f"),
            // Control characters, and what takes two units in Java.
            ..' ' | '\u{10000}'.. => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(into, "\\u{unit:04X}");
                }
            }
            _ => into.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    into.push(b'"');
}
