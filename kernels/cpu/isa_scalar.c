/*
 * The specification: each operation in plain C, exact where that costs nothing (sums in double), so that the other sets
 * can be held against it.
 */
#include <math.h>

#include "kernels/cpu/widen.h"

enum { SLAB = 32 }; /* rows that share one widened block of a weight row */

/* Sum of n products in four strands, exact for e4m3 codes. */
static double dot(const float *a, const float *b, size_t n)
{
	double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
	size_t i = 0;

	for (; i + 4 <= n; i += 4) {
		s0 += (double)a[i] * b[i];
		s1 += (double)a[i + 1] * b[i + 1];
		s2 += (double)a[i + 2] * b[i + 2];
		s3 += (double)a[i + 3] * b[i + 3];
	}
	for (; i < n; i++)
		s0 += (double)a[i] * b[i];
	return (s0 + s1) + (s2 + s3);
}

/* Columns c .. c+n of row r of an activation: where they lie, or widened into buf. */
static const float *act_cols(const struct act *x, size_t r, size_t c, size_t n, float *buf)
{
	if (x->kind == ACT_F32)
		return (const float *)x->data + r * x->ld + c;
	for (size_t i = 0; i < n; i++)
		buf[i] = x->kind == ACT_BF16 ? bf16_to_f32(((const uint16_t *)x->data)[r * x->ld + c + i])
		                             : isa_e4m3[((const uint8_t *)x->data)[r * x->ld + c + i]];
	return buf;
}

/* One weight row against a slab of rows [m0, m1), m1 - m0 <= SLAB. */
static void gemm_slab(const struct gemm *g, size_t m0, size_t m1, size_t n)
{
	const struct act *x = g->x;
	const bool blocks = x->kind == ACT_F8;
	double sum[SLAB] = { 0 };
	float acc[SLAB] = { 0 };
	float w[FP8_BLOCK], buf[FP8_BLOCK];

	for (size_t c = 0; c < g->w->cols; c += FP8_BLOCK) {
		size_t len = g->w->cols - c < FP8_BLOCK ? g->w->cols - c : FP8_BLOCK;

		if (blocks)
			for (size_t i = 0; i < len; i++)
				w[i] = isa_e4m3[((const uint8_t *)mat_at(g->w, n, c))[i]];
		else
			mat_widen(w, g->w, n, c, len);
		for (size_t m = m0; m < m1; m++) {
			size_t r = act_row(g, m);
			double d = dot(act_cols(x, r, c, len, buf), w, len);

			if (blocks)
				acc[m - m0] += ((float)d * act_scale(x, r, c)) * mat_scale(g->w, n, c);
			else
				sum[m - m0] += d;
		}
	}
	for (size_t m = m0; m < m1; m++) {
		float y = blocks ? acc[m - m0] : (float)sum[m - m0];

		g->y[m * g->ldy + n] = g->round ? round_bf16(y) : y;
	}
}

static void gemm(const struct gemm *g, size_t m0, size_t m1, size_t n0, size_t n1)
{
	for (size_t m = m0; m < m1; m += SLAB)
		for (size_t n = n0; n < n1; n++)
			gemm_slab(g, m, m + SLAB < m1 ? m + SLAB : m1, n);
}

static void pack_bf16(uint16_t *y, const float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		y[i] = f32_to_bf16(x[i]);
}

/* s = 2^ceil(log2(a)), a >= 1e-4 / 448: without a logarithm, which rounds exact powers of two up or down. */
static float ceil_pow2(float a)
{
	int e;
	float m = frexpf(a, &e); /* a = m 2^e, m in [1/2, 1) */

	if (!isfinite(a))
		return a;
	return ldexpf(1.0f, m == 0.5f ? e - 1 : e);
}

static void quant(uint8_t *codes, float *scales, const float *x, size_t cols, bool ue8m0)
{
	for (size_t c = 0; c < cols; c += FP8_BLOCK) {
		size_t len = cols - c < FP8_BLOCK ? cols - c : FP8_BLOCK;
		float amax = 1e-4f, s;

		for (size_t i = 0; i < len; i++)
			if (fabsf(x[c + i]) > amax)
				amax = fabsf(x[c + i]);
		s = amax / 448.0f;
		if (ue8m0)
			s = ceil_pow2(s);
		scales[c / FP8_BLOCK] = s;
		for (size_t i = 0; i < len; i++)
			codes[c + i] = f32_to_e4m3(x[c + i] / s);
	}
}

static void round_row(float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] = round_bf16(x[i]);
}

static void rmsnorm(float *y, const float *x, const struct mat *w, float eps, size_t cols, bool round)
{
	float scale = (float)(1.0 / sqrt(dot(x, x, cols) / (double)cols + eps));

	for (size_t c = 0; c < cols; c += FP8_BLOCK) {
		size_t len = cols - c < FP8_BLOCK ? cols - c : FP8_BLOCK;
		float wide[FP8_BLOCK];

		mat_widen(wide, w, 0, c, len);
		for (size_t i = 0; i < len; i++) {
			float v = x[c + i] * scale * wide[i];

			y[c + i] = round ? round_bf16(v) : v;
		}
	}
}

static void swiglu(float *y, const float *g, const float *u, size_t cols, bool round)
{
	for (size_t i = 0; i < cols; i++) {
		float silu = g[i] / (1.0f + expf(-g[i]));

		if (round)
			y[i] = round_bf16(round_bf16(silu) * u[i]);
		else
			y[i] = silu * u[i];
	}
}

static void add_scaled(float *sum, const void *x, bool bf16, float w, size_t n)
{
	for (size_t i = 0; i < n; i++)
		sum[i] += w * (bf16 ? bf16_to_f32(((const uint16_t *)x)[i]) : ((const float *)x)[i]);
}

static float argmax(const float *x, size_t n, uint32_t *index)
{
	float best = -INFINITY;

	*index = 0;
	for (size_t i = 0; i < n; i++) {
		/* the first number beats a NaN at index 0 even when it is -inf */
		if (x[i] > best || (x[i] == best && isnan(x[*index]))) {
			best = x[i];
			*index = (uint32_t)i;
		}
	}
	return best;
}

static double sum_exp(const float *x, size_t n, float max)
{
	double s = 0;

	for (size_t i = 0; i < n; i++)
		s += expf(x[i] - max);
	return s;
}

const struct isa isa_scalar = {
	.name = "scalar",
	.gemm = gemm,
	.pack_bf16 = pack_bf16,
	.quant = quant,
	.round = round_row,
	.rmsnorm = rmsnorm,
	.swiglu = swiglu,
	.add_scaled = add_scaled,
	.argmax = argmax,
	.sum_exp = sum_exp,
	.attn_expanded = attn_expanded_scalar,
	.attn_absorbed = attn_absorbed_scalar,
};
