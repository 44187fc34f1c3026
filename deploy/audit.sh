#!/usr/bin/env bash
# Known security holes in the locked packages: pip-audit over every lock, or offline against an export of OSV.
#
# Nothing is installed to be audited: the locks name every package with its version and hash. A package that the service
# does not know fails the audit (--strict), so that an index without advisories is not taken for a clean bill.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/prelude.sh
source "$root/deploy/prelude.sh"

usage() {
  cat <<'TEXT'
usage: bash deploy/audit.sh [--osv FILE] [LOCKNAME...]

  LOCKNAME    serve-cpu, serve-gpu, demo-cpu or dev-cpu; the two that are served when none is named
  --osv FILE  ask no service: read the advisories from OSV's export of the ecosystem PyPI (all.zip)

Exit code 1 when a hole is known. deploy/audit_ignore.txt holds those that were looked at, with the reason.
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
code=0
for name in "${names[@]}"; do
  say "deploy/locks/$name.txt"
  # torch's CPU build has a local version that advisories do not know
  sed -E 's/^(torch==[0-9.]+)\+cpu/\1/' "$root/deploy/locks/$name.txt" >"${TMPDIR:-/tmp}/groundrec-audit-$$.txt"
  "$python" -m pip_audit --strict --disable-pip --no-deps --require-hashes "${ignored[@]/#/--ignore-vuln=}" \
    --requirement "${TMPDIR:-/tmp}/groundrec-audit-$$.txt" || code=1
  rm -f "${TMPDIR:-/tmp}/groundrec-audit-$$.txt"
done
exit "$code"
