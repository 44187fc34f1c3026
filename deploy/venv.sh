#!/usr/bin/env bash
# Makes, or finds again, the virtual environment of one lock; its path is the only line on stdout.
#
# It lies outside the clone and is named after everything that decides its content, so clones share it and a changed
# lock never meets an old environment. `.complete` is written last: an interrupted build is thrown away by the next run.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/prelude.sh
source "$root/deploy/prelude.sh"

readonly UV_VERSION=0.13.9 FREE_GIB=6

usage() {
  cat <<'TEXT'
usage: deploy/venv.sh LOCKNAME

  LOCKNAME  serve-cpu, serve-gpu, demo-cpu or dev-cpu (the files of deploy/locks/)

Environment: GROUNDREC_PYTHON names the Python to use; XDG_CACHE_HOME moves the cache;
PIP_FIND_LINKS, PIP_INDEX_URL and PIP_EXTRA_INDEX_URL say where wheels lie.
TEXT
}

case ${1-} in
  --help | -h) usage; exit 0 ;;
  -*) fail 2 "unknown option $1 (see --help)" ;;
esac
(($# == 1)) || fail 2 "expected one LOCKNAME (see --help)"
name=$1
lock="$root/deploy/locks/$name.txt"
[[ $name != */* && -f $lock ]] || fail 2 "no lock is called $name (see --help)"

python=$(find_python)
check_python "$python"
command -v flock >/dev/null || fail 2 "the flock command is missing (package util-linux)"

key=$(cat "$root/pyproject.toml" "$lock" | sha256sum | cut -c1-12)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/groundrec"
venv="$cache/venv-$name-$key"
log="$cache/venv-$name-$key.log"
mkdir -p "$cache" 2>/dev/null && [[ -w $cache ]] || fail 2 "$cache cannot be written (XDG_CACHE_HOME moves it)"

install_failed() {
  tail -n 8 "$log" >&2
  if grep -qE 'no version of torch==|torch was not found' "$log"; then
    fail 2 "PyTorch's CPU build was not found: set PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS to where PyTorch's CPU wheels lie (log: $log)"
  fi
  fail 2 "$1 failed; the whole log: $log"
}

check_disk() {
  local free
  free=$(df -Pk "$cache" | awk 'NR == 2 { print int($4 / 1048576) }')
  ((free >= FREE_GIB)) || fail 2 "$free GiB free in $cache, $FREE_GIB are needed (XDG_CACHE_HOME moves the cache)"
}

build_venv() {
  local arguments
  check_disk
  rm -rf "$venv"
  say "Making the environment of deploy/locks/$name.txt (some minutes the first time)"
  "$python" -m venv "$venv" >"$log" 2>&1 || install_failed "making the virtual environment"
  say "  uv"
  "$venv/bin/python" -m pip install --disable-pip-version-check "uv==$UV_VERSION" >>"$log" 2>&1 \
    || install_failed "installing uv"
  mapfile -t arguments < <([[ $name == *gpu* ]] || uv_index_arguments "$python")
  say "  $(grep -c '==' "$lock") packages"
  "$venv/bin/uv" pip install --python "$venv/bin/python" --no-deps --require-hashes "${arguments[@]}" -r "$lock" \
    >>"$log" 2>&1 || install_failed "installing the packages"
}

# The environment serves the clone that asked last; the callers put their own root first on PYTHONPATH besides.
link_project() {
  [[ $(cat "$venv/.project" 2>/dev/null) != "$root" ]] || return 0
  say "  the project itself"
  "$venv/bin/uv" pip install --python "$venv/bin/python" --no-deps --no-build-isolation --no-index -e "$root" \
    >>"$log" 2>&1 || install_failed "installing the project"
  printf '%s\n' "$root" >"$venv/.project"
}

exec 9>"$venv.lock"
flock -n 9 || { say "Waiting for another run that makes the same environment"; flock 9; }
[[ -f $venv/.complete ]] || build_venv
link_project
touch "$venv/.complete"
printf '%s\n' "$venv"
