"""What a benchmark found: one row per piece of work, printed as a table and kept as JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One comparison; without a peer it is a figure of ours alone."""

    work: str
    unit: str
    ours: float
    peer: str | None = None
    peer_value: float | None = None
    higher_is_better: bool = True
    target: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many times better ours is."""
        if not self.peer_value or not self.ours:
            return None
        return self.ours / self.peer_value if self.higher_is_better else self.peer_value / self.ours

    @property
    def reached(self) -> bool | None:
        """Whether ours meets its target."""
        if self.target is None:
            return None
        return self.ours >= self.target if self.higher_is_better else self.ours <= self.target


def report(name: str, rows: list[Row], notes: list[str]) -> None:
    """Print the table and write ``benches/results/NAME.json``."""
    table = Table(title=f"bench-{name}", title_justify="left")
    for heading in ("work", "unit", "ours", "peer", "its value", "ratio", "target"):
        table.add_column(heading, justify="left" if heading in ("work", "unit", "peer") else "right", no_wrap=True)
    for row in rows:
        mark = {None: "", True: " ok", False: " MISSED"}[row.reached]
        table.add_row(
            row.work,
            row.unit,
            _figure(row.ours),
            row.peer or "",
            _figure(row.peer_value),
            "" if row.ratio is None else f"{row.ratio:,.1f}x",
            f"{'>=' if row.higher_is_better else '<='} {_figure(row.target)}{mark}" if row.target is not None else "",
        )
    console = Console(width=160)
    console.print(table)
    for note in notes:
        console.print(note)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps([asdict(row) | {"ratio": row.ratio} for row in rows], indent=2) + "\n")
    console.print(f"written: {path}")


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"
