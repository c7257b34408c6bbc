#!/bin/sh
# Compares boosting with each release in xgboost_releases.txt, in an environment of its own.
# usage: compare_releases.sh BIN JOBS; BIN has the programs of the project's environment.
set -eu
bin=$1 jobs=$2

find_python() { # prints the first interpreter with one of these versions
  for version; do
    for python in "python$version" "$("$bin/uv" python find --no-project "$version" 2>/dev/null)" \
      "$HOME/.pyenv/versions/$version".*/bin/python; do
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
sed -n 's/ *\\$//; /^[a-z0-9]/p' requirements.lock | grep -v '^xgboost==' >_build/exact/pins.txt
grep -v '^#' tests/boosting/xgboost_releases.txt >_build/exact/releases.txt
while read -r release versions <&3; do
  # shellcheck disable=SC2086 # the versions are words
  python=$(find_python $versions)
  environment=_build/exact/$release
  echo "XGBoost $release on $("$python" -V)"
  "$bin/uv" venv --quiet --clear --python "$python" "$environment"
  VIRTUAL_ENV=$environment "$bin/uv" pip install --quiet --constraint _build/exact/pins.txt \
    --editable ".[http,privacy]" "xgboost==$release" pytest pytest-xdist hypothesis
  export NUMBA_CACHE_DIR="$PWD/$environment/numba"
  "$environment/bin/python" -m pytest -m exact --numprocesses "$jobs" tests/boosting
  "$environment/bin/python" -m pytest --numprocesses "$jobs" tests/boosting/test_rules.py \
    tests/boosting/test_export.py tests/boosting/test_names_and_labels.py
done 3<_build/exact/releases.txt
