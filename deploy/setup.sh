#!/usr/bin/env bash
# What pip can't install: Java and Maven for the Kafka that tests run on, bubblewrap for local
# sandboxes, and Chromium for tests of the live page. As root on Debian they are installed; elsewhere
# this says what is missing and goes on, and what needs it fails.
set -euo pipefail

missing=()
command -v java >/dev/null || missing+=(openjdk-17-jre-headless)
command -v mvn >/dev/null || missing+=(maven)
command -v bwrap >/dev/null || missing+=(bubblewrap)
command -v chromium >/dev/null || missing+=(chromium)
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}"
else
    echo "missing: ${missing[*]} (Debian package names); install them for Kafka, local sandboxes and tests of the page" >&2
fi
