"""A page as a tree, by the parser of the standard library, strict about what is open and closed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = frozenset({"meta", "input", "br", "link", "img", "hr"})


@dataclass
class Node:
    """An element with its attributes, children and the text between them."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Node | str] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        """This element and all below it, in document order."""
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.walk()

    def all(self, tag: str | None = None, /, **wanted: str) -> list[Node]:
        """Elements by tag and attributes; `class_` and `data_case` are class and data-case."""
        named = {k.rstrip("_").replace("_", "-"): v for k, v in wanted.items()}
        return [n for n in self.walk() if tag in (None, n.tag) and n.matches(named)]

    def matches(self, wanted: dict[str, str]) -> bool:
        """Whether every attribute is as wanted; of classes one is enough."""
        return all(
            value in self.attributes.get(name, "").split()
            if name == "class"
            else self.attributes.get(name) == value
            for name, value in wanted.items()
        )

    @property
    def text(self) -> str:
        """All text within, with single spaces."""
        parts = [c if isinstance(c, str) else c.text for c in self.children]
        return " ".join("".join(parts).split())


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("document")
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        assert len(node.attributes) == len(attrs), f"<{tag}> has an attribute twice"
        self._open[-1].children.append(node)
        if tag not in _VOID:
            self._open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Node(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        last = self._open.pop()
        assert last.tag == tag, f"</{tag}> closes <{last.tag}> {last.attributes}"

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)

    def finish(self) -> Node:
        self.close()
        assert self._open == [self.root], f"never closed: {[n.tag for n in self._open[1:]]}"
        return self.root


def parse(page: str) -> Node:
    """The page as a tree; raises AssertionError if elements are not properly nested."""
    builder = _Builder()
    builder.feed(page)
    return builder.finish()
