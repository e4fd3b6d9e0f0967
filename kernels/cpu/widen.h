/* Weights as float32, one at a time or a few: what all sets share. */
#ifndef DS_KERNELS_CPU_WIDEN_H
#define DS_KERNELS_CPU_WIDEN_H

#include <string.h>

#include "kernels/cpu/isa.h"

static inline float round_bf16(float f)
{
	return bf16_to_f32(f32_to_bf16(f));
}

/* dtype_size of a type that weights have, without a call. */
static inline size_t weight_size(enum dtype t)
{
	return t == DT_F32 ? 4 : t == DT_F8_E4M3 ? 1 : 2;
}

static inline const void *mat_at(const struct mat *m, size_t row, size_t col)
{
	return (const char *)m->data + (row * m->ld + col) * weight_size(m->type);
}

/* Scale of the block that (row, col) lies in. */
static inline float mat_scale(const struct mat *m, size_t row, size_t col)
{
	return m->scale[(m->row0 + row) / FP8_BLOCK * m->scale_ld + col / FP8_BLOCK];
}

/* y[i] = m[row][col + i], i < n; dequantised when the type is F8. */
static inline void mat_widen(float *y, const struct mat *m, size_t row, size_t col, size_t n)
{
	const void *p = mat_at(m, row, col);

	switch (m->type) {
	case DT_F32:
		memcpy(y, p, n * sizeof(*y));
		break;
	case DT_BF16:
		for (size_t i = 0; i < n; i++)
			y[i] = bf16_to_f32(((const uint16_t *)p)[i]);
		break;
	case DT_F16:
		for (size_t i = 0; i < n; i++)
			y[i] = f16_to_f32(((const uint16_t *)p)[i]);
		break;
	case DT_F8_E4M3:
		for (size_t i = 0; i < n; i++)
			y[i] = isa_e4m3[((const uint8_t *)p)[i]] * mat_scale(m, row, col + i);
		break;
	default:
		memset(y, 0, n * sizeof(*y));
	}
}

/* Scales of row r of a packed F8 activation. */
static inline const float *act_scales(const struct act *x, size_t r)
{
	return x->scale + r * ((x->cols + FP8_BLOCK - 1) / FP8_BLOCK);
}

/* Scale of the block that column c of row r of a packed F8 activation lies in. */
static inline float act_scale(const struct act *x, size_t r, size_t c)
{
	return act_scales(x, r)[c / FP8_BLOCK];
}

static inline size_t act_row(const struct gemm *g, size_t i)
{
	return g->gather ? g->gather[i] : g->row0 + i;
}

#endif
