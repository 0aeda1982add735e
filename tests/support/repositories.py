"""Real git repositories of every kind for tests, friendly and hostile, and what of one must stay as it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

KINDS = ("plain", "bare", "worktree", "submodule", "detached", "empty", "sha256")
HOOKS = (
    "reference-transaction", "post-commit", "pre-commit", "post-index-change", "fsmonitor-watchman", "pre-auto-gc",
    "post-checkout", "prepare-commit-msg", "commit-msg", "post-rewrite", "update", "pre-receive", "post-update",
)  # fmt: skip


def git(folder: Path, *args: str, check: bool = True, data: bytes = b"") -> str:
    """What `git args` prints in a folder, as a person with a name of their own runs it."""
    env = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "p", "GIT_AUTHOR_EMAIL": "p@localhost", "GIT_COMMITTER_NAME": "p",
        "GIT_COMMITTER_EMAIL": "p@localhost", "GIT_ALLOW_PROTOCOL": "file",
    }  # fmt: skip
    done = subprocess.run(["git", *args], cwd=folder, env=env, input=data, capture_output=True, check=False)
    assert not check or done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("utf-8", "surrogateescape").strip()


def repository(folder: Path, kind: str = "plain") -> Path:
    """Make a repository of a kind at, or around, an empty folder; returns where its refs and configuration are."""
    aside = folder.parent / f"{folder.name}-aside"
    if kind == "bare":
        git(folder, "init", "-q", "--bare", "-b", "main")
        return folder
    if kind in ("worktree", "submodule"):
        aside.mkdir()
        _filled(aside)
        folder.rmdir()
        if kind == "worktree":
            git(aside, "worktree", "add", "-q", "-b", "side", str(folder))
            return aside / ".git"
        outer = folder.parent / f"{folder.name}-outer"
        outer.mkdir()
        _filled(outer)
        git(outer, "submodule", "--quiet", "add", str(aside), "inner")
        folder.symlink_to(outer / "inner")
        return outer / ".git" / "modules" / "inner"
    git(folder, "init", "-q", "-b", "main", *(["--object-format=sha256"] if kind == "sha256" else []))
    if kind != "empty":
        _filled(folder)
    if kind == "detached":
        git(folder, "checkout", "-q", "--detach")
    return folder / ".git"


def _filled(folder: Path) -> None:
    if not (folder / ".git").exists():
        git(folder, "init", "-q", "-b", "main")
    (folder / ".gitignore").write_text("tmp/\n")
    (folder / "a.txt").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    (folder / "b.txt").write_text("not committed\n")


def hostile(folder: Path, directory: Path, canaries: Path) -> None:
    """Have a repository name a program wherever git lets it; each that is run leaves a file in `canaries`."""
    canaries.mkdir()

    def program(name: str) -> str:
        path = directory / f"evil-{name}"
        path.write_text(f"#!/bin/sh\necho run >> '{canaries}/{name}'\ncat >/dev/null 2>&1\nexit 0\n")
        path.chmod(0o755)
        return str(path)

    evil = directory / "evil-hooks"
    for hooks in (directory / "hooks", evil):
        hooks.mkdir(exist_ok=True)
        for name in HOOKS:
            (hooks / name).symlink_to(program(f"hook-{name}"))
    (directory / "info").mkdir(exist_ok=True)
    (directory / "info" / "attributes").write_text("* filter=evil diff=evil merge=evil\n")
    (directory / "more").write_text(f"[core]\n\tfsmonitor = {program('included-fsmonitor')}\n")
    programs = (
        "core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "core.askPass", "core.gitProxy",
        "core.alternateRefsCommand", "filter.evil.clean", "filter.evil.smudge", "filter.evil.process",
        "diff.evil.textconv", "diff.evil.command", "diff.external", "merge.evil.driver", "gpg.program",
        "gpg.ssh.program", "gpg.ssh.defaultKeyCommand", "sequence.editor", "pager.log", "pager.for-each-ref",
        "uploadpack.packObjectsHook", "trailer.evil.cmd", "trailer.evil.command", "remote.evil.uploadpack",
        "remote.evil.vcs", "credential.helper",
    )  # fmt: skip
    settings = {name: program(name) for name in programs}
    shout = f"!echo run >> '{canaries}/alias'"
    settings |= {f"alias.{name}": shout for name in ("fast-import", "log", "ls-tree", "cat-file", "rev-parse")}
    settings |= {
        "core.hooksPath": str(evil), "commit.gpgSign": "true", "tag.gpgSign": "true", "gpg.format": "ssh",
        "user.signingKey": "key::none", "log.showSignature": "true", "gc.auto": "1", "gc.autoPackLimit": "1",
        "maintenance.auto": "true", "fastimport.unpackLimit": "1", "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "evil", "remote.evil.promisor": "true", "include.path": str(directory / "more"),
        "remote.evil.url": f"ext::{program('ext')} x", "protocol.ext.allow": "always", "protocol.allow": "always",
        "trailer.separators": "=", "i18n.commitEncoding": "UTF-16", "transfer.unpackLimit": "1",
    }  # fmt: skip
    config = directory / "config"
    for key, value in settings.items():
        subprocess.run(["git", "config", "-f", str(config), key, value], check=True, cwd=folder)


def state(folder: Path, directory: Path) -> dict[str, bytes]:
    """Every byte of a repository and its work tree that a run leaves alone: all but objects and cdo's refs."""
    found: dict[str, bytes] = {}
    for root in dict.fromkeys((folder.resolve(), directory.resolve())):
        for path in sorted(root.rglob("*")):
            name = f"{root.name}/{path.relative_to(root)}"
            skipped = ("/tmp/", "/objects/", "/refs/cdo", "/canaries")
            if path.is_file() and not any(part in f"{name}/" for part in skipped):
                found[name] = path.read_bytes()
    return found


def subjects(folder: Path, branch: str = "cdo/a") -> list[str]:
    """The subjects of a branch's commits, oldest first."""
    return git(folder, "log", "--reverse", "--format=%s", branch, "--").splitlines()


def turns(folder: Path, branch: str = "cdo/a") -> list[str]:
    """What each commit of a branch is, oldest first: "begin", "turn 1" …"""
    wanted = "%(trailers:key=Cdo-Event,valueonly,separator=) %(trailers:key=Cdo-Turn,valueonly,separator=)"
    lines = git(folder, "log", "--reverse", f"--format={wanted}", branch, "--").splitlines()
    return [line if line.startswith("turn") else line.split()[0] for line in lines]
