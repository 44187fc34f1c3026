#!/usr/bin/env bash
# Every check of the project, each under its heading; all of them run, and one failure makes the whole run fail.
# usage: bash tests/run.sh [PYTEST ARGUMENT...]      with arguments, only pytest runs
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

venv=$(bash deploy/venv.sh dev-cpu)
export PATH="$venv/bin:$PATH"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
# The tests share few cores with vLLM's engine process: threads that spin while idle would stop it.
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1
readonly MAX_LINES=600
passed=() failed=()

# part NAME COMMAND...: a missing command fails its part like any other error.
part() {
  local name=$1
  shift
  printf '\n== %s ==\n' "$name"
  if "$@"; then passed+=("$name"); else failed+=("$name"); fi
}

# The playground's tests drive the system's own browser. A fresh machine gets it here if it lets us; where it does not,
# those tests say what is missing.
ensure_chromium() {
  local name
  for name in chromium chromium-browser google-chrome; do
    ! command -v "$name" >/dev/null || return 0
  done
  [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 0
  printf '== installing Chromium for the tests of the playground ==\n'
  { apt-get -qq update \
    && DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends \
      chromium fonts-dejavu-core; } >/dev/null || printf 'Chromium could not be installed\n' >&2
}

spelling() { git ls-files -z -- . ':!deploy/locks' | xargs -0 codespell; }

file_lengths() {
  local long
  long=$(git ls-files -z -- '*.py' | xargs -0 awk -v max="$MAX_LINES" \
    'FNR == max + 1 { print FILENAME " has more than " max " lines" }') || return
  [[ -z $long ]] || { printf '%s\n' "$long"; return 1; }
  echo "no tracked Python file has more than $MAX_LINES lines"
}

# Training and benchmarks read local folders and speak of tokens: what bandit takes for hub downloads and passwords.
security() {
  bandit --quiet --configfile pyproject.toml --recursive service deploy \
    && bandit --quiet --configfile pyproject.toml --skip B101,B105,B106,B311,B404,B603,B607,B615 --recursive training loadtest \
    && echo "bandit found nothing"
}

check_sources() {
  part "ruff check" ruff check
  part "ruff format" ruff format --check
  part "spelling" spelling
  part "types" mypy
  part "import rules" lint-imports
  part "file lengths" file_lengths
  part "security" security
  part "Dockerfile" hadolint Dockerfile
  part "locks" bash deploy/lock.sh --check
  printf '\n== checks before the tests: %d passed, %d failed%s ==\n\n' \
    "${#passed[@]}" "${#failed[@]}" "${failed[*]:+ (${failed[*]})}"
}

(($# > 0)) || check_sources
ensure_chromium
code=0
python -m pytest -p no:cacheprovider "$@" || code=$?
((${#failed[@]} == 0 && code == 0)) || exit 1
