"""Content files: all that ship are sound, the nearest wins whole, and what is wrong is named with its place."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from cdo.cabal.model.entities import MissionStep
from cdo.content import project as project_content
from cdo.content.library import (
    PACKAGED,
    Library,
    attribute,
    checked,
    line,
    user_folder,
    within,
)
from cdo.content.project import FOLDERS, MAX_FILES, project_folder, read_project, unused
from cdo.content.schemas import (
    Aliases,
    CommandWords,
    Complexity,
    Convergence,
    LocalModels,
    Preset,
    Prompt,
    Providers,
    Role,
)
from cdo.content.skill_files import body, discover
from cdo.content.skill_ranking import SkillInjection
from cdo.core.errors import ConfigError, ContentError
from cdo.core.steps import Batch
from cdo.formats.documents.prompt import DocumentPrompt
from cdo.formats.role_names import role_problem
from cdo.mcp_server.wording import ServerWording
from cdo.observers.beads_tracker import Wording
from cdo.planning.arguments import Invocation
from cdo.planning.domains import Domain
from cdo.planning.mission_crew import Kernel
from cdo.planning.plan_builder import make
from cdo.planning.settings import Resolved, Settings
from cdo.planning.turn_plan import Combos
from cdo.programs.debug.program import DebugMode
from cdo.programs.deliberation.convergence import Record
from cdo.programs.deliberation.program import deliberate
from cdo.programs.parliament.program import ParliamentMode
from cdo.providers.command_agent import CommandAgent
from cdo.providers.vendors import Vendors
from cdo.repository.tools import ToolBox
from cdo.runner import prompts
from tests.support.effort import at_most
from tests.support.harness import needs

LIBRARY = Library((("packaged", PACKAGED),))
ROOT = Path(__file__).resolve().parents[3]


def put(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def own(folder: Path) -> Library:
    """A library with one folder of its own before the packaged content."""
    return Library((("project", folder), ("packaged", PACKAGED)))


def error(call: Any, *arguments: Any) -> ContentError:
    with pytest.raises(ContentError) as caught:
        call(*arguments)
    assert caught.value.exit_code == 4
    assert "\n" not in caught.value.message + caught.value.hint
    return caught.value


# -- what ships ------------------------------------------------------------------------------------


def test_the_content_folders_are_those_of_the_repository() -> None:
    assert PACKAGED == ROOT
    assert all((ROOT / folder).is_dir() for folder in ("presets", "templates", "engine", "dispatch"))
    assert set(FOLDERS) == {"presets", "domains", "templates", "engine", "dispatch", "modes"}


SCHEMAS: dict[str, Any] = {
    "presets": Preset,
    "templates/roles": Role,
    "templates/agent-brief": Prompt,
    "engine/synthesis-protocol": Prompt,
    "engine/final-protocol": Prompt,
    "engine/draft-protocol": Prompt,
    "engine/findings-protocol": Prompt,
    "engine/review-protocol": Prompt,
    "engine/revision-protocol": Prompt,
    "engine/complexity": Complexity,
    "engine/command-words": CommandWords,
    "engine/convergence": Convergence,
    "engine/rca-protocol": Prompt,
    "engine/minutes-protocol": Prompt,
    "engine/audit-protocol": Prompt,
    "engine/cabal-kernel": Kernel,
    **{f"templates/cabal/{step}": Prompt for step in MissionStep},
    "dispatch/providers": Providers,
    "dispatch/agents": CommandAgent,
    "dispatch/beads": Wording,
    "dispatch/local_models": LocalModels,
    "dispatch/mcp": ServerWording,
    "dispatch/skill-injection": SkillInjection,
    "dispatch/tools": ToolBox,
    "dispatch/vendors": Vendors,
    "dispatch/aliases": Aliases,
    "domains": Domain,
    "modes/debug": DebugMode,
    "modes/parliament": ParliamentMode,
    "templates/combos": Combos,
    "templates/documents": DocumentPrompt,
}


@pytest.mark.parametrize("name", list(LIBRARY.every()))
def test_every_shipped_document_is_sound(name: str) -> None:
    document = LIBRARY.load(name)
    schema = SCHEMAS.get(name) or SCHEMAS.get(name.rpartition("/")[0])
    if schema:
        LIBRARY.read(name, schema)
    else:
        assert set(document.meta) == {"purpose", "load_when"}
    if document.path.suffix == ".md":
        assert document.body.strip()
        LIBRARY.template(name)
    else:
        assert document.body == ""


def test_every_file_in_the_folders_is_a_document() -> None:
    files = {
        str(path.relative_to(ROOT).with_suffix(""))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
    assert files == set(LIBRARY.every())


@pytest.mark.parametrize("name", LIBRARY.names("templates/roles"))
def test_every_role_is_a_method_with_an_evidence_duty(name: str) -> None:
    role, body = LIBRARY.read(f"templates/roles/{name}", Role)
    assert role_problem(name) is None
    assert role.tags and all(re.fullmatch("[a-z]+", tag) for tag in role.tags)
    assert 10 <= len(role.method.split()) <= 18 and role.method.endswith("."), "one sentence that names the method"
    if name not in ("refuter", "referee"):
        assert len(role.method.split()) <= 13, "it is listed beside all others"
    assert 40 < len(role.evidence) < 200
    assert 300 < len(body) < 1300
    assert "{{" not in body and "{%" not in body


@pytest.mark.parametrize("folder", sorted((ROOT / "skills").iterdir()), ids=lambda folder: folder.name)
def test_every_skill_that_ships_is_sound_short_and_plain(folder: Path) -> None:
    assert [path.name for path in folder.iterdir()] == ["SKILL.md"]
    found = discover(ROOT / "tests", ROOT / "tests", [folder])
    assert not found.notes and [card.name for card in found.skills] == [folder.name]
    (card,) = found.skills
    assert len(card.tags) >= 3 and "." in card.description and len(card.description) < 300
    text = (folder / "SKILL.md").read_text()
    assert len(text.splitlines()) <= 80 and max(map(len, text.splitlines())) <= 124
    limit = LIBRARY.read("dispatch/skill-injection", SkillInjection)[0].max_chars
    assert len(body(card)) <= limit, "no voice gets a part of it"
    assert all(heading in text for heading in ("## Steps", "## What to hand over", "## Mistakes to avoid"))


SEED_TABLE = """
quick | 1-2 | 1 | No | No | Subagents | No | No
think | 2-4 | 2-3 | No | Optional | Subagents | No | No
deep | 3-8 | 3-5 | Yes | Yes | TeamCreate | Yes | No
full | 5-20 | 5-10 | Yes | Yes | TeamCreate | Yes | Yes
debug | 1-3 | 7 (fixed) | No | No | Subagents | No | No
"""


@pytest.mark.parametrize("row", SEED_TABLE.strip().split("\n"), ids=lambda row: row.split()[0])
def test_the_presets_are_the_seeds_table(row: str) -> None:
    name, width, turns, bd, skills, team, dashboard, adaptive = row.split(" | ")
    preset, _ = LIBRARY.read(f"presets/{name}", Preset)
    low, _, high = turns.removesuffix(" (fixed)").partition("-")
    assert preset.width == tuple(map(int, width.split("-")))
    assert preset.max_turns == (int(low), int(high or low))
    assert preset.bd is (bd == "Yes")
    assert preset.skills == skills.lower()
    assert preset.team_mode == {"Subagents": "subagents", "TeamCreate": "team"}[team]
    # The rule below the table wins: unless quick or think, always.
    assert preset.dashboard is (name not in ("quick", "think")) is (dashboard == "Yes" or name == "debug")
    assert preset.adaptive is (adaptive == "Yes")


@pytest.mark.parametrize("name", LIBRARY.names("presets"))
def test_every_preset_seats_its_first_turn_with_roles_of_its_own(name: str) -> None:
    preset, _ = LIBRARY.read(f"presets/{name}", Preset)
    assert preset.width[0] <= preset.start <= preset.width[1] == len(preset.roles)
    assert len(set(preset.roles)) == len(preset.roles)
    assert set(preset.roles) <= set(LIBRARY.names("templates/roles"))
    assert preset.about.endswith(".")


@pytest.mark.parametrize("name", ["beads", "multi-model", "skill-injection", "team-mode"])
def test_a_dispatch_page_holds_its_protocol_for_maintainers_alone(name: str) -> None:
    protocol = re.findall(r"\{#(.*?)#\}", LIBRARY.load(f"dispatch/{name}").body, re.DOTALL)[0]
    assert protocol.strip().startswith("# Protocol: ")
    numbers = [int(number) for number in re.findall(r"(?m)^(\d+)\. ", protocol)]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) >= 8
    places = re.findall(r"`((?:cdo|dispatch)/[\w./-]+\.(?:py|yaml))`", protocol)
    assert places and all((ROOT / place).is_file() for place in places), "rules name the code that keeps them"
    values: dict[str, Any] = {
        "voices": 5,
        "vendors": 2,
        "memory": [],
        "mine": "",
        "read": {},
        "messages": [],
        "skills": [],
    }
    values |= {"turn": 1, "problem": "x", "session": "a"}
    said = LIBRARY.render(f"dispatch/{name}", values, "task" if name == "beads" else "")
    assert "Protocol" not in said and "maintainers" not in said


TENSION = {"id": "T1", "title": "TENSION", "status": "open", "since": 1, "settled_by": "SETTLER"}
FACT = {"id": "T2", "title": "FACT", "status": "outside", "since": 1, "settled_by": "TELLER"}
FINDINGS = [{"id": "F1", "rank": 1, "text": "FINDING"}]
DISSENT = {"id": "O1", "role": "critic", "turn": 1, "severity": 7, "against": "TARGET", "text": "DISSENT"}
SHARED = {"common": {"system": "SYSTEM", "material": "MATERIAL"}}
RECORDED = {"common": {**SHARED["common"], "record": "RECORD"}}
PROMPTS: dict[str, dict[str, Any]] = {
    "templates/common": {
        "today": "TODAY", "further": "FURTHER",
        "read": {"00-input": "QUESTION", "00-context": "CONTEXT", "t1-synthesis": "BEFORE", "t1-critic": "VOICE"},
        "syntheses": ["t1-synthesis"], "voices": [{"name": "critic", "artifact": "t1-critic", "turn": 1}],
    },
    "templates/agent-brief": {
        **SHARED,
        "read": {"00-input": "QUESTION", "t1-synthesis": "BEFORE", "t1-critic": "SIDE"},
        "previous": "t1-synthesis", "turn": 2, "focus": "FOCUS", "decides": "DECIDES", "settle_with": "MEANS",
        "role": "critic", "seat": 2, "charge": "CHARGE",
        "tensions": [TENSION], "outside": [FACT], "settled": ["RESOLVED"],
        "claims": ["CLAIM"], "title": "TITLE", "method": "METHOD", "evidence": "EVIDENCE", "body": "BODY",
        "leading": "LEADING", "alternative": "ALTERNATIVE", "dispute": "DISPUTE", "sides": ["t1-critic"],
        "standing": [{"id": "O1", "text": "STANDING"}], "words": 500, "length": 1.5, "mate": True,
        "note": "NOTE", "looking": "LOOKING", "messages": [{"text": "MESSAGE"}],
        "included": {"domain": "DOMAIN", "skills": "SKILLS", "phase": "PHASE"},
    },
    "engine/synthesis-protocol": {
        **SHARED,
        "read": {"t1-synthesis": "BEFORE", "t2-critic": "VOICE"},
        "previous": "t1-synthesis", "turn": 2, "max_turns": 3,
        "voices": [{"name": "critic", "charge": "CHARGE", "artifact": "t2-critic"}],
        "missing": [{"role": "tester", "reason": "timeout"}], "tensions": [TENSION], "objections": [DISSENT],
        "cited": [{"path": "PATH", "line": 3, "lines": "LINES", "voices": ["critic"]}],
        "gaps": ["GAP"], "width": [2, 4], "methods": [("critic", "METHOD")], "looks": True,
        "criteria": {"exit_confidence": 0.8, "agreement_flag": 0.7}, "convergence": "CONVERGENCE",
        "checked": True, "note": "NOTE", "skills": ["SKILL"], "team": ["MATE"],
        "included": {"vendors": "VENDORS", "phase": "PHASE"},
    },
    "engine/findings-protocol": {
        **RECORDED,
        "read": {"00-input": "QUESTION"},
        "sources": [{"id": "t1-critic/c1", "text": "SOURCE"}],
    },
    "engine/final-protocol": {
        **RECORDED,
        "read": {"00-input": "QUESTION"},
        "turn": 2, "why": "WHY", "confidence": "0.72", "words": 900, "enough": True,
        "tensions": [TENSION], "outside": [FACT], "dissents": [DISSENT], "findings": FINDINGS,
        "dropped": [{"name": "tester", "turn": 1, "text": "DROPPED", "confidence": 0.5}],
        "missing": [{"turn": 1, "role": "tester", "reason": "timeout"}],
        "unverified": [{"citation": "CITATION", "why": "it is gone"}],
    },
    "engine/draft-protocol": {
        **SHARED,
        "read": {"00-input": "QUESTION"}, "words": 900,
    },
    "engine/review-protocol": {
        **SHARED,
        "read": {"00-input": "QUESTION", "DRAFT": "TEXT"}, "words": 900, "decision": "DECISION",
        "findings": FINDINGS, "loose": ["NUMBER"],
    },
    "engine/revision-protocol": {
        **RECORDED,
        "read": {"00-input": "QUESTION", "DRAFT": "TEXT", "REVIEW": "REVIEWED"}, "turn": 2, "why": "WHY",
        "words": 900, "confidence": "0.72", "findings": FINDINGS, "refuted": ["REFUTED"],
        "tensions": [TENSION], "outside": [FACT], "dissents": [DISSENT],
        "dropped": [{"name": "tester", "turn": 1, "text": "DROPPED", "confidence": 0.5}],
        "missing": [{"turn": 1, "role": "tester", "reason": "timeout"}],
        "unverified": [{"citation": "CITATION", "why": "it is gone"}],
    },
    "engine/repair": {"problems": ["PROBLEM"]},
    "engine/repair-draft": {"problems": ["PROBLEM"], "form": "FORM", "draft": "DRAFT", "schema": True,
                            "documents_kept": True},
    "engine/left-out": {},
    "engine/looked": {"looks": [{"tool": "TOOL", "arguments": "ARGUMENTS", "result": "RESULT"}]},
    "engine/looking": {"tools": {"requests": "FIVE", "rounds": "THREE"}},
    "engine/answer-now": {"used": "FOUR", "requests": "FIVE", "rounds": "THREE"},
}  # fmt: skip
NAMES = re.compile(r"[A-Z]{3,}")
UNSAID = {"SETTLER": "templates/agent-brief", "TELLER": "templates/agent-brief"}


def blocks(name: str) -> tuple[str, ...]:
    """The blocks of a prompt; one without blocks is rendered whole."""
    whole = {
        "engine/repair": ("",),
        "engine/answer-now": ("",),
        "engine/left-out": ("",),
        "engine/looking": ("",),
        "engine/looked": ("",),
        "engine/repair-draft": ("system", "own"),
        "templates/common": ("system", "material", "record"),
    }
    return whole.get(name, ("system", "shared", "own"))


@pytest.mark.parametrize("name", PROMPTS)
def test_every_prompt_says_all_it_is_given(name: str) -> None:
    text = "\n".join(LIBRARY.render(name, PROMPTS[name], block) for block in blocks(name))
    values = json.dumps([value for key, value in PROMPTS[name].items() if key != "read"])
    words = {*NAMES.findall(values), *NAMES.findall(" ".join(PROMPTS[name].get("read", {}).values()))}
    for word in words:
        assert (word in text) is (name not in UNSAID.get(word, "")), word
    assert "{{" not in text and "{%" not in text
    assert not re.search(r"\n{4,}", text)


def bare(name: str) -> dict[str, Any]:
    """As little as a prompt can be given: nothing where there may be nothing."""
    kept = ("width", "last", "role", "words", "confidence", "voices", "syntheses")
    return {
        key: type(value)() if isinstance(value, (list, str)) and key not in kept else value
        for key, value in PROMPTS[name].items()
    }


@pytest.mark.parametrize(
    ("name", "block"), [(name, block) for name in PROMPTS if "engine/repair" not in name for block in blocks(name)]
)
def test_every_block_renders_with_as_little_as_there_can_be(name: str, block: str) -> None:
    text = LIBRARY.render(name, {**bare(name), "seat": 1, "width": [3, 3]}, block)
    assert text
    assert "None," not in text and "Undefined" not in text
    assert "()" not in text and not re.search(r"\[ *\]`", text), "no empty list where an example should be"


@pytest.mark.parametrize("name", PROMPTS)
def test_every_prompt_is_strict_about_what_it_needs(name: str) -> None:
    for key in PROMPTS[name]:
        lacking = {other: value for other, value in PROMPTS[name].items() if other != key}
        used = 0
        for block in blocks(name):
            try:
                LIBRARY.render(name, lacking, block)
            except ContentError as caught:
                assert f"'{key}' is undefined" in caught.message
                used += 1
        assert used or key in ("role",), f"{name} does not use {key}"


def test_the_thresholds_the_synthesiser_is_told_are_those_of_the_code() -> None:
    told = LIBRARY.load("engine/convergence").body
    criteria, _ = LIBRARY.read("engine/convergence", Convergence)
    assert f"above {criteria.exit_confidence}" in told


# -- finding ---------------------------------------------------------------------------------------


def test_the_nearest_wins_whole(tmp_path: Path) -> None:
    project, user, packaged = tmp_path / "p", tmp_path / "u", tmp_path / "d"
    library = Library((("project", project), ("user", user), ("packaged", packaged)))
    for folder, title in ((packaged, "packaged"), (user, "user"), (project, "project")):
        put(folder, "templates/roles/critic.md", f"---\ntitle: {title}\n---\nBody of {title}.\n")
    put(packaged, "presets/think.yaml", "about: packaged\nbd: true")
    put(user, "presets/think.md", "---\nabout: user\n---\n")
    assert library.load("templates/roles/critic").meta == {"title": "project"}
    assert library.load("presets/think").meta == {"about": "user"}  # nothing of the packaged one is merged in
    assert library.find("templates/roles/critic") == ("project", project / "templates/roles/critic.md")
    assert library.find("presets/think") == ("user", user / "presets/think.md")


def test_names_are_those_of_all_roots(tmp_path: Path) -> None:
    put(tmp_path, "presets/mine.yaml", "about: x")
    put(tmp_path, "presets/think.yaml", "about: x")
    for ignored in (".hidden.yaml", "notes.txt", "think.yaml~", "#think.yaml#", ".#think.yaml"):
        put(tmp_path, f"presets/{ignored}", "x")
    (tmp_path / "presets" / "folder.yaml").mkdir()
    (tmp_path / "presets" / "dangling.yaml").symlink_to("nowhere")
    assert own(tmp_path).names("presets") == ["debug", "deep", "full", "mine", "quick", "think"]
    assert own(tmp_path).names("nowhere") == []


def test_a_link_to_a_file_is_content(tmp_path: Path) -> None:
    put(tmp_path, "elsewhere.yaml", "about: linked")
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "mine.yaml").symlink_to("../elsewhere.yaml")
    assert own(tmp_path).load("presets/mine").meta == {"about": "linked"}


def in_project(folder: Path) -> Library:
    """A library with the folder `.cdo` of the project `folder`, another one of the person, and what ships."""
    own, mine = ("project", folder / ".cdo"), ("user", folder.parent / "mine")
    return Library((own, mine, ("packaged", PACKAGED)))


def test_what_a_repository_links_to_is_not_its_content(tmp_path: Path) -> None:
    """A file, a folder or the whole `.cdo` that leads elsewhere: nothing of it reaches a prompt."""
    put(tmp_path, "secret.md", "SECRET of {{ problems }}")
    project = tmp_path / "project"
    (project / ".cdo/engine").mkdir(parents=True)
    (project / ".cdo/engine/repair.md").symlink_to(tmp_path / "secret.md")
    put(tmp_path, "away/critic.md", "SECRET")
    (project / ".cdo/templates").mkdir()
    (project / ".cdo/templates/roles").symlink_to(tmp_path / "away")
    for call in (in_project(project).load, in_project(project).template, in_project(project).data):
        for name in ("engine/repair", "templates/roles/critic"):
            found = error(call, name)
            assert found.message.endswith("cannot be read: it is a link that leads out of the project.")
            assert "SECRET" not in found.message
    put(tmp_path, "mine/engine/repair.md", "Mine.")
    (tmp_path / "mine/presets").mkdir()
    (tmp_path / "mine/presets/think.md").symlink_to(tmp_path / "secret.md")  # a person's own links are their own
    assert "SECRET" in Library((("user", tmp_path / "mine"),)).load("presets/think").body
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / ".cdo").symlink_to(tmp_path / "mine")
    assert "leads out of the project" in error(in_project(whole).load, "engine/repair").message


def test_a_link_that_stays_in_the_project_is_content(tmp_path: Path) -> None:
    project = tmp_path / "project"
    put(project, "docs/critic.md", "In {{ place }}.")
    (project / ".cdo/engine").mkdir(parents=True)
    (project / ".cdo/engine/repair.md").symlink_to("../../docs/critic.md")
    assert in_project(project).render("engine/repair", {"place": "here"}) == "In here."


def test_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    put(tmp_path, ".cdo/engine/repair.md", "x" * 1_000_000)
    assert len(in_project(tmp_path).load("engine/repair").body) == 1_000_000
    put(tmp_path, ".cdo/engine/repair.md", "x" * 1_000_001)
    assert "it is larger than 1,000,000 bytes" in error(in_project(tmp_path).load, "engine/repair").message


def test_every_document_is_listed_once(tmp_path: Path) -> None:
    put(tmp_path, "presets/think.yaml", "about: x")
    put(tmp_path, "modes/mine.md", "x")
    put(tmp_path, "templates/.git/x.md", "x")
    names = list(own(tmp_path).every())
    assert len(set(names)) == len(names)
    assert {"presets/think", "modes/mine", "templates/agent-brief", "templates/roles/critic"} <= set(names)
    assert not [name for name in names if ".git" in name]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("presets/thnk", "Did you mean presets/think?"),
        ("templates/roles/crtic", "Did you mean templates/roles/critic?"),
        ("thnk", "Did you mean presets/think?"),
        ("engine/synthesis", "Did you mean engine/synthesis-protocol?"),
        ("presets/zzzzzz", "`cdo content list` shows what there is."),
        ("", "`cdo content list` shows what there is."),
        ("presets/../presets/think", "Did you mean presets/think?"),
        ("../presets/think", "Did you mean presets/think?"),
        ("/etc/passwd", "`cdo content list` shows what there is."),
        ("tests/harness", "`cdo content list` shows what there is."),
        ("README", "`cdo content list` shows what there is."),
    ],
)
def test_what_is_not_there_names_the_nearest(name: str, hint: str) -> None:
    found = error(LIBRARY.load, name)
    assert found.message == f"There is no content file called {name}."
    assert found.hint == hint


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("think", "presets/think"),
        ("think.yaml", "presets/think"),
        ("critic", "templates/roles/critic"),
        ("agent-brief.md", "templates/agent-brief"),
        ("templates/roles/critic.md", "templates/roles/critic"),
        ("presets/think", "presets/think"),
        ("nothing", "nothing"),
    ],
)
def test_a_short_name_is_resolved_where_it_is_clear(typed: str, name: str) -> None:
    assert LIBRARY.resolve(typed) == name


def test_an_unclear_short_name_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, "modes/think.md", "x")
    found = error(own(tmp_path).resolve, "think")
    assert found.message == "`think` could be presets/think or modes/think."
    assert found.hint == "Give the full name."


def test_the_library_of_a_directory_looks_at_project_user_and_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDO_CONFIG_DIR", str(tmp_path / "user"))
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    outside = project_folder(tmp_path)
    assert Library.at(deep).roots[-2:] == (("user", tmp_path / "user"), ("packaged", PACKAGED))
    (tmp_path / "a" / ".cdo").mkdir()
    (tmp_path / "a" / "b" / ".cdo").mkdir()
    assert Library.at(deep).roots[0] == ("project", tmp_path / "a" / "b" / ".cdo")  # there is nothing to trust
    put(tmp_path / "a/b/.cdo", "presets/mine.yaml", "about: x")
    assert len(Library.at(deep).roots) == 2
    assert Library.at(deep, trust_now=True).roots[0] == ("project", tmp_path / "a" / "b" / ".cdo")
    assert project_folder(tmp_path / "a") == tmp_path / "a" / ".cdo"
    assert project_folder(tmp_path) == outside
    monkeypatch.chdir(deep)
    assert project_folder(Path()) == tmp_path / "a" / "b" / ".cdo"


def test_a_project_counts_only_while_it_is_trusted_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "p/.cdo"
    preset = put(folder, "presets/think.yaml", "about: theirs\n")
    put(folder, "templates/roles/zed.md", "x")
    put(folder, "notes.txt", "not content")

    def about(library: Library) -> str:
        return str(library.load("presets/think").meta["about"])

    before = Library.at(tmp_path / "p")
    assert before.waiting() == ["presets/think", "templates/roles/zed"] and about(before) != "theirs"
    assert before.project and "new" in unused(before.project, {}, before.has)
    told = f"Not used, because you do not trust {folder} as it is now: presets/think (replaces another one), "
    assert unused(before.project, {}, before.has).startswith(f"{told}templates/roles/zed (new). ")
    assert "which you do not trust as it is now" in error(before.find, "templates/roles/zed").message
    trusted = Library.at(tmp_path / "p", trust_now=True)
    assert trusted.waiting() == [] and about(trusted) == "theirs"
    held = Library.at(tmp_path / "p")
    preset.write_text("about: changed\n")
    assert about(held) == "theirs"  # the bytes that were trusted, not those that came after
    assert about(Library.at(tmp_path / "p")) not in ("theirs", "changed")
    preset.write_text("about: theirs\n")
    assert about(Library.at(tmp_path / "p")) == "theirs"  # the hash is of the contents
    put(folder, "notes.txt", "more")
    late = Library.at(tmp_path / "p")
    assert late.waiting() == []  # of no interest to cdo
    put(folder, "presets/deep.yaml", "about: late\n")
    assert "has changed since the project was trusted" in error(late.load, "presets/deep").message
    assert len(Library.at(tmp_path / "p").waiting()) == 3


def test_renaming_or_moving_a_trusted_file_ends_trust(tmp_path: Path) -> None:
    put(tmp_path, ".cdo/presets/a.yaml", "about: x\n")
    first = read_project(tmp_path, trust_now=True)
    assert first and first.trusted
    (tmp_path / ".cdo/presets/a.yaml").rename(tmp_path / ".cdo/presets/b.yaml")
    second = read_project(tmp_path)
    assert second and not second.trusted and second.sha256 != first.sha256
    shutil.copytree(tmp_path / ".cdo", tmp_path / "copy/.cdo")
    moved = read_project(tmp_path / "copy")
    assert moved and not moved.trusted and moved.sha256 == second.sha256  # the same bytes, in another place


def test_what_cannot_be_trusted_is_told(tmp_path: Path) -> None:
    """A folder that is endless, links that lead out, and one file more than a project may have."""
    folder = tmp_path / "p/.cdo"
    put(tmp_path, "away/think.yaml", "about: SECRET\n")
    put(folder, "presets/own.yaml", "about: x\n")
    (folder / "presets/think.yaml").symlink_to(tmp_path / "away/think.yaml")
    (folder / "modes").symlink_to(tmp_path / "away")
    (folder / "templates").mkdir()
    (folder / "templates/loop").symlink_to(folder / "templates")
    found = read_project(tmp_path / "p")
    assert found and set(found.files) == {"presets/own.yaml"} and "SECRET" not in str(found)
    assert "leads out of the project" in found.unread["presets/think.yaml"]
    for number in range(MAX_FILES):
        put(folder, f"presets/n{number}.yaml", "about: x\n")
    many = read_project(tmp_path / "p")
    assert many and not many.trusted
    with pytest.raises(ConfigError, match="cannot be trusted: it has over"):
        read_project(tmp_path / "p", trust_now=True)


def test_a_file_called_dot_cdo_is_no_project_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    put(tmp_path, "a/.cdo", "x")
    assert project_folder(tmp_path / "a") == project_folder(tmp_path)


def test_the_users_folder_can_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDO_CONFIG_DIR", "~/elsewhere")
    assert user_folder() == Path.home() / "elsewhere"
    monkeypatch.delenv("CDO_CONFIG_DIR")
    assert user_folder().name == "cdo"


@needs("user", os.geteuid() != 0, "root may look everywhere")
def test_a_folder_that_may_not_be_looked_at_is_not_there(tmp_path: Path) -> None:
    put(tmp_path, "presets/think.yaml", "about: x")
    tmp_path.chmod(0)
    try:
        assert own(tmp_path).find("presets/think")[0] == "packaged"
        assert own(tmp_path).names("presets") == LIBRARY.names("presets")
    finally:
        tmp_path.chmod(0o700)


def test_what_the_system_refuses_to_look_at_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        if tmp_path in path.parents:
            raise PermissionError(path)
        return os.path.isfile(path)  # noqa: PTH113

    monkeypatch.setattr(Path, "is_file", refuse)
    assert own(tmp_path).find("presets/think")[0] == "packaged"


# -- loading ---------------------------------------------------------------------------------------


def test_documents_are_read_once_and_remembered_in_order() -> None:
    library = Library(LIBRARY.roots)
    for name in ("presets/think", "engine/repair", "presets/think"):
        library.load(name)
    assert library.opened == ["presets/think", "engine/repair"]
    library.names("presets")
    library.find("presets/deep")
    assert library.opened == ["presets/think", "engine/repair"]


def test_a_quick_plan_and_a_brief_open_only_what_they_need() -> None:
    library = Library(LIBRARY.roots)
    plan = make(Invocation("quick", (), None, None, "x"), "x", Resolved(Settings(), {}), library, ["m/a"])
    heads = [f"templates/roles/{name}" for name in plan.known_roles]  # by which those of the first turn are chosen
    assert library.opened == ["presets/quick", *heads, "engine/complexity", "engine/convergence"]
    batch = next(deliberate(plan))
    assert isinstance(batch, Batch)
    prompts.messages(batch.calls[0], {"00-input": "x", "00-context": ""}, library)
    assert library.opened[3 + len(heads) :] == [
        "templates/agent-brief",
        "engine/looking",
        "templates/common",
    ]  # the role is open already
    assert Record().turns == ()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("presets/mine.yaml", "about: x\nabout: y", "line 2, column 1: the key `about` is there twice."),
        ("presets/mine.yaml", "about: &x y", "line 1, column 8: anchors (&name) are not allowed."),
        ("presets/mine.yaml", "- a", "the top level must be a mapping of keys."),
        ("presets/mine.yaml", "text", "the top level must be a mapping of keys."),
        ("presets/mine.md", "---\na: 1\n\nb: [\n---\nx", "line 5, column 1: did not find expected node content."),
        (
            "presets/mine.md",
            "---\n\n\na: b: c\n---\nx",
            "line 4, column 5: mapping values are not allowed in this context.",
        ),
        (
            "presets/mine.md",
            "---\na: 1\n",
            "line 1: the front matter has no end. Close it with a second line `---`.",
        ),
        ("presets/mine.md", "---\n- a\n---\n", "the top level must be a mapping of keys."),
        (
            "presets/mine.yaml",
            "a: " + "x" * 65_536,
            "line 1, column 1: 65,539 bytes of YAML, at most 65,536 are read.",
        ),
    ],
)
def test_a_broken_document_is_named_with_line_and_column(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = put(tmp_path, name, text)
    found = error(own(tmp_path).load, "presets/mine")
    assert found.message == f"{path}: {message}"
    assert found.hint == "Fix the file and run again."


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = put(tmp_path, "presets/mine.yaml", "")
    path.write_bytes(b"about: \xff\xfe")
    found = error(own(tmp_path).load, "presets/mine")
    assert found.message == f"{path} is not UTF-8 text."
    assert found.hint


def test_byte_order_marks_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    path = put(tmp_path, "presets/mine.md", "")
    path.write_bytes(b"\xef\xbb\xbf---\r\nabout: x\r\n---\r\nBody\r\nhere\r\n")
    document = own(tmp_path).load("presets/mine")
    assert (document.meta, document.body) == ({"about": "x"}, "Body\nhere")


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "presets/mine.yaml", "about: x")

    def refuse(*_: Any, **__: Any) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(project_content, "read_regular", refuse)
    found = error(own(tmp_path).load, "presets/mine")
    assert found.message == f"{path} cannot be read: Permission denied."
    assert found.hint == "Fix its permissions and run again."


@pytest.mark.parametrize("text", ["Body", "----\na: b\n----\n"])
def test_without_front_matter_all_is_body(tmp_path: Path, text: str) -> None:
    put(tmp_path, "modes/mine.md", text)
    document = own(tmp_path).load("modes/mine")
    assert (document.meta, document.body) == ({}, text)


PRESET = LIBRARY.load("presets/think").path.read_text(encoding="utf-8")
PRESET_KEYS = (
    "about, width, start, max_turns, bd, skills, team_mode, dashboard, adaptive, roles, mixed, mode, review, "
    "words, looks, context_tokens, effort"
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bd:", "db:", "`db` is not an allowed key."),
        ("start: 3\n", "", "`start` is missing."),
        ("[2, 4]", "[4, 2]", "`width`: the first number must not be above the second."),
        ("[2, 4]", "4", "`width`: must be a list of 2 whole numbers."),
        ("[2, 4]", "[0, 4]", "`width.0`: must be greater than or equal to 1."),
        ("optional", "maybe", "`skills`: must be 'no', 'optional' or 'yes'."),
        ("bd: false", "bd: perhaps", "`bd`: must be true or false."),
        ("[first-principles", "[[x]", "`roles.0`: must be text."),
    ],
)
def test_a_wrong_key_or_value_names_file_key_and_allowed_keys(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in PRESET
    text = PRESET.replace(old, new, 1)
    path = put(tmp_path, "presets/mine.yaml", text)
    library = own(tmp_path)
    with pytest.raises(ContentError) as caught:
        library.read("presets/mine", Preset)
    assert caught.value.message == f"{path}: {message}"
    wrong_key = message.endswith(("is not an allowed key.", "is missing."))
    assert caught.value.hint == (f"Allowed keys: {PRESET_KEYS}." if wrong_key else "Fix the file and run again.")


@pytest.mark.parametrize(
    ("values", "message", "hint"),
    [
        (
            {"purpose": "x", "load_when": "y", "provider": {}},
            "`provider` is not an allowed key.",
            "Did you mean `providers`? Allowed keys: purpose, load_when, providers.",
        ),
        (
            {"purpose": "x", "load_when": "y", "providers": {"acme": {"adress": "z"}}},
            "`providers.acme.adress` is not an allowed key.",
            "Allowed keys: url, protocol, url_env, key_env, key, cap, usage, model, price, window, idempotency, "
            "flex, batch_api, batch_factor, cache_marks.",
        ),
        (
            {"purpose": "x", "load_when": "y", "providers": {"acme": {"price": {"input": 1}}}},
            "`providers.acme.price.output` is missing.",
            "Allowed keys: input, output, cached, cache_write, long_prompts.",
        ),
    ],
)
def test_allowed_keys_are_those_of_the_place(values: dict[str, Any], message: str, hint: str) -> None:
    found = error(checked, Providers, values, "p.yaml")
    assert found.message == f"p.yaml: {message}"
    assert found.hint == hint


# -- rendering -------------------------------------------------------------------------------------


def render(folder: Path, body: str, block: str = "", **values: Any) -> str:
    put(folder, "modes/mine.md", f"---\npurpose: x\n---\n\n{body}\n")
    return own(folder).render("modes/mine", values, block)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("one\n{{ missing }}", "line 6: 'missing' is undefined"),
        ("{% if missing %}x{% endif %}", "line 5: 'missing' is undefined"),
        ("{{ known.missing }}", "line 5: 'dict object' has no attribute 'missing'"),
        ("{{ known['missing'] }}", "line 5: 'dict object' has no attribute 'missing'"),
        ("one\ntwo\n{% if x %}", "line 7: Unexpected end of template."),
        ("{{ x", "line 5: unexpected end of template"),
        ("one\n{{ x|nofilter }}", "line 6: No filter named 'nofilter'."),
        ("{{ 1 / 0 }}", "line 5: division by zero"),
        ("one\n\n{{ 1 + 'a' }}", "line 7: unsupported operand"),
        ("{{ number|join }}", "line 5: 'int' object is not iterable"),
        ("{% include 'x' %}", "line 5: no loader for this environment"),
        ("{% extends 'x' %}", "line 5: no loader for this environment"),
        ("{{ ''.__class__ }}", "line 5: access to attribute '__class__' of 'str' object is unsafe."),
        ("{{ ''.__class__.__mro__ }}", "line 5: access to attribute '__class__' of 'str' object is unsafe."),
        ("{{ cycler.__init__.__globals__.os }}", "line 5: access to attribute '__init__'"),
        ("{{ known.update({}) }}", "line 5: access to attribute 'update' of 'dict' object is unsafe."),
        ("{{ items.append(1) }}", "line 5: access to attribute 'append' of 'list' object is unsafe."),
        ("{{ '{0.__class__}'.format(1) }}", "line 5: access to attribute '__class__' of 'int' object is unsafe."),
        ("{{ range(10000000) }}", "line 5: Range too big."),
    ],
)
def test_a_broken_or_prying_template_is_named_with_its_line(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(ContentError) as caught:
        render(tmp_path, body, known={"a": 1}, number=3, items=[1])
    assert caught.value.message.startswith(f"{tmp_path}/modes/mine.md: {message}")


# What older versions of the sandbox let through, and what leads to it.
ESCAPES = [
    "{{ '{0.__class__}'|attr('format')(1) }}",
    "{{ ''|attr('format_map')({}) |attr('__class__') }}",
    "{{ ''|attr('__class__') }}",
    "{{ (''|attr('format')).__self__.__class__ }}",
    "{{ ['{0.__class__.__mro__}']|map('format', '')|list|first.__class__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ cycler|attr('__init__')|attr('__globals__') }}",
    "{{ joiner.__init__.__globals__.os }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ lipsum.__globals__ }}",
    "{{ dict.__mro__ }}",
    "{{ self.__init__ }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ x.__class__.__base__.__subclasses__() }}",
    "{{ x['__class__'] }}",
    "{{ [x]|map(attribute='__class__')|list|first }}",
    "{{ [{}]|map('attr', '__class__')|first.mro() }}",
    "{{ x.encode('idna').__class__ }}",
    "{{ (1).__class__.to_bytes }}",
    "{% set y = [] %}{{ y.append(1) }}",
    "{{ {}.update({'a': 1}) }}",
    "{% include '/etc/passwd' %}",
    "{% import '/etc/passwd' as p %}",
    "{% extends '/etc/passwd' %}",
    "{% from 'os' import system %}",
    "{{ import('os') }}",
    "{{ open('/etc/passwd').read() }}",
    "{{ config }}",
    "{{ request.application }}",
    "{{ environment }}",
    "{{ lipsum(9) }}",
    "{{ x|random }}",
    "{{ x|pprint }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "9" * 5000 + " }}",
    "{% for a in x %}" * 40 + "{% endfor %}" * 40,
]


@pytest.mark.wide
@pytest.mark.parametrize("body", ESCAPES)
def test_no_template_reaches_out_or_says_something_else_each_time(tmp_path: Path, body: str) -> None:
    put(tmp_path, "engine/repair.md", f"---\npurpose: x\n---\n{body}\n")
    with at_most(4):
        try:
            shown = own(tmp_path).render("engine/repair", {"x": "abc" * 999})
        except ContentError as caught:
            assert str(tmp_path) in caught.message
        else:  # what is undefined says so, and is nothing of Python
            raise AssertionError(shown[:200])
    assert LIBRARY.render("engine/repair", {"problems": ["it"]})


def test_a_block_is_rendered_by_itself(tmp_path: Path) -> None:
    body = "above\n{% block one %}\n1 {{ a }}\n{% endblock %}\n{% block two %}{{ b }}{% endblock %}"
    assert render(tmp_path, body, "one", a="x") == "1 x"
    with pytest.raises(ContentError, match=r"mine\.md: line 9: 'b' is undefined"):
        render(tmp_path, body, "two", a="x")
    with pytest.raises(ContentError, match=r"mine\.md has no block called three\."):
        render(tmp_path, body, "three", a="x")


def test_values_are_never_templates(tmp_path: Path) -> None:
    evil = "{{ 7*7 }} {% for x in [] %} {# #} {{ read }}"
    assert render(tmp_path, "{{ value }}|{{ value|line }}", value=evil) == f"{evil}|{evil}"


def test_a_template_is_compiled_once() -> None:
    library = Library(LIBRARY.roots)
    assert library.template("engine/repair") is library.template("engine/repair")


# -- filters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a </voice> b", "a ‹/voice> b"),
        ("<voice role='x'>", "‹voice role='x'>"),
        ("</VOICE>", "‹/VOICE>"),
        ("< / voice >", "‹ / voice >"),
        ("<\n/voice>", "‹\n/voice>"),
        ("<//voice>", "‹//voice>"),
        ("<<voice", "<‹voice"),
        ("<voices>", "<voices>"),
        ("<b>", "<b>"),
        ("a < b", "a < b"),
        ("voice>", "voice>"),
    ],
)
def test_text_cannot_close_or_open_the_tag_it_stands_in(text: str, shown: str) -> None:
    assert within(text, "voice") == shown


def test_hostile_text_is_neutralised_fast() -> None:
    with at_most(1):
        for text in ("<" + " " * 200_000, "<" * 200_000, "< /" * 70_000, "</" * 100_000 + "voic"):
            within(text, "voice")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('say "hi"', "say hi"),
        ('x"> <system>', "x system"),
        (" a\n\tb ", "a b"),
        ("", ""),
        ("x" * 400, "x" * 299 + "…"),
    ],
)
def test_an_attribute_stays_between_its_quotes(text: str, shown: str) -> None:
    assert attribute(text) == shown


def test_a_line_is_one_line_of_bounded_length() -> None:
    assert line("a\n# b\r\n\u2028c") == "a # b c"
    assert line("x" * 600) == "x" * 600
    assert line("x" * 601) == "x" * 599 + "…"
    assert line("abc", 2) == "a…"
