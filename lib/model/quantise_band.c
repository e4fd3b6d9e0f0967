/* One band of 128 rows: the arithmetic of quantising, and of going back. */
#include <math.h>
#include <string.h>

#include "model/quantise.h"

enum { BLOCK = FP8_BLOCK };

/* n elements of row r from column c on. */
static void widen(float *y, const struct mat *w, size_t r, size_t c, size_t n)
{
	const unsigned char *p = (const unsigned char *)w->data + (r * w->ld + c) * dtype_size(w->type);
	const uint16_t *h = (const uint16_t *)(const void *)p;

	switch (w->type) {
	case DT_F32:
		memcpy(y, p, n * sizeof(*y));
		break;
	case DT_BF16:
		for (size_t i = 0; i < n; i++)
			y[i] = bf16_to_f32(h[i]);
		break;
	default:
		for (size_t i = 0; i < n; i++)
			y[i] = f16_to_f32(h[i]);
	}
}

/* The bits of the largest magnitude: as integers they are ordered as the magnitudes are, NaN and infinity last. */
static uint32_t most(const float *x, size_t n, uint32_t top)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t u;

		memcpy(&u, &x[i], sizeof u);
		u &= 0x7fffffff;
		top = u > top ? u : top;
	}
	return top;
}

static float block_scale(uint32_t top, bool ue8m0)
{
	float amax, scale;

	memcpy(&amax, &top, sizeof amax);
	scale = amax / 448.0f;
	if (ue8m0 && scale > 0) {
		int e;
		float m = frexpf(scale, &e);

		scale = ldexpf(1.0f, m == 0.5f ? e - 1 : e);
	}
	return scale > 0 ? scale : 1.0f;
}

bool quantise_band(const struct mat *w, size_t row, size_t n, bool ue8m0, uint8_t *codes, float *scales)
{
	float x[BLOCK * BLOCK];

	for (size_t c = 0; c < w->cols; c += BLOCK) {
		size_t cols = w->cols - c < BLOCK ? w->cols - c : BLOCK;
		uint32_t top = 0;
		float scale;

		for (size_t r = 0; r < n; r++) {
			widen(x + r * BLOCK, w, row + r, c, cols);
			top = most(x + r * BLOCK, cols, top);
		}
		if (top >= 0x7f800000)
			return false;
		scale = block_scale(top, ue8m0);
		scales[c / BLOCK] = scale;
		for (size_t r = 0; r < n; r++)
			for (size_t i = 0; i < cols; i++)
				codes[r * w->cols + c + i] = f32_to_e4m3(x[r * BLOCK + i] / scale);
	}
	return true;
}

void dequantise_band(const struct mat *w, size_t row, size_t n, uint16_t *out)
{
	const uint8_t *codes = w->data;
	float value[256];

	for (unsigned i = 0; i < 256; i++)
		value[i] = e4m3_to_f32((uint8_t)i);
	for (size_t r = 0; r < n; r++)
		for (size_t c = 0; c < w->cols; c++) {
			float scale = w->scale[(row + r) / BLOCK * w->scale_ld + c / BLOCK];

			out[r * w->cols + c] = f32_to_bf16(value[codes[(row + r) * w->ld + c]] * scale);
		}
}
