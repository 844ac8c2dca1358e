#!/bin/sh
# Install Prometheus with promtool, and Alertmanager, for the tests of alerts from Debian's packages;
# where that is impossible, the tests say so and are skipped.
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -q >/dev/null 2>&1 && apt-get install -y -q --no-install-recommends prometheus \
        prometheus-alertmanager >/dev/null 2>&1 && exit 0
fi
echo "no Prometheus, and it cannot be installed here: tests of alerts will be skipped" >&2
exit 0
