"""Tells a query, which a DataFrame runs when it is asked, from a statement that has to run at once.

Only what is surely a query counts as one. For the rest the server decides: sent as a command, a query comes back
unexecuted.
"""

import re
from collections.abc import Iterator

_QUERY_WORDS = frozenset({"SELECT", "VALUES", "TABLE"})

# Comments nest; strings escape with a backslash or a doubled quote, raw ones (r'...') and names only with the latter.
_TOKEN = re.compile(
    r"""
    (?P<blank>\s+ | --(?:\\\n|[^\r\n])*)
  | (?P<comment>/\*)
  | [rR]'(?:[^'])*' | [rR]"(?:[^"])*"
  | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*`
  | (?P<word>[A-Za-z_][A-Za-z_0-9]*)
  | .
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


def is_query(text: str) -> bool:
    """Whether a statement is surely a query: SELECT, VALUES, TABLE, also in parentheses or after WITH."""
    tokens = _tokens(text)
    first = next((token for token in tokens if token != "("), None)
    verb = _verb_after_with(tokens) if first == "WITH" else first
    return verb in _QUERY_WORDS


def _verb_after_with(tokens: Iterator[str]) -> str | None:
    """The first word after the named queries: ``WITH a AS (...), b (x) AS (...) VERB``."""
    depth = 0
    after_parentheses = False
    for token in tokens:
        if token == "(":
            depth += 1
        elif token == ")":
            depth -= 1
            after_parentheses = depth == 0
        elif depth == 0:
            if after_parentheses and token not in ("AS", ",", "MAX"):
                return token
            after_parentheses = False
    return None


def _tokens(text: str) -> Iterator[str]:
    """Words in upper case, strings, quoted names and single characters; blanks and comments are left out."""
    position = 0
    while match := _TOKEN.match(text, position):
        position = match.end()
        if match["comment"]:
            position = _comment_end(text, position)
        elif not match["blank"]:
            yield match.group().upper() if match["word"] else match.group()


def _comment_end(text: str, position: int) -> int:
    depth = 1
    while depth:
        edge = _COMMENT_EDGE.search(text, position)
        if edge is None:
            return len(text)
        depth += 1 if edge.group() == "/*" else -1
        position = edge.end()
    return position
