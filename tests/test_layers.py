"""The shape of the code (SPEC 1): imports point one way, programs are pure, one place writes, heavy parts wait."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "cdo"

# A module imports only from the lines above its own, also inside functions.
LAYERS: tuple[tuple[str, ...], ...] = (
    # Nouns.
    (
        "__init__",
        "types",
        "errors",
        "results",
        "backends.__init__",
        "backends.local_server",
        "cabal.__init__",
        "cabal.names",
    ),
    ("cabal.facts",),
    ("cabal.state",),
    ("durable", "gauge", "gbnf", "opening", "sandbox", "secrets", "signals", "wording"),  # what needs no other part
    ("hypertext", "ignore", "spent", "strict_yaml", "words", "policy", "ranking", "sessions", "git", "queries"),
    ("schemas", "bd", "tree"),
    ("cabal.acceptance", "cabal.bulletin", "cabal.fitting", "cabal.crew"),
    ("cabal.bounded", "cabal.filed", "cabal.references"),
    ("plots", "board", "blocks", "cabal.events", "markup", "diagrams", "skills", "trust", "vendors", "writer"),
    ("births",),
    ("cabal.items", "cabal.reviewing"),
    ("cabal.replies", "cabal.layout"),
    ("cabal.discourse",),
    ("backends.chat", "backends.scripted"),
    ("protocol", "final", "content", "context", "worksheets", "structurizr", "domains", "diffs"),
    ("reports",),
    ("cabal.criteria", "cabal.delivery"),
    ("cabal.grammars", "cabal.inspecting", "cabal.sight", "cabal.tree"),
    ("cabal.writing",),
    ("cabal.transaction",),
    ("cabal.reducer",),
    ("cabal.formats", "cabal.packs"),
    ("artifacts", "convergence", "documents", "proposal", "repository", "tools", "citations", "agents"),
    ("evidence", "archive", "drawing", "edits"),
    ("cabal.certificate",),
    (
        "standing",
        "skill_files",
        "hypotheses",
        "motions",
        "team",
        "briefs",
        "models",
        "settings",
        "store",
        "view",
        "branches",
    ),
    ("watching", "agent_output", "plan_edits"),
    ("backends.local", "backends.litellm", "backends.command"),
    ("rca", "minutes", "budget", "conversation", "plan", "people", "hitl"),
    ("calls", "estimate", "handover"),
    ("cabal.program", "crewing"),
    ("attempts", "turn", "dashboard", "beads"),
    ("ending", "alarms", "runner"),  # a program decides, the runner acts; neither knows the other
    ("deliberate", "debug", "parliament", "audit", "frozen", "seating", "commit_messages"),
    ("modes", "history", "trail", "audit_report", "cabal.retrace"),
    ("cabal.looking",),
    ("worth", "forking", "report_head"),
    ("catalogue",),
    ("fulltext",),
    ("preview", "app", "comparison", "report", "recall", "costs"),
    ("rehearsal", "side_by_side", "nesting", "cabal.report"),
    ("auditing",),
    ("console", "run_options"),
    (
        "machine_commands",
        "skill_commands",
        "watch_command",
        "report_command",
        "diff_command",
        "library_commands",
        "restore_command",
        "verify_command",
    ),
    ("commands", "driving"),
    ("branch_commands", "review_commands"),
    ("run_commands",),
    ("cabal_commands",),
    ("cli",),
    ("__main__",),
)
PROGRAMS = (
    "deliberate", "debug", "parliament", "audit", "turn", "calls", "ending", "alarms", "team", "evidence",
    "hypotheses", "motions", "rca", "minutes", "convergence", "plan", "estimate", "proposal", "plan_edits",
    "cabal.acceptance", "cabal.bounded", "cabal.bulletin", "cabal.crew", "cabal.criteria", "cabal.delivery",
    "cabal.discourse", "cabal.events", "cabal.facts", "cabal.filed", "cabal.fitting", "cabal.formats",
    "cabal.grammars", "cabal.inspecting", "cabal.items", "cabal.layout", "cabal.names", "cabal.packs",
    "cabal.program", "cabal.reducer", "cabal.references", "cabal.replies", "cabal.reviewing", "cabal.sight",
    "cabal.state", "cabal.transaction", "cabal.tree", "cabal.writing",
)  # fmt: skip
HEAVY = ("litellm", "rich", "git", "watchfiles", "aiohttp", "xllamacpp")
SESSION = ("durable", "births", "writer", "store")  # what writes into sessions
# And files outside of them: what is trusted, installed skills, the index of past runs, what git leaves when it fails,
# a replay's own copy, the embedded model's cache, an agent's own home.
WRITERS = (*SESSION, "trust", "skill_commands", "catalogue", "git", "rehearsal", "backends.local", "backends.command")
# Methods that are described where the interface is: Backend, click.
INTERFACE = ("complete", "close", "parse_args")


@dataclass
class Module:
    """One file of the package: what it imports when it is loaded, and what only inside functions or for types."""

    name: str
    tree: ast.Module
    loaded: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)

    @property
    def inside(self) -> set[str]:
        """The parts of cdo it uses at all."""
        return {self._part(name) for name in self.loaded | self.later if name.partition(".")[0] == "cdo"} - {""}

    @staticmethod
    def _part(name: str) -> str:
        """ "cdo.protocol.AgentFormat" is "protocol", "cdo.__version__" nothing."""
        parts = name.split(".")[1:]
        for size in (2, 1):
            if len(parts) >= size and PACKAGE.joinpath(*parts[:size]).with_suffix(".py").is_file():
                return ".".join(parts[:size])
        return "backends.__init__" if parts[:1] == ["backends"] else ""


def read(path: Path) -> Module:
    found = Module(".".join(path.relative_to(PACKAGE).with_suffix("").parts), ast.parse(path.read_text("utf-8")))

    def walk(node: ast.AST, late: bool) -> None:
        late = late or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        late = late or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        names = found.later if late else found.loaded
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{found.name} has a relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            walk(child, late)

    walk(found.tree, late=False)
    return found


MODULES = {module.name: module for module in map(read, sorted(PACKAGE.rglob("*.py")))}
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def functions(module: Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, bool]]:
    """(qualified name, function, whether it is public) of all functions; what is nested in one is not public."""

    def walk(
        node: ast.AST, place: str, public: bool
    ) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{place}{child.name}", child, public and not child.name.startswith("_")
                yield from walk(child, f"{place}{child.name}.", public=False)
            elif isinstance(child, ast.ClassDef):
                shown = not child.name.startswith("_") and not any("Protocol" in ast.unparse(b) for b in child.bases)
                yield from walk(child, f"{place}{child.name}.", public=public and shown)
            else:
                yield from walk(child, place, public)

    yield from walk(module.tree, "", public=True)


# -- imports ---------------------------------------------------------------------------------------


def test_every_module_has_its_layer() -> None:
    assert set(LEVEL) >= set(MODULES), "give new modules a place in LAYERS"
    assert len(LEVEL) == sum(map(len, LAYERS))


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_one_way(name: str) -> None:
    allowed = {"cli"} if name == "commands" else set()  # the completion script is made from the command line itself
    above = {used for used in MODULES[name].inside - {name} - allowed if LEVEL[used] >= LEVEL[name]}
    assert not above, f"{name} imports {above}, which stand above it or beside it"


def test_commands_know_the_command_line_only_inside_functions() -> None:
    assert not any(used.startswith("cdo.cli") for used in MODULES["commands"].loaded)
    users = {name for name, module in MODULES.items() if "cli" in module.inside}
    assert users <= {"__main__", "commands"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_have_no_way_to_act(name: str) -> None:
    used = MODULES[name].loaded | MODULES[name].later
    outside = {module.partition(".")[0] for module in used}
    assert not outside & {
        "os", "io", "sys", "time", "random", "datetime", "pathlib", "asyncio", "socket", "subprocess", "threading",
        "uuid", "secrets", "tempfile", "shutil", "logging", "urllib", "http",
    }  # fmt: skip
    acting = {
        "runner",
        "conversation",
        "store",
        "durable",
        "writer",
        "sessions",
        "budget",
        "policy",
        "cli",
        "commands",
        "app",
        "view",
        "board",
        "context",
    }
    assert not MODULES[name].inside & acting
    assert not any(part.startswith("backends") for part in MODULES[name].inside)


@pytest.mark.parametrize("name", ["deliberate", "convergence"])
def test_programs_call_nothing_that_reads_or_prints(name: str) -> None:
    called = {node.id for node in ast.walk(MODULES[name].tree) if isinstance(node, ast.Name)}
    assert not called & {"open", "print", "input", "exec", "eval", "__import__", "globals", "breakpoint"}


def test_the_runner_knows_no_program() -> None:
    for name in ("runner", "conversation", *SESSION, "sessions", "budget", "policy"):
        assert not MODULES[name].inside & set(PROGRAMS), name


def test_backends_hold_no_policy() -> None:
    policy = {"runner", "budget", "protocol", *SESSION, "sessions", "artifacts", "content"}
    for name, module in MODULES.items():
        if name.startswith("backends."):
            assert not module.inside & policy, name


@pytest.mark.parametrize("name", MODULES)
def test_nothing_heavy_is_imported_at_module_level(name: str) -> None:
    assert not {used.partition(".")[0] for used in MODULES[name].loaded} & set(HEAVY)


def test_importing_all_of_cdo_loads_nothing_heavy() -> None:
    names = ["cdo" if name == "__init__" else f"cdo.{name.removesuffix('.__init__')}" for name in MODULES]
    names = [name for name in names if not name.endswith(("__main__", "local_server"))]
    code = f"import sys, {', '.join(names)}\nprint(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == ""


# -- files -----------------------------------------------------------------------------------------


VERBS = (
    "write", "mkdir", "makedirs", "rename", "replace", "unlink", "remove", "rmdir", "symlink", "link", "rmtree",
    "copy", "copyfile", "move", "truncate", "mkdtemp", "mkstemp", "TemporaryDirectory",
)  # fmt: skip


def writes(call: ast.Call) -> bool:
    """Whether a call makes, changes or removes a file."""
    text = ast.unparse(call.func)
    flags = " ".join(ast.unparse(argument) for argument in (*call.args, *(word.value for word in call.keywords)))
    if text == "os.open":
        return (
            any(flag in flags for flag in ("O_CREAT", "O_WRONLY", "O_RDWR", "O_APPEND")) and "os.devnull" not in flags
        )
    if text == "open" or text.endswith(".open"):
        modes = [ast.literal_eval(arg) for arg in ast.walk(call) if isinstance(arg, ast.Constant)]
        return any(isinstance(mode, str) and set(mode) & set("wax+") and len(mode) < 4 for mode in modes)
    if text.startswith(("os.", "shutil.", "tempfile.")):
        return text.rpartition(".")[2] in VERBS
    return text.endswith(
        (".write_text", ".write_bytes", ".mkdir", ".unlink", ".rename", ".rmdir", ".touch", ".symlink_to")
    )


@pytest.mark.parametrize("name", [name for name in MODULES if name not in WRITERS])
def test_only_the_store_writes_files(name: str) -> None:
    calls = [node for node in ast.walk(MODULES[name].tree) if isinstance(node, ast.Call) and writes(node)]
    assert not [f"line {call.lineno}: {ast.unparse(call)}" for call in calls]


def test_the_check_for_writing_sees_what_the_store_does() -> None:
    seen = {
        ast.unparse(node.func)
        for name in SESSION
        for node in ast.walk(MODULES[name].tree)
        if isinstance(node, ast.Call) and writes(node)
    }
    assert {"os.open", "os.rename", "os.write", "os.mkdir"} <= seen


# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_every_function_has_type_hints(name: str) -> None:
    lacking = []
    for place, function, _ in functions(MODULES[name]):
        arguments = function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        bare = [arg.arg for arg in every if arg and arg.annotation is None and arg.arg not in ("self", "cls")]
        if bare or function.returns is None:
            lacking.append(f"{place}: {', '.join(bare) or 'return'}")
    assert not lacking


@pytest.mark.parametrize("name", MODULES)
def test_whatever_is_public_says_what_it_is(name: str) -> None:
    module = MODULES[name]
    body = module.tree.body
    lacking = [] if ast.get_docstring(module.tree) or not body else ["the module"]
    lacking += [
        f"class {node.name}"
        for node in body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    # One statement says itself.
    lacking += [
        place
        for place, function, public in functions(module)
        if public and len(function.body) > 1 and function.name not in INTERFACE and not ast.get_docstring(function)
    ]
    assert not lacking


def test_the_readme_has_a_place_for_every_module() -> None:
    table = (ROOT / "README.md").read_text("utf-8").partition("| layer | modules | job |")[2].partition("\n## ")[0]
    named = {name for name in MODULES if not name.endswith(("__", "_command", "_commands"))}
    told = {
        name for name in named if f"`{name}`" in table or (name.startswith("backends.") and "`backends/*`" in table)
    }
    assert not named - told, "tell in README's `How it works` where these belong"
    assert "`*_command` `*_commands`" in table
