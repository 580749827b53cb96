# Steps that the recipes share. Sourced by the scripts in this folder, which set `out` first.

readonly root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly started=$SECONDS
export PYTHONUNBUFFERED=1 PYTHONIOENCODING=utf-8
# One thread is nearly as fast as two on small models, and far faster than two on a busy machine.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# glibc would hand large tensors back to the system and ask for the pages again at every update.
export MALLOC_MMAP_MAX_=${MALLOC_MMAP_MAX_:-0} MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-100000000000}

say() {
  printf '[%4d s] %s\n' "$((SECONDS - started))" "$*"
}

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# --- options --------------------------------------------------------------------------------------------------------

readonly attention_mappings=(softmax entmax15 sparsemax fusedmax oscarmax pnormmax)

# take_value --a-name VALUE...: sets the variable a_name.
take_value() {
  [[ -n ${2:-} && $2 != --* ]] || fail "$1: wanted a value, got ${2:-none}"
  local option=${1#--}
  printf -v "${option//-/_}" '%s' "$2"
}

# take_values --name VALUE... [--other...]: sets the array `values`; the caller gives them their name.
take_values() {
  local option=$1
  shift
  values=()
  while (($#)) && [[ $1 != -* ]]; do values+=("$1") && shift; done
  ((${#values[@]})) || fail "$option: wanted values, got none"
}

# check_count OPTION LEAST NUMBER...
check_count() {
  local number
  for number in "${@:3}"; do
    [[ $number =~ ^[0-9]{1,9}$ ]] && ((10#$number >= $2)) ||
      fail "$1: wanted a whole number of $2 or more, got $number"
  done
}

# check_seeds OPTION SEED...: as they stand in result files, where numbers do not begin with a zero.
check_seeds() {
  local number
  check_count "$1" 0 "${@:2}"
  for number in "${@:2}"; do
    [[ $number =~ ^(0|[1-9][0-9]*)$ ]] || fail "$1: wanted a number without a zero before it, got $number"
  done
}

# absolute PATH: of a folder or file that is there.
absolute() {
  printf '%s/%s\n' "$(cd "$(dirname "$1")" && pwd -P)" "$(basename "$1")"
}

# check_choice OPTION CHOICES VALUE...
check_choice() {
  local value
  for value in "${@:3}"; do
    [[ $value != *' '* && " $2 " == *" $value "* ]] || fail "$1: wanted one of $2, got $value"
  done
}

# --- steps ----------------------------------------------------------------------------------------------------------

# check_settings FOLDER ADVICE SETTINGS...: what is in a folder was made with one set of settings.
check_settings() {
  local folder=$1 advice=$2 now="${*:3}"
  mkdir -p "$folder"
  if [[ ! -e $folder/settings ]]; then
    printf '%s\n' "$now" >"$folder/settings"
  elif [[ $(<"$folder/settings") != "$now" ]]; then
    fail "$folder: made with \"$(<"$folder/settings")\", wanted \"$now\"; take $advice"
  fi
}

# check_source STEP PATH: what a step made of the data at one place is not taken for that of another. Before the step.
check_source() {
  local place
  place=$(absolute "$2")
  if [[ -e $out/.$1.done && -e $out/source && $(<"$out/source") != "$place" ]]; then
    fail "$2: what is in $out was made of $(<"$out/source"); take another --out"
  fi
  printf '%s\n' "$place" >"$out/source"
}

# step NAME COMMAND...: runs the command once; the next run of the script finds it done. The marker holds its seconds,
# those of attempts that failed or were interrupted among them.
# A function of several commands joins them by &&: `set -e` does not reach into it.
step() {
  local name=$1
  shift
  if [[ -e $out/.$name.done ]]; then
    say "$name: done before"
    return
  fi
  say "$name ..."
  running=$out/.$name.spent begun=$SECONDS
  "$@" || fail "$name failed; running the script again continues here"
  note_seconds
  mv "$out/.$name.spent" "$out/.$name.done"
}

# Adds the seconds of the step that is running, if one is, to its file; at the end of the script, too.
note_seconds() {
  [[ -n $running ]] || return 0
  local before=0
  [[ ! -s $running ]] || before=$(<"$running")
  printf '%d\n' "$((before + SECONDS - begun))" >"$running"
  running=''
}
running='' begun=0
trap note_seconds EXIT

# spent PREFIX: seconds of the finished steps whose names begin so, those of earlier runs of the script among them.
spent() {
  cat "$out/.$1"*.done | awk '{ seconds += $1 } END { print seconds + 0 }'
}

# logged FILE COMMAND...: keeps the whole output in FILE and shows the lines that tell the progress.
logged() {
  local log=$1
  shift
  if ! "$@" 2>&1 | tee "$log" | { grep --line-buffered -E '\| (train_inner|valid) \||^Certificates:' || true; }; then
    tail -n 15 "$log" >&2
    return 1
  fi
}

# Into $out/wheel.
download_wheel() {
  python -m pip download --quiet --no-deps --dest "$out/wheel" "$1==$2" ||
    fail "cannot get $1 $2 with pip: get its wheel elsewhere and pass --wheel FILE"
}

# --- environment ----------------------------------------------------------------------------------------------------

# set_up FOLDER: makes the folder of --out and the environment; sets `device` and `user_dir` for fairseq's commands.
set_up() {
  [[ $1 != *[:,]* ]] || fail "--out $1: wanted a path without : and , (fairseq reads them as lists of paths)"
  mkdir -p "$1" 2>/dev/null || fail "--out $1: cannot make this folder"
  activate_environment
  choose_device
  user_dir=$(python -m fairseq_entmax user-dir)
}

# A Python that the package supports, for the virtual environment to make.
find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3.12 python3.10 python3.9 python3 python}; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 9) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  fail "no Python 3.9 to 3.12 found (tried ${PYTHON:-python3.11, 3.12, 3.10, 3.9}); set PYTHON=/path/to/python"
}

# Uses the active virtual environment, else .venv in the checkout (made when missing), and installs into it if need be.
activate_environment() {
  if [[ -z ${VIRTUAL_ENV:-} ]]; then
    VIRTUAL_ENV=$root/.venv
    if [[ ! -x $VIRTUAL_ENV/bin/python ]]; then
      local base
      base=$(find_python)
      say "making $VIRTUAL_ENV with $base"
      "$base" -m venv "$VIRTUAL_ENV"
    fi
    export VIRTUAL_ENV
  fi
  export PATH=$VIRTUAL_ENV/bin:$PATH
  # pip installs the package last, so where it is there, all that it needs is there.
  # -I: what another environment left in the folder of this clone (fairseq_entmax.egg-info) is not looked at.
  if ! python -I -c 'from importlib.metadata import version; version("fairseq-entmax")' 2>/dev/null; then
    say "installing into $VIRTUAL_ENV (a few minutes where packages have to be downloaded)"
    # fairseq for Python 3.10 and older cannot be resolved by pip 24.1 and later.
    if python -c 'import sys; sys.exit(sys.version_info >= (3, 11))'; then
      python -m pip install --quiet 'pip<24.1'
    fi
    python -m pip install --quiet -e "$root" -c "$root/constraints.txt"
  fi
  say "environment: $VIRTUAL_ENV, $(python --version)"
}

# Sets `device` to the flags for fairseq: nothing where there is a GPU that torch can use, else --cpu.
choose_device() {
  device=(--cpu)
  if command -v nvidia-smi >/dev/null && python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    device=()
  fi
}
