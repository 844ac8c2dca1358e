#!/bin/sh
# usage: test-with-versions.sh PYTHON JAX [OPTION OF PYTEST ...]
# Run the tests that use JAX with this Python and this JAX, without PyTorch, in an environment below
# build/.
set -eu
python=$1
jax=$2
shift 2
environment=build/matrix/$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')-jax$jax
echo "== $("$python" --version), jax $jax"
"$python" -m venv "$environment"
grep -vE '^(jax|jaxlib|torch)==' constraints.txt > "$environment/constraints.txt"
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check \
    -c "$environment/constraints.txt" "jax==$jax" "jaxlib==$jax" -e '.[jax,test]'
"$environment/bin/python" -m pytest -q -p no:cacheprovider "$@" \
    tests/measure/test_jax.py tests/measure/test_process.py tests/measure/test_cache.py \
    tests/trace/record/test_event_names.py tests/trace/test_session.py tests/trace/record/test_recording_processes.py \
    tests/trace/read/test_recompiles.py tests/trace/test_pytest_plugin.py \
    tests/histfactory/test_one_executable.py tests/histfactory/test_fit.py \
    tests/histfactory/test_likelihood.py tests/histfactory/test_inference.py tests/losses/test_objectives.py tests/warmstart
