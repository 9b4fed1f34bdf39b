"""Import graph of the package: prints its rooms and counts, and draws docs/architecture.svg.

Run from the root of the repository (the standard library suffices):

    python docs/draw_architecture.py

A *room* is a folder or module directly in `dair_hf/`. Room A has an arrow to room B if a file of A imports a file of B.
The *floor* of a room is one above the highest room that it imports. The picture leaves out arrows that follow from
others (A to C where A imports B and B imports C).
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"
PACKAGE = "dair_hf"
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 168, 46, 22, 58, 24

Graph = Mapping[str, set[str]]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Return the modules of the package, dotted name -> file."""
    files = sorted((root / PACKAGE).rglob("*.py"))
    return {
        ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(
            ".__init__"
        ): file
        for file in files
    }


def imported_names(source: str) -> Iterator[str]:
    """Yield the dotted names that a source imports anywhere, also inside functions and for types only.

    Example:
        >>> list(imported_names("from a.b import c"))
        ['a.b', 'a.b.c']
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_graph(files: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return which module imports which, packages' `__init__.py` left out: those only re-export."""
    plain = {name: file for name, file in files.items() if file.name != "__init__.py"}
    return {
        name: {
            target
            for target in imported_names(file.read_text(encoding="utf-8"))
            if target in plain
        }
        - {name}
        for name, file in plain.items()
    }


def room_of(module: str) -> str:
    """Return the room of a module.

    Example:
        >>> room_of("dair_hf.vision.mnist.colored"), room_of("dair_hf.config")
        ('vision', 'config')
    """
    return module.split(".")[1]


def room_graph(graph: Graph) -> dict[str, set[str]]:
    """Return which room imports which."""
    rooms: dict[str, set[str]] = {}
    for module, targets in graph.items():
        room = room_of(module)
        rooms.setdefault(room, set()).update(
            room_of(target) for target in targets if room_of(target) != room
        )
    return rooms


def circles(graph: Graph) -> list[tuple[str, str]]:
    """Return the pairs of nodes that reach each other.

    Example:
        >>> circles({"a": {"b"}, "b": {"a"}, "c": {"a"}})
        [('a', 'b')]
    """
    reached = {node: _reached(graph, node) for node in graph}
    return [
        (a, b)
        for a in sorted(graph)
        for b in sorted(reached[a])
        if a < b and a in reached.get(b, ())
    ]


def floors(graph: Graph) -> list[list[str]]:
    """Return the rooms floor by floor, from the bottom to the top, of a graph without circles.

    Example:
        >>> floors({"a": set(), "b": {"a"}, "c": {"a", "b"}})
        [['a'], ['b'], ['c']]
    """
    rank: dict[str, int] = {}

    def rank_of(room: str) -> int:
        if room not in rank:
            rank[room] = max(
                (rank_of(target) + 1 for target in graph.get(room, ())), default=0
            )
        return rank[room]

    for room in graph:
        rank_of(room)
    return [
        sorted(room for room in rank if rank[room] == floor)
        for floor in range(max(rank.values()) + 1)
    ]


def essential_arrows(graph: Graph) -> list[tuple[str, str]]:
    """Return the arrows that do not follow from others (the transitive reduction).

    Example:
        >>> essential_arrows({"a": set(), "b": {"a"}, "c": {"a", "b"}})
        [('b', 'a'), ('c', 'b')]
    """
    return sorted(
        (room, target)
        for room, targets in graph.items()
        for target in targets
        if not any(target in _reached(graph, other) for other in targets - {target})
    )


def _reached(graph: Graph, start: str) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph.get(waiting.pop(), ()):
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    return reached


def svg(graph: Graph) -> str:
    """Return the picture: a box a room, a row a floor, lines for the essential arrows."""
    rows = floors(graph)
    widest = max(len(row) for row in rows)
    width = widest * (BOX_WIDTH + GAP_X) - GAP_X + 2 * MARGIN
    height = len(rows) * (BOX_HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN
    place = {}
    for floor, row in enumerate(rows):
        left = (width - len(row) * (BOX_WIDTH + GAP_X) + GAP_X) / 2
        for column, room in enumerate(row):
            place[room] = (
                left + column * (BOX_WIDTH + GAP_X),
                height - MARGIN - BOX_HEIGHT - floor * (BOX_HEIGHT + GAP_Y),
            )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for room, target in essential_arrows(graph):
        (x, y), (to_x, to_y) = place[room], place[target]
        x, y, to_x = x + BOX_WIDTH / 2, y + BOX_HEIGHT, to_x + BOX_WIDTH / 2
        bend = (y + to_y) / 2
        parts.append(
            f'<path d="M{x:g} {y:g} C{x:g} {bend:g} {to_x:g} {bend:g} {to_x:g} {to_y:g}" fill="none" stroke="#8aa"/>'
        )
    for room, (x, y) in place.items():
        parts += [
            f'<rect x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="#eef4f4" '
            'fill-opacity="0.85"/>',
            f'<text x="{x + BOX_WIDTH / 2:g}" y="{y + 29:g}" text-anchor="middle" font-size="17">{escape(room)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Print floors and counts and write the picture."""
    files = modules()
    graph = file_graph(files)
    rooms = room_graph(graph)
    lines = dict.fromkeys(rooms, 0)
    for module, file in files.items():
        if module != PACKAGE:
            lines[room_of(module)] += len(file.read_text(encoding="utf-8").splitlines())
    for number, row in reversed(list(enumerate(floors(rooms), start=1))):
        print(
            f"floor {number}: " + ", ".join(f"{room} ({lines[room]:,})" for room in row)
        )
    print(
        f"{len(rooms)} rooms, {sum(map(len, rooms.values()))} arrows between them, {len(circles(rooms))} circles; "
        f"{len(graph)} modules, {sum(map(len, graph.values()))} imports, {len(circles(graph))} circles; "
        f"{sum(lines.values()):,} lines"
    )
    PICTURE.write_text(svg(rooms), encoding="utf-8")


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    main()
