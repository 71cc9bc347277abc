
# The rest is the same for every job. It runs on every worker each time its machine starts. It installs the project once,
# into its own environment. Then `python -m tpu work` runs the job and restarts it where that helps.
# Variables that begin with PLMJAX_, GCE_METADATA_HOST and STORAGE_EMULATOR_HOST are for rehearsals.
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
quietly() { curl --fail --silent --show-error --connect-timeout 20 --retry 8 --retry-all-errors "$@"; }
metadata() {
  quietly --header 'Metadata-Flavor: Google' \
    "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/$1"
}

# insist SECONDS COMMAND... repeats a failing command for so many seconds, with waits from half a minute to ten minutes.
insist() {
  local limit="${PLMJAX_PATIENCE:-$1}" wait="${PLMJAX_WAIT:-30}" began="$SECONDS"
  shift
  until "$@"; do
    [ $((SECONDS - began)) -lt "$limit" ] || return 1
    sleep "$wait"
    wait=$((wait < 300 ? wait * 2 : 600))
  done
}

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

# The lock of this machine lasts as long as this shell and the program that takes its place. Status 127 is a container
# without flock, where nothing starts twice.
locked() { exec 9>>"$home/lock"; flock --nonblock 9; [ $? -ne 1 ]; }
leave_it() { say "a job already runs on this machine ($(cat "$home/running" 2>/dev/null)): nothing is changed"; exit 0; }

# google-startup-scripts.service, which runs this script on a virtual machine, is Type=oneshot with KillMode=process
# (GoogleCloudPlatform/guest-agent): when the machine stops, what it started gets no SIGTERM while there is a network. So
# this script starts itself as a service of its own, which is stopped before the network, has the time to save, and is
# started again if it ends without an answer (2 is a job that failed, 75 a stop). A trainer that is killed for its
# memory must not stop the whole service (OOMPolicy).
detach() {
  local script="$home/job.sh" copy
  copy="$(mktemp "$script.XXXXXX")" && itself >"$copy" && mv "$copy" "$script" || return 1
  systemd-run --quiet --collect --unit="plmjax-$NAME" \
    -p KillMode=mixed -p TimeoutStopSec=300 -p OOMPolicy=continue -p TasksMax=infinity \
    -p Restart=on-failure -p RestartSec=30 -p "RestartPreventExitStatus=2 75" \
    -p After=network-online.target -p After=nss-lookup.target -p After=google-guest-agent.service \
    bash "$script"
}
# Print the environment and this script, because a service begins without environment variables.
itself() {
  unset INVOCATION_ID JOURNAL_STREAM NOTIFY_SOCKET
  export -p
  echo "detached=1"
  if [ -n "${BASH_EXECUTION_STRING:-}" ]; then echo "$BASH_EXECUTION_STRING"; else cat "$0"; fi
}

# Print the number of this worker in all slices: from JAX's variable, from Kubernetes, or from the slice's metadata.
number() {
  local worker="${TPU_WORKER_ID:-}" slice="${MEGASCALE_SLICE_ID:-}"
  if [ -n "${JAX_PROCESS_ID:-}" ]; then echo "$JAX_PROCESS_ID"; return; fi
  [ -n "$worker" ] || worker="$(metadata attributes/agent-worker-number)" || return 1
  if [ "$SLICES" -gt 1 ] && [ -z "$slice" ]; then
    slice="$(metadata attributes/tpu-env | sed -n "s/^MEGASCALE_SLICE_ID: *'\{0,1\}\([0-9]*\).*/\1/p")"
  fi
  echo $((worker + HOSTS * ${slice:-0}))
}

# Versions of JAX differ by Python, so the submitter's version of Python comes first: from the machine, whose Ubuntu 22.04
# has only 3.10, or from uv. Any other version that plmjax supports is better than none.
environment() {
  local candidate
  rm -rf "$venv"
  for candidate in ${PLMJAX_PYTHON:-"python$PYTHON" python3}; do
    if is_python "$candidate" 'sys.version_info[:2] == wanted'; then make "$candidate"; return; fi
  done
  if python3 -m pip install --quiet --target "$home/uv" uv &&
    "$home/uv/bin/uv" venv --seed --python "$PYTHON" "$venv"; then return; fi
  for candidate in ${PLMJAX_PYTHON:-python3.13 python3.12 python3.11 python3}; do
    if is_python "$candidate" 'sys.version_info >= (3, 11)'; then
      say "no Python $PYTHON can be had, which the submitting machine has: $candidate takes its place"
      make "$candidate"
      return
    fi
  done
  say "no Python $PYTHON can be had, nor any from 3.11 on"
  return 1
}
is_python() {
  "$1" -c "import sys, venv, ensurepip; wanted = tuple(map(int, '$PYTHON'.split('.'))); sys.exit(not ($2))" 2>/dev/null
}
make() {
  rm -rf "$venv"
  # shellcheck disable=SC2086
  "$1" -m venv ${PLMJAX_VENV:-} "$venv"
}

# A quiet pip does not say which versions contradict each other.
pip_install() { "$1" -m pip install --quiet "${@:2}" || "$1" -m pip install --no-color --progress-bar off "${@:2}"; }
install() {
  [ ! -e "$project/.installed" ] || return 0
  rm -rf "$project" && mkdir -p "$project" &&
    fetch "$PACKAGE" "$project.tar.gz" && tar --extract --gzip --file "$project.tar.gz" --directory "$project" &&
    environment &&
    (cd "$project" && "${PLMJAX_INSTALL:-pip_install}" "$python" -c .plmjax/versions.txt "$LIBRARY" "jax[tpu]==$JAX") &&
    touch "$project/.installed"
}
try_to_install() {
  ! { mount_disks && install; } >>"$log" 2>&1 || return 0
  say "installation failed" >>"$log"
  put "$log" "$FOLDER/logs/$WORKER/$(date -u +%Y%m%dT%H%M%SZ).log"
  return 1
}

# Persistent disks are mounted at /mnt/disks/NAME. Cloud names their devices by the disk, by their number, or not at all:
# then they are the disks besides the system's, in the order of the request.
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
  local said
  said="$(grep -aE '^ERROR: (No matching|Cannot install)' "$log" || grep -a '^ERROR' "$log")"
  said="$(tail -n 1 <<<"$said" | tr -d '"\\' | tr -c '[:print:]' ' ' | cut -c -300)"
  said="${said% }"
  printf '{"state": "failed", "reason": "Worker %s could not install the project%s; its log says why."}\n' \
    "$WORKER" "${said:+ ($said)}" >"$home/verdict.json"
  insist 3600 put "$home/verdict.json" "$FOLDER/verdict.json"
  [ -z "$RESOURCE" ] ||
    insist 86400 authorized --request DELETE "https://tpu.googleapis.com/v2/$RESOURCE?force=true"
  exit 2
}

# Now the work.
locked || leave_it
if [ -z "${detached:-}" ] && [ -d "${PLMJAX_SYSTEMD:-/run/systemd/system}" ] && command -v systemd-run >/dev/null; then
  exec 9>&-
  if detach; then exit 0; fi
  ! systemctl is-active --quiet "plmjax-$NAME" 2>/dev/null || leave_it
  say "systemd-run failed: the job runs in this process"
  locked || leave_it
fi
echo "$NAME, attempt $ATTEMPT" >"$home/running"
WORKER="$(insist 3600 number)" || { say "no worker number in the metadata"; exit 1; }
say "worker $WORKER of $WORKERS, job $NAME, attempt $ATTEMPT" >"$log"
say "command: $COMMAND" >>"$log"
huge_pages="${PLMJAX_HUGE_PAGES:-/sys/kernel/mm/transparent_hugepage/enabled}"
if [ -n "$HUGE_PAGES" ] && [ -w "$huge_pages" ]; then echo "$HUGE_PAGES" >"$huge_pages"; fi
insist 3600 try_to_install || give_up
say "installed" >>"$log"
cd "$project" || exit 1
# shellcheck disable=SC2086
exec "$python" -m tpu work "$NAME" --bucket "$BUCKET" --worker "$WORKER" --attempt "$ATTEMPT" --log "$log" ${PLMJAX_WORK:-}
