
# The rest is the same for every job. It runs on every worker each time its machine starts. It installs the project once,
# into its own environment. Then `python -m tpu work` runs the job and restarts it where that helps.
# Variables that begin with PLMJAX_, and STORAGE_EMULATOR_HOST, are for rehearsals.
set -uo pipefail
umask 022
export HOME="${HOME:-/root}" PYTHONUNBUFFERED=1
home="${PLMJAX_HOME:-/opt/plmjax}"
project="$home/$(basename "$PACKAGE" .tar.gz)"
venv="$project.venv"
python="$venv/bin/python"
log="$home/startup.log"
storage="${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}"
mkdir -p "$home"

say() { echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) $*"; }
quietly() { curl --fail --silent --show-error --retry 8 --retry-all-errors "$@"; }
metadata() { quietly --header 'Metadata-Flavor: Google' "http://metadata.google.internal/computeMetadata/v1/instance/$1"; }

# Requests to the bucket and to Cloud TPU use the machine's own identity. An emulator needs none.
authorized() {
  if [ -n "${STORAGE_EMULATOR_HOST:-}" ]; then quietly "$@"; return; fi
  local answer
  answer="$(metadata service-accounts/default/token)" || return 1
  answer="${answer#*\"access_token\":\"}"
  quietly --header "Authorization: Bearer ${answer%%\"*}" "$@"
}

# fetch NAME FILE and put FILE NAME copy an object of the bucket.
split() { bucket="${BUCKET#gs://}/$1"; object="${bucket#*/}"; bucket="${bucket%%/*}"; object="${object//\//%2F}"; }
fetch() {
  case "$BUCKET" in
    gs://*) split "$1"; authorized --output "$2" "$storage/storage/v1/b/$bucket/o/$object?alt=media" ;;
    *) cp "$BUCKET/$1" "$2" ;;
  esac
}
put() {
  case "$BUCKET" in
    gs://*) split "$2"
      authorized --output /dev/null --header 'Content-Type: application/octet-stream' --data-binary "@$1" \
        "$storage/upload/storage/v1/b/$bucket/o?uploadType=media&name=$object" ;;
    *) mkdir -p "$BUCKET/$(dirname "$2")" && cp "$1" "$BUCKET/$2" ;;
  esac
}

# The number of this worker among those of all slices: from JAX's variable, from Kubernetes, or from the slice's metadata.
number() {
  local worker="${TPU_WORKER_ID:-}" slice="${MEGASCALE_SLICE_ID:-}"
  if [ -n "${JAX_PROCESS_ID:-}" ]; then echo "$JAX_PROCESS_ID"; return; fi
  [ -n "$worker" ] || worker="$(metadata attributes/agent-worker-number)" || return 1
  if [ "$SLICES" -gt 1 ] && [ -z "$slice" ]; then
    slice="$(metadata attributes/tpu-env | sed -n "s/^MEGASCALE_SLICE_ID: *'\{0,1\}\([0-9]*\).*/\1/p")"
  fi
  echo $((worker + HOSTS * ${slice:-0}))
}

# Most TPU software versions are Ubuntu 22.04 with Python 3.10. A newer Python is then installed by uv.
environment() {
  local candidate
  rm -rf "$venv"
  for candidate in ${PLMJAX_PYTHON:-python3.12 python3.11 python3}; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      # shellcheck disable=SC2086
      "$candidate" -m venv ${PLMJAX_VENV:-} "$venv"
      return
    fi
  done
  python3 -m pip install --quiet --target "$home/uv" uv && "$home/uv/bin/uv" venv --seed --python 3.12 "$venv"
}

pip_install() { "$1" -m pip install --quiet "${@:2}"; }
install() {
  [ ! -e "$project/.installed" ] || return 0
  rm -rf "$project" && mkdir -p "$project" &&
    fetch "$PACKAGE" "$project.tar.gz" && tar --extract --gzip --file "$project.tar.gz" --directory "$project" &&
    environment && (cd "$project" && "${PLMJAX_INSTALL:-pip_install}" "$python" ".[tpu]" "jax[tpu]==$JAX") &&
    touch "$project/.installed"
}

# Persistent disks are mounted at /mnt/disks/NAME. Cloud names their devices by the disk, by their number, or not at all:
# then they are those beside the disk of the system, in the order of the request.
mount_disks() {
  local disk name device options number=0 system mounts="${PLMJAX_DISKS:-/mnt/disks}"
  system="$(lsblk --noheadings --output PKNAME "$(findmnt --noheadings --output SOURCE /)" 2>/dev/null | head -n 1)"
  for disk in $DISKS; do
    name="${disk%:*}" number=$((number + 1))
    ! mountpoint --quiet "$mounts/$name" || continue
    for device in "/dev/disk/by-id/google-$name" "/dev/disk/by-id/google-persistent-disk-$number" \
      "$(lsblk --nodeps --noheadings --paths --output NAME,TYPE | awk -v first="/dev/$system" \
        '$2 == "disk" && $1 != first { print $1 }' | sed -n "${number}p")"; do
      [ ! -e "$device" ] || break
    done
    options="discard,defaults"
    [ "${disk#*:}" = read-write ] || options="ro,noload"
    mkdir -p "$mounts/$name" && mount -o "$options" "$device" "$mounts/$name" || return 1
  done
}

# A worker that cannot start deletes everything that costs money.
give_up() {
  printf '{"state": "failed", "reason": "Worker %s could not install the project; its log says why."}\n' "$1" \
    >"$home/verdict.json"
  put "$home/verdict.json" "$FOLDER/verdict.json"
  [ -z "$RESOURCE" ] || authorized --request DELETE "https://tpu.googleapis.com/v2/$RESOURCE?force=true"
  exit 2
}

WORKER="$(number)" || { say "no worker number in the metadata"; exit 1; }
say "worker $WORKER of $WORKERS, job $NAME, attempt $ATTEMPT" >"$log"
say "command: $COMMAND" >>"$log"
for try in 1 2 3; do
  if mount_disks >>"$log" 2>&1 && install >>"$log" 2>&1; then break; fi
  say "installation failed, try $try of 3" >>"$log"
  put "$log" "$FOLDER/logs/$WORKER/$(date -u +%Y%m%dT%H%M%SZ).log"
  [ "$try" -lt 3 ] || give_up "$WORKER"
  sleep "${PLMJAX_WAIT:-30}"
done
say "installed" >>"$log"
cd "$project" || exit 1
# shellcheck disable=SC2086
exec "$python" -m tpu work "$NAME" --bucket "$BUCKET" --worker "$WORKER" --log "$log" ${PLMJAX_WORK:-}
