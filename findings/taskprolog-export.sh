#!/usr/bin/env bash
# A TaskProlog prints lines `export NAME=VALUE`, which change the task's environment.
#
# One would guess: they are read as a shell reads them; they look like it.
# What happens: the value is what stands behind =, up to the end of the line. Quotes stay in it, and nothing
# is expanded. So the most natural line of all, export PATH=/opt/bin:$PATH, leaves a task that finds none of its
# programs; the prolog's shell has to expand it before it prints it.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   export A="a b": A="a b" with its quotes     export B=c d: B=c d     export PATH=/opt/bin:$PATH: as it stands
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
cat >prolog <<'END'
#!/bin/sh
echo 'export A="a b"'
echo 'export B=c d'
echo 'export PATH=/opt/bin:$PATH'
END
chmod 755 prolog
slurm "TaskProlog=$place/prolog"
cat >task <<'END'
#!/bin/sh
echo "A=$A B=$B PATH=$PATH"
END
chmod 755 task
expect "the task's environment" 'A="a b" B=c d PATH=/opt/bin:$PATH' "$(srun -Q -n1 "$place/task")"
seen=0
srun -Q -n1 ls 2>words || seen=$?
expect "srun ls" 2 "$seen" # ENOENT
