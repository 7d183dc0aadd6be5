"""Print the formulas of an estimate, wrapped to the line width."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

import typer

from refold.cli.views.output import output_width, print_line, printable

if TYPE_CHECKING:
    from refold.planning.perf import FormulaLine, Section


def print_section(section: Section) -> None:
    """Print the lines of a section: formulas, numbers inserted, values and their meanings."""
    print_line()
    print_line(section.title, fg="bold")
    names = max(len(line.name) for line in section.lines)
    values = max(len(_format_line_value(line)) for line in section.lines)
    for line in section.lines:
        redundant = {"", f"{line.value:.6g}"}
        formulas = [text for text in dict.fromkeys((line.formula, line.numbers)) if text not in redundant]
        for index, text in enumerate(formulas):
            _print_wrapped(line.name if not index else "", names, text)
        typer.secho(f"  {'' if formulas else line.name:<{names}} = {_format_line_value(line):<{values}}  ", nl=False)
        typer.secho(printable(line.meaning), dim=True)


def _print_wrapped(name: str, names: int, text: str) -> None:
    for index, part in enumerate(wrap(text, max(40, output_width() - names - 5), break_long_words=False)):
        print_line(f"  {name if not index else '':<{names}} {'=' if not index else ' '} {part}")


def _format_line_value(line: FormulaLine) -> str:
    return f"{line.value:.6g} {line.unit}".strip()
