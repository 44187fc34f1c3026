#!/usr/bin/env bash
# Prints the path of promtool, which checks and unit-tests Prometheus rules: the one on the path, or Debian's.
#
# Debian's package is unpacked into the cache, not installed: installing it would start a Prometheus.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/prelude.sh
source "$root/deploy/prelude.sh"

case ${1-} in
  --help | -h) echo "usage: bash deploy/promtool.sh      prints the path of promtool"; exit 0 ;;
  "") ;;
  *) fail 2 "unknown option $1 (see --help)" ;;
esac

command -v promtool && exit
cache="${XDG_CACHE_HOME:-$HOME/.cache}/groundrec"
tool="$cache/prometheus/usr/bin/promtool"
if [[ ! -x $tool ]]; then
  command -v apt-get >/dev/null || fail 2 "promtool is missing; install Prometheus, or put promtool on the path"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  { apt-get -qq download prometheus || { apt-get -qq update && apt-get -qq download prometheus; }; } >&2 \
    || fail 2 "Debian's package prometheus could not be downloaded"
  dpkg-deb --extract prometheus_*.deb "$work/prometheus"
  mkdir -p "$cache/prometheus/usr/bin"
  mv "$work/prometheus/usr/bin/promtool" "$tool"
fi
"$tool" --version >/dev/null 2>&1 || fail 2 "$tool does not run"
printf '%s\n' "$tool"
