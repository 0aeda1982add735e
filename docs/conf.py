"""Configures the documentation: `python -m sphinx -W --keep-going -b dirhtml docs docs/_build/html`.

`-W` makes warnings errors: a link to a page or heading that does not exist ends the build. `-b man` makes man pages.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(Path(__file__).parent / "_extensions"), str(ROOT)]

from cdo import __version__  # noqa: E402 (the path is set above)

project = "cdo"
release = version = __version__
copyright = "the authors of cdo"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click", "sphinx_copybutton", "cdo_reference"]
exclude_patterns = ["_build", "_extensions"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures that no page describes
autodoc_typehints_format = "short"
smartquotes = False  # or -- in an option becomes a dash
default_role = "code"  # `text` of help texts

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "cdo"
html_static_path = ["_static"]
html_css_files = ["literals.css"]
html_theme_options = {"navigation_with_keys": True}

man_pages = [("reference/commands", "cdo", "turn one question into a decision worth reading", "", 1)]
