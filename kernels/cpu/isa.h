/*
 * What an instruction set provides: work on one thread.  The operations of kernels.h cut their work into these and
 * spread it over threads.
 */
#ifndef DS_KERNELS_CPU_ISA_H
#define DS_KERNELS_CPU_ISA_H

#include "kernels/kernels.h"

struct attn_task;

struct isa {
	const char *name;

	/* y[i][n] of product g for rows i in [m0, m1) and weight rows n in [n0, n1).  No two threads may be given the
	 * same y; any cut into ranges gives the same bits. */
	void (*gemm)(const struct gemm *g, size_t m0, size_t m1, size_t n0, size_t n1);

	void (*pack_bf16)(uint16_t *y, const float *x, size_t n);
	/* one row each; quant pads nothing */
	void (*quant)(uint8_t *codes, float *scales, const float *x, size_t cols, bool ue8m0);
	/* n codes as the set's products take them, two bytes each, in groups of 64: act.wide; NULL: they take codes */
	void (*widen)(void *y, const uint8_t *codes, size_t n);
	void (*round)(float *x, size_t n);
	void (*rmsnorm)(float *y, const float *x, const struct mat *w, float eps, size_t cols, bool round);
	void (*swiglu)(float *y, const float *g, const float *u, size_t cols, bool round);

	/* sum [n] += w * x, the product rounded to float32 like the sum; x is F32 or BF16 */
	void (*add_scaled)(float *sum, const void *x, bool bf16, float w, size_t n);

	/* Largest value of x [n] and its lowest index; NaN never wins; -inf and 0 when there is nothing else. */
	float (*argmax)(const float *x, size_t n, uint32_t *index);
	/* sum of exp(x[i] - max) */
	double (*sum_exp)(const float *x, size_t n, float max);

	/* attention, kernels/cpu/attn*.c: one head (or head group) of one segment's rows */
	void (*attn_expanded)(const struct attn_task *t);
	void (*attn_absorbed)(const struct attn_task *t);
};

extern const struct isa isa_scalar, isa_avx2, isa_avx512, isa_avx512bf16;

/* Filled before the first stream exists: the value of every e4m3 code; the low and high bytes of the bfloat16 of each
 * magnitude. */
extern float isa_e4m3[256];
extern uint8_t isa_e4m3_bf16[2][128];

/* Working memory of gemm, the thread's own: set within kern_parallel, so call gemm from there. */
enum { ISA_DESK = 768 << 10 };
extern _Thread_local void *isa_desk;

#define ISA_ROWS(set) \
	void gemm_##set(const struct gemm *g, size_t m0, size_t m1, size_t n0, size_t n1); \
	void pack_bf16_##set(uint16_t *y, const float *x, size_t n); \
	void quant_##set(uint8_t *codes, float *scales, const float *x, size_t cols, bool ue8m0); \
	void round_##set(float *x, size_t n); \
	void rmsnorm_##set(float *y, const float *x, const struct mat *w, float eps, size_t cols, bool round); \
	void swiglu_##set(float *y, const float *g, const float *u, size_t cols, bool round); \
	void add_scaled_##set(float *sum, const void *x, bool bf16, float w, size_t n); \
	float argmax_##set(const float *x, size_t n, uint32_t *index); \
	double sum_exp_##set(const float *x, size_t n, float max)
ISA_ROWS(avx2);
ISA_ROWS(avx512);
void gemm_avx512bf16(const struct gemm *g, size_t m0, size_t m1, size_t n0, size_t n1);
void widen_avx512bf16(void *y, const uint8_t *codes, size_t n);

/* The set of a stream. */
const struct isa *kern_isa(const struct kern_stream *s);
/* Memory of one worker's own, 64-byte aligned, at least `bytes` large; what it holds lasts until the next call for that
 * worker with a larger size.  Call it from that worker, or from the stream's owner while nothing runs.  Worker
 * kern_threads(s) is one more, for what the owner shares with all.  Without memory the process ends with one line and
 * DS_OS: kern_reserve beforehand turns that into an error. */
void *kern_scratch(struct kern_stream *s, int worker, size_t bytes);

#define ISA_ATTN(set) \
	void attn_expanded_##set(const struct attn_task *t); \
	void attn_absorbed_##set(const struct attn_task *t)
ISA_ATTN(scalar);
ISA_ATTN(avx2);
ISA_ATTN(avx512);
ISA_ATTN(avx512bf16);

#endif
