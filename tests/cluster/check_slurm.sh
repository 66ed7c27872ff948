#!/bin/sh
# check_slurm.sh SOURCE BINARY: runs inside slurm.sh. Ranks started by srun, by the example for sbatch, and by `remat launch` under srun
# get the bits of ranks on one machine; and common mistakes with Slurm are reported.
. "$1"/tests/cluster/train.sh
set_up "$1" "$2"

train srun srun -N2 -n2 "$remat" train --batch=4
same srun
if has gloo; then
    train srun-gloo srun -N2 -n2 "$remat" train --batch=4 --dist-backend=gloo
    same srun-gloo
fi
if has mpi && srun --mpi=list 2>&1 | grep -q pmix; then
    OMPI_MCA_btl=tcp,self train srun-mpi srun --mpi=pmix -N2 -n2 "$remat" train --batch=4 --dist-backend=mpi
    same srun-mpi
fi
# Four ranks, distributed cyclically over the nodes, with half the batch each: a deterministic world has the same bits.
train srun-cyclic srun -N2 -n4 -m cyclic "$remat" train --batch=4 --deterministic-world
same srun-cyclic eight

# One launcher per node, as with torchrun; Slurm provides the node's rank.
train launch-in-srun srun -N2 -n2 --ntasks-per-node=1 "$remat" launch --nnodes=2 --master-addr=node1 --master-port=$((12000 + $$ % 2000)) \
    -- "$remat" train --batch=4
same launch-in-srun

# The unchanged example. It resumes, so it makes no more than twelve steps.
DATA=$dir/text RUN=$dir/sbatch REMAT=$remat timeout 300 sbatch --wait --time=5 --output="$dir"/sbatch.log \
    "$1"/examples/slurm/train.sbatch $model --batch=4 --deterministic-world >/dev/null || { fail "sbatch"; cat "$dir"/sbatch.log; }
same sbatch eight

# A batch script that forgets srun.
sbatch --wait -N2 -n4 --output="$dir"/trap.log --wrap "$remat train $model" >/dev/null && fail "a script without srun ran"
grep -q "srun" "$dir"/trap.log || { fail "the log does not mention srun"; cat "$dir"/trap.log; }

# The exit code of the first failure is passed on.
srun -N2 -n2 "$remat" launch --nproc-per-node=2 -- sh -c 'exit $((RANK * 7))' >"$dir"/code.log 2>&1
code=$?
[ $code = 7 ] || { fail "srun says $code and not 7"; cat "$dir"/code.log; }
finish
