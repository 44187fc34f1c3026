# What the scripts of deploy/ begin with: one-line failures, the right Python, where wheels lie. Sourced, never run.
# shellcheck shell=bash

# fail CODE MESSAGE: one clear line, and out.
fail() {
  printf '%s: %s\n' "${0##*/}" "$2" >&2
  exit "$1"
}

say() { printf '%s\n' "$*" >&2; }

# The Python that makes the venvs. The locks hold wheels for one version, so an explicit 3.11 comes first.
find_python() {
  local candidate
  for candidate in ${GROUNDREC_PYTHON:+"$GROUNDREC_PYTHON"} python3.11 python3; do
    if "$candidate" -c '' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  fail 2 "no Python found; install CPython 3.11 with its venv module, or name one in GROUNDREC_PYTHON"
}

check_python() {
  local version
  version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  case $version in
    3.11) ;;
    3.[0-9] | 3.10 | 2.*) fail 2 "Python $version is too old; groundrec needs 3.11 (GROUNDREC_PYTHON names another one)" ;;
    *) fail 2 "the locks are for Python 3.11, this is $version (GROUNDREC_PYTHON names another one)" ;;
  esac
  "$1" -c 'import ensurepip, venv' 2>/dev/null \
    || fail 2 "this Python has no venv module; install it (Debian and Ubuntu: python3-venv) and try again"
}

# uv reads none of pip's configuration, so what decides where wheels lie is handed over: prints one argument a line.
uv_index_arguments() {
  local python=$1 word
  local links=${PIP_FIND_LINKS-} extra=${PIP_EXTRA_INDEX_URL-} main=${PIP_INDEX_URL-}
  [[ -n $links ]] || links=$("$python" -m pip config get global.find-links 2>/dev/null || true)
  [[ -n $main ]] || main=$("$python" -m pip config get global.index-url 2>/dev/null || true)
  for word in $links; do printf '%s\n' --find-links "$word"; done
  for word in $main; do printf '%s\n' --index-url "$word"; done
  for word in $extra; do printf '%s\n' --extra-index-url "$word"; done
  [[ -z $extra ]] || printf '%s\n' --index-strategy unsafe-best-match
}
