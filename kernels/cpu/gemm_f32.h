/*
 * Products in float32 arithmetic over the vector of a set: every pair of activation and weight types.
 */
#include "kernels/cpu/widen.h"

#define ELEM float
#define OPERAND VF
enum { STEP = VL, F8_UNITS = 2 };
#define F8_FACTOR 256.0f /* v_load_f8 */

enum src { SRC_NONE, SRC_F8, SRC_DQ, SRC_F32, SRC_BF16, SRC_COUNT };

static inline size_t src_size(enum src src)
{
	return src == SRC_F8 || src == SRC_DQ ? 1 : src == SRC_BF16 ? 2 : 4;
}

static inline bool src_plain(enum src src)
{
	return src == SRC_F32;
}

static inline __attribute__((always_inline)) OPERAND op_load(const float *p)
{
	return v_load(p);
}

static inline __attribute__((always_inline)) void op_store(float *p, OPERAND w)
{
	v_store(p, w);
}

static inline __attribute__((always_inline)) VF op_dot(VF acc, OPERAND x, OPERAND w)
{
	return v_fma(x, w, acc);
}

static inline __attribute__((always_inline)) void op_src(enum src src, OPERAND *w, const uint8_t *p, float f)
{
	if (src == SRC_F8 || src == SRC_DQ)
		v_load_f8x2(w, p);
	if (src == SRC_DQ) {
		w[0] = v_mul(w[0], v_set1(f));
		w[1] = v_mul(w[1], v_set1(f));
	}
	if (src == SRC_BF16)
		w[0] = v_load_bf16((const uint16_t *)(const void *)p);
	if (src == SRC_F32)
		w[0] = v_load((const float *)(const void *)p);
}

/* Fills y[n] .. with zeros up to whole units. */
static void pad(float *y, size_t n)
{
	const size_t unit = STEP * F8_UNITS;

	memset(y + n, 0, ((n + unit - 1) / unit * unit - n) * sizeof(*y));
}

static void pack_act(float *y, const struct act *x, size_t r, size_t k, size_t n)
{
	size_t i = 0;

	if (x->kind == ACT_F32) {
		memcpy(y, (const float *)x->data + r * x->ld + k, n * sizeof(*y));
	} else if (x->kind == ACT_BF16) {
		const uint16_t *p = (const uint16_t *)x->data + r * x->ld + k;

		for (; i + VL <= n; i += VL)
			v_store(y + i, v_load_bf16(p + i));
		for (; i < n; i++)
			y[i] = bf16_to_f32(p[i]);
	} else {
		const uint8_t *p = (const uint8_t *)x->data + r * x->ld + k;

		for (; i + VL <= n; i += VL)
			v_store(y + i, v_mul(v_load_f8(p + i), v_set1(F8_FACTOR)));
		for (; i < n; i++)
			y[i] = isa_e4m3[p[i]];
	}
	pad(y, n);
}

/* Columns of one block: f * value / F8_FACTOR. */
static void pack_f8(float *y, const uint8_t *p, size_t n, float f)
{
	size_t i = 0;

	for (; i + VL <= n; i += VL)
		v_store(y + i, v_mul(v_load_f8(p + i), v_set1(f)));
	for (; i < n; i++)
		y[i] = isa_e4m3[p[i]] / F8_FACTOR * f;
}

/* raw: codes as op_src gives them; else dequantised. */
static void pack_weight(float *y, const struct mat *w, size_t r, size_t k, size_t n, bool raw)
{
	const void *p = mat_at(w, r, k);
	size_t i = 0;

	switch (w->type) {
	case DT_F8_E4M3:
		for (; i < n; i += FP8_BLOCK)
			pack_f8(y + i, (const uint8_t *)p + i, n - i < FP8_BLOCK ? n - i : FP8_BLOCK,
				raw ? 1.0f : F8_FACTOR * mat_scale(w, r, k + i));
		break;
	case DT_BF16:
		for (; i + VL <= n; i += VL)
			v_store(y + i, v_load_bf16((const uint16_t *)p + i));
		mat_widen(y + i, w, r, k + i, n - i);
		break;
	case DT_F16:
		for (; i + VL <= n; i += VL)
			v_store(y + i, v_load_f16((const uint16_t *)p + i));
		mat_widen(y + i, w, r, k + i, n - i);
		break;
	default:
		mat_widen(y, w, r, k, n);
	}
	pad(y, n);
}

#define X_IN_PLACE 0
#include "kernels/cpu/gemm_tile.h"

void SET(gemm)(const struct gemm *g, size_t m0, size_t m1, size_t n0, size_t n1)
{
	bool blocks = g->x->kind == ACT_F8;
	enum src src = SRC_NONE;

	if (blocks)
		src = SRC_F8;
	else if (g->w->type == DT_F8_E4M3)
		src = SRC_DQ;
	else if (g->w->type == DT_F32)
		src = SRC_F32;
	else if (g->w->type == DT_BF16)
		src = SRC_BF16;
	product(g, m0, m1, n0, n1, blocks, src);
}
