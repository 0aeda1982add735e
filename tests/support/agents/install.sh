#!/bin/sh
# Installs the command-line agents that tests/real/test_command_agents_real.py runs against providers on loopback (1 GB).
# They go to $1, else where the tests look: ~/.cache/cdo-tests/agents. Needs npm.
set -eu
place=${1:-$HOME/.cache/cdo-tests/agents}
bin=$place/node_modules/.bin
if "$bin/codex" --version 2>/dev/null | grep -q '0\.169\.0$' && [ "$("$bin/opencode" --version 2>/dev/null)" = 1.18.33 ] \
    && "$bin/claude" --version 2>/dev/null | grep -q '^2\.1\.332 '; then
    echo "codex 0.169.0, opencode 1.18.33 and claude 2.1.332 are in $place already"
    exit 0
fi
mkdir -p "$place"
npm install --prefix "$place" --no-audit --no-fund --save-exact @openai/codex@0.169.0 opencode-ai@1.18.33 \
    @anthropic-ai/claude-code@2.1.332
"$bin/codex" --version
"$bin/opencode" --version
"$bin/claude" --version
