#!/bin/sh
# Installs the command-line agents that tests/test_command_real.py runs against providers on loopback (750 MB).
# They go to $1, else where the tests look: ~/.cache/cdo-tests/agents. Needs npm.
set -eu
place=${1:-$HOME/.cache/cdo-tests/agents}
mkdir -p "$place"
npm install --prefix "$place" --no-audit --no-fund --save-exact @openai/codex@0.169.0 opencode-ai@1.18.33
"$place/node_modules/.bin/codex" --version
"$place/node_modules/.bin/opencode" --version
