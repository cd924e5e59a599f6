"""Every probe on every server of the zoo: ``python -m tests.check.matrix`` prints the table."""

from __future__ import annotations

from semel.check import CheckVerdict
from semel.check.ladder import LADDER
from tests.check.test_zoo import checked
from tests.check.zoo.right import RIGHT
from tests.check.zoo.server import Shop
from tests.check.zoo.wrong import WRONG

SIGNS = {
    CheckVerdict.HOLDS: ".",
    CheckVerdict.BROKEN: "X",
    CheckVerdict.NOT_OBSERVABLE: "?",
    CheckVerdict.SKIPPED: "-",
}


def row(kind: type[Shop]) -> dict[str, str]:
    """The signs of one server, by probe."""
    return {each.name: SIGNS[each.verdict] for each in checked(kind).results}


def matrix() -> list[str]:
    """The table, a line for each server; X stands for broken."""
    names = [each.name for each in LADDER]
    lines = [f"{number:>2} {name}" for number, name in enumerate(names)]
    lines.append(f"{'':<34}" + "".join(f"{number:>3}" for number in range(len(names))))
    servers: tuple[type[Shop], ...] = (*RIGHT, *WRONG)
    for kind in servers:
        signs = row(kind)
        lines.append(
            f"{kind.__name__:<34}" + "".join(f"{signs.get(name, '-'):>3}" for name in names)
        )
    return lines


if __name__ == "__main__":
    print("\n".join(matrix()))
