/* A stream: an instruction set, threads to run it, and memory of each thread's own. */
#ifndef DS_KERNELS_CPU_STREAM_H
#define DS_KERNELS_CPU_STREAM_H

#include "base/mem.h"
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

/* Rows are handed out `per` at a time. */
struct split {
	size_t rows, per;
};

static inline struct split split_rows(const struct kern_stream *s, size_t rows, size_t cols)
{
	struct split p = { rows, kern_rows_per_item(s, rows, cols) };

	return p;
}

static inline size_t split_items(struct split p)
{
	return (p.rows + p.per - 1) / p.per;
}

static inline size_t split_end(struct split p, size_t i)
{
	return (i + 1) * p.per < p.rows ? (i + 1) * p.per : p.rows;
}

/* A packed row's elements, its padding among them. */
static inline size_t packed_ld(size_t cols)
{
	return round_up(cols, FP8_BLOCK);
}

/* In a buffer of packed FP8: codes, then here the scales, then here the wide codes. */
static inline size_t packed_scales(size_t rows, size_t ld)
{
	return round_up(rows * ld, 64);
}

static inline size_t packed_wide(size_t rows, size_t ld)
{
	return packed_scales(rows, ld) + round_up(rows * (ld / FP8_BLOCK) * sizeof(float), 64);
}

#endif
