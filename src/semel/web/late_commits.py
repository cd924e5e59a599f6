"""FastAPI's dependencies that commit when the answer of their request has been kept and sent."""

from __future__ import annotations

import inspect
from typing import Any, Final

COMMITS_LATE: Final = (
    "the dependency {0} commits after its yield, when the answer has been kept and sent: a commit "
    "that fails then is lost. Depends({0}, scope='function') commits before"
)


def late_commits(dependant: Any) -> list[str]:
    """The dependencies that seem to commit after their ``yield``, at the end of the request.

    By the names in their code, so it is a hint. FastAPI before 0.121 knows no other scope.
    ``dependant``: FastAPI's word for an endpoint and all that it depends on.
    """
    found: list[str] = []
    for each in getattr(dependant, "dependencies", ()):
        function: Any = inspect.unwrap(each.call)
        yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        names = getattr(getattr(function, "__code__", None), "co_names", ())
        late = yields and getattr(each, "scope", None) != "function"
        if late and _COMMITS.intersection(names):
            found.append(function.__name__)
        found += late_commits(each)
    return found


_COMMITS: Final = frozenset({"commit", "begin"})
