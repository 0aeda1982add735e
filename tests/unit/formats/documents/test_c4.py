"""C4 models: what is refused, and what code draws of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo.core.steps import InvalidReply
from cdo.formats.documents.c4 import C4Model, c4, c4_shape, drawings, mermaid, structurizr
from tests.unit.formats import test_gbnf

SHOP: list[dict[str, Any]] = [
    {"id": "user", "level": "person", "name": "Customer", "text": "Orders goods"},
    {"id": "shop", "level": "system", "name": "Shop", "text": "Takes orders"},
    {
        "id": "web",
        "level": "container",
        "inside": "shop",
        "name": "Web shop",
        "technology": "Python",
        "text": "Sells",
    },
    {
        "id": "store",
        "level": "container",
        "inside": "shop",
        "name": "Store",
        "technology": "PostgreSQL",
        "store": True,
    },
    {"id": "cart", "level": "component", "inside": "web", "name": "Cart", "text": "Holds goods"},
    {"id": "bank", "level": "system", "name": "Bank", "external": True},
]
USES: list[dict[str, Any]] = [
    {"from": "user", "to": "cart", "text": "Fills", "technology": "HTTPS"},
    {"from": "user", "to": "web", "text": "Orders from"},
    {"from": "cart", "to": "store", "text": "Writes to", "technology": "SQL"},
    {"from": "web", "to": "bank", "text": "Charges"},
]


def model(elements: Any = SHOP, relations: Any = USES) -> C4Model:
    return c4(yaml.safe_dump({"elements": elements, "relations": relations}))


def changed(ident: str, **keys: Any) -> list[dict[str, Any]]:
    return [{**item, **keys} if item["id"] == ident else item for item in SHOP]


def test_each_diagram_shows_its_levels_and_draws_relations_higher_up() -> None:
    assert mermaid(model(), "C4Context").split("\n") == [
        "C4Context",
        '  Person(p_user, "Customer", "Orders goods")',
        '  System(s_shop, "Shop", "Takes orders")',
        '  System_Ext(s_bank, "Bank")',
        '  Rel(p_user, s_shop, "Fills", "HTTPS")',
        '  Rel(s_shop, s_bank, "Charges")',
    ]
    assert mermaid(model(), "C4Container").split("\n") == [
        "C4Container",
        '  Person(p_user, "Customer", "Orders goods")',
        '  System_Boundary(s_shop, "Shop") {',
        '    Container(c_web, "Web shop", "Python", "Sells")',
        '    ContainerDb(c_store, "Store", "PostgreSQL")',
        "  }",
        '  System_Ext(s_bank, "Bank")',
        '  Rel(p_user, c_web, "Fills", "HTTPS")',
        '  Rel(c_web, c_store, "Writes to", "SQL")',
        '  Rel(c_web, s_bank, "Charges")',
    ]
    component = mermaid(model(), "C4Component")
    assert (
        '    Container_Boundary(c_web, "Web shop") {\n      Component(k_cart, "Cart", "", "Holds goods")' in component
    )


def test_the_workspace_holds_the_same_elements_and_a_view_for_each_that_has_parts() -> None:
    text = structurizr(model())
    for line in (
        'p_user = person "Customer" "Orders goods"',
        's_shop = softwareSystem "Shop" "Takes orders" {',
        'c_web = container "Web shop" "Sells" "Python" {',
        'k_cart = component "Cart" "Holds goods"',
        'c_store = container "Store" "" "PostgreSQL" "Store"',
        's_bank = softwareSystem "Bank" "" "External"',
        'k_cart -> c_store "Writes to" "SQL"',
    ):
        assert re.search(rf"(?m)^ *{re.escape(line)}$", text), line
    assert re.findall(r"(systemContext|container|component) (\w_\w+) \{\n *include", text) == [
        ("systemContext", "s_shop"), ("container", "s_shop"), ("component", "c_web")
    ]  # fmt: skip
    assert text.count("{") == text.count("}")


def test_a_page_has_the_diagrams_that_there_are_elements_for() -> None:
    def titles(made: C4Model) -> list[str]:
        return re.findall(r"(?m)^## (.*)", drawings(made))

    assert titles(model()) == ["System Context", "Containers", "Components", "Structurizr Workspace"]
    assert titles(model(SHOP[:2], [])) == ["System Context", "Structurizr Workspace"]


@pytest.mark.parametrize(
    ("elements", "relations", "sentence"),
    [
        ([], [], "`elements`: must not be empty"),
        (changed("web", inside=""), [], "container `web` needs `inside`, the id of a system"),
        (changed("cart", inside="shop"), [], "component `cart` needs `inside`, the id of a container"),
        (changed("web", inside="bank"), [], "`bank` is external, so leave out what is inside it (`web`)"),
        (changed("user", inside="shop"), [], "person `user` cannot be `inside` another element"),
        (changed("shop", external=True), [], "no element is a system that is not `external`"),
        (changed("bank", name="SHOP"), [], "the name shop is used twice"),
        (changed("bank", id="shop"), [], "the id shop is used twice"),
        (changed("bank", id="the bank"), [], "`elements.5.id`"),
        (changed("bank", level="service"), [], "`elements.5.level`"),
        (SHOP, [{"from": "user", "to": "ghost", "text": "asks"}], "names `ghost`, which is the id of no element"),
        (SHOP, [{"from": "cart", "to": "shop", "text": "is in"}], "`cart` and `shop` are one inside the other"),
        (SHOP, [{"from": "user", "to": "web"}], "`relations.0.text` is missing"),
    ],
)
def test_a_model_that_cannot_be_drawn_is_sent_back(elements: Any, relations: Any, sentence: str) -> None:
    with pytest.raises(InvalidReply) as caught:
        model(elements, relations)
    assert any(sentence in problem for problem in caught.value.problems), caught.value.problems


@settings(max_examples=120, deadline=None)
@given(st.text(min_size=1, max_size=80).filter(str.strip))
def test_no_text_leaves_its_quotes(text: str) -> None:
    try:
        made = model(changed("bank", name=text, text=text), [{"from": "web", "to": "bank", "text": text}])
    except InvalidReply:
        return
    for drawn in (*(mermaid(made, kind) for kind in ("C4Context", "C4Component")), structurizr(made)):
        bare = re.sub(r'"[^"\n]*"', '""', drawn)
        assert re.fullmatch(r'[\w\s(){},="\->*]*', bare), bare
        assert len(drawn.splitlines()) == len(drawn.split("\n")), "no other sign breaks a line"
    assert not re.search(r"%%|\$\{|`|<|\\", mermaid(made, "C4Context")) and "${" not in structurizr(made)
    assert len(re.findall(r"(?m)^```", drawings(made))) == 8


def test_a_small_models_reply_is_read() -> None:
    for seed in range(20):
        assert c4(test_gbnf.sample(c4_shape(), seed)).element("core")
