#!/bin/sh
# Build a real OpenTelemetry collector for tests/real/test_collector_real.py: one pinned version, with the parts that the
# test needs, built once with Go. CDO_TEST_COLLECTOR names another place for the binary, as it does for the tests.
set -eu
version=0.165.0
stable=1.71.0
collector=${CDO_TEST_COLLECTOR:-$HOME/.cache/cdo-tests/bin/otelcol}

if [ -x "$collector" ] && "$collector" --version 2>/dev/null </dev/null | grep -qwF "$version"; then
    echo "$collector is the collector $version already"
    exit 0
fi
command -v go >/dev/null || { echo "Go is needed to build the collector: https://go.dev/dl" >&2; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
folder=$(dirname "$collector")
mkdir -p "$folder"
work=$(mktemp -d "$folder/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp "$here/main.go" "$work"
cd "$work"
{
    printf 'module install\n\ngo 1.25.0\n\nrequire (\n'
    for module in component confmap confmap/provider/yamlprovider exporter receiver; do
        printf '\tgo.opentelemetry.io/collector/%s v%s\n' "$module" "$stable"
    done
    for module in exporter/debugexporter otelcol receiver/otlpreceiver service; do
        printf '\tgo.opentelemetry.io/collector/%s v%s\n' "$module" "$version"
    done
    printf ')\n'
} >go.mod
GOFLAGS="-buildvcs=false -mod=mod" nice go build -ldflags "-X main.version=$version" -o "$work/otelcol" .
mv "$work/otelcol" "$collector"
echo "installed the collector $version as $collector"
