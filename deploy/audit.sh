#!/usr/bin/env bash
# Known security holes in the locked packages: pip-audit over every lock, or offline against an export of OSV.
#
# Nothing is installed to be audited: the locks name every package with its version and hash. A package that the service
# does not know is named as not audited; an index that knows none of them is not taken for a clean bill.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/prelude.sh
source "$root/deploy/prelude.sh"

usage() {
  cat <<'TEXT'
usage: bash deploy/audit.sh [--osv FILE] [LOCKNAME...]

  LOCKNAME    serve-cpu, serve-gpu, demo-cpu or dev-cpu; the two that are served when none is named
  --osv FILE  ask no service: read the advisories from OSV's export of the ecosystem PyPI (all.zip)

Exit code 1 when a hole is known, 3 when nothing could be audited. Packages that the service does not know are named as
not audited. deploy/audit_ignore.txt holds the holes that were looked at, with the reason.
TEXT
}

osv="" names=()
while (($#)); do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --osv) (($# >= 2)) || fail 2 "--osv needs a file (see --help)"; osv=$2; shift ;;
    -*) fail 2 "unknown option $1 (see --help)" ;;
    *) [[ -f $root/deploy/locks/$1.txt ]] || fail 2 "no lock is called $1 (see --help)"; names+=("$1") ;;
  esac
  shift
done
((${#names[@]})) || names=(serve-cpu serve-gpu)
[[ -z $osv || -f $osv ]] || fail 2 "--osv $osv: no such file"

python=${GROUNDREC_DEV_PYTHON:-$(bash "$root/deploy/venv.sh" dev-cpu)/bin/python}
mapfile -t ignored < <(sed -E 's/#.*//; s/[[:space:]]+//g; /^$/d' "$root/deploy/audit_ignore.txt")
if [[ -n $osv ]]; then
  exec "$python" "$root/deploy/audit_osv.py" "$osv" "$root/deploy/audit_ignore.txt" "${names[@]/#/$root/deploy/locks/}"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# audit LOCKNAME: exit code of its verdict. pip-audit's own code says only whether there are holes, its file says which.
audit() {
  # torch's CPU build has a local version that advisories do not know
  sed -E 's/^(torch==[0-9.]+)\+cpu/\1/' "$root/deploy/locks/$1.txt" >"$work/$1.txt"
  "$python" -m pip_audit --disable-pip --require-hashes --progress-spinner off "${ignored[@]/#/--ignore-vuln=}" \
    --requirement "$work/$1.txt" --format json --output "$work/$1.json" 2>"$work/$1.log" || true
  [[ -s $work/$1.json ]] || { tail -n 3 "$work/$1.log" >&2; fail 3 "deploy/locks/$1.txt: pip-audit gave no answer"; }
  "$python" "$root/deploy/audit_verdict.py" "$work/$1.json"
}

worst=0
for name in "${names[@]}"; do
  say "deploy/locks/$name.txt"
  code=0
  audit "$name" || code=$?
  # a known hole says more than an audit that did not happen
  if ((code == 1 || (code && worst != 1))); then worst=$code; fi
done
exit "$worst"
