#!/bin/sh
# Installs Chromium, in which tests/real/test_report_screens.py looks at pages, with apt where no browser is there yet
# (Debian, Ubuntu and their like; run it as root). CDO_TEST_BROWSER names another one.
set -eu
for name in "${CDO_TEST_BROWSER:-chromium}" chromium-browser google-chrome google-chrome-stable chrome; do
    if command -v "$name" >/dev/null 2>&1; then
        "$name" --version
        exit 0
    fi
done
apt-get update
apt-get install --yes --no-install-recommends chromium fonts-dejavu-core
chromium --version
