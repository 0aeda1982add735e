"""Checks the paths that the chair gives to products: which files of a mission they are. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cdo.cabal.model.entities import Kind, Product, Status
from cdo.cabal.model.state import MissionState
from cdo.core import file_paths
from cdo.formats.strict_yaml import shown


def misplaced(state: MissionState, id: str, kind: Kind, path: str, *, meta: bool) -> Iterator[str]:
    """Yield why the product `id` of this kind cannot be the file, or the folder of files, at `path`, as clauses."""
    if not path:
        return
    if kind is not Kind.CONTENT or meta:
        yield f"a path is for Content of operatives only; {'chair-1 owns it' if meta else f'its type is {kind}'}"
    elif why := file_paths.problem(path, folder=True):
        yield f"`{shown(path)}` cannot be its path: {why}"
    else:
        taken = {
            item.path: item.id
            for item in state.products.values()
            if item.path and item.id != id and item.status is not Status.ARCHIVED
        }
        if other := file_paths.collision(path, taken):
            yield f"its path {path} collides with {other} of {taken[other]}; choose another one"


def reshaped(product: Product, path: str) -> Iterator[str]:
    """Yield why a product cannot become a folder of files, or stop being one: its versions have another form."""
    if product.versions and file_paths.is_folder(product.path) is not file_paths.is_folder(path):
        yield "it has versions, and those of a folder have another form than those of a file; ADD another Content"


def told(path: str) -> str:
    """Return what a product with this path is, in words."""
    kind = "the folder" if file_paths.is_folder(path) else "the file"
    return f"{kind} {path}" if path else "a document without a path"
