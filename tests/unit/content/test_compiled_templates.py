"""Compiled templates are kept for the next process, and only used where nobody else can have written them."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from pathlib import Path

import pytest
from jinja2 import Environment

from cdo.content import compiled_templates
from cdo.content.library import Library

NAME = "templates/common"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the compiled templates, not made yet."""
    monkeypatch.setenv("CDO_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / compiled_templates.FOLDER


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that are compiled from now on."""
    seen: list[str] = []
    original = Environment.compile

    def counted(self: Environment, source: str) -> object:
        seen.append(source)
        return original(self, source)

    monkeypatch.setattr(Environment, "compile", counted)
    return seen


def written(place: Path) -> Path:
    """The one file that was kept for `NAME`."""
    (file,) = place.iterdir()
    return file


def test_the_next_process_compiles_nothing(folder: Path, tmp_path: Path, compilations: list[str]) -> None:
    first = Library.at(tmp_path).template(NAME)
    assert len(compilations) == 1
    second = Library.at(tmp_path).template(NAME)
    assert len(compilations) == 1
    assert list(second.blocks) == list(first.blocks)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert written(folder).stat().st_mode & 0o777 == 0o600


def test_another_text_of_the_template_is_compiled_and_replaces_the_file(
    folder: Path, compilations: list[str]
) -> None:
    environment = Environment()
    for text in ("one", "two", "two"):
        code = compiled_templates.compiled(environment, NAME, text)
        template = environment.template_class.from_code(environment, code, {})
        assert template.render() == text
    assert compilations == ["one", "two"]
    assert written(folder)


def foreign_code(folder: Path) -> None:
    """Put code into the file that is not what the text compiles to."""
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:32] + marshal.dumps(compile("raise SystemExit('executed')", "x", "exec")))


def torn(folder: Path) -> None:
    """Leave the first half of the file."""
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def writable_file(folder: Path) -> None:
    """Let the group write to the file."""
    (file,) = folder.iterdir()
    file.chmod(0o660)


def writable_folder(folder: Path) -> None:
    """Let everybody write to the folder."""
    folder.chmod(0o777)


def linked_folder(folder: Path) -> None:
    """Put a link in place of the folder."""
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


def linked_file(folder: Path) -> None:
    """Put a link in place of the file."""
    (file,) = folder.iterdir()
    file.rename(folder.parent / "elsewhere")
    file.symlink_to(folder.parent / "elsewhere")


@pytest.mark.parametrize("change", [foreign_code, torn, writable_file, writable_folder, linked_folder, linked_file])
def test_what_somebody_else_may_have_written_is_compiled_again(
    folder: Path, compilations: list[str], change: Callable[[Path], None]
) -> None:
    environment = Environment()
    compiled_templates.compiled(environment, NAME, "text")
    change(folder)
    code = compiled_templates.compiled(environment, NAME, "text")
    assert environment.template_class.from_code(environment, code, {}).render() == "text"
    assert compilations == ["text", "text"]


def test_a_cache_that_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CDO_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert Library.at(tmp_path).template(NAME)
    assert len(compilations) == 1


def test_templates_of_people_are_not_kept(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDO_CONFIG_DIR", str(tmp_path / "config"))
    own = tmp_path / "config" / f"{NAME}.md"
    own.parent.mkdir(parents=True)
    own.write_text("---\npurpose: own\n---\nmine\n")
    assert Library.at(tmp_path).template(NAME).render() == "mine"
    assert not folder.exists()
