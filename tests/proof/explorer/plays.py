"""Plays: flows of the core that are driven reply by reply.

A generator cannot be copied, but the core is deterministic: what a flow will do is decided by the
replies it has had. So a flow's place is a node in a tree of replies. Going on from a node that was
visited before costs a look into a dictionary; a new one is found by playing its past once more, or
by leading on the play that stands there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias

from semel.core.flow import Flow, Interrupted
from semel.core.operations.handler import Abandoned
from semel.core.operations.requests import FlowOperation
from semel.errors import StoreUnavailable
from tests.core.whole import Invoke

Token: TypeAlias = tuple[str, Any]
"""What a flow is fed: ("reply", value), ("made", maker) for a value that has no equality and is
made anew each time, or the name of something that is thrown into it."""

Script: TypeAlias = Callable[[Invoke], Generator[FlowOperation[Any], Any, Any]]
"""The handler of a world's application, as a flow of its own."""


class Stopped(BaseException):
    """Thrown into a handler: it was cancelled."""


THROWN: Final[dict[str, Callable[[], BaseException]]] = {
    "unanswered": lambda: StoreUnavailable("no answer came", applied=None),
    "refused": lambda: StoreUnavailable("surely not applied", applied=False),
    "interrupted": Interrupted,
    "stopped": Stopped,
}


class Play:
    """One flow under way, and the handler it is running, if it runs one."""

    def __init__(self, flow: Flow[Any], script: Script) -> None:
        self._stack: list[Flow[Any]] = [flow]
        self._script = script
        self.op: FlowOperation[Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self._go(lambda: next(flow))

    @property
    def in_handler(self) -> bool:
        return len(self._stack) > 1

    def feed(self, token: Token) -> None:
        name, value = token
        top = self._stack[-1]
        if name == "reply":
            self._go(lambda: top.send(value))
        elif name == "made":
            self._go(lambda: top.send(value()))
        else:
            self._go(lambda: top.throw(THROWN[name]()))

    def _go(self, step: Callable[[], FlowOperation[Any]]) -> None:
        """To the next operation. A handler that ends gives its outcome to the flow that ran it."""
        while True:
            try:
                op = step()
            except StopIteration as done:
                outcome = done.value
            except Stopped as error:
                outcome = Abandoned(error)
            except Exception as error:
                self._stack.clear()
                self.op, self.error = None, error
                return
            else:
                if not isinstance(op, Invoke):
                    self.op = op
                    return
                handler = self._script(op)
                self._stack.append(handler)
                step = handler.__next__
                continue
            self._stack.pop()
            if not self._stack:
                self.op, self.result = None, outcome
                return
            step = _sending(self._stack[-1], outcome)


def _sending(flow: Flow[Any], value: Any) -> Callable[[], FlowOperation[Any]]:
    return lambda: flow.send(value)


class Node:
    """A place in a play: the replies it has had lead here."""

    __slots__ = (
        "asks",
        "before",
        "children",
        "error",
        "heard",
        "in_handler",
        "number",
        "op",
        "path",
        "play",
        "result",
        "root",
    )

    def __init__(
        self, number: int, root: Callable[[], Play], path: tuple[Token, ...], play: Play
    ) -> None:
        self.number = number
        self.root = root
        self.path = path
        self.op = play.op
        self.in_handler = play.in_handler
        self.result = play.result
        self.error = play.error
        self.children: dict[Token, Node] = {}
        self.heard: dict[int, Node] = {}
        """The same, of replies of the store: by their ids, since to hash a record takes long."""
        self.asks = -1
        """The number of the operation, once it has one."""
        self.play: Play | None = play
        """Which stands here, until it is led on to the first child; the others play it again."""
        self.before: type | None = None
        """What was asked before."""


class Tree:
    """Every node that was met, by its number."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._roots: dict[Any, Node] = {}

    def root(self, key: Any, play: Callable[[], Play]) -> Node:
        node = self._roots.get(key)
        if node is None:
            node = self._roots[key] = self._add(play, (), play())
        return node

    def child(self, node: Node, token: Token) -> Node:
        child = node.children.get(token)
        if child is None:
            play, node.play = node.play or _again(node), None
            play.feed(token)
            child = node.children[token] = self._add(node.root, (*node.path, token), play)
            child.before = type(node.op)
        return child

    def after(self, node: Node, reply: Any) -> Node:
        """`child`, for a reply that stays where it is for as long as this tree."""
        child = node.heard.get(id(reply))
        if child is None:
            child = node.heard[id(reply)] = self.child(node, ("reply", reply))
        return child

    def _add(self, root: Callable[[], Play], path: tuple[Token, ...], play: Play) -> Node:
        node = Node(len(self.nodes), root, path, play)
        self.nodes.append(node)
        return node


def _again(node: Node) -> Play:
    play = node.root()
    for token in node.path:
        play.feed(token)
    return play
