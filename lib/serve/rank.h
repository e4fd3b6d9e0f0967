/*
 * Which rank of how many this process is: said by its options, or by the environment that launchers set.
 *
 * The first complete set wins:
 *   --rank, --world, --local-rank, or DS_RANK, DS_WORLD_SIZE, DS_LOCAL_RANK one by one in their place
 *   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK                  mpirun of Open MPI
 *   PMI_RANK, PMI_SIZE (and MPI_LOCALRANKID)                  mpiexec of MPICH, Intel MPI
 *   SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID         srun
 *   RANK, WORLD_SIZE, LOCAL_RANK                              torchrun
 *   LWS_WORKER_INDEX, LWS_GROUP_SIZE                          Kubernetes LeaderWorkerSet: one rank a pod
 *   JOB_COMPLETION_INDEX, world from --world                  Kubernetes indexed job: one rank a pod
 *   else rank 0 of 1, said by nobody
 * An empty variable is one that is not set.
 */
#ifndef DS_SERVE_RANK_H
#define DS_SERVE_RANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* What the options say. */
struct rank_options {
	const char *unit;                /* NULL: not given */
	int64_t rank, world, local_rank; /* -1: not given */
};
#define RANK_OPTIONS_NONE { .rank = -1, .world = -1, .local_rank = -1 }

struct rank {
	size_t rank, world, local; /* local: on this machine; where nobody says it: the rank, 0 of one a pod */
	const char *unit;          /* --unit or DS_UNIT, NULL: none.  Nothing else makes a unit of processes */
	const char *from;          /* who said it: the name of an option or a variable, or "" */
};

/* get: getenv(3) or a test's own.  DS_CONFIG names what is not a number, out of range, in contradiction, or lacks its
 * other half. */
int rank_find(const struct rank_options *o, const char *(*get)(const char *name), struct rank *r, struct ds_err *err);
const char *rank_getenv(const char *name); /* the process's own */

/* A name that many ranks are given alike: %r becomes the rank, %l the local one, %% a %.  *out is the caller's to free.
 * option: for messages.  DS_USAGE where another letter follows a %, DS_OS. */
int rank_name(const struct rank *r, const char *option, const char *text, char **out, struct ds_err *err);

#endif
