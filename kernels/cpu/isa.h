/*
 * What an instruction set provides: work on one thread, no memory of its own.  The operations of kernels.h cut their work
 * into these and spread it over threads.
 */
#ifndef DS_KERNELS_CPU_ISA_H
#define DS_KERNELS_CPU_ISA_H

#include "kernels/kernels.h"

struct attn_task;

struct isa {
	const char *name;

	/* y[i][n] of product g for rows i in [m0, m1) and weight rows n in [n0, n1). */
	void (*gemm)(const struct gemm *g, size_t m0, size_t m1, size_t n0, size_t n1);
	/* y[c] = sum over r of x[r] * w[r][c], r in order, c in [0, w->cols): the transposed product of the absorbed query. */
	void (*gemv_t)(float *y, const float *x, const struct mat *w);

	void (*pack_bf16)(uint16_t *y, const float *x, size_t n);
	void (*quant)(uint8_t *codes, float *scales, const float *x, size_t cols, bool ue8m0); /* one row */
	void (*round)(float *x, size_t n);
	void (*rmsnorm)(float *y, const float *x, const struct mat *w, float eps, size_t cols, bool round); /* one row */
	void (*swiglu)(float *y, const float *g, const float *u, size_t cols, bool round);                   /* one row */

	/* attention, kernels/cpu/attn*.c: one head (or head group) of one segment's rows */
	void (*attn_expanded)(const struct attn_task *t);
	void (*attn_absorbed)(const struct attn_task *t);
};

extern const struct isa isa_scalar, isa_avx2, isa_avx512, isa_avx512bf16;

#endif
