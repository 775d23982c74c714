#!/usr/bin/env bash
# What pip can't install: Java and Maven for the Kafka that a log may be, bubblewrap for local
# sandboxes, Chromium for tests of the live page. Arguments are COMMAND=PACKAGE; what lacks its command
# is installed as root on Debian; elsewhere this says what is missing and goes on, and what needs it
# fails.
set -euo pipefail

missing=()
for each in "$@"; do
    command -v "${each%%=*}" >/dev/null || missing+=("${each#*=}")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}"
else
    echo "missing: ${missing[*]} (Debian package names); install them for Kafka, local sandboxes and tests of the page" >&2
fi
