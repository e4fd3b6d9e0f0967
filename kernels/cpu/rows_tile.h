/*
 * Row operations over the vector of a set (vec_*.h), which the including file chose; SET(name) names what is made.
 * Where a row ends within a vector the rest of it goes through a zeroed buffer, so that nothing beyond is touched.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/widen.h"

static inline VF part_load(const float *p, size_t n)
{
	float b[VL] = { 0 };

	memcpy(b, p, n * sizeof(*b));
	return v_load(b);
}

static inline void part_store(float *p, VF v, size_t n)
{
	float b[VL];

	v_store(b, v);
	memcpy(p, b, n * sizeof(*b));
}

/* Lanes [0, n) of x + i, n <= VL. */
static inline VF get(const float *p, size_t n)
{
	return n == VL ? v_load(p) : part_load(p, n);
}

static inline void put(float *p, VF v, size_t n)
{
	if (n == VL)
		v_store(p, v);
	else
		part_store(p, v, n);
}

static inline size_t lanes(size_t left)
{
	return left < VL ? left : VL;
}

/* n elements of a matrix' row from column c; F8: code * scale of the block. */
static inline VF get_weight(const struct mat *m, size_t r, size_t c, size_t n)
{
	const void *p = mat_at(m, r, c);
	uint32_t b[VL] = { 0 };
	VF v;

	if (n < VL) {
		memcpy(b, p, n * dtype_size(m->type));
		p = b;
	}
	switch (m->type) {
	case DT_F32:
		return v_load(p);
	case DT_BF16:
		return v_load_bf16(p);
	case DT_F16:
		return v_load_f16(p);
	default:
		v = v_mul(v_load_f8(p), v_set1(256.0f));
		return v_mul(v, v_set1(mat_scale(m, r, c)));
	}
}

void SET(pack_bf16)(uint16_t *y, const float *x, size_t n)
{
	size_t i = 0;

	for (; i + VL <= n; i += VL)
		v_store_bf16(y + i, v_load(x + i));
	for (; i < n; i++)
		y[i] = f32_to_bf16(x[i]);
}

void SET(add_scaled)(float *sum, const void *x, bool bf16, float w, size_t n)
{
	const uint16_t *h = x;
	const float *f = x;
	VF by = v_set1(w);
	size_t i = 0;

	for (; bf16 && i + VL <= n; i += VL)
		v_store(sum + i, v_add(v_load(sum + i), v_mul(by, v_load_bf16(h + i))));
	for (; !bf16 && i + VL <= n; i += VL)
		v_store(sum + i, v_add(v_load(sum + i), v_mul(by, v_load(f + i))));
	for (; i < n; i++)
		sum[i] += w * (bf16 ? bf16_to_f32(h[i]) : f[i]);
}

/* s = 2^ceil(log2(a)) of a normal or infinite a, from its bits. */
static float ceil_pow2(float a)
{
	union { float f; uint32_t u; } v = { .f = a };

	v.u = (v.u + 0x7fffffu) & 0xff800000u;
	return v.f;
}

void SET(quant)(uint8_t *codes, float *scales, const float *x, size_t cols, bool ue8m0)
{
	for (size_t c = 0; c < cols; c += FP8_BLOCK) {
		size_t end = cols - c < FP8_BLOCK ? cols : c + FP8_BLOCK;
		VF amax = v_set1(1e-4f);
		float s;

		for (size_t i = c; i < end; i += VL)
			amax = v_max(v_abs(get(x + i, lanes(end - i))), amax);
		s = v_hmax(amax) / 448.0f;
		if (ue8m0)
			s = ceil_pow2(s);
		scales[c / FP8_BLOCK] = s;
		for (size_t i = c; i < end; i += VL) {
			size_t n = lanes(end - i);
			uint8_t b[VL];

			if (n == VL) {
				v_store_f8(codes + i, v_div(v_load(x + i), v_set1(s)));
				continue;
			}
			v_store_f8(b, v_div(part_load(x + i, n), v_set1(s)));
			memcpy(codes + i, b, n);
		}
	}
}

void SET(round)(float *x, size_t n)
{
	for (size_t i = 0; i < n; i += VL) {
		size_t k = lanes(n - i);

		put(x + i, v_round_bf16(get(x + i, k)), k);
	}
}

static double d_sum(VD a, VD b)
{
	double s[VL / 2], sum = 0;

	d_store(s, d_add(a, b));
	for (size_t i = 0; i < VL / 2; i++)
		sum += s[i];
	return sum;
}

void SET(rmsnorm)(float *y, const float *x, const struct mat *w, float eps, size_t cols, bool round)
{
	VD a = d_zero(), b = d_zero();
	VF scale;

	for (size_t i = 0; i < cols; i += VL) {
		VF v = get(x + i, lanes(cols - i));

		a = d_fma(d_low(v), d_low(v), a);
		b = d_fma(d_high(v), d_high(v), b);
	}
	scale = v_set1((float)(1.0 / sqrt(d_sum(a, b) / (double)cols + eps)));
	for (size_t i = 0; i < cols; i += VL) {
		size_t n = lanes(cols - i);
		VF v = v_mul(v_mul(get(x + i, n), scale), get_weight(w, 0, i, n));

		put(y + i, round ? v_round_bf16(v) : v, n);
	}
}

/*
 * e^x: x = n ln 2 + r with |r| <= ln(2) / 2, e^x = 2^n e^r, e^r by its Taylor series up to r^7 (the next term is below
 * 2^-27).  Outside of [-104, 89] the result is 0 or infinite, as clamping gives it; a NaN stays one.
 */
static inline VF v_exp(VF x)
{
	VF n, r, p;

	x = v_min(v_set1(89.0f), v_max(v_set1(-104.0f), x));
	n = v_nearest(v_mul(x, v_set1(1.44269504088896341f)));
	r = v_fma(n, v_set1(-0x1.62e4p-1f), x);        /* ln 2 in two parts, the first short: its product is exact */
	r = v_fma(n, v_set1(-0x1.7f7d1cp-20f), r);
	p = v_fma(v_set1(1.0f / 5040), r, v_set1(1.0f / 720));
	p = v_fma(p, r, v_set1(1.0f / 120));
	p = v_fma(p, r, v_set1(1.0f / 24));
	p = v_fma(p, r, v_set1(1.0f / 6));
	p = v_fma(p, r, v_set1(0.5f));
	p = v_fma(v_mul(r, r), p, r);
	return v_ldexp(v_add(p, v_set1(1.0f)), n);
}

void SET(swiglu)(float *y, const float *g, const float *u, size_t cols, bool round)
{
	for (size_t i = 0; i < cols; i += VL) {
		size_t n = lanes(cols - i);
		VF x = get(g + i, n);
		VF silu = v_div(x, v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));

		if (round)
			silu = v_round_bf16(silu);
		silu = v_mul(silu, get(u + i, n));
		put(y + i, round ? v_round_bf16(silu) : silu, n);
	}
}

/* Two passes: the largest value, then where it first stands, which seldom is far to go. */
float SET(argmax)(const float *x, size_t n, uint32_t *index)
{
	VF best = v_set1(-INFINITY);
	size_t i = 0;
	float max;

	for (; i + VL <= n; i += VL)
		best = v_max(v_load(x + i), best);
	max = v_hmax(best);
	for (; i < n; i++)
		if (x[i] > max)
			max = x[i];
	for (i = 0; i + VL <= n && !v_any_equal(v_load(x + i), v_set1(max)); i += VL)
		;
	for (; i < n && x[i] != max; i++)
		;
	*index = i < n ? (uint32_t)i : 0;
	return max;
}

double SET(sum_exp)(const float *x, size_t n, float max)
{
	VD a = d_zero(), b = d_zero();
	double tail = 0;
	size_t i = 0;

	for (; i + VL <= n; i += VL) {
		VF e = v_exp(v_sub(v_load(x + i), v_set1(max)));

		a = d_add(a, d_low(e));
		b = d_add(b, d_high(e));
	}
	for (; i < n; i++)
		tail += expf(x[i] - max);
	return d_sum(a, b) + tail;
}
