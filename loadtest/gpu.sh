#!/usr/bin/env bash
# The engine benchmark on a machine with a CUDA GPU, at the shapes others published: installs, checks, measures.
#
#   nvidia    Qwen3-1.7B's shape, prompts of 1000 and 5000 tokens, beam 256, 3 levels (sid-gr-inference: 17.6 ms on H100)
#   flashrec  the same shape, prompts of 303 tokens, beam 50, 3 levels (FlashRec: 219.5 requests a second on RTX 5090)
#
# A second call goes on where the first ended. Times are wall times: a GPU's work is no process's CPU time.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/prelude.sh
source "$root/deploy/prelude.sh"

readonly GPU_GIB=24
shapes=nvidia,flashrec work="$root/runs/bench-gpu" results="$root/loadtest/results" kv_gib=8 minutes="" dry_run=no
modes=eager,compiled

usage() {
  cat <<'TEXT'
usage: bash loadtest/gpu.sh [--shapes LIST] [--modes LIST] [--minutes N] [--kv-gib N] [--work DIR] [--results DIR] [--dry-run]

  --shapes LIST  nvidia, flashrec or both, comma-separated (default both)
  --modes LIST   eager, compiled or both (default both)
  --minutes N    begin no new part after N minutes; the next call goes on
  --kv-gib N     KV cache of each vLLM engine, GiB (default 8)
  --work DIR     checkpoints, logs and finished parts (default runs/bench-gpu)
  --results DIR  where tables and JSON go (default loadtest/results)
  --dry-run      print what would be run, run nothing
TEXT
}

need_value() {
  if (($# < 2)) || [[ -z $2 ]]; then fail 2 "$1 needs a value (see --help)"; fi
}

# check_list FLAG VALUE KNOWN...: every comma-separated word is known.
check_list() {
  local flag=$1 word known
  local -a words
  IFS=, read -ra words <<<"$2"
  shift 2
  ((${#words[@]})) || fail 2 "$flag needs a value (see --help)"
  for word in "${words[@]}"; do
    for known in "$@"; do
      [[ $word == "$known" ]] && continue 2
    done
    fail 2 "$flag: not one of $*: $word"
  done
}

while (($#)); do
  case $1 in
    --shapes) need_value "$@"; shapes=$2; shift ;;
    --modes) need_value "$@"; modes=$2; shift ;;
    --minutes) need_value "$@"; minutes=$2; shift ;;
    --kv-gib) need_value "$@"; kv_gib=$2; shift ;;
    --work) need_value "$@"; work=$2; shift ;;
    --results) need_value "$@"; results=$2; shift ;;
    --dry-run) dry_run=yes ;;
    --help | -h) usage; exit 0 ;;
    *) fail 2 "unknown option $1 (see --help)" ;;
  esac
  shift
done
check_list --shapes "$shapes" nvidia flashrec
check_list --modes "$modes" eager compiled
[[ $kv_gib =~ ^[1-9][0-9]*$ ]] || fail 2 "--kv-gib takes a whole number, not $kv_gib"
[[ -z $minutes || $minutes =~ ^[1-9][0-9]*$ ]] || fail 2 "--minutes takes a whole number, not $minutes"

# Runs a command, or prints it, quoted, when nothing is to be run.
run() {
  if [[ $dry_run == yes ]]; then
    printf '%q ' "$@"
    printf '\n'
  else
    "$@"
  fi
}

check_gpu() {
  local mib
  command -v nvidia-smi >/dev/null || fail 2 "nvidia-smi is missing: this machine has no CUDA GPU that could be used"
  mib=$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits | head -n 1)
  [[ $mib =~ ^[0-9]+$ ]] || fail 2 "nvidia-smi does not say how much memory is free: $mib"
  ((mib >= GPU_GIB * 1024)) || fail 2 "$((mib / 1024)) GiB of GPU memory free, $GPU_GIB are needed (two engines side by side)"
}

if [[ $dry_run == yes ]]; then
  run bash "$root/deploy/venv.sh" serve-gpu
  python=PYTHON
else
  check_gpu
  python="$(bash "$root/deploy/venv.sh" serve-gpu)/bin/python"
fi

cd "$root"
IFS=, read -ra wanted <<<"$shapes"
for shape in "${wanted[@]}"; do
  run "$python" -m loadtest.cli engine --preset "gpu-$shape" --only cells,costs,served --modes "$modes" --device cuda \
    --kv-gib "$kv_gib" --work "$work" ${minutes:+--minutes "$minutes"} \
    --json "$results/engine-gpu-$shape.json" --table "$results/engine-gpu-$shape.md"
done
