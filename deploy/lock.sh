#!/usr/bin/env bash
# Resolves pyproject.toml into the hashed locks of deploy/locks/ (with --check: only says whether they still fit).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/prelude.sh
source "$root/deploy/prelude.sh"

readonly UV_VERSION=0.13.9
declare -rA EXTRAS=(
  [serve-cpu]="cpu otel"
  [serve-gpu]="gpu otel"
  [demo-cpu]="cpu train demo otel"
  [dev-cpu]="cpu train demo otel dev"
)

usage() {
  cat <<'TEXT'
usage: deploy/lock.sh [--check] [LOCKNAME...]

  LOCKNAME  serve-cpu, serve-gpu, demo-cpu or dev-cpu; all of them when none is named
  --check   resolve nothing; exit 1 when a lock does not fit pyproject.toml or was edited
TEXT
}

check=no names=()
while (($#)); do
  case $1 in
    --check) check=yes ;;
    --help | -h) usage; exit 0 ;;
    -*) fail 2 "unknown option $1 (see --help)" ;;
    *) [[ -n ${EXTRAS[$1]-} ]] || fail 2 "no lock is called $1 (see --help)"; names+=("$1") ;;
  esac
  shift
done
((${#names[@]})) || names=(serve-cpu serve-gpu demo-cpu dev-cpu)

python=$(find_python)
check_python "$python"
if [[ $check == yes ]]; then
  paths=("${names[@]/#/$root/deploy/locks/}")
  paths=("${paths[@]/%/.txt}")
  "$python" "$root/deploy/lockfile.py" check "$root/pyproject.toml" "${paths[@]}" && exit 0
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION" 2>"$work/pip.log" \
  || { tail -n 5 "$work/pip.log" >&2; fail 2 "uv could not be installed"; }
"$python" "$root/deploy/lockfile.py" build "$root/pyproject.toml" >"$work/build.in"

# The CUDA build of torch comes from the index alone: a directory of CPU wheels would win over it.
index_arguments() { [[ $1 == *gpu* ]] || uv_index_arguments "$python"; }

resolve() {
  local name=$1 extra arguments
  mapfile -t arguments < <(index_arguments "$name")
  for extra in ${EXTRAS[$name]}; do arguments+=(--extra "$extra"); done
  "$work/venv/bin/uv" pip compile "$root/pyproject.toml" "$work/build.in" "${arguments[@]}" \
    --python "$python" --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet -o "$work/$name.txt" \
    || return
  "$python" "$root/deploy/lockfile.py" stamp "$root/pyproject.toml" "$work/$name.txt" "${EXTRAS[$name]}" || return
  mv "$work/$name.txt" "$root/deploy/locks/$name.txt" || return
  say "deploy/locks/$name.txt: $(grep -c '==' "$root/deploy/locks/$name.txt") packages"
}

mkdir -p "$root/deploy/locks"
for name in "${names[@]}"; do
  resolve "$name" || fail 2 "$name could not be resolved; if it is torch's CPU build that was not found, set PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS to where PyTorch's CPU wheels lie"
done
