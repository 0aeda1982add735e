#!/bin/sh
# Installs the renderers of Markdown through which tests/real/test_markdown_renderers.py sends what a session writes (15 MB).
# They go to $1, else where the test looks: ~/.cache/cdo-tests/renderers. Needs npm, and Python with pip.
set -eu
place=${1:-$HOME/.cache/cdo-tests/renderers}
wanted="markdown-it@15.0.3 marked@18.2.1 micromark@4.0.3 micromark-extension-gfm@3.0.0 cmarkgfm==2025.10.22 markdown==3.11.3"
if [ "$(cat "$place/installed" 2>/dev/null)" = "$wanted" ]; then
    echo "the renderers are in $place already"
    exit 0
fi
mkdir -p "$place"
npm install --prefix "$place" --no-audit --no-fund --save-exact \
    markdown-it@15.0.3 marked@18.2.1 micromark@4.0.3 micromark-extension-gfm@3.0.0
"${PYTHON:-python3}" -m pip install --quiet --upgrade --target "$place/python" cmarkgfm==2025.10.22 markdown==3.11.3
echo "$wanted" > "$place/installed"
