/* Random weights, fast: 12 random bits pick one of 4096 values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/random.h"
#include "model/make.h"

enum { HALF = 2048 };

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* Sums of twelve uniform numbers: near enough to normal, and in integers, so the same on every machine. */
void make_source_init(struct make_source *s)
{
	for (uint64_t i = 0; i < HALF; i++) {
		int64_t sum = -6 * 65536 + 6;

		for (uint64_t j = 0; j < 3; j++) {
			uint64_t r = random_bits(0x6d616b65, 3 * i + j);

			sum += (int64_t)((r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48));
		}
		s->unit[i] = (float)llabs(sum) / 65536.0f;
	}
	qsort(s->unit, HALF, sizeof *s->unit, by_value);
}

/* Sizes with which activations stay of the order of one, router and head have opinions, and norms are near one. */
static float spread(const struct weight *w)
{
	float k = 1.0f / sqrtf((float)w->cols);

	if (w->kind == WEIGHT_NORM)
		return 0.1f;
	if (w->kind == WEIGHT_BIAS)
		return 0.05f;
	if (strstr(w->name, "embed_tokens"))
		return 1.0f;
	if (strstr(w->name, "head.weight"))
		return 4 * k;
	return strstr(w->name, ".gate.weight") ? 2 * k : k;
}

/* 12-bit indices of n elements from element `first` on (a multiple of 4): sign and place in the half table. */
static void indices(uint64_t key, uint64_t first, size_t n, uint16_t *index)
{
	for (size_t i = 0; i < n; i += 4) {
		uint64_t r = random_bits(key, (first + i) / 4);

		for (size_t j = i; j < i + 4 && j < n; j++, r >>= 16)
			index[j] = r & 4095;
	}
}

/* One 128-column block of a band: scale from its largest value, codes by it. */
static float quantise(const float *value, bool ue8m0, const uint16_t *index, size_t rows, size_t cols, size_t ld,
	uint8_t *out, uint8_t *code, int *code_of)
{
	unsigned top = 0;
	float scale;

	for (size_t r = 0; r < rows; r++)
		for (size_t c = 0; c < cols; c++) {
			unsigned i = index[r * ld + c] & (HALF - 1);

			top = i > top ? i : top;
		}
	scale = value[top] / 448.0f;
	if (ue8m0) { /* the next power of two */
		int e;
		float m = frexpf(scale, &e);

		scale = ldexpf(1.0f, m == 0.5f ? e - 1 : e);
	}
	if (*code_of != (int)top) { /* nearly every block of a tensor has the same largest value */
		for (unsigned i = 0; i < HALF; i++) {
			code[i] = f32_to_e4m3(value[i] / scale);
			code[i + HALF] = code[i] | 0x80;
		}
		*code_of = (int)top;
	}
	for (size_t r = 0; r < rows; r++)
		for (size_t c = 0; c < cols; c++)
			out[r * ld + c] = code[index[r * ld + c]];
	return scale;
}

static void make_fp8(const float *value, const struct weight *w, bool ue8m0, size_t n, const uint16_t *index,
	uint8_t *out, float *scale)
{
	uint8_t code[2 * HALF];
	int code_of = -1;

	for (size_t c = 0; c < w->cols; c += FP8_BLOCK) {
		size_t cols = w->cols - c < FP8_BLOCK ? w->cols - c : FP8_BLOCK;

		scale[c / FP8_BLOCK] = quantise(value, ue8m0, index + c, n, cols, w->cols, out + c, code, &code_of);
	}
}

void make_rows(const struct make_source *s, const struct weight *w, uint64_t seed, enum dtype type, bool ue8m0,
	size_t row, size_t n, uint16_t *index, void *out, float *scale)
{
	uint64_t key = XXH3_64bits_withSeed(w->name, strlen(w->name), seed);
	float value[2 * HALF], sd = spread(w), base = w->kind == WEIGHT_NORM ? 1.0f : 0.0f, *f = out;
	uint16_t narrow[2 * HALF], *h = out;

	for (size_t i = 0; i < HALF; i++) {
		value[i] = base + s->unit[i] * sd;
		value[i + HALF] = base - s->unit[i] * sd;
	}
	indices(key, (uint64_t)row * w->cols, n * w->cols, index);
	if (type == DT_F8_E4M3) {
		make_fp8(value, w, ue8m0, n, index, out, scale);
	} else if (type == DT_F32) {
		for (size_t i = 0; i < n * w->cols; i++)
			f[i] = value[index[i]];
	} else {
		for (size_t i = 0; i < 2 * HALF; i++)
			narrow[i] = f32_to_bf16(value[i]);
		for (size_t i = 0; i < n * w->cols; i++)
			h[i] = narrow[index[i]];
	}
}
