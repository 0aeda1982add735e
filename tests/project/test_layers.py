"""The shape of the code: folders import one way, programs are pure, one folder writes sessions, heavy parts wait."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.harness import ROOT

PACKAGE = ROOT / "cdo"

# A folder imports only from the lines above its own. What each is for stands in its __init__.
FOLDERS = (
    ("core",),
    ("files",),
    ("formats",),
    ("security",),
    ("content",),
    ("providers", "repository"),
    ("planning",),
    ("session",),
    ("cabal", "runner", "tracing"),
    ("programs", "observers"),
    ("history", "terminal"),
    ("app", "report"),
    ("api", "client_runs"),
    ("mcp_server", "chat_server", "web_view"),
    ("cli",),
    ("__main__",),
)
# Modules that cannot act: no files, no clock, no chance, no network, no processes.
PURE = ("core", "formats", "programs", "planning", "cabal")
IMPURE = ("core.signals", "planning.settings", "cabal.context_preview", "cabal.reconstruction", "cabal.verification")
ACTING = {
    "os", "io", "sys", "time", "random", "datetime", "pathlib", "asyncio", "socket", "subprocess", "threading",
    "uuid", "secrets", "tempfile", "shutil", "logging", "urllib", "http",
}  # fmt: skip
HEAVY = ("litellm", "rich", "git", "watchfiles", "aiohttp", "xllamacpp")
# What writes files: sessions; and outside of them what is trusted, installed skills, the index of past runs,
# compiled templates, what git leaves when it fails, a replay's own copy, the items and results of a batch, embedded
# models, an agent's home, a check's copy of a work tree, the runs that agents began and their registration.
SESSION = ("files.atomic_files", "files.locks", "session.creation", "session.writer", "session.store")
WRITERS = (
    *SESSION, "files.grouped_writes", "security.trust", "cli.skills", "history.run_index", "repository.git",
    "app.replay", "app.batch.folder", "content.compiled_templates",
    "providers.demo_model_file", "providers.embedded", "providers.hub", "providers.local_models",
    "providers.command_agent_process", "security.child_processes", "runner.check_command",
    "repository.work_tree_copy", "security.sandbox_child", "client_runs.records", "mcp_server.registration",
)  # fmt: skip
SERVING = ("mcp_server.server", "mcp_server.tasks", "mcp_server.tools")  # they alone need the extra `mcp`
HTTP_SERVERS = ("chat_server.endpoint", "web_view.server")  # imported by the commands that serve, and by nothing else
MOST = 25  # modules of a folder
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
        """ "cdo.formats.voice.AgentFormat" is "formats.voice", "cdo.__version__" nothing."""
        parts = name.split(".")[1:]
        for size in range(len(parts), 0, -1):
            if PACKAGE.joinpath(*parts[:size]).with_suffix(".py").is_file():
                return ".".join(parts[:size])
        return ""


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


MODULES = {
    module.name: module for module in map(read, sorted(PACKAGE.rglob("*.py"))) if "__init__" not in module.name
}
RANK = {folder: place for place, folders in enumerate(FOLDERS) for folder in folders}


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


def folder_of(name: str) -> str:
    return name.partition(".")[0]


def test_folders_import_one_way() -> None:
    wrong = [
        f"{name} imports {used}"
        for name, module in MODULES.items()
        for used in sorted(module.inside)
        if folder_of(used) != folder_of(name) and RANK[folder_of(used)] >= RANK[folder_of(name)]
    ]
    assert not wrong, "a folder imports only from those above it in FOLDERS"


def test_modules_import_one_way() -> None:
    """No module imports itself, however long the way; also not inside a function."""
    try:
        TopologicalSorter({name: module.inside - {name} for name, module in MODULES.items()}).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_no_folder_is_a_heap() -> None:
    sizes = {folder: len(list(folder.glob("*.py"))) - 1 for folder in {path.parent for path in PACKAGE.rglob("*.py")}}
    assert {folder.name: size for folder, size in sizes.items() if size > MOST} == {}


def test_class_names_are_unique() -> None:
    where: dict[str, list[str]] = {}
    for name, module in MODULES.items():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name.lstrip("_"), []).append(name)
    assert {name: places for name, places in where.items() if len(places) > 1} == {}


def test_classes_with_fields_are_structs() -> None:
    """A dataclass has a base or an option that Structs lack, or stands beside one; fields are of one kind."""
    wrong = []
    for name, module in MODULES.items():
        classes = [node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
        made = [node for node in classes if "dataclass" in " ".join(map(ast.unparse, node.decorator_list))]
        calls = [(owner, each) for owner in classes for each in ast.walk(owner) if isinstance(each, ast.Call)]
        fields = [(owner, each) for owner, each in calls if ast.unparse(each.func) == "field"]
        options = {option.arg for owner, each in fields if owner in made for option in each.keywords}
        needed = options & {"init", "repr", "compare"} or any(node.bases for node in made)
        mixed = {owner.name for owner, _ in fields if owner not in made and "dataclasses.field" in module.loaded}
        wrong += [name] if (made and not needed) or mixed else []
    assert not wrong


@pytest.mark.parametrize("folder", PURE)
def test_pure_modules_have_no_way_to_act(folder: str) -> None:
    for name, module in MODULES.items():
        if folder_of(name) == folder and name not in IMPURE:
            assert not {used.partition(".")[0] for used in module.loaded | module.later} & ACTING, name
            calls = [node.func for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
            called = {function.id for function in calls if isinstance(function, ast.Name)}
            assert not called & {"open", "print", "exec", "eval", "__import__", "globals", "breakpoint"}, name


def test_programs_do_not_know_who_runs_them() -> None:
    for name, module in MODULES.items():
        if folder_of(name) in ("programs", "cabal"):
            assert not {folder_of(used) for used in module.inside} & {"runner", "terminal", "app"}, name


def test_providers_hold_no_policy() -> None:
    for name, module in MODULES.items():
        if folder_of(name) == "providers":
            assert not {"formats.voice", "formats.final_answer"} & module.inside, name


def test_nothing_heavy_is_imported_at_module_level() -> None:
    for name, module in MODULES.items():
        if name in HTTP_SERVERS:
            continue
        assert not {used.partition(".")[0] for used in module.loaded} & set(HEAVY), name


@pytest.mark.wide
def test_importing_all_of_cdo_loads_nothing_heavy() -> None:
    names = [
        f"cdo.{name}"
        for name in MODULES
        if name not in (*SERVING, *HTTP_SERVERS) and not name.endswith(("__main__", "_server"))
    ]
    code = f"import sys, {', '.join(names)}\nprint(*sorted(set({(*HEAVY, 'mcp')!r}) & set(sys.modules)))"
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


def test_only_named_modules_write_files() -> None:
    wrong = [
        f"{name}, line {node.lineno}: {ast.unparse(node)}"
        for name in MODULES
        if name not in WRITERS
        for node in ast.walk(MODULES[name].tree)
        if isinstance(node, ast.Call) and writes(node)
    ]
    assert not wrong


def test_the_check_for_writing_sees_what_the_store_does() -> None:
    seen = {
        ast.unparse(node.func)
        for name in SESSION
        for node in ast.walk(MODULES[name].tree)
        if isinstance(node, ast.Call) and writes(node)
    }
    assert {"os.open", "os.rename", "os.write", "os.mkdir"} <= seen


# -- words -----------------------------------------------------------------------------------------


def test_every_folder_says_what_it_is_for() -> None:
    folders = [path for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE]
    assert [path for path in folders if not ast.get_docstring(ast.parse(path.read_text("utf-8")))] == []


def test_whatever_is_public_says_what_it_is() -> None:
    lacking = []
    for name, module in MODULES.items():
        body = module.tree.body
        lacking += [] if ast.get_docstring(module.tree) or not body else [name]
        lacking += [
            f"{name}: class {node.name}"
            for node in body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node)
        ]
        # One statement says itself.
        lacking += [
            f"{name}: {place}"
            for place, function, public in functions(module)
            if public
            and len(function.body) > 1
            and function.name not in INTERFACE
            and not ast.get_docstring(function)
        ]
    assert not lacking


def test_no_pattern_has_a_possessive_group() -> None:
    """Where one fails, Python 3.11 before 3.11.5 goes on from where it failed, and so matches something else."""
    group = re.compile(r"\)(?:[*+?]|\{\d*,?\d*\})\+")
    lines = ((path, line) for path in PACKAGE.rglob("*.py") for line in path.read_text("utf-8").splitlines())
    assert [(path.name, line) for path, line in lines if group.search(line)] == []
