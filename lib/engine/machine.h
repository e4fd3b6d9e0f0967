/*
 * This machine's limits: how fast memory is read, and how fast each kernel set multiplies, by number of threads.
 */
#ifndef DS_ENGINE_MACHINE_H
#define DS_ENGINE_MACHINE_H

#include "base/mem.h"
#include "kernels/kernels.h"

struct machine_rate { double median, best; }; /* a second; 0: not known, or there is no such operation */

/* Operations: a multiply-add is two. */
struct machine_limits { struct machine_rate read, f32, bf16; };

/* What a stream's threads reach, in `runs` (at most 32) runs of each: a tenth of a second or so for five. */
struct machine_limits machine_limits(struct kern_stream *s, int runs);

enum { MACHINE_SETS = 4, MACHINE_COUNTS = 16 };

struct machine {
	char cpu[128];
	int cpus;                 /* that this process may run on */
	size_t cache, buffer;     /* bytes of the last cache (0: not known), and of what was read */
	int runs;
	size_t sets, counts;
	const char *set[MACHINE_SETS];
	int threads[MACHINE_COUNTS];
	/* in huge pages where the system gives them, and in ordinary ones, as a mapped file has */
	struct machine_rate read[MACHINE_COUNTS], read_small[MACHINE_COUNTS];
	struct machine_rate f32[MACHINE_COUNTS][MACHINE_SETS], bf16[MACHINE_COUNTS][MACHINE_SETS];
};

/* With 1, 2, 4, ... and `threads` threads (0: one a CPU), under a second for each.  DS_OS. */
int machine_measure(struct machine *m, int threads, int runs, struct ds_err *err);
void machine_text(const struct machine *m, struct buf *b);
void machine_json(const struct machine *m, struct buf *b);

#endif
