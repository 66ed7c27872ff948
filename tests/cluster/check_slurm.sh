#!/bin/sh
# check_slurm.sh SOURCE BINARY: runs inside slurm.sh: ranks started by srun, by sbatch's example, and by `remat launch` under
# srun train like ranks of one machine; and the traps of Slurm are sentences.
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
# Four ranks, in an order that goes round the nodes, with half the batch each: the world that does not change bits.
train srun-cyclic srun -N2 -n4 -m cyclic "$remat" train --batch=4 --deterministic-world
same srun-cyclic eight

# One launcher a node, as torchrun is used; which node it is on, Slurm says.
train launch-in-srun srun -N2 -n2 --ntasks-per-node=1 "$remat" launch --nnodes=2 --master-addr=node1 --master-port=$((12000 + $$ % 2000)) \
    -- "$remat" train --batch=4
same launch-in-srun

# The example, as it is. It resumes: twelve more steps would be none.
DATA=$dir/text RUN=$dir/sbatch REMAT=$remat timeout 120 sbatch --wait --time=5 --output="$dir"/sbatch.log \
    "$1"/examples/slurm/train.sbatch $model --batch=4 --deterministic-world >/dev/null || { fail "sbatch"; cat "$dir"/sbatch.log; }
same sbatch eight

# A batch script that forgets srun.
sbatch --wait -N2 -n4 --output="$dir"/trap.log --wrap "$remat train $model" >/dev/null && fail "a script without srun ran"
grep -q "put srun in front of remat" "$dir"/trap.log || { fail "nothing was said about srun"; cat "$dir"/trap.log; }

# The first failure's code comes through.
srun -N2 -n2 "$remat" launch --nproc-per-node=2 -- sh -c 'exit $((RANK * 7))' >"$dir"/code.log 2>&1
code=$?
[ $code = 7 ] || { fail "srun says $code and not 7"; cat "$dir"/code.log; }
finish
