# What --hosts runs on a host by ssh, with /bin/sh -c: $1 is the path of the launching ddprun, $2 what its --version prints. The
# ddprun with that path, or that of PATH, if it is of this release; else the copy that own_copy.h describes. The archive comes on the
# standard input before the orders: head reads no more than it is asked to.
# The lines are joined with blanks (some login shells take no line break between quotes), so comments have lines of their own.
is_it() { test "$("$1" --version 2>&1 </dev/null)" = "$release"; };
release=$2;
program=$1;
test -x "$program" && is_it "$program" && exec "$program" --control-stdin;
program=$(command -v ddprun) && is_it "$program" && exec "$program" --control-stdin;
# The Python environment of the ddprun of another release, as own_python() finds it.
here=${1%/*};
if test -z "$PYTHON_EXEC" && test -x "$here/python3"; then
  if test -f "$here/../pyvenv.cfg" || test -d "$here/../conda-meta"; then export PYTHON_EXEC="$here/python3"; fi;
fi;
echo "ddprun-control wants $(uname -m)";
read -r sum bytes || exit 127;
folder=${XDG_CACHE_HOME:-$HOME/.cache}/ddprun;
program=$folder/$sum/bin/ddprun;
if ! test -x "$program"; then
  mask=$(umask);
  umask 077;
  mkdir -p "$folder" && new=$(mktemp -d "$folder/new.XXXXXX") || exit 126;
  trap 'rm -rf "$new"' EXIT;
  trap 'exit 126' HUP INT TERM;
  echo "ddprun-control send";
  head -c "$bytes" >"$new/tar";
  if test "$(sha256sum <"$new/tar")" != "$sum  -"; then
    echo "the copy of ddprun did not arrive whole" >&2;
    exit 126;
  fi;
  mkdir "$new/all" && tar -xf "$new/tar" -C "$new/all" || exit 126;
  test -e "$folder/$sum" || mv -T "$new/all" "$folder/$sum";
  rm -rf "$new";
  trap - EXIT HUP INT TERM;
  umask "$mask";
fi;
exec "$program" --control-stdin
