/*
 * What the machine can do at most: the denominators of every ratio that a profile or a benchmark prints.  Measured by
 * loops of a stream's kernel set on its threads.
 */
#ifndef DS_KERNELS_PROBE_H
#define DS_KERNELS_PROBE_H

#include "kernels/kernels.h"

enum probe_op {
	PROBE_F32,  /* float32 multiply-adds, as wide as the set's */
	PROBE_BF16, /* products of bfloat16 pairs added to float32; only avx512bf16 has them */
};

/* One pass over p [bytes], which should be far larger than the last cache: bytes a second; 0: no memory. */
double kern_probe_read(struct kern_stream *s, const void *p, size_t bytes);
/* One run of some milliseconds: operations a second, a multiply-add being two; 0 where the set has no such
 * operation. */
double kern_probe_peak(struct kern_stream *s, enum probe_op op);
/* The faster of them. */
double kern_probe_best(struct kern_stream *s);

/* Bytes of the last caches that the process' CPUs have, all together; 0: not known. */
size_t kern_probe_cache(void);
/* Memory for kern_probe_read: at least `bytes` and four times the last caches, but no more than 1 GiB, in huge pages
 * where the system gives them, or in none, written by the stream's threads.  NULL: there is none.  Its size goes to
 * *bytes; kern_probe_free gives it back. */
void *kern_probe_memory(struct kern_stream *s, bool huge, size_t *bytes);
void kern_probe_free(void *p, size_t bytes);

#endif
