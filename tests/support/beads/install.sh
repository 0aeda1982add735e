#!/bin/sh
# Install the real `bd` (beads) for tests/real/test_beads_real.py: one pinned version, built once with Go and a C
# compiler. CDO_TEST_BD names another place for the binary, as it does for the tests.
set -eu
version=1.3.0
bd=${CDO_TEST_BD:-$HOME/.cache/cdo-tests/bin/bd}

if [ -x "$bd" ] && "$bd" version 2>/dev/null </dev/null | grep -qwF "$version"; then
    echo "$bd is bd $version already"
    exit 0
fi
command -v go >/dev/null || { echo "Go is needed to build bd: https://go.dev/dl" >&2; exit 1; }
folder=$(dirname "$bd")
mkdir -p "$folder"
work=$(mktemp -d "$folder/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
# A module of our own, not `go install`: that also asks for the list of all versions, which not every proxy has.
export CGO_ENABLED=1 GOFLAGS="-tags=gms_pure_go -buildvcs=false -mod=mod"
cd "$work"
printf 'module install\n\ngo 1.26.5\n\nrequire github.com/steveyegge/beads v%s\n' "$version" >go.mod
nice go build -o "$work/bd" github.com/steveyegge/beads/cmd/bd
mv "$work/bd" "$bd"
echo "installed bd $version as $bd"
