"""Diagrams: what the real tools draw is read; what they would not, or what would reach out, is refused by line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo import gbnf
from cdo.diagrams import DRAWN, PROBLEMS, Diagram, Relation, differences, mermaid, mermaid_shape
from cdo.structurizr import structurizr, structurizr_shape
from cdo.types import InvalidReply
from tests import test_gbnf
from tests.effort import at_most

quick = settings(max_examples=120, deadline=None)


def problems(read: Callable[..., Any], text: str, *more: Any) -> tuple[str, ...]:
    with pytest.raises(InvalidReply) as caught:
        read(text, *more)
    assert caught.value.problems and all(item.isprintable() for item in caught.value.problems)
    return caught.value.problems


# -- Mermaid ---------------------------------------------------------------------------------------

BANKING = """
C4Context
    accTitle: Internet banking
    title System Context diagram for Internet Banking (2026)
    %% people first
    Person(customerA, "Banking Customer A", "A customer of the bank, with personal bank accounts.")
    Person_Ext(customerC, "Banking Customer C", $tags="outside")
    System(SystemAA, "Internet Banking System", "Allows customers to view accounts (and pay).")

    Enterprise_Boundary(b1, "BankBoundary") {
        SystemDb_Ext(SystemE, "Mainframe Banking System", "Stores accounts,<br/> transactions, etc.")
        System_Boundary(b2, "BankBoundary2") {
            SystemQueue(SystemB, 'Ledger', , "Bare quotes are letters")
        }
        Boundary(b3, "BankBoundary3", "boundary") {
            System_Ext(SystemC, "E-mail system")
        }
    }

    BiRel(customerA, SystemAA, "Uses")
    Rel_Back(SystemC, customerA, "Sends e-mails to")
    Rel(SystemAA, b1, "Uses", "sync/async, XML/HTTPS")
    UpdateElementStyle(customerA, $fontColor="red", $bgColor="grey", $borderColor="red")
    UpdateRelStyle(customerA, SystemAA, $textColor="blue", $offsetX="5")
    UpdateLayoutConfig($c4ShapeInRow="3", $c4BoundaryInRow="1")
"""


def test_a_real_diagram_is_read() -> None:
    found = mermaid(BANKING)
    assert found.kind == "C4Context"
    assert [(element.id, element.kind) for element in found.elements] == [
        ("customerA", "person"), ("customerC", "person"), ("SystemAA", "system"), ("SystemE", "system"),
        ("SystemB", "system"), ("SystemC", "system"),
    ]  # fmt: skip
    assert found.elements[0].name == "Banking Customer A"
    assert found.boundaries == ("BankBoundary", "BankBoundary2", "BankBoundary3")
    assert found.relations[0] == Relation("customerA", "SystemAA", "Uses")
    assert len(found.relations) == 3


def test_each_kind_shows_its_levels() -> None:
    for kind, levels in DRAWN.items():
        for box in ("Person", "System", "ContainerDb", "ComponentQueue_Ext"):
            text = f'{kind}\nPerson(a, "A")\n{box}(b, "B")\nRel(a, b, "uses")'
            level = re.match("[A-Z][a-z]+", box)
            assert level
            if level[0].lower() in levels:
                assert mermaid(text).elements[1].kind == level[0].lower()
            else:
                assert problems(mermaid, text)[0] == (
                    f"The Mermaid diagram, line 3: a {kind} diagram shows no {level[0].lower()}: "
                    f"leave `{box}` to a deeper level."
                )


LAST = "the last value must stand between double quotes, right before the closing parenthesis"


def drawn(*lines: str) -> str:
    return "\n".join(["C4Container", 'Person(a, "A")', 'System(b, "B")', 'Rel(a, b, "uses")', *lines])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('System(c, "C"', "the parenthesis is not closed"),
        ('System(c, "C)', "a double quote is not closed"),
        ('System(c, "C"))', "nothing but { can follow the closing parenthesis, not `)`"),
        ('System(c, "C") "D"', 'nothing but { can follow the closing parenthesis, not `"D"`'),
        ("System(c, C (old))", "put text that holds parentheses between double quotes"),
        ('System(c "C")', 'before and after the quotes of `c "C"` there must be a comma or a parenthesis'),
        ('System(c, "C" "D")', 'before and after the quotes of `"C" "D"` there must be a comma or a parenthesis'),
        ('System(c, "C" , "D")', 'before and after the quotes of `"C"` there must be a comma or a parenthesis'),
        ("System(c, C)", LAST),
        ('System(c, "C" )', LAST),
        ("UpdateLayoutConfig()", LAST),
        ('System (c, "C")', '`System (c, "C")` is not a statement such as System(alias, "Name", "what it does")'),
        ("title a; b", '`title a; b` is not a statement such as System(alias, "Name", "what it does")'),
        ('Boundary(c, "C") {\n}', "there must be an element in each boundary"),
        ('System("c")', '`System` needs at least (alias, "text")'),
        ('System("", "C")', '`System` needs at least (alias, "text")'),
        ('System(the c, "C")', "`the c` cannot be an alias: use letters, digits and _"),
        ('System(a, "again")', "the alias `a` is used twice"),
        ('Boundary(c, "C") {\nSystem(c, "D")\n}', "the alias `c` is used twice"),
        ('System(c, "C") {\n}', "`System` cannot have a {"),
        ('System_Boundary(c, "C")', "`System_Boundary` must end with a {"),
        ('Rel(a, "b")', '`Rel` needs at least (alias, other alias, "text")'),
        ('System(c, "C", $link="https://example.org")', '`$link="https://example.org"` cannot be set'),
        ('System(c, "C", $sprite="x")', '`$sprite="x"` cannot be set'),
        ('UpdateElementStyle(a, $bgColor="x", $shape="y")', '`$shape="y"` cannot be set'),
        ('System(c, "C", $tags="")', '`$tags=""` cannot be set'),
        (
            'Deployment_Node(c, "C")',
            "`Deployment_Node` is not known; use Person, System, Container, Component, Boundary and Rel",
        ),
        ("a --> b", '`a --> b` is not a statement such as System(alias, "Name", "what it does")'),
        (
            '%%{init: {"theme": "dark"}}%%',
            '`%%{init: {"theme": "dark"}}%%` is not a statement such as System(alias, "Name", "what it does")',
        ),
        ("}", "this } closes nothing"),
        ("\x1b[31m", '`\ufffd[31m` is not a statement such as System(alias, "Name", "what it does")'),
    ],
)
def test_a_line_that_cannot_be_drawn_is_named(line: str, why: str) -> None:
    at = 16 if line.startswith("Boundary") else 15
    assert problems(mermaid, drawn(line), 10) == (f"The Mermaid diagram, line {at}: {why}.",)


def test_arrows_lead_to_what_is_declared_before_or_after() -> None:
    assert mermaid(drawn('Rel(b, c, "uses")', 'System(c, "C")')).relations[1].target == "c"
    assert problems(mermaid, drawn('Rel(b, c, "x")', 'Rel(d, a, "x")', 'UpdateRelStyle(a, e, $textColor="red")')) == (
        "The Mermaid diagram, line 5: `c` is not declared by any element or boundary.",
        "The Mermaid diagram, line 6: `d` is not declared by any element or boundary.",
        "The Mermaid diagram, line 7: `e` is not declared by any element or boundary.",
    )


def test_every_brace_is_closed() -> None:
    assert problems(mermaid, drawn('Boundary(c, "C") {', 'System_Boundary(d, "D") {', 'System(e, "E")', "}")) == (
        "The Mermaid diagram: the { of line 5 is never closed.",
    )


@pytest.mark.parametrize("text", ["", "flowchart LR\na --> b", 'C4Deployment\nPerson(a, "A")', "C4Context", "%% x"])
def test_only_c4_with_something_in_it_is_a_diagram(text: str) -> None:
    assert problems(mermaid, text)


def test_a_section_may_want_one_kind() -> None:
    assert mermaid(drawn(), 0, ("C4Container",)).kind == "C4Container"
    assert problems(mermaid, drawn(), 0, ("C4Context",)) == (
        "The Mermaid diagram, line 1: it must begin with C4Context, not with `C4Container`.",
    )


def test_all_problems_are_told_at_once_but_not_without_end() -> None:
    assert len(problems(mermaid, drawn("}", "x", "y"))) == 3
    assert len(problems(mermaid, drawn(*["}"] * 99))) == PROBLEMS


# -- Structurizr -----------------------------------------------------------------------------------

SHOP = """
// what the shop is made of
workspace "Shop" "What it is for" {
    !identifiers hierarchical
    /* a comment
       of two lines: workspace { */
    model {
        user = person "Customer" "Orders \\"goods\\""
        group "Partners" {
            bank = softwareSystem "The \\"Bank\\"" "Takes payments" "External"
        }
        shop = softwareSystem "Shop" {
            description "Takes orders"
            web = container "Web shop" "Shows goods" "Python" {
                basket = component "Basket"
                -> bank "Charges"
            }
            db = container "Order store" {
                tags "Database"
            }
            web -> db "Writes to" "SQL"
            web.basket -> db "Reads" {
                technology "SQL"
            }
        }
        softwareSystem "Mail"
        uses = user -> shop.web "Orders from"
        # the end
    }
    views {
        systemLandscape "all" {
            include *
            autoLayout lr 300 300
        }
        systemContext shop "context" "Who uses it" {
            title "The shop"
            include *
            exclude bank
        }
        container shop {
            include ->shop.web-> shop.db
        }
        component shop.web {
            include *
            autolayout
        }
        styles {
            element "Database" {
                shape cylinder
                background #ffffff
            }
            relationship "Relationship" {
                dashed false
            }
        }
        theme default
    }
}
"""


def test_a_real_workspace_is_read() -> None:
    found = structurizr(SHOP)
    assert [(element.id, element.kind, element.name) for element in found.elements] == [
        ("user", "person", "Customer"),
        ("bank", "system", 'The "Bank"'),
        ("shop", "system", "Shop"),
        ("shop.web", "container", "Web shop"),
        ("shop.web.basket", "component", "Basket"),
        ("shop.db", "container", "Order store"),
        ("", "system", "Mail"),
    ]
    assert found.relations == (
        Relation("shop.web", "bank", "Charges"),
        Relation("shop.web", "shop.db", "Writes to"),
        Relation("shop.web.basket", "shop.db", "Reads"),
        Relation("user", "shop.web", "Orders from"),
    )
    assert found.views == (
        ("systemlandscape", ""),
        ("systemcontext", "shop"),
        ("container", "shop"),
        ("component", "shop.web"),
    )


VIEWS = "views {\nsystemContext s {\ninclude *\n}\n}"


def workspace(model: str = "", views: str = VIEWS, top: str = "") -> str:
    """A workspace whose `model` begins in line 4."""
    return f'workspace {{{top}\nmodel {{\ns = softwareSystem "S"\n{model}\n}}\n{views}\n}}'


IN_MODEL = "is not accepted in the model; what is: person, softwareSystem, group, a -> b"


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("s -> t", "`t` is not declared above"),
        ("t -> s", "`t` is not declared above"),
        ('s -> t\nt = person "T"', "`t` is not declared above"),
        ("s ->", "`->` needs an identifier on each side"),
        ("-> s", "`->` needs an identifier on each side"),
        ("this -> s", "`this` is not declared above"),
        ('t = person "T', "a double quote is not closed"),
        ('t = person"T"', "put blanks between the words and the quotes"),
        ("t = person", '`person` needs a name: person "Name" "what it does"'),
        ('t-1 = person "T"', "`t-1` cannot be an identifier: use letters, digits and _"),
        ('S = person "T"', "the identifier `S` is used twice"),
        ('t = person "s"', "the name `s` is used twice"),
        ('t = container "T"', "`container` " + IN_MODEL),
        (
            't = person "T" {\nc = container "C"\n}',
            "`container` is not accepted in this person; what is: description, technology, tags, a -> b",
        ),
        (
            't = person "T" {\n-> s "uses"\n-> s "asks"\n}\nt -> s "uses"',
            "this relation is there already: give it another text, or leave it out",
        ),
        ("!script groovy x.groovy", "`!script` " + IN_MODEL),
        ("!identifiers maybe", "`!identifiers` must be flat or hierarchical"),
        ('t = person "T" { }', "{ must end the line of its statement, and } stand on a line of its own"),
        ("\x1b]0;x\x07 a", "`\ufffd]0;x\ufffd` " + IN_MODEL),
    ],
)
def test_a_line_of_the_model_that_is_wrong_is_named(model: str, why: str) -> None:
    line = 18 if model.endswith('"uses"') else 15 if model.startswith('t = person "T" {\n') else 14
    assert problems(structurizr, workspace(model), 10) == (f"The Structurizr workspace, line {line}: {why}.",)


def test_an_element_has_no_relation_to_what_it_stands_in() -> None:
    inside = 't = softwareSystem "T" {\nc = container "C"\n%s\n}'
    for relation in ("c -> t", "t -> c", "-> c"):
        assert problems(structurizr, workspace(inside % relation)) == (
            "The Structurizr workspace, line 6: a relation cannot lead from an element to one that it stands in, or "
            "holds.",
        )
    assert structurizr(workspace(inside % '-> s "uses"')).relations == (Relation("t", "s", "uses"),)
    assert structurizr(workspace(inside % "this -> s")).relations == (Relation("t", "s", ""),)


def test_identifiers_are_flat_unless_they_are_said_to_be_hierarchical() -> None:
    one = '%s = softwareSystem "%s" {\napi = container "API"\n}\n'
    two = f"{one % ('a', 'A')}{one % ('b', 'B')}%s -> s"
    assert problems(structurizr, workspace(two % "api")) == (
        "The Structurizr workspace, line 8: the identifier `api` is used twice.",
    )
    deep = workspace("!identifiers hierarchical\n" + two % "b.api")
    assert structurizr(deep).relations == (Relation("b.api", "s", ""),)
    assert problems(structurizr, deep.replace("b.api ->", "api ->")) == (
        "The Structurizr workspace, line 11: `api` is not declared above.",
    )


@pytest.mark.parametrize(
    ("views", "why"),
    [
        ("views {\nsystemContext t {\ninclude *\n}\n}", "line 7: `t` is not declared above"),
        (
            "views {\nsystemContext {\ninclude *\n}\n}",
            "line 7: a systemContext view needs the identifier of a system",
        ),
        ("views {\ncomponent s {\ninclude *\n}\n}", "line 7: a component view needs the identifier of a container"),
        (
            "views {\nsystemContext s\n}",
            "line 7: a view needs `include *` (or identifiers) between its braces",
        ),
        ("views {\nsystemContext s {\ninclude * t\n}\n}", "line 8: `t` is not declared above"),
        ("views {\nsystemContext s {\ninclude ->t->\n}\n}", "line 8: `t` is not declared above"),
        ("views {\nsystemContext s {\ninclude\ninclude *\n}\n}", "line 8: `include` needs a value"),
        (
            "views {\nsystemContext s k {\ninclude *\n}\nsystemContext s k {\ninclude *\n}\n}",
            "line 10: the key `k` of a view must be used once, and be of letters, digits, _ and -",
        ),
        (
            "views {\nsystemContext s {\ninclude *\n}\ntheme https://example.org/theme.json\n}",
            "line 10: only `theme default` is accepted: nothing may be fetched",
        ),
        (
            'views {\nsystemContext s {\ninclude *\n}\nstyles {\nelement "E" {\nicon https://example.org/x.png\n}\n}\n}',
            "line 12: `icon` is not accepted here; what is: shape, background,",
        ),
        (
            "views {\nsystemContext s {\ninclude *\n}\nimage s {\n}\n}",
            "line 10: `image` is not accepted here; what is: systemLandscape, systemContext, container, component,",
        ),
    ],
)
def test_a_view_that_is_wrong_is_named(views: str, why: str) -> None:
    (found,) = problems(structurizr, workspace(views=views))
    assert found.startswith(f"The Structurizr workspace, {why}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must be one `workspace { … }` with model and views in it"),
        ("model {\n}", "must be one `workspace { … }` with model and views in it"),
        (workspace() + "\nworkspace {\n}", "must be one `workspace { … }` with model and views in it"),
        ("workspace {\n}", "must have exactly one `model { … }`"),
        ("workspace {\nmodel {\n}\nviews {\n}\n}", "must have at least one element and one view"),
        (workspace().replace("workspace {", "workspace extends https://example.org/x.dsl {"), "that extends another"),
        (workspace(top="\n!include https://example.org/x.dsl"), "`!include` is not accepted here"),
        (workspace(top="\n!docs docs"), "`!docs` is not accepted here"),
        (workspace(top="\nmodel {\n}"), "must have exactly one `model { … }`"),
        (workspace()[:-1], "line 1: this { is never closed"),
        (workspace() + "\n}", "line 12: this } closes nothing"),
        (workspace().replace("model {", "model\n{"), "{ must end the line of its statement"),
        (workspace("group g {\n" * 40 + "}\n" * 40), "braces stand within braces more than 12 deep"),
    ],
    ids=lambda value: value[:30],
)
def test_a_workspace_stands_by_itself_and_is_whole(text: str, why: str) -> None:
    assert why in " ".join(problems(structurizr, text))


# -- both ------------------------------------------------------------------------------------------


def test_diagrams_and_workspace_speak_of_the_same_elements() -> None:
    model = structurizr(workspace('p = person "The User"\np -> s'))
    context = 'C4Context\nPerson(u, "the  user")\nSystem(x, "S")\nRel(u, x, "uses")'
    framed = 'C4Container\nSystem_Boundary(x, "S") {\nPerson(u, "The User")\n}\nRel(u, x, "uses")'
    assert differences([mermaid(context)], model) == []
    assert differences([mermaid(framed)], model) == []
    assert differences([mermaid(context.replace('"S"', '"T"')), mermaid(framed)], model) == [
        "Put `T` into the Structurizr workspace too, by the same name."
    ]
    assert differences([], model) == ["Put `S`, `The User` into a Mermaid diagram too, by the same name."]


HOSTILE = [
    '"',
    "(",
    "{",
    "/*",
    "//",
    "\\",
    ",",
    '""',
    "a(",
    "a = person b {\n",
    "\n",
    "}\n",
    "-> ",
    "$a=",
    "%%{",
    "\x00",
]


@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.parametrize("read", [mermaid, structurizr])
def test_long_hostile_text_is_refused_fast(read: Callable[[str], Any], unit: str) -> None:
    with at_most(20):
        for text in (unit, f"C4Context\nSystem({unit}", f"workspace {{\nmodel {{\n{unit}"):
            problems(read, text * (250_000 // len(text)))
            problems(read, text + unit * (250_000 // len(unit)))


SNIPPETS = st.sampled_from([*HOSTILE, *re.findall(r"\S+", BANKING + SHOP), " ", "\n", "{\n", "}\n", "\u2028", "é"])


@quick
@given(st.lists(SNIPPETS | st.text(max_size=6), max_size=40).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (mermaid, structurizr):
        for whole in (text, drawn(text), workspace(text)):
            try:
                read(whole)
            except InvalidReply as invalid:
                assert 0 < len(invalid.problems) <= PROBLEMS


@quick
@given(st.data())
def test_a_real_text_with_a_line_taken_out_is_never_misread(data: st.DataObject) -> None:
    for read, text in ((mermaid, BANKING), (structurizr, SHOP)):
        lines = text.split("\n")
        gone = lines.pop(data.draw(st.integers(0, len(lines) - 1)))
        try:
            found: Any = read("\n".join(lines))
        except InvalidReply:
            assert gone.strip()  # an empty line is never missed
        else:
            ids = {element.id for element in found.elements}
            ends = {end for relation in found.relations for end in (relation.source, relation.target)}
            assert ends <= ids | ({"b1"} if isinstance(found, Diagram) else set())


@pytest.mark.parametrize("kind", DRAWN)
def test_what_a_grammar_lets_a_small_model_draw_is_valid_and_agrees(kind: str) -> None:
    for seed in range(20):
        diagram = mermaid(test_gbnf.sample(mermaid_shape(kind), seed))
        assert diagram.kind == kind
        model = structurizr(test_gbnf.sample(structurizr_shape(), seed + 100))
        context = mermaid(test_gbnf.sample(mermaid_shape(), seed + 200))
        container = mermaid(test_gbnf.sample(mermaid_shape("C4Container"), seed + 300))
        assert differences([context, container], model) == []
    assert gbnf.grammar({"root": mermaid_shape(kind)})
