"""Pages as data: every tag with its attributes, every address, and the text, as Python's own parser sees them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

INLINE = frozenset(("a", "b", "small", "em", "strong", "s", "span", "code"))
VOID = frozenset(("meta", "br", "hr", "line", "circle", "path", "polyline", "img", "input", "link"))


@dataclass
class Page(HTMLParser):
    """What a page consists of. `problems` are tags that are not closed as they were opened, and what is no tag."""

    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)  # (the tags that are open, text)
    problems: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        self.texts.append(("", " " * (tag not in INLINE)))
        if len(names) != len(set(names)):
            self.problems.append(f"<{tag}> has an attribute twice")
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        self.texts.append((" ".join(self.open), data))

    def handle_comment(self, data: str) -> None:
        self.problems.append(f"a comment: {data[:40]}")

    def handle_pi(self, data: str) -> None:
        self.problems.append(f"an instruction: {data[:40]}")

    def unknown_decl(self, data: str) -> None:
        self.problems.append(f"a declaration: {data[:40]}")

    @property
    def text(self) -> str:
        """All text for people, one blank between words."""
        return " ".join("".join(text for place, text in self.texts if "style" not in place.split()).split())

    @property
    def shapes(self) -> set[tuple[str, str]]:
        """Every (tag, attribute) there is; ("p", "") for the tag itself."""
        return {(tag, name) for tag, attrs in self.tags for name in ("", *attrs)}

    @property
    def ids(self) -> list[str]:
        """All ids, in order."""
        return [attrs["id"] for _, attrs in self.tags if "id" in attrs]

    @property
    def addresses(self) -> list[str]:
        """Everything that could be followed or fetched, in order."""
        found = [
            value
            for _, attrs in self.tags
            for name, value in attrs.items()
            if name in ("href", "src", "action", "data", "srcset", "poster", "xlink:href", "formaction", "background")
        ]
        style = "".join(text for place, text in self.texts if "style" in place.split())
        return [*found, *re.findall(r"url\(([^)]*)\)|@import\s+(\S+)", style)]

    @property
    def headings(self) -> list[int]:
        """The levels of all headings, in order."""
        return [int(tag[1]) for tag, _ in self.tags if re.fullmatch("h[1-6]", tag)]

    def inside(self, ident: str, html: str) -> str:
        """The source from the tag with an id on to the next tag with one."""
        start = html.index(f'id="{ident}"')
        end = html.find(' id="', start + 5)
        return html[start : end if end > 0 else None]


def parsed(html: str) -> Page:
    """A page as data; it is well-formed as far as a parser can tell."""
    page = Page()
    page.feed(html)
    page.close()
    assert not page.problems and not page.open, (page.problems[:5], page.open)
    return page


def inert(page: Page) -> None:
    """Nothing in a page can act, and it points at itself and at files beside it alone."""
    for tag, attrs in page.tags:
        assert tag not in ("script", "iframe", "object", "embed", "form", "input", "base", "link", "img", "button")
        assert not [name for name in attrs if name.startswith("on") or name in ("style", "src", "srcset", "target")]
    for address in page.addresses:
        assert re.fullmatch(r"#[\w-]+|[\w.%/~-]+", address), address
    metas = [attrs["http-equiv"] for tag, attrs in page.tags if tag == "meta" and "http-equiv" in attrs]
    assert metas == ["Content-Security-Policy"]
