#!/bin/sh
# Compares boosting with each release in xgboost_releases.txt, in an environment of its own. With the
# newest one, the tests of boosting, the core, saved models and all protocols run, too.
# usage: compare_releases.sh BIN JOBS [RELEASE]; BIN has the programs of the project's environment. RELEASE is
# one of the file, or "newest"; without it, all are compared.
set -eu
bin=$1 jobs=$2 only=${3:-}
marked="not chaos and not dask and not exact and not flower and not liars and not load and not soak"

# Where pyenv has installed the interpreter in use, the others are beside it.
beside=$("$bin/python" -c 'import sys; print(sys.base_prefix)')/..

find_python() { # prints the first interpreter with one of these versions
  for version; do
    for python in "python$version" "$("$bin/uv" python find --no-project "$version" 2>/dev/null)" \
      "$beside/$version".*/bin/python; do
      is_it="import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')"
      if [ -n "$python" ] && "$python" -c "$is_it" 2>/dev/null; then
        echo "$python"
        return
      fi
    done
  done
  echo "XGBoost $release needs one of these versions of Python, and none is installed: $*" >&2
  return 1
}

mkdir -p _build/exact
# The versions of all packages but XGBoost are those of the lock.
grep -v '^xgboost==' environment.lock >_build/exact/pins.txt
grep -v '^#' tests/boosting/xgboost_releases.txt >_build/exact/releases.txt
newest=$(tail -n 1 _build/exact/releases.txt | cut -d ' ' -f 1)
[ "$only" != newest ] || only=$newest
if [ -n "$only" ] && ! cut -d ' ' -f 1 _build/exact/releases.txt | grep -qxF "$only"; then
  echo "RELEASE must be newest or in tests/boosting/xgboost_releases.txt, got $only" >&2
  exit 1
fi
while read -r release versions <&3; do
  [ -z "$only" ] || [ "$only" = "$release" ] || continue
  # shellcheck disable=SC2086 # the versions are words
  python=$(find_python $versions)
  environment=_build/exact/$release
  echo "XGBoost $release on $("$python" -V)"
  "$bin/uv" venv --quiet --clear --python "$python" "$environment"
  VIRTUAL_ENV=$environment "$bin/uv" pip install --quiet --constraint _build/exact/pins.txt \
    --editable ".[http,test]" "xgboost==$release"
  export NUMBA_CACHE_DIR="$PWD/$environment/numba"
  "$environment/bin/python" -m pytest -m exact --numprocesses "$jobs" tests/boosting
  tests="tests/boosting/test_rules.py tests/boosting/test_export.py tests/boosting/test_names_and_labels.py"
  if [ "$release" = "$newest" ]; then # all that depends on Python, NumPy or XGBoost
    tests="tests/boosting tests/core tests/sites/test_models.py tests/test_conformance.py"
  fi
  # shellcheck disable=SC2086 # the tests are words
  "$environment/bin/python" -m pytest -m "$marked" --numprocesses "$jobs" --dist loadfile $tests
done 3<_build/exact/releases.txt
