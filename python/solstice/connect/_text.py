"""Expressions as text, for people: what a Column shows of itself. Not for a server to parse."""

from solstice.connect._expressions import (
    Alias,
    Attribute,
    CallFunction,
    Cast,
    Expression,
    ExtractValue,
    Function,
    Lambda,
    LambdaVariable,
    Literal,
    Regex,
    SortOrder,
    SqlText,
    Star,
    UpdateFields,
    Window,
)
from solstice.connect._literals import plain_value

_MAX_DEPTH = 30
_INFIX = {"+", "-", "*", "/", "%", "<", "<=", ">", ">=", "==", "<=>", "and", "or", "&", "|", "^"}


def text_of(expression: Expression, depth: int = 0) -> str:
    """A short text; what is nested very deep is left out."""
    if depth > _MAX_DEPTH:
        return "..."

    def text(inner: Expression) -> str:
        return text_of(inner, depth + 1)

    match expression:
        case Literal():
            return _literal_text(expression)
        case Attribute():
            return expression.unparsed_identifier
        case Star():
            return expression.unparsed_target or "*"
        case Regex():
            return expression.col_name
        case SqlText():
            return expression.expression
        case Function(function_name=name, arguments=(left, right)) if name in _INFIX:
            return f"({text(left)} {name.upper()} {text(right)})"
        case Function(function_name="when"):
            return _case_text([text(argument) for argument in expression.arguments])
        case Function() | CallFunction():
            distinct = "DISTINCT " if isinstance(expression, Function) and expression.is_distinct else ""
            return f"{expression.function_name}({distinct}{', '.join(map(text, expression.arguments))})"
        case Alias():
            return f"{text(expression.expr)} AS {', '.join(expression.name)}"
        case Cast():
            target = expression.type_str if expression.type is None else expression.type.simple_string()
            verb = "TRY_CAST" if expression.eval_mode else "CAST"
            return f"{verb}({text(expression.expr)} AS {target})"
        case SortOrder():
            direction = expression.direction.rpartition("_")[2][:-6]  # ASCENDING, DESCENDING
            nulls = expression.null_ordering.rpartition("_")[2]
            return f"{text(expression.child)} {direction} NULLS {nulls}"
        case ExtractValue():
            return f"{text(expression.child)}[{text(expression.extraction)}]"
        case UpdateFields():
            verb = "drop_field" if expression.value_expression is None else "with_field"
            return f"{verb}({text(expression.struct_expression)}, {expression.field_name})"
        case LambdaVariable():
            return ".".join(expression.name_parts)
        case Lambda():
            return f"({', '.join(map(text, expression.arguments))}) -> {text(expression.function)}"
        case Window():
            return f"{text(expression.window_function)} OVER ({window_text(expression, depth + 1)})"
    return type(expression).__name__.lower()


def window_text(window: Window, depth: int = 0) -> str:
    """How a window partitions and sorts; its frame is left out."""
    specs = (("PARTITION BY", window.partition_spec), ("ORDER BY", window.order_spec))
    return " ".join(f"{verb} {', '.join(text_of(part, depth) for part in parts)}" for verb, parts in specs if parts)


def _literal_text(node: Literal) -> str:
    match node.type:
        case "date" | "timestamp" | "day_time_interval":
            return str(plain_value(node.type, node.value))
        case "null":
            return "NULL"
        case "array":
            return f"[{', '.join(map(_literal_text, node.value))}]"
        case "decimal" | "time":
            return str(node.value[0])
    return str(node.value)


def _case_text(arguments: list[str]) -> str:
    pairs = zip(arguments[::2], arguments[1::2], strict=False)
    cases = "".join(f" WHEN {condition} THEN {value}" for condition, value in pairs)
    return f"CASE{cases}{f' ELSE {arguments[-1]}' if len(arguments) % 2 else ''} END"
