#!/bin/sh
# Install Chromium for the browser tests from Debian's packages; where that is impossible, the tests
# say so and are skipped.
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -q >/dev/null 2>&1 && apt-get install -y -q --no-install-recommends chromium \
        fonts-dejavu-core >/dev/null 2>&1 && exit 0
fi
echo "no Chromium, and it cannot be installed here: the browser test will be skipped" >&2
exit 0
