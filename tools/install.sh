#!/bin/sh
# usage: install.sh PYTHON REQUIREMENT
# Install this checkout, editable, with the extras of REQUIREMENT, at the versions of constraints.txt.
#
# Uses uv, which takes a fifth of pip's time, with pip's configured indexes; or pip, if uv cannot be
# installed or fails. Bytecode is left to the first import of each module: most of the 18,000 are
# never imported.
set -u
python=$1
requirement=$2
pip() { "$python" -m pip --disable-pip-version-check "$@"; }

configuration=$(pip config list)
# From the environment (listed first), else from pip's files; list values are separated by blanks.
setting() {
    echo "$configuration" | sed -nE "s/^(:env:|global|install)\.$1='(.*)'\$/\2/p" |
        sed -n '1{s/\\n/ /g;s/^ *//;p;}'
}

with_uv() (
    index=$(setting index-url) certificates=$(setting cert) places=$(setting find-links)
    [ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
    [ -z "$certificates" ] || export SSL_CERT_FILE="$certificates"
    export UV_INDEX="$(setting extra-index-url)" UV_INSECURE_HOST="$(setting trusted-host)"
    # Like pip: the best version from all indexes, not from the first that has any.
    "$(dirname "$python")/uv" pip install --quiet --python "$python" \
        --index-strategy unsafe-best-match ${places:+$(printf -- '--find-links %s ' $places)} \
        -c constraints.txt -e "$requirement"
)

pip install --quiet -c constraints.txt uv && with_uv && exit
echo "uv cannot be used here: pip installs, which takes longer" >&2
pip install --quiet --no-compile -c constraints.txt -e "$requirement"
