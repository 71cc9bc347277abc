
# Starts, stops or looks for a job on one machine of a TPU VM that exists. tpu/machines.py sends it by ssh with an ACTION.
# Where there is systemd, the job is a service: it outlives the connection, starts again with the machine, and is stopped
# by SIGTERM. Elsewhere it is a session of its own, and the number of its first process stands in a file.
# Variables that begin with PLMJAX_ are for rehearsals.
set -uo pipefail
home="${PLMJAX_HOME:-/opt/plmjax}"
script="$home/machine_job.sh"
owner="$home/machine_job"
session="$home/machine_job.pid"
units="${PLMJAX_UNITS:-/etc/systemd/system}"
systemd() { [ -d "${PLMJAX_SYSTEMD:-/run/systemd/system}" ]; }

# The startup script may start further services of names that begin with plmjax.
running() {
  if systemd; then
    systemctl list-units --plain --no-legend --state=active,activating,deactivating 'plmjax*.service' | grep -q .
  else
    [ -e "$session" ] && grep -qs '^State:[[:space:]]*[RSDTtI]' "/proc/$(cat "$session")/status"
  fi
}

start() {
  if running; then echo "plmjax: busy $(cat "$owner" 2>/dev/null)"; exit 9; fi
  rm -f "$session"
  mkdir -p "$home" && printf %s "$SCRIPT" | base64 --decode >"$script" && echo "$NAME" >"$owner" || exit 1
  if ! systemd; then
    setsid bash -c 'echo $$ >"$1"; exec bash "$2"' - "$session" "$script" </dev/null >>"$home/machine_job.log" 2>&1 &
    until [ -s "$session" ]; do sleep 0.1; done
    return
  fi
  cat >"$units/plmjax.service" <<UNIT
[Unit]
Description=plmjax job $NAME
Wants=network-online.target
After=network-online.target
[Service]
ExecStart=/bin/bash $script
KillMode=mixed
TimeoutStopSec=$PATIENCE
[Install]
WantedBy=multi-user.target
UNIT
  systemctl daemon-reload && systemctl enable --quiet plmjax.service && systemctl restart plmjax.service
}

# Only the job of this NAME is stopped: the machine may have another one since.
stop() {
  [ "$(cat "$owner" 2>/dev/null)" = "$NAME" ] || return 0
  if systemd; then
    systemctl disable --quiet plmjax.service
    systemctl stop 'plmjax*.service' || return 1
    rm -f "$units/plmjax.service"
  elif running; then
    local leader waited=0
    leader="$(cat "$session")"
    kill -TERM "$leader"
    while running && [ "$waited" -lt "$((PATIENCE * 5))" ]; do sleep 0.2; waited=$((waited + 1)); done
    kill -KILL -- "-$leader" 2>/dev/null
  fi
  rm -f "$session" "$script" "$owner"
}

case "$ACTION" in
  start) start && echo "plmjax: started" ;;
  stop) stop && echo "plmjax: stopped" ;;
  state) if running && [ "$(cat "$owner" 2>/dev/null)" = "$NAME" ]; then echo "plmjax: running"; else echo "plmjax: idle"; fi ;;
esac
