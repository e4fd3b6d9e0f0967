/* A stream: an instruction set, threads to run it, and memory of each thread's own. */
#ifndef DS_KERNELS_CPU_STREAM_H
#define DS_KERNELS_CPU_STREAM_H

#include "kernels/cpu/isa.h"
#include "kernels/cpu/pool.h"

struct kern_stream {
	const struct isa *isa;
	struct pool pool;
	struct scratch {
		void *p;
		size_t bytes;
	} *scratch; /* [threads + 1]: the last is the owner's */
};

/* Items of a job over `n` equal rows of `cols` elements, so that one is worth the trouble of handing it over. */
size_t kern_rows_per_item(const struct kern_stream *s, size_t rows, size_t cols);

#endif
